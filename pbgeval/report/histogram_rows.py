"""Histograms of ranks -> the rows of `rank_histogram.csv`, of which there are tens of thousands: made when wanted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np
from attrs import frozen

from pbgeval.notation import Side
from pbgeval.ranking import RankType
from pbgeval.stats.groups import GroupStats
from pbgeval.stats.histograms import EXACT_BINS, bin_edges

COLUMNS = ("side", "rank_type", "lower_edge", "upper_edge", "count")

Row = Mapping[str, Any]


@frozen(eq=False)
class _Part:
    """The bins of one side and rank type."""

    side: str
    rank_type: str
    bins_B: np.ndarray  # int64, increasing
    counts_B: np.ndarray  # int64

    def rows(self) -> Iterator[Row]:
        """Yield the row of each bin: it holds the ranks from its lower to its upper edge, both included."""
        exact = (self.bins_B[: self._num_exact] / self._halves).tolist()
        edges = [*zip(exact, exact, strict=True), *self._wide_edges()]
        for (low, high), count in zip(edges, self.counts_B.tolist(), strict=True):
            yield dict(zip(COLUMNS, (self.side, self.rank_type, low, high, count), strict=True))

    def lines(self) -> list[str]:
        """Return the same rows as text."""
        num_exact, start = self._num_exact, f"{self.side},{self.rank_type},"
        bins, counts = self.bins_B[:num_exact].tolist(), self.counts_B.tolist()
        if self._halves == 1:  # what `repr` gives for these floats, of integers: faster
            lines = [f"{start}{rank}.0,{rank}.0,{count}" for rank, count in zip(bins, counts, strict=False)]
        else:
            ranks = [f"{doubled >> 1}{'.5' if doubled & 1 else '.0'}" for doubled in bins]
            lines = [f"{start}{rank},{rank},{count}" for rank, count in zip(ranks, counts, strict=False)]
        wide = zip(self._wide_edges(), counts[num_exact:], strict=True)
        return lines + [f"{start}{low!r},{high!r},{count}" for (low, high), count in wide]

    @property
    def _halves(self) -> int:
        """What a bin's rank is divided by."""
        return 2 if self.rank_type == RankType.REALISTIC.value else 1

    @property
    def _num_exact(self) -> int:
        """How many bins hold one rank; the others are beyond."""
        return int(np.searchsorted(self.bins_B, EXACT_BINS))

    def _wide_edges(self) -> list[tuple[float, float]]:
        wide = [bin_edges(bin_index) for bin_index in self.bins_B[self._num_exact :].tolist()]
        return [(low / self._halves, high / self._halves) for low, high in wide]


@frozen(eq=False)
class HistogramRows(Sequence[Row]):
    """How often each rank occurs: a row for each bin of each side and rank type."""

    parts: tuple[_Part, ...] = ()

    @classmethod
    def of_groups(cls, groups: GroupStats, sides: Iterable[Side]) -> HistogramRows:
        """Take the histograms of all groups."""
        parts = []
        for side in sides:
            ranks = groups.side_histograms(side).ranks
            parts += [_Part(side.label, kind.value, ranks[kind].keys, ranks[kind].counts) for kind in RankType]
        return cls(tuple(parts))

    def __len__(self) -> int:
        return sum(len(part.bins_B) for part in self.parts)

    def __iter__(self) -> Iterator[Row]:
        return (row for part in self.parts for row in part.rows())

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        return list(self)[index]

    def to_csv(self) -> str:
        """Return the file: no field needs quotes, and floats are written shortest round-trip."""
        lines = [line for part in self.parts for line in part.lines()]
        return "\n".join([",".join(COLUMNS) if lines else "", *lines, ""])
