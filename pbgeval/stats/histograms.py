"""Rank counts -> histograms of ranks and of numbers of candidates.

Ranks below EXACT_BINS have a bin of their own; beyond, 2^10 bins to the octave, a relative width of 2^-10.
Realistic ranks are doubled, so that they are integers. Numbers of candidates are kept exactly: chance levels need them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from attrs import define, field, frozen
from torch import Tensor

from pbgeval.notation import Side
from pbgeval.stats.ranks import RankCounts, RankType

# Values -> how often each occurs: histograms that add.

# Values are counted in a dense table first if it has at most so many places, and so many for each value.
MOST_DENSE_VALUES = 1 << 21
MOST_PLACES_PER_VALUE = 2


@frozen(eq=False)
class SparseCounts:
    """Counts of the keys that occur; keys increase."""

    keys: np.ndarray  # int64
    counts: np.ndarray  # int64, positive

    @classmethod
    def zero(cls) -> SparseCounts:
        return cls(np.empty(0, np.int64), np.empty(0, np.int64))

    @classmethod
    def of_values(cls, values: Tensor, times: np.ndarray | None = None) -> SparseCounts:
        """Count non-negative int64 values, each as often as `times` (int64) says."""
        if not values.numel():
            return cls.zero()
        if times is not None:
            return cls._added_up(values.numpy(), times)
        if int(values.max()) < min(MOST_DENSE_VALUES, MOST_PLACES_PER_VALUE * values.numel()):
            dense = torch.bincount(values)
            keys = dense.nonzero().squeeze(1)
            return cls(keys.numpy(), dense[keys].numpy())
        return cls(*np.unique(values.numpy(), return_counts=True))

    @classmethod
    def sum(cls, parts: list[SparseCounts]) -> SparseCounts:
        """Add any number of counts."""
        return cls._added_up(
            np.concatenate([part.keys for part in parts]), np.concatenate([part.counts for part in parts])
        )

    @classmethod
    def _added_up(cls, keys: np.ndarray, counts: np.ndarray) -> SparseCounts:
        """Add the counts of equal keys, which are in any order and not negative."""
        order = np.argsort(keys, kind="stable")  # merges what is in order already, which parts of a sum are
        in_order = keys[order]
        starts = np.flatnonzero(np.diff(in_order, prepend=-1))
        return cls(in_order[starts], np.add.reduceat(counts[order], starts))

    def __add__(self, other: SparseCounts) -> SparseCounts:
        return SparseCounts.sum([self, other])


EXACT_BINS = 1 << 21
BINS_PER_OCTAVE_BITS = 10


def rank_bins(ranks: Tensor) -> Tensor:
    """Map ranks (plain or doubled) to bins: exact below EXACT_BINS, then 2^10 bins to the octave."""
    if not ranks.numel() or int(ranks.max()) < EXACT_BINS:
        return ranks
    _, exponent = torch.frexp(ranks.double())  # 2^(exponent - 1) <= rank < 2^exponent; exact below 2^53
    exact_bits = EXACT_BINS.bit_length() - 1
    shift = (exponent.long() - 1 - BINS_PER_OCTAVE_BITS).clamp(min=0)
    octave = exponent.long() - 1 - exact_bits
    within = (ranks >> shift) - (1 << BINS_PER_OCTAVE_BITS)
    return torch.where(ranks < EXACT_BINS, ranks, EXACT_BINS + (octave << BINS_PER_OCTAVE_BITS) + within)


def bin_edges(bin_index: int) -> tuple[int, int]:
    """Return the lowest and the highest rank of a bin."""
    if bin_index < EXACT_BINS:
        return bin_index, bin_index
    octave, within = divmod(bin_index - EXACT_BINS, 1 << BINS_PER_OCTAVE_BITS)
    shift = EXACT_BINS.bit_length() - 1 + octave - BINS_PER_OCTAVE_BITS
    low = ((1 << BINS_PER_OCTAVE_BITS) + within) << shift
    return low, low + (1 << shift) - 1


def bin_middles(bins_B: np.ndarray) -> np.ndarray:
    """Return the middle of each of some increasing bins, float64 (B,): the rank itself where a bin holds one."""
    middles = bins_B.astype(np.float64)
    for wide in range(int(np.searchsorted(bins_B, EXACT_BINS)), len(bins_B)):  # at most 2^10 to the octave
        middles[wide] = sum(bin_edges(int(bins_B[wide]))) / 2.0
    return middles


@frozen(eq=False)
class RankHistograms:
    """How often each rank and each number of candidates occurs."""

    ranks: dict[RankType, SparseCounts]  # by bin; realistic ranks are doubled
    num_candidates: SparseCounts  # the true entity included; exact

    @classmethod
    def zero(cls) -> RankHistograms:
        return cls({rank_type: SparseCounts.zero() for rank_type in RankType}, SparseCounts.zero())

    @classmethod
    def of_queries(cls, counts: RankCounts) -> RankHistograms:
        times, repeated = None, counts.repeated
        if repeated is not None:
            counts, times = repeated.counts, repeated.times_D
        ranks = {}
        for rank_type in RankType:
            doubled_Q = counts.doubled_rank(rank_type)
            values_Q = doubled_Q if rank_type is RankType.REALISTIC else doubled_Q >> 1
            ranks[rank_type] = SparseCounts.of_values(rank_bins(values_Q), times)
        return cls(ranks, SparseCounts.of_values(counts.competing_Q + 1, times))

    def __add__(self, other: RankHistograms) -> RankHistograms:
        ranks = {rank_type: self.ranks[rank_type] + other.ranks[rank_type] for rank_type in RankType}
        return RankHistograms(ranks, self.num_candidates + other.num_candidates)

    def parts(self) -> list[SparseCounts]:
        """Return the histograms in a fixed order; `from_parts` reads it."""
        return [*(self.ranks[rank_type] for rank_type in RankType), self.num_candidates]

    @classmethod
    def from_parts(cls, parts: list[SparseCounts]) -> RankHistograms:
        return cls(dict(zip(RankType, parts[:-1], strict=True)), parts[-1])


# Ranks and numbers of candidates of queries that weigh unalike -> histograms by (weight class, value), which add.
#
# A class is a small integer that weights follow from: how many evaluated edges share the query's key. Macro averages of
# medians, geometric means and chance levels need the values of each class apart; a query is in one, so there are no
# more
# entries than queries.

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
