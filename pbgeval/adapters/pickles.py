"""A file of torch.save -> plain containers, tensors that are read when needed, and inert stand-ins for all else.

A pickle is a program: it may name any function and call it. Here it can build containers, numbers and texts, and
tensors from the records of its own file. A class that it names becomes a placeholder that keeps the state it is given
and does nothing; to call anything else is refused, before anything has run. `pickle_programs` has followed the program
before, and refuses one that would end the process. Only the format of torch 1.6 and later is read: a zip archive whose
records lie uncompressed, so that tensors can be mapped and the pickle is no larger than the file.
"""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from attrs import frozen

from pbgeval.adapters.pickle_programs import check_program
from pbgeval.errors import StorageError
from pbgeval.reading import check_regular, open_input
from pbgeval.storage.array_rows import MappedRows
from pbgeval.storage.text_files import one_line

# What a damaged pickle or archive raises; ours of such a file are StorageErrors.
_DAMAGED = (
    *(pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError, KeyError, TypeError, ValueError),
    *(RecursionError, NotImplementedError, OverflowError, MemoryError, struct.error),
)
_STORAGES: Mapping[str, str] = {
    "FloatStorage": "<f4",
    "DoubleStorage": "<f8",
    "HalfStorage": "<f2",
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "|i1",
    "ByteStorage": "|u1",
    "BoolStorage": "|b1",
}


_ENCRYPTED = 1  # of an archive's flags
_OF_NUMPY = ("scalar", "_reconstruct", "ndarray")


class _RefusedError(Exception):
    """The pickle wants to call something that is not allowed."""


# Without __setstate__: with it, a pickle could point a tensor at another file.
@frozen(getstate_setstate=False)
class StoredTensor:
    """A tensor that lies in a record of the file."""

    path: Path
    offset: int  # byte of the file at which its first number lies
    dtype: str  # numpy's name
    shape: tuple[int, ...]

    def rows(self) -> MappedRows:
        """Return it as a table of vectors.

        Raises:
            StorageError: it has not two dimensions, or no floats.
        """
        if len(self.shape) != 2 or not all(self.shape) or np.dtype(self.dtype).kind != "f":
            raise StorageError(
                f"{self.path}: expected a tensor of vectors, found {np.dtype(self.dtype)} of shape {self.shape}"
            )
        return MappedRows(self.path, self.offset, self.shape[0], self.shape[1], self.dtype)


class _PlaceholderType(type):
    """The type of placeholder classes: they cannot be called, and so no function can hide behind one."""

    def __call__(cls, *arguments: object, **named: object) -> NoReturn:
        raise _RefusedError(cls.__name__)


class Placeholder(metaclass=_PlaceholderType):
    """An object of a class that is not known here: `state` is what the pickle said it holds."""

    state: object

    def __new__(cls, *arguments: object, **named: object) -> Placeholder:
        """Make an object without calling anything of the class."""
        made = super().__new__(cls)
        object.__setattr__(made, "state", {})
        return made

    def __setstate__(self, state: object) -> None:
        object.__setattr__(self, "state", state)

    def __setitem__(self, key: object, value: object) -> None:
        """Take what an object of a subclass of dict is filled with."""

    def append(self, value: object) -> None:
        """Take what an object of a subclass of list is filled with."""

    def extend(self, values: object) -> None:
        """Likewise."""

    def __hash__(self) -> int:
        return id(self)

    @property
    def type_name(self) -> str:
        """The class that it stands for."""
        return type(self).__name__


@frozen(getstate_setstate=False)
class _Storage:
    offset: int
    dtype: str
    num_values: int


class _Allowed:
    """A function of ours that a pickle may call; nothing can be set on it."""

    __slots__ = ("_function",)
    _function: Callable[..., object]

    def __init__(self, function: Callable[..., object]) -> None:
        object.__setattr__(self, "_function", function)

    def __call__(self, *arguments: object) -> object:
        return self._function(*arguments)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise _RefusedError(name)


def _device_name(*parts: object) -> str:
    if not all(isinstance(part, str | int) for part in parts):
        raise _RefusedError("torch.device")
    return ":".join(map(str, parts))


class _Unpickler(pickle.Unpickler):
    """Builds what is allowed."""

    def __init__(self, data: bytes, path: Path, records: Mapping[str, tuple[int, int]]) -> None:
        super().__init__(io.BytesIO(data))
        self.path, self.records = path, records
        self._placeholders: dict[tuple[str, str], type] = {}
        stand_in = _Allowed(lambda *_: Placeholder.__new__(Placeholder))
        self._allowed = {
            ("collections", "OrderedDict"): _Allowed(OrderedDict),
            ("collections", "defaultdict"): _Allowed(lambda *_: defaultdict(lambda: None)),
            ("builtins", "set"): _Allowed(set),
            ("builtins", "frozenset"): _Allowed(frozenset),
            ("__builtin__", "set"): _Allowed(set),
            # Arrays and numbers of numpy, which no table of vectors is: nothing is made of them.
            **{(f"numpy.{core}.multiarray", name): stand_in for core in ("core", "_core") for name in _OF_NUMPY},
            ("numpy", "dtype"): stand_in,
            ("_codecs", "encode"): _Allowed(lambda text, _: text.encode("latin1")),
            ("torch", "Size"): _Allowed(tuple),
            ("torch", "device"): _Allowed(_device_name),
            ("torch._utils", "_rebuild_tensor"): _Allowed(self._tensor),
            ("torch._utils", "_rebuild_tensor_v2"): _Allowed(self._tensor),
            ("torch._utils", "_rebuild_parameter"): _Allowed(lambda tensor, *_: tensor),
            ("torch._utils", "_rebuild_parameter_with_state"): _Allowed(lambda tensor, *_: tensor),
        }

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - what the pickle names
        if (module, name) in self._allowed:
            return self._allowed[module, name]
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        full = f"{module}.{name}"
        return self._placeholders.setdefault((module, name), _PlaceholderType(full, (Placeholder,), {}))

    def persistent_load(self, pid: Any) -> _Storage:  # noqa: ANN401 - what the pickle says
        kind, dtype, key, _, num_values = pid
        if kind != "storage" or dtype not in _STORAGES.values():
            # Not the value itself: one that holds itself many times over has no end as a text.
            raise _RefusedError(f"storage {getattr(dtype, '__name__', type(dtype).__name__)}")
        if not isinstance(key, str) or not _are_sizes(num_values):
            raise ValueError("a storage without a name or a size")
        offset, size = self.records[f"data/{key}"]
        if num_values * np.dtype(dtype).itemsize > size:
            raise ValueError(f"tensor {key} is larger than its record")
        return _Storage(offset, dtype, num_values)

    def _tensor(
        self, storage: _Storage, first: int, shape: tuple[int, ...], stride: tuple[int, ...], *_: object
    ) -> StoredTensor:
        if not isinstance(storage, _Storage):
            raise TypeError("a tensor without a storage")
        if not (isinstance(shape, tuple) and isinstance(stride, tuple) and _are_sizes(first, *shape, *stride)):
            raise ValueError("a tensor whose place and shape are no whole numbers")
        step, num_values = 1, 1
        for size, of_axis in zip(reversed(shape), reversed(stride), strict=True):
            if size > 1 and of_axis != step:
                raise _RefusedError("a tensor whose numbers are not next to each other")
            step *= size
            num_values *= size
        if first + num_values > storage.num_values:
            raise ValueError("a tensor beyond its storage")
        offset = storage.offset + first * np.dtype(storage.dtype).itemsize
        return StoredTensor(self.path, offset, storage.dtype, tuple(shape))


def read_saved(path: Path, advice: str) -> object:
    """Return what torch.save wrote; no code of the file runs, and no tensor is read.

    Args:
        path: the file.
        advice: what to do where this does not do; the end of an error's line.

    Raises:
        StorageError: it is no such file, damaged, or wants to call what is not allowed.
    """
    try:
        with open_input(path) as file, zipfile.ZipFile(file) as archive:
            names = archive.namelist()
            prefix = next((name.removesuffix("data.pkl") for name in names if name.endswith("/data.pkl")), None)
            if prefix is None:
                raise StorageError(f"{path}: expected a file of torch.save, found a zip archive without data.pkl")
            if f"{prefix}byteorder" in names and _stored(archive, f"{prefix}byteorder") != b"little":
                raise StorageError(f"{path}: expected numbers of little-endian machines, found others")
            records = dict(_records(archive, file, prefix))
            data = _stored(archive, f"{prefix}data.pkl")
        check_program(data)
        return _Unpickler(data, path, records).load()
    except _RefusedError as error:
        raise StorageError(
            f"{path}: expected tensors and plain values, found a pickle that calls {one_line(error)}: nothing was run; "
            f"{advice}"
        ) from None
    except zipfile.BadZipFile as error:
        raise StorageError(f"{path}: expected a file of torch.save (1.6 or later), found none; {advice}") from error
    except OSError as error:
        raise StorageError(f"{path}: expected a file that can be read, found: {error.strerror or error}") from error
    except _DAMAGED as error:
        raise StorageError(f"{path}: expected a pickle that can be read, found: {one_line(error)}; {advice}") from error


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
    except (OSError, *_DAMAGED) as error:
        raise StorageError(f"{path}: expected a file of torch.save, found: {one_line(error)}") from error


def _are_sizes(*values: object) -> bool:
    """Tell whether all are whole numbers from 0."""
    return all(type(value) is int and value >= 0 for value in values)


def _stored(archive: zipfile.ZipFile, name: str) -> bytes:
    """Return a record that lies uncompressed, as torch writes all of them: so it is no larger than the file."""
    _check_stored(archive.getinfo(name))
    return archive.read(name)


def _check_stored(entry: zipfile.ZipInfo) -> None:
    if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & _ENCRYPTED:
        raise ValueError(f"record {entry.filename} is compressed or encrypted")


def _records(archive: zipfile.ZipFile, file: io.BufferedReader, prefix: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the name of each record of a tensor, the byte at which it begins, and its length."""
    for entry in archive.infolist():
        name = entry.filename.removeprefix(prefix)
        if not name.startswith("data/"):
            continue
        _check_stored(entry)
        file.seek(entry.header_offset)
        header = file.read(30)
        name_length, extra_length = struct.unpack("<HH", header[26:30])
        yield name, (entry.header_offset + 30 + name_length + extra_length, entry.file_size)
