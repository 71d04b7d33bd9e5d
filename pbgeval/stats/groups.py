"""Statistics of all groups of an evaluation: a side of a bucket of an edge path each.

The sums of all groups are one int64 table, which workers add up; histograms and score pools are sparse and travel
packed in one int64 tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from attrs import define, field, frozen
from torch import Tensor

from pbgeval.notation import Bucket, Side, grouped
from pbgeval.stats.histograms import RankHistograms
from pbgeval.stats.keyed_sums import KeyedSums, packed, unpacked
from pbgeval.stats.pooled_counts import PooledCounts
from pbgeval.stats.rank_stats import RankStats, StatsLayout
from pbgeval.stats.ranks import RankCounts

# Scores -> what the pooled AUC compares, as order-preserving integers.

_CLUSTER_BITS = 32
_LOWEST_INT32 = np.int32(-(2**31))


def sortable_int32(scores: Tensor) -> np.ndarray:
    """Map float32 scores to int32 that compare alike; -0.0 and 0.0 become one."""
    bits = (scores.detach().numpy() + 0.0).view(np.int32)
    return np.where(bits >= 0, bits, _LOWEST_INT32 - bits)


def with_clusters(image_P: np.ndarray, cluster_P: np.ndarray | None) -> np.ndarray:
    """Append the cluster of each score's query, if given; codes compare as scores."""
    return image_P if cluster_P is None else np.add(image_P.astype(np.int64) << _CLUSTER_BITS, cluster_P)


def share_of(codes_P: np.ndarray, share: float) -> np.ndarray:
    """Return a share of codes `with_clusters`, chosen by a hash of each (splitmix64's).

    Any order gives the same ones, and a smaller share some of those of a larger one.
    """
    if share >= 1.0:
        return codes_P
    mixed_P = codes_P.astype(np.uint64)  # a copy
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        mixed_P ^= mixed_P >> np.uint64(shift)
        mixed_P *= np.uint64(factor)
    return codes_P[mixed_P < np.uint64(int(share * 2.0**64))]


@define
class ScorePool:
    """The scores of one group of queries that its pooled AUC compares; unordered.

    They are order images (int32); of a sample of edges, codes `with_clusters` (int64).
    """

    true: list[np.ndarray] = field(factory=list)
    competing: list[np.ndarray] = field(factory=list)

    def __add__(self, other: ScorePool) -> ScorePool:
        return ScorePool(self.true + other.true, self.competing + other.competing)

    def share(self, share: float) -> ScorePool:
        """Return the pool with a share of its scores, which have clusters."""
        return ScorePool(*([share_of(codes, share) for codes in of] for of in (self.true, self.competing)))

    def sort(self) -> SortedPool:
        """Return the pool with its scores in order."""
        return SortedPool(*_sorted(self.true), *_sorted(self.competing))


@frozen(eq=False)
class SortedPool:
    """The scores of one group of queries, in increasing order, and their clusters if edges are sampled."""

    true: np.ndarray  # int32
    true_cluster: np.ndarray | None  # int64
    competing: np.ndarray  # int32
    competing_cluster: np.ndarray | None

    @classmethod
    def union(cls, pools: Sequence[SortedPool]) -> SortedPool:
        return ScorePool(
            [with_clusters(pool.true, pool.true_cluster) for pool in pools],
            [with_clusters(pool.competing, pool.competing_cluster) for pool in pools],
        ).sort()


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([part for part in parts if len(part)] or [np.empty(0, np.int32)])


def _sorted(parts: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray | None]:
    joined = _joined(parts)
    joined.sort()
    if joined.dtype == np.int32:
        return joined, None
    return (joined >> _CLUSTER_BITS).astype(np.int32), joined & ((1 << _CLUSTER_BITS) - 1)


class GroupKey(NamedTuple):
    """A group of queries."""

    path_index: int
    bucket: Bucket
    side: Side


@define
class GroupStats:
    """The statistics of every group; groups without queries are rows of zeros."""

    layout: StatsLayout
    rows: dict[GroupKey, int]  # of the table
    table_GD: Tensor  # int64: a row of sums per group
    histograms: dict[tuple[int, Side], RankHistograms]  # by edge path and side
    pools: dict[GroupKey, ScorePool]
    counted: dict[tuple[int, Side], PooledCounts]  # of all scores, where pools are samples; by edge path and side
    _keys: dict[tuple[int, Side], list[GroupKey]] = field(init=False)  # the groups by edge path and side

    def __attrs_post_init__(self) -> None:
        self._keys = grouped(((key.path_index, key.side), key) for key in self.rows)

    @classmethod
    def zero(cls, layout: StatsLayout, keys: Iterable[GroupKey]) -> GroupStats:
        rows = {key: row for row, key in enumerate(keys)}
        return cls(
            layout=layout,
            rows=rows,
            table_GD=torch.zeros((len(rows), len(layout.columns)), dtype=torch.int64),
            histograms={(key.path_index, key.side): RankHistograms.zero() for key in rows},
            pools={key: ScorePool() for key in rows},
            counted={(key.path_index, key.side): PooledCounts.nothing() for key in rows},
        )

    def add(self, parts: Sequence[tuple[GroupKey, int]], sums_GD: np.ndarray, counts: RankCounts) -> None:
        """Add queries.

        Args:
            parts: (group, number of queries) of queries that stand next to each other, sides and paths in order.
            sums_GD: the sums of each part, int64 (G, columns).
            counts: what the sums are of.
        """
        rows_G = torch.tensor([self.rows[key] for key, _ in parts])
        self.table_GD.index_add_(0, rows_G, torch.from_numpy(sums_GD))
        start = 0
        for of, its in groupby(parts, lambda part: (part[0].path_index, part[0].side)):
            stop = start + sum(size for _, size in its)
            self.histograms[of] += RankHistograms.from_queries(counts.between(start, stop))
            start = stop

    @property
    def buckets(self) -> list[tuple[int, Bucket]]:
        """The edge path and the bucket of all groups, each pair once and in order."""
        return sorted({(key.path_index, key.bucket) for key in self.rows})

    def rank_stats(self, keys: Sequence[GroupKey]) -> RankStats:
        """Return the sums over some groups."""
        return RankStats(self.layout, self.table_GD[[self.rows[key] for key in keys]].sum(0))

    def keys_of(self, side: Side, path_index: int | None = None) -> list[GroupKey]:
        """Return the groups of a side over all edge paths, or of one."""
        return [
            key
            for (path, of_side), keys in self._keys.items()
            if of_side is side and path_index in (None, path)
            for key in keys
        ]

    def side_histograms(self, side: Side, path_index: int | None = None) -> RankHistograms:
        """Return the histograms of a side over all edge paths, or of one."""
        return RankHistograms.sum(
            [of for (path, of_side), of in self.histograms.items() if of_side is side and path_index in (None, path)]
        )

    def pack_sparse(self) -> np.ndarray:
        """Return histograms and pools as one int64 array (n,) that `add_sparse` reads."""
        counts = (part for histograms in self.histograms.values() for part in histograms.parts)
        pools = (self.pools[key] for key in self.rows)
        return packed(
            [
                *(array for part in counts for array in (part.keys, part.counts)),
                *(_joined(images) for pool in pools for images in (pool.true, pool.competing)),
                *(array for counts in self.counted.values() for array in counts.pack()),
            ]
        )

    def add_sparse(self, sparse: np.ndarray) -> None:
        """Add the histograms and pools of another worker."""
        arrays = unpacked(sparse)
        for path_and_side, histograms in self.histograms.items():
            self.histograms[path_and_side] += RankHistograms(
                tuple(KeyedSums(next(arrays), next(arrays)[:, None]) for _ in histograms.parts)
            )
        for key in self.rows:
            self.pools[key] += ScorePool([next(arrays)], [next(arrays)])
        for path_and_side in self.counted:
            self.counted[path_and_side] += PooledCounts.unpack(arrays)
