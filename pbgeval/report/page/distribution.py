"""Rows of rank_histogram.csv -> how ranks are distributed, on a logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from attrs import frozen

from pbgeval.report.page.chart import Bar, Chart, Line, decades, vertical
from pbgeval.report.page.source import Row
from pbgeval.report.page.tables import Column, DataTable
from pbgeval.report.table import SIDES

_PER_DECADE = (1, 2, 5)
_POINTS_PER_DECADE = 40  # of the cumulative lines


@frozen(eq=False)
class SideRanks:
    """The ranks of one side's queries: how often each occurs, in ascending order."""

    side: str
    rank_K: np.ndarray  # float64
    count_K: np.ndarray  # int64

    @property
    def total(self) -> int:
        return int(self.count_K.sum())

    def num_below(self, ranks: np.ndarray) -> np.ndarray:
        """Return how many queries rank below each of these ranks, int64."""
        sums = np.concatenate([[0], np.cumsum(self.count_K)])
        below: np.ndarray = sums[np.searchsorted(self.rank_K, ranks, side="left")]
        return below


def ranks_by_side(rows: Sequence[Row], rank_type: str) -> list[SideRanks]:
    """Return the ranks of each side that has queries."""
    found = []
    for side in SIDES:
        mine = sorted(
            (row["lower_edge"], row["count"])
            for row in rows
            if row["side"] == side and row["rank_type"] == rank_type and row["count"]
        )
        if mine:
            found.append(
                SideRanks(
                    side,
                    np.array([rank for rank, _ in mine], dtype=np.float64),
                    np.array([count for _, count in mine], dtype=np.int64),
                )
            )
    return found


def bin_edges(highest: float) -> list[int]:
    """Return 1, 2, 5, 10, 20, ... up to the first that is above the highest rank."""
    edges = [1]
    while edges[-1] <= highest:
        at = len(edges)
        edges.append(_PER_DECADE[at % 3] * 10 ** (at // 3))
    return edges


def share_chart(sides: Sequence[SideRanks], rank_type: str) -> Chart:
    """Return bars: of each side, the share of its queries in each bin of ranks."""
    highest = max(float(of.rank_K[-1]) for of in sides)
    edges = bin_edges(highest)
    x, x_ticks = decades(float(edges[-1]))
    shares = [np.diff(of.num_below(np.array(edges))) / of.total for of in sides]
    y, y_ticks = vertical(0.0, max(float(share.max()) for share in shares))
    bars = []
    for at, (low, high) in enumerate(pairwise(edges)):
        left, right = x.at(math.log10(low)) + 1, x.at(math.log10(high)) - 1
        width = (right - left) / len(sides)
        for kind, (of, share_B) in enumerate(zip(sides, shares, strict=True)):
            top = y.at(float(share_B[at]))
            title = f"{of.side}, {_bin_name(low, high)}: {100 * float(share_B[at]):.2f} %"
            bars.append(Bar(left + kind * width, top, width, y.start - top, kind, title))
    return Chart(
        title=f"Share of queries by {rank_type} rank",
        description=f"Histogram of {rank_type} ranks on a logarithmic axis; the table below has the figures",
        x_label="rank",
        y_label="share of queries",
        x_ticks=x_ticks,
        y_ticks=y_ticks,
        legend=tuple(of.side for of in sides),
        bars=tuple(bars),
    )


def cumulative_chart(sides: Sequence[SideRanks], rank_type: str) -> Chart:
    """Return lines: of each side, the share of its queries with a rank of at most k, which is hits at k."""
    highest = max(float(of.rank_K[-1]) for of in sides)
    x, x_ticks = decades(highest)
    y, y_ticks = vertical(0.0, 1.0)
    logs = np.linspace(0.0, x.high, 1 + math.ceil(_POINTS_PER_DECADE * x.high))
    ranks = 10.0**logs * (1 + 1e-12)  # an integer that the power misses by rounding counts
    lines = []
    for kind, of in enumerate(sides):
        shares = of.num_below(np.nextafter(ranks, np.inf)) / of.total
        lines.append(
            Line(kind, tuple((x.at(float(log)), y.at(float(share))) for log, share in zip(logs, shares, strict=True)))
        )
    return Chart(
        title="Hits at k, for every k",
        description=f"Share of queries whose {rank_type} rank is at most k; the table below has figures",
        x_label="k",
        y_label="share of queries",
        x_ticks=x_ticks,
        y_ticks=y_ticks,
        legend=tuple(of.side for of in sides),
        lines=tuple(lines),
    )


def distribution_table(sides: Sequence[SideRanks]) -> DataTable:
    """Return the figures of both charts: of each bin and side the queries, their share, and the share up to its end."""
    edges = bin_edges(max(float(of.rank_K[-1]) for of in sides))
    counts = [np.diff(of.num_below(np.array(edges))) for of in sides]
    rows = []
    for at, (low, high) in enumerate(pairwise(edges)):
        cells = [_bin_name(low, high)]
        for of, count_B in zip(sides, counts, strict=True):
            upto = int(count_B[: at + 1].sum())
            cells += [f"{int(count_B[at]):,}", f"{count_B[at] / of.total:.4f}", f"{upto / of.total:.4f}"]
        rows.append(tuple(cells))
    columns = [Column("rank", is_number=False)]
    for of in sides:
        columns += [Column(f"{of.side}, {what}") for what in ("queries", "share", "share so far")]
    return DataTable("rank-distribution", "Distribution of ranks", tuple(columns), tuple(rows))


def _bin_name(low: int, high: int) -> str:
    """Ranks are multiples of one half, so the bin [1, 2) holds 1 and 1.5."""
    return f"{low:,} to below {high:,}"
