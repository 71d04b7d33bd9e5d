"""Rows of int64 columns by int64 key, which add in any order; and arrays in one, for other workers and the journal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Self

import numpy as np
from attrs import frozen

if TYPE_CHECKING:
    from torch import Tensor

# Values are counted in a dense table first if it has at most so many places, and so many for each value.
MAX_DENSE_VALUES = 1 << 21
MAX_PLACES_PER_VALUE = 8


@frozen(eq=False)
class KeyedSums:
    """Sums of the keys that occur; keys increase."""

    keys: np.ndarray  # int64 (G,)
    sums: np.ndarray  # int64 (G, F)

    @classmethod
    def zero(cls, width: int = 1) -> Self:
        return cls(np.empty(0, np.int64), np.empty((0, width), np.int64))

    @classmethod
    def from_values(cls, values: Tensor, times: np.ndarray | None = None) -> Self:
        """Count non-negative int64 values, each as often as `times` (int64) says."""
        if not values.numel():
            return cls.zero()
        if times is not None:
            return cls._added_up(values.numpy(), times[:, None])
        if int(values.max()) < min(MAX_DENSE_VALUES, MAX_PLACES_PER_VALUE * values.numel()):
            dense = np.bincount(values.numpy())
            keys = np.flatnonzero(dense)
            return cls(keys, dense[keys, None])
        keys, counts = np.unique(values.numpy(), return_counts=True)
        return cls(keys, counts[:, None])

    @classmethod
    def sum(cls, parts: Sequence[Self]) -> Self:
        """Add any number of tables."""
        if len(parts) == 1:
            return parts[0]
        keys, sums = (np.concatenate([getattr(part, name) for part in parts]) for name in ("keys", "sums"))
        return cls._added_up(keys, sums)

    @classmethod
    def _added_up(cls, keys: np.ndarray, sums: np.ndarray) -> Self:
        """Add the rows of equal keys, which are in any order and not negative."""
        order = np.argsort(keys, kind="stable")  # merges what is in order already, which parts of a sum are
        keys_G, starts_G = first_of_each(keys[order])
        return cls(keys_G, np.add.reduceat(sums[order], starts_G, axis=0))

    def __add__(self, other: Self) -> Self:
        return self.sum([self, other])

    def select(self, rows: np.ndarray | slice) -> Self:
        """Return some of the rows, in their order."""
        return type(self)(self.keys[rows], self.sums[rows])

    @property
    def counts(self) -> np.ndarray:
        """The only column, int64 (G,); a view."""
        return self.sums[:, 0]


def begins(*columns: np.ndarray) -> np.ndarray:
    """Return which rows differ from the row before, bool."""
    return np.append(True, np.logical_or.reduce([of[1:] != of[:-1] for of in columns]))[: len(columns[0])]


def first_of_each(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct keys of some in order, and the position of the first of each."""
    starts_G = np.flatnonzero(begins(keys))
    return keys[starts_G], starts_G


_TYPES = {1: np.uint8, 4: np.int32, 8: np.int64}  # by bytes of a number


def packed(arrays: Iterable[np.ndarray]) -> np.ndarray:
    """Return arrays (n,) of uint8, int32 and int64 as one of int64 that `unpacked` reads."""
    parts = [np.empty(0, np.int64)]
    for array in arrays:
        padded = np.concatenate([array, np.zeros(-array.nbytes % 8 // array.itemsize, array.dtype)])
        parts += [np.array([array.itemsize, len(array)]), padded.view(np.int64)]
    return np.concatenate(parts)


def unpacked(numbers: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the arrays that `packed` took."""
    at = 0
    while at < len(numbers):
        itemsize, length = numbers[at : at + 2].tolist()
        start, at = at + 2, at + 2 - (-itemsize * length // 8)
        yield numbers[start:at].view(_TYPES[itemsize])[:length]
