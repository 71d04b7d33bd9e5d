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
from pbgeval.metrics.intervals import SampleDesign, unseen_ends, variance_of_mean, wilson_ends
from pbgeval.metrics.names import POOLED_HITS
from pbgeval.metrics.registry import Value
from pbgeval.metrics.student import student_quantile
from pbgeval.stats.float_sums import float_sum
from pbgeval.stats.groups import SortedPool
from pbgeval.stats.keyed_sums import first_of_each
from pbgeval.stats.pooled_counts import PooledCounts


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
        true = np.sort(np.concatenate([pool.true for pool in pools]))  # so each pool's competitors are met once
        doubled_wins = sum(_doubled_wins(true, pool.competing) for pool in pools if len(pool.competing))
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
    num_clusters, population = len(design.stratum_N), int(design.population_G.sum())
    assert union.true_cluster is not None, "scores of a sample have clusters"
    assert union.competing_cluster is not None, "scores of a sample have clusters"
    # Each cluster's part of what the value is off by; a part is a mean's, so that they add up to 0.
    share_N = (
        np.bincount(union.true_cluster, beaten_Q - value, num_clusters) / num_true
        + np.bincount(union.competing_cluster, lost_C - value, num_clusters) / num_competing
    )
    variance, freedom = variance_of_mean(num_clusters * share_N, design)
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
    lower = np.searchsorted(many, few, "left")
    ties = np.flatnonzero(many[np.minimum(lower, len(many) - 1)] == few)  # few: the second search is saved
    not_higher = lower.copy()
    not_higher[ties] = np.searchsorted(many, few[ties], "right")
    return np.stack([lower, not_higher])


def _variance_of_mean(shares: np.ndarray) -> float:
    """Return the variance of the mean of independent draws; infinite from a single one."""
    num = len(shares)
    if num < 2:
        return math.inf
    return float_sum((shares - float_sum(shares) / num) ** 2) / ((num - 1) * num)


# The pool of a side's true and competing scores -> a classifier's metrics, and hits among shared negatives.
#
# True scores are the positives, competitors' scores the negatives: one of each query, and all that compete with it.
# They rest on the highest scores, so a part of the pool does not tell them: figures are null, with a reason.
# Where edges are sampled, the standard errors are those of a jackknife over their clusters.


JACKKNIFE_GROUPS = 32
JACKKNIFE_SEED = 20  # of the assignment to groups, which is the same for equal pools
_RANGES = {  # of those that leave [0, 1]
    "informedness": (-1.0, 1.0),
    "matthews_correlation_coefficient": (-1.0, 1.0),
    "positive_likelihood_ratio": (0.0, math.inf),
    "negative_likelihood_ratio": (0.0, math.inf),
    "diagnostic_odds_ratio": (0.0, math.inf),
}
OF_SAMPLED_EDGES = "the K-th best score of a sample of edges is not that of all edges"


@frozen
class AucSample:
    """Which scores the pools hold, and how their edges were drawn."""

    all_true: bool  # whether pools hold every true score
    all_competing: bool
    design: SampleDesign | None = None  # None: all edges
    level: float = 0.95  # of intervals
    reason: str = ""  # why not every score is kept or counted, where it is so


def pooled_classification(pool: SortedPool, sample: AucSample) -> tuple[dict[str, Value], dict[str, dict[str, float]]]:
    """Return a classifier's metrics by name, and the intervals of those that are estimated.

    The area under the ROC curve is left out: it is the pooled AUC (`auc`). The threshold of the confusion matrix is
    that where as many are predicted positive as are. Everything is None without positives or without negatives.

    Args:
        pool: all scores of some queries.
        sample: of their edges.
    """
    num_scores = len(pool.true) + len(pool.competing)
    if not len(pool.true) or not len(pool.competing):
        return {**dict.fromkeys(NAMES), "num_scores": num_scores}, {}
    ascending = np.union1d(first_of_each(pool.true)[0], first_of_each(pool.competing)[0])
    true, competing = (
        len(ascending) - 1 - np.searchsorted(ascending, images) for images in (pool.true, pool.competing)
    )
    positive_K: np.ndarray = np.bincount(true, minlength=len(ascending))
    negative_K: np.ndarray = np.bincount(competing, minlength=len(ascending))
    metrics = classification_metrics(positive_K, negative_K, num_scores)
    design = sample.design
    if design is None or len(design.stratum_N) < JACKKNIFE_GROUPS:
        return metrics, {}
    assert pool.true_cluster is not None, "scores of a sample have clusters"
    assert pool.competing_cluster is not None, "scores of a sample have clusters"
    of_parts = (positive_K, true, pool.true_cluster), (negative_K, competing, pool.competing_cluster)
    replicates = [
        classification_metrics(positives, negatives, num_scores)
        for positives, negatives in _without_a_group(design, of_parts)
    ]
    # By what the finite population shrinks a variance.
    unseen_share = 1.0 - len(design.stratum_N) / int(design.population_G.sum())
    return metrics, _intervals(metrics, replicates, unseen_share, sample.level)


def counted_classification(true: np.ndarray, counts: PooledCounts) -> dict[str, Value]:
    """Return the same metrics, and `auc`, of a pool whose competitors are counted.

    Args:
        true: ascending order images of the true scores.
        counts: of all competitors of the same queries.
    """
    num_scores = len(true) + counts.num_competing
    if not len(true) or not counts.num_competing:
        return {**dict.fromkeys(NAMES), "num_scores": num_scores, "auc": None}
    return {
        **classification_metrics(*counts.by_score(true), num_scores),
        "auc": counts.doubled_wins(true) / (2 * len(true) * counts.num_competing),
    }


def counted_hits(true: np.ndarray, counts: PooledCounts, cutoffs: Sequence[int]) -> dict[str, Value]:
    """Return the `pooled_hits` of a pool whose competitors are counted."""
    return {f"{POOLED_HITS}{k}": counts.num_above(true, k) / len(true) if len(true) else None for k in cutoffs}


def pooled_hits(pool: SortedPool, cutoffs: Sequence[int]) -> dict[str, Value]:
    """Return `pooled_hits_at_K`: the share of true scores above the K-th best of all competitors' scores.

    [0, 1], higher is better; 1 where there are fewer than K competitors, None where the pool holds no true score.
    Source: OGB's hits@K of ogbl-collab, -ddi and -ppa.
    """
    num_true = len(pool.true)
    thresholds = [pool.competing[-k] if k <= len(pool.competing) else -math.inf for k in cutoffs]
    above_K = num_true - np.searchsorted(pool.true, thresholds, "right")
    return {
        f"{POOLED_HITS}{k}": above / num_true if num_true else None
        for k, above in zip(cutoffs, above_K.tolist(), strict=True)
    }


def _without_a_group(
    design: SampleDesign, parts: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]]
) -> Iterator[list[np.ndarray]]:
    """Yield the weights of positives and of negatives by distinct score, without each random group of clusters.

    Args:
        design: how clusters were drawn.
        parts: positives, and negatives: how many have each distinct score, the place of each among these, its cluster.
    """
    generator = np.random.Generator(np.random.PCG64(JACKKNIFE_SEED))
    group_N = generator.permutation(len(design.stratum_N)) % JACKKNIFE_GROUPS
    for number in range(JACKKNIFE_GROUPS):
        weights = []
        for num_K, place, cluster in parts:
            left_out = place[group_N[cluster] == number]
            weight_K = num_K
            if len(left_out) < len(place):
                kept_K = num_K - np.bincount(left_out, minlength=len(num_K))
                weight_K = kept_K * (len(place) / (len(place) - len(left_out)))  # stands for as many as before
            weights.append(weight_K)
        kept = (weights[0] > 0) | (weights[1] > 0)
        yield [weight_K[kept] for weight_K in weights]


def _intervals(
    metrics: dict[str, Value], replicates: Sequence[dict[str, Value]], unseen_share: float, level: float
) -> dict[str, dict[str, float]]:
    intervals = {}
    critical = student_quantile(level, JACKKNIFE_GROUPS - 1)
    for name, value in metrics.items():
        parts = np.array([found[name] for found in replicates], np.float64)  # None: NaN
        if name == "num_scores" or value is None or np.isnan(parts).any():
            continue
        squares = float_sum((parts - float_sum(parts) / len(parts)) ** 2)
        error = math.sqrt(squares * unseen_share * (JACKKNIFE_GROUPS - 1) / JACKKNIFE_GROUPS)
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
