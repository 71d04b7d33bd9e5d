"""A range of candidates -> counts of every query of a query group against them, for every policy but sampled lists.

Queries stream past the range block by block. The backend returns counts and the scores of the cells sampled for the
pooled AUC.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial, reduce
from itertools import groupby
from operator import add, attrgetter

import numpy as np
import torch
from torch import Tensor

from pbgeval.ranking.block import Block, CandidateRows, NotANumberError
from pbgeval.ranking.block_threads import BlockThreads
from pbgeval.ranking.counting import (
    NO_CELLS,
    CellIndex,
    competing_scores,
    count_compared,
    expand_by_row,
    joined,
    own_cells,
)
from pbgeval.ranking.groups import refuse_nan_of_pairs
from pbgeval.ranking.known_answers import KnownAnswers, positions
from pbgeval.ranking.pooled_scores import PooledScores
from pbgeval.ranking.query_edges import QueryBlock
from pbgeval.ranking.query_group_state import CellSample, QueryGroupState
from pbgeval.ranking.range_work import RangeWork, are_known
from pbgeval.ranking.tally import LossFold
from pbgeval.scoring.block_scorer import ScorerComparator
from pbgeval.scoring.block_sizes import sizes_on
from pbgeval.scoring.deferred import Deferred
from pbgeval.scoring.entities import EntityTable
from pbgeval.scoring.scorer import dtype_of_candidates
from pbgeval.stats.ranks import QueryCounts
from pbgeval.storage.transfers import sent

# Prepared candidates of a range, by their first id, their number, the type of vectors, and whether a column is of ones.
Shared = dict[tuple[int, int, torch.dtype, bool], CandidateRows]
NOTHING_SAMPLED = CellSample(np.empty(0, np.int64), np.empty(0, np.int64))

TASKS_PER_THREAD = 4  # so that none waits long for the last
MIN_ROWS_TO_HALVE = 1 << 12  # a GPU range with more rows is halved when memory runs out


def rank(
    state: QueryGroupState,
    table: EntityTable,
    first_id: int,
    threads: BlockThreads,
    known: KnownAnswers | None = None,
    in_time: KnownAnswers | None = None,
    *,
    deferred: Deferred,
    shared: Shared | None = None,
) -> None:
    """Count a query group's queries against a range of candidates; call it once for each range.

    A GPU that has no memory for the range gets its halves, one after the other.

    Args:
        state: the prepared query group; counts are added to its result.
        table: the range's rows, checked.
        first_id: entity id of the table's first row.
        threads: share the blocks among them.
        known: the known answers in this range; None if nothing is filtered.
        in_time: what the time-aware filter removes in this range; None without such a filter.
        deferred: delivers counts and requested scores.
        shared: the candidates that were prepared last in this range, for a query group that would prepare the same.

    Raises:
        DataError: a candidate without a direction under cos, or a score that is not a number.
        OutOfMemoryError: of torch, where there is no memory for a few candidates either.
    """
    # A loss is folded over whole runs; a model may score all entities at once.
    shared = {} if shared is None else shared
    is_whole = state.loss is not None or isinstance(state.comparator, ScorerComparator)
    if table.device.type == "cpu" or is_whole or table.num_rows <= MIN_ROWS_TO_HALVE:
        _rank_range(state, table, first_id, threads, deferred, shared, known, in_time)
        return
    before = state.result.copy() if state.backend.keeps_scores else state.result  # counts wait to be delivered
    num_waiting = deferred.num_waiting
    try:
        _rank_range(state, table, first_id, threads, deferred, shared, known, in_time)
    except torch.cuda.OutOfMemoryError:
        state.result = before
        deferred.forget(num_waiting)
        shared.clear()
    else:
        return
    torch.cuda.empty_cache()
    middle = table.num_rows // 2
    for start, stop in ((0, middle), (middle, table.num_rows)):
        first, last = first_id + start, first_id + stop
        of_part = (None if answers is None else answers.between(first, last) for answers in (known, in_time))
        rank(state, table.between(start, stop), first, threads, *of_part, deferred=deferred, shared=shared)


def _rank_range(
    state: QueryGroupState,
    table: EntityTable,
    first_id: int,
    threads: BlockThreads,
    deferred: Deferred,
    shared: Shared,
    known: KnownAnswers | None,
    in_time: KnownAnswers | None,
) -> None:
    blocks_by_relation = {
        relation: [*blocks] for relation, blocks in groupby(state.queries.blocks, attrgetter("relation"))
    }
    stop = first_id + table.num_rows
    rows_by_relation = {relation: state.competing.rows(relation, first_id, stop) for relation in blocks_by_relation}
    competes = np.zeros(table.num_rows, bool)
    competes[np.concatenate([np.empty(0, np.int64), *rows_by_relation.values()])] = True
    prepared_rows = np.flatnonzero(competes)
    if not prepared_rows.size:
        return
    prepared = _candidates(state, table, prepared_rows, first_id, shared)
    cells = (state.sample.cells if state.sample else NOTHING_SAMPLED).within(first_id, stop)
    for relation, rows in rows_by_relation.items():
        if not rows.size:
            continue
        queries, candidates = blocks_by_relation[relation], prepared
        if rows.size < prepared_rows.size:
            at_C = sent(torch.from_numpy(np.searchsorted(prepared_rows, rows)), table.device)
            candidates = CandidateRows(prepared.rows_BCD[:, at_C], state.exact_comparator)
        # Few blocks of queries meet the candidates in several tasks; a loss is folded over runs in their order.
        one_by_one = threads.num_threads == 1 or state.loss is not None
        num_parts = 1 if one_by_one else -(-TASKS_PER_THREAD * threads.num_threads // len(queries))
        width = state.backend.candidates_per_block(
            rows.size, candidates.rows_BCD.shape[-1], num_parts, with_loss=state.loss is not None
        )
        entity_ids_C = first_id + rows
        work = RangeWork.cut(state, queries, entity_ids_C, candidates, width, cells, known=known, in_time=in_time)
        tasks = work.tasks(num_parts)
        for (block, _), counts in zip(tasks, threads.map(partial(_count, work, deferred), tasks), strict=True):
            deferred.add(partial(state.add, block), counts.rows())


def _candidates(
    state: QueryGroupState, table: EntityTable, rows: np.ndarray, first_id: int, shared: Shared
) -> CandidateRows:
    """Return the prepared rows of some candidates of a table, those of another query group if they are the same."""
    group = state.queries.query_group
    dtype = dtype_of_candidates(group.scorer, state.hidden, table, state.dtype)
    key = first_id, rows.size, dtype, group.has_constant
    is_own = rows.size < table.num_rows or (group.scorer.transforms_candidates(state.hidden) and not group.moved)
    if not is_own and key in shared:
        return shared[key]
    shared.clear()  # before others are made: memory is for one of them
    candidates = CandidateRows(_prepared(state, table, rows, first_id + rows, dtype)[None], state.exact_comparator)
    if not is_own:
        shared[key] = candidates
    return candidates


def _prepared(
    state: QueryGroupState, table: EntityTable, rows: np.ndarray, entity_ids_C: np.ndarray, dtype: torch.dtype
) -> Tensor:
    """Return the prepared rows of some candidates of a table, from vectors of a type."""
    exact_comparator = state.exact_comparator

    def prepared(start: int, stop: int) -> Tensor:
        x_CD = (
            table.range_of_rows(start, stop, dtype)
            if rows.size == table.num_rows
            else table.rows(torch.from_numpy(rows[start:stop]), dtype)
        )
        return state.prepared_candidates(x_CD, entity_ids_C[start:stop])

    if exact_comparator is None or (dtype is torch.float32 and exact_comparator.keeps_candidates):
        return prepared(0, rows.size)
    # Rows take twice the memory in float64, so prepare a few at a time.
    prepared_CD = torch.empty((rows.size, table.embeddings_ND.shape[1]), dtype=torch.float32, device=table.device)
    step = sizes_on(table.device).rows(sizes_on(table.device).prepared_rows, prepared_CD.shape[1])
    for start in range(0, rows.size, step):
        prepared_CD[start : start + step] = prepared(start, start + step)
    return prepared_CD


# A block of queries and some runs of candidates -> counts, and the scores that are requested.


def _count(work: RangeWork, deferred: Deferred, task: tuple[QueryBlock, range]) -> QueryCounts:
    """Count a block against runs of candidates, and pass on the scores that are requested."""
    block, runs = task
    state = work.state
    queries = state.query_rows(block)
    # Column of each true entity; far below zero if it is not in the range.
    own_Q = torch.from_numpy(positions(work.entity_ids_C, state.queries.true_Q[block.first : block.stop]))
    found = []
    for run in runs:
        query, is_known_P, sampled = work.sampled_in(run, block)
        request = work.block(queries, block, own_Q, run, sampled)
        try:
            counted = state.backend.count_decided(request)
        except NotANumberError as error:
            first_query = int(np.searchsorted(state.queries.key_Q, block.first_key + error.row))
            raise state.nan_score(first_query, int(work.entity_ids(run)[error.column])) from error
        found.append(counted.counts)
        if query.size:
            deferred.add(partial(state.add_scores, query, is_known_P), counted.read_P)
        if counted.scores_KC is not None:
            _hand_over(work, deferred, (block, run), request, counted.scores_KC, counted.true_Q)
    return reduce(add, found)


def _hand_over(
    work: RangeWork, deferred: Deferred, task: tuple[QueryBlock, int], counted: Block, scores_KC: Tensor, true_Q: Tensor
) -> None:
    """Pass the scores of a block and a run of candidates to the loss, the pool and the top candidates, as requested."""
    block, run = task
    state, entity_ids_C = work.state, work.entity_ids(run)
    row_Q, own_Q, known = counted.queries.row_on_device_Q, counted.own_Q, counted.known
    if state.loss is not None:
        if block.first not in state.losses:
            state.losses[block.first] = LossFold(state.loss, state.comparator, true_Q)
        own = own_cells(own_Q, scores_KC.shape[1])
        excluded = own if known is None else joined(own, _by_query(counted.queries.row_Q, known))
        state.losses[block.first].fold(scores_KC, excluded, row_Q)
    if state.pool is not None:
        known_by_query = None if known is None else _by_query(counted.queries.row_Q, known)
        add_all = partial(_add_all, state, block, (counted.queries.row_Q, own_Q), known_by_query)
        if isinstance(state.pool, PooledScores):  # its scores are too many to wait on a GPU
            add_all(scores_KC.cpu())
        else:
            deferred.add(add_all, scores_KC)
    skipped = int(block.continues_key)  # the block in which a key begins passes it on, once
    if state.result.top is not None and skipped < scores_KC.shape[0]:
        row_P, column_P = (index.numpy() for index in known or NO_CELLS)
        first = np.searchsorted(row_P, skipped)  # rows ascend
        remaining_known = row_P[first:] - skipped, column_P[first:]
        with state.lock:
            state.result.top.add(block.first_key + skipped, scores_KC[skipped:], entity_ids_C, remaining_known)


def _by_query(row_Q: Tensor, known: CellIndex) -> CellIndex:
    """Expand known answers from (row of the key, column) to (query, column)."""
    query, entry = expand_by_row(row_Q, known[0])
    return query, known[1][entry]


def _add_all(
    state: QueryGroupState,
    block: QueryBlock,
    of_queries: tuple[Tensor, Tensor],
    known: CellIndex | None,
    scores_KC: Tensor,
) -> None:
    """Add the scores of all cells of a block except the true entities' to the pool as it is now, on the host.

    `of_queries` has the row of each query, and the column of its true entity.
    """
    row_Q, own_Q = of_queries
    scores_QC = scores_KC[row_Q]
    competes_QC = torch.ones(scores_QC.shape, dtype=torch.bool)
    competes_QC[own_cells(own_Q, scores_QC.shape[1])] = False
    score_P, query_P, known_P = competing_scores(scores_QC, competes_QC, known)
    assert state.pool is not None, "every score is compared"
    state.pool.add(block.first + query_P.numpy(), score_P, None if known_P is None else known_P.numpy())


# A range of candidate rows and the lists that name some of them (`candidate_path`) -> counts. A candidate that is
# listed twice counts twice. The true entity always competes, so where a list names it, the entry is skipped.


def rank_given(
    state: QueryGroupState,
    table: EntityTable,
    first_id: int,
    cells: CellSample,
    known: KnownAnswers | None = None,
    in_time: KnownAnswers | None = None,
) -> None:
    """Count a query group's queries against the listed candidates of a range.

    Args:
        state: the prepared query group; counts are added to its result.
        table: the range's rows, checked.
        first_id: entity id of the table's first row.
        cells: (query, entity id) of the listed candidates in this range, by query, without true entities.
        known: the known answers in this range; None if nothing is filtered.
        in_time: what the time-aware filter removes; None without such a filter.

    Raises:
        DataError: a candidate without a direction under cos, or a score that is not a number.
    """
    cells_of_sample = state.sample.cells if state.sample else NOTHING_SAMPLED  # some of the listed
    sampled = cells_of_sample.within(first_id, first_id + table.num_rows)
    for block in state.queries.blocks:
        first, stop = np.searchsorted(cells.query_P, [block.first, block.stop])
        if first == stop:
            continue
        queries = state.query_rows(block)
        for query, entity_id, pairs in _scored_cells(state, table, first_id, block, cells, queries.rows_KD):
            local = sent(torch.from_numpy(query - block.first), table.device)
            every = torch.arange(local.numel(), device=table.device)
            better, tied = state.backend.compare(queries, local, pairs, every)
            is_known = are_known(state, known, query, entity_id)
            counted = [np.ones(query.shape, bool), is_known]
            if in_time is not None and state.in_time_Q is not None:
                counted.append(in_time.are_known(state.in_time_Q[query], entity_id))
            masks = (sent(torch.from_numpy(is_counted), table.device) for is_counted in counted)
            compared = ((local[mask], better[mask], tied[mask], block.stop - block.first) for mask in masks)
            state.add(block, QueryCounts(*(count_compared(*arguments) for arguments in compared)).rows().cpu())
            if state.pool is not None:
                state.pool.add(query, pairs[1], is_known)
        for query, entity_id, (_, score_P) in _scored_cells(state, table, first_id, block, sampled, queries.rows_KD):
            state.result.scores.add(query, score_P, are_known(state, known, query, entity_id))


def _scored_cells(
    state: QueryGroupState,
    table: EntityTable,
    first_id: int,
    block: QueryBlock,
    cells: CellSample,
    query_KD: Tensor,
) -> Iterator[tuple[np.ndarray, np.ndarray, tuple[Tensor, Tensor]]]:
    """Yield (query, entity id, candidates and scores) of a block's cells, some at a time.

    `cells` must not hold true entities.
    """
    query, entity_id = cells.of_queries(block.first, block.stop)
    step = sizes_on(table.device).rows(sizes_on(table.device).pairs, query_KD.shape[1])
    for at in range(0, query.size, step):
        queries, entity_ids = query[at : at + step], entity_id[at : at + step]
        row = sent(torch.from_numpy(state.queries.key_Q[queries] - block.first_key), table.device)
        x_PD = table.rows(torch.from_numpy(entity_ids - first_id), state.dtype)
        query_PD, candidate_PD = query_KD[row], state.prepared_candidates(x_PD, entity_ids)
        score_P = state.backend.pairs(query_PD, candidate_PD)
        if state.exact_comparator is None:
            refuse_nan_of_pairs(
                state.comparator, (query_PD, candidate_PD), score_P, (queries, entity_ids), state.nan_score
            )
        yield queries, entity_ids, (candidate_PD, score_P)
