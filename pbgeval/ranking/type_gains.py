"""Scores of type entities -> levels of gain of each key that asks for types, and what filtering takes from the ideal.

A query here is a key: (entity, relation, ?) with all its true types. Raw, every candidate has its place; filtered,
known types that are not evaluated have none, in the list and in the ideal.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import torch
from attrs import define, frozen
from torch import Tensor

from pbgeval.metrics.taxonomy import Taxonomy, TypeGain, TypePairs
from pbgeval.notation import distinct, is_among
from pbgeval.ranking.query_edges import ContestQueries
from pbgeval.stats.keyed_sums import begins

# Scored candidates with gains -> what NDCG at k needs of each key, the same for any order of blocks.
#
# Candidates of one score are a *level*: only their number and the sum of their gains count, as NDCG is the mean over
# all orders of ties. A level counts while fewer than k candidates score higher, so a key has at most k. Levels add:
# gains are integers, and whoever drops out of a part drops out of the whole.


def with_listed(
    keys: np.ndarray, is_listed_Kk: np.ndarray, key_n: np.ndarray, *columns: tuple[np.ndarray, np.ndarray]
) -> list[np.ndarray]:
    """Return what is in the lists of some keys, and then further candidates: their keys, and columns of both."""
    listed_n = (np.concatenate([table_Kk[keys][is_listed_Kk], column_n]) for table_Kk, column_n in columns)
    return [np.concatenate([np.repeat(keys, is_listed_Kk.sum(1)), key_n]), *listed_n]


@define(eq=False)
class GainLevels:
    """The best levels of some keys so far."""

    score_Kk: np.ndarray  # float64, descending
    count_Kk: np.ndarray  # int64: candidates of the score; 0 where there is no level
    gain_KkG: np.ndarray  # int64: sums of their gains, of each kind

    @classmethod
    def zero(cls, num_keys: int, k: int, num_gains: int) -> GainLevels:
        """Return no levels yet."""
        shape = num_keys, k
        return cls(np.zeros(shape), np.zeros(shape, np.int64), np.zeros((*shape, num_gains), np.int64))

    def floor(self, first: int, stop: int) -> np.ndarray:
        """Return the score below which nobody counts for consecutive keys, float64; -inf where anybody may."""
        count_Kk = self.count_Kk[first:stop]
        last_K = np.maximum((count_Kk > 0).sum(1) - 1, 0)
        is_full_K = count_Kk.sum(1) >= count_Kk.shape[1]
        return np.where(is_full_K, self.score_Kk[first:stop][np.arange(stop - first), last_K], -np.inf)

    def merge(self, key: np.ndarray, score: np.ndarray, count: np.ndarray, gain_nG: np.ndarray) -> None:
        """Let further candidates count, or levels of them: (key, score, how many, sums of gains) each."""
        if not key.size:
            return
        keys = distinct(key)
        columns = (self.score_Kk, score), (self.count_Kk, count), (self.gain_KkG, gain_nG)
        key, score, count, gain_nG = with_listed(keys, self.count_Kk[keys] > 0, key, *columns)
        order = np.lexsort((-score, key))
        key, score = key[order], score[order]
        starts = np.flatnonzero(begins(key, score))
        key, score = key[starts], score[starts]
        count = np.add.reduceat(count[order], starts)
        gain_nG = np.add.reduceat(gain_nG[order], starts, axis=0)
        before = np.cumsum(count) - count
        first_of_key = np.searchsorted(key, key)
        place = np.arange(key.size) - first_of_key
        kept = before - before[first_of_key] < self.count_Kk.shape[1]
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
        table = packed.reshape(-1, 3 + self.gain_KkG.shape[2])
        self.merge(table[:, 0], np.ascontiguousarray(table[:, 1]).view(np.float64), table[:, 2], table[:, 3:])


FRACTION_BITS = 40  # of gains, at most 1: 2^22 tied candidates add up
GAINS = tuple(TypeGain)  # in the order of the last dimension


@frozen(eq=False)
class TypeEntities:
    """Which entities are types of a hierarchy."""

    taxonomy: Taxonomy
    number_T: np.ndarray  # int64, ascending
    type_T: np.ndarray  # int64: index in the hierarchy

    def types(self, number_P: np.ndarray) -> np.ndarray:
        """Return the type that each entity is, int64; -1: none."""
        at_P = np.minimum(np.searchsorted(self.number_T, number_P), len(self.number_T) - 1)
        return np.where(self.number_T[at_P] == number_P, self.type_T[at_P], -1)

    def gains(self) -> np.ndarray:
        """Return the gain at each distance in fixed point, int64 (max_depth + 1, G)."""
        distance_H = np.arange(self.taxonomy.max_depth + 1)
        gain_HG = np.stack([self.taxonomy.gains(distance_H, gain) for gain in GAINS], axis=1)
        return np.asarray(np.rint(gain_HG * 2.0**FRACTION_BITS).astype(np.int64))


@frozen(eq=False)
class TypeTruth:
    """The keys of a contest that ask for types (letter L), and their true ones."""

    entities: TypeEntities
    key_L: np.ndarray  # int64, ascending: index among the contest's keys
    first_L: np.ndarray  # int64: where a key's true entities begin
    true_n: np.ndarray  # int64: numbers of true entities, ascending within a key
    num_entities: int

    @classmethod
    def of_queries(
        cls, queries: ContestQueries, relations: np.ndarray, entities: TypeEntities, num_entities: int
    ) -> TypeTruth:
        """Find the keys of some relations.

        Args:
            queries: of one contest, which hides the side of types.
            relations: sorted ids.
            entities: which entities are types.
            num_entities: of all types.
        """
        key_L = np.flatnonzero(is_among(queries.rel_K, relations))
        asks_Q = is_among(queries.key_Q, key_L)
        codes = distinct(queries.key_Q[asks_Q] * num_entities + queries.true_Q[asks_Q])  # repeated edges count once
        return cls(entities, key_L, np.searchsorted(codes, key_L * num_entities), codes % num_entities, num_entities)

    @property
    def num_keys(self) -> int:
        return len(self.key_L)

    @property
    def stop_L(self) -> np.ndarray:
        """One past the last true entity of each key."""
        return np.append(self.first_L[1:], len(self.true_n))

    @cached_property
    def type_n(self) -> np.ndarray:
        """The types of `true_n`; -1: not in the hierarchy."""
        return self.entities.types(self.true_n)

    @cached_property
    def code_n(self) -> np.ndarray:
        """Row of `key_L` x `num_entities` + entity of `true_n`, int64, ascending."""
        row_n: np.ndarray = np.repeat(np.arange(self.num_keys), self.stop_L - self.first_L)
        return np.asarray(row_n * self.num_entities + self.true_n)

    @cached_property
    def _pairs(self) -> TypePairs:
        return self.entities.taxonomy.pairs(self.type_n[self.type_n >= 0].tolist())

    def distances(self, row_P: np.ndarray, number_P: np.ndarray) -> np.ndarray:
        """Return the distance of each entity of the nearest true type of a row of `key_L`, int64; -1: infinite."""
        num_true_P = (self.stop_L - self.first_L)[row_P]  # at least one: keys come from edges
        starts_P = np.cumsum(num_true_P) - num_true_P
        true_m = np.repeat(self.first_L[row_P] - starts_P, num_true_P) + np.arange(num_true_P.sum())
        distance_m = self._pairs.distances(self.type_n[true_m], np.repeat(self.entities.types(number_P), num_true_P))
        farther = self.entities.taxonomy.max_depth + 1
        if not row_P.size:
            return np.empty(0, np.int64)
        nearest_P = np.minimum.reduceat(np.where(distance_m < 0, farther, distance_m), starts_P)
        return np.where(nearest_P == farther, -1, nearest_P)


MAX_PASSING = 2  # times k: of a block's candidates for a key; where more beat the list so far, its k best are found


def passing_cells(
    scores_KC: Tensor, floor_K: np.ndarray, k: int, out: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (row, column, score) of all cells that may be among the k best of their row, and perhaps of some others.

    Args:
        scores_KC: of a block.
        floor_K: float64: whoever is below is none of them, as k others that a row has met are not.
        k: at least 1.
        out: (row, column) of cells that do not count.
    """
    num_rows, num_columns = scores_KC.shape
    if out[0].size:
        scores_KC = scores_KC.clone()
        scores_KC[tuple(torch.from_numpy(index).to(scores_KC.device) for index in out)] = -torch.inf
    floor_K1 = torch.from_numpy(floor_K).to(scores_KC.device, scores_KC.dtype).unsqueeze(1)
    cells = (scores_KC >= floor_K1).nonzero(as_tuple=True)
    if num_columns >= k and len(cells[0]) > MAX_PASSING * k * num_rows:
        best_Kk = torch.topk(scores_KC, k, dim=1).values
        cells = (scores_KC >= torch.maximum(floor_K1, best_Kk[:, -1:])).nonzero(as_tuple=True)
    row, column, score = (of.cpu().numpy() for of in (*cells, scores_KC[cells].double()))
    counts = ~np.isin(row * num_columns + column, out[0] * num_columns + out[1])
    return row[counts], column[counts], score[counts]


@define(eq=False)
class TypeGains:
    """What the keys of one contest that ask for types have met so far."""

    truth: TypeTruth
    k: int  # the greatest cut-off
    filtered: bool
    raw: GainLevels
    unknown: GainLevels  # without known types; unused where nothing is filtered
    excluded_LH: np.ndarray  # int64: known types by distance, which filtering takes away
    gain_HG: np.ndarray  # int64: at each distance; zeros in the last row, of distance -1

    @classmethod
    def zero(cls, truth: TypeTruth, k: int, *, filtered: bool) -> TypeGains:
        """Return what keys have met before their first candidate."""
        gain_HG = np.concatenate([truth.entities.gains(), np.zeros((1, len(GAINS)), np.int64)])
        raw = GainLevels.zero(truth.num_keys, k, len(GAINS))
        unknown = GainLevels.zero(truth.num_keys if filtered else 0, k, len(GAINS))
        excluded_LH = np.zeros((truth.num_keys, truth.entities.taxonomy.max_depth + 1), np.int64)
        return cls(truth, k, filtered, raw, unknown, excluded_LH, gain_HG)

    def add(
        self, first_key: int, scores_KC: Tensor, numbers_C: np.ndarray, known: tuple[np.ndarray, np.ndarray]
    ) -> None:
        """Let candidates count for consecutive keys of the contest; none meets a key twice.

        Args:
            first_key: the first of the block's keys.
            scores_KC: what they are ranked by.
            numbers_C: ascending.
            known: (row, column) of the known answers.
        """
        first, stop = np.searchsorted(self.truth.key_L, [first_key, first_key + scores_KC.shape[0]]).tolist()
        if first == stop:
            return
        row_l = self.truth.key_L[first:stop] - first_key
        scores_LC = scores_KC.index_select(0, torch.from_numpy(row_l).to(scores_KC.device))
        nobody = np.empty(0, np.int64)
        self._offer(self.raw, first, scores_LC, numbers_C, (nobody, nobody))
        if not self.filtered:
            return
        row, column = known
        asks = is_among(row, row_l)
        row, column = np.searchsorted(row_l, row[asks]), column[asks]
        is_other = ~is_among((first + row) * self.truth.num_entities + numbers_C[column], self.truth.code_n)
        out = row[is_other], column[is_other]
        distance = self.truth.distances(first + out[0], numbers_C[out[1]])
        np.add.at(self.excluded_LH, (first + out[0][distance >= 0], distance[distance >= 0]), 1)
        self._offer(self.unknown, first, scores_LC, numbers_C, out)

    def _offer(
        self,
        levels: GainLevels,
        first: int,
        scores_LC: Tensor,
        numbers_C: np.ndarray,
        out: tuple[np.ndarray, np.ndarray],
    ) -> None:
        """Let all candidates but some cells compete for places."""
        row, column, score = passing_cells(scores_LC, levels.floor(first, first + scores_LC.shape[0]), self.k, out)
        distance = self.truth.distances(first + row, numbers_C[column])
        # One zero, not two.
        levels.merge(first + row, score + 0.0, np.ones(row.size, np.int64), self.gain_HG[distance])

    def pack(self) -> list[np.ndarray]:
        """Return everything as arrays of int64 (n,), for `add_packed`."""
        return [self.raw.packed(), self.unknown.packed(), self.excluded_LH.reshape(-1)]

    def add_packed(self, arrays: Iterator[np.ndarray]) -> None:
        """Add what others of the same keys have met, given as `pack` made it, one after the other."""
        self.raw.merge_packed(next(arrays))
        self.unknown.merge_packed(next(arrays))
        self.excluded_LH += next(arrays).reshape(-1, *self.excluded_LH.shape).sum(0)
