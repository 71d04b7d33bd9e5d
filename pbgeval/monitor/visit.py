"""One visit to a bucket: its held-out edges are measured when the training of the bucket begins and when it ends."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from types import TracebackType

import numpy as np
from attrs import define, field, frozen

from pbgeval.errors import UnrankableError
from pbgeval.monitor.measure import (
    BucketEdges,
    Measurement,
    Protocol,
    ScoredModel,
    chunks_of_edges,
    measure,
    steady_kernels,
)
from pbgeval.monitor.persistence import FEWEST_TEETH, ClusterSums, QueryValues
from pbgeval.monitor.records import Figures, PassKey, VisitDetails, VisitRecord
from pbgeval.monitor.schema import Model
from pbgeval.monitor.sums import PassSums, PhaseSums, Teeth
from pbgeval.notation import Bucket, Side
from pbgeval.stats.ranks import RankType


@frozen(eq=False)
class Gauge:
    """Measures held-out edges of a bucket, whatever the model."""

    protocol: Protocol
    headline: RankType

    def measure(self, edges: BucketEdges, key: PassKey, bucket: Bucket, model: Model) -> Measurement:
        """Rank edges; the trainer's generators and settings of torch stay as they are."""
        relation = self.protocol.schema.relations[0]
        first = self.protocol.schema.partition_of(relation.lhs, Side.LHS, bucket)
        device = model.embeddings(relation.lhs, first).device
        with steady_kernels(device, of_autocast=not isinstance(model, ScoredModel)):
            return measure(self.protocol, edges, key.edge_path, bucket, model)

    def sums(
        self,
        epoch: int,
        measured: tuple[Measurement, Measurement, Measurement | None],
        edges: BucketEdges,
        sample: BucketEdges,
        followed: Followed | None,
    ) -> tuple[PassSums, Followed]:
        """Return what a visit adds to its pass, and what the next visit to the same edges is compared with.

        Args:
            epoch: of the visit.
            measured: held-out edges before and after, training edges after.
            edges: the held-out edges.
            sample: the training edges.
            followed: what this worker knows from visits before; None: nothing.
        """
        before, after, training = measured
        order, chunk_E = chunks_of_edges(self.protocol, edges)
        of_before, of_after = self._values(before, order), self._values(after, order)
        of_training = PhaseSums.zero(self.protocol.layout, self.protocol.sides)
        if training is not None:
            order_of_sample, chunk_of_sample = chunks_of_edges(self.protocol, sample)
            values = self._values(training, order_of_sample)
            of_training = _phase(training, values, chunk_of_sample, sample.num_edges)
        phases = (
            _phase(before, of_before, chunk_E, edges.num_edges),
            _phase(after, of_after, chunk_E, edges.num_edges),
            of_training,
        )
        gap = ClusterSums.of_values(of_after - of_before, chunk_E)
        followed = Followed.then(followed, epoch, of_before.reciprocal_ranks, of_after.reciprocal_ranks)
        teeth = Teeth.zero()
        if followed.num_teeth >= FEWEST_TEETH:
            gained, lost = (of_after.with_reciprocal_ranks(of) for of in (followed.gained_E, followed.lost_E))
            teeth = Teeth(ClusterSums.of_values(gained, chunk_E), ClusterSums.of_values(lost, chunk_E))
        return PassSums.of_visit(phases, gap, teeth, self.headline), followed

    def _values(self, measurement: Measurement, order: np.ndarray) -> QueryValues:
        return QueryValues.of_counts(list(measurement.counts.values()), self.headline).of_edges(order)


def _phase(measurement: Measurement, values: QueryValues, chunk_E: np.ndarray, num_edges: int) -> PhaseSums:
    errors = ClusterSums.of_values(values, chunk_E)
    return PhaseSums.of(measurement.stats, errors, measurement.auc, num_edges)


@frozen(eq=False)
class Followed:
    """Reciprocal ranks of a bucket's held-out edges over the visits so far, 12 bytes an edge.

    In the fixed point of `clusters`, both sides added up; smoothed as in `persistence`, rounded down.
    """

    after_E: np.ndarray  # int32, at the last visit
    gained_E: np.ndarray
    lost_E: np.ndarray
    num_teeth: int
    epoch: int  # of the last visit

    @classmethod
    def then(cls, so_far: Followed | None, epoch: int, before_E: np.ndarray, after_E: np.ndarray) -> Followed:
        """Add a visit."""
        if so_far is None:
            none = np.empty(0, np.int32)
            return cls(after_E.astype(np.int32), none, none, 0, epoch)
        gained_E, lost_E = after_E - before_E, so_far.after_E - before_E
        if so_far.num_teeth:
            gained_E, lost_E = (so_far.gained_E + gained_E) >> 1, (so_far.lost_E + lost_E) >> 1
        after_E, gained_E, lost_E = (of.astype(np.int32) for of in (after_E, gained_E, lost_E))
        return cls(after_E, gained_E, lost_E, so_far.num_teeth + 1, epoch)


@define(eq=False)
class Visit:
    """The context in which a bucket is trained; `Monitor.watch` makes it.

    What the training raises passes through as it is, and nothing is recorded then.
    """

    key: PassKey
    bucket: Bucket
    held_out: BucketEdges
    sample: BucketEdges  # training edges for comparison
    model: Model
    gauge: Gauge
    finished: Callable[[Visit], None]  # is told of a visit that has come to its end
    followed: Followed | None = None  # the same edges over the visits before
    stats: Figures | None = field(default=None, init=False)
    sums: PassSums | None = field(default=None, init=False)  # None: not measured, or diverged
    reason: str | None = field(default=None, init=False)  # why the model could not be ranked
    seconds: float = field(default=0.0, init=False)  # that measuring took
    _before: Measurement | None = field(default=None, init=False)

    def report_training(self, count: int, **metrics: float) -> None:
        """Say what the training of this bucket reports of itself: edges, mean loss, ...; recorded as `stats`."""
        # JSON has no NaN: a figure that is none is null.
        self.stats = Figures(
            int(count), {name: float(of) if math.isfinite(of) else None for name, of in metrics.items()}
        )

    def __enter__(self) -> Visit:
        self._before = self._measure(self.held_out)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is not None:
            return
        after = self._measure(self.held_out)
        training = self._measure(self.sample)
        if self._before is not None and after is not None:
            begun = time.perf_counter()
            measured = (self._before, after, training)
            self.sums, self.followed = self.gauge.sums(
                self.key.epoch, measured, self.held_out, self.sample, self.followed
            )
            self.seconds += time.perf_counter() - begun
        self.finished(self)

    def _measure(self, edges: BucketEdges) -> Measurement | None:
        if not edges.num_edges or self.reason is not None:
            return None
        begun = time.perf_counter()
        try:
            return self.gauge.measure(edges, self.key, self.bucket, self.model)
        except UnrankableError as error:
            self.reason = str(error)
            return None
        finally:
            self.seconds += time.perf_counter() - begun

    def record(self, index: int, worker: int) -> VisitRecord:
        """Return what is written of the visit."""
        figures: list[Figures | None] = [None, None]
        details = VisitDetails(worker=worker, seconds=round(self.seconds, 6))
        if self.sums is not None:
            with_loss = self.gauge.protocol.loss is not None
            before, after, training = self.sums.phases
            figures = [phase.figures(with_loss=with_loss) for phase in (before, after)]
            details = VisitDetails(
                worker=worker,
                before=before.values(with_loss=with_loss),
                after=after.values(with_loss=with_loss),
                training=training.values(with_loss=with_loss) if training.num_edges else None,
                gap=self.sums.gaps(self.gauge.headline),
                generalisation=self.sums.generalisation(self.gauge.headline),
                cluster=self.sums.gap.unit,
                num_clusters=self.sums.gap.num_clusters,
                seconds=round(self.seconds, 6),
            )
        elif self.reason is not None:
            details = VisitDetails(True, self.reason, worker, seconds=round(self.seconds, 6))
        return VisitRecord(self.key, self.bucket, index, self.stats, figures[0], figures[1], details)
