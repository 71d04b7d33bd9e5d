"""Blocks of scores of one side of one work unit -> the statistics of its queries."""

from __future__ import annotations

import torch
from attrs import define, field
from torch import Tensor

from pbgeval.ranking import RankCounts
from pbgeval.scoring.comparators import Comparator
from pbgeval.scoring.loss import LOSSES
from pbgeval.stats.groups import SideStats
from pbgeval.stats.histograms import RankHistograms
from pbgeval.stats.pool import ScorePool, order_image
from pbgeval.stats.rank_stats import RankStats, StatsLayout


@define
class SideTally:
    """Collects the queries of one side; order does not matter."""

    layout: StatsLayout
    _counts: list[RankCounts] = field(factory=list)
    _losses: list[Tensor] = field(factory=list)
    _true: list[Tensor] = field(factory=list)
    _competing: list[Tensor] = field(factory=list)
    _num_short_lists: int = 0
    _num_excluded: int = 0

    def add_queries(self, counts: RankCounts, *, num_short_lists: int = 0, num_excluded: int = 0) -> None:
        """Add queries whose counts are complete."""
        self._counts.append(counts.cpu())
        self._num_short_lists += num_short_lists
        self._num_excluded += num_excluded

    def add_losses(self, loss_Q: Tensor) -> None:
        self._losses.append(loss_Q.cpu())

    def add_scores(self, true: Tensor | None, competing: Tensor | None) -> None:
        """Add scores to the pool of the AUC."""
        if true is not None:
            self._true.append(true.float().cpu())
        if competing is not None:
            self._competing.append(competing.float().cpu())

    def finish(self) -> SideStats:
        counts = RankCounts.concatenate(self._counts)
        stats = RankStats.of_queries(
            self.layout, counts, num_short_lists=self._num_short_lists, num_excluded=self._num_excluded
        )
        if self._losses:
            stats = stats.with_losses(torch.cat(self._losses))
        images = ([order_image(torch.cat(parts))] if parts else [] for parts in (self._true, self._competing))
        return SideStats(stats, RankHistograms.of_queries(counts), ScorePool(*images))


class LossFold:
    """The loss of some queries, folded over blocks of their candidates, on the comparator's own scale."""

    def __init__(self, name: str, margin: float, comparator: Comparator, true_Q: Tensor) -> None:
        self._loss = LOSSES[name]
        self._margin = margin
        self._comparator = comparator
        self._true_Q = comparator.real_scores(true_Q).double()
        self._state_Q = self._loss.start(self._true_Q)

    def fold(self, scores_QC: Tensor, excluded: tuple[Tensor, Tensor]) -> None:
        """Add a block of candidates; the cells named in `excluded` do not compete."""
        real_QC = self._comparator.real_scores(scores_QC)
        real_QC = real_QC.clone() if real_QC is scores_QC else real_QC
        real_QC[excluded[0].to(real_QC.device), excluded[1].to(real_QC.device)] = -torch.inf
        self._state_Q = self._loss.fold(self._state_Q, self._true_Q, real_QC, self._margin)

    def finish(self, list_length_Q: Tensor, weight_Q: Tensor | float) -> Tensor:
        """Return each query's loss times its weight, float64 (Q,)."""
        if isinstance(weight_Q, Tensor):
            weight_Q = weight_Q.to(self._state_Q.device)
        return self._loss.finish(self._state_Q, self._true_Q, list_length_Q.double()) * weight_Q
