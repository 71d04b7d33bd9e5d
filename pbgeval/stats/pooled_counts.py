"""Scores of competitors -> how many are below each true score and how many tie: integers that add in any order.

Figures of a pool that is too large to keep follow from these counts, but for the threshold of a confusion matrix: it is
the n-th highest score of n true ones and all competitors. So the n highest competitors are kept, with all ties.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

import numpy as np
import torch
from attrs import frozen

from pbgeval.stats.keyed_sums import KeyedSums, first_of_each

LOWEST = -(1 << 31)  # of the order images, which become keys from 0


@frozen(eq=False)
class PooledCounts:
    """Some competitors' scores, compared with all true scores of an evaluation."""

    true_K: np.ndarray  # int32 order images, ascending, each once
    num_kept: int  # of the highest competitors, at least; those that tie with the last are kept, too
    places_2K: np.ndarray  # int64: competitors that are lower than each true score, and that are not higher
    num_competing: int
    highest: KeyedSums  # how many competitors have each of the highest scores, by order image - LOWEST

    @classmethod
    def nothing(cls) -> Self:
        """Return what any others can be added to."""
        return cls.zero(np.empty(0, np.int32), 0)

    @classmethod
    def zero(cls, true_K: np.ndarray, num_kept: int) -> Self:
        """Return the counts of no competitors."""
        return cls(true_K, num_kept, np.zeros((2, len(true_K)), np.int64), 0, KeyedSums.zero())

    def plus(self, sorted_P: np.ndarray) -> PooledCounts:
        """Add competitors, given by ascending order images."""
        places_2K = np.stack([np.searchsorted(sorted_P, self.true_K, side) for side in ("left", "right")])
        least = int(sorted_P[-self.num_kept]) if 0 < self.num_kept < len(sorted_P) else LOWEST
        if 0 < self.num_kept <= self.highest.counts.sum():
            least = max(least, int(self.highest.keys[0]) + LOWEST)
        high = sorted_P[np.searchsorted(sorted_P, np.int32(least)) :] if self.num_kept else sorted_P[:0]
        found = KeyedSums.from_values(torch.from_numpy(high.astype(np.int64) - LOWEST))
        return self + PooledCounts(self.true_K, self.num_kept, places_2K, len(sorted_P), found)

    def __add__(self, other: PooledCounts) -> PooledCounts:
        """Add other competitors, compared with the same true scores."""
        if self.num_kept != other.num_kept:  # one of them is nothing
            return other if other.num_kept else self
        highest = self.highest + other.highest
        # How many are at least as high as each: below as many as are kept, none is needed, whatever is added later.
        at_least = np.cumsum(highest.counts[::-1])[::-1]
        first = max(int((at_least >= self.num_kept).sum()) - 1, 0)
        return PooledCounts(
            self.true_K,
            self.num_kept,
            self.places_2K + other.places_2K,
            self.num_competing + other.num_competing,
            highest.select(slice(first, None)),
        )

    def pack(self) -> list[np.ndarray]:
        """Return everything as arrays (n,) that `unpack` takes."""
        sizes = np.array([self.num_kept, self.num_competing])
        return [self.true_K, self.places_2K.reshape(-1), sizes, self.highest.keys, self.highest.counts]

    @classmethod
    def unpack(cls, arrays: Iterator[np.ndarray]) -> Self:
        """Take what another one packed; further arrays are left."""
        true_K, places, sizes, keys, counts = (next(arrays).astype(np.int64) for _ in range(5))
        num_kept, num_competing = sizes.tolist()
        return cls(
            true_K.astype(np.int32),
            num_kept,
            places.reshape(2, -1),
            num_competing,
            KeyedSums(keys, counts[:, None]),
        )

    def doubled_wins(self, true: np.ndarray) -> int:
        """Return twice the wins plus the ties of some of the true scores, given by ascending order images."""
        images, positive = _counted(true)
        return int((positive * self.places_2K[:, self._at(images)].sum(0)).sum())

    def num_above(self, true: np.ndarray, k: int) -> int:
        """Count those of some true scores that are above the k-th best competitor."""
        return int((self.num_competing - self.places_2K[0, self._at(true)] < k).sum())

    def by_score(self, true: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return how many true scores and how many competitors have each score, scores decreasing.

        Competitors below those that are kept are between two true scores: they are added up, which moves no threshold
        of a true score.

        Args:
            true: some of the true scores, as ascending order images; at most as many as are kept.
        """
        images, positive = _counted(true)
        scores, num_high = self.highest.keys + LOWEST, self.highest.counts
        num_low = int(np.searchsorted(images, scores[0])) if len(scores) else len(images)
        low, of_high = slice(0, num_low), slice(num_low, None)
        # Below, at and between the lower ones, in turn.
        up_to = self.places_2K[:, self._at(images[low])].T.reshape(-1)
        negative_low = np.diff(up_to, prepend=0, append=self.num_competing - num_high.sum())
        positive_low = np.zeros_like(negative_low)
        positive_low[1::2] = positive[low]
        high = np.union1d(images[of_high], scores)
        positive_high, negative_high = np.zeros((2, len(high)), np.int64)
        positive_high[np.searchsorted(high, images[of_high])] = positive[of_high]
        negative_high[np.searchsorted(high, scores)] = num_high
        positive_K, negative_K = (
            np.concatenate(parts)[::-1] for parts in ((positive_low, positive_high), (negative_low, negative_high))
        )
        occurs_K = positive_K + negative_K > 0
        return positive_K[occurs_K], negative_K[occurs_K]

    def _at(self, images: np.ndarray) -> np.ndarray:
        at: np.ndarray = np.searchsorted(self.true_K, images)
        return at


def _counted(ascending: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    images, first = first_of_each(ascending)
    return images, np.diff(np.append(first, len(ascending)))
