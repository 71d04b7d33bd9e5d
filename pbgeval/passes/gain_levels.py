"""Scored candidates with gains -> what NDCG at k needs of each key, the same for any order of blocks.

Candidates of one score are a *level*: only their number and the sum of their gains count, as NDCG is the mean over all
orders of ties. A level counts while fewer than k candidates score higher, so a key has at most k. Levels add: gains are
integers, and whoever drops out of a part drops out of the whole.
"""

from __future__ import annotations

import numpy as np
from attrs import define, field

from pbgeval.distinct import distinct


@define(eq=False)
class GainLevels:
    """The best levels of some keys so far."""

    num_keys: int
    k: int
    num_gains: int  # kinds of gains, G
    score_Kk: np.ndarray = field(init=False)  # float64, descending
    count_Kk: np.ndarray = field(init=False)  # int64: candidates of the score; 0 where there is no level
    gain_KkG: np.ndarray = field(init=False)  # int64: sums of their gains

    def __attrs_post_init__(self) -> None:
        self.score_Kk = np.zeros((self.num_keys, self.k))
        self.count_Kk = np.zeros((self.num_keys, self.k), np.int64)
        self.gain_KkG = np.zeros((self.num_keys, self.k, self.num_gains), np.int64)

    def floor(self, first: int, stop: int) -> np.ndarray:
        """Return the score below which nobody counts for consecutive keys, float64; -inf where anybody may."""
        count_Kk = self.count_Kk[first:stop]
        last_K = np.maximum((count_Kk > 0).sum(1) - 1, 0)
        floor_K = self.score_Kk[first:stop][np.arange(stop - first), last_K]
        return np.where(count_Kk.sum(1) >= self.k, floor_K, -np.inf)

    def merge(self, key: np.ndarray, score: np.ndarray, count: np.ndarray, gain_nG: np.ndarray) -> None:
        """Let further candidates count, or levels of them: (key, score, how many, sums of gains) each."""
        if not key.size:
            return
        keys = distinct(key)
        listed_Kk = self.count_Kk[keys] > 0
        key = np.concatenate([np.repeat(keys, listed_Kk.sum(1)), key])
        score = np.concatenate([self.score_Kk[keys][listed_Kk], score])
        count = np.concatenate([self.count_Kk[keys][listed_Kk], count])
        gain_nG = np.concatenate([self.gain_KkG[keys][listed_Kk], gain_nG])
        order = np.lexsort((-score, key))
        key, score = key[order], score[order]
        starts = np.flatnonzero(np.r_[True, (key[1:] != key[:-1]) | (score[1:] != score[:-1])])
        key, score = key[starts], score[starts]
        count = np.add.reduceat(count[order], starts)
        gain_nG = np.add.reduceat(gain_nG[order], starts, axis=0)
        before = np.cumsum(count) - count
        first_of_key = np.searchsorted(key, key)
        place = np.arange(key.size) - first_of_key
        kept = before - before[first_of_key] < self.k
        self.count_Kk[keys] = 0
        at = (key[kept], place[kept])
        self.score_Kk[at], self.count_Kk[at], self.gain_KkG[at] = score[kept], count[kept], gain_nG[kept]

    def packed(self) -> np.ndarray:
        """Return all levels as one int64 array (n,), for `merge_packed`."""
        key, place = np.nonzero(self.count_Kk)
        columns = [key, self.score_Kk.view(np.int64)[key, place], self.count_Kk[key, place]]
        return np.column_stack([*columns, self.gain_KkG[key, place]]).astype(np.int64).reshape(-1)

    def merge_packed(self, packed: np.ndarray) -> None:
        """Add levels that `packed` made, one after the other."""
        table = packed.reshape(-1, 3 + self.num_gains)
        score = np.ascontiguousarray(table[:, 1]).view(np.float64)
        self.merge(table[:, 0], score, table[:, 2], table[:, 3:])
