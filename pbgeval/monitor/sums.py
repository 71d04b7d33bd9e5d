"""What visits to buckets found -> int64 sums: of a pass in all, and a few of each bucket. They add in any order.

Workers that each visit their own buckets add their tensors (`Team.sum_`), and all have the sums of the pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from attrs import frozen
from torch import Tensor

from pbgeval.metrics.rank import by_label, mean_loss, rank_metrics
from pbgeval.monitor.measure import joined
from pbgeval.monitor.persistence import METRICS, ClusterSums
from pbgeval.monitor.records import Difference, Figures, Values
from pbgeval.notation import Side
from pbgeval.stats.query_metrics import QUERY_AUC, QueryMetric
from pbgeval.stats.rank_stats import FRACTION_BITS, LIMB_BITS, RankStats, StatsLayout
from pbgeval.stats.ranks import RankType

BEFORE, AFTER, TRAINING = range(3)
_AUC_BITS = 30
_COLUMNS_OF_BUCKET = ("visits", "diverged", "queries", "before.low", "before.high", "after.low", "after.high")


@frozen(eq=False)
class PhaseSums:
    """What some edges' queries add up to at one time."""

    stats: dict[Side, RankStats]
    errors: ClusterSums  # of the figures themselves
    auc: Tensor  # int64 (2): the sampled AUC in fixed point x edges, and these edges

    @classmethod
    def zero(cls, layout: StatsLayout, sides: Sequence[Side]) -> PhaseSums:
        stats = {side: RankStats.zero(layout) for side in sides}
        return cls(stats, ClusterSums.zero(), torch.zeros(2, dtype=torch.int64))

    @classmethod
    def of(cls, stats: dict[Side, RankStats], errors: ClusterSums, auc: float | None, num_edges: int) -> PhaseSums:
        image = [0, 0] if auc is None else [round(auc * 2.0**_AUC_BITS) * num_edges, num_edges]
        return cls(stats, errors, torch.tensor(image, dtype=torch.int64))

    def __add__(self, other: PhaseSums) -> PhaseSums:
        stats = {side: of + other.stats[side] for side, of in self.stats.items()}
        return PhaseSums(stats, self.errors + other.errors, self.auc + other.auc)

    @property
    def num_edges(self) -> int:
        return next(iter(self.stats.values())).total("num_queries")

    def to_tensor(self) -> Tensor:
        return torch.cat([*(of.sums for of in self.stats.values()), self.errors.sums, self.auc])

    @classmethod
    def from_tensor(cls, tensor: Tensor, layout: StatsLayout, sides: Sequence[Side]) -> PhaseSums:
        width = len(layout.columns)
        parts = torch.split(tensor, [*[width] * len(sides), ClusterSums.SIZE, 2])
        stats = {side: RankStats(layout, part) for side, part in zip(sides, parts, strict=False)}
        return cls(stats, ClusterSums(parts[-2]), parts[-1])

    @classmethod
    def size(cls, layout: StatsLayout, sides: Sequence[Side]) -> int:
        return len(sides) * len(layout.columns) + ClusterSums.SIZE + 2

    def values(self, *, with_loss: bool) -> Values:
        """Return the flat metrics, as metrics.json names them."""
        metrics: dict[str, float | int | None] = {}
        for label, stats in by_label(self.stats, tuple(self.stats)).items():
            found = rank_metrics(stats.total, stats.layout.cutoffs)
            metrics |= {f"{label}.{name}": value for name, value in found.items()}
        if with_loss:
            metrics["both.loss"] = mean_loss(joined(self.stats), self.num_edges)
        return metrics

    def figures(self, *, with_loss: bool) -> Figures:
        """Return the metrics under PBG's names."""
        values = self.values(with_loss=with_loss)
        metrics = {"loss": values["both.loss"]} if with_loss else {}
        names = {"pos_rank": "mean_rank", "mrr": "mean_reciprocal_rank"}
        names |= {f"r{cutoff}": f"hits_at_{cutoff}" for cutoff in (1, 10, 50)}
        metrics |= {name: values[f"both.pessimistic.{of}"] for name, of in names.items()}
        image, num_edges = self.auc.tolist()
        metrics["auc"] = image / num_edges * 2.0**-_AUC_BITS if num_edges else None
        return Figures(self.num_edges, metrics)


@frozen(eq=False)
class Teeth:
    """Gains and falls of the mean reciprocal rank of edges that have been followed over some visits, smoothed."""

    gained: ClusterSums
    lost: ClusterSums

    @classmethod
    def zero(cls) -> Teeth:
        return cls(ClusterSums.zero(), ClusterSums.zero())

    def __add__(self, other: Teeth) -> Teeth:
        return Teeth(self.gained + other.gained, self.lost + other.lost)


@frozen(eq=False)
class PassSums:
    """All that a pass adds up to."""

    phases: tuple[PhaseSums, PhaseSums, PhaseSums]  # before, after, and of training edges after
    gap: ClusterSums  # after - before, on the same edges and negatives
    teeth: Teeth  # where this worker has followed the edges
    buckets: Tensor  # int64 (buckets, columns)

    @classmethod
    def zero(cls, layout: StatsLayout, sides: Sequence[Side], num_buckets: int) -> PassSums:
        before, after, training = (PhaseSums.zero(layout, sides) for _ in range(3))
        table = torch.zeros((num_buckets, len(_COLUMNS_OF_BUCKET)), dtype=torch.int64)
        return cls((before, after, training), ClusterSums.zero(), Teeth.zero(), table)

    @classmethod
    def of_visit(
        cls, phases: tuple[PhaseSums, PhaseSums, PhaseSums], gap: ClusterSums, teeth: Teeth, headline: RankType
    ) -> PassSums:
        """Return what one visit adds; its table has the one row of its bucket."""
        reciprocal = f"{headline.value}.mean_reciprocal_rank"
        row = [1, 0, joined(phases[AFTER].stats).total("num_queries")]
        for phase in phases[:TRAINING]:
            stats = joined(phase.stats)
            row += [stats.total(f"{reciprocal}.{part}") for part in ("low", "high")]
        return cls(phases, gap, teeth, torch.tensor([row], dtype=torch.int64))

    @classmethod
    def of_diverged(cls, layout: StatsLayout, sides: Sequence[Side]) -> PassSums:
        """Return what a visit adds whose model could not be ranked."""
        sums = cls.zero(layout, sides, 1)
        sums.buckets[0, :2] = 1
        return sums

    def __add__(self, other: PassSums) -> PassSums:
        before, after, training = (mine + its for mine, its in zip(self.phases, other.phases, strict=True))
        gap, teeth = self.gap + other.gap, self.teeth + other.teeth
        return PassSums((before, after, training), gap, teeth, self.buckets + other.buckets)

    def at_row(self, row: int, num_buckets: int) -> PassSums:
        """Return the sums of a visit in the table of all buckets."""
        table = torch.zeros((num_buckets, len(_COLUMNS_OF_BUCKET)), dtype=torch.int64)
        table[row] = self.buckets[0]
        return PassSums(self.phases, self.gap, self.teeth, table)

    def to_tensor(self) -> Tensor:
        """Return everything as one int64 tensor (n,), which adds."""
        phases = [phase.to_tensor() for phase in self.phases]
        return torch.cat([*phases, self.gap.sums, self.teeth.gained.sums, self.teeth.lost.sums, self.buckets.flatten()])

    @classmethod
    def from_tensor(cls, tensor: Tensor, layout: StatsLayout, sides: Sequence[Side]) -> PassSums:
        size = PhaseSums.size(layout, sides)
        table = tensor.numel() - 3 * size - 3 * ClusterSums.SIZE
        parts = torch.split(tensor, [*[size] * 3, *[ClusterSums.SIZE] * 3, table])
        before, after, training = (PhaseSums.from_tensor(part, layout, sides) for part in parts[:3])
        buckets = parts[6].view(-1, len(_COLUMNS_OF_BUCKET))
        gap, gained, lost = map(ClusterSums, parts[3:6])
        return cls((before, after, training), gap, Teeth(gained, lost), buckets)

    @property
    def num_diverged(self) -> int:
        return int(self.buckets[:, 1].sum())

    def gaps(self, headline: RankType) -> dict[str, Difference]:
        """Return after - before of METRICS with their errors."""
        found = {}
        for metric in METRICS:
            estimate = self.gap.estimate(metric)
            found[_key(metric, headline)] = Difference(estimate.value, estimate.standard_error)
        return found

    def generalisation(self, headline: RankType) -> dict[str, Difference]:
        """Return training - held-out edges of METRICS, both after, with the errors of two independent samples."""
        held_out, training = self.phases[AFTER].errors, self.phases[TRAINING].errors
        found = {}
        for metric in METRICS:
            of_held_out, of_training = held_out.estimate(metric), training.estimate(metric)
            if of_held_out.value is None or of_training.value is None:
                continue
            error = None
            if of_held_out.standard_error is not None and of_training.standard_error is not None:
                error = (of_held_out.standard_error**2 + of_training.standard_error**2) ** 0.5
            found[_key(metric, headline)] = Difference(of_training.value - of_held_out.value, error)
        return found

    def bucket_means(self) -> list[tuple[int, float, float] | None]:
        """Return of each bucket (queries, mean reciprocal rank before, after); None where nothing was measured."""
        found: list[tuple[int, float, float] | None] = []
        for _, diverged, queries, *limbs in self.buckets.tolist():
            if diverged or not queries:
                found.append(None)
                continue
            before, after = (
                (low + (high << LIMB_BITS)) / (queries << FRACTION_BITS) for low, high in (limbs[:2], limbs[2:])
            )
            found.append((queries, before, after))
        return found


def _key(metric: QueryMetric, headline: RankType) -> str:
    return f"both.{metric.name}" if metric is QUERY_AUC else f"both.{headline.value}.{metric.name}"
