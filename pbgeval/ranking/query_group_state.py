"""The prepared queries of one query group, and the results summed over the candidates that stream past."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from itertools import pairwise

import numpy as np
import torch
from attrs import astuple, define, field, frozen
from torch import Tensor

from pbgeval.errors import EvalError
from pbgeval.notation import Side, distinct
from pbgeval.ranking.auc_sampling import AucSampling
from pbgeval.ranking.backend import Backend
from pbgeval.ranking.best_on_device import add_best, empty_lists, listed
from pbgeval.ranking.block import QueryRows
from pbgeval.ranking.groups import QuerySource, refuse_nan_of_pairs, refused_by_name
from pbgeval.ranking.pooled_scores import PooledScores
from pbgeval.ranking.query_edges import (
    CompetingEntities,
    GroupQueries,
    QueryBlock,
    QueryEdges,
)
from pbgeval.ranking.settings import LossSettings
from pbgeval.ranking.tally import LossFold
from pbgeval.scoring import device_scores
from pbgeval.scoring.block_scorer import RowComparator, ScorerComparator
from pbgeval.scoring.block_sizes import sizes_on
from pbgeval.scoring.deferred import Deferred
from pbgeval.scoring.exact import ExactComparator
from pbgeval.scoring.true_scores import VALUE, ExactTrue, TrueScores, fields_of_true
from pbgeval.stats.ranks import QueryCounts
from pbgeval.storage.rows import Rows
from pbgeval.storage.transfers import sent, sent_together

# What the pooled AUC compares: cells (query, candidate) and their scores.


@frozen(eq=False)
class CellSample:
    """Cells (query, entity id), ordered by query or by candidate as needed."""

    query_P: np.ndarray  # int64: position among the query group's queries
    entity_id_P: np.ndarray  # int64: the candidate's entity id

    @classmethod
    def by_entity_id(cls, query_P: np.ndarray, entity_id_P: np.ndarray) -> CellSample:
        """Arrange cells so that `within` finds those of a range of candidates."""
        order = np.argsort(entity_id_P)
        return cls(query_P[order], entity_id_P[order])

    def within(self, first: int, stop: int) -> CellSample:
        """Return the cells of the candidates from `first` up to `stop`, by query, then candidate."""
        low, high = np.searchsorted(self.entity_id_P, [first, stop])
        bits = (stop - first).bit_length()  # packed in one integer: sorting is faster than argsort
        code = np.sort((self.query_P[low:high] << bits) + self.entity_id_P[low:high] - first)
        return CellSample(code >> bits, (code & (1 << bits) - 1) + first)

    def of_queries(self, first: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (query, entity id) of the cells of consecutive queries, once arranged by query."""
        low, high = np.searchsorted(self.query_P, [first, stop])
        return self.query_P[low:high], self.entity_id_P[low:high]


@define
class ScoreCollector:
    """Scores of competitors, with the query that each belongs to."""

    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = field(factory=list)  # query, float32 score, is known

    def add(self, query_P: np.ndarray, score_P: Tensor, known_P: np.ndarray | None) -> None:
        """Add scores of competitors, from any thread.

        `known_P` marks known answers (None: nothing is filtered).
        """
        known_P = np.zeros(query_P.shape, bool) if known_P is None else known_P
        self.parts.append((query_P, score_P.float().cpu().numpy(), known_P))

    def pack(self) -> list[np.ndarray]:
        """Return (query, bits of the score, known) of all scores added, for `add_packed`."""
        query, score, known = self.joined()
        return [query, score.view(np.int32), known]

    def add_packed(self, arrays: Iterator[np.ndarray]) -> None:
        """Add the scores that another collector packed, as integers of any type."""
        query, bits, known = (next(arrays) for _ in range(3))
        self.parts.append((query.astype(np.int64), bits.astype(np.int32).view(np.float32), known.astype(bool)))

    def joined(self) -> list[np.ndarray]:
        """Return (query, score, known) of all scores added, int64, float32 and bool."""
        return [
            np.concatenate([np.empty(0, dtype), *(part[at] for part in self.parts)])
            for at, dtype in enumerate((np.int64, np.float32, np.bool_))
        ]


@frozen(eq=False)
class SampledCells:
    """The cells and true scores of one query group that the pooled AUC samples."""

    cells: CellSample  # arranged by candidate
    true_kept_Q: np.ndarray  # bool: whether the true score is sampled


ROWS_AT_A_TIME = 1 << 14  # of a bucket, drawn together; does not change the results


def sample_cells(
    edges: QueryEdges, queries: GroupQueries, competing: CompetingEntities, auc: AucSampling, seed: int
) -> SampledCells | None:
    """Draw the cells of a query group by (seed, row of the edge, candidate); None where every cell is kept.

    A draw is a position among the competing entities in the order of their ids, so it does not depend on which
    worker scores them or when.
    """
    if auc.exact:
        return None
    position_E = np.full(edges.num_edges, -1, np.int64)
    position_E[queries.edge_Q] = np.arange(queries.num_queries)
    true_kept_Q = np.zeros(queries.num_queries, bool)
    parts = [np.empty((2, 0), np.int64)]
    for segment in edges.segments:
        for first in range(segment.start, segment.stop, ROWS_AT_A_TIME):
            edge = np.arange(first, min(first + ROWS_AT_A_TIME, segment.stop))
            edge = edge[position_E[edge] >= 0]
            words_QD = auc.words(seed, segment.origin.place, queries.query_group.hidden, edges.row_E[edge])
            assert words_QD is not None, "an exact AUC draws nothing"
            true_kept_Q[position_E[edge]] = auc.true_is_kept(words_QD).numpy()
            parts.append(drawn_cells(position_E[edge], edges.columns.rel_n[edge], words_QD, competing, auc))
    return SampledCells(CellSample.by_entity_id(*np.concatenate(parts, axis=1)), true_kept_Q)


def drawn_cells(
    query_Q: np.ndarray, rel_Q: np.ndarray, words_QD: Tensor, competing: CompetingEntities, auc: AucSampling
) -> np.ndarray:
    """Return (query, candidate) of the cells that some queries' random words select, int64 (2, n)."""
    parts = [np.empty((2, 0), np.int64)]
    relation_Q = competing.relation_or_any(rel_Q)
    for relation in distinct(relation_Q).tolist():
        in_relation = np.flatnonzero(relation_Q == relation)
        query, place = (
            index.numpy() for index in auc.cells(words_QD[torch.from_numpy(in_relation)], competing.size(relation))
        )
        entity_ids = competing.entity_ids(relation)
        entity_id = competing.first + place if entity_ids is None else entity_ids[place]
        parts.append(np.stack([query_Q[in_relation][query], entity_id]))
    return np.concatenate(parts, axis=1)


# Blocks of scores -> the k best candidates of each key, the same for any order of blocks.
#
# Ties are broken by entity id, so that the list does not depend on how candidates were cut into blocks. Known
# answers and the true entity stay in the list; known ones are marked. Recommendations leave out known ones.


# Times k: if more of a block's candidates for a key beat its list so far, find the block's k best first.
MAX_PASSING = 2


def _passing_cells(
    scores_KC: Tensor, floor_K: np.ndarray, k: int, out: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (row, column, score) of every cell that may be among the k best of its row, and perhaps of others.

    Args:
        scores_KC: of a block.
        floor_K: float64: the k-th best score of each row so far; a lower score is not among the best.
        k: at least 1.
        out: (row, column) of cells to leave out.
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
    row, column, score = (values.cpu().numpy() for values in (*cells, scores_KC[cells].double()))
    counts = ~np.isin(row * num_columns + column, out[0] * num_columns + out[1])
    return row[counts], column[counts], score[counts]


@define
class TopCandidates:
    """The best candidates of the keys of one query group so far."""

    score_Kk: np.ndarray  # float64, descending; -inf where there is none
    entity_id_Kk: np.ndarray  # int64; -1 where there is none
    known_Kk: np.ndarray  # bool
    # (keys, entity ids) -> which are evaluated answers; other known answers are left out. None: none are.
    is_answer: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None
    _on_device: Tensor | None = None  # what blocks on a GPU have added since the lists were last packed
    _delivered: Tensor | None = None  # the same, on the host

    @classmethod
    def zero(
        cls, shape: tuple[int, ...], is_answer: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None
    ) -> TopCandidates:
        """Return empty lists of shape (keys, candidates to keep)."""
        return cls(np.full(shape, -np.inf), np.full(shape, -1, np.int64), np.zeros(shape, bool), is_answer)

    def add(
        self, first_key: int, scores_KC: Tensor, entity_ids_C: np.ndarray, known: tuple[np.ndarray, np.ndarray]
    ) -> None:
        """Merge the candidates of a block into the lists of consecutive keys.

        Args:
            first_key: the first of the block's keys.
            scores_KC: what they are ranked by.
            entity_ids_C: ascending.
            known: (row, column) of the known answers, none where nothing is filtered.
        """
        num_keys, num_columns = scores_KC.shape
        known_row, known_column = known
        known_key, none_out = first_key + known_row, np.zeros(known_row.shape, bool)
        is_out = none_out if self.is_answer is None else ~self.is_answer(known_key, entity_ids_C[known_column])
        if device_scores.supports(scores_KC.device):
            if self._on_device is None:
                self._on_device = empty_lists(self.score_Kk.shape, scores_KC.device)
            add_best(self._on_device, first_key, scores_KC, entity_ids_C, known, is_out)
            return
        # A score below the k-th of the list so far, or of this block, is not among the best of both.
        row, column, score = _passing_cells(
            scores_KC,
            self.score_Kk[first_key : first_key + num_keys, -1],
            self.score_Kk.shape[1],
            (known_row[is_out], known_column[is_out]),
        )
        is_known = np.isin(row * num_columns + column, known_row * num_columns + known_column)
        self.merge(row + first_key, score, entity_ids_C[column], is_known)

    def merge(self, key: np.ndarray, score: np.ndarray, entity_id: np.ndarray, known: np.ndarray) -> None:
        """Merge candidates into the lists, given as (key, score, entity id, is known)."""
        keys = distinct(key)
        is_listed_Kk = self.entity_id_Kk[keys] >= 0
        key = np.concatenate([np.repeat(keys, is_listed_Kk.sum(1)), key])
        columns = (self.score_Kk, score), (self.entity_id_Kk, entity_id), (self.known_Kk, known)
        score, entity_id, known = (np.concatenate([of_Kk[keys][is_listed_Kk], new]) for of_Kk, new in columns)
        order = np.lexsort((entity_id, -score, key))
        key, score, entity_id, known = key[order], score[order], entity_id[order], known[order]
        place = np.arange(key.size) - np.searchsorted(key, key)
        kept = place < self.score_Kk.shape[1]
        at = (key[kept], place[kept])
        self.score_Kk[at], self.entity_id_Kk[at], self.known_Kk[at] = score[kept], entity_id[kept], known[kept]

    def copy(self) -> TopCandidates:
        """Return lists that stay as these are now."""
        tables = self.score_Kk.copy(), self.entity_id_Kk.copy(), self.known_Kk.copy()
        return TopCandidates(*tables, self.is_answer, None if self._on_device is None else self._on_device.clone())

    def defer(self, deferred: Deferred) -> None:
        """Deliver what is on a GPU with other results of it."""
        if self._on_device is not None:
            deferred.add(self._keep, self._on_device)

    def _keep(self, lists_3Kk: Tensor) -> None:
        self._delivered = lists_3Kk

    def pack(self) -> list[np.ndarray]:
        """Return the lists as one int64 array (n,), for `add_packed` of another worker."""
        if self._on_device is not None:
            assert self._delivered is not None, "they are delivered with the counts of a range"
            self.merge(*listed(self._delivered))
            self._on_device, self._delivered = None, None
        key, place = np.nonzero(self.entity_id_Kk >= 0)
        columns = [
            key,
            self.score_Kk.view(np.int64)[key, place],
            self.entity_id_Kk[key, place],
            self.known_Kk[key, place],
        ]
        return [np.stack(columns, axis=1).astype(np.int64).reshape(-1)]

    def add_packed(self, arrays: Iterator[np.ndarray]) -> None:
        """Merge the lists of other workers, as `pack` returns them, concatenated."""
        key, score, entity_id, known = np.ascontiguousarray(next(arrays).reshape(-1, 4).T)
        self.merge(key, score.view(np.float64), entity_id, known.astype(bool))


@define(eq=False)
class GroupResult:
    """The results of a query group, summed over candidates."""

    counts_NQ: Tensor  # int64: the rows of `QueryCounts`
    scores: ScoreCollector = field(factory=ScoreCollector)
    top: TopCandidates | None = None
    pooled: PooledScores | None = None  # None: pools are kept, sampled or not requested

    def empty(self) -> GroupResult:
        """Return the result of the same queries before any candidate."""
        top = self.top and TopCandidates.zero(self.top.score_Kk.shape, self.top.is_answer)
        pooled = self.pooled and self.pooled.empty()
        return GroupResult(torch.zeros_like(self.counts_NQ), top=top, pooled=pooled)

    def copy(self) -> GroupResult:
        """Return a result that stays as this one is now."""
        return GroupResult(
            self.counts_NQ.clone(),
            ScoreCollector([*self.scores.parts]),
            self.top and self.top.copy(),
            self.pooled and self.pooled.copy(),
        )

    @property
    def _parts(self) -> list[ScoreCollector | TopCandidates | PooledScores]:
        return [self.scores, *(part for part in (self.top, self.pooled) if part is not None)]

    def pack(self) -> list[np.ndarray]:
        """Return everything as arrays of integers (n,), for `add_packed`."""
        return [self.counts_NQ.numpy().reshape(-1), *(array for part in self._parts for array in part.pack())]

    def add_packed(self, arrays: Iterator[np.ndarray]) -> None:
        """Add a packed result of the same queries; leave later arrays in the iterator."""
        self.counts_NQ += torch.from_numpy(next(arrays)).view_as(self.counts_NQ)
        for part in self._parts:
            part.add_packed(arrays)


def rows_to_keep(
    queries: GroupQueries, dimension: int, dtype: torch.dtype
) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Return the shape and type of what a `QueryGroupState` keeps: prepared queries, and each field of true scores."""
    query_group = queries.query_group
    fields = fields_of_true(dimension, dtype, exact=query_group.scorer.exact_comparator is not None)
    prepared = (queries.num_keys, query_group.width(dimension)), dtype
    return [prepared, *(((queries.num_queries, *shape), number) for shape, number in fields)]


@define(eq=False)
class QueryGroupState:
    """One query group while candidates stream past."""

    queries: GroupQueries
    competing: CompetingEntities
    backend: Backend
    source: QuerySource
    prepared: Rows  # (K, D'): a prepared query per key
    true_scores: Sequence[Rows]  # by field of `TrueScores`, or of `ExactTrue`: of each query
    dtype: torch.dtype  # of vectors before they are prepared
    device: torch.device
    sample: SampledCells | None = None  # None: the pooled AUC compares every score
    loss: LossSettings | None = None
    in_time_Q: np.ndarray | None = None  # int64: position of each query's key in the time-aware filter; None: none
    result: GroupResult = field(init=False)
    losses: dict[int, LossFold] = field(factory=dict, init=False)  # by the first query of a block
    lock: threading.Lock = field(factory=threading.Lock, init=False)  # held by the thread that hands scores over
    # For a model that scores all entities of a query at once: which true scores are made, at first use by a block.
    _is_read_Q: np.ndarray | None = field(default=None, init=False)  # bool
    _true_value_Q: Tensor | None = field(default=None, init=False)  # what was delivered of `true_values`

    def __attrs_post_init__(self) -> None:
        num_rows = 6 if self.in_time_Q is None else 9
        self.result = GroupResult(torch.zeros((num_rows, self.queries.num_queries), dtype=torch.int64))
        if isinstance(self.comparator, ScorerComparator) and self.comparator.by_rows is not None:
            self._is_read_Q = np.zeros(self.queries.num_queries, bool)

    @property
    def hidden(self) -> Side:
        return self.queries.query_group.hidden

    @property
    def comparator(self) -> RowComparator:
        return self.queries.query_group.scorer.comparator

    @property
    def exact_comparator(self) -> ExactComparator | None:
        """The comparator in exact arithmetic, if ranks are exact."""
        return self.queries.query_group.scorer.exact_comparator

    @property
    def pool(self) -> ScoreCollector | PooledScores | None:
        """The collector of every competitor's score, usable from any thread; None: a sample is enough."""
        if self.result.pooled is not None:
            return self.result.pooled
        return self.result.scores if self.sample is None else None

    @cached_property
    def _sent(self) -> Sequence[Tensor]:
        """The relation of each key and the key of each query, on the device."""
        of_queries = torch.from_numpy(self.queries.rel_K), torch.from_numpy(self.queries.key_Q)
        return sent_together(self.device, *of_queries)

    def _rows_of_keys(self, first: int, stop: int, first_key: int) -> Tensor:
        """Return the rows of consecutive queries' keys among prepared ones from a first key on."""
        key_Q = self._sent[1][first:stop]
        return key_Q - first_key if first_key else key_Q

    def true(self, block: QueryBlock) -> TrueScores | ExactTrue:
        """Return the true scores of a block."""
        self._read_true_scores(block)
        kind = TrueScores if self.exact_comparator is None else ExactTrue
        return kind(*(sent(rows.read(block.first, block.stop), self.device) for rows in self.true_scores))

    def _read_true_scores(self, block: QueryBlock) -> None:
        """Have a model that scores all entities at once make the true scores of a block, once."""
        if self._is_read_Q is None or self._is_read_Q[block.first : block.stop].all():
            return
        row_Q = self._rows_of_keys(block.first, block.stop, block.first_key)
        self._write_true_scores(self.prepared_queries(block, self.device), row_Q, (block.first, block.stop))
        self._is_read_Q[block.first : block.stop] = True

    def prepared_queries(self, block: QueryBlock, device: torch.device) -> Tensor:
        """Return the prepared rows of a block's keys."""
        return sent(self.prepared.read(block.first_key, block.stop_key), device)

    def query_rows(self, block: QueryBlock) -> QueryRows:
        """Return a block's prepared queries and the true scores to compare candidates with."""
        query_KD = self.prepared_queries(block, self.device)
        row_Q = torch.from_numpy(self.queries.key_Q[block.first : block.stop] - block.first_key)
        sent_Q = self._rows_of_keys(block.first, block.stop, block.first_key)
        return QueryRows(query_KD[None], row_Q, self.true(block), self.exact_comparator, sent_row_Q=sent_Q)

    def true_values(self) -> Tensor:
        """Return every query's true score, computed like the competitors' scores in the pooled AUC."""
        if self._true_value_Q is not None:
            return self._true_value_Q
        for block in self.queries.blocks:  # also those that met no candidate
            self._read_true_scores(block)
        return self.true_scores[VALUE].read(0, self.queries.num_queries).float()

    def defer_true_values(self, deferred: Deferred) -> None:
        """Deliver them with other results of a GPU that has made and keeps all of them."""
        if self._is_read_Q is None and self.true_scores[VALUE].is_on_gpu:
            deferred.add(self._keep_true_values, self.true_values())

    def _keep_true_values(self, true_Q: Tensor) -> None:
        self._true_value_Q = true_Q

    def prepared_candidates(self, x_CD: Tensor, entity_ids_C: np.ndarray) -> Tensor:
        """Prepare rows of candidates; the error names an entity whose row cannot be prepared."""
        with refused_by_name(
            self.source, self.queries.query_group.scorer, self.hidden, lambda row: (int(entity_ids_C[row]), None)
        ):
            return self.queries.query_group.candidates(x_CD)

    def nan_score(self, query: int, entity_id: int) -> EvalError:
        """Return the error that names a query and a candidate whose score is not a number."""
        return self.source.nan_score(self.hidden, int(self.queries.edge_Q[query]), entity_id)

    def add(self, block: QueryBlock, counts_NQ: Tensor) -> None:
        """Add the counts of some candidates to a block's queries: the rows of `QueryCounts`, on the host."""
        self.result.counts_NQ[: len(counts_NQ), block.first : block.stop] += counts_NQ

    def add_scores(self, query_P: np.ndarray, known_P: np.ndarray | None, score_P: Tensor) -> None:
        """Add scores that the pooled AUC samples (`ScoreCollector.add`)."""
        self.result.scores.add(query_P, score_P, known_P)

    def counts(self) -> QueryCounts:
        """Return the counts of all queries, once every candidate has been met."""
        return QueryCounts.of_rows(self.result.counts_NQ)

    def _names_of(self, first: int, row: int) -> tuple[int, int]:
        """Return the known entity of key `first + row`, and the edge of its first query."""
        queries, key = self.queries, first + row
        return int(queries.known_K[key]), int(queries.edge_Q[np.searchsorted(queries.key_Q, key)])

    def prepare(self, share: tuple[int, int]) -> None:
        """Make the prepared queries and true scores of a share of the keys.

        Args:
            share: first key and one past the last; workers' shares need no alignment.

        Raises:
            DataError: a query or true entity without a direction under cos, or a true score that is not a number.
        """
        queries, sizes = self.queries, sizes_on(self.device)
        start, end = share
        borders = start + np.flatnonzero(np.diff(queries.schema_K[start:end], prepend=-1, append=-1))
        for first, stop in (
            (at, min(at + sizes.prepared_rows, last))
            for begin, last in pairwise(borders.tolist())
            for at in range(begin, last, sizes.prepared_rows)
        ):  # of one schema each
            schema = int(queries.schema_K[first])
            known_K = queries.known_K[first:stop]
            scorer = queries.query_group.scorers[schema]
            known_side = self.hidden.other
            first_query, last_query = np.searchsorted(queries.key_Q, [first, stop]).tolist()
            rel_K = self._sent[0][first:stop] if scorer.dynamic else None
            time_K = None if queries.time_K is None else torch.from_numpy(queries.time_K[first:stop])
            with refused_by_name(self.source, scorer, known_side, partial(self._names_of, first)):
                known_KD = self.source.vectors(scorer, known_side, known_K)
                prepared_KD = queries.query_group.queries(schema, known_KD, rel_K, time_K)
            self.prepared.write(first, prepared_KD)
            if self._is_read_Q is None:
                row_Q = self._rows_of_keys(first_query, last_query, first)
                self._write_true_scores(prepared_KD, row_Q, (first_query, last_query))

    def _write_true_scores(self, prepared_KD: Tensor, key_Q: Tensor, query_range: tuple[int, int]) -> None:
        queries, (first, last) = self.queries, query_range
        step = sizes_on(self.device).prepared_rows
        for at in range(first, last, step):
            until = min(at + step, last)
            true_Q = queries.true_Q[at:until]
            row_Q = key_Q[at - first : until - first]
            true_QD = self.source.vectors(queries.query_group.scorer, self.hidden, true_Q, of_candidates=True)
            candidates_QD = self.prepared_candidates(true_QD, true_Q)
            true: TrueScores | ExactTrue
            if self.exact_comparator is not None:
                true = ExactTrue.from_pairs(self.exact_comparator, prepared_KD, candidates_QD, row_Q)
            else:
                queries_QD = prepared_KD.index_select(0, row_Q)
                true = TrueScores.from_pairs(self.comparator, queries_QD, candidates_QD, self.backend.pairs)
                cells = np.arange(at, until), true_Q
                refuse_nan_of_pairs(self.comparator, (queries_QD, candidates_QD), true.score_Q, cells, self.nan_score)
            for rows, values in zip(self.true_scores, astuple(true, recurse=False), strict=True):
                rows.write(at, values)
