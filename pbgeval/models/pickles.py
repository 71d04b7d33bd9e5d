"""A file of torch.save -> plain values, tensors that say where in the file they lie, and stand-ins for other classes.

A pickle is a program: it may name any function and call it. torch's unpickler for weights builds only containers,
numbers, texts and tensors, and what it is told is safe: here a stand-in for every other class, which keeps the state
that it is given and refuses to be called. So nothing of the file runs. How much work, memory and stack it takes is
limited before (`pickle_cost.py`).
Only the format of torch 1.6 and later is read: a zip archive whose records lie uncompressed, so that tables can be
mapped. Such an archive may be a piece of a larger file, as in a distributed checkpoint; and a bare pickle is read by
the same rules (`read_pickle`).
"""

from __future__ import annotations

import io
import math
import pickle
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NoReturn, cast

import torch
from torch import Tensor
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from pbgeval.errors import StorageError, raise_first
from pbgeval.models.pickle_cost import check_cost
from pbgeval.storage.arrays import BFLOAT16, MappedRows
from pbgeval.storage.text import check_regular, one_line

_DTYPES = {torch.float16: "<f2", torch.bfloat16: BFLOAT16, torch.float32: "<f4", torch.float64: "<f8"}
_ENCRYPTED = 1  # of an archive's flags
MAX_PICKLE_BYTES = 32 << 20  # a pickle describes tensors and holds none; in memory it may be as large a hundred times


class _StandInType(type):
    """The type of stand-ins: they cannot be called, so no function can hide behind one."""

    def __call__(cls, *arguments: object, **named: object) -> NoReturn:
        raise ValueError(f"a pickle that calls {cls.__name__}")


class StandIn(metaclass=_StandInType):
    """An object of another class: `state` is what the pickle says that it holds."""

    state: object

    def __new__(cls, *arguments: object) -> StandIn:
        made = super().__new__(cls)
        made.state = {}
        return made

    def __setstate__(self, state: object) -> None:
        self.state = state


def _nothing(*arguments: object) -> StandIn:
    return StandIn.__new__(StandIn)


# What may be called: arrays and numbers of numpy, which no table of vectors is, and two containers.
_CALLED: dict[str, Callable[..., object]] = {
    **{
        f"numpy.{core}.multiarray.{name}": _nothing for core in ("core", "_core") for name in ("scalar", "_reconstruct")
    },
    "numpy.dtype": _nothing,
    "builtins.frozenset": frozenset,
    "collections.defaultdict": lambda *_: {},
}


def read_saved(path: Path, advice: str, *, piece: tuple[int, int] | None = None, check_data: bool = True) -> object:
    """Read a file of torch.save without running its code or reading tensors.

    Args:
        path: the file.
        advice: what to do where this does not do; the end of an error's line.
        piece: offset and length of the archive within the file; None: it is the file.
        check_data: compare the checksums of tensors too, which reads them all.

    Raises:
        StorageError: it is no such file, damaged, or wants to call what is not allowed.
    """
    try:
        _records(path, piece, check_cost)
        with _opened(path, piece) as file:
            if check_data:
                with zipfile.ZipFile(file) as archive:
                    damaged = archive.testzip()  # torch checks no checksums of what it maps
                if damaged is not None:
                    raise ValueError(f"record {damaged} has a wrong checksum")
            file.seek(0)
            return _load(path, file if piece else None)
    except OSError as error:
        raise StorageError(f"{path}: cannot read the file: {error.strerror or error}") from error
    except Exception as error:  # what a damaged pickle raises has no end of kinds
        # torch adds lines of advice to what its unpickler said.
        reason = error.__context__ if isinstance(error.__context__, type(error)) else error
        raise StorageError(
            f"{path}: expected tensors and plain values of torch.save (1.6 or later), found: "
            f"{one_line(reason) or type(error).__name__}: nothing was run; {advice}"
        ) from error


def _load(path: Path, piece: IO[bytes] | None) -> object:
    """Unpickle an archive without its tensors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of another version of pickle's protocol
        names = get_unsafe_globals_in_checkpoint(piece or path)
        known = [(_CALLED[name] if name in _CALLED else _StandInType(name, (StandIn,), {}), name) for name in names]
        with safe_globals([StandIn, *known]):
            if piece is None:
                return torch.load(path, map_location="meta", mmap=True, weights_only=True)
            piece.seek(0)
            return torch.load(piece, map_location="meta", weights_only=True)


# What the pickle of a distributed checkpoint calls as well: the order of a tensor's numbers, the checkpoint's place.
_CALLED_OF_PICKLES = {
    **_CALLED,
    "torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING": _nothing,
    "torch.serialization._get_layout": _nothing,
    "pathlib.PosixPath": _nothing,
    "pathlib._local.PosixPath": _nothing,
}


class _Unpickler(pickle._Unpickler):  # in Python: the compiled one makes room for as many numbers as a file claims
    """An unpickler that makes containers, numbers, texts, shapes and stand-ins."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self._stand_ins: dict[str, Any] = dict(_CALLED_OF_PICKLES)

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - a type or a stand-in
        """Return what stands for a class or a function."""
        found = getattr(torch, name, None) if module == "torch" else None
        if isinstance(found, torch.dtype | torch.layout) or found is torch.Size:
            return found
        full_name = f"{module}.{name}"
        if full_name not in self._stand_ins:
            self._stand_ins[full_name] = _StandInType(name, (StandIn,), {})
        return self._stand_ins[full_name]


def read_pickle(path: Path) -> object:
    """Read a file that is one pickle without running its code.

    Raises:
        StorageError: it cannot be read, is damaged, or wants to call what is not allowed.
    """
    try:
        check_regular(path)
        with path.open("rb") as file:
            data = file.read(MAX_PICKLE_BYTES + 1)
        if len(data) > MAX_PICKLE_BYTES:
            raise ValueError(f"more than {MAX_PICKLE_BYTES >> 20} MB")
        check_cost(data)
        return _Unpickler(data).load()
    except OSError as error:
        raise StorageError(f"{path}: cannot read the file: {error.strerror or error}") from error
    except Exception as error:  # what a damaged pickle raises has no end of kinds
        raise StorageError(
            f"{path}: expected a pickle of plain values, found: {one_line(error) or type(error).__name__}: nothing was "
            "run; copy the file again"
        ) from error


def stored_rows(path: Path, tensor: Tensor, piece: tuple[int, int] | None = None) -> MappedRows:
    """Map a tensor of `read_saved` as a table; further dimensions become columns.

    Raises:
        StorageError: it has fewer than two dimensions, or no floats of numpy's; the file is damaged.
    """
    dtype = _DTYPES.get(tensor.dtype)
    is_dense = tensor.layout is torch.strided and not tensor.is_nested
    if not is_dense or tensor.dim() < 2 or not tensor.numel() or dtype is None:
        form = f"shape {tuple(tensor.shape)}" if is_dense else "a sparse or nested tensor"
        found = f"{str(tensor.dtype).removeprefix('torch.')} of {form}"
        raise StorageError(
            f"{path}: expected a tensor of vectors (bfloat16, float16, float32 or float64), found {found}"
        )
    return MappedRows(path, stored_at(path, tensor, piece), tensor.shape[0], math.prod(tensor.shape[1:]), dtype)


def stored_at(path: Path, tensor: Tensor, piece: tuple[int, int] | None = None) -> int:
    """Return the offset of a tensor's numbers in its file.

    Raises:
        StorageError: it has no numbers, or they are to be negated, not next to each other, or not all in their record
            of the file.
    """
    raise_first(
        StorageError,
        (
            tensor.layout is not torch.strided or tensor.is_nested,
            f"{path}: expected a dense tensor, found a sparse or nested one; save tensor.to_dense()",
        ),
    )
    raise_first(
        StorageError,
        (
            tensor.is_neg() or tensor.is_conj(),
            f"{path}: expected numbers as they are, found a tensor that is marked to be negated or conjugated; save "
            "tensor.resolve_neg().resolve_conj()",
        ),
        (
            not tensor.is_contiguous(),
            f"{path}: expected a tensor of vectors, found one whose numbers are not next to each other",
        ),
    )
    storage = tensor.untyped_storage()
    start, size = getattr(storage, "_checkpoint_offset", None), tensor.element_size()
    if start is None:
        raise StorageError(
            f"{path}: expected a tensor with numbers, found one that was saved on the device meta, which keeps none; "
            "save the model from the CPU or a GPU"
        )
    first = int(tensor.storage_offset())
    if max((first + tensor.numel()) * size, storage.nbytes()) > _records(path, piece).get(start, -1):
        raise StorageError(
            f"{path}: expected a tensor within its record of the file, found a larger one; copy it again"
        )
    return int(start) + first * size + (piece[0] if piece else 0)


def read_trusting(path: Path) -> Any:  # noqa: ANN401 - whatever the file makes
    """Unpickle a file as Python does. This runs code of the file.

    Raises:
        StorageError: it cannot be read here.
    """
    try:
        check_regular(path)
        return torch.load(path, map_location="cpu", weights_only=False)
    except ImportError as error:
        raise StorageError(
            f"{path}: expected classes that can be imported here, found: {one_line(error)}; run where that is installed"
        ) from error
    except Exception as error:
        raise StorageError(f"{path}: expected a file of torch.save, found: {one_line(error)}") from error


def _records(
    path: Path, piece: tuple[int, int] | None = None, check_pickle: Callable[[bytes], None] | None = None
) -> dict[int, int]:
    """Return the length of each record of an archive by its offset; look at its pickle if that is to be checked.

    Raises:
        ValueError: one is compressed or encrypted, or numbers are those of big-endian machines.
        zipfile.BadZipFile: it is no archive, or the pickle's checksum is wrong.
    """
    found: dict[int, int] = {}
    with _opened(path, piece) as file, zipfile.ZipFile(file) as archive:
        for entry in archive.infolist():
            if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & _ENCRYPTED:
                raise ValueError(f"record {entry.filename} is compressed or encrypted")
            file.seek(entry.header_offset)
            name_length, extra_length = struct.unpack("<26xHH", file.read(30))
            found[entry.header_offset + 30 + name_length + extra_length] = entry.file_size
            # torch takes capitals for the same.
            if check_pickle is not None and entry.filename.lower().endswith(("data.pkl", "byteorder")):
                if entry.file_size > MAX_PICKLE_BYTES:
                    raise ValueError(f"a pickle of more than {MAX_PICKLE_BYTES >> 20} MB")
                # It is read for its checksum. torch would exchange the bytes of tensors that are not there.
                content = archive.read(entry)
                if content == b"big":
                    raise ValueError("numbers of big-endian machines")
                if entry.filename.lower().endswith("data.pkl"):
                    check_pickle(content)
    return found


class _Piece(io.RawIOBase):
    """Some bytes of a file, as a file."""

    def __init__(self, file: IO[bytes], offset: int, length: int) -> None:
        self._file, self._offset, self._length, self._at = file, offset, length, 0

    def readable(self) -> bool:
        return True

    seekable = readable

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = max(0, offset + (0, self._at, self._length)[whence])
        return self._at

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - a buffer
        self._file.seek(self._offset + self._at)
        num_read = self._file.readinto(memoryview(buffer)[: max(0, self._length - self._at)])  # type: ignore[attr-defined]
        self._at += num_read
        return int(num_read)


@contextmanager
def _opened(path: Path, piece: tuple[int, int] | None) -> Iterator[IO[bytes]]:
    check_regular(path)
    with path.open("rb") as file:
        yield file if piece is None else io.BufferedReader(cast("io.RawIOBase", _Piece(file, *piece)))
