"""Saved counts of queries -> statistics: those that an evaluation adds up, but for what needs scores.

Whatever the blocks and their order, the sums are those of the evaluation that saved the counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import torch
from attrs import define

from pbgeval.stats.grouped import GroupedStats
from pbgeval.stats.groups import GroupKey, GroupStats, ScorePool, SideStats, TypeStats
from pbgeval.stats.histograms import RankHistograms
from pbgeval.stats.rank_stats import RankStats, StatsLayout
from pbgeval.stats.ranks import QueryCounts, RankCounts


@define
class SavedStats:
    """What has been read so far; pools of scores stay empty, losses zero."""

    raw: GroupStats
    filtered: GroupStats | None  # None: known answers compete
    grouped: GroupedStats  # of filtered figures where there are any
    raw_types: TypeStats | None = None  # ranks do not tell the places of other types
    filtered_types: TypeStats | None = None

    @classmethod
    def zero(cls, layout: StatsLayout, groups: Iterable[GroupKey], *, filtered: bool) -> SavedStats:
        groups = tuple(groups)
        of_filtered = GroupStats.zero(layout, groups) if filtered else None
        return cls(GroupStats.zero(layout, groups), of_filtered, GroupedStats(layout))

    def add(
        self,
        key: GroupKey,
        columns: Mapping[str, np.ndarray],
        *,
        num_outside: int,
        dimensions: Mapping[str, np.ndarray],
    ) -> None:
        """Add ranked queries of one side of some edges of a bucket.

        Args:
            key: edge path, bucket and side.
            columns: those of `storage.row_files.RANK_COLUMNS`, int64 (Q,); `num_candidates` is positive.
            num_outside: further queries of this side, which are not ranked.
            dimensions: group of each query, int64 (Q,), by name of the dimension.
        """
        tensors = {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in columns.items()}
        counts = QueryCounts(
            RankCounts(tensors["better"], tensors["tied"], tensors["num_candidates"] - 1),
            RankCounts(tensors["excluded_better"], tensors["excluded_tied"], tensors["num_excluded"]),
        )
        _add(self.raw, key, counts.raw, num_outside, None)
        headline = counts.raw
        if self.filtered is not None:
            headline = counts.filtered
            _add(self.filtered, key, headline, num_outside, counts.known.num_competitors_Q)
        for name, group_Q in dimensions.items():
            self.grouped.add(name, key.side, torch.from_numpy(np.ascontiguousarray(group_Q)), headline)


def _add(groups: GroupStats, key: GroupKey, counts: RankCounts, num_outside: int, known_Q: torch.Tensor | None) -> None:
    stats = RankStats.from_queries(groups.layout, counts, num_outside=num_outside, known_Q=known_Q)
    groups.add(key, SideStats(stats, RankHistograms.from_queries(counts), ScorePool()))
