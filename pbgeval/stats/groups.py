"""Statistics of all groups of an evaluation: a side of a bucket of an edge path each.

The sums of all groups are one int64 table, which workers add up; histograms and score pools are sparse and travel
packed in one int64 tensor.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from attrs import define, field, frozen
from torch import Tensor

from pbgeval.notation import Bucket, Side
from pbgeval.stats.histograms import RankHistograms
from pbgeval.stats.pool import ScorePool
from pbgeval.stats.rank_stats import RankStats, StatsLayout
from pbgeval.stats.sparse import SparseCounts


@frozen(eq=False)
class SideStats:
    """What the queries of one side of some edges add to the result."""

    stats: RankStats
    histograms: RankHistograms
    pool: ScorePool

    @classmethod
    def zero(cls, layout: StatsLayout) -> SideStats:
        return cls(RankStats.zero(layout), RankHistograms.zero(), ScorePool())

    def __add__(self, other: SideStats) -> SideStats:
        return SideStats(self.stats + other.stats, self.histograms + other.histograms, self.pool + other.pool)


class GroupKey(NamedTuple):
    """A group of queries."""

    path_index: int
    bucket: Bucket
    side: Side


@define
class GroupStats:
    """The statistics of every group; groups without queries are rows of zeros."""

    layout: StatsLayout
    keys: tuple[GroupKey, ...]
    table_GF: Tensor  # int64: a row of sums per group
    histograms: dict[tuple[int, Side], RankHistograms]  # by edge path and side
    pools: dict[GroupKey, ScorePool]
    _rows: dict[GroupKey, int] = field(init=False, repr=False)  # row of each group in the table

    def __attrs_post_init__(self) -> None:
        self._rows = {key: row for row, key in enumerate(self.keys)}

    @classmethod
    def zero(cls, layout: StatsLayout, keys: Iterable[GroupKey]) -> GroupStats:
        keys = tuple(keys)
        return cls(
            layout=layout,
            keys=keys,
            table_GF=torch.zeros((len(keys), len(layout.columns)), dtype=torch.int64),
            histograms={(key.path_index, key.side): RankHistograms.zero() for key in keys},
            pools={key: ScorePool() for key in keys},
        )

    def add(self, key: GroupKey, stats: SideStats) -> None:
        """Add the statistics of some of a group's queries."""
        if stats.stats.layout != self.layout:
            raise ValueError(f"statistics of unlike columns do not add: {self.layout} and {stats.stats.layout}")
        self.table_GF[self._rows[key]] += stats.stats.sums
        self.histograms[key.path_index, key.side] += stats.histograms
        self.pools[key] += stats.pool

    def rank_stats(self, side: Side, path_index: int | None = None, bucket: Bucket | None = None) -> RankStats:
        """Return the sums over the groups of a side, of one edge path, of one bucket."""
        rows = [self._rows[key] for key in self.keys_of(side, path_index, bucket)]
        return RankStats(self.layout, self.table_GF[rows].sum(0))

    def keys_of(self, side: Side, path_index: int | None = None, bucket: Bucket | None = None) -> list[GroupKey]:
        """Return the groups of a side, of one edge path, of one bucket of it."""
        if path_index is not None and bucket is not None:  # at once: there may be thousands of buckets
            key = GroupKey(path_index, bucket, side)
            return [key] if key in self._rows else []
        return [key for key in self.keys if key.side is side and path_index in (None, key.path_index)]

    def side_histograms(self, side: Side, path_index: int | None = None) -> RankHistograms:
        """Return the histograms of a side over all edge paths, or of one."""
        joined = RankHistograms.zero()
        for (of_path, of_side), histograms in self.histograms.items():
            if of_side is side and path_index in (None, of_path):
                joined += histograms
        return joined

    def pack_sparse(self) -> Tensor:
        """Return histograms and pools as one int64 tensor (n,) that `add_sparse` reads."""
        parts = []
        for histograms in self.histograms.values():
            for counts in histograms.parts():
                parts += [np.array([len(counts.keys)]), counts.keys, counts.counts]
        for key in self.keys:
            for images in (self.pools[key].true, self.pools[key].competing):
                parts += _packed(images)
        return torch.from_numpy(np.concatenate([np.empty(0, np.int64), *parts]))

    def add_sparse(self, packed: Tensor) -> None:
        """Add the histograms and pools of another worker."""
        numbers = _Reader(packed.numpy())
        for path_and_side in self.histograms:
            parts = [numbers.sparse_counts() for _ in RankHistograms.zero().parts()]
            self.histograms[path_and_side] += RankHistograms.from_parts(parts)
        for key in self.keys:
            true, competing = (_unpack(numbers) for _ in range(2))
            self.pools[key] += ScorePool(true, competing)


def _packed(images: list[np.ndarray]) -> list[np.ndarray]:
    """Return bytes per number, how many they are, and the numbers; of int32, two in each int64."""
    joined = np.concatenate([part for part in images if len(part)] or [np.empty(0, np.int32)])
    size = np.array([joined.itemsize, len(joined)])
    return [size, np.concatenate([joined, np.zeros(-joined.nbytes % 8 // 4, joined.dtype)]).view(np.int64)]


def _unpack(numbers: _Reader) -> list[np.ndarray]:
    itemsize, length = numbers.one(), numbers.one()
    packed = numbers.many(-(-itemsize * length // 8))
    return [packed.view(np.int32 if itemsize == 4 else np.int64)[:length]] if length else []


class _Reader:
    def __init__(self, numbers: np.ndarray) -> None:
        self._numbers = numbers
        self._at = 0

    def one(self) -> int:
        return int(self.many(1)[0])

    def sparse_counts(self) -> SparseCounts:
        length = self.one()
        return SparseCounts(self.many(length), self.many(length))

    def many(self, length: int) -> np.ndarray:
        self._at += length
        return self._numbers[self._at - length : self._at]
