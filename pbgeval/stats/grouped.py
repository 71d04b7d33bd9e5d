"""Groups of queries -> their sums of statistics, by dimension, side and key of the group.

A dimension is a way to group the queries (by relation, by frequency of the query key, ...); a group is an int64 key.
Only groups that occur are kept. All is int64 and added, so tables are equal whatever the order of the queries and
however they are divided among workers.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import torch
from attrs import define, field
from torch import Tensor

from pbgeval.notation import Side
from pbgeval.stats.histograms import HISTOGRAMS, class_histograms
from pbgeval.stats.keyed_sums import KeyedSums, first_of_each, packed, unpacked
from pbgeval.stats.rank_stats import RankStats, StatsLayout, sum_groups
from pbgeval.stats.ranks import RankCounts

# Dimensions that evaluations have
RELATION = "relation"  # key: id of the relation
KEY_FREQUENCY = "query_key_frequency"  # key: how many evaluated edges share the query's key
ENTITY_FREQUENCY = {Side.LHS: "lhs_frequency", Side.RHS: "rhs_frequency"}  # key: class of the edge's entity
TIME = "time"  # key: the edge's time, divided by the width of a group

MAX_PENDING_ROWS = 4096  # rows of tables that are kept apart before they are added up


@define(eq=False)
class GroupedStats:
    """Sums of the columns of `RankStats` over the queries of each (dimension, side, key)."""

    layout: StatsLayout
    # Tables whose sum is meant, by dimension or `<KEY_FREQUENCY>.<histogram>`. They are added up only now and then, so
    # that each row is copied but a few times.
    _parts: dict[tuple[str, Side], list[KeyedSums]] = field(factory=dict, init=False, repr=False)
    _num_pending: Counter[tuple[str, Side]] = field(factory=Counter, init=False, repr=False)  # after the first part

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
            for name, histogram in zip(HISTOGRAMS, class_histograms(keys, in_order, times), strict=True):
                self._append(f"{dimension}.{name}", side, histogram)
        keys_G, starts_G = first_of_each(keys)
        self._append(dimension, side, KeyedSums(keys_G, sum_groups(self.layout, in_order, starts_G, times)))

    def count(self, dimension: str, side: Side, group_Q: Tensor, column: str) -> None:
        """Count queries in one plain column only: for example those that are not ranked.

        Args:
            dimension: how the queries are grouped.
            side: which side they hide.
            group_Q: key of each query's group, int64; a query with a negative one is in no group.
            column: of the layout; not one that is kept in two limbs.
        """
        counted = KeyedSums.from_values(group_Q[group_Q >= 0])
        sums_GD = np.zeros((len(counted.keys), len(self.layout.columns)), np.int64)
        sums_GD[:, self.layout.index[column]] = counted.counts
        self._append(dimension, side, KeyedSums(counted.keys, sums_GD))

    def rows(self, dimension: str) -> dict[int, dict[Side, RankStats]]:
        """Return the statistics of each group of a dimension by increasing key; a side without queries has zeros."""
        rows: dict[int, dict[Side, RankStats]] = {}
        nothing = RankStats.zero(self.layout)
        for side in Side:
            table = self._table(dimension, side)
            for key, sums_D in zip(table.keys.tolist(), torch.from_numpy(table.sums), strict=True):
                rows.setdefault(key, dict.fromkeys(Side, nothing))[side] = RankStats(self.layout, sums_D)
        return dict(sorted(rows.items()))

    def key_histogram(self, name: str, side: Side) -> KeyedSums:
        """Return one of `class_histograms` of the queries by KEY_FREQUENCY, for `by_class`."""
        return self._table(f"{KEY_FREQUENCY}.{name}", side, 1)

    def pack(self) -> np.ndarray:
        """Return everything as one int64 array (n,) that `add_packed` reads; equal sums have equal arrays."""
        arrays = []
        for name, side in sorted(self._parts, key=lambda of: (of[0], of[1].value)):
            table = self._table(name, side)
            head = np.array([side.value, table.sums.shape[1]])
            arrays += [np.frombuffer(name.encode(), np.uint8), head, table.keys, table.sums.ravel()]
        return packed(arrays)

    def add_packed(self, numbers: np.ndarray) -> None:
        """Add what another worker packed.

        Raises:
            ValueError: it has another number of columns.
        """
        arrays = unpacked(numbers)
        for name in arrays:
            (side, width), keys, sums = (next(arrays) for _ in range(3))
            self._append(bytes(name).decode(), Side(int(side)), KeyedSums(keys, sums.reshape(-1, width)))

    def _append(self, name: str, side: Side, table: KeyedSums) -> None:
        if not len(table.keys):
            return
        expected = len(self.layout.columns) if "." not in name else 1
        if table.sums.shape[1] != expected:
            raise ValueError(f"statistics of unlike columns do not add: {expected} and {table.sums.shape[1]}")
        parts = self._parts.setdefault((name, side), [])
        if parts:
            self._num_pending[name, side] += len(table.keys)
        parts.append(table)
        if self._num_pending[name, side] > max(MAX_PENDING_ROWS, len(parts[0].keys)):
            self._table(name, side)

    def _table(self, name: str, side: Side, width: int | None = None) -> KeyedSums:
        parts = self._parts.get((name, side), [KeyedSums.zero(width or len(self.layout.columns))])
        parts[:] = [KeyedSums.sum(parts)]
        del self._num_pending[name, side]
        return parts[0]


def _counts_in_order(group_Q: np.ndarray, counts: RankCounts) -> tuple[np.ndarray, RankCounts]:
    """Return the keys of the queries that are in a group, in order, and their counts."""
    if not bool((group_Q[1:] >= group_Q[:-1]).all()):  # as queries of one relation after another are
        is_narrow = int(group_Q.min()) >= 0 and int(group_Q.max()) < 1 << 16  # 16 bits are sorted by radix
        order = np.argsort(group_Q.astype(np.uint16), kind="stable") if is_narrow else np.argsort(group_Q)
        group_Q = np.take(group_Q, order)
        counts = RankCounts(*(column.index_select(0, torch.from_numpy(order)) for column in counts.columns))
    first = int(np.searchsorted(group_Q, 0))
    return group_Q[first:], counts.select(slice(first, None))
