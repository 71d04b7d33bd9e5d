"""Ranks and numbers of candidates of queries that weigh unalike -> histograms by (weight class, value), which add.

A class is a small integer that weights follow from: how many evaluated edges share the query's key. Macro averages of
medians, geometric means and chance levels need the values of each class apart; a query is in one, so there are no more
entries than queries.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from attrs import define, field
from torch import Tensor

from pbgeval.notation import Side
from pbgeval.ranking import RankCounts, RankType
from pbgeval.stats.histograms import rank_bins
from pbgeval.stats.sparse import SparseCounts

VALUE_BITS = 36  # of a rank's bin and of a number of candidates
MOST_CLASSES = 1 << 27
NUM_PARTS = len(RankType) + 1


@define(eq=False)
class WeightedHistograms:
    """For each side: how often each (class, bin) occurs, by rank type, and each (class, number of candidates)."""

    _parts: dict[Side, list[SparseCounts]] = field(factory=dict, init=False)

    def add(self, side: Side, class_Q: np.ndarray, counts: RankCounts, times_Q: np.ndarray | None = None) -> None:
        """Add queries.

        Args:
            side: that they hide.
            class_Q: int64, from 0 and below MOST_CLASSES.
            counts: over all their candidates, on the CPU.
            times_Q: for how many queries each stands, int64; None: for itself.

        Raises:
            ValueError: a class or a number of candidates is too large.
        """
        if not class_Q.size:
            return
        if int(class_Q.max()) >= MOST_CLASSES or int(counts.competing_Q.max()) + 1 >= 1 << VALUE_BITS:
            raise ValueError(f"expected classes below 2^27 and fewer than 2^{VALUE_BITS} candidates")
        classes, place_Q = np.unique(class_Q, return_inverse=True)
        values = []
        for rank_type in RankType:
            doubled_Q = counts.doubled_rank(rank_type)
            values.append(rank_bins(doubled_Q if rank_type is RankType.REALISTIC else doubled_Q >> 1))
        values.append(counts.competing_Q + 1)
        self._append(side, [_counted(classes, torch.from_numpy(place_Q), values_Q, times_Q) for values_Q in values])

    def rank_bins(self, side: Side, rank_type: RankType) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (class, bin, count) of the ranks of a side, int64; realistic ones are doubled."""
        return self._split(side, list(RankType).index(rank_type))

    def num_candidates(self, side: Side) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (class, number of candidates with the true entity, count) of a side, int64."""
        return self._split(side, NUM_PARTS - 1)

    def pack(self) -> Tensor:
        """Return everything as one int64 tensor (n,) that `add_packed` reads; equal histograms have equal tensors."""
        packed = [np.empty(0, np.int64)]
        for side in sorted(self._parts, key=lambda of: of.value):
            packed.append(np.array([side.value], np.int64))
            for part in self._parts[side]:
                packed += [np.array([len(part.keys)], np.int64), part.keys, part.counts]
        return torch.from_numpy(np.concatenate(packed))

    def add_packed(self, packed: Tensor) -> None:
        """Add what another worker packed."""
        for side, parts in _unpack(packed.numpy()):
            self._append(side, parts)

    def _append(self, side: Side, parts: list[SparseCounts]) -> None:
        before = self._parts.get(side)
        self._parts[side] = parts if before is None else [one + other for one, other in zip(before, parts, strict=True)]

    def _split(self, side: Side, part: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        counts = self._parts[side][part] if side in self._parts else SparseCounts.zero()
        return counts.keys >> VALUE_BITS, counts.keys & ((1 << VALUE_BITS) - 1), counts.counts


def _counted(classes: np.ndarray, place_Q: Tensor, values_Q: Tensor, times_Q: np.ndarray | None) -> SparseCounts:
    """Count (class, value), first in numbers as small as can be: small ones are counted in a dense table."""
    width = int(values_Q.max()) + 1
    local = SparseCounts.of_values(place_Q * width + values_Q, times_Q)
    place, value = np.divmod(local.keys, width)
    return SparseCounts((classes[place] << VALUE_BITS) | value, local.counts)


def _unpack(packed: np.ndarray) -> Iterator[tuple[Side, list[SparseCounts]]]:
    at = 0
    while at < len(packed):
        side, at = Side(int(packed[at])), at + 1
        parts = []
        for _ in range(NUM_PARTS):
            length, at = int(packed[at]), at + 1
            parts.append(SparseCounts(packed[at : at + length], packed[at + length : at + 2 * length]))
            at += 2 * length
        yield side, parts
