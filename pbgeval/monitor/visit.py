"""One visit to a bucket: its held-out edges are measured when the training of the bucket begins and when it ends."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from types import TracebackType

import numpy as np
from attrs import define, field, frozen

from pbgeval.errors import UnrankableError
from pbgeval.monitor.measure import (
    BucketEdges,
    Measurement,
    MonitorProtocol,
    ScoredModel,
    chunks_of_edges,
    measure,
    steady_kernels,
)
from pbgeval.monitor.persistence import MIN_TEETH, ClusterSums, QueryValues
from pbgeval.monitor.records import Figures, PassKey, VisitDetails, VisitRecord
from pbgeval.monitor.schema import Model
from pbgeval.monitor.sums import PassSums, PhaseSums
from pbgeval.notation import Bucket, Side


def visit_sums(
    protocol: MonitorProtocol,
    measured: Sequence[Measurement | None],
    edges: BucketEdges,
    sample: BucketEdges,
    so_far: Followed | None,
    epoch: int,
) -> tuple[PassSums, Followed]:
    """Return what a visit adds to its pass, and what the next visit to the same edges is compared with.

    Args:
        protocol: by which was measured.
        measured: held-out edges before and after, training edges after (None: not measured).
        edges: the held-out edges.
        sample: the training edges.
        so_far: what this worker knows from visits before; None: nothing.
        epoch: of the visit.
    """
    _, chunk_E = chunks_of_edges(protocol, edges)
    phases, values = [], []
    for measurement, of in zip(measured, (edges, edges, sample), strict=True):
        if measurement is None:
            phases.append(PhaseSums.zero(protocol.layout, protocol.sides))
            continue
        order, chunk_of_edge = chunks_of_edges(protocol, of)
        counts = list(measurement.counts.values())
        values.append(QueryValues.from_counts(counts, protocol.headline).select_edges(order))
        errors = ClusterSums.from_values(values[-1], chunk_of_edge)
        phases.append(PhaseSums.from_stats(measurement.stats, errors, measurement.auc, of.num_edges))
    before, after = values[:2]
    followed = Followed.then(so_far, epoch, before.reciprocal_ranks, after.reciprocal_ranks)
    clusters = [ClusterSums.from_values(after - before, chunk_E), ClusterSums.zero(), ClusterSums.zero()]
    if followed.num_teeth >= MIN_TEETH:
        for number, smoothed in ((1, followed.gained_E), (2, followed.lost_E)):
            clusters[number] = ClusterSums.from_values(after.with_reciprocal_ranks(smoothed), chunk_E)
    return PassSums.from_visit((phases[0], phases[1], phases[2]), clusters, protocol.headline), followed


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
    protocol: MonitorProtocol
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
            self.sums, self.followed = visit_sums(
                self.protocol, measured, self.held_out, self.sample, self.followed, self.key.epoch
            )
            self.seconds += time.perf_counter() - begun
        self.finished(self)

    def _measure(self, edges: BucketEdges) -> Measurement | None:
        if not edges.num_edges or self.reason is not None:
            return None
        begun = time.perf_counter()
        try:
            schema, model = self.protocol.schema, self.model
            first = schema.partition_of(schema.relations[0].lhs, Side.LHS, self.bucket)
            device = model.embeddings(schema.relations[0].lhs, first).device
            # The trainer's generators and settings of torch stay as they are.
            with steady_kernels(device, of_autocast=not isinstance(model, ScoredModel)):
                return measure(self.protocol, edges, self.key.edge_path, self.bucket, model)
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
            with_loss = self.protocol.loss is not None
            before, after, training = self.sums.phases
            figures = [phase.figures(with_loss=with_loss) for phase in (before, after)]
            details = VisitDetails(
                worker=worker,
                before=before.values(with_loss=with_loss),
                after=after.values(with_loss=with_loss),
                training=training.values(with_loss=with_loss) if training.num_edges else None,
                gap=self.sums.gaps(self.protocol.headline),
                generalisation=self.sums.generalisation(self.protocol.headline),
                cluster=self.sums.gap.unit,
                num_clusters=self.sums.gap.num_clusters,
                seconds=round(self.seconds, 6),
            )
        elif self.reason is not None:
            details = VisitDetails(True, self.reason, worker, seconds=round(self.seconds, 6))
        return VisitRecord(self.key, self.bucket, index, self.stats, figures[0], figures[1], details)
