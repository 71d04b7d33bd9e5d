"""Sets of entities that may compete: of the whole evaluation, of one side, or of one side of one relation.

A set only ever narrows "every entity of the type". An entity is its number (`EntityNumbering`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from attrs import field, frozen

from pbgeval.notation import Side


@frozen(eq=False)
class CandidateSets:
    """Who may compete; every array is sorted and without duplicates."""

    num_entities: int  # of all types: what a code is made with
    allowed: np.ndarray | None = None  # int64 numbers: nobody else competes on either side
    of_side: Mapping[Side, np.ndarray] = field(factory=dict)  # numbers that compete where this side is hidden
    observed: Mapping[Side, np.ndarray] | None = None  # relation * num_entities + number, by hidden side

    @property
    def by_relation(self) -> bool:
        """Whether relations of one type have different candidates."""
        return self.observed is not None

    @property
    def unconstrained(self) -> bool:
        """Whether every entity of a type competes everywhere."""
        return self.allowed is None and not self.of_side and self.observed is None

    def of(self, hidden: Side, relation: int) -> np.ndarray | None:
        """Return the numbers that compete in queries of a relation, None for every entity of its type."""
        sets = [numbers for numbers in (self.allowed, self.of_side.get(hidden)) if numbers is not None]
        if self.observed is not None:
            codes = self.observed[hidden]
            first, last = np.searchsorted(codes, [relation * self.num_entities, (relation + 1) * self.num_entities])
            sets.append(codes[first:last] - relation * self.num_entities)
        if not sets:
            return None
        together = sets[0]
        for numbers in sets[1:]:
            together = np.intersect1d(together, numbers, assume_unique=True)
        return together

    def contains(self, hidden: Side, rel_Q: np.ndarray, number_Q: np.ndarray) -> np.ndarray:
        """Tell of each (relation, entity) whether it may compete where `hidden` is hidden, bool (Q,)."""
        inside_Q = np.ones(number_Q.shape, bool)
        for numbers in (self.allowed, self.of_side.get(hidden)):
            if numbers is not None:
                inside_Q &= is_among(number_Q, numbers)
        if self.observed is not None:
            inside_Q &= is_among(rel_Q * self.num_entities + number_Q, self.observed[hidden])
        return inside_Q


def is_among(values: np.ndarray, sorted_set: np.ndarray) -> np.ndarray:
    """Tell of each value whether it is in a sorted array, bool of the same shape."""
    if not sorted_set.size:
        return np.zeros(values.shape, bool)
    at = np.minimum(np.searchsorted(sorted_set, values), sorted_set.size - 1)
    found: np.ndarray = sorted_set[at] == values
    return found
