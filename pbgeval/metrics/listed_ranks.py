"""Ranks in truncated lists, bounds where the true entity is not listed -> metrics, or the interval that they lie in.

Where the true entity is not listed, its rank lies between the list's length + 1 and the number of candidates. A metric
that grows or falls with every rank lies between its values at both ends; others cannot be known, and are refused.
"""

from __future__ import annotations

from enum import Enum

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from pbgeval.metrics.given_ranks import RankMetrics, from_ranks
from pbgeval.metrics.metric import EXPECTED
from pbgeval.metrics.names import UnknownMetricError, parse
from pbgeval.metrics.registry import find_metric, rank_metrics
from pbgeval.ranking import RankType

Integers = NDArray[np.int64]
Bounds = tuple[float | int, float | int]  # low and high, both possible

_HITS, _RECIPROCAL = "hits_at_", "mean_reciprocal_rank"


class Absent(Enum):
    """What a true entity that its list does not hold counts as."""

    BOUNDS = "bounds"  # what is known: between the list's length + 1 and the number of candidates
    LAST = "last"  # the last of all candidates
    ZERO = "zero"  # reciprocal rank 0 and no hit, as in OGB-LSC and OpenBioLink's OBL2021; other metrics have no value


class UnknowableMetricError(UnknownMetricError):
    """The lists are too short to tell; says why."""


@frozen(eq=False)
class ListedRanks:
    """What truncated lists say of queries, int64 (Q,)."""

    is_listed_Q: NDArray[np.bool_]
    optimistic_Q: Integers  # the rank in the list, ties won; the least possible where the true entity is not listed
    pessimistic_Q: Integers  # the rank in the list, ties lost; the greatest possible
    num_candidates_Q: Integers  # the true entity included

    @property
    def num_queries(self) -> int:
        return len(self.is_listed_Q)

    def of(self, chosen_Q: NDArray[np.bool_]) -> ListedRanks:
        """Return some of the queries."""
        return ListedRanks(
            self.is_listed_Q[chosen_Q],
            self.optimistic_Q[chosen_Q],
            self.pessimistic_Q[chosen_Q],
            self.num_candidates_Q[chosen_Q],
        )

    def metrics(self, absent: Absent | str = Absent.BOUNDS) -> ListedMetrics:
        """Return the metrics under a convention for what is not listed."""
        convention, listed_Q = Absent(absent), self.is_listed_Q
        if convention is Absent.ZERO:
            listed = self.of(listed_Q)
            found = from_ranks(listed.optimistic_Q, listed.pessimistic_Q, listed.num_candidates_Q)
            return ListedMetrics(convention, found, found, listed.num_queries, self.num_queries)
        last = from_ranks(
            np.where(listed_Q, self.optimistic_Q, self.pessimistic_Q), self.pessimistic_Q, self.num_candidates_Q
        )
        first = last
        if convention is Absent.BOUNDS:
            worst_Q = np.where(listed_Q, self.pessimistic_Q, self.optimistic_Q)
            first = from_ranks(self.optimistic_Q, worst_Q, self.num_candidates_Q)
        return ListedMetrics(convention, first, last, int(listed_Q.sum()), self.num_queries)


@frozen(eq=False)
class ListedMetrics:
    """Metrics by the names of `RankMetrics`: `metrics["hits@3"]`, `metrics.bounds("pessimistic.mrr")`."""

    absent: Absent
    _first: RankMetrics  # absent true entities stand as far in front as they can
    _last: RankMetrics  # as far behind
    _num_listed: int
    _num_queries: int

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
            absent = self._num_queries - self._num_listed
            raise UnknowableMetricError(
                f"'{name}' lies between {low:.6g} and {high:.6g}: {absent} of {self._num_queries} lists do not hold "
                "the true entity; choose absent = 'last' or 'zero' for a convention"
            )
        return low

    def bounds(self, name: str) -> Bounds | None:
        """Return the least and the greatest value that a metric can have, equal where it is known; None if undefined.

        Raises:
            UnknowableMetricError: nothing is known of it; the message says why.
            UnknownMetricError: no such metric.
        """
        first, last = self._first[name], self._last[name]
        if self.absent is Absent.ZERO:
            return self._with_zeros(name, first)
        if first is None or last is None:
            return None
        reason = self.refusal(name)
        if reason is not None:
            raise UnknowableMetricError(f"'{name}' {reason}")
        return min(first, last), max(first, last)

    def refusal(self, name: str) -> str | None:
        """Return why nothing can be said of a metric; None if something can."""
        key = parse(name, RankType.REALISTIC.value).metric
        if self._num_listed == self._num_queries:
            return None
        if self.absent is Absent.ZERO:
            if key == "count" or key.startswith((_HITS, _RECIPROCAL)):
                return None
            return "has no value where a true entity that is not listed has no rank; choose absent = 'last' or 'bounds'"
        metric = find_metric(key)
        if self.absent is Absent.LAST or key == "count" or (metric is not None and metric.direction is not None):
            return None
        return "neither grows nor falls with every rank, so the lists tell nothing of it; choose absent = 'last'"

    def _with_zeros(self, name: str, of_listed: float | int | None) -> Bounds | None:
        reason = self.refusal(name)
        if reason is not None:
            raise UnknowableMetricError(f"'{name}' {reason}")
        if not self._num_queries:
            return None if of_listed is None else (of_listed, of_listed)
        if parse(name, RankType.REALISTIC.value).metric == "count":
            return self._num_queries, self._num_queries
        value = of_listed or 0.0
        if self._num_listed < self._num_queries:
            value = value * self._num_listed / self._num_queries
        return value, value

    def to_dict(self, cutoffs: tuple[int, ...] = (1, 3, 5, 10)) -> dict[str, Bounds | str | None]:
        """Return `<rank type>.<metric>` -> its bounds, why it is refused, or None where it is undefined."""
        found: dict[str, Bounds | str | None] = {}
        for rank_type in (*(of.value for of in RankType), EXPECTED):
            for metric in rank_metrics(cutoffs):
                if metric.has_rank_type(rank_type):
                    name = f"{rank_type}.{metric.name}"
                    found[name] = self.refusal(name) or self.bounds(name)
        return found
