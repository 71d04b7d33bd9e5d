"""Held-out figures of the visits to each bucket -> pass after pass whether what training gains is lost again.

A gap alone says little: while a model learns, every visit to a bucket improves it. Overfitting to buckets is a
sawtooth: the held-out edges of a bucket gain while it is trained and lose while others are, or, where a bucket is
learned by heart, lose while it is trained and recover while others are. Decision 0017 says why this is the test, and
what its false-alarm rate means.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from attrs import define, field, frozen

from pbgeval.metrics.student import student_quantile
from pbgeval.monitor.records import TOLERANCE, Estimate, Verdict
from pbgeval.stats.float_sums import float_sum
from pbgeval.stats.query_metrics import MEAN_RECIPROCAL_RANK, QueryMetric

MIN_BUCKETS = 4  # for an error that comes from the differences between them
MIN_TEETH = 2  # of every bucket, before anything is said


class Pooled(Protocol):
    """Values of all held-out queries: `persistence.ClusterSums`."""

    @property
    def num_clusters(self) -> int: ...

    def estimate(self, metric: QueryMetric) -> Estimate: ...


@frozen
class BucketVisit:
    """The held-out edges of a bucket at one visit."""

    num_queries: int
    before: float  # mean reciprocal rank
    after: float
    edges: int | None = None  # what tells them from others, as `VisitRecord.edges`


@frozen
class Judgement:
    """The verdict of a pass, and what it rests on."""

    verdict: Verdict
    gained: float | None = None  # mean gap of the last passes, recent ones more
    lost: float | None = None  # mean fall from one visit to the next, in the same form
    level: float | None = None  # at which this pass was tested


@frozen
class _Teeth:
    """The visits to one bucket so far. A tooth is a fall since the last visit and the gain that follows it."""

    visit: BucketVisit  # the last
    num_teeth: int = 0
    gained: float = 0.0  # smoothed over the teeth
    lost: float = 0.0
    gap_before: float = 0.0  # of the visit before the last

    def with_visit(self, visit: BucketVisit) -> _Teeth:
        """Add a visit."""
        gained, lost = visit.after - visit.before, self.visit.after - visit.before
        if self.num_teeth:  # each tooth counts half as much as the next one
            gained, lost = (self.gained + gained) / 2, (self.lost + lost) / 2
        return _Teeth(visit, self.num_teeth + 1, gained, lost, self.gap)

    @property
    def gap(self) -> float:
        """What the last visit gained."""
        return self.visit.after - self.visit.before


@define
class GapTest:
    """Judges one pass after the other; all its false alarms together have at most the probability `alarm_rate`."""

    alarm_rate: float = 0.05
    tolerance: float = TOLERANCE  # share of the metric below which a gap is no overfitting
    num_tests: int = field(default=0, init=False)
    _teeth: dict[Hashable, _Teeth] = field(factory=dict, init=False)

    def add(self, visits: Mapping[Any, BucketVisit]) -> None:
        """Add the visits of a pass, by what comes again: bucket, chunk and edge path. Other edges begin anew."""
        for key, visit in visits.items():
            teeth = self._teeth.get(key)
            is_same = teeth is not None and teeth.visit.edges == visit.edges
            self._teeth[key] = teeth.with_visit(visit) if teeth is not None and is_same else _Teeth(visit)

    def judge(
        self,
        visits: Mapping[Any, BucketVisit],
        pooled_gained: Pooled | None = None,
        pooled_lost: Pooled | None = None,
    ) -> Judgement:
        """Add the visits of a pass and judge it.

        Args:
            visits: as in `add`.
            pooled_gained: the smoothed gains of all held-out queries, edge by edge, for the error of their sample.
                None, where edges are not followed from visit to visit: the error comes from differences of buckets.
            pooled_lost: the smoothed falls, in the same form.
        """
        self.add(visits)
        teeth = [self._teeth[key] for key in visits]
        if len(teeth) < 2 or min(of.num_teeth for of in teeth) < MIN_TEETH:
            return Judgement("needs_3_visits")
        self.num_tests += 1
        level = self.alarm_rate / (self.num_tests * (self.num_tests + 1))  # over all passes: alarm_rate
        shares_B = np.array([of.visit.num_queries for of in teeth], np.float64)
        shares_B /= shares_B.sum()
        gained = Change.from_buckets(shares_B, [of.gained for of in teeth], pooled_gained)
        lost = Change.from_buckets(shares_B, [of.lost for of in teeth], pooled_lost)
        margin = self.tolerance * float_sum(shares_B * [of.visit.after for of in teeth])
        before_B, now_B = (np.array(gaps) for gaps in zip(*((of.gap_before, of.gap) for of in teeth), strict=True))
        sign_before, sign_now = (math.copysign(1.0, float_sum(shares_B * gap_B)) for gap_B in (before_B, now_B))
        shrunk_B = sign_before * before_B - sign_now * now_B  # a gap that has turned round may have grown
        verdict: Verdict = "undecided"
        if all(gained.exceeds(-margin, self.alarm_rate, sign) for sign in (1.0, -1.0)):
            verdict = "no_bucket_overfitting"
        elif Change.from_buckets(shares_B, shrunk_B).exceeds(0.0, self.alarm_rate):
            verdict = "shrinking"
        # Both have to be significant, so the level is that of either; half of it for each direction.
        elif any(all(of.exceeds(margin, level / 2, sign) for of in (gained, lost)) for sign in (1.0, -1.0)):
            verdict = "bucket_overfitting"
        return Judgement(verdict, gained.value, lost.value, level)


@frozen
class Change:
    """A mean change, and what tells whether it is more than noise."""

    value: float
    error: float | None
    degrees_of_freedom: int

    @classmethod
    def from_buckets(
        cls, shares_B: np.ndarray, values: Sequence[float] | np.ndarray, pooled: Pooled | None = None
    ) -> Change:
        """Average over buckets; the error is that of the held-out sample, where it is known, else between buckets."""
        values_B, num_buckets = np.array(values), len(values)
        mean = float_sum(shares_B * values_B)
        error = None if pooled is None else pooled.estimate(MEAN_RECIPROCAL_RANK).standard_error
        if pooled is not None and error is not None:
            return cls(mean, error, pooled.num_clusters - 1)
        if num_buckets < MIN_BUCKETS:
            return cls(mean, None, 1)
        variance = float_sum((shares_B * (values_B - mean)) ** 2) * num_buckets / (num_buckets - 1)
        # Few large buckets among many small ones are few (Kish's effective number).
        freedom = max(1, math.floor(1.0 / float_sum(shares_B**2) + 1e-9) - 1)
        return cls(mean, math.sqrt(variance), freedom)

    def exceeds(self, margin: float, level: float, sign: float = 1.0) -> bool:
        """Tell whether the mean times a sign is above a margin, one-sided; never where its error is not known."""
        if self.error is None:
            return False
        return sign * self.value - student_quantile(1.0 - 2.0 * level, self.degrees_of_freedom) * self.error > margin
