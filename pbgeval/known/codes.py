"""Relations and entities -> key codes; codes -> which occur, and how often.

A key (relation, entity) is one integer, its code: relation x number of entities + entity. Sets of codes are int64
arrays, sorted and without repetition, so they are equal whatever the order in which codes came.
"""

from __future__ import annotations

import numpy as np
from attrs import define, field, frozen

from pbgeval.distinct import sort_distinct

LARGEST_INT64 = (1 << 63) - 1
FEWEST_NEW_CODES = 1 << 20  # what `DistinctCodes` gathers at least before it sorts again


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
        if self._num_new > max(FEWEST_NEW_CODES, len(self._distinct)):
            self.sorted()

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
class CodeCounts:
    """How often each code occurs; codes that do not occur are absent."""

    codes: np.ndarray  # int64, increasing
    counts: np.ndarray  # int64, positive

    @classmethod
    def zero(cls) -> CodeCounts:
        return cls(np.empty(0, np.int64), np.empty(0, np.int64))

    @classmethod
    def of_codes(cls, codes: np.ndarray) -> CodeCounts:
        """Count int64 codes; the array is sorted in place."""
        if not len(codes):
            return cls.zero()
        codes.sort()
        begins = np.flatnonzero(np.r_[True, codes[1:] != codes[:-1]])
        return cls(codes[begins], np.diff(np.r_[begins, len(codes)]))

    def __add__(self, other: CodeCounts) -> CodeCounts:
        """Add counts: of a code that occurs in both, the sum."""
        codes, where = np.unique(np.concatenate([self.codes, other.codes]), return_inverse=True)
        counts = np.zeros(len(codes), np.int64)
        np.add.at(counts, where, np.concatenate([self.counts, other.counts]))
        return CodeCounts(codes, counts)

    def of(self, codes: np.ndarray) -> np.ndarray:
        """Return the count of each code, int64, 0 where it does not occur."""
        if not len(self.codes):
            return np.zeros(len(codes), np.int64)
        at = np.minimum(np.searchsorted(self.codes, codes), len(self.codes) - 1)
        return np.where(self.codes[at] == codes, self.counts[at], 0)
