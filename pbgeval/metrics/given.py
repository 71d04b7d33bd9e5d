"""Given ranks -> every rank metric, of every rank type, by any of its names.

Nothing is rounded to bins or to fixed point: ranks are float64 (exact to 2^52 with halves), sums are rounded once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cache
from math import fsum

import numpy as np
import torch
from attrs import astuple, evolve, frozen
from numpy.typing import NDArray

from pbgeval.metrics.distribution import CandidateGroups, RankDistribution, comparable_weights
from pbgeval.metrics.names import UnknownMetricError, nearest_names, parse
from pbgeval.metrics.registry import EXPECTED, Metric, Value, find_metric, known_rank_metrics
from pbgeval.notation import Floats, Integers
from pbgeval.stats.query_metrics import find_query_metric
from pbgeval.stats.rank_types import RankType
from pbgeval.storage.text import plural

ArrayLike = torch.Tensor | NDArray[np.generic] | Sequence[float]

MAX_CANDIDATES = 1 << 52  # of candidates: half ranks up to it are exact as float64


_USUAL = ("mrr", "mean_rank", "hits@1", "hits@3", "hits@10")  # metrics that results print


@frozen(eq=False, repr=False)
class RankMetrics:
    """The metrics of some queries: `metrics["mrr"]`, `metrics["pessimistic.hits@5"]`, `metrics["expected.hits@1"]`."""

    distributions: dict[str, RankDistribution]  # by rank type, `expected` among them

    def __repr__(self) -> str:
        num_queries = self.distributions[RankType.REALISTIC.value].num_queries
        return _summary(self, {name: self[name] for name in _USUAL}, plural(num_queries, "query", "queries"))

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
            for metric in known_rank_metrics(cutoffs)
            if metric.has_rank_type(rank_type)
        }

    def _find(self, name: str) -> tuple[Metric, RankDistribution]:
        parsed = parse(name, RankType.REALISTIC.value)
        if parsed.side != "both":
            raise UnknownMetricError(f"no metric '{name}': these ranks are not told apart by side")
        metric = find_metric(parsed.metric)
        if metric is None or not metric.has_rank_type(parsed.rank_type):
            names = [known.name for known in known_rank_metrics((1, 10)) if known.has_rank_type(parsed.rank_type)]
            advice = nearest_names(parsed.metric, parsed, names)
            raise UnknownMetricError(f"no metric '{name}' of {parsed.rank_type} ranks{advice}")
        return metric, self.distributions[parsed.rank_type]


def _summary(metrics: object, values: Mapping[str, Value | Bounds], of: str) -> str:
    """Return what results print: their usual figures, those between bounds as `low to high`, and of what they are."""
    found = {name: value if isinstance(value, tuple) else (value,) for name, value in values.items()}
    told = (
        f"{name}={' to '.join('-' if end is None else f'{end:.4f}' for end in dict.fromkeys(ends))}"
        for name, ends in found.items()
    )
    return f"{type(metrics).__name__}({', '.join([*told, of])})"


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

    Examples:
        >>> import pbgeval
        >>> figures = pbgeval.from_ranks(optimistic=[1, 2], pessimistic=[1, 4], num_candidates=[10, 10])
        >>> figures["mean_rank"], figures["optimistic.hits@1"]
        (2.0, 0.5)
    """
    num_candidates_Q = _whole_numbers("num_candidates", num_candidates)
    pessimistic_Q = _whole_numbers("pessimistic", pessimistic, len(num_candidates_Q))
    optimistic_Q = _whole_numbers("optimistic", optimistic, len(num_candidates_Q))
    for name, value_Q, other, least_Q in (
        ("num_candidates", num_candidates_Q, "pessimistic", pessimistic_Q),
        ("pessimistic", pessimistic_Q, "optimistic", optimistic_Q),
    ):
        if (value_Q < least_Q).any():
            at = int(np.argmax(value_Q < least_Q))
            raise ValueError(f"{name}[{at}]: expected at least the {other} rank ({least_Q[at]}), got {value_Q[at]}")
    weight_Q = None if weights is None else _weights(weights, len(num_candidates_Q))
    best_Q, worst_Q = (of.astype(np.float64) for of in (optimistic_Q, pessimistic_Q))
    shares_Q = np.ones(len(best_Q)) if weight_Q is None else weight_Q
    groups = CandidateGroups.from_queries(num_candidates_Q, weight_Q)
    distributions = {
        rank_type.value: RankDistribution.from_queries(rank_Q, num_candidates_Q, groups, weight_Q)
        for rank_type, rank_Q in zip(RankType, (best_Q, (best_Q + worst_Q) / 2.0, worst_Q), strict=True)
    }

    @cache
    def over_ties(name: str) -> float | None:
        """Return the mean over all orders of the tied candidates, each as likely as any other.

        A query's rank is then uniform on optimistic..pessimistic. The mean rank is that of realistic ranks, the others
        are not: a true entity that ties with one other for the first place has hits at 1 of 1/2 and a reciprocal rank
        of 3/4.
        """
        metric = find_query_metric(name)
        if metric is None or metric.over_ties is None:
            return None
        value_Q = metric.over_ties(best_Q, worst_Q, (num_candidates_Q - 1).astype(np.float64))
        return fsum((shares_Q * value_Q).tolist()) / fsum(shares_Q.tolist())

    distributions[EXPECTED] = evolve(distributions[RankType.REALISTIC.value], means=over_ties)
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
    if length not in (None, array.size):
        raise ValueError(f"{name}: expected {length} numbers, as many as num_candidates, got {array.size}")
    if array.size and array.dtype.kind not in "iuf":
        raise ValueError(f"{name}: expected numbers of at most 64 bits, got {array.dtype}")
    return array


def _whole_numbers(name: str, values: ArrayLike, length: int | None = None) -> Integers:
    """Return whole numbers from 1 as int64 (Q,)."""
    array = _array(name, values, length)
    in_range_Q = np.greater_equal(array, 1) & np.less_equal(array, MAX_CANDIDATES)  # false for NaN
    is_whole_Q = in_range_Q & (np.where(in_range_Q, array, 1) % 1 == 0)
    if not is_whole_Q.all():
        query = int(np.argmin(is_whole_Q))
        raise ValueError(f"{name}[{query}]: expected a whole number from 1 to 2^52, got {array[query]}")
    return array.astype(np.int64)


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


# Ranks in truncated lists, bounds where the true entity is not listed -> metrics, or the interval that they lie in.
#
# Where the true entity is not listed, its rank lies between the list's length + 1 and the number of candidates. A
# metric that grows or falls with every rank lies between its values at both ends; others cannot be known, and are
# refused.

Bounds = tuple[float | int, float | int]  # low and high, both possible


class Absent(Enum):
    """How to count a true entity that is not in its list."""

    BOUNDS = "bounds"  # what is known: between the list's length + 1 and the number of candidates
    LAST = "last"  # the last of all candidates
    ZERO = "zero"  # reciprocal rank 0 and no hit, as in OGB-LSC and OpenBioLink's OBL2021; other metrics have no value


class UnknowableMetricError(UnknownMetricError):
    """The lists are too short to tell; says why."""


@frozen(eq=False)
class ListedRanks:
    """The ranks of queries in truncated lists, int64 (Q,)."""

    is_listed_Q: NDArray[np.bool_]
    optimistic_Q: Integers  # the rank in the list, ties won; the least possible where the true entity is not listed
    pessimistic_Q: Integers  # the rank in the list, ties lost; the greatest possible
    num_candidates_Q: Integers  # the true entity included

    @property
    def num_queries(self) -> int:
        return len(self.is_listed_Q)

    def select(self, chosen_Q: NDArray[np.bool_]) -> ListedRanks:
        """Return some of the queries."""
        return ListedRanks(*(column_Q[chosen_Q] for column_Q in astuple(self, recurse=False)))

    def metrics(self, absent: Absent | str = Absent.BOUNDS) -> ListedMetrics:
        """Return the metrics under a convention for what is not listed."""
        convention = Absent(absent)
        ranks = self.select(self.is_listed_Q) if convention is Absent.ZERO else self
        listed_Q, best_Q, worst_Q = ranks.is_listed_Q, ranks.optimistic_Q, ranks.pessimistic_Q
        first = last = from_ranks(np.where(listed_Q, best_Q, worst_Q), worst_Q, ranks.num_candidates_Q)
        if convention is Absent.BOUNDS:
            first = from_ranks(best_Q, np.where(listed_Q, worst_Q, best_Q), ranks.num_candidates_Q)
        return ListedMetrics(convention, first, last, int(self.is_listed_Q.sum()), self.num_queries)


@frozen(eq=False, repr=False)
class ListedMetrics:
    """Metrics by the names of `RankMetrics`: `metrics["hits@3"]`, `metrics.bounds("pessimistic.mrr")`."""

    absent: Absent
    _first: RankMetrics  # absent true entities stand as far in front as they can
    _last: RankMetrics  # as far behind
    _num_listed: int
    _num_queries: int

    def __repr__(self) -> str:
        known = {name: self.bounds(name) for name in _USUAL if self.refusal(name) is None}
        lists = f"{self._num_listed} of {plural(self._num_queries, 'list')} with the true entity"
        return _summary(self, known, f"{lists}, absent={self.absent.value}")

    def __getitem__(self, name: str) -> float | int | None:
        """Return a metric that is known; None without queries.

        Raises:
            UnknowableMetricError: it is not known; the message says why, and between what it lies.
            UnknownMetricError: no such metric.
        """
        bounds = self.bounds(name)
        if bounds is None:
            return None
        low, high = bounds
        if low != high:
            raise UnknowableMetricError(
                f"'{name}' lies between {low:.6g} and {high:.6g}: {self._num_queries - self._num_listed} of "
                f"{self._num_queries} lists do not hold the true entity; choose absent = 'last' or 'zero' for a "
                "convention"
            )
        return low

    def bounds(self, name: str) -> Bounds | None:
        """Return the least and the greatest possible value; None if undefined.

        Raises:
            UnknowableMetricError: nothing is known of it; the message says why.
            UnknownMetricError: no such metric.
        """
        first, last = self._first[name], self._last[name]
        if (reason := self.refusal(name)) is not None:
            raise UnknowableMetricError(f"'{name}' {reason}")
        if self.absent is Absent.ZERO and self._num_queries:
            first = last = first or 0.0
            if self._num_listed < self._num_queries:
                is_count = parse(name, RankType.REALISTIC.value).metric == "count"
                first = last = self._num_queries if is_count else first * self._num_listed / self._num_queries
        return None if first is None or last is None else (min(first, last), max(first, last))

    def refusal(self, name: str) -> str | None:
        """Return why nothing can be said of a metric; None if something can."""
        key = parse(name, RankType.REALISTIC.value).metric
        if self.absent is Absent.ZERO:
            is_known = key.startswith(("hits_at_", "mean_reciprocal_rank"))
            why = "has no value where a true entity that is not listed has no rank; choose absent = 'last' or 'bounds'"
        else:
            metric = find_metric(key)
            is_known = self.absent is Absent.LAST or (metric is not None and metric.direction is not None)
            why = "neither grows nor falls with every rank, so the lists tell nothing of it; choose absent = 'last'"
        return None if is_known or key == "count" or self._num_listed == self._num_queries else why

    def to_dict(self, cutoffs: tuple[int, ...] = (1, 3, 5, 10)) -> dict[str, Bounds | str | None]:
        """Return for each `<rank type>.<metric>` its bounds, or why it has none."""
        return {name: self.refusal(name) or self.bounds(name) for name in self._first.to_dict(cutoffs)}
