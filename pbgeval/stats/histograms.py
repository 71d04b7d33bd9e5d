"""Rank counts -> histograms of ranks and of numbers of candidates.

Ranks below EXACT_BINS have a bin of their own; beyond, 2^10 bins to the octave, a relative width of 2^-10.
Realistic ranks are doubled, so that they are integers. Numbers of candidates are kept exactly: chance levels need them.
"""

from __future__ import annotations

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from pbgeval.ranking import RankCounts, RankType
from pbgeval.stats.sparse import SparseCounts

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
