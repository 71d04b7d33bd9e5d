"""A file of torch.save -> plain values, tensors that say where in the file they lie, and stand-ins for other classes.

A pickle is a program: it may name any function and call it. torch's unpickler for weights builds only containers,
numbers, texts and tensors, and what it is told is safe: here a stand-in for every other class, which keeps the state
that it is given and refuses to be called. So nothing of the file runs, although it may exhaust memory or the stack.
Only the format of torch 1.6 and later is read: a zip archive whose records lie uncompressed, so that tables can be
mapped.
"""

from __future__ import annotations

import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from pbgeval.errors import StorageError
from pbgeval.storage.arrays import MappedRows
from pbgeval.storage.text import check_regular, one_line

_DTYPES = {torch.float16: "<f2", torch.float32: "<f4", torch.float64: "<f8"}
_ENCRYPTED = 1  # of an archive's flags


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


def read_saved(path: Path, advice: str) -> object:
    """Return what torch.save wrote; no code of the file runs, and no tensor is read: `stored_rows` says where it lies.

    Args:
        path: the file.
        advice: what to do where this does not do; the end of an error's line.

    Raises:
        StorageError: it is no such file, damaged, or wants to call what is not allowed.
    """
    try:
        check_regular(path)
        _records(path)
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()  # torch checks no checksums of what it maps
        if damaged is not None:
            raise ValueError(f"record {damaged} has a wrong checksum")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of another version of pickle's protocol
            names = get_unsafe_globals_in_checkpoint(path)
            known = [(_CALLED[name] if name in _CALLED else _StandInType(name, (StandIn,), {}), name) for name in names]
            with safe_globals([StandIn, *known]):
                return torch.load(path, map_location="meta", mmap=True, weights_only=True)
    except OSError as error:
        raise StorageError(f"{path}: cannot read the file: {error.strerror or error}") from error
    except Exception as error:  # what a damaged pickle raises has no end of kinds
        # torch adds lines of advice to what its unpickler said.
        reason = error.__context__ if isinstance(error.__context__, type(error)) else error
        raise StorageError(
            f"{path}: expected tensors and plain values of torch.save (1.6 or later), found: "
            f"{one_line(reason) or type(error).__name__}: nothing was run; {advice}"
        ) from error


def stored_rows(path: Path, tensor: Tensor) -> MappedRows:
    """Return a tensor that `read_saved` has found as a table of vectors.

    Raises:
        StorageError: it has not two dimensions, or no floats of numpy's; the file is damaged.
    """
    dtype = _DTYPES.get(tensor.dtype)
    if tensor.layout is not torch.strided or tensor.dim() != 2 or not tensor.numel() or dtype is None:
        found = f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"
        raise StorageError(f"{path}: expected a tensor of vectors (float16, float32 or float64), found {found}")
    if not tensor.is_contiguous():
        raise StorageError(f"{path}: expected a tensor of vectors, found one whose numbers are not next to each other")
    storage = tensor.untyped_storage()
    start, size = int(getattr(storage, "_checkpoint_offset", -1)), tensor.element_size()
    first = int(tensor.storage_offset())
    end = (first + tensor.numel()) * size
    if max(end, storage.nbytes()) > _records(path).get(start, -1):
        raise StorageError(
            f"{path}: expected a tensor within its record of the file, found a larger one; copy it again"
        )
    return MappedRows(path, start + first * size, tensor.shape[0], tensor.shape[1], dtype)


def read_trusting(path: Path) -> Any:  # noqa: ANN401 - whatever the file makes
    """Unpickle a file as Python does: what it says is run.

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


def _records(path: Path) -> dict[int, int]:
    """Return the length of each record of the archive by the byte at which it begins.

    Raises:
        ValueError: one is compressed or encrypted, or numbers are those of big-endian machines.
        zipfile.BadZipFile: it is no archive, or the pickle's checksum is wrong.
    """
    found: dict[int, int] = {}
    with path.open("rb") as file, zipfile.ZipFile(file) as archive:
        for entry in archive.infolist():
            if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & _ENCRYPTED:
                raise ValueError(f"record {entry.filename} is compressed or encrypted")
            file.seek(entry.header_offset)
            name_length, extra_length = struct.unpack("<26xHH", file.read(30))
            found[entry.header_offset + 30 + name_length + extra_length] = entry.file_size
            # The pickle is read for its checksum. torch would exchange the bytes of tensors that are not there.
            if entry.filename.endswith(("data.pkl", "byteorder")) and archive.read(entry) == b"big":
                raise ValueError("numbers of big-endian machines")
    return found
