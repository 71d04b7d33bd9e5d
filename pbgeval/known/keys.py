"""Evaluated edges -> the distinct keys of their queries, and known edges to be joined with them."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from attrs import field, frozen

from pbgeval.distinct import distinct
from pbgeval.known.codes import check_codes_fit, key_codes
from pbgeval.known.key_table import KeyTable
from pbgeval.notation import Side


@frozen(eq=False)
class KnownBlock:
    """Some known edges; entities are numbers of an `EntityNumbering`."""

    lhs_n: np.ndarray  # int64
    rel_n: np.ndarray  # int64
    rhs_n: np.ndarray  # int64

    @property
    def num_edges(self) -> int:
        return len(self.rel_n)

    def entity(self, side: Side) -> np.ndarray:
        """Return the entities at a side."""
        return side.pick(self.lhs_n, self.rhs_n)

    def columns(self, at: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (lhs, rel, rhs) of some of the edges, as copies."""
        return self.lhs_n[at], self.rel_n[at], self.rhs_n[at]

    def rows(self, start: int, stop: int) -> KnownBlock:
        """Return the edges from start to stop, as views."""
        return KnownBlock(self.lhs_n[start:stop], self.rel_n[start:stop], self.rhs_n[start:stop])


@frozen(eq=False)
class QueryKeys:
    """The distinct keys of the queries that hide one side: (relation, the entity that is not hidden)."""

    hidden: Side
    num_entities: int
    codes_K: np.ndarray = field()  # int64, increasing: relation x num_entities + entity at `hidden.other`

    @codes_K.validator
    def _check_codes(self, _: object, codes_K: np.ndarray) -> None:
        check_codes_fit(self.num_relations, self.num_entities)

    @classmethod
    def of_edges(
        cls, hidden: Side, lhs_E: np.ndarray, rel_E: np.ndarray, rhs_E: np.ndarray, num_entities: int
    ) -> QueryKeys:
        """Collect the keys of edges.

        Args:
            hidden: the side that the queries hide.
            lhs_E: numbers of the left entities, int64.
            rel_E: relations, int64.
            rhs_E: numbers of the right entities, int64.
            num_entities: entities of all types and partitions.

        Raises:
            ValueError: relations x entities do not fit in int64, or a number is out of range.
        """
        known_E = hidden.other.pick(lhs_E, rhs_E)
        _check_ranges(rel_E, known_E, num_entities)
        if len(rel_E):
            check_codes_fit(int(rel_E.max()) + 1, num_entities)
        return cls(hidden, num_entities, distinct(key_codes(rel_E, known_E, num_entities)))

    @property
    def num_keys(self) -> int:
        return len(self.codes_K)

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
