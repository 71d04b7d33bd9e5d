"""Rank statistics -> mean rank, mean reciprocal rank, hits at K, count, adjusted mean rank index.

Definitions are in docs/metrics.md. Sums are integers of any size and divided once, correctly rounded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add

from pbgeval.notation import Side
from pbgeval.stats.rank_stats import FRACTION_BITS, LOSS_FRACTION_BITS, RankStats
from pbgeval.stats.ranks import RankType


def rank_metrics(stats: RankStats, rank_type: RankType) -> dict[str, float | int | None]:
    """Return the metrics of a rank type by their report names; None where there are no queries.

    mean_rank: [1, inf), lower is better. mean_reciprocal_rank, hits_at_K: [0, 1], higher is better.
    """
    num_queries = stats.count("num_queries")
    name = rank_type.value
    metrics: dict[str, float | int | None] = {"count": num_queries}
    metrics["mean_rank"] = ratio(stats.total(f"{name}.doubled_rank"), 2 * num_queries)
    metrics["mean_reciprocal_rank"] = ratio(stats.total(f"{name}.reciprocal_rank"), num_queries << FRACTION_BITS)
    for cutoff in stats.layout.cutoffs:
        metrics[f"hits_at_{cutoff}"] = ratio(stats.count(f"{name}.hits_at_{cutoff}"), num_queries)
    return metrics


def adjusted_mean_rank_index(stats: RankStats, rank_type: RankType) -> float | None:
    """Return 1 - 2 sum(rank - 1) / sum(candidates - 1), the true entity among its candidates.

    [-1, 1], higher is better, 0 by chance. None if no query has a competitor. Source: Berrendorf et al., "On the
    Ambiguity of Rank-Based Evaluation of Entity Alignment or Link Prediction Methods" (2020).
    """
    num_queries = stats.count("num_queries")
    num_competitors = stats.total("candidates") - num_queries
    beyond_first = stats.total(f"{rank_type.value}.doubled_rank") - 2 * num_queries  # 2 sum(rank - 1)
    return ratio(num_competitors - beyond_first, num_competitors)


def query_auc(stats: RankStats) -> float | None:
    """Return the mean share of its competitors that a true entity beats, ties one half; [0, 1], chance 0.5.

    Queries without competitors are left out.
    """
    return ratio(stats.total("query_auc"), stats.count("num_competing_queries") << FRACTION_BITS)


def mean_loss(stats: RankStats, num_edges: int) -> float | None:
    """Return PBG's loss: both sides' sum per edge. None if some query's loss is not a finite number below 2^28."""
    if stats.count("num_undefined_losses"):
        return None
    return ratio(stats.total("loss"), num_edges << LOSS_FRACTION_BITS)


def by_label(of_side: Mapping[Side, RankStats], sides: Sequence[Side]) -> dict[str, RankStats]:
    """Return the statistics of the enabled sides, and of `both`: their queries pooled."""
    of_enabled = [of_side[side] for side in sides]
    labels = [side.label for side in sides]
    return {**dict(zip(labels, of_enabled, strict=True)), "both": reduce(add, of_enabled)}


def ratio(numerator: int, denominator: int) -> float | None:
    """Divide integers of any size with one rounding; None where nothing was counted."""
    return numerator / denominator if denominator else None  # Python rounds the quotient of integers correctly
