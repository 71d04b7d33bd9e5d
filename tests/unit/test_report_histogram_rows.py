"""Rows of the histogram of ranks."""

from __future__ import annotations

import torch

from pbgeval.notation import Bucket, Side
from pbgeval.report.output import HistogramRows
from pbgeval.stats.groups import GroupKey, GroupStats
from pbgeval.stats.histograms import RankHistograms
from pbgeval.stats.rank_stats import StatsLayout
from pbgeval.stats.ranks import RankCounts


def rows_of(better: list[int], tied: list[int]) -> HistogramRows:
    counts = RankCounts(
        torch.tensor(better, dtype=torch.int64),
        torch.tensor(tied, dtype=torch.int64),
        torch.full((len(better),), 1 << 40),
    )
    groups = GroupStats.zero(StatsLayout((1,)), [GroupKey(0, Bucket(0, 0), Side.LHS)])
    groups.histograms[0, Side.LHS] += RankHistograms.from_queries(counts)
    return HistogramRows.from_groups(groups, [Side.LHS])


def test_a_row_holds_the_ranks_between_its_edges():
    rows = rows_of([0, 0, 2, 1 << 35], [0, 1, 0, 0])

    optimistic = [row for row in rows if row["rank_type"] == "optimistic"]
    assert [(r["lower_edge"], r["upper_edge"], r["count"]) for r in optimistic[:2]] == [(1.0, 1.0, 2), (3.0, 3.0, 1)]
    assert optimistic[2]["lower_edge"] <= (1 << 35) + 1 <= optimistic[2]["upper_edge"]
    assert (len(list(rows)), [1.0, 1.5, 3.0], rows[0]) == (
        len(rows),
        [row["lower_edge"] for row in rows if row["rank_type"] == "realistic"][:3],
        next(iter(rows)),
    )
