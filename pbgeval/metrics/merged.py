"""Merged statistics of an evaluation -> every rank metric of the registry, of every rank type.

Means that add up over queries come from exact integer sums; what needs the distribution (medians, geometric means,
deviations, chance levels) from histograms, which are exact while ranks are below `histograms.EXACT_BINS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from attrs import evolve, frozen

from pbgeval.metrics.distribution import CandidateGroups, Means, RankDistribution
from pbgeval.metrics.rank import Sums, query_mean
from pbgeval.metrics.registry import EXPECTED, Metric, Value, rank_metrics
from pbgeval.notation import Side
from pbgeval.stats.grouped import GroupedStats
from pbgeval.stats.histograms import NUM_CANDIDATES, RankHistograms, bin_middles, by_class
from pbgeval.stats.keyed_sums import KeyedSums
from pbgeval.stats.query_metrics import QUERIES
from pbgeval.stats.rank_stats import FRACTION_BITS, RankStats, StatsLayout
from pbgeval.stats.ranks import RankType

EXPECTED_LIKE = RankType.REALISTIC  # the mean over the orders of ties has this type's mean rank


@frozen(eq=False)
class ExactSums:
    """Weighted sums over queries, as integers over one denominator."""

    sums: Sums
    layout: StatsLayout

    def means(self, rank_type: RankType | None) -> Means | None:
        """Return the means of a rank type, None for those over all orders of ties; None if nothing has weight."""
        weight = self.sums(QUERIES)
        if not weight:
            return None
        metrics = [metric for metric in self.layout.metrics if metric.over_ties is not None]
        means = {metric.name: query_mean(self.sums, metric, rank_type or EXPECTED_LIKE) for metric in metrics}
        for metric in self.layout.tied_metrics if rank_type is None else ():
            units = (1 << FRACTION_BITS) // metric.denominator(FRACTION_BITS)
            best = self.sums(f"{RankType.OPTIMISTIC.value}.{metric.name}") * units
            below = self.sums(f"expected_below_optimistic.{metric.name}")
            means[metric.name] = (best - below) / (weight << FRACTION_BITS)
        return means.get


def all_rank_metrics(stats: RankStats, histograms: RankHistograms, optional: Sequence[Metric] = ()) -> dict[str, Value]:
    """Return `<rank type>.<metric>` -> value for queries of equal weight; None where it is undefined.

    Args:
        stats: sums over some queries.
        histograms: of the same queries.
        optional: metrics besides those of every report.
    """
    groups = CandidateGroups.of_counts(histograms.num_candidates)

    def distribution(rank_type: RankType, means: Means | None) -> RankDistribution:
        of_counts = RankDistribution.of_counts(
            histograms.ranks(rank_type),
            histograms.num_candidates,
            doubled=rank_type is RankType.REALISTIC,
            means=means,
        )
        return evolve(of_counts, groups=groups)  # what is computed of the candidates is computed once for all types

    return dict(_values(ExactSums(stats.total, stats.layout), distribution, optional))


def all_weighted_metrics(sums: ExactSums, grouped: GroupedStats, sides: tuple[Side, ...]) -> dict[str, Value]:
    """Return `<rank type>.<metric>` -> value for queries that weigh 1 / (class): None where it is undefined.

    Args:
        sums: over the queries of the sides, times their weights.
        grouped: the same queries by class.
        sides: which queries.
    """
    class_G, candidates_G, num_G = _joined([grouped.key_histogram(NUM_CANDIDATES, side) for side in sides])
    groups = CandidateGroups(candidates_G.astype(np.float64), 1.0 / class_G, num_G)
    num_queries = int(num_G.sum())

    def distribution(rank_type: RankType, means: Means | None) -> RankDistribution:
        class_B, bin_B, num_B = _joined([grouped.key_histogram(rank_type.value, side) for side in sides])
        bins, place_B = np.unique(bin_B, return_inverse=True)
        ranks = bin_middles(bins)
        return RankDistribution(
            ranks_R=ranks / 2.0 if rank_type is RankType.REALISTIC else ranks,
            weight_R=np.bincount(place_B, num_B / class_B, len(bins)).astype(np.float64),
            groups=groups,
            num_queries=num_queries,
            is_weighted=True,
            means=means,
        )

    return dict(_values(sums, distribution))


def _values(
    sums: ExactSums,
    distribution: Callable[[RankType, Means | None], RankDistribution],
    optional: Sequence[Metric] = (),
) -> Iterator[tuple[str, Value]]:
    metrics = rank_metrics(sums.layout.cutoffs)
    of_types = {rank_type: distribution(rank_type, sums.means(rank_type)) for rank_type in RankType}
    for rank_type, of_type in of_types.items():
        for metric in (*metrics, *optional):
            yield f"{rank_type.value}.{metric.name}", metric.value(of_type)
    expected = evolve(of_types[EXPECTED_LIKE], means=sums.means(None))
    for metric in metrics:
        if metric.has_rank_type(EXPECTED):
            yield f"{EXPECTED}.{metric.name}", metric.value(expected)


def _joined(counts: list[KeyedSums]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Add up (class, value, count) of several sides, by value, then class."""
    of_class, value, count = by_class(KeyedSums.sum(counts))
    order = np.lexsort((of_class, value))
    return of_class[order], value[order], count[order]
