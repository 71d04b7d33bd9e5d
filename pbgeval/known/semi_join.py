"""Known edges, block after block -> the pairs (query key, known answer) of the queries that are evaluated.

Of billions of known edges few share (relation, entity) with an evaluated edge. So all are tested against a table of
bits by a cheap hash, which errs on one side only; what passes is looked up exactly. Rows are taken in steps whose
intermediate arrays stay in cache, and matches are handed on many steps at a time.
One thread works here; numpy releases the interpreter's lock, so another can read the next block meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from attrs import frozen

from pbgeval.jit import CompiledLoop, is_installed
from pbgeval.known.keys import KnownBlock, QueryKeys
from pbgeval.notation import Side

ROWS_PER_STEP = 1 << 16
STEPS_PER_HANDOVER = 16  # so a sink is handed at most 2^20 pairs of a side
_CELLS_PER_KEY = 32  # at most one edge in 32 passes the sieve without reason, while the sieve stays below its limit
_FEWEST_CELLS, _MOST_CELLS = 1 << 14, 1 << 22  # of a sieve, bytes; beyond, two cells per key
ROWS_WORTH_COMPILING = 1 << 22  # of those fed before: loading numba takes as long as numpy takes for them
_SPREAD = np.int64(0x9E3779B97F4A7C15 - (1 << 64))  # odd, without structure: relations of one entity fall apart


class PairSink(Protocol):
    """Takes the pairs that a semi-join finds; one pair may come any number of times."""

    def add(self, hidden: Side, key_P: np.ndarray, answer_P: np.ndarray) -> None:
        """Take pairs of the queries that hide a side.

        Args:
            hidden: the side.
            key_P: positions in the side's `QueryKeys`, int64.
            answer_P: numbers of entities that answer them, int64.
        """
        ...


class SemiJoin:
    """Joins known edges with the keys of the evaluated ones."""

    def __init__(self, keys: Mapping[Side, QueryKeys], sink: PairSink) -> None:
        self._sides = [(of_side, _Sieve.of_keys(of_side)) for of_side in keys.values()]
        self._sink = sink
        self._num_rows = 0  # fed so far

    def feed(self, block: KnownBlock) -> None:
        """Hand the pairs of a block of known edges to the sink.

        Args:
            block: known edges, of any order and number; their entities are within the keys' `num_entities`.
        """
        rows_per_handover = ROWS_PER_STEP * STEPS_PER_HANDOVER
        for start in range(0, block.num_edges, rows_per_handover):
            self._feed_rows(block.rows(start, start + rows_per_handover))

    def _feed_rows(self, block: KnownBlock) -> None:
        self._num_rows += block.num_edges
        compiled = is_installed() and (_PASSES.is_loaded or self._num_rows >= ROWS_WORTH_COMPILING)
        found: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in self._sides]
        for start in range(0, block.num_edges, ROWS_PER_STEP):
            rows = block.rows(start, start + ROWS_PER_STEP)
            spread_n = None if compiled else rows.rel_n * _SPREAD
            for (keys, sieve), pairs in zip(self._sides, found, strict=True):
                known_n = rows.entity(keys.hidden.other)
                if spread_n is None:
                    passed_P = sieve.passes_loop(rows.rel_n, known_n)
                else:
                    passed_P = sieve.passes(spread_n, known_n)
                key_P = keys.index_in_range(rows.rel_n[passed_P], known_n[passed_P])
                is_key = np.flatnonzero(key_P >= 0)  # positions: a mask costs more where hits are mixed with misses
                pairs.append((key_P[is_key], rows.entity(keys.hidden)[passed_P[is_key]]))
        for (keys, _), pairs in zip(self._sides, found, strict=True):
            key_P, answer_P = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
            if len(key_P):
                self._sink.add(keys.hidden, key_P, answer_P)


@frozen(eq=False)
class _Sieve:
    """A table of marks: whether some key has a hash."""

    is_marked: np.ndarray  # bool, a power of two of them

    @classmethod
    def of_keys(cls, keys: QueryKeys) -> _Sieve:
        cells = max(_FEWEST_CELLS, min(_CELLS_PER_KEY * keys.num_keys, _MOST_CELLS), 2 * keys.num_keys)
        is_marked = np.zeros(1 << (cells - 1).bit_length(), bool)
        rel_K, entity_K = np.divmod(keys.codes_K, max(keys.num_entities, 1))
        is_marked[(rel_K * _SPREAD + entity_K) & (len(is_marked) - 1)] = True
        return cls(is_marked)

    def passes(self, spread_n: np.ndarray, known_n: np.ndarray) -> np.ndarray:
        """Return the rows that may have a key, increasing."""
        hash_n = spread_n + known_n
        hash_n &= len(self.is_marked) - 1
        return np.flatnonzero(self.is_marked[hash_n])

    def passes_loop(self, rel_n: np.ndarray, known_n: np.ndarray) -> np.ndarray:
        """Return the same by a compiled loop, which writes no array but this one: a third of the time."""
        row_P = np.empty(len(rel_n), np.int64)
        num_passed = _PASSES(rel_n, known_n, _SPREAD, self.is_marked, row_P)
        return row_P[:num_passed]


def _passes(rel_n, known_n, spread, is_marked, row_P):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    mask, num_passed = np.int64(is_marked.size - 1), 0
    for row in range(rel_n.size):
        row_P[num_passed] = row  # overwritten unless it passes: no branch that is hard to foresee
        num_passed += 1 if is_marked[(rel_n[row] * spread + known_n[row]) & mask] else 0
    return num_passed


_PASSES = CompiledLoop(_passes)
