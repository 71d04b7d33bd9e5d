"""Rank counts of sampled queries -> standard errors and intervals of their metrics.

The sample is one of clusters (edges, or chunks where candidates are sampled), stratified, without replacement, and
every cluster was as likely to be drawn as any other (`inputs/edge_sample.py`), so each metric is its plain value on
the sample: a ratio of two sums over clusters. Its variance is that of the linearised residuals, within strata,
corrected for the finite population, plus what the random rounding of the strata's shares adds. Sums within a cluster
are integers and clusters stand in the order of the sample, so neither workers nor the order of queries change a bit.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from statistics import NormalDist

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from pbgeval.metrics.student import ERROR_RATE, student_quantile
from pbgeval.notation import Side, labels_of
from pbgeval.stats.float_sums import float_sum
from pbgeval.stats.query_metrics import MEAN_RECIPROCAL_RANK, QueryMetric, keyed_metrics
from pbgeval.stats.rank_stats import RankStats, StatsLayout, query_mean
from pbgeval.stats.rank_types import RankType
from pbgeval.stats.ranks import RankCounts

VALUE_BITS = 40  # of 1/rank and of shares beaten: a cluster of 2^22 edges sums without overflow
PRIOR_DRAWS = 0.5  # weight of the mean variance in that of a stratum, for degrees of freedom only
_NO_VARIANCE = 1e-9  # standard errors below this part of the value are rounding: all clusters agree


@frozen(eq=False)
class SampleDesign:
    """How the clusters of a sample were drawn."""

    stratum_N: np.ndarray  # int64: the stratum of each sampled cluster, in the order of the sample
    population_G: np.ndarray  # int64: all clusters of each stratum

    @property
    def sampled_G(self) -> np.ndarray:
        """The sampled clusters of each stratum, int64."""
        return np.bincount(self.stratum_N, minlength=len(self.population_G))

    @property
    def is_population(self) -> bool:
        return len(self.stratum_N) == int(self.population_G.sum())

    @property
    def degrees_of_freedom(self) -> int:
        """Sampled clusters less the strata that have any."""
        return len(self.stratum_N) - int((self.sampled_G > 0).sum())


@frozen(eq=False)
class SampledQueries:
    """The queries of a sample; a cluster may have any number of them, also none."""

    counts: RankCounts
    side_Q: Tensor  # int64: value of the hidden side
    cluster_Q: Tensor  # int64: index in `SampleDesign.stratum_N`


@frozen
class Interval:
    """An estimate with its confidence interval."""

    value: float
    standard_error: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """The distance to the end that is farther away."""
        return max(self.high - self.value, self.value - self.low)

    def report(self) -> dict[str, float]:
        """Return the interval as `metrics.json` has it."""
        return {"standard_error": self.standard_error, "low": self.low, "high": self.high}


def sample_intervals(
    queries: SampledQueries,
    design: SampleDesign,
    sides: Collection[Side],
    cutoffs: tuple[int, ...],
    *,
    level: float = 1.0 - ERROR_RATE,
    keys: Collection[str] | None = None,
) -> dict[str, Interval]:
    """Return the intervals of a sample's metrics by the report's keys.

    Args:
        queries: all queries of the sample, in any order.
        design: how their clusters were drawn.
        sides: the enabled sides; `both` pools their queries.
        cutoffs: K of hits at K.
        level: the probability that an interval covers the population's value.
        keys: the metrics wanted, those without an interval are passed over; None: all.

    Returns:
        `<head|tail|relation|both>.<rank type>.<mean_rank|mean_reciprocal_rank|hits_at_K|adjusted_mean_rank_index>` and
        `<head|tail|relation|both>.query_auc`. A metric that is undefined, or that rests on a single cluster of a larger
        population, has none. A sample that is the population has errors of exactly 0.
    """
    found = {}
    for label in labels_of(sides):
        if keys is not None and not any(key.startswith(f"{label}.") for key in keys):
            continue
        of_label_Q = torch.isin(queries.side_Q, torch.tensor([side.value for side in Side if side.is_in(label)]))
        sample = _Clusters(queries.counts.select(of_label_Q), queries.cluster_Q[of_label_Q], design, level)
        stats = RankStats.from_queries(StatsLayout(cutoffs), sample.counts)
        for name, metric, rank_type in keyed_metrics(cutoffs):
            key = f"{label}.{name}"
            value = query_mean(stats.total, metric, rank_type) if keys is None or key in keys else None
            if value is not None and design.is_population:
                found[key] = Interval(value, 0.0, value, value)
            elif value is not None and design.degrees_of_freedom > 0:
                found[key] = sample.interval(metric, rank_type, value)
    return found


@frozen(eq=False)
class _Clusters:
    """One label's queries by cluster."""

    counts: RankCounts
    cluster_Q: Tensor
    design: SampleDesign
    level: float

    def interval(self, metric: QueryMetric, rank_type: RankType, value: float) -> Interval:
        """Return the interval of a metric, whose value is exact."""
        mean, variance, freedom = self._mean(metric, rank_type)
        critical = student_quantile(self.level, freedom)
        top = 1 if metric.is_share else max(1, int(self.counts.num_competitors_Q.max()))
        share, error = mean / top, math.sqrt(variance) / top
        agree = error <= _NO_VARIANCE * share  # also where no cluster has a hit
        low, high = (
            unseen_ends(share, self._num_independent(), critical) if agree else wilson_ends(share, error, critical)
        )
        scale = metric.slope * top
        low, high = (metric.start + scale * end for end in (low, high))
        low, high = min(low, value), max(high, value)
        # Where they agree, what a normal interval as wide would have: 0 is for what is exact.
        return Interval(value, max(high - value, value - low) / critical if agree else scale * error, low, high)

    def _mean(self, metric: QueryMetric, rank_type: RankType) -> tuple[float, float, int]:
        """Return a ratio of sums over clusters, its variance and degrees of freedom."""
        numerator_N = self._cluster_sums(metric.numerators(self.counts, rank_type, VALUE_BITS))
        denominator_N = self._cluster_sums(
            metric.counted(self.counts.num_competitors_Q) * metric.denominator(VALUE_BITS)
        )
        total = int(denominator_N.sum())
        value = int(numerator_N.sum()) / total
        return (
            value,
            *variance_of_mean((numerator_N - value * denominator_N) / (total / len(denominator_N)), self.design),
        )

    def _cluster_sums(self, values_Q: Tensor) -> np.ndarray:
        return (
            torch.zeros(len(self.design.stratum_N), dtype=torch.int64).index_add_(0, self.cluster_Q, values_Q).numpy()
        )

    def _num_independent(self) -> float:
        """Return how many independent queries of an endless population the sample is worth.

        That is measured on the reciprocal ranks; where they too agree, a cluster counts as one query.
        """
        one_Q = torch.ones_like(self.cluster_Q)
        num_clusters = int((self._cluster_sums(one_Q) > 0).sum())
        unseen = 1.0 - len(self.design.stratum_N) / int(self.design.population_G.sum())
        reciprocal_Q = 2.0 / self.counts.doubled_rank(RankType.REALISTIC).double()
        mean, variance, _ = self._mean(MEAN_RECIPROCAL_RANK, RankType.REALISTIC)
        if variance <= (_NO_VARIANCE * mean) ** 2:
            return num_clusters / unseen
        ordered_Q = np.sort(reciprocal_Q.numpy())  # the order of queries moves no bit
        of_one_query = float_sum((ordered_Q - float_sum(ordered_Q) / len(one_Q)) ** 2) / len(one_Q)
        return min(max(of_one_query / variance, num_clusters / unseen), len(one_Q) / unseen)


def wilson_ends(share: float, error: float, critical: float) -> tuple[float, float]:
    """Return the ends of Wilson's interval for a mean in 0..1.

    The number of draws is the effective one: as many as would give a share this error.
    """
    weight = (critical * error) ** 2 / (share * (1.0 - share)) if 0.0 < share < 1.0 else math.inf
    if math.isinf(weight):
        return 0.0, 1.0
    centre = (share + weight / 2) / (1.0 + weight)
    reach = math.sqrt((critical * error) ** 2 + weight**2 / 4) / (1.0 + weight)
    return max(0.0, centre - reach), min(1.0, centre + reach)


def unseen_ends(share: float, num_draws: float, critical: float) -> tuple[float, float]:
    """Return the ends for a mean in 0..1 if all draws agree.

    With all draws 0, or all 1, this is Wilson's interval.
    """
    unseen = critical**2 / (num_draws + critical**2)
    return share * (1.0 - unseen), share + unseen * (1.0 - share)


def variance_of_mean(residual_N: np.ndarray, design: SampleDesign) -> tuple[float, int]:
    """Return the variance of the mean over clusters, and its degrees of freedom.

    Degrees of freedom are Satterthwaite's, at most clusters less strata. A stratum's variance rests on few draws, so
    there it is first drawn towards that of all strata, which counts as PRIOR_DRAWS draws.

    Args:
        residual_N: float64, of each sampled cluster; their mean is 0.
        design: at least one stratum has two clusters.
    """
    sampled_G, population_G, num_strata = design.sampled_G, design.population_G, len(design.population_G)
    free_G = np.maximum(sampled_G - 1, 0)
    means_G = np.bincount(design.stratum_N, residual_N, num_strata) / np.maximum(sampled_G, 1)
    squares_G = np.bincount(design.stratum_N, (residual_N - means_G[design.stratum_N]) ** 2, num_strata)
    draws_G = sampled_G * (1.0 - sampled_G / np.maximum(population_G, 1))  # corrected for the finite population
    parts_G = draws_G * squares_G / np.maximum(free_G, 1)
    errors_G = parts_G / np.maximum(sampled_G, 1) ** 2  # of the strata's means
    variance = (float_sum(parts_G) + _variance_of_rounding(means_G, errors_G, design)) / len(residual_N) ** 2
    pooled = float_sum(squares_G) / design.degrees_of_freedom
    shrunk_G = draws_G * (squares_G + PRIOR_DRAWS * pooled) / (free_G + PRIOR_DRAWS)
    fourth = float_sum(shrunk_G**2 / np.maximum(free_G, 1))
    freedom = float_sum(shrunk_G) ** 2 / fourth if fourth > 0.0 else math.inf
    return variance, max(1, int(min(freedom, design.degrees_of_freedom)))


def _variance_of_rounding(means_G: np.ndarray, errors_G: np.ndarray, design: SampleDesign) -> float:
    """Return the variance of sum(draws_G x mean_G) over the offset u that rounds the strata's shares.

    The draws up to stratum h are floor(cumulative share + u): one more where u passes 1 - the share's fractional part,
    so the sum is a step function of u. What the errors of the estimated means add to it is taken off.
    """
    num_clusters = int(design.population_G.sum())
    share_G = design.population_G.astype(object) * len(design.stratum_N)  # Python integers: products may pass 2^63
    fraction_G = (share_G % num_clusters).astype(np.float64) / num_clusters
    step_G = 1.0 - (np.cumsum(share_G) % num_clusters).astype(np.float64) / num_clusters
    change_G = means_G - np.append(means_G[1:], 0.0)
    order_G = np.argsort(step_G, kind="stable")
    widths = np.diff(np.concatenate([[0.0], step_G[order_G], [1.0]]))
    heights = np.concatenate([[0.0], np.cumsum(change_G[order_G])])
    variance = float_sum(widths * heights**2) - float_sum(widths * heights) ** 2
    return max(0.0, variance - float_sum(fraction_G * (1.0 - fraction_G) * errors_G))


# The interval of a sample after a round -> whether its target is met, and which round is needed if not.

MAX_SKIPPED = 3  # rounds: sixteen times as much is drawn, as the variance of a small sample is uncertain


def round_level(round_number: int) -> float:
    """Return the level of the intervals of a round, numbered from 1: errors of all rounds add up to ERROR_RATE."""
    return 1.0 - ERROR_RATE * 2.0**-round_number


def round_needed(interval: Interval | None, target_error: float, done: int, round_totals: Sequence[int]) -> int:
    """Return the round that is done if it meets the target, else the next that may; skip at most MAX_SKIPPED.

    Each round visits every bucket again, and what the first rounds say of the variance is enough to see that the next
    ones will not do. Levels go by the numbers of rounds, so a round that is not judged can only be missed.

    Args:
        interval: after the round that is done, None if it has none.
        target_error: its half-width is to be at most this.
        done: number of that round, from 1.
        round_totals: units drawn after each round.
    """
    last = min(done + 1 + MAX_SKIPPED, len(round_totals))
    if interval is None:
        return done + 1
    quantile = NormalDist().inv_cdf
    for number in range(done, last):
        shrunk = math.sqrt(round_totals[done - 1] / round_totals[number - 1])
        widened = quantile((1 + round_level(number)) / 2) / quantile((1 + round_level(done)) / 2)
        if interval.half_width * shrunk * widened <= target_error:
            return number
    return last
