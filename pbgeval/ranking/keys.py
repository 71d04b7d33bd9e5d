"""Evaluated edges -> the distinct keys of their queries, and known edges to be joined with them."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from attrs import define, field, frozen

from pbgeval.notation import Side, distinct, sort_distinct
from pbgeval.stats.keyed_sums import KeyedSums, first_of_each

# Codes -> their positions in a sorted array of codes, by a table: one or a few reads where bisection makes twenty.
#
# Codes that lie close together have a cell each. Others are hashed, by open addressing with linear probing, all codes
# of a call at once: what finds neither its code nor an empty cell in a round moves on to the next cell. Codes are mixed
# first, because runs of neighbouring codes would pile up.

ROWS_AT_ONCE = 1 << 16  # of one lookup: its intermediate arrays stay in cache
_CELLS_PER_CODE = 4  # at least; at most twice that
_MAX_CELLS_PER_CODE = 2 * _CELLS_PER_CODE
_MIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)  # odd numbers without structure
_HALF = np.uint64(32)
MAX_CODES = (1 << 31) - 1


@frozen(eq=False)
class KeyTable:
    """A table over sorted codes."""

    codes_K: np.ndarray  # int64, distinct; positions in it are what the table answers
    # int32: position + 1, or 0 for an empty cell. A power of two of them; of codes that lie close together a cell for
    # each number from the first to the last, and an empty one.
    cells: np.ndarray
    is_hashed: bool

    @classmethod
    def of_codes(cls, codes_K: np.ndarray) -> KeyTable:
        """Build the table of distinct codes.

        Raises:
            ValueError: 2^31 codes or more.
        """
        if len(codes_K) > MAX_CODES:
            raise ValueError(f"a table of at most {MAX_CODES} keys was asked for {len(codes_K)}")
        width = int(codes_K[-1]) - int(codes_K[0]) + 1 if len(codes_K) else 0
        entries = np.arange(1, len(codes_K) + 1, dtype=np.int32)
        if width <= _MAX_CELLS_PER_CODE * len(codes_K):
            cells = np.zeros(width + 1, np.int32)
            cells[codes_K - codes_K[:1]] = entries
            return cls(codes_K, cells, is_hashed=False)
        cells = np.zeros(1 << (_CELLS_PER_CODE * len(codes_K)).bit_length(), np.int32)
        at = _home_cells(codes_K, len(cells))
        while len(entries):
            is_free = cells[at] == 0
            cells[at[is_free]] = entries[is_free]  # of several that claim one cell, the last to write has it
            is_waiting = cells[at] != entries
            entries, at = entries[is_waiting], (at[is_waiting] + 1) & (len(cells) - 1)
        return cls(codes_K, cells, is_hashed=True)

    def index_of(self, codes_E: np.ndarray) -> np.ndarray:
        """Return the position of each int64 code, int64 (E,), -1 where it is absent."""
        index_E = np.full(len(codes_E), -1, np.int64)
        for start in range(0, len(codes_E) if len(self.codes_K) else 0, ROWS_AT_ONCE):
            codes_n, index_n = (of_E[start : start + ROWS_AT_ONCE] for of_E in (codes_E, index_E))
            if not self.is_hashed:
                place_n = (codes_n - self.codes_K[0]).view(np.uint64)  # of smaller codes beyond all cells
                at = np.minimum(place_n, np.uint64(len(self.cells) - 1)).view(np.int64)
                np.subtract(self.cells[at], 1, out=index_n)
                continue
            at = _home_cells(codes_n, len(self.cells))
            index_n[:], goes_on = self._probe(codes_n, at)
            rows = goes_on
            while len(rows):
                codes_n = codes_n[goes_on]
                at = (at[goes_on] + 1) & (len(self.cells) - 1)
                index_n[rows], goes_on = self._probe(codes_n, at)
                rows = rows[goes_on]
        return index_E

    def _probe(self, codes_E: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the position of each code that is in its cell, else -1; and the rows that have to look further."""
        index_E = np.subtract(self.cells[at], 1, dtype=np.int64)
        # An empty cell, -1, reads the last code: unequal, because no cell on the way to a code that is here is empty.
        is_other = self.codes_K[index_E] != codes_E
        goes_on = np.flatnonzero(is_other & (index_E >= 0))
        index_E[goes_on] = -1
        return index_E, goes_on


def mixed_bits(codes_E: np.ndarray) -> np.ndarray:
    """Return a number without structure for each code, uint64."""
    mixed: np.ndarray = codes_E.view(np.uint64) * _MIX[0]
    mixed ^= mixed >> _HALF
    mixed *= _MIX[1]
    return mixed


def _home_cells(codes_E: np.ndarray, num_cells: int) -> np.ndarray:
    """Return the cell where the search for each code begins, int64."""
    mixed = mixed_bits(codes_E)
    mixed >>= np.uint64(64 - (num_cells.bit_length() - 1))
    return mixed.view(np.int64)


# Relations and entities -> key codes; codes -> which occur, and how often.
#
# A key (relation, entity) is one integer, its code: relation x number of entities + entity. Sets of codes are int64
# arrays, sorted and without repetition, so they are equal whatever the order in which codes came.

LARGEST_INT64 = (1 << 63) - 1
MIN_NEW_CODES = 1 << 20  # what `DistinctCodes` gathers at least before it sorts again


def check_codes_fit(num_relations: int, num_entities: int) -> None:
    """Refuse relations and entities whose codes are not int64.

    Raises:
        ValueError: `num_relations` x `num_entities` is beyond 2^63 - 1.
    """
    if num_relations * num_entities > LARGEST_INT64:
        raise ValueError(f"keys of {num_relations} relations and {num_entities} entities do not fit in int64")


def key_codes(rel_E: np.ndarray, entity_E: np.ndarray, num_entities: int) -> np.ndarray:
    """Return the code of each (relation, entity), int64; the caller has checked that codes fit."""
    codes_E: np.ndarray = rel_E * np.int64(num_entities)
    codes_E += entity_E
    return codes_E


def checked_key_codes(rel_E: np.ndarray, entity_E: np.ndarray, num_entities: int) -> np.ndarray:
    """Do as `key_codes`, and refuse relations and entities whose codes do not fit.

    Raises:
        ValueError: relations x entities are beyond 2^63 - 1.
    """
    check_codes_fit(int(rel_E.max(initial=-1)) + 1, num_entities)
    return key_codes(rel_E, entity_E, num_entities)


def split_mix(words: np.ndarray) -> np.ndarray:
    """Permute 64-bit words so that each bit depends on all (SplitMix64; Steele et al., 2014)."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(words ^ (words >> np.uint64(31)))


@define(eq=False)
class DistinctCodes:
    """A growing set of codes; its memory follows the codes that are distinct, not those that were added."""

    _distinct: np.ndarray = field(factory=lambda: np.empty(0, np.int64))  # sorted
    _new: list[np.ndarray] = field(factory=list)  # not yet joined to it
    _num_new: int = 0

    def add(self, codes: np.ndarray) -> None:
        """Add int64 codes, of any order and repetition; the array is kept for a while and must not change."""
        self._new.append(codes)
        self._num_new += len(codes)
        # As many new ones as there are: each code is then merged a few times only, however many additions there are.
        if self._num_new > max(MIN_NEW_CODES, len(self._distinct)):
            self.sorted()

    @property
    def num_held(self) -> int:
        """How many codes are in memory, some of them perhaps repeated."""
        return len(self._distinct) + self._num_new

    def sorted(self) -> np.ndarray:
        """Return the distinct codes in increasing order; not to be written to."""
        if self._new:
            new = sort_distinct(np.concatenate(self._new))
            self._new, self._num_new = [], 0
            runs = np.concatenate([self._distinct, new])
            del new
            self._distinct = runs[:0]  # what was there is in `runs`: not twice in memory while that is merged
            self._distinct = sort_distinct(runs, kind="stable")
        return self._distinct


@frozen(eq=False)
class CodeCounts(KeyedSums):
    """How often each code occurs; codes that do not occur are absent, but those of `zeros`."""

    @classmethod
    def of_codes(cls, codes: np.ndarray) -> CodeCounts:
        """Count int64 codes; the array is overwritten."""
        first, last = (int(codes.min()), int(codes.max())) if len(codes) else (0, -1)
        if last - first < len(codes):  # a table of all numbers in between is no larger than the codes
            codes -= first
            counts_C = np.bincount(codes)
            codes_G = np.flatnonzero(counts_C)
            return cls(codes_G + first, counts_C[codes_G, None])
        codes.sort()
        codes_G, starts_G = first_of_each(codes)
        return cls(codes_G, np.diff(starts_G, append=len(codes))[:, None])

    @classmethod
    def zeros(cls, codes: np.ndarray) -> CodeCounts:
        """Return counts of 0 for the distinct ones of some codes, to be counted; the array is sorted in place."""
        codes = sort_distinct(codes)
        return cls(codes, np.zeros((len(codes), 1), np.int64))

    def count(self, codes: np.ndarray) -> None:
        """Count further int64 codes, those that are here already; in place."""
        index = self._table.index_of(codes)
        np.add(self.counts, np.bincount(index[index >= 0], minlength=len(self.keys)), out=self.counts)

    def of(self, codes: np.ndarray) -> np.ndarray:
        """Return the count of each code, int64, 0 where it does not occur."""
        if not len(self.keys):
            return np.zeros(len(codes), np.int64)
        index = self._table.index_of(codes)
        return np.where(index >= 0, self.counts[index], 0)

    @cached_property
    def _table(self) -> KeyTable:
        return KeyTable.of_codes(self.keys)


@frozen(eq=False)
class EdgeColumns:
    """Some known edges; entities are numbers of an `EntityNumbering`."""

    lhs_n: np.ndarray  # int64
    rel_n: np.ndarray  # int64
    rhs_n: np.ndarray  # int64
    time_n: np.ndarray | None = None  # int64, not negative; None: not asked for

    @property
    def num_edges(self) -> int:
        return len(self.rel_n)

    def entity(self, side: Side) -> np.ndarray:
        """Return the entities at a side; of `Side.REL` the relations."""
        return (self.lhs_n, self.rhs_n, self.rel_n)[side.value]

    def key(self, hidden: Side) -> tuple[np.ndarray, np.ndarray]:
        """Return what is known where a side is hidden: (relation, entity), or the right and the left entity."""
        return self.rhs_n if hidden is Side.REL else self.rel_n, self.entity(hidden.other)

    def select(self, at: np.ndarray | slice) -> EdgeColumns:
        """Return some of the edges: copies, of a slice views."""
        return EdgeColumns(
            self.lhs_n[at], self.rel_n[at], self.rhs_n[at], None if self.time_n is None else self.time_n[at]
        )


@frozen(eq=False)
class QueryKeys:
    """The distinct keys of the queries that hide one side: (relation, the entity that is not hidden).

    Those of queries that hide the relation are (right entity, left entity): there the right one stands for a relation.
    """

    hidden: Side
    num_entities: int
    codes_K: np.ndarray  # int64, increasing: relation x num_entities + entity at `hidden.other`

    @classmethod
    def of_edges(cls, hidden: Side, edges: EdgeColumns, num_entities: int) -> QueryKeys:
        """Collect the keys of edges.

        Args:
            hidden: the side that the queries hide.
            edges: all of them.
            num_entities: entities of all types and partitions.

        Raises:
            ValueError: relations x entities do not fit in int64, or a number is out of range.
        """
        rel_E, known_E = edges.key(hidden)
        _check_ranges(rel_E, known_E, num_entities)
        return cls(hidden, num_entities, distinct(checked_key_codes(rel_E, known_E, num_entities)))

    @property
    def num_relations(self) -> int:
        """One more than the largest relation of a key."""
        return int(self.codes_K[-1]) // self.num_entities + 1 if len(self.codes_K) else 0

    @cached_property
    def table(self) -> KeyTable:
        """The table that finds keys; built when it is first asked for, 16 to 32 bytes a key."""
        return KeyTable.of_codes(self.codes_K)

    def index_of(self, rel_E: np.ndarray, known_E: np.ndarray) -> np.ndarray:
        """Return the position in `codes_K` of each (relation, known entity), int64 (E,), -1 where it is no key.

        Raises:
            ValueError: a relation is negative or an entity is not one of `num_entities`.
        """
        _check_ranges(rel_E, known_E, self.num_entities)
        return self.index_in_range(rel_E, known_E)

    def index_in_range(self, rel_E: np.ndarray, known_E: np.ndarray) -> np.ndarray:
        """Do as `index_of`, for numbers that are known to be in range."""
        index_E = self.table.index_of(key_codes(rel_E, known_E, self.num_entities))
        # The code of a relation beyond those of the keys may overflow, and then look like another.
        index_E[rel_E >= self.num_relations] = -1
        return index_E


def _check_ranges(rel_E: np.ndarray, known_E: np.ndarray, num_entities: int) -> None:
    if not len(rel_E):
        return
    if rel_E.min() < 0:
        raise ValueError(f"expected relations from 0, found {rel_E.min()}")
    if known_E.min() < 0 or known_E.max() >= num_entities:
        raise ValueError(f"expected entities 0 to {num_entities - 1}, found {known_E.min()} to {known_E.max()}")
