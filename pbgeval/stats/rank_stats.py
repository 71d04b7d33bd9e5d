"""Ranks -> a row of named int64 sums per group of queries.

A metric is not additive, its statistics are. Everything is int64, so + is exact and order does not matter.
Reals (1/rank, shares, losses) are rounded once, per query, to fixed point with FRACTION_BITS and summed in two limbs
of LIMB_BITS: exact for 2^34 queries (decision 0001). Rows add only if their columns are the same.
"""

from __future__ import annotations

from functools import cached_property

import torch
from attrs import frozen
from torch import Tensor

from pbgeval.ranking import RankCounts, RankType

FRACTION_BITS = 58  # of 1/rank and of shares: values up to 1
LOSS_FRACTION_BITS = 30  # of losses: values below 2^28
LIMB_BITS = 29
MOST_QUERIES = 1 << 34  # sums of limbs stay below 2^63
LARGEST_LOSS = 2.0 ** (FRACTION_BITS - LOSS_FRACTION_BITS)


@frozen
class StatsLayout:
    """The columns of a row of statistics."""

    cutoffs: tuple[int, ...]  # K of hits at K, increasing

    @cached_property
    def columns(self) -> tuple[str, ...]:
        names = ["num_queries", "num_competing_queries", "num_tied_queries", "num_short_lists", "num_excluded"]
        names += ["num_undefined_losses"]
        limbs = ["candidates", "query_auc", "loss"]
        for rank_type in RankType:
            limbs += [f"{rank_type.value}.doubled_rank", f"{rank_type.value}.reciprocal_rank"]
            names += [f"{rank_type.value}.hits_at_{cutoff}" for cutoff in self.cutoffs]
        return tuple(names + [f"{name}.{part}" for name in limbs for part in ("low", "high")])

    @cached_property
    def index(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.columns)}


@frozen(eq=False)
class RankStats:
    """Sums over the queries of one group."""

    layout: StatsLayout
    sums: Tensor  # int64, one per column

    @classmethod
    def zero(cls, layout: StatsLayout) -> RankStats:
        return cls(layout, torch.zeros(len(layout.columns), dtype=torch.int64))

    @classmethod
    def of_queries(
        cls, layout: StatsLayout, counts: RankCounts, *, num_short_lists: int = 0, num_excluded: int = 0
    ) -> RankStats:
        """Return the statistics of queries whose counts are complete.

        Args:
            layout: the columns.
            counts: competitors of each query, over all its candidates.
            num_short_lists: how many of the queries have a list that was topped up.
            num_excluded: candidates dropped because they are the true entity again.
        """
        sums = dict.fromkeys(layout.columns, 0)
        sums["num_queries"] = counts.better_Q.numel()
        sums["num_competing_queries"] = int((counts.competing_Q > 0).sum())
        sums["num_tied_queries"] = int((counts.tied_Q > 0).sum())
        sums["num_short_lists"], sums["num_excluded"] = num_short_lists, num_excluded
        _add_limbs(sums, "candidates", counts.competing_Q + 1)
        _add_limbs(sums, "query_auc", _fixed_point(_shares_beaten(counts), FRACTION_BITS))
        for rank_type in RankType:
            doubled_Q = counts.doubled_rank(rank_type)
            _add_limbs(sums, f"{rank_type.value}.doubled_rank", doubled_Q)
            _add_limbs(
                sums, f"{rank_type.value}.reciprocal_rank", _fixed_point(2.0 / doubled_Q.double(), FRACTION_BITS)
            )
            for cutoff in layout.cutoffs:
                sums[f"{rank_type.value}.hits_at_{cutoff}"] = int((doubled_Q <= 2 * cutoff).sum())
        return cls(layout, torch.tensor([sums[name] for name in layout.columns], dtype=torch.int64))

    def with_losses(self, loss_Q: Tensor) -> RankStats:
        """Return these statistics with the loss of each query added, float64 (Q,)."""
        defined_Q = torch.isfinite(loss_Q) & (loss_Q.abs() < LARGEST_LOSS)
        sums = dict.fromkeys(self.layout.columns, 0)
        sums["num_undefined_losses"] = int((~defined_Q).sum())
        _add_limbs(sums, "loss", _fixed_point(loss_Q[defined_Q], LOSS_FRACTION_BITS))
        return self + RankStats(self.layout, torch.tensor(list(sums.values()), dtype=torch.int64))

    def __add__(self, other: RankStats) -> RankStats:
        if self.layout != other.layout:
            raise ValueError(f"statistics of unlike columns do not add: {self.layout} and {other.layout}")
        return RankStats(self.layout, self.sums + other.sums)

    def count(self, column: str) -> int:
        """Return the sum of a plain column."""
        return int(self.sums[self.layout.index[column]])

    def total(self, name: str) -> int:
        """Return the sum of a column kept in two limbs, as a Python integer of any size."""
        low, high = (int(self.sums[self.layout.index[f"{name}.{part}"]]) for part in ("low", "high"))
        return low + (high << LIMB_BITS)


def _shares_beaten(counts: RankCounts) -> Tensor:
    """Return the share of its competitors that each true entity beats, ties one half; queries without any left out."""
    not_beaten_Q, competing_Q = 2 * counts.better_Q + counts.tied_Q, counts.competing_Q
    has_competitors_Q = competing_Q > 0
    if not bool(has_competitors_Q.all()):
        not_beaten_Q, competing_Q = not_beaten_Q[has_competitors_Q], competing_Q[has_competitors_Q]
    return 1.0 - not_beaten_Q.double() / (2 * competing_Q)


def _fixed_point(values: Tensor, bits: int) -> Tensor:
    """Round float64 values to integers of 2^-bits: IEEE division and rounding, the same bits on any machine."""
    return torch.round(values * 2.0**bits).to(torch.int64)


def _add_limbs(sums: dict[str, int], name: str, values: Tensor) -> None:
    sums[f"{name}.low"] += int((values & ((1 << LIMB_BITS) - 1)).sum())
    sums[f"{name}.high"] += int((values >> LIMB_BITS).sum())
