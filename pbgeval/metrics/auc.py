"""Pools of scores -> the pooled AUC and, where it is estimated, its standard error.

AUC = P(true score > competitor's score) + P(equal) / 2 over all pairs of the pool (docs/metrics.md).

Of a sample of edges, everything that an edge (or chunk) brings to the pool depends on it: the true score of both its
queries and all their competitors' scores. So the error is that of sums over clusters: an edge's true scores count by
how many competitors they beat, its competitors' scores by how many true scores beat them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from attrs import frozen

from pbgeval.metrics.classification import NAMES, classification_metrics
from pbgeval.metrics.intervals import SampleDesign, student_quantile, unseen_ends, variance_of_mean, wilson_ends
from pbgeval.metrics.names import POOLED_HITS
from pbgeval.metrics.registry import Value
from pbgeval.stats.groups import SortedPool
from pbgeval.stats.keyed_sums import first_of_each


@frozen
class PooledAuc:
    """A pooled AUC; its standard error is None if all scores were compared."""

    value: float
    standard_error: float | None
    degrees_of_freedom: int = 10**9  # so many that Student's distribution is the normal one
    num_draws: float = math.inf  # what the value rests on, where all draws agree

    def interval(self, level: float = 0.95) -> dict[str, float] | None:
        """Return the interval at a level as the report writes it; None where there is none."""
        if self.standard_error is None or not math.isfinite(self.standard_error):
            return None
        value, error, critical = self.value, self.standard_error, student_quantile(level, self.degrees_of_freedom)
        low, high = wilson_ends(value, error, critical) if error > 0.0 else unseen_ends(value, self.num_draws, critical)
        # Without an error, what an interval as wide would have: 0 is for what is exact.
        return {"standard_error": error or max(high - value, value - low) / critical, "low": low, "high": high}


def pooled_auc(
    pools: Sequence[SortedPool], *, all_true: bool, all_competing: bool, design: SampleDesign | None = None
) -> PooledAuc | None:
    """Compare every true score with every competitor's score of the union of some pools.

    Args:
        pools: scores of groups of queries.
        all_true: whether the pools have every true score of the edges that were evaluated, not a sample.
        all_competing: whether the pools have every competitor's score, not a sample.
        design: how the edges were drawn, whose clusters the pools hold; None: all of them.

    Returns:
        None if there is nothing to compare.
    """
    num_true = sum(len(pool.true) for pool in pools)
    num_competing = sum(len(pool.competing) for pool in pools)
    if not num_true or not num_competing:
        return None
    if design is None and all_true and all_competing:
        if num_true * len(pools) > num_competing:
            pools = [SortedPool.union(pools)]
        doubled_wins = sum(_doubled_wins(pool.true, other.competing) for pool in pools for other in pools)
        return PooledAuc(doubled_wins / (2 * num_true * num_competing), None)
    union = SortedPool.union(pools)
    wins_Q, wins_C = _wins_of_each(union.true, union.competing)
    beaten_Q = wins_Q / (2 * num_competing)
    lost_C = (2 * num_true - wins_C) / (2 * num_true)
    value = int(wins_Q.sum()) / (2 * num_true * num_competing)
    of_draws = 0.0 if all_true else _variance_of_mean(beaten_Q)
    of_draws += 0.0 if all_competing else _variance_of_mean(lost_C)
    if design is None:
        return PooledAuc(
            value,
            math.sqrt(of_draws),
            num_draws=min(size for size, whole in ((num_true, all_true), (num_competing, all_competing)) if not whole),
        )
    if design.degrees_of_freedom < 1:
        return PooledAuc(value, math.inf)
    num_clusters, population = len(design.stratum_U), int(design.population_H.sum())
    assert union.true_cluster is not None, "scores of a sample have clusters"
    assert union.competing_cluster is not None, "scores of a sample have clusters"
    # Each cluster's part of what the value is off by; a part is a mean's, so that they add up to 0.
    share_U = (
        np.bincount(union.true_cluster, beaten_Q - value, num_clusters) / num_true
        + np.bincount(union.competing_cluster, lost_C - value, num_clusters) / num_competing
    )
    variance, freedom = variance_of_mean(num_clusters * share_U, design)
    # The spread of clusters holds that of the scores drawn from each, but for what the finite population takes off.
    variance += of_draws * num_clusters / population
    return PooledAuc(value, math.sqrt(variance), freedom, num_clusters / (1.0 - num_clusters / population))


def _doubled_wins(first: np.ndarray, second: np.ndarray) -> int:
    """Return twice the wins of the first of two sorted arrays plus the ties."""
    few, many = sorted((first, second), key=len)
    wins = int(_places(few, many).sum())
    return wins if few is first else 2 * len(first) * len(second) - wins


def _wins_of_each(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return twice the wins plus the ties of each score of two sorted arrays."""
    few, many = sorted((first, second), key=len)
    places = _places(few, many)
    # Each of the few is beaten (or reached) by all of the many from its place on.
    wins_of_many = np.cumsum(np.bincount(places.ravel(), minlength=len(many) + 1)[: len(many)])
    return (places.sum(0), wins_of_many) if few is first else (wins_of_many, places.sum(0))


def _places(few: np.ndarray, many: np.ndarray) -> np.ndarray:
    """Count for each of the few the lower and the not higher of the many, (2, few)."""
    places = np.tile(np.searchsorted(many, few, "left"), (2, 1))
    ties = np.flatnonzero(many[np.minimum(places[0], len(many) - 1)] == few)  # few: the second search is saved
    places[1, ties] = np.searchsorted(many, few[ties], "right")
    return places


def _variance_of_mean(shares: np.ndarray) -> float:
    """Return the variance of the mean of independent draws; infinite from a single one."""
    return float(np.var(shares, ddof=1)) / len(shares) if len(shares) > 1 else math.inf


# The pool of a side's true and competing scores -> a classifier's metrics, and hits among shared negatives.
#
# True scores are the positives, competitors' scores the negatives: one of each query, and all that compete with it.
# Where a pool is a sample, its scores stand for all by their weights, and the standard errors are those of a jackknife.


JACKKNIFE_GROUPS = 32
MIN_PREDICTED = 100  # sampled competitors above the threshold; with 20 of them, intervals covered 74 % in simulations
JACKKNIFE_SEED = 20  # of the assignment to groups, which is the same for equal pools
_RANGES = {  # of those that leave [0, 1]
    "informedness": (-1.0, 1.0),
    "matthews_correlation_coefficient": (-1.0, 1.0),
    "positive_likelihood_ratio": (0.0, math.inf),
    "negative_likelihood_ratio": (0.0, math.inf),
    "diagnostic_odds_ratio": (0.0, math.inf),
}


@frozen
class AucSample:
    """Which scores the pools hold, and how their edges were drawn."""

    all_true: bool  # whether pools hold every true score
    all_competing: bool
    design: SampleDesign | None = None  # None: all edges
    level: float = 0.95  # of intervals


def pooled_classification(
    pool: SortedPool, num_true: int, num_competing: int, sample: AucSample
) -> tuple[dict[str, Value], dict[str, dict[str, float]]]:
    """Return a classifier's metrics by name, and the intervals of those that are estimated.

    The area under the ROC curve is left out: it is the pooled AUC (`auc`). The threshold of the confusion matrix is
    that where as many are predicted positive as are. Everything is None without positives or without negatives.

    Args:
        pool: scores of some queries.
        num_true: queries.
        num_competing: competitors of all queries.
        sample: of these scores, which the pool holds.
    """
    num_scores = len(pool.true) + len(pool.competing)
    if not len(pool.true) or not len(pool.competing):
        return {**dict.fromkeys(NAMES), "num_scores": num_scores}, {}
    ascending = np.union1d(first_of_each(pool.true)[0], first_of_each(pool.competing)[0])
    true, competing = (
        len(ascending) - 1 - np.searchsorted(ascending, images) for images in (pool.true, pool.competing)
    )
    positive_T: np.ndarray = np.bincount(true, minlength=len(ascending))
    negative_T: np.ndarray = np.bincount(competing, minlength=len(ascending))
    if not (sample.all_true and sample.all_competing):
        positive_T = positive_T * (num_true / len(true))
        negative_T = negative_T * (num_competing / len(competing))
    metrics = classification_metrics(positive_T, negative_T, num_scores)
    sizes = [
        *(len(place) for place, whole in ((true, sample.all_true), (competing, sample.all_competing)) if not whole),
        *([] if sample.design is None else [len(sample.design.stratum_U)]),
    ]
    if not sizes or min(sizes) < JACKKNIFE_GROUPS:
        return metrics, {}
    least = np.searchsorted(np.cumsum(positive_T + negative_T), positive_T.sum())  # predicted: as many as are positive
    if not sample.all_competing and int((competing <= least).sum()) < MIN_PREDICTED:
        return metrics, {}
    replicates = [
        classification_metrics(*of_part, num_scores)
        for of_part in _without_a_group(pool, sample, (positive_T, true), (negative_T, competing))
    ]
    unseen_share = 1.0  # by what the finite population shrinks a variance; 1 where sampled edges' scores are drawn too
    if sample.design is not None and sample.all_true and sample.all_competing:
        unseen_share -= len(sample.design.stratum_U) / int(sample.design.population_H.sum())
    return metrics, _intervals(metrics, replicates, unseen_share, sample.level)


def pooled_hits(pool: SortedPool, cutoffs: Sequence[int], *, whole: bool) -> dict[str, Value]:
    """Return `pooled_hits_at_K`: the share of true scores above the K-th best of all competitors' scores.

    [0, 1], higher is better; 1 where there are fewer than K competitors, None where the pool is a sample, which does
    not tell the K-th best, or holds no true score. Source: OGB's hits@K of ogbl-collab, -ddi and -ppa.
    """
    num_true = len(pool.true)
    thresholds = [pool.competing[-k] if k <= len(pool.competing) else -math.inf for k in cutoffs]
    above_K = num_true - np.searchsorted(pool.true, thresholds, "right")
    return {
        f"{POOLED_HITS}{k}": above / num_true if whole and num_true else None
        for k, above in zip(cutoffs, above_K.tolist(), strict=True)
    }


def _without_a_group(
    pool: SortedPool,
    sample: AucSample,
    true: tuple[np.ndarray, np.ndarray],
    competing: tuple[np.ndarray, np.ndarray],
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the weights without each random group of scores, or of clusters.

    `true` and `competing` are the weights by distinct score, and the place of each score among these.
    """
    generator = np.random.Generator(np.random.PCG64(JACKKNIFE_SEED))
    parts = [
        (*true, sample.all_true and sample.design is None),
        (*competing, sample.all_competing and sample.design is None),
    ]
    if sample.design is None:
        group_of = [generator.permutation(len(place)) % JACKKNIFE_GROUPS for _, place, _ in parts]
    else:
        group_U = generator.permutation(len(sample.design.stratum_U)) % JACKKNIFE_GROUPS
        group_of = [group_U[cluster] for cluster in (pool.true_cluster, pool.competing_cluster)]
    for number in range(JACKKNIFE_GROUPS):
        weights = []
        for (weight_T, place, is_whole), group in zip(parts, group_of, strict=True):
            left_out = place[group == number]
            if not is_whole and len(left_out) < len(place):
                each = weight_T.sum() / len(place)
                kept_T = weight_T - each * np.bincount(left_out, minlength=len(weight_T))
                # What remains stands for as many as before; rounding must not leave a trace of what is gone.
                weight_T = np.where(kept_T < each / 2, 0.0, kept_T) * (len(place) / (len(place) - len(left_out)))
            weights.append(weight_T)
        kept = (weights[0] > 0) | (weights[1] > 0)
        yield weights[0][kept], weights[1][kept]


def _intervals(
    metrics: dict[str, Value], replicates: Sequence[dict[str, Value]], unseen_share: float, level: float
) -> dict[str, dict[str, float]]:
    intervals = {}
    critical = student_quantile(level, JACKKNIFE_GROUPS - 1)
    for name, value in metrics.items():
        parts = np.array([found[name] for found in replicates], np.float64)  # None: NaN
        if name == "num_scores" or value is None or np.isnan(parts).any():
            continue
        error = math.sqrt(
            float(np.sum((parts - np.mean(parts)) ** 2)) * unseen_share * (JACKKNIFE_GROUPS - 1) / JACKKNIFE_GROUPS
        )
        if math.isfinite(error):
            low, high = _ends(value, error, critical, _RANGES.get(name, (0.0, 1.0)))
            intervals[name] = {"standard_error": error, "low": low, "high": high}
    return intervals


def _ends(value: float, error: float, critical: float, of_range: tuple[float, float]) -> tuple[float, float]:
    """Return the ends of an interval: Wilson's if the metric's range has two ends."""
    lowest, highest = of_range
    width = highest - lowest
    if not error:
        return value, value
    if math.isinf(width):
        return max(lowest, value - critical * error), value + critical * error
    low, high = wilson_ends((value - lowest) / width, error / width, critical)
    return lowest + width * low, lowest + width * high
