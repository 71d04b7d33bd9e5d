"""A file of torch.save -> plain values, tensors that say where in the file they lie, and stand-ins for other classes.

A pickle is a program: it may name any function and call it. The unpickler here builds only containers, numbers, texts
and descriptions of tensors (`saved_tensors.py`), and for every other class a stand-in, which keeps the state that it is
given and refuses to be called. So nothing of the file runs. How much work, memory and stack it takes is limited before
(`pickle_cost.py`).
Only the format of torch 1.6 and later is read: a zip archive whose records lie uncompressed, so that tables can be
mapped. Such an archive may be a piece of a larger file, as in a distributed checkpoint; and a bare pickle is read by
the same rules (`read_pickle`).
"""

from __future__ import annotations

import _codecs
import _compat_pickle
import io
import math
import pickle
import struct
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, ClassVar, NoReturn, cast

import torch

from pbgeval.errors import StorageError
from pbgeval.models.pickle_cost import check_cost
from pbgeval.models.saved_tensors import REBUILDING, Record, SavedStorage, SavedTensor, saved_storage, storage_kind
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


def _stand_in(name: str) -> _StandInType:
    return _StandInType(name, (StandIn,), {})


# What may be called, and what is called in its place: containers and numbers; arrays and numbers of numpy, which no
# table of vectors is; of a distributed checkpoint the order of a tensor's numbers and the checkpoint's place.
_CALLED: Mapping[str, Callable[..., object]] = {
    **{
        f"numpy.{core}.multiarray.{name}": _nothing for core in ("core", "_core") for name in ("scalar", "_reconstruct")
    },
    **dict.fromkeys(("numpy.dtype", "pathlib.PosixPath", "pathlib._local.PosixPath", "torch.device"), _nothing),
    "torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING": _nothing,
    "torch.serialization._get_layout": _nothing,
    "torch.Size": torch.Size,
    "collections.Counter": Counter,
    "collections.OrderedDict": OrderedDict,
    "collections.defaultdict": lambda *_: {},
    **{f"builtins.{kind.__name__}": kind for kind in (bytearray, complex, frozenset, set)},
    "_codecs.encode": _codecs.encode,  # bytes, before there was an opcode for them
}


_LOAD: Mapping[int, Callable[[Any], None]] = pickle._Unpickler.dispatch  # by opcode


def _check_arguments(arguments: object) -> None:
    if type(arguments) is not tuple:  # of others the cost is not known
        raise ValueError("a call whose arguments are no tuple")


class _Unpickler(pickle._Unpickler):  # in Python: the compiled one makes room for as many numbers as a file claims
    """An unpickler that makes containers, numbers, texts, descriptions of tensors and stand-ins."""

    stack: list[Any]

    def __init__(self, data: bytes, record_of: Callable[[str], Record | None] | None = None) -> None:
        super().__init__(io.BytesIO(data), encoding="utf-8")
        self._record_of = record_of
        self._known: dict[str, Any] = {**_CALLED, **(REBUILDING if record_of else {})}

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - a type or a stand-in
        """Return what stands for a class or a function."""
        module = _compat_pickle.IMPORT_MAPPING.get(module, module)  # protocol 2 has the names of Python 2
        module, name = _compat_pickle.NAME_MAPPING.get((module, name), (module, name))
        full_name = f"{module}.{name}"
        if full_name not in self._known:
            found = vars(torch).get(name) if module == "torch" else None
            is_type = isinstance(found, torch.dtype | torch.layout)
            self._known[full_name] = found if is_type else storage_kind(module, name) or _stand_in(full_name)
        return self._known[full_name]

    def persistent_load(self, pid: object) -> SavedStorage:
        """Return the storage that a pickle refers to."""
        if self._record_of is None:
            raise ValueError("a reference to another file")
        return saved_storage(pid, self._record_of)

    def _reduce(self) -> None:
        """Call a function."""
        _check_arguments(self.stack[-1])
        _LOAD[pickle.REDUCE[0]](self)

    def _new(self) -> None:
        """Make an object."""
        _check_arguments(self.stack[-1])
        _LOAD[pickle.NEWOBJ[0]](self)

    def _new_by_name(self) -> None:
        """Make an object, with arguments by name."""
        _check_arguments(self.stack[-2])
        _LOAD[pickle.NEWOBJ_EX[0]](self)

    def _build(self) -> None:
        """Give an object its state."""
        state = self.stack.pop()
        made = self.stack[-1]
        if isinstance(made, StandIn):
            made.__setstate__(state)
        elif not isinstance(made, OrderedDict):  # whose state is versions of modules
            raise ValueError(f"a state for {type(made).__name__}, which has none")

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **_LOAD,
        pickle.REDUCE[0]: _reduce,
        pickle.NEWOBJ[0]: _new,
        pickle.NEWOBJ_EX[0]: _new_by_name,
        pickle.BUILD[0]: _build,
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
        with _opened(path, piece) as file, zipfile.ZipFile(file) as archive:
            records = _records(archive, file, piece[0] if piece else 0)
            data = _read_pickle_record(archive, records)
            check_cost(data)
            damaged = archive.testzip() if check_data else None
            if damaged is not None:
                raise ValueError(f"record {damaged} has a wrong checksum")
            return _Unpickler(data, records.get).load()
    except OSError as error:
        raise StorageError(f"{path}: cannot read the file: {error.strerror or error}") from error
    except Exception as error:  # what a damaged pickle raises has no end of kinds
        raise StorageError(
            f"{path}: expected tensors and plain values of torch.save (1.6 or later), found: "
            f"{one_line(error) or type(error).__name__}: nothing was run; {advice}"
        ) from error


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


def stored_rows(path: Path, tensor: SavedTensor) -> MappedRows:
    """Map a tensor of `read_saved` as a table; further dimensions become columns.

    Raises:
        StorageError: it has fewer than two dimensions, or no floats of numpy's; the file is damaged.
    """
    dtype = _DTYPES.get(tensor.dtype)
    if not tensor.is_dense or len(tensor.shape) < 2 or not tensor.num_values or dtype is None:
        form = f"shape {tensor.shape}" if tensor.is_dense else "a sparse or nested tensor"
        found = f"{str(tensor.dtype).removeprefix('torch.')} of {form}"
        raise StorageError(
            f"{path}: expected a tensor of vectors (bfloat16, float16, float32 or float64), found {found}"
        )
    return MappedRows(path, stored_at(path, tensor), tensor.shape[0], math.prod(tensor.shape[1:]), dtype)


def stored_at(path: Path, tensor: SavedTensor) -> int:
    """Return the offset of a tensor's numbers in its file.

    Raises:
        StorageError: it has no numbers, or they are to be negated, not next to each other, or not all in their record
            of the file.
    """
    storage = tensor.storage
    if not tensor.is_dense:
        raise StorageError(f"{path}: expected a dense tensor, found a sparse or nested one; save tensor.to_dense()")
    if tensor.is_marked:
        raise StorageError(
            f"{path}: expected numbers as they are, found a tensor that is marked to be negated or conjugated; save "
            "tensor.resolve_neg().resolve_conj()"
        )
    if not tensor.is_contiguous():
        raise StorageError(f"{path}: expected a tensor of vectors, found one whose numbers are not next to each other")
    if storage is None:
        raise StorageError(
            f"{path}: expected a tensor with numbers, found one that was saved on the device meta, which keeps none; "
            "save the model from the CPU or a GPU"
        )
    size = tensor.dtype.itemsize
    if max((tensor.first + tensor.num_values) * size, storage.num_bytes) > storage.record.num_bytes:
        raise StorageError(
            f"{path}: expected a tensor within its record of the file, found a larger one; copy it again"
        )
    return storage.record.offset + tensor.first * size


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


def _records(archive: zipfile.ZipFile, file: IO[bytes], start: int) -> dict[str, Record]:
    """Return the records of an archive by name in small letters, without the folder that all are in.

    Raises:
        ValueError: one is compressed or encrypted, or stands twice; or they are not in one folder.
    """
    found: dict[str, Record] = {}
    folder = ""
    for entry in archive.infolist():
        if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & _ENCRYPTED:
            raise ValueError(f"record {entry.filename} is compressed or encrypted")
        file.seek(entry.header_offset)
        name_length, extra_length = struct.unpack("<26xHH", file.read(30))
        offset = start + entry.header_offset + 30 + name_length + extra_length
        above, _, name = entry.filename.lower().partition("/")  # torch takes capitals for the same
        folder = folder or above
        if above != folder or name in found:
            raise ValueError(f"record {entry.filename} is in another folder, or stands twice")
        found[name] = Record(offset, entry.file_size)
    return found


def _read_pickle_record(archive: zipfile.ZipFile, records: Mapping[str, Record]) -> bytes:
    """Return the pickle of an archive, whose checksum is compared.

    Raises:
        ValueError: there is none, it is too large, or numbers are those of big-endian machines.
    """
    contents = {"byteorder": b"little"}
    for entry in archive.infolist():
        name = entry.filename.lower().partition("/")[2]
        if name in ("data.pkl", "byteorder"):
            if entry.file_size > MAX_PICKLE_BYTES:
                raise ValueError(f"a pickle of more than {MAX_PICKLE_BYTES >> 20} MB")
            contents[name] = archive.read(entry)
    if "constants.pkl" in records:
        raise ValueError("a program of torchscript")
    if contents["byteorder"] != b"little":
        raise ValueError("numbers of big-endian machines")
    if "data.pkl" not in contents:
        raise ValueError("an archive without data.pkl")
    return contents["data.pkl"]


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
