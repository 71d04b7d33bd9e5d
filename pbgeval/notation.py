"""The words and letters used everywhere.

The name of an array ends in one letter per dimension:

    Q queries       C candidates    B chunks
    E edges         R relations     P pairs, such as (query, candidate)
    K keys, and other distinct values such as scores and ranks; in metrics also the cut-off of Hits@K
    D dimensions of vectors, and columns of tables, such as metrics
    N rows of any other table, such as the entities of a partition
    G groups of statistics, such as strata

A digit is a fixed size: `counts_6Q` has six rows. Padded and transposed layouts keep their letters. A lower-case letter
is a size that one call chooses, or a few of the values: `scores_bN` are a batch of rows, `items_Qk` the best k,
`row_n` those of some edges.

An edge is (lhs, rel, rhs). A query is an edge with one side hidden: `Side.LHS` hides the left entity
(PyKEEN's *head* prediction), `Side.RHS` the right one (*tail*), `Side.REL` the relation. A query's key is what is left
of it: side, relation, and the known entity (or both entities); queries with one key have one query vector and one set
of known answers. Where the model takes times, or known edges count from their time on, the time is part of the key.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Literal, NamedTuple, TypeVar

import numpy as np
from attrs import Factory, field, frozen
from numpy.typing import NDArray

T = TypeVar("T")
Key = TypeVar("Key")
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

ENTITY_TYPE = "all"  # of graphs and models that know of no types
MAX_PARTITIONS = 10_000  # of an entity type: there are as many buckets as pairs of them


class Side(Enum):
    """One end of an edge, or its relation; as the side of a query, what is hidden.

    Examples:
        >>> from pbgeval import Side
        >>> Side.RHS.label, Side.RHS.pick("left", "right")
        ('tail', 'right')
    """

    LHS = 0
    RHS = 1
    REL = 2

    __hash__ = object.__hash__  # in C; that of Enum hashes the name, in Python

    def pick(self, lhs: T, rhs: T) -> T:
        """Return the argument that belongs to this end."""
        return (lhs, rhs)[self._value_]  # four times as fast as `value`, and buckets ask often

    @property
    def other(self) -> Side:
        """The end that is known; of the two that a relation has, the left one."""
        return Side.RHS if self is Side.LHS else Side.LHS

    @property
    def label(self) -> str:
        """The word used in reports: `head` for queries whose lhs is hidden, `tail` or `relation`."""
        return ("head", "tail", "relation")[self.value]

    def is_in(self, label: str) -> bool:
        """Return whether figures of `label` include this side."""
        return label == self.label or (label == "both" and self is not Side.REL)


ENDS = (Side.LHS, Side.RHS)


def labels_of(sides: Iterable[Side]) -> list[str]:
    """Return the labels that figures of these sides have: theirs, and `both`."""
    return [*(side.label for side in sides), "both"]


class Bucket(NamedTuple):
    """The edges between one partition of the left and one of the right entity types."""

    lhs: int  # partition of the left side
    rhs: int  # partition of the right side

    def partition_of(self, side: Side, num_partitions: int) -> int:
        """Return the partition of a type with so many; a type with one is in partition 0 of any bucket."""
        return side.pick(self.lhs, self.rhs) if num_partitions > 1 else 0


class WorkUnit(NamedTuple):
    """A range of the rows of one bucket file: what one worker is handed, or what is read at a time."""

    path_index: int  # index in `edge_paths`
    bucket: Bucket
    start: int  # first row of the bucket file
    stop: int  # one past the last row

    @property
    def num_edges(self) -> int:
        return self.stop - self.start


@frozen(eq=False)
class EntityNumbering:
    """Numbers all entities of all types and partitions through: (type, partition, row) <-> one integer.

    A *slot* is one partition of one type; its entities have consecutive numbers. Where several partitions rank
    together, an entity is its number, so nothing downstream needs to know how the graph is partitioned.
    """

    slots: tuple[tuple[str, int], ...]  # (entity type, partition), partitions of a type next to each other
    boundaries: np.ndarray  # int64 (slots + 1): the first number of each slot, and the number of all entities
    _slot_at: dict[tuple[str, int], int] = field(
        init=False,
        default=Factory(lambda self: {place: slot for slot, place in enumerate(self.slots)}, takes_self=True),
    )

    @classmethod
    def from_sizes(cls, sizes: Mapping[tuple[str, int], int]) -> EntityNumbering:
        """Number the rows of each (type, partition), types by name and partitions in order."""
        slots = tuple(sorted(sizes))
        return cls(slots, np.cumsum([0, *(sizes[slot] for slot in slots)], dtype=np.int64))

    @property
    def num_entities(self) -> int:
        """The number of entities of all types: one more than the largest number."""
        return int(self.boundaries[-1])

    def offset(self, entity_type: str, partition: int) -> int:
        """Return the number of row 0 of a partition."""
        return int(self.boundaries[self._slot_at[entity_type, partition]])

    def slot_at(self, place: tuple[str, int]) -> int:
        """Return the slot of a type's partition."""
        return self._slot_at[place]

    def range_of_slot(self, slot: int) -> tuple[int, int]:
        """Return the first number of a slot and one past its last."""
        return int(self.boundaries[slot]), int(self.boundaries[slot + 1])

    def range_of_type(self, entity_type: str) -> tuple[int, int]:
        """Return the first number of a type and one past its last."""
        first, stop = (bisect_left(self.slots, (entity_type, partition)) for partition in (0, math.inf))
        return int(self.boundaries[first]), int(self.boundaries[stop])

    def slot_of(self, numbers: np.ndarray) -> np.ndarray:
        """Return the slot of each entity."""
        return np.searchsorted(self.boundaries, numbers, "right") - 1

    def place_of(self, number: int) -> tuple[str, int, int]:
        """Return (type, partition, row) of one entity."""
        slot = int(np.searchsorted(self.boundaries, number, "right")) - 1
        return (*self.slots[slot], number - int(self.boundaries[slot]))


# Numbers of edges -> work units of bounded size, cut where no chunk is cut.


def window_units(path_index: int, bucket: Bucket, num_edges: int, unit_rows: int) -> Iterator[WorkUnit]:
    """Cut a bucket into units of `unit_rows` rows; the last may be shorter."""
    for start in range(0, num_edges, unit_rows):
        yield WorkUnit(path_index, bucket, start, min(start + unit_rows, num_edges))


# Integers -> the distinct ones, in order.
#
# By sorting: numpy 2.4's own `unique` hashes where nothing but the values is asked for, and took 45 times as long for
# two million of them.


def sort_distinct(values: np.ndarray, kind: Literal["stable"] | None = None) -> np.ndarray:
    """Sort an array in place and return its distinct values in increasing order.

    Args:
        values: integers (n,).
        kind: "stable" where the array is a few sorted runs: those are merged, in a third of the time.
    """
    values.sort(kind=kind)
    if not len(values):
        return values
    is_first = np.empty(len(values), bool)
    is_first[0] = True
    np.not_equal(values[1:], values[:-1], out=is_first[1:])
    return values if is_first.all() else values[is_first]


def distinct(values: np.ndarray) -> np.ndarray:
    """Return the distinct values of integers (n,) in increasing order, in memory of their own."""
    return sort_distinct(values.copy())


def is_among(values: np.ndarray, sorted_set: np.ndarray) -> np.ndarray:
    """Tell of each value whether it is in a sorted array, bool of the same shape."""
    if not sorted_set.size:
        return np.zeros(values.shape, bool)
    return np.asarray(sorted_set[np.minimum(np.searchsorted(sorted_set, values), sorted_set.size - 1)] == values)


def values_between(sorted_values: np.ndarray, low: int, high: int) -> np.ndarray:
    """Return the values of a sorted array from `low` up to `high`, which is left out; a view."""
    return np.asarray(sorted_values[slice(*np.searchsorted(sorted_values, [low, high]))])


def as_slice(rows: np.ndarray) -> np.ndarray | slice:
    """Return rows as a slice if each is one more than the row before, for which nothing need be copied."""
    if not len(rows) or int(rows[-1]) - int(rows[0]) + 1 != len(rows) or not bool((rows[1:] > rows[:-1]).all()):
        return rows
    return slice(int(rows[0]), int(rows[-1]) + 1)


def grouped(pairs: Iterable[tuple[Key, T]]) -> dict[Key, list[T]]:
    """Return the values of each key, all in the order in which they came."""
    values: dict[Key, list[T]] = {}
    for key, value in pairs:
        values.setdefault(key, []).append(value)
    return values
