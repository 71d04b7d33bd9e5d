"""Rank counts -> histograms of ranks and of numbers of candidates.

`bins` says which ranks are in a bin. Realistic ranks are doubled, so that they are integers. Numbers of candidates are
kept exactly: chance levels need them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from pbgeval.stats.bins import BINS_PER_OCTAVE_BITS, EXACT_BINS
from pbgeval.stats.keyed_sums import KeyedSums
from pbgeval.stats.rank_types import RankType
from pbgeval.stats.ranks import RankCounts


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


NUM_CANDIDATES = "num_candidates"  # beside the rank types
HISTOGRAMS = (*(rank_type.value for rank_type in RankType), NUM_CANDIDATES)


def histogram_values(counts: RankCounts) -> Iterator[Tensor]:
    """Yield the values that each of `HISTOGRAMS` counts."""
    for rank_type in RankType:
        doubled_Q = counts.doubled_rank(rank_type)
        yield rank_bins(doubled_Q if rank_type is RankType.REALISTIC else doubled_Q >> 1)
    yield counts.num_competitors_Q + 1


@frozen(eq=False)
class RankHistograms:
    """How often each rank and each number of candidates occurs."""

    parts: tuple[KeyedSums, ...]  # in the order of `HISTOGRAMS`

    @classmethod
    def zero(cls) -> RankHistograms:
        return cls((KeyedSums.zero(),) * len(HISTOGRAMS))

    @classmethod
    def from_queries(cls, counts: RankCounts) -> RankHistograms:
        counts, times = counts.each_once()
        return cls(tuple(KeyedSums.from_values(values_Q, times) for values_Q in histogram_values(counts)))

    @classmethod
    def sum(cls, terms: Sequence[RankHistograms]) -> RankHistograms:
        """Add any number of them at once."""
        return cls(tuple(map(KeyedSums.sum, zip(*(term.parts for term in terms or [cls.zero()]), strict=True))))

    def __add__(self, other: RankHistograms) -> RankHistograms:
        return self.sum([self, other])

    def ranks(self, rank_type: RankType) -> KeyedSums:
        """Return how often each bin occurs."""
        return self.parts[HISTOGRAMS.index(rank_type.value)]

    @property
    def num_candidates(self) -> KeyedSums:
        return self.parts[-1]


# Ranks and numbers of candidates of queries that weigh unalike -> histograms by (weight class, value), which add.
#
# A class is a small integer that weights follow from: how many evaluated edges share the query's key. Macro averages of
# medians, geometric means and chance levels need the values of each class apart; a query is in one, so there are no
# more entries than queries.

VALUE_BITS = 36  # of a rank's bin and of a number of candidates
MAX_CLASSES = 1 << 27


def class_histograms(class_Q: np.ndarray, counts: RankCounts, times_Q: np.ndarray | None = None) -> list[KeyedSums]:
    """Return how often each (class, value) occurs in each of `HISTOGRAMS`.

    Args:
        class_Q: int64, from 0 and below MAX_CLASSES.
        counts: over all their candidates, on the CPU.
        times_Q: for how many queries each stands, int64; None: for itself.

    Raises:
        ValueError: a class or a number of candidates is too large.
    """
    if not class_Q.size:
        return [KeyedSums.zero() for _ in HISTOGRAMS]
    if int(class_Q.max()) >= MAX_CLASSES or int(counts.num_competitors_Q.max()) + 1 >= 1 << VALUE_BITS:
        raise ValueError(f"expected classes below 2^27 and fewer than 2^{VALUE_BITS} candidates")
    classes, place_Q = np.unique(class_Q, return_inverse=True)
    found = []
    for values_Q in histogram_values(counts):
        width = int(values_Q.max()) + 1
        # In numbers as small as can be: small ones are counted in a dense table
        local = KeyedSums.from_values(torch.from_numpy(place_Q) * width + values_Q, times_Q)
        place, value = np.divmod(local.keys, width)
        found.append(KeyedSums((classes[place] << VALUE_BITS) | value, local.sums))
    return found


def by_class(counts: KeyedSums) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (class, value, count) of one of `class_histograms`, int64."""
    return counts.keys >> VALUE_BITS, counts.keys & ((1 << VALUE_BITS) - 1), counts.counts
