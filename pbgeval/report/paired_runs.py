"""Two runs' saved ranks and their edges -> the queries of both, block by block, which must be the same.

Ranks files are aligned with the edges, so whoever ranked which edge, and when, makes no difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from attrs import frozen

from pbgeval.candidates.chunks import SampledLists, number_chunks
from pbgeval.errors import StorageError
from pbgeval.known.keys import KnownBlock
from pbgeval.metrics.paired import PairedMetric, values_of
from pbgeval.notation import Side
from pbgeval.plan.units import slice_rows
from pbgeval.ranking import RankType
from pbgeval.report.saved_run import RowRange, SavedRun
from pbgeval.stats.paired import PairedEdges, PairedSide

_ROW_BITS = np.uint64(36)  # of an entity's row in its partition (`saved_run.MOST_ROWS`)


@frozen(eq=False)
class PairedRuns:
    """Two opened runs of the same queries, and what is asked of them."""

    a: SavedRun  # with edges, where keys or relations are wanted
    b: SavedRun
    sides: tuple[Side, ...]
    filtered: bool
    rank_type: RankType
    metrics: Sequence[PairedMetric]
    lists: SampledLists | None  # whose chunks are the units; None: edges are
    num_slices: int  # under pbg_semantics
    with_keys: bool

    def blocks(self) -> Iterator[PairedEdges]:
        """Yield all edges that are ranked.

        Raises:
            StorageError: a file is damaged, or a query of one run is not that of the other.
            DataError: an id in the edges is out of range.
        """
        for rows in self.a.row_ranges(None if self.lists is None else self._window_rows):
            counts = {side: self._counts(rows, side) for side in self.sides}
            ranked_E = np.logical_or.reduce([of["num_candidates"] > 0 for of, _ in counts.values()])
            at = np.flatnonzero(ranked_E)
            if len(at):
                yield self._block(rows, at, counts)

    def _window_rows(self, num_edges: int) -> int:
        assert self.lists is not None
        return slice_rows(num_edges, self.num_slices) if self.lists.pbg_semantics else self.lists.window_rows()

    def _block(
        self,
        rows: RowRange,
        at: np.ndarray,
        counts: Mapping[Side, tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]],
    ) -> PairedEdges:
        edges = None if self.a.edges is None else self._edges(rows, at)
        group_E = np.zeros(len(at), np.int64) if edges is None else edges.rel_n
        unit_E = np.arange(len(at))
        if self.lists is not None:
            unit_E = number_chunks(np.zeros_like(group_E) if self.a.facts.dynamic else group_E, self.lists)
        sides = []
        for side, (of_a, of_b) in counts.items():
            is_ranked_E = of_a["num_candidates"][at] > 0
            a_ME, b_ME = (self._values(of, at) * is_ranked_E for of in (of_a, of_b))
            key_E = self._keys(rows, edges, side) if self.with_keys and edges is not None else None
            sides.append(PairedSide(is_ranked_E, a_ME, b_ME - a_ME, key_E))
        return PairedEdges(group_E, unit_E, tuple(sides))

    def _edges(self, rows: RowRange, at: np.ndarray) -> KnownBlock:
        return KnownBlock(*self.a.read_edges(rows).columns(at))

    def _counts(self, rows: RowRange, side: Side) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Return the counts of both runs, once they are found to be those of the same queries."""
        of_a, of_b = (run.read_counts(rows, side) for run in (self.a, self.b))
        same = {"num_candidates": "ranked among as many candidates"}
        if self.filtered:
            same["num_excluded"] = "with as many known answers among them"
        for name, what in same.items():
            unlike = np.flatnonzero(of_a[name] != of_b[name])
            if len(unlike):
                row = int(unlike[0])
                path = self.b.ranks[rows.path_index, rows.bucket].path
                raise StorageError(
                    f"{path}: {side.label}, row {rows.start + row}: expected the query of {self.a.folder}, {what} "
                    f"({name}: A {int(of_a[name][row])}, B {int(of_b[name][row])}); compare runs of the same queries, "
                    "filters and candidates"
                )
        return of_a, of_b

    def _values(self, columns: Mapping[str, np.ndarray], at: np.ndarray) -> np.ndarray:
        """Return the value of each metric for each edge, int64 (M, E)."""
        better, tied = columns["better"][at], columns["tied"][at]
        if self.filtered:
            better, tied = better - columns["excluded_better"][at], tied - columns["excluded_tied"][at]
        return values_of(self.metrics, better, tied, self.rank_type)

    def _keys(self, rows: RowRange, edges: KnownBlock, hidden: Side) -> np.ndarray:
        """Return a hash of the key of each query, uint64 (E,)."""
        known, facts = hidden.other, self.a.facts
        partitions = np.array([facts.partition_of(name, known, rows.bucket) for name in facts.types(known)])
        partition_E = partitions[0] if facts.dynamic else partitions[edges.rel_n]
        place_E = edges.rel_n.astype(np.uint64) << _ROW_BITS | edges.entity(known).astype(np.uint64)
        return mixed(mixed(place_E) ^ np.asarray(partition_E).astype(np.uint64))


def mixed(words: np.ndarray) -> np.ndarray:
    """Return a permutation of 64-bit words whose bits look random (the finaliser of SplitMix64)."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed_words: np.ndarray = words ^ (words >> np.uint64(31))
    return mixed_words


def sampled_lists(settings: Mapping[str, Any]) -> SampledLists | None:
    """Return how a run's lists of candidates are made, from its settings; None where none are sampled."""
    if "num_batch_negs" not in settings:
        return None
    is_pbg = settings["pbg_semantics"]
    return SampledLists(
        settings["num_batch_negs"], settings["num_uniform_negs"], is_pbg, settings["batch_size"] if is_pbg else 0
    )
