"""Merged statistics of an evaluation -> every rank metric of the registry, of every rank type.

Means that add up over queries come from exact integer sums; what needs the distribution (medians, geometric means,
deviations, chance levels) from histograms, which are exact while ranks are below `histograms.EXACT_BINS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from attrs import evolve, frozen

from pbgeval.metrics.distribution import CandidateGroups, GivenMeans, RankDistribution
from pbgeval.metrics.registry import EXPECTED, Metric, Value, rank_metrics
from pbgeval.notation import Side
from pbgeval.stats.histograms import RankHistograms, WeightedHistograms, bin_middles
from pbgeval.stats.rank_stats import FRACTION_BITS, RankStats
from pbgeval.stats.ranks import RankType

EXPECTED_LIKE = RankType.REALISTIC  # the mean over the orders of ties has this type's mean rank


@frozen(eq=False)
class ExactSums:
    """Weighted sums over queries, as integers over one denominator: of plain columns and of those in limbs."""

    weight: int  # of all queries
    plain: Callable[[str], int]
    limbs: Callable[[str], int]
    cutoffs: tuple[int, ...]

    @classmethod
    def of_stats(cls, stats: RankStats) -> ExactSums:
        """Take queries that all weigh 1."""
        return cls(stats.count("num_queries"), stats.count, stats.total, stats.layout.cutoffs)

    def means(self, rank_type: RankType | None) -> GivenMeans | None:
        """Return the means of a rank type, None for those over all orders of ties; None if nothing has weight."""
        if not self.weight:
            return None
        one = self.weight << FRACTION_BITS
        if rank_type is None:
            best = RankType.OPTIMISTIC.value
            reciprocal = self.limbs(f"{best}.reciprocal_rank") - self._below("reciprocal_rank")
            hits = {
                cutoff: ((self.plain(f"{best}.hits_at_{cutoff}") << FRACTION_BITS) - self._below(f"hits_at_{cutoff}"))
                / one
                for cutoff in self.cutoffs
            }
            return GivenMeans(self._mean_rank(EXPECTED_LIKE), reciprocal / one, hits)
        hits = {cutoff: self.plain(f"{rank_type.value}.hits_at_{cutoff}") / self.weight for cutoff in self.cutoffs}
        reciprocal = self.limbs(f"{rank_type.value}.reciprocal_rank")
        return GivenMeans(self._mean_rank(rank_type), reciprocal / one, hits)

    def _mean_rank(self, rank_type: RankType) -> float:
        return self.limbs(f"{rank_type.value}.doubled_rank") / (2 * self.weight)

    def _below(self, name: str) -> int:
        return self.limbs(f"expected_below_optimistic.{name}")


def all_rank_metrics(stats: RankStats, histograms: RankHistograms, optional: Sequence[Metric] = ()) -> dict[str, Value]:
    """Return `<rank type>.<metric>` -> value for queries of equal weight; None where it is undefined.

    Args:
        stats: sums over some queries.
        histograms: of the same queries.
        optional: metrics besides those of every report.
    """
    groups = CandidateGroups.of_counts(histograms.num_candidates)

    def distribution(rank_type: RankType, means: GivenMeans | None) -> RankDistribution:
        of_counts = RankDistribution.of_counts(
            histograms.ranks[rank_type],
            histograms.num_candidates,
            doubled=rank_type is RankType.REALISTIC,
            means=means,
        )
        return evolve(of_counts, groups=groups)  # what is computed of the candidates is computed once for all types

    return dict(_values(ExactSums.of_stats(stats), distribution, optional))


def all_weighted_metrics(sums: ExactSums, histograms: WeightedHistograms, sides: tuple[Side, ...]) -> dict[str, Value]:
    """Return `<rank type>.<metric>` -> value for queries that weigh 1 / (class): None where it is undefined.

    Args:
        sums: over the queries of the sides, times their weights.
        histograms: of the same queries by class.
        sides: which queries.
    """
    class_G, candidates_G, num_G = _joined([histograms.num_candidates(side) for side in sides])
    groups = CandidateGroups(candidates_G.astype(np.float64), 1.0 / class_G, num_G)
    num_queries = int(num_G.sum())

    def distribution(rank_type: RankType, means: GivenMeans | None) -> RankDistribution:
        class_B, bin_B, num_B = _joined([histograms.rank_bins(side, rank_type) for side in sides])
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
    distribution: Callable[[RankType, GivenMeans | None], RankDistribution],
    optional: Sequence[Metric] = (),
) -> Iterator[tuple[str, Value]]:
    metrics = rank_metrics(sums.cutoffs)
    of_types = {rank_type: distribution(rank_type, sums.means(rank_type)) for rank_type in RankType}
    for rank_type, of_type in of_types.items():
        for metric in (*metrics, *optional):
            yield f"{rank_type.value}.{metric.name}", metric.value(of_type)
    expected = evolve(of_types[EXPECTED_LIKE], means=sums.means(None))
    for metric in metrics:
        if metric.has_rank_type(EXPECTED):
            yield f"{EXPECTED}.{metric.name}", metric.value(expected)


def _joined(entries: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Add up (class, value, count) of several sides, by value, then class."""
    of_class, value, count = (np.concatenate(columns) for columns in zip(*entries, strict=True))
    order = np.lexsort((of_class, value))
    of_class, value, count = of_class[order], value[order], count[order]
    is_first = np.ones(len(order), bool)
    is_first[1:] = (of_class[1:] != of_class[:-1]) | (value[1:] != value[:-1])
    first = np.flatnonzero(is_first)
    return of_class[first], value[first], np.add.reduceat(count, first) if len(first) else count
