"""Held-out figures of each bucket -> sums that add: of a pass in all, and a few of each bucket."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from pbgeval.monitor.gap_test import BucketVisit
from pbgeval.monitor.records import PBG_NAMES, Estimate, PbgFigures, Values
from pbgeval.notation import Side
from pbgeval.stats.query_metrics import MEAN_RANK, MEAN_RECIPROCAL_RANK, QUERY_AUC, QueryMetric, hits_at
from pbgeval.stats.rank_stats import FRACTION_BITS, LIMB_BITS, RankStats, StatsLayout, by_label, mean_loss, rank_metrics
from pbgeval.stats.rank_types import RankType
from pbgeval.stats.ranks import RankCounts

# Values per query, kept together by cluster -> int64 sums that add, and from them a mean with its standard error.
#
# A cluster is what is drawn as a whole: an edge with its two queries, or a chunk, whose edges share their negatives.
# The mean is that of all queries, sum(values) / sum(queries), and its error that of a ratio of cluster sums (Cochran,
# Sampling Techniques, 1977, 6.4). Squares are rounded once, per cluster, to whole units, so that sums are exact and
# their order does not matter (decision 0001).

METRICS = (MEAN_RECIPROCAL_RANK, MEAN_RANK, hits_at(10), QUERY_AUC)
VALUE_BITS = 28  # of 1/rank and of shares: those of an edge's two queries fit 32 bits
MIN_CHUNKS = 10  # below, edges are taken for independent: the error of so few sums is no error

_LIMB = 40
_COLUMNS = 7  # queries, squares of queries, values, low and high (values x queries), low and high (squares of values)


@frozen(eq=False)
class QueryValues:
    """The values of METRICS of both queries of each edge, added up."""

    values_ED: np.ndarray  # int64, the numerators of each metric
    queries_ED: np.ndarray  # int64: how many queries of the edge have the metric

    @classmethod
    def from_counts(cls, counts: list[RankCounts], rank_type: RankType, order: np.ndarray) -> QueryValues:
        """Make them from the counts of each side, each in the order of the edges; `order` is the one wanted."""
        values = [[metric.numerators(of, rank_type, VALUE_BITS) for metric in METRICS] for of in counts]
        queries = [[metric.counted(of.num_competitors_Q) for metric in METRICS] for of in counts]
        return cls(*(np.sum([torch.stack(of, 1).numpy()[order] for of in sides], 0) for sides in (values, queries)))

    def with_reciprocal_ranks(self, values_E: np.ndarray) -> QueryValues:
        """Return other values of the first metric of the same queries, and nothing of the other metrics."""
        is_first_D = np.arange(len(METRICS)) == 0
        return QueryValues(values_E.astype(np.int64)[:, None] * is_first_D, self.queries_ED * is_first_D)

    def __sub__(self, other: QueryValues) -> QueryValues:
        """Return the differences on the same queries: their lists are the same, and so are their numbers."""
        if not np.array_equal(self.queries_ED, other.queries_ED):
            raise ValueError("values of unlike queries have no differences")
        return QueryValues(self.values_ED - other.values_ED, self.queries_ED)


@frozen(eq=False)
class ClusterSums:
    """What two ways of clustering the same queries leave to add."""

    sums: Tensor  # int64, SIZE: per way the number of clusters, then _COLUMNS of each metric

    SIZE = 2 * (1 + _COLUMNS * len(METRICS))

    @classmethod
    def zero(cls) -> ClusterSums:
        return cls(torch.zeros(cls.SIZE, dtype=torch.int64))

    @classmethod
    def from_values(cls, of_edges: QueryValues, chunk_E: np.ndarray) -> ClusterSums:
        """Make them from the values of edges; `chunk_E` tells which share their negatives, ascending."""
        if not len(chunk_E):
            return cls.zero()
        starts = (np.arange(len(chunk_E)), np.flatnonzero(np.diff(chunk_E, prepend=-1)))  # of edges, of chunks
        return cls(torch.from_numpy(np.concatenate([_sums(of_edges, start) for start in starts])))

    def num_queries(self, metric: QueryMetric) -> int:
        """Return how many queries have a metric."""
        return int(self.sums[1 + METRICS.index(metric) * _COLUMNS])

    @property
    def unit(self) -> str:
        """Which clusters errors come from."""
        return "chunk" if self.sums[self.SIZE // 2] >= MIN_CHUNKS else "edge"

    @property
    def num_clusters(self) -> int:
        return int(self.sums[self.SIZE // 2 if self.unit == "chunk" else 0])

    def estimate(self, metric: QueryMetric) -> Estimate:
        """Return the mean of a metric without its `start`, with the error that clusters of `unit` give."""
        first = (self.SIZE // 2 if self.unit == "chunk" else 0) + 1 + METRICS.index(metric) * _COLUMNS
        queries, squares, values, *limbs = self.sums[first : first + _COLUMNS].tolist()
        if not queries:
            return Estimate(None, None)
        mean = Fraction(values, queries)
        num = self.num_clusters
        unit = 1 / metric.denominator(VALUE_BITS)
        with_queries, with_values = (low + (high << _LIMB) for low, high in (limbs[:2], limbs[2:]))
        residual = with_values - 2 * mean * with_queries + mean * mean * squares  # sum of (value - mean x queries)^2
        variance = Fraction(num, num - 1) * max(residual, Fraction(0)) / queries**2 if num > 1 else None
        return Estimate(float(mean) * unit, None if variance is None else math.sqrt(variance) * unit)


def _sums(of_edges: QueryValues, starts: np.ndarray) -> np.ndarray:
    """Return the number of clusters and the sums of each metric, int64; clusters are runs of edges."""
    values_GD = np.add.reduceat(of_edges.values_ED, starts, axis=0)
    queries_GD = np.add.reduceat(of_edges.queries_ED, starts, axis=0)
    columns = [
        queries_GD.sum(0),
        (queries_GD * queries_GD).sum(0),
        values_GD.sum(0),
        *_limbs(values_GD.astype(np.float64) * queries_GD),
        *_limbs(values_GD.astype(np.float64) ** 2),
    ]
    return np.concatenate([[len(starts)], np.stack(columns, axis=1).ravel()])


def _limbs(products_GD: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Round to whole numbers and add them up in two parts: low + high * 2^_LIMB, each exact."""
    high_GD = np.floor(products_GD * 2.0**-_LIMB)
    return np.rint(products_GD - high_GD * 2.0**_LIMB).astype(np.int64).sum(0), high_GD.astype(np.int64).sum(0)


# What visits to buckets found -> int64 sums: of a pass in all, and a few of each bucket. They add in any order.
#
# Workers that each visit their own buckets add their tensors (`Team.sum_`), and all have the sums of the pass.


BEFORE, AFTER, TRAINING = range(3)
_AUC_BITS = 30
_COLUMNS_OF_BUCKET = (
    "visits",
    "diverged",
    "digests",
    "queries",
    "before.low",
    "before.high",
    "after.low",
    "after.high",
)


@frozen(eq=False)
class PhaseSums:
    """What some edges' queries add up to at one time."""

    of_sides: Mapping[Side, RankStats]
    errors: ClusterSums  # of the figures themselves
    auc: Tensor  # int64: the sampled AUC in fixed point x edges, edges

    @classmethod
    def zero(cls, layout: StatsLayout, sides: Sequence[Side]) -> PhaseSums:
        return cls.from_stats({side: RankStats.zero(layout) for side in sides}, ClusterSums.zero(), None, 0)

    @property
    def tensors(self) -> list[Tensor]:
        """All that adds."""
        return [*(of.sums for of in self.of_sides.values()), self.errors.sums, self.auc]

    @classmethod
    def from_stats(
        cls, of_sides: Mapping[Side, RankStats], errors: ClusterSums, auc: float | None, num_edges: int
    ) -> PhaseSums:
        image = [0, 0] if auc is None else [round(auc * 2.0**_AUC_BITS) * num_edges, num_edges]
        return cls(of_sides, errors, torch.tensor(image))

    @cached_property
    def stats(self) -> dict[str, RankStats]:
        """The statistics of each side and of `both`, by label."""
        return by_label(self.of_sides, [*self.of_sides])

    @property
    def num_edges(self) -> int:
        return next(iter(self.stats.values())).total("num_queries")

    def values(self, *, with_loss: bool) -> Values:
        """Return the flat metrics, as metrics.json names them."""
        return {
            **{
                f"{label}.{name}": value
                for label, stats in self.stats.items()
                for name, value in rank_metrics(stats.total, stats.layout.cutoffs).items()
            },
            **({"both.loss": mean_loss(self.stats["both"], self.num_edges)} if with_loss else {}),
        }

    def figures(self, *, with_loss: bool) -> PbgFigures:
        """Return the metrics under PBG's names."""
        values = self.values(with_loss=with_loss)
        image, num_edges = self.auc.tolist()
        metrics = {
            **({"loss": values["both.loss"]} if with_loss else {}),
            **{name: values[f"both.pessimistic.{metric}"] for name, metric in PBG_NAMES.items()},
            "auc": image / num_edges * 2.0**-_AUC_BITS if num_edges else None,
        }
        return PbgFigures(self.num_edges, metrics)


@frozen(eq=False)
class PassSums:
    """All that a pass adds up to.

    The gap is after - before, on the same edges and negatives. Gained and lost are the smoothed gains of the mean
    reciprocal rank of edges that have been followed over some visits, and their falls from visit to visit. The fall is
    that since the pass to keep.
    """

    phases: Sequence[PhaseSums]  # before, after, and of training edges after
    clusters: Sequence[ClusterSums]  # gap, gained, lost and fall
    buckets: Tensor  # int64 (buckets, _COLUMNS_OF_BUCKET)

    @classmethod
    def zero(cls, layout: StatsLayout, sides: Sequence[Side], num_buckets: int) -> PassSums:
        phases, clusters = [PhaseSums.zero(layout, sides) for _ in range(3)], [ClusterSums.zero() for _ in range(4)]
        return cls(phases, clusters, torch.zeros((num_buckets, len(_COLUMNS_OF_BUCKET)), dtype=torch.int64))

    @classmethod
    def from_visit(
        cls, phases: Sequence[PhaseSums], clusters: Sequence[ClusterSums], headline: RankType, digest: int
    ) -> PassSums:
        """Return what one visit adds; its table has the one row of its bucket.

        Args:
            phases: as `PassSums` has them.
            clusters: the same.
            headline: the rank type of the bucket's row.
            digest: of the edges that were measured.
        """
        columns = [f"{headline.value}.{MEAN_RECIPROCAL_RANK.name}.{part}" for part in ("low", "high")]
        sums = [phase.stats["both"].total(column) for phase in phases[:TRAINING] for column in columns]
        return cls(
            phases, clusters, torch.tensor([[1, 0, digest, phases[AFTER].stats["both"].total("num_queries"), *sums]])
        )

    def add(self, visit: PassSums, bucket: int) -> None:
        """Add a visit to a bucket."""
        for mine, its in zip(self.shared(), visit.shared(), strict=True):
            mine += its
        self.buckets[bucket] += visit.buckets[0]

    def shared(self) -> list[Tensor]:
        """Return the tensors that are not of single buckets, to be added in place before any figure is asked for."""
        return [*(tensor for phase in self.phases for tensor in phase.tensors), *(of.sums for of in self.clusters)]

    def figures(self, headline: RankType, *, with_loss: bool) -> dict[str, Any]:
        """Return what a record says of a visit or pass: the figures of each phase, and differences with their errors.

        The gap is after - before; `generalization` is training - held-out edges, both after, of independent samples.
        """
        before, after, training = self.phases
        gap, generalization = {}, {}
        for metric in METRICS:
            key = f"both.{metric.name}" if metric is QUERY_AUC else f"both.{headline.value}.{metric.name}"
            gap[key] = self.clusters[0].estimate(metric)
            held_out, of_training = (phase.errors.estimate(metric) for phase in (after, training))
            if held_out.value is not None and of_training.value is not None:
                errors = [of.standard_error for of in (held_out, of_training) if of.standard_error is not None]
                error = (errors[0] ** 2 + errors[1] ** 2) ** 0.5 if len(errors) == 2 else None
                generalization[key] = Estimate(of_training.value - held_out.value, error)
        return {
            "before": before.values(with_loss=with_loss),
            "after": after.values(with_loss=with_loss),
            "training": training.values(with_loss=with_loss) if training.num_edges else None,
            "gap": gap,
            "generalization": generalization,
        }

    def bucket_visits(self) -> list[BucketVisit | None]:
        """Return the mean reciprocal ranks of each bucket; None where nothing was measured."""
        return [
            None
            if diverged or not queries
            else BucketVisit(
                queries,
                before=(limbs[0] + (limbs[1] << LIMB_BITS)) / (queries << FRACTION_BITS),
                after=(limbs[2] + (limbs[3] << LIMB_BITS)) / (queries << FRACTION_BITS),
                edges=digests // visits,
            )
            for visits, diverged, digests, queries, *limbs in self.buckets.tolist()
        ]

    def edges(self) -> frozenset[tuple[int, int]]:
        """Return what tells which edges were measured: the number of each bucket, and the digest of its edges."""
        rows = enumerate(self.buckets.tolist())
        return frozenset((bucket, digests // visits) for bucket, (visits, _, digests, *_) in rows if visits)
