"""Ranks that somebody has -> every rank metric, of every rank type, by any of its names.

Nothing is rounded to bins or to fixed point: ranks are float64 (exact to 2^52 with halves), sums are rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from attrs import evolve, frozen
from numpy.typing import NDArray

from pbgeval.metrics.chance import CandidateGroups
from pbgeval.metrics.distribution import RankDistribution, TieMeans, comparable_weights
from pbgeval.metrics.metric import EXPECTED, Metric, Value
from pbgeval.metrics.names import MetricName, UnknownMetricError, nearest_names, parse
from pbgeval.metrics.registry import find_metric, rank_metrics
from pbgeval.ranking import RankType

ArrayLike = torch.Tensor | NDArray[np.generic] | Sequence[float]
Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

LARGEST_NUMBER = 1 << 52  # of candidates: half ranks up to it are exact as float64


@frozen(eq=False)
class RankMetrics:
    """The metrics of some queries: `metrics["mrr"]`, `metrics["pessimistic.hits@5"]`, `metrics["expected.hits@1"]`."""

    distributions: dict[str, RankDistribution]  # by rank type, `expected` among them

    def __getitem__(self, name: str) -> Value:
        """Return a metric; without a rank type in front, that of realistic ranks.

        Rank type `expected` has the metrics that are linear in the queries: mean rank, mean reciprocal rank, hits at
        any k, and what is adjusted from them.

        Raises:
            UnknownMetricError: no such metric (a KeyError); the message names the nearest.
        """
        metric, distribution = self._find(name)
        return metric.value(distribution)

    def expectation(self, name: str) -> Value:
        """Return a metric's expectation by chance; None where there is no closed form.

        Raises:
            UnknownMetricError: no such metric (a KeyError); the message names the nearest.
        """
        metric, distribution = self._find(name)
        return metric.expectation(distribution)

    def variance(self, name: str) -> Value:
        """Return a metric's variance by chance; None where there is no closed form.

        Raises:
            UnknownMetricError: no such metric (a KeyError); the message names the nearest.
        """
        metric, distribution = self._find(name)
        return metric.variance(distribution)

    def to_dict(self, cutoffs: Sequence[int] = (1, 3, 5, 10)) -> dict[str, Value]:
        """Return all metrics, `<rank type>.<metric>` -> value; None where it is undefined.

        Args:
            cutoffs: K of hits at K, adjusted hits and z scores of hits; positive.
        """
        for index, cutoff in enumerate(cutoffs):
            if cutoff < 1:
                raise ValueError(f"cutoffs[{index}]: expected a positive number, got {cutoff}")
        return {
            f"{rank_type}.{metric.name}": metric.value(distribution)
            for rank_type, distribution in self.distributions.items()
            for metric in rank_metrics(cutoffs)
            if metric.has_rank_type(rank_type)
        }

    def _find(self, name: str) -> tuple[Metric, RankDistribution]:
        parsed = parse(name, RankType.REALISTIC.value)
        metric = find_metric(parsed.metric) if parsed.side == "both" else None
        if metric is None or not metric.has_rank_type(parsed.rank_type):
            raise UnknownMetricError(self._unknown(name, parsed))
        return metric, self.distributions[parsed.rank_type]

    def _unknown(self, name: str, parsed: MetricName) -> str:
        if parsed.side != "both":
            return f"no metric '{name}': these ranks are not told apart by side"
        names = [metric.name for metric in rank_metrics((1, 10)) if metric.has_rank_type(parsed.rank_type)]
        return f"no metric '{name}' of {parsed.rank_type} ranks{nearest_names(parsed.metric, parsed, names)}"


def from_ranks(
    optimistic: ArrayLike, pessimistic: ArrayLike, num_candidates: ArrayLike, weights: ArrayLike | None = None
) -> RankMetrics:
    """Compute rank metrics from ranks of any origin.

    Args:
        optimistic: rank of each query if the true entity comes first among its ties; whole numbers from 1, (Q,).
        pessimistic: its rank if it comes last; at least the optimistic one, (Q,).
        num_candidates: of each query, the true entity included; at least the pessimistic rank, (Q,).
        weights: of each query, (Q,): finite, not negative, not all 0; only their ratios matter. Default: all alike.

    Returns:
        Metrics by name. Without queries all are None but `count`, which is 0.

    Raises:
        ValueError: not such numbers, or not equally many; the message says where.
    """
    num_candidates_Q = _whole_numbers("num_candidates", num_candidates)
    pessimistic_Q = _whole_numbers("pessimistic", pessimistic, len(num_candidates_Q))
    optimistic_Q = _whole_numbers("optimistic", optimistic, len(num_candidates_Q))
    _check_order("num_candidates", num_candidates_Q, "at least the pessimistic rank", pessimistic_Q)
    _check_order("pessimistic", pessimistic_Q, "at least the optimistic rank", optimistic_Q)
    weight_Q = None if weights is None else _weights(weights, len(num_candidates_Q))
    ranks = {
        RankType.OPTIMISTIC: optimistic_Q,
        RankType.REALISTIC: (optimistic_Q + pessimistic_Q) / 2.0,
        RankType.PESSIMISTIC: pessimistic_Q,
    }
    groups: CandidateGroups | None = None  # the same for all rank types
    distributions: dict[str, RankDistribution] = {}
    for rank_type, rank_Q in ranks.items():
        distribution = RankDistribution.of_queries(rank_Q, num_candidates_Q, weight_Q, groups=groups)
        distributions[rank_type.value], groups = distribution, distribution.groups
    shares_Q = np.ones(len(optimistic_Q)) if weight_Q is None else weight_Q
    means = TieMeans(optimistic_Q.astype(np.float64), pessimistic_Q.astype(np.float64), shares_Q)
    distributions[EXPECTED] = evolve(distributions[RankType.REALISTIC.value], means=means)
    return RankMetrics(distributions)


def _array(name: str, values: ArrayLike, length: int | None = None) -> NDArray[np.generic]:
    """Return numbers as a numpy array (Q,)."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        values = values.double() if values.is_floating_point() else values
        array: NDArray[np.generic] = values.numpy()
    else:
        array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"{name}: expected one number for each query, got an array of shape {array.shape}")
    if length is not None and len(array) != length:
        raise ValueError(f"{name}: expected {length} numbers, as many as num_candidates, got {len(array)}")
    if len(array) and array.dtype.kind not in "iuf":
        raise ValueError(f"{name}: expected numbers of at most 64 bits, got {array.dtype}")
    return array


def _whole_numbers(name: str, values: ArrayLike, length: int | None = None) -> Integers:
    """Return whole numbers from 1 as int64 (Q,)."""
    array = _array(name, values, length)
    in_range_Q = np.greater_equal(array, 1) & np.less_equal(array, LARGEST_NUMBER)  # false for NaN
    is_whole_Q = in_range_Q & (np.where(in_range_Q, array, 1) % 1 == 0)
    if not is_whole_Q.all():
        query = int(np.argmin(is_whole_Q))
        raise ValueError(f"{name}[{query}]: expected a whole number from 1 to 2^52, got {array[query]}")
    return array.astype(np.int64)


def _check_order(name: str, value_Q: Integers, expected: str, least_Q: Integers) -> None:
    if (value_Q < least_Q).any():
        query = int(np.argmax(value_Q < least_Q))
        raise ValueError(f"{name}[{query}]: expected {expected} ({least_Q[query]}), got {value_Q[query]}")


def _weights(weights: ArrayLike, length: int) -> Floats:
    """Return weights as float64 (Q,), on a scale where their sums stay in range."""
    weight_Q = np.asarray(_array("weights", weights, length), np.float64)
    is_valid_Q = np.isfinite(weight_Q) & (weight_Q >= 0.0)
    if not is_valid_Q.all():
        query = int(np.argmin(is_valid_Q))
        raise ValueError(f"weights[{query}]: expected a finite number, at least 0, got {weight_Q[query]}")
    if length and not weight_Q.any():
        raise ValueError(f"weights: expected some above 0, got {length} zeros")
    return comparable_weights(weight_Q)
