"""Values in [0, 1] of queries for types -> int64 sums by relation, which add over workers in any order."""

from __future__ import annotations

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from pbgeval.stats.rank_stats import FRACTION_BITS, LIMB_BITS


@frozen(eq=False)
class TypeStats:
    """Sums over the queries (keys) of each relation that asks for types."""

    relations: tuple[int, ...]  # ids, ascending
    table_RF: Tensor  # int64: queries with values, queries without; then of each value the sums of two limbs

    @classmethod
    def zero(cls, relations: tuple[int, ...], num_values: int) -> TypeStats:
        return cls(relations, torch.zeros((len(relations), 2 + 2 * num_values), dtype=torch.int64))

    def add(self, relation_Q: np.ndarray, values_QV: np.ndarray) -> None:
        """Add queries.

        Args:
            relation_Q: ids.
            values_QV: float64 in [0, 1], or all NaN: nothing to gain.
        """
        row_Q = np.searchsorted(np.array(self.relations), relation_Q)
        defined_Q = ~np.isnan(values_QV).any(1)
        fixed_QV = np.rint(np.where(defined_Q[:, None], values_QV, 0.0) * 2.0**FRACTION_BITS).astype(np.int64)
        columns = [defined_Q[:, None], ~defined_Q[:, None], fixed_QV & ((1 << LIMB_BITS) - 1), fixed_QV >> LIMB_BITS]
        rows_QF = np.concatenate([column.astype(np.int64) for column in columns], axis=1)
        self.table_RF.index_add_(0, torch.from_numpy(row_Q), torch.from_numpy(rows_QF))

    def counts(self, relation: int | None = None) -> tuple[int, int]:
        """Return how many queries of a relation, or of all, have values, and how many have none."""
        row = self._sums(relation)
        return row[0], row[1]

    def means(self, relation: int | None = None) -> list[float | None]:
        """Return the mean of each value over queries that have it, each rounded once; None if none has."""
        row = self._sums(relation)
        num_values = (len(row) - 2) // 2
        totals = [row[2 + at] + (row[2 + num_values + at] << LIMB_BITS) for at in range(num_values)]
        return [total / (row[0] << FRACTION_BITS) if row[0] else None for total in totals]

    def _sums(self, relation: int | None) -> list[int]:
        rows: list[list[int]] = self.table_RF.tolist()  # Python integers: no overflow
        if relation is not None:
            return rows[self.relations.index(relation)] if relation in self.relations else [0] * len(rows[0])
        return [sum(column) for column in zip(*rows, strict=True)]
