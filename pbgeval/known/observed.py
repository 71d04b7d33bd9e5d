"""Known edges -> the entities seen at each side of the relations that are evaluated (`type_constraint = "observed"`).

Memory follows the distinct (relation, entity) pairs, not the edges.
"""

from __future__ import annotations

import numpy as np

from pbgeval.known.codes import DistinctCodes, check_codes_fit, key_codes
from pbgeval.known.keys import KnownBlock
from pbgeval.notation import Side

_ROWS_AT_ONCE = 1 << 20  # of a block: what is copied of it at a time


class ObservedEntities:
    """The distinct (relation, entity) pairs of each side, as codes; what other workers saw can be merged."""

    def __init__(self, relations: np.ndarray, num_entities: int) -> None:
        """See nothing yet.

        Args:
            relations: the relations that matter, int64; edges of others are passed over.
            num_entities: entities of all types and partitions.

        Raises:
            ValueError: relations x entities do not fit in int64.
        """
        num_relations = int(relations.max()) + 1 if len(relations) else 0
        check_codes_fit(num_relations, num_entities)
        self._num_entities = num_entities
        self._matters = np.zeros(num_relations + 1, bool)  # by relation; the last stands for all beyond
        self._matters[relations] = True
        self._seen = {side: DistinctCodes() for side in Side}

    def feed(self, block: KnownBlock) -> None:
        """See known edges, of any order and number."""
        for start in range(0, block.num_edges, _ROWS_AT_ONCE):
            edges = block.rows(start, start + _ROWS_AT_ONCE)
            rows = np.flatnonzero(np.take(self._matters, edges.rel_n, mode="clip"))
            if len(rows) < edges.num_edges:
                edges = KnownBlock(edges.lhs_n[rows], edges.rel_n[rows], edges.rhs_n[rows])
            for side in Side:
                self.merge(side, key_codes(edges.rel_n, edges.entity(side), self._num_entities))

    def merge(self, side: Side, codes: np.ndarray) -> None:
        """Add codes, int64, in any order: those that another worker saw at a side; they must not change afterwards."""
        if len(codes):
            self._seen[side].add(codes)

    def codes(self, side: Side) -> np.ndarray:
        """Return relation x num_entities + entity of the entities seen at a side, int64, increasing."""
        return self._seen[side].sorted()

    def entities(self, side: Side, rel: int) -> np.ndarray:
        """Return the numbers of the entities seen at a side of a relation, int64, increasing."""
        codes = self.codes(side)
        first, last = np.searchsorted(codes, [rel * self._num_entities, (rel + 1) * self._num_entities])
        return codes[first:last] - rel * self._num_entities
