"""A range of candidates -> counts of every query of a query group against them, for every policy but sampled lists.

Queries stream past the range block by block. A backend returns counts, and the scores of the cells that the pooled AUC
samples. Certified ranks leave none to read, so there they are made from pairs, whose scores have the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial, reduce
from itertools import groupby
from operator import add, attrgetter

import numpy as np
import torch
from torch import Tensor

from pbgeval.ranking.backend import Backend
from pbgeval.ranking.block import Block, Counted, NotANumberError
from pbgeval.ranking.block_threads import BlockThreads
from pbgeval.ranking.certified import UndecidedCells
from pbgeval.ranking.counting import (
    NO_CELLS,
    CellIndex,
    competing_scores,
    count_cells,
    count_compared,
    expand_by_row,
    joined,
    own_cells,
)
from pbgeval.ranking.groups import refuse_nan_of_pairs
from pbgeval.ranking.known_answers import KnownAnswers, positions
from pbgeval.ranking.pooled_scores import PooledScores
from pbgeval.ranking.query_edges import QueryBlock
from pbgeval.ranking.query_group_state import CellSample, QueryGroupState, ScoreCollector
from pbgeval.ranking.range_work import TASKS_PER_THREAD, RangeWork, are_known
from pbgeval.ranking.tally import LossFold
from pbgeval.scoring.block_scorer import ScorerComparator
from pbgeval.scoring.block_sizes import sizes_on
from pbgeval.scoring.entities import EntityTable
from pbgeval.stats.ranks import QueryCounts

NOTHING_SAMPLED = CellSample(np.empty(0, np.int64), np.empty(0, np.int64))


def rank(
    state: QueryGroupState,
    table: EntityTable,
    first_id: int,
    threads: BlockThreads,
    known: KnownAnswers | None = None,
    in_time: KnownAnswers | None = None,
) -> None:
    """Count a query group's queries against a range of candidates, which no other call names again.

    Args:
        state: the query group, prepared; its result grows.
        table: the range's rows, checked.
        first_id: the number of the table's first row.
        threads: each counts some blocks.
        known: the known answers in this range; None if nothing is filtered.
        in_time: what a time-aware filter leaves out in this range; None if there is none.

    Raises:
        DataError: a candidate without a direction under cos, or a score that is not a number.
    """
    of_relations = {relation: [*of] for relation, of in groupby(state.queries.blocks, attrgetter("relation"))}
    stop = first_id + table.num_rows
    rows_of = {relation: state.competing.rows(relation, first_id, stop) for relation in of_relations}
    competes = np.zeros(table.num_rows, bool)
    competes[np.concatenate([np.empty(0, np.int64), *rows_of.values()])] = True
    prepared_rows = np.flatnonzero(competes)
    if not prepared_rows.size:
        return
    prepared_CD = _prepared(state, table, prepared_rows, first_id + prepared_rows)
    reads_scores = state.certified is None
    cells = (state.sample.cells if state.sample and reads_scores else NOTHING_SAMPLED).within(first_id, stop)
    # A model that is asked for pairs may take as long as for blocks.
    in_time_of_blocks = in_time if isinstance(state.comparator, ScorerComparator) else None
    for relation, rows in rows_of.items():
        if not rows.size:
            continue
        queries, of_relation_CD = of_relations[relation], prepared_CD
        if rows.size < prepared_rows.size:
            of_relation_CD = prepared_CD[torch.from_numpy(np.searchsorted(prepared_rows, rows)).to(prepared_CD.device)]
        num_parts = -(-TASKS_PER_THREAD * threads.num_threads // len(queries)) if threads.num_threads > 1 else 1
        width = state.backend.candidates_per_block(
            rows.size, prepared_CD.shape[1], num_parts, with_loss=state.loss is not None
        )
        work = RangeWork.cut(state, queries, first_id + rows, of_relation_CD, width, known, in_time_of_blocks, cells)
        tasks = work.tasks(threads.num_threads if state.loss is None else 1)
        for (block, _), counts in zip(tasks, threads.map(partial(_count, work), tasks), strict=True):
            state.add(block, counts)
    if state.sample is not None and not reads_scores:
        score_cells(state, table, first_id, state.sample.cells, known, threads)
    if in_time is not None and in_time_of_blocks is None:
        count_in_time(state, table, first_id, in_time, threads)


def _prepared(state: QueryGroupState, table: EntityTable, rows: np.ndarray, entity_ids_C: np.ndarray) -> Tensor:
    """Return the prepared rows of some candidates of a table."""

    def prepared(start: int, stop: int) -> Tensor:
        x_CD = (
            table.range_of_rows(start, stop, state.dtype)
            if rows.size == table.num_rows
            else table.rows(torch.from_numpy(rows[start:stop]), state.dtype)
        )
        return state.prepared_candidates(x_CD, entity_ids_C[start:stop])

    if state.certified is None:
        return prepared(0, rows.size)
    # In float64 they take twice the room, so a few at a time.
    prepared_CL = torch.empty((rows.size, table.embeddings_ND.shape[1]), dtype=torch.float32, device=table.device)
    step = sizes_on(table.device).rows(sizes_on(table.device).prepared_rows, prepared_CL.shape[1])
    for start in range(0, rows.size, step):
        prepared_CL[start : start + step] = prepared(start, start + step)
    return prepared_CL


# A block of queries and some runs of candidates -> counts, and the scores that somebody asks for.


def _count(work: RangeWork, task: tuple[QueryBlock, range]) -> QueryCounts:
    """Count runs of candidates, and hand over what else is asked for."""
    block, runs = task
    state = work.state
    queries = state.query_rows(block)
    # Columns of true entities, far below zero where they are not in the range.
    own_Q = torch.from_numpy(positions(work.entity_ids_C, state.queries.true_Q[block.first : block.stop]))
    found = []
    undecided = None if state.certified is None else UndecidedCells(queries, work.candidates)
    for run in runs:
        query, is_known_P, sampled = work.sampled_in(run, block)
        query_in_time, in_time = work.in_time_in(run, block)
        asked = work.block(queries, block, own_Q, run, joined(sampled, in_time))
        try:
            for first, part, counted in _parts(state.backend, asked):
                assert counted.open is not None, "parts are small enough"
                if undecided is None:
                    found.append(counted.counts)
                else:
                    first_column = run * work.width + first
                    found.append(undecided.add(counted.counts, counted.open, part.known_on_device, first_column))
        except NotANumberError as error:
            first_query = int(np.searchsorted(state.queries.key_Q, block.first_key + error.row))
            raise state.nan_score(first_query, int(work.entity_ids(run)[error.column])) from error
        if query.size:
            state.result.scores.add(query, counted.read_P[: query.size], is_known_P)
        if query_in_time.numel():
            of_query, true_Q = query_in_time.to(state.device), counted.true_Q
            with state.lock:
                state.add_in_time(block, count_cells(counted.read_P[query.size :], of_query, true_Q, true_Q))
        if counted.scores_KC is not None:
            _hand_over(work, block, run, asked, counted.scores_KC, counted.true_Q)
    return reduce(add, found if undecided is None else [*found, undecided.decide()])


def _parts(backend: Backend, block: Block, first: int = 0) -> Iterator[tuple[int, Block, Counted]]:
    """Yield (first column, block, counts) of a block, or of its halves where more cells are open than can be listed."""
    counted = backend.count(block)
    if counted.open is not None:
        yield first, block, counted
        return
    middle = block.num_columns // 2
    for start, stop in ((0, middle), (middle, block.num_columns)):
        yield from _parts(backend, block.between(start, stop), first + start)


def _hand_over(work: RangeWork, block: QueryBlock, run: int, counted: Block, scores_KC: Tensor, true_Q: Tensor) -> None:
    """Give a block's scores to those who ask for them."""
    state, entity_ids_C = work.state, work.entity_ids(run)
    row_Q, own_Q, known = counted.queries.row_on_device_Q, counted.own_Q, counted.known
    if state.loss is not None:
        fold = state.losses.setdefault(block.first, LossFold(state.loss, state.comparator, true_Q))
        own = own_cells(own_Q, scores_KC.shape[1])
        fold.fold(scores_KC[row_Q], own if known is None else joined(own, _by_query(counted.queries.row_Q, known)))
    if state.pool is not None:
        of_known = None if known is None else _by_query(counted.queries.row_Q, known)
        _add_all(state.pool, block, scores_KC[row_Q], own_Q, of_known)
    skipped = int(block.continues_key)  # each key is handed over once, by the block that it begins in
    if state.result.top is not None and skipped < scores_KC.shape[0]:
        row_P, column_P = (index.numpy() for index in known or NO_CELLS)
        first = np.searchsorted(row_P, skipped)  # rows ascend
        of_rest = row_P[first:] - skipped, column_P[first:]
        with state.lock:
            state.result.top.add(block.first_key + skipped, scores_KC[skipped:], entity_ids_C, of_rest)


def _by_query(row_Q: Tensor, known: CellIndex) -> CellIndex:
    """Return (query, column) of the known answers of queries, given by the rows of their keys."""
    query, entry = expand_by_row(row_Q, known[0])
    return query, known[1][entry]


def _add_all(
    pool: ScoreCollector | PooledScores,
    block: QueryBlock,
    scores_QC: Tensor,
    own_Q: Tensor,
    known: CellIndex | None,
) -> None:
    """Add every cell of a block but the true entities' to the pool of scores."""
    competes_QC = torch.ones(scores_QC.shape, dtype=torch.bool)
    competes_QC[own_cells(own_Q, scores_QC.shape[1])] = False
    score_P, query_P, known_P = competing_scores(scores_QC, competes_QC, known)
    pool.add(block.first + query_P.numpy(), score_P, None if known_P is None else known_P.numpy())


def score_cells(
    state: QueryGroupState,
    table: EntityTable,
    first_id: int,
    sample: CellSample,
    known: KnownAnswers | None,
    threads: BlockThreads,
) -> None:
    """Score those of the cells that the pooled AUC samples whose candidates are in a range.

    Args:
        state: the query group, prepared.
        table: the range's rows.
        first_id: the number of the table's first row.
        sample: arranged by candidate; true entities are left out.
        known: the known answers in this range; None if nothing is filtered.
        threads: each scores the cells of some blocks.

    Raises:
        DataError: a candidate without a direction under cos, or a score that is not a number.
    """
    cells = sample.within(first_id, first_id + table.num_rows)
    others = cells.entity_id_P != state.queries.true_Q[cells.query_P]
    cells = CellSample(cells.query_P[others], cells.entity_id_P[others])
    # One array: many small ones between the blocks' tables scatter the heap.
    score_P = torch.empty(cells.query_P.size, dtype=torch.float32)

    def score(block: QueryBlock) -> None:
        at = int(np.searchsorted(cells.query_P, block.first))
        for query, _, pairs in _scored_cells(state, table, first_id, block, cells):
            score_P[at : at + query.size] = pairs[1]
            at += query.size

    threads.map(score, state.queries.blocks)
    state.result.scores.add(cells.query_P, score_P, are_known(state, known, cells.query_P, cells.entity_id_P))


def _scored_cells(
    state: QueryGroupState,
    table: EntityTable,
    first_id: int,
    block: QueryBlock,
    cells: CellSample,
    query_KD: Tensor | None = None,
) -> Iterator[tuple[np.ndarray, np.ndarray, tuple[Tensor, Tensor]]]:
    """Yield (query, entity id, candidates and scores) of a block's cells, some at a time.

    No cell is of a true entity.
    """
    query, entity_id = cells.of_queries(block.first, block.stop)
    if not query.size:
        return
    query_KD = state.prepared_queries(block, table.device) if query_KD is None else query_KD
    step = sizes_on(table.device).rows(sizes_on(table.device).pairs, query_KD.shape[1])
    for at in range(0, query.size, step):
        of_cell, entity_ids = query[at : at + step], entity_id[at : at + step]
        row = torch.from_numpy(state.queries.key_Q[of_cell] - block.first_key).to(table.device)
        yield of_cell, entity_ids, score_pairs(state, table, first_id, query_KD[row], (of_cell, entity_ids))


def score_pairs(
    state: QueryGroupState, table: EntityTable, first_id: int, query_PD: Tensor, cells: tuple[np.ndarray, np.ndarray]
) -> tuple[Tensor, Tensor]:
    """Return the prepared candidates of cells (query, entity id) of a range, and their scores, none of them NaN."""
    candidate_PD = state.prepared_candidates(table.rows(torch.from_numpy(cells[1] - first_id), state.dtype), cells[1])
    scores_P = state.backend.pairs(query_PD, candidate_PD)
    if state.certified is None:
        refuse_nan_of_pairs(state.comparator, (query_PD, candidate_PD), scores_P, cells, state.nan_score)
    return candidate_PD, scores_P


def count_in_time(
    state: QueryGroupState, table: EntityTable, first_id: int, in_time: KnownAnswers, threads: BlockThreads
) -> None:
    """Count what a time-aware filter leaves out in a range of candidates; pairs that come again are scored once."""
    width = table.embeddings_ND.shape[1]

    def count(block: QueryBlock) -> None:
        queries = None
        sizes = sizes_on(table.device)
        for query, entity_id in state.in_time_cells(block, in_time, sizes.rows(sizes.compared_pairs, width)):
            queries = queries or state.query_rows(block)
            row = state.queries.key_Q[block.first + query] - block.first_key
            _, first, at = np.unique(row * table.num_rows + entity_id, return_index=True, return_inverse=True)
            cells = block.first + query[first], entity_id[first]
            pairs = score_pairs(state, table, first_id, queries.rows_KD[torch.from_numpy(row[first])], cells)
            query_P, at_P = (torch.from_numpy(of).to(table.device) for of in (query, at))
            better, tied = state.backend.compare(queries, query_P, pairs, at_P)
            counts = count_compared(query_P, better, tied, block.stop - block.first)
            with state.lock:
                state.add_in_time(block, counts)

    threads.map(count, state.queries.blocks)


# A range of candidate rows and the lists that name some of them (`candidate_path`) -> counts. Who is named again counts
# again. The true entity always competes; where a list names it, it is left out.


def rank_given(
    state: QueryGroupState,
    table: EntityTable,
    first_id: int,
    cells: CellSample,
    threads: BlockThreads,
    known: KnownAnswers | None = None,
    in_time: KnownAnswers | None = None,
) -> None:
    """Count a query group's queries against those of a range of candidates that their lists name.

    Args:
        state: the query group, prepared; its result grows.
        table: the range's rows, checked.
        first_id: the number of the table's first row.
        cells: (query, entity id) of what the lists name in this range, arranged by query, no true entity among them.
        threads: as for `score_cells`.
        known: the known answers in this range; None if nothing is filtered.
        in_time: what a time-aware filter leaves out; None if there is none.

    Raises:
        DataError: a candidate without a direction under cos, or a score that is not a number.
    """
    for block in state.queries.blocks:
        first, stop = np.searchsorted(cells.query_P, [block.first, block.stop])
        if first == stop:
            continue
        queries = state.query_rows(block)
        for query, entity_id, pairs in _scored_cells(state, table, first_id, block, cells, queries.rows_KD):
            local = torch.from_numpy(query - block.first).to(table.device)
            every = torch.arange(local.numel(), device=table.device)
            better, tied = state.backend.compare(queries, local, pairs, every)
            is_known = are_known(state, known, query, entity_id)
            counted = [np.ones(query.shape, bool), is_known]
            if in_time is not None and state.in_time_Q is not None:
                counted.append(in_time.are_known(state.in_time_Q[query], entity_id))
            masks = (torch.from_numpy(of).to(table.device) for of in counted)
            of_masks = ((local[of], better[of], tied[of], block.stop - block.first) for of in masks)
            state.add(block, QueryCounts(*(count_compared(*compared) for compared in of_masks)))
            if state.pool is not None:
                state.pool.add(query, pairs[1], is_known)
    if state.sample is not None:
        score_cells(state, table, first_id, state.sample.cells, known, threads)
