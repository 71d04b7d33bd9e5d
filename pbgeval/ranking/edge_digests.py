"""Evaluated edges and the known answers of their queries -> digests, in whatever order they are added.

A digest is the sum, modulo 2^64, of each of two independent 64-bit hashes. So workers add up theirs, and edges that are
not the same have the same digest with a probability of about 2^-128. What is hashed are numbers of entities, relations
and rows, so that files, arrays and imports of the same edges have the same digest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from attrs import define, field

from pbgeval.notation import Bucket
from pbgeval.ranking.keys import EdgeColumns, split_mix

ROWS_AT_A_TIME = 1 << 14  # so that intermediate arrays stay in cache; changes no number
# Of edges, of edges with their rows in buckets, of these with their times, of known answers
EDGES, ROWS, TIMES, KNOWN = range(4)
# Odd numbers without structure, one for each number that is hashed, for each of two hashes
_FACTORS = (split_mix(np.arange(16, dtype=np.uint64)) | np.uint64(1)).reshape(2, 8).tolist()
_Hashes = tuple[np.ndarray, np.ndarray]  # uint64 (n,) each, before they are mixed


@define(eq=False)
class EdgeDigests:
    """Digests of evaluated edges by edge path, and one of the known answers of all queries."""

    _sums: dict[tuple[int, int], np.ndarray] = field(factory=dict)  # uint64 (2,), by kind and edge path

    def add_edges(
        self, path_index: int, bucket: Bucket, row_E: np.ndarray, edges: EdgeColumns, *, with_time: bool
    ) -> None:
        """Add edges of a bucket, each once, with their rows in its file, int64."""
        for start in range(0, len(row_E), ROWS_AT_A_TIME):
            part = slice(start, start + ROWS_AT_A_TIME)
            of_edges = _hashes((edges.lhs_n[part], edges.rel_n[part], edges.rhs_n[part]))
            of_rows = _hashes((row_E[part],), bucket, first=3, more=of_edges)
            self._add(EDGES, path_index, of_edges)
            self._add(ROWS, path_index, of_rows)
            if with_time and edges.time_n is not None:
                self._add(TIMES, path_index, _hashes((edges.time_n[part],), first=6, more=of_rows))

    def add_known(self, place: Sequence[int], *columns: np.ndarray) -> None:
        """Add known answers, each once.

        Args:
            place: numbers of the hidden side and of the part of the graph.
            columns: of keys and answers, int64 (P,).
        """
        for start in range(0, len(columns[0]), ROWS_AT_A_TIME):
            self._add(KNOWN, 0, _hashes([of[start : start + ROWS_AT_A_TIME] for of in columns], place))

    def section(self, num_paths: int, *, filtered: bool) -> dict[str, Any]:
        """Return the digests as metrics.json has them."""
        kinds = {"edges": EDGES, "rows": ROWS, "times": TIMES}
        found = {kind for kind, _ in self._sums} | {EDGES, ROWS}
        return {
            **{
                name: [self._text(kind, path_index) for path_index in range(num_paths)]
                for name, kind in kinds.items()
                if kind in found
            },
            **({"known": self._text(KNOWN, 0)} if filtered else {}),
        }

    def pack(self) -> np.ndarray:
        """Return everything as int64 (n,), for `add_packed`."""
        rows = [[*place, *sums.view(np.int64).tolist()] for place, sums in sorted(self._sums.items())]
        return np.array(rows, np.int64).reshape(-1)

    def add_packed(self, packed: np.ndarray) -> None:
        """Add what others packed."""
        for kind, path_index, *sums in packed.reshape(-1, 4).tolist():
            self._of(kind, path_index)[:] += np.array(sums, np.int64).view(np.uint64)

    def _add(self, kind: int, path_index: int, hashes: _Hashes) -> None:
        self._of(kind, path_index)[:] += np.array([split_mix(of).sum() for of in hashes], np.uint64)

    def _of(self, kind: int, path_index: int) -> np.ndarray:
        return self._sums.setdefault((kind, path_index), np.zeros(2, np.uint64))

    def _text(self, kind: int, path_index: int) -> str:
        first, second = self._of(kind, path_index).tolist()
        return f"{first:016x}{second:016x}"


def _hashes(
    columns: Sequence[np.ndarray], place: Sequence[int] = (), *, first: int = 0, more: _Hashes | None = None
) -> _Hashes:
    """Return sums of columns and of numbers that all rows share, each times its factor, from the `first` one on."""
    assert first + len(columns) + len(place) <= len(_FACTORS[0]), "each number has its own factor"
    found = []
    for lane, of_lane in enumerate(_FACTORS):
        factors = of_lane[first:]
        shared = sum(number * factor for number, factor in zip(place, factors[len(columns) :], strict=False))
        total = columns[0].view(np.uint64) * np.uint64(factors[0])
        for column, factor in zip(columns[1:], factors[1:], strict=False):
            total += column.view(np.uint64) * np.uint64(factor)
        total += np.uint64(shared % (1 << 64))
        if more is not None:
            total += more[lane]
        found.append(total)
    return found[0], found[1]
