"""Groups of queries -> their sums of statistics, by dimension, side and key of the group.

A dimension is a way to group the queries (by relation, by frequency of the query key, ...); a group is an int64 key.
Only groups that occur are kept. All is int64 and added, so tables are equal whatever the order of the queries and
however they are divided among workers.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from attrs import define, field, frozen
from torch import Tensor

from pbgeval.notation import Side
from pbgeval.stats.histograms import WeightedHistograms
from pbgeval.stats.rank_stats import RankStats, StatsLayout, sum_groups
from pbgeval.stats.ranks import RankCounts

# Dimensions that evaluations have
RELATION = "relation"  # key: id of the relation
KEY_FREQUENCY = "query_key_frequency"  # key: how many evaluated edges share the query's key
ENTITY_FREQUENCY = {Side.LHS: "lhs_frequency", Side.RHS: "rhs_frequency"}  # key: class of the edge's entity

MOST_PENDING_ROWS = 4096  # rows of tables that are kept apart before they are added up


@frozen(eq=False)
class _Table:
    keys_G: np.ndarray  # int64, increasing
    sums_GF: np.ndarray  # int64: a row of statistics per key

    @classmethod
    def zero(cls, layout: StatsLayout) -> _Table:
        return cls(np.empty(0, np.int64), np.empty((0, len(layout.columns)), np.int64))

    @classmethod
    def sum(cls, parts: list[_Table]) -> _Table:
        keys = np.concatenate([part.keys_G for part in parts])
        order = np.argsort(keys)
        keys_G, starts_G = _first_of_each(keys[order])
        sums_GF = np.concatenate([part.sums_GF for part in parts])[order]
        return cls(keys_G, np.add.reduceat(sums_GF, starts_G, axis=0))


@define(eq=False)
class _Parts:
    """Tables whose sum is meant; they are added up only now and then, so that each row is copied but a few times."""

    _whole: _Table
    _pending: list[_Table] = field(factory=list, init=False)
    _num_pending_rows: int = field(default=0, init=False)

    def append(self, table: _Table) -> None:
        self._pending.append(table)
        self._num_pending_rows += len(table.keys_G)
        if self._num_pending_rows > max(MOST_PENDING_ROWS, len(self._whole.keys_G)):
            self.sum()

    def sum(self) -> _Table:
        if self._pending:
            self._whole = _Table.sum([self._whole, *self._pending])
            self._pending, self._num_pending_rows = [], 0
        return self._whole


@define(eq=False)
class GroupedStats:
    """Sums of the columns of `RankStats` over the queries of each (dimension, side, key)."""

    layout: StatsLayout
    key_histograms: WeightedHistograms = field(factory=WeightedHistograms, init=False, repr=False)  # of KEY_FREQUENCY
    _parts: dict[tuple[str, Side], _Parts] = field(factory=dict, init=False, repr=False)

    def add(self, dimension: str, side: Side, group_Q: Tensor, counts: RankCounts) -> None:
        """Add queries.

        Args:
            dimension: how the queries are grouped.
            side: which side they hide.
            group_Q: key of each query's group, int64; a query with a negative one is in no group.
            counts: competitors of each query, over all its candidates; on the CPU.
        """
        repeated = counts.repeated.by_group(group_Q.numpy()) if counts.repeated is not None else None
        keys, in_order, times = repeated or (*_counts_in_order(group_Q.numpy(), counts), None)
        if dimension == KEY_FREQUENCY:
            self.key_histograms.add(side, keys, in_order, times)
        keys_G, starts_G = _first_of_each(keys)
        self._append(dimension, side, _Table(keys_G, sum_groups(self.layout, in_order, starts_G, times)))

    def count(self, dimension: str, side: Side, group_Q: Tensor, column: str) -> None:
        """Count queries in one plain column only: those that are not ranked, say.

        Args:
            dimension: how the queries are grouped.
            side: which side they hide.
            group_Q: key of each query's group, int64; a query with a negative one is in no group.
            column: of the layout; not one that is kept in two limbs.
        """
        keys, _ = _in_order(group_Q.numpy())
        keys_G, starts_G = _first_of_each(keys)
        sums_GF = np.zeros((len(keys_G), len(self.layout.columns)), np.int64)
        sums_GF[:, self.layout.index[column]] = np.diff(starts_G, append=len(keys))
        self._append(dimension, side, _Table(keys_G, sums_GF))

    def rows(self, dimension: str) -> dict[int, dict[Side, RankStats]]:
        """Return the statistics of each group of a dimension by increasing key; a side without queries has zeros."""
        rows: dict[int, dict[Side, RankStats]] = {}
        nothing = RankStats.zero(self.layout)
        for side in Side:
            table = self._table(dimension, side)
            for key, sums_F in zip(table.keys_G.tolist(), torch.from_numpy(table.sums_GF), strict=True):
                rows.setdefault(key, dict.fromkeys(Side, nothing))[side] = RankStats(self.layout, sums_F)
        return dict(sorted(rows.items()))

    def __add__(self, other: GroupedStats) -> GroupedStats:
        """Return the sums over the queries of both."""
        if self.layout != other.layout:
            raise ValueError(f"statistics of unlike columns do not add: {self.layout} and {other.layout}")
        joined = GroupedStats(self.layout)
        for grouped in (self, other):
            for dimension, side in grouped._parts:
                joined._append(dimension, side, grouped._table(dimension, side))
            joined.key_histograms.add_packed(grouped.key_histograms.pack())
        return joined

    def pack(self) -> Tensor:
        """Return everything as one int64 tensor (n,) that `add_packed` reads; equal sums have equal tensors.

        Length and numbers of `key_histograms`, then for each dimension and side with groups: length and bytes of the
        name, side, groups, columns, keys, sums.
        """
        histograms = self.key_histograms.pack().numpy()
        parts = [np.array([len(histograms)], np.int64), histograms]
        for dimension, side in sorted(self._parts, key=lambda of: (of[0], of[1].value)):
            table = self._table(dimension, side)
            if len(table.keys_G):
                name = np.frombuffer(dimension.encode(), np.uint8)
                head = [len(name), *name.tolist(), side.value, *table.sums_GF.shape]
                parts += [np.array(head, np.int64), table.keys_G, table.sums_GF.ravel()]
        return torch.from_numpy(np.concatenate(parts))

    def add_packed(self, packed: Tensor) -> None:
        """Add what another worker packed.

        Raises:
            ValueError: it has another number of columns.
        """
        length = int(packed[0])
        tables = list(_unpack(packed[1 + length :].numpy()))
        for dimension, side, table in tables:
            if table.sums_GF.shape[1] != len(self.layout.columns):
                expected = len(self.layout.columns)
                raise ValueError(f"statistics of unlike columns do not add: {expected} and {table.sums_GF.shape[1]}")
            self._append(dimension, side, table)
        self.key_histograms.add_packed(packed[1 : 1 + length])

    def _append(self, dimension: str, side: Side, table: _Table) -> None:
        if len(table.keys_G):
            self._parts.setdefault((dimension, side), _Parts(_Table.zero(self.layout))).append(table)

    def _table(self, dimension: str, side: Side) -> _Table:
        parts = self._parts.get((dimension, side))
        return _Table.zero(self.layout) if parts is None else parts.sum()


def _in_order(group_Q: np.ndarray) -> tuple[np.ndarray, np.ndarray | slice]:
    """Return the keys of the queries that are in a group, in order, and the rows of these queries."""
    if bool((group_Q[1:] >= group_Q[:-1]).all()):  # as queries of one relation after another are
        first = int(np.searchsorted(group_Q, 0))
        return group_Q[first:], slice(first, None)
    is_narrow = int(group_Q.min()) >= 0 and int(group_Q.max()) < 1 << 16
    order = np.argsort(group_Q.astype(np.uint16), kind="stable") if is_narrow else np.argsort(group_Q)  # 16 bits: radix
    in_order = np.take(group_Q, order)
    first = int(np.searchsorted(in_order, 0))
    return in_order[first:], order[first:]


def _counts_in_order(group_Q: np.ndarray, counts: RankCounts) -> tuple[np.ndarray, RankCounts]:
    """Return the keys of the queries that are in a group, in order, and their counts."""
    keys, rows = _in_order(group_Q)
    better_Q, tied_Q, competing_Q = (
        torch.from_numpy(of.numpy()[rows] if isinstance(rows, slice) else np.take(of.numpy(), rows))
        for of in (counts.better_Q, counts.tied_Q, counts.competing_Q)
    )
    return keys, RankCounts(better_Q, tied_Q, competing_Q)


def _first_of_each(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct keys of some in order, and the position of the first of each."""
    is_first = np.ones(len(keys), bool)
    np.not_equal(keys[1:], keys[:-1], out=is_first[1:])
    starts_G = np.flatnonzero(is_first)
    return keys[starts_G], starts_G


def _unpack(packed: np.ndarray) -> Iterator[tuple[str, Side, _Table]]:
    at = 0

    def take(length: int) -> np.ndarray:
        nonlocal at
        at += length
        return packed[at - length : at]

    while at < len(packed):
        name = bytes(take(int(take(1)[0])).astype(np.uint8)).decode()
        side, num_groups, num_columns = take(3).tolist()
        keys_G = take(num_groups)
        yield name, Side(side), _Table(keys_G, take(num_groups * num_columns).reshape(num_groups, num_columns))
