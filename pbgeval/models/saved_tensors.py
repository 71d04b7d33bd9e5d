"""What a pickle of torch.save says of tensors -> type, shape, and where in the file their numbers lie.

Such a pickle names functions of torch that build a tensor on a storage. Here others take their place: they check and
note what they are told and build nothing, so that no tensor is made, whatever shape a file claims, and the version of
torch does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from attrs import evolve, frozen

_STORAGES = {
    **{"Float": torch.float32, "Double": torch.float64, "Half": torch.float16, "BFloat16": torch.bfloat16},
    **{"Long": torch.int64, "Int": torch.int32, "Short": torch.int16, "Char": torch.int8, "Byte": torch.uint8},
    **{"Bool": torch.bool, "ComplexFloat": torch.complex64, "ComplexDouble": torch.complex128},
    **{"QInt8": torch.qint8, "QUInt8": torch.quint8, "QInt32": torch.qint32},
    **{"QUInt4x2": torch.quint4x2, "QUInt2x4": torch.quint2x4},
}
_MAX_DIMENSIONS = 64
_LIMIT = 1 << 62  # of counts


@frozen
class Record:
    """A record of an archive: its first byte in the file, and its length."""

    offset: int
    num_bytes: int


@frozen(eq=False)
class StorageKind:
    """A class of storages."""

    dtype: torch.dtype


@frozen(eq=False)
class SavedStorage:
    """Numbers in a file: the record that has them, and how many bytes the pickle claims."""

    dtype: torch.dtype
    record: Record
    num_bytes: int


@frozen(eq=False)
class SavedTensor:
    """A tensor of which nothing has been read."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...] = ()
    first: int = 0  # its first number among those of the storage
    storage: SavedStorage | None = None  # None: it has no numbers
    is_dense: bool = True
    is_marked: bool = False  # its numbers are to be negated or conjugated

    @property
    def num_values(self) -> int:
        return math.prod(self.shape)

    def is_contiguous(self) -> bool:
        """Return whether its numbers lie next to each other, row after row."""
        step = 1
        for size, stride in zip(reversed(self.shape), reversed(self.stride), strict=self.is_dense):
            if size != 1 and stride != step:
                return self.num_values == 0
            step *= size
        return True


def storage_kind(module: str, name: str) -> StorageKind | None:
    """Return a class of storages by its name, None if it is not known."""
    if (module, name) == ("torch.storage", "UntypedStorage"):
        return StorageKind(torch.uint8)
    dtype = _STORAGES.get(name.removesuffix("Storage")) if name.endswith("Storage") else None
    return StorageKind(dtype) if dtype is not None and module in ("torch", "torch.cuda") else None


def saved_storage(identifier: object, record_of: Callable[[str], Record | None]) -> SavedStorage:
    """Return the storage of a persistent identifier.

    Raises:
        ValueError: it is none, or its record is missing.
    """
    if type(identifier) is not tuple or len(identifier) != 5 or identifier[0] not in ("storage", b"storage"):
        raise ValueError("a reference to what is no storage")
    _, kind, key, _, count = identifier
    if not isinstance(kind, StorageKind):
        raise ValueError("a storage of an unknown type")
    if not isinstance(key, str):
        raise ValueError("a storage without a name")
    record = record_of(f"data/{key}")
    if record is None:
        raise ValueError("a tensor whose record is missing")
    return SavedStorage(kind.dtype, record, _count(count) * kind.dtype.itemsize)


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value < _LIMIT:
        raise ValueError("a tensor whose sizes are no counts")
    return value


def _sizes(value: object) -> tuple[int, ...]:
    if not isinstance(value, tuple) or len(value) > _MAX_DIMENSIONS:
        raise ValueError(f"a tensor whose shape is no tuple of at most {_MAX_DIMENSIONS} sizes")
    return tuple(map(_count, value))


def _tensor(dtype: object, size: object, stride: object, **more: object) -> SavedTensor:
    if not isinstance(dtype, torch.dtype):
        raise ValueError("a tensor of an unknown type")
    tensor = SavedTensor(dtype, _sizes(size), _sizes(stride), **more)  # type: ignore[arg-type]
    if len(tensor.shape) != len(tensor.stride):
        raise ValueError("a tensor whose shape and strides differ in length")
    _count(tensor.num_values)
    return tensor


def _rebuild_tensor(storage: object, first: object, size: object, stride: object) -> SavedTensor:
    if not isinstance(storage, SavedStorage):
        raise ValueError("a tensor without a storage")
    return _tensor(storage.dtype, size, stride, first=_count(first), storage=storage)


def _marked(tensor: SavedTensor, metadata: object) -> SavedTensor:
    if not isinstance(metadata, dict | None):
        raise ValueError("a tensor whose marks are no dict")
    return evolve(tensor, is_marked=any((metadata or {}).get(name) for name in ("neg", "conj")))


def _rebuild_tensor_v2(
    storage: object, first: object, size: object, stride: object, _grad: object, _hooks: object, metadata: object = None
) -> SavedTensor:
    return _marked(_rebuild_tensor(storage, first, size, stride), metadata)


def _rebuild_tensor_v3(
    storage: object,
    first: object,
    size: object,
    stride: object,
    _grad: object,
    _hooks: object,
    dtype: object,
    metadata: object = None,
) -> SavedTensor:
    tensor = _rebuild_tensor(storage, first, size, stride)
    if not isinstance(dtype, torch.dtype):
        raise ValueError("a tensor of an unknown type")
    return _marked(evolve(tensor, dtype=dtype), metadata)


def _rebuild_qtensor(
    storage: object, first: object, size: object, stride: object, _quantizer: object, _grad: object, _hooks: object
) -> SavedTensor:
    return _rebuild_tensor(storage, first, size, stride)


def _rebuild_meta_tensor_no_storage(dtype: object, size: object, stride: object, _grad: object) -> SavedTensor:
    return _tensor(dtype, size, stride)


def _rebuild_sparse_tensor(_layout: object, data: object) -> SavedTensor:
    """Note the shape of a sparse tensor: it follows the values, the last of its tensors."""
    if not isinstance(data, tuple):
        raise ValueError("a sparse tensor without its parts")
    places = [place for place, part in enumerate(data[:-1]) if isinstance(part, SavedTensor)]
    if not places:
        raise ValueError("a sparse tensor without its parts")
    return SavedTensor(data[places[-1]].dtype, _sizes(data[places[-1] + 1]), is_dense=False)


def _rebuild_nested_tensor(buffer: object, _sizes: object, _strides: object, _offsets: object) -> SavedTensor:
    return SavedTensor(_given(buffer).dtype, (), is_dense=False)


def _rebuild_parameter(data: object, _grad: object = True, _hooks: object = None) -> SavedTensor:
    return _given(data)


def _rebuild_parameter_with_state(data: object, _grad: object, _hooks: object, _state: object) -> SavedTensor:
    return _given(data)


def _rebuild_device_tensor_from_cpu_tensor(
    data: object, dtype: object, _device: object, _requires_grad: object
) -> SavedTensor:
    tensor = _given(data)
    if tensor.dtype is not dtype:
        raise ValueError("a tensor whose numbers are saved as another type")
    return tensor


def _given(value: object) -> SavedTensor:
    if not isinstance(value, SavedTensor):
        raise ValueError("a parameter that is no tensor")
    return value


class AnyTensor:
    """The class of tensors, which cannot be called."""


class Parameter:
    """The class of parameters: one is the tensor that it holds."""

    def __new__(cls, data: object, requires_grad: object = True) -> SavedTensor:  # type: ignore[misc]
        """Return the tensor."""
        return _rebuild_parameter(data, requires_grad)


_REBUILT: Mapping[str, Callable[..., SavedTensor]] = {
    f"torch._utils.{function.__name__}": function
    for function in (
        *(_rebuild_tensor, _rebuild_tensor_v2, _rebuild_tensor_v3, _rebuild_qtensor, _rebuild_meta_tensor_no_storage),
        *(_rebuild_sparse_tensor, _rebuild_nested_tensor, _rebuild_parameter, _rebuild_parameter_with_state),
        _rebuild_device_tensor_from_cpu_tensor,
    )
}


def _rebuild_from_type_v2(function: object, kind: object, arguments: object, _state: object) -> SavedTensor:
    """Note a tensor that has attributes; those of other classes are not known."""
    rebuilt = next((of for of in _REBUILT.values() if of is function), None)
    if rebuilt is None or kind not in (AnyTensor, Parameter) or type(arguments) is not tuple:
        raise ValueError("a tensor of another class, or made by what makes no tensors")
    return rebuilt(*arguments)


# What a pickle of torch.save may name to make tensors, and what takes its place.
REBUILDING: Mapping[str, object] = {
    **_REBUILT,
    "torch._tensor._rebuild_from_type_v2": _rebuild_from_type_v2,
    "torch.Tensor": AnyTensor,
    "torch.nn.parameter.Parameter": Parameter,
}
