"""Values per query, kept together by cluster -> int64 sums that add, and from them a mean with its standard error.

A cluster is what is drawn as a whole: an edge with its two queries, or a chunk, whose edges share their negatives. The
mean is that of all queries, sum(values) / sum(queries), and its error that of a ratio of cluster sums (Cochran,
Sampling Techniques, 1977, 6.4). Squares are rounded once, per cluster, to whole units, so that sums are exact and
their order does not matter (decision 0001).
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from pbgeval.ranking import RankCounts, RankType

METRICS = ("mean_reciprocal_rank", "mean_rank", "hits_at_10", "query_auc")
BITS = (28, 1, 0, 28)  # of the fraction of each metric's values
HITS_CUTOFF = 10
FEWEST_CHUNKS = 10  # below, edges are taken for independent: the error of so few sums is no error

_LIMB = 40
_COLUMNS = 7  # queries, squares of queries, values, low and high (values x queries), low and high (squares of values)


@frozen(eq=False)
class QueryValues:
    """The values of METRICS of both queries of each edge, added up."""

    values_EM: np.ndarray  # int64, in units of 2^-BITS
    queries_EM: np.ndarray  # int64: how many queries of the edge have the metric

    @classmethod
    def of_counts(cls, counts: list[RankCounts], rank_type: RankType) -> QueryValues:
        """Make them from the counts of each side, each in the order of the edges."""
        values = sum(_values(of, rank_type) for of in counts)
        queries = sum(_queries(of) for of in counts)
        return cls(np.asarray(values), np.asarray(queries))

    @property
    def reciprocal_ranks(self) -> np.ndarray:
        """The first metric alone, int64 (E,)."""
        return self.values_EM[:, 0]

    def with_reciprocal_ranks(self, values_E: np.ndarray) -> QueryValues:
        """Return other values of the first metric of the same queries, and nothing of the other metrics."""
        values_EM, queries_EM = np.zeros_like(self.values_EM), np.zeros_like(self.queries_EM)
        values_EM[:, 0], queries_EM[:, 0] = values_E, self.queries_EM[:, 0]
        return QueryValues(values_EM, queries_EM)

    def of_edges(self, order: np.ndarray) -> QueryValues:
        """Return those of some edges, in an order."""
        return QueryValues(self.values_EM[order], self.queries_EM[order])

    def __sub__(self, other: QueryValues) -> QueryValues:
        """Return the differences on the same queries: their lists are the same, and so are their numbers."""
        if not np.array_equal(self.queries_EM, other.queries_EM):
            raise ValueError("values of unlike queries have no differences")
        return QueryValues(self.values_EM - other.values_EM, self.queries_EM)


def _values(counts: RankCounts, rank_type: RankType) -> np.ndarray:
    doubled_Q = counts.doubled_rank(rank_type).numpy()
    beaten_Q = 2 * (counts.competing_Q - counts.better_Q).numpy() - counts.tied_Q.numpy()
    competing_Q = np.maximum(counts.competing_Q.numpy(), 1)
    return np.stack(
        [
            np.rint(2.0 / doubled_Q * 2.0 ** BITS[0]).astype(np.int64),
            doubled_Q,
            (doubled_Q <= 2 * HITS_CUTOFF).astype(np.int64),
            np.rint(beaten_Q / (2 * competing_Q) * 2.0 ** BITS[3]).astype(np.int64) * (counts.competing_Q.numpy() > 0),
        ],
        axis=1,
    )


def _queries(counts: RankCounts) -> np.ndarray:
    one_Q = np.ones(counts.better_Q.numel(), np.int64)
    return np.stack([one_Q, one_Q, one_Q, (counts.competing_Q.numpy() > 0).astype(np.int64)], axis=1)


@frozen
class Estimate:
    """A mean with its standard error; None where there are no queries, or a single cluster."""

    value: float | None
    standard_error: float | None
    num_clusters: int


@frozen(eq=False)
class ClusterSums:
    """What two ways of clustering the same queries leave to add."""

    sums: Tensor  # int64, SIZE: per way the number of clusters, then _COLUMNS of each metric

    SIZE = 2 * (1 + _COLUMNS * len(METRICS))

    @classmethod
    def zero(cls) -> ClusterSums:
        return cls(torch.zeros(cls.SIZE, dtype=torch.int64))

    @classmethod
    def of_values(cls, of_edges: QueryValues, chunk_E: np.ndarray) -> ClusterSums:
        """Make them from the values of edges; `chunk_E` tells which share their negatives, ascending."""
        num_edges = len(chunk_E)
        if not num_edges:
            return cls.zero()
        starts = np.flatnonzero(np.r_[True, chunk_E[1:] != chunk_E[:-1]])
        both = [_sums(of_edges, np.arange(num_edges)), _sums(of_edges, starts)]
        return cls(torch.from_numpy(np.concatenate(both)))

    def __add__(self, other: ClusterSums) -> ClusterSums:
        return ClusterSums(self.sums + other.sums)

    def num_queries(self, metric: str) -> int:
        """Return how many queries have a metric."""
        return int(self.sums[1 + METRICS.index(metric) * _COLUMNS])

    @property
    def num_chunks(self) -> int:
        return int(self.sums[self.SIZE // 2])

    @property
    def unit(self) -> str:
        """Which clusters errors come from."""
        return "chunk" if self.num_chunks >= FEWEST_CHUNKS else "edge"

    @property
    def num_clusters(self) -> int:
        return self.num_chunks if self.unit == "chunk" else int(self.sums[0])

    def estimate(self, metric: str) -> Estimate:
        """Return the mean of a metric, with the error that clusters of `unit` give."""
        at = METRICS.index(metric)
        first = (self.SIZE // 2 if self.unit == "chunk" else 0) + 1 + at * _COLUMNS
        queries, squares, values, *limbs = self.sums[first : first + _COLUMNS].tolist()
        if not queries:
            return Estimate(None, None, self.num_clusters)
        mean = Fraction(values, queries)
        with_queries, with_values = (low + (high << _LIMB) for low, high in (limbs[:2], limbs[2:]))
        residual = with_values - 2 * mean * with_queries + mean * mean * squares  # sum of (value - mean x queries)^2
        num = self.num_clusters
        unit = 2.0 ** -BITS[at]
        if num < 2:
            return Estimate(float(mean) * unit, None, num)
        variance = Fraction(num, num - 1) * max(residual, Fraction(0)) / queries**2
        return Estimate(float(mean) * unit, math.sqrt(variance) * unit, num)


def _sums(of_edges: QueryValues, starts: np.ndarray) -> np.ndarray:
    """Return the number of clusters and the sums of each metric, int64; clusters are runs of edges."""
    values_CM = np.add.reduceat(of_edges.values_EM, starts, axis=0)
    queries_CM = np.add.reduceat(of_edges.queries_EM, starts, axis=0)
    columns = [
        queries_CM.sum(0),
        (queries_CM * queries_CM).sum(0),
        values_CM.sum(0),
        *_limbs(values_CM.astype(np.float64) * queries_CM),
        *_limbs(values_CM.astype(np.float64) ** 2),
    ]
    return np.concatenate([[len(starts)], np.stack(columns, axis=1).ravel()])


def _limbs(products_CM: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Round to whole numbers and add them up in two parts: low + high * 2^_LIMB, each exact."""
    high_CM = np.floor(products_CM * 2.0**-_LIMB)
    low_CM = np.rint(products_CM - high_CM * 2.0**_LIMB)
    return low_CM.astype(np.int64).sum(0), high_CM.astype(np.int64).sum(0)
