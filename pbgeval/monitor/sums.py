"""What visits to buckets found -> int64 sums: of a pass in all, and a few of each bucket. They add in any order.

Workers that each visit their own buckets add their tensors (`Team.sum_`), and all have the sums of the pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from attrs import evolve, frozen
from torch import Tensor

from pbgeval.metrics.estimates import Estimate
from pbgeval.metrics.rank import by_label, mean_loss, rank_metrics
from pbgeval.monitor.persistence import METRICS, ClusterSums
from pbgeval.monitor.records import PBG_NAMES, Figures, Values
from pbgeval.notation import Side
from pbgeval.stats.query_metrics import MEAN_RECIPROCAL_RANK, QUERY_AUC, QueryMetric
from pbgeval.stats.rank_stats import FRACTION_BITS, LIMB_BITS, RankStats, StatsLayout
from pbgeval.stats.ranks import RankType

BEFORE, AFTER, TRAINING = range(3)
_AUC_BITS = 30
_COLUMNS_OF_BUCKET = ("visits", "diverged", "queries", "before.low", "before.high", "after.low", "after.high")


@frozen(eq=False)
class PhaseSums:
    """What some edges' queries add up to at one time."""

    layout: StatsLayout
    sides: tuple[Side, ...]
    # int64: the statistics of each side, `ClusterSums` of the figures, the sampled AUC in fixed point x edges, edges
    tensor: Tensor

    @staticmethod
    def size(layout: StatsLayout, sides: Sequence[Side]) -> int:
        """Return how many numbers they are."""
        return len(sides) * len(layout.columns) + ClusterSums.SIZE + 2

    @classmethod
    def zero(cls, layout: StatsLayout, sides: Sequence[Side]) -> PhaseSums:
        return cls(layout, tuple(sides), torch.zeros(cls.size(layout, sides), dtype=torch.int64))

    @classmethod
    def from_stats(
        cls, stats: dict[Side, RankStats], errors: ClusterSums, auc: float | None, num_edges: int
    ) -> PhaseSums:
        image = [0, 0] if auc is None else [round(auc * 2.0**_AUC_BITS) * num_edges, num_edges]
        layout = next(iter(stats.values())).layout
        return cls(
            layout, tuple(stats), torch.cat([*(of.sums for of in stats.values()), errors.sums, torch.tensor(image)])
        )

    @cached_property
    def stats(self) -> dict[str, RankStats]:
        """The statistics of each side and of `both`, by label."""
        rows = self.tensor[: -ClusterSums.SIZE - 2].view(len(self.sides), -1)
        of_side = {side: RankStats(self.layout, row) for side, row in zip(self.sides, rows, strict=True)}
        return by_label(of_side, self.sides)

    @property
    def errors(self) -> ClusterSums:
        """The sums of the figures themselves."""
        return ClusterSums(self.tensor[-ClusterSums.SIZE - 2 : -2])

    @property
    def num_edges(self) -> int:
        return self.stats[self.sides[0].label].total("num_queries")

    def values(self, *, with_loss: bool) -> Values:
        """Return the flat metrics, as metrics.json names them."""
        metrics: dict[str, float | int | None] = {}
        for label, stats in self.stats.items():
            found = rank_metrics(stats.total, stats.layout.cutoffs)
            metrics |= {f"{label}.{name}": value for name, value in found.items()}
        if with_loss:
            metrics["both.loss"] = mean_loss(self.stats["both"], self.num_edges)
        return metrics

    def figures(self, *, with_loss: bool) -> Figures:
        """Return the metrics under PBG's names."""
        values = self.values(with_loss=with_loss)
        metrics = {"loss": values["both.loss"]} if with_loss else {}
        metrics |= {name: values[f"both.pessimistic.{of}"] for name, of in PBG_NAMES.items()}
        image, num_edges = self.tensor[-2:].tolist()
        metrics["auc"] = image / num_edges * 2.0**-_AUC_BITS if num_edges else None
        return Figures(self.num_edges, metrics)


@frozen(eq=False)
class PassSums:
    """All that a pass adds up to."""

    layout: StatsLayout
    sides: tuple[Side, ...]
    tensor: Tensor  # int64: three phases, three `ClusterSums`, then _COLUMNS_OF_BUCKET of each bucket

    @classmethod
    def zero(cls, layout: StatsLayout, sides: Sequence[Side], num_buckets: int) -> PassSums:
        size = 3 * PhaseSums.size(layout, sides) + 3 * ClusterSums.SIZE + num_buckets * len(_COLUMNS_OF_BUCKET)
        return cls(layout, tuple(sides), torch.zeros(size, dtype=torch.int64))

    @classmethod
    def from_visit(
        cls, phases: tuple[PhaseSums, PhaseSums, PhaseSums], clusters: Sequence[ClusterSums], headline: RankType
    ) -> PassSums:
        """Return what one visit adds; its table has the one row of its bucket.

        Args:
            phases: before, after, and of training edges after.
            clusters: what is gap, gained and lost.
            headline: the rank type of the bucket's row.
        """
        row = [1, 0, phases[AFTER].stats["both"].total("num_queries")]
        for phase in phases[:TRAINING]:
            name = f"{headline.value}.{MEAN_RECIPROCAL_RANK.name}"
            row += [phase.stats["both"].total(f"{name}.{part}") for part in ("low", "high")]
        parts = [*(phase.tensor for phase in phases), *(of.sums for of in clusters), torch.tensor(row)]
        return cls(phases[0].layout, phases[0].sides, torch.cat(parts))

    @classmethod
    def from_diverged(cls, layout: StatsLayout, sides: Sequence[Side]) -> PassSums:
        """Return what a visit adds whose model could not be ranked."""
        sums = cls.zero(layout, sides, 1)
        sums.buckets[0, :2] = 1
        return sums

    def __add__(self, other: PassSums) -> PassSums:
        return evolve(self, tensor=self.tensor + other.tensor)

    def at_row(self, row: int, num_buckets: int) -> PassSums:
        """Return the sums of a visit in the table of all buckets."""
        table = torch.zeros((num_buckets, len(_COLUMNS_OF_BUCKET)), dtype=torch.int64)
        table[row] = self.buckets[0]
        return evolve(self, tensor=torch.cat([self.tensor[: -len(_COLUMNS_OF_BUCKET)], table.flatten()]))

    @cached_property
    def phases(self) -> tuple[PhaseSums, ...]:
        """Before, after, and of training edges after."""
        parts = self.tensor[: 3 * PhaseSums.size(self.layout, self.sides)].view(3, -1)
        return tuple(PhaseSums(self.layout, self.sides, part) for part in parts)

    @property
    def gap(self) -> ClusterSums:
        """After - before, on the same edges and negatives."""
        return self._clusters(0)

    @property
    def gained(self) -> ClusterSums:
        """Gains of the mean reciprocal rank of edges that have been followed over some visits, smoothed."""
        return self._clusters(1)

    @property
    def lost(self) -> ClusterSums:
        """Their falls from one visit to the next, smoothed."""
        return self._clusters(2)

    def _clusters(self, number: int) -> ClusterSums:
        first = 3 * PhaseSums.size(self.layout, self.sides) + number * ClusterSums.SIZE
        return ClusterSums(self.tensor[first : first + ClusterSums.SIZE])

    @property
    def buckets(self) -> Tensor:
        """The table of buckets, int64 (buckets, columns)."""
        first = 3 * PhaseSums.size(self.layout, self.sides) + 3 * ClusterSums.SIZE
        return self.tensor[first:].view(-1, len(_COLUMNS_OF_BUCKET))

    @property
    def num_diverged(self) -> int:
        return int(self.buckets[:, 1].sum())

    def gaps(self, headline: RankType) -> dict[str, Estimate]:
        """Return after - before of METRICS with their errors."""
        return {_key(metric, headline): self.gap.estimate(metric) for metric in METRICS}

    def generalisation(self, headline: RankType) -> dict[str, Estimate]:
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
            found[_key(metric, headline)] = Estimate(of_training.value - of_held_out.value, error)
        return found

    def bucket_means(self) -> list[tuple[int, float, float] | None]:
        """Return of each bucket (queries, mean reciprocal rank before, after); None where nothing was measured."""
        found: list[tuple[int, float, float] | None] = []
        for _, diverged, queries, *limbs in self.buckets.tolist():
            if diverged or not queries:
                found.append(None)
                continue
            sums = (low + (high << LIMB_BITS) for low, high in (limbs[:2], limbs[2:]))
            before, after = (of / (queries << FRACTION_BITS) for of in sums)
            found.append((queries, before, after))
        return found


def _key(metric: QueryMetric, headline: RankType) -> str:
    return f"both.{metric.name}" if metric is QUERY_AUC else f"both.{headline.value}.{metric.name}"
