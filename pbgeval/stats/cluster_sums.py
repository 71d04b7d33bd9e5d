"""Queries -> sums by groups of clusters, from which the standard errors of their means follow.

Queries of one key depend on each other, and so do the two queries of an edge. A hash puts every key, and every edge,
into one of NUM_GROUPS groups. To join independent clusters leaves the variance between them unbiased. So memory does
not follow the keys, and a standard error from 2^11 groups is off by 1.6% or so. Sums are int64: order does not matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np
import torch
from attrs import define, field, frozen

from pbgeval.jit import CompiledLoop
from pbgeval.notation import Floats, Side
from pbgeval.stats.keyed_sums import packed, unpacked
from pbgeval.stats.query_metrics import COMPETING_QUERIES, COMPETITORS, QUERIES, QUERY_AUC
from pbgeval.stats.rank_stats import StatsLayout
from pbgeval.stats.rank_types import RankType
from pbgeval.stats.ranks import RankCounts

BY_KEY, BY_EDGE = "key", "edge"  # what a cluster is
CLUSTERS = (BY_KEY, BY_EDGE)
GROUP_BITS = 11
NUM_GROUPS = 1 << GROUP_BITS
VALUE_BITS = 28  # of 1/rank and of shares beaten: 2^34 queries of one group sum without overflow
_ROW_BITS = 16  # of queries that are added at once in float64: their sums stay below 2^53
JIT_MIN_QUERIES = 1 << 16  # of the first call for which numba is imported


@define(eq=False)
class ClusterSums:
    """Numerators and denominators of every metric that is a mean over queries, by cluster, side and group."""

    layout: StatsLayout
    _tables: dict[tuple[str, Side], np.ndarray] = field(
        factory=dict, init=False, repr=False
    )  # int64: rows of `_row`, a column per group

    def add(self, side: Side, groups: Mapping[str, np.ndarray], counts: RankCounts) -> None:
        """Add queries.

        Args:
            side: that they hide.
            groups: by what a cluster is, the group of each query: integers below NUM_GROUPS.
            counts: of the queries.
        """
        if not groups or not counts.num_queries:
            return
        tables = [(self._table(by, side), group_Q) for by, group_Q in groups.items()]
        each, index_Q = (counts, None) if counts.repeated is None else (counts.repeated.counts, counts.repeated.index_Q)
        _add(tables, self._columns(each), index_Q)
        # Rank types differ only in the tied queries.
        tied_q = np.flatnonzero(counts.tied_Q.numpy())
        if len(tied_q):
            tied = counts.select(torch.from_numpy(tied_q))
            _add([(table, group_Q[tied_q]) for table, group_Q in tables], self._changes(tied))

    def __bool__(self) -> bool:
        """Whether any queries were added."""
        return bool(self._tables)

    def has(self, by: str, side: Side) -> bool:
        """Whether queries of a side were added by these clusters."""
        return (by, side) in self._tables

    def column(self, by: str, side: Side, name: str) -> Floats:
        """Return a sum, by its name in `StatsLayout`, in each group; of clusters that it `has`."""
        return np.asarray(self._tables[by, side][self._row[name]], np.float64)

    def pack(self) -> np.ndarray:
        """Return everything as one int64 array (n,) that `add_packed` reads; groups without queries are left out."""
        arrays = []
        for by, side in sorted(self._tables, key=lambda of: (of[0], of[1].value)):
            table = self._tables[by, side]
            groups = np.flatnonzero(table[self._row[QUERIES]])
            arrays += [np.array([CLUSTERS.index(by), side.value]), groups, table[:, groups].ravel()]
        return packed(arrays)

    def add_packed(self, numbers: np.ndarray) -> None:
        """Add what another worker packed."""
        arrays = unpacked(numbers)
        for head in arrays:
            by, side = head.tolist()
            groups, sums = next(arrays), next(arrays)
            self._table(CLUSTERS[by], Side(side))[:, groups] += sums.reshape(-1, len(groups))

    @cached_property
    def _row(self) -> dict[str, int]:
        """The row of each sum, by its name in `StatsLayout`."""
        names = [QUERIES, COMPETING_QUERIES, COMPETITORS, QUERY_AUC.name]
        names += [f"{kind.value}.{metric.name}" for kind in RankType for metric in self.layout.metrics]
        return {name: row for row, name in enumerate(names)}

    def _table(self, by: str, side: Side) -> np.ndarray:
        return self._tables.setdefault((by, side), np.zeros((len(self._row), NUM_GROUPS), np.int64))

    def _columns(self, counts: RankCounts) -> list[_Column]:
        """Return what each query adds to every row; optimistic ranks stand for all types."""
        row, competitors_Q = self._row, counts.num_competitors_Q
        one_Q, competes_Q = np.ones(counts.num_queries, np.int64), (competitors_Q > 0).numpy()
        auc_Q = QUERY_AUC.numerators(counts, RankType.REALISTIC, VALUE_BITS)
        return [
            *(
                [_Column([row[QUERIES], row[COMPETING_QUERIES]], one_Q)]
                if competes_Q.all()
                else [_Column([row[QUERIES]], one_Q), _Column([row[COMPETING_QUERIES]], competes_Q.astype(np.int64))]
            ),
            _Column([row[COMPETITORS]], competitors_Q.numpy()),
            _Column([row[QUERY_AUC.name]], auc_Q.numpy()),
            *(
                _Column(
                    [row[f"{kind.value}.{metric.name}"] for kind in RankType],
                    metric.numerators(counts, RankType.OPTIMISTIC, VALUE_BITS).numpy(),
                )
                for metric in self.layout.metrics
            ),
        ]

    def _changes(self, tied: RankCounts) -> list[_Column]:
        """Return what the other types add to optimistic ranks."""
        changes = []
        for metric in self.layout.metrics:
            best_Q = metric.numerators(tied, RankType.OPTIMISTIC, VALUE_BITS)
            for kind in (RankType.REALISTIC, RankType.PESSIMISTIC):
                worse_Q = (metric.numerators(tied, kind, VALUE_BITS) - best_Q).abs()
                changes.append(_Column([self._row[f"{kind.value}.{metric.name}"]], worse_Q.numpy(), -metric.direction))
        return changes


@frozen(eq=False)
class _Column:
    """What queries add to some rows of a table."""

    rows: list[int]
    value_Q: np.ndarray  # int64, not negative, below 2^37
    sign: int = 1


def _add(
    tables: list[tuple[np.ndarray, np.ndarray]], columns: list[_Column], index_Q: np.ndarray | None = None
) -> None:
    """Add columns to tables.

    Args:
        tables: with the group of each query.
        columns: to be added.
        index_Q: which value of a column each query has; None: its own.
    """
    num_queries = len(tables[0][1])
    if _add_rows.is_worth_compiling(num_queries, JIT_MIN_QUERIES):
        value_ND = np.stack([column.sign * column.value_Q for column in columns], axis=1)
        every_Q = np.arange(num_queries) if index_Q is None else index_Q
        for table, group_Q in tables:
            sums_GD = np.zeros((NUM_GROUPS, len(columns)), np.int64)
            _add_rows(np.ascontiguousarray(group_Q), every_Q, value_ND, sums_GD)
            for column, sums_G in zip(columns, sums_GD.T, strict=True):
                table[column.rows] += sums_G
        return
    for start in range(0, num_queries, 1 << _ROW_BITS):  # so that sums in float64 are exact
        part = slice(start, start + (1 << _ROW_BITS))
        for column in columns:
            value_Q = column.value_Q[part if index_Q is None else index_Q[part]]
            for table, group_Q in tables:
                sums_G = np.bincount(group_Q[part], value_Q, NUM_GROUPS).astype(np.int64)
                table[column.rows] += column.sign * sums_G


@CompiledLoop
def _add_rows(group_Q, index_Q, value_ND, sums_GD):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    for query in range(group_Q.size):
        group, index = group_Q[query], index_Q[query]
        for column in range(value_ND.shape[1]):
            sums_GD[group, column] += value_ND[index, column]
