"""Evaluated edges of one slot of known entities -> how often each query key occurs.

Most keys of a large graph occur once, so only the others are kept. A key belongs to the slot of its known entity, so
the slots of a side are counted one after another, and their tables hold different keys.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import numpy as np
from attrs import frozen

from pbgeval.known.codes import CodeCounts, check_codes_fit, key_codes
from pbgeval.known.key_table import KeyTable
from pbgeval.known.keys import KnownBlock
from pbgeval.notation import Side


@frozen(eq=False)
class KeyFrequency:
    """How many evaluated edges have each key of the queries that hide one side; keys not listed occur once."""

    hidden: Side
    num_entities: int
    codes_K: np.ndarray  # int64, increasing: relation x num_entities + known entity, of keys that occur at least twice
    counts_K: np.ndarray  # int64, 2 or more

    @classmethod
    def of_blocks(cls, hidden: Side, blocks: Iterable[KnownBlock], num_entities: int) -> KeyFrequency:
        """Count the keys of evaluated edges; takes 16 bytes for each edge while it works.

        Args:
            hidden: the side that the queries hide.
            blocks: all evaluated edges whose entity at the other side is in the slot, each once.
            num_entities: entities of all types and partitions.

        Raises:
            ValueError: relations x entities do not fit in int64.
        """
        parts = [np.empty(0, np.int64)]
        for block in blocks:
            if block.num_edges:
                check_codes_fit(int(block.rel_n.max()) + 1, num_entities)
                parts.append(key_codes(block.rel_n, block.entity(hidden.other), num_entities))
        codes = np.concatenate(parts)
        parts.clear()
        counted = CodeCounts.of_codes(codes)
        is_repeated = counted.counts > 1
        return cls(hidden, num_entities, counted.codes[is_repeated], counted.counts[is_repeated])

    @cached_property
    def _table(self) -> KeyTable:
        return KeyTable.of_codes(self.codes_K)

    @cached_property
    def _counts_and_one(self) -> np.ndarray:
        return np.append(self.counts_K, 1)  # at -1, the index of what is not listed

    def of(self, rel_E: np.ndarray, known_E: np.ndarray) -> np.ndarray:
        """Return how many evaluated edges have the key of each of these, which are evaluated edges: int64 (E,)."""
        index_E = self._table.index_of(key_codes(rel_E, known_E, self.num_entities))
        counts_E: np.ndarray = self._counts_and_one[index_E]
        return counts_E
