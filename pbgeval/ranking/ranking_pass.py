"""A range of candidates -> counts of every query of a contest against them, for every policy but sampled lists.

Queries stream past the range block by block. A kernel returns counts. The scores that the pooled AUC samples are read
from the blocks as they are counted. A GPU's kernel leaves none to read, nor do certified ranks, so there they are made
from pairs, whose scores have the same bits; so are the scores of duplicates of true entities.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import groupby
from operator import attrgetter

import numpy as np
import torch
from torch import Tensor

from pbgeval.ranking import blocks
from pbgeval.ranking.block_threads import BlockThreads
from pbgeval.ranking.certified import CertifiedQueries, UndecidedCells, count_by_bounds, count_certified_compiled
from pbgeval.ranking.chunk_loops import COLUMNS_AT_A_TIME
from pbgeval.ranking.contest_state import CellSample, ContestState, ScoreCollector
from pbgeval.ranking.counting import (
    CellIndex,
    competing_scores,
    count,
    count_cells,
    count_compared,
    expand_by_row,
    joined,
    own_cells,
)
from pbgeval.ranking.groups import largest, overflow_is_impossible, refuse_nan_of_pairs
from pbgeval.ranking.kernels import Kernel
from pbgeval.ranking.known_answers import KnownAnswers, positions, positions_of_lists
from pbgeval.ranking.pooled_scores import PooledScores
from pbgeval.ranking.query_edges import QueryBlock
from pbgeval.ranking.range_work import TASKS_PER_THREAD, BlockQueries, RangeWork, are_known, scores_of_run
from pbgeval.ranking.tally import LossFold
from pbgeval.scoring import device_scores
from pbgeval.scoring.block_scorer import ScorerComparator
from pbgeval.scoring.block_sizes import sizes_on
from pbgeval.scoring.entities import EntityTable
from pbgeval.scoring.fast_products import PreparedRows, fast_scores
from pbgeval.scoring.true_scores import CertifiedTrue, TrueScores
from pbgeval.stats.ranks import QueryCounts, RankCounts

NO_CELLS = CellSample(np.empty(0, np.int64), np.empty(0, np.int64))


def rank(
    state: ContestState,
    table: EntityTable,
    first_number: int,
    threads: BlockThreads,
    known: KnownAnswers | None = None,
    in_time: KnownAnswers | None = None,
) -> None:
    """Count a contest's queries against a range of candidates, which no other call names again.

    Args:
        state: the contest, prepared; its result grows.
        table: the range's rows, checked.
        first_number: the number of the table's first row.
        threads: each counts some blocks.
        known: the known answers in this range; None if nothing is filtered.
        in_time: what a time-aware filter leaves out in this range; None if there is none.

    Raises:
        DataError: a candidate without a direction under cos, or a score that is not a number.
    """
    of_relations = {relation: [*of] for relation, of in groupby(state.queries.blocks, attrgetter("relation"))}
    stop = first_number + table.num_rows
    rows_of = {relation: state.competing.rows(relation, first_number, stop) for relation in of_relations}
    competes = np.zeros(table.num_rows, bool)
    competes[np.concatenate([np.empty(0, np.int64), *rows_of.values()])] = True
    prepared_rows = np.flatnonzero(competes)
    if not prepared_rows.size:
        return
    prepared_CD = _prepared(state, table, prepared_rows, first_number + prepared_rows)
    reads_scores = state.certified is None
    cells = (state.sample.cells if state.sample and reads_scores else NO_CELLS).within(first_number, stop)
    # A model that is asked for pairs may take as long as for blocks.
    in_time_of_blocks = in_time if isinstance(state.comparator, ScorerComparator) else None
    for relation, rows in rows_of.items():
        if not rows.size:
            continue
        queries, of_relation_CD = of_relations[relation], prepared_CD
        if rows.size < prepared_rows.size:
            of_relation_CD = prepared_CD[torch.from_numpy(np.searchsorted(prepared_rows, rows)).to(prepared_CD.device)]
        width = _width(state, of_relation_CD, len(queries), threads)
        work = RangeWork.cut(
            state, queries, first_number + rows, of_relation_CD, width, known, in_time_of_blocks, cells
        )
        tasks = work.tasks(threads.num_threads if state.loss is None else 1)
        for (block, _), counts in zip(tasks, threads.map(partial(_count, work), tasks), strict=True):
            state.add(block, counts)
    if state.sample is not None and not reads_scores:
        score_cells(state, table, first_number, state.sample.cells, known, threads)
    if in_time is not None and in_time_of_blocks is None:
        count_in_time(state, table, first_number, in_time, threads)


def _prepared(state: ContestState, table: EntityTable, rows: np.ndarray, numbers_C: np.ndarray) -> Tensor:
    """Return the prepared rows of some candidates of a table."""

    def prepared(start: int, stop: int) -> Tensor:
        x_CD = (
            table.range_of_rows(start, stop, state.dtype)
            if rows.size == table.num_rows
            else table.rows(torch.from_numpy(rows[start:stop]), state.dtype)
        )
        return state.prepared_candidates(x_CD, numbers_C[start:stop])

    if state.certified is None:
        return prepared(0, rows.size)
    # In float64 they take twice the room, so a few at a time.
    prepared_CL = torch.empty((rows.size, table.embeddings_ND.shape[1]), dtype=torch.float32, device=table.device)
    step = sizes_on(table.device).rows(sizes_on(table.device).prepared_rows, prepared_CL.shape[1])
    for start in range(0, rows.size, step):
        prepared_CL[start : start + step] = prepared(start, start + step)
    return prepared_CL


def _width(state: ContestState, prepared_CD: Tensor, num_blocks: int, threads: BlockThreads) -> int:
    """Return how many candidates are counted together."""
    most = state.kernel.candidates_per_block(
        state.comparator, prepared_CD.shape[1], state.device, with_loss=state.loss is not None
    )
    if state.kernel is not Kernel.COMPILED or threads.num_threads == 1:
        return most
    runs = -(-TASKS_PER_THREAD * threads.num_threads // num_blocks)  # fewer where few blocks leave threads idle
    return min(-(-prepared_CD.shape[0] // (runs * COLUMNS_AT_A_TIME)) * COLUMNS_AT_A_TIME, most)


# A block of queries and some runs of candidates -> counts, by each kernel.


def _count(work: RangeWork, task: tuple[QueryBlock, range]) -> QueryCounts:
    """Count runs of candidates, and let duplicates of true entities tie."""
    block, runs = task
    rows, kernel = BlockQueries.read(work.state, block, work.device), work.state.kernel
    # Columns of true entities, far below zero where they are not in the range.
    column_Q = torch.from_numpy(positions(work.numbers_C, work.state.queries.true_Q[block.first : block.stop]))
    if isinstance(rows.true, CertifiedTrue):
        return _count_exactly(work, rows, rows.true, column_Q, runs)
    if kernel is Kernel.DEVICE:
        return _count_on_gpu(work, rows, rows.true, column_Q.numpy(), runs)
    true_Q, largest_query = rows.true.score_Q, largest(rows.query_KD)
    total = _duplicates_tie(work, rows, rows.true, column_Q.numpy(), runs)
    for run in runs:
        may_overflow = not overflow_is_impossible(largest_query, work.largest[run], rows.query_KD.shape[1])
        own_Q = column_Q - run * work.width
        known = work.known_in(run, block)
        if kernel is Kernel.COMPILED and not may_overflow:
            query, is_known_P, cells = work.sampled_in(run, block)
            counts, _, score_P = blocks.count(
                rows.query_KD, work.runs[run], (true_Q, true_Q), (rows.row_Q, own_Q), known, cells
            )
            total += counts
            work.state.result.scores.add(query, score_P, is_known_P)
            continue
        scores_KC = scores_of_run(work, rows, run, may_overflow=may_overflow)
        total = total + count(scores_KC, true_Q, row_Q=rows.row_Q, own_Q=own_Q, known=known)
        _hand_over(work, rows, run, scores_KC, own_Q, true_Q, known)
    return total


def _count_on_gpu(
    work: RangeWork, rows: BlockQueries, true: TrueScores, column_Q: np.ndarray, runs: range
) -> QueryCounts:
    """Count by tiles that are forgotten; known answers and what the pooled AUC samples are scored pair by pair."""
    state, block, device = work.state, rows.block, work.device
    largest_query, num_queries = largest(rows.query_KD), true.score_Q.numel()
    raw, known_answers = (RankCounts.zero(num_queries, device) for _ in range(2))
    for run in runs:
        run_CD, columns = work.runs[run], work.columns[run]
        if not overflow_is_impossible(largest_query, work.largest[run], run_CD.shape[1]):
            step = max(sizes_on(device).list_cells // max(rows.query_KD.shape[0], 1), 1)
            for first in range(0, run_CD.shape[0], step):  # an error names what is no number
                scores_of_run(work, rows, run, may_overflow=True, first=first, stop=first + step)
        own_Q = column_Q - run * work.width
        own_Q[(own_Q < 0) | (own_Q >= run_CD.shape[0])] = -1
        at_Q = torch.from_numpy(own_Q).to(device)
        targets = device_scores.Targets(rows.row_Q, true.score_Q, true.kernel_Q, true.hash_Q, at_Q)
        better_Q, tied_Q = device_scores.count(rows.query_KD, columns, targets)
        raw = raw + RankCounts(better_Q.long(), tied_Q.long(), run_CD.shape[0] - (at_Q >= 0).long())
        if work.known_of is not None:
            lists = work.known_of[run].lists(state.queries.key_Q[block.first : block.stop])
            for query, at in positions_of_lists(*lists, sizes_on(device).pairs):
                column = work.known_of[run].number_P[at]
                others = column != own_Q[query]
                query_P, column_P = torch.from_numpy(np.stack([query[others], column[others]])).to(device)
                score_P = device_scores.pairs(rows.query_KD, rows.row_Q[query_P], run_CD, column_P)
                is_twin_P = score_P == true.kernel_Q[query_P]
                is_twin_P &= columns.hash_C[column_P] == true.hash_Q[query_P]
                compared = true.compare(query_P, score_P, is_twin_P)
                known_answers = known_answers + count_compared(query_P, *compared, num_queries)
        query, is_known_P, (row_P, column_P) = work.sampled_in(run, block)
        if query.size:
            state.result.scores.add(query, device_scores.pairs(rows.query_KD, row_P, run_CD, column_P), is_known_P)
    return QueryCounts(raw, known_answers)


def _duplicates_tie(
    work: RangeWork, rows: BlockQueries, true: TrueScores, column_Q: np.ndarray, runs: range
) -> QueryCounts:
    """Return the correction that makes candidates with a true entity's very vector tie with it.

    The kernel gives them the bits that it gives the true entity, but the score that counts may be another sum. A vector
    that only shares the hash has another score: one of each query's duplicates is asked for it.
    """
    kernel_Q, true_Q = true.kernel_Q, true.score_Q
    none = QueryCounts.unfiltered(RankCounts.zero(true_Q.numel(), work.device))
    differs_Q = (kernel_Q != true_Q).cpu().numpy()
    if not differs_Q.any():  # as on most machines: then nothing need be looked for
        return none
    assert work.duplicates is not None, "ranks are not certified"
    query, column = work.duplicates.of_queries(true.hash_Q.cpu().numpy(), column_Q)
    here = differs_Q[query] & (column >= runs.start * work.width) & (column < runs.stop * work.width)
    query, column = query[here], column[here]
    if not query.size:
        return none
    first = np.flatnonzero(np.diff(query, prepend=-1))  # of each query's
    first_query, first_column = (torch.from_numpy(index[first]).to(work.device) for index in (query, column))
    score_P = work.state.paired_scores(rows.query_KD[rows.row_Q[first_query]], work.prepared_CD[first_column])
    is_duplicate_Q = torch.zeros_like(true_Q, dtype=torch.bool)
    is_duplicate_Q[first_query] = score_P == kernel_Q[first_query]
    is_known = are_known(work.state, work.known, rows.block.first + query, work.numbers_C[column])

    def correction(query: np.ndarray) -> RankCounts:
        tied_Q = torch.from_numpy(np.bincount(query, minlength=true_Q.numel())).to(work.device) * is_duplicate_Q
        return RankCounts(-tied_Q * (kernel_Q > true_Q), tied_Q, torch.zeros_like(tied_Q))

    return QueryCounts(correction(query), correction(query[is_known]))


def _count_exactly(
    work: RangeWork, rows: BlockQueries, true: CertifiedTrue, column_Q: Tensor, runs: range
) -> QueryCounts:
    """Count in exact arithmetic: the scores of a block are fast ones, or values where they are handed over."""
    state = work.state
    prepared = PreparedRows(work.certified[0].comparator, rows.query_KD, of_queries=True)
    queries = CertifiedQueries(prepared, rows.row_Q, true)
    total = QueryCounts.unfiltered(RankCounts.zero(rows.row_Q.numel(), work.device))
    undecided = UndecidedCells(queries, work.prepared_CD)
    for run in runs:
        candidates = work.certified[run]
        own_Q = column_Q - run * work.width
        known = work.known_in(run, rows.block)
        found = (
            None
            if state.wants_all_scores
            else count_certified_compiled(queries, candidates, own_Q, known, state.bfloat16)
        )
        if found is None:
            fast = fast_scores(queries.prepared, candidates, values=state.wants_all_scores)
            undecided.add(*count_by_bounds(queries, fast, own_Q.to(work.device), known), run * work.width, known)
            _hand_over(work, rows, run, fast.scores_KC, own_Q, true.value_Q, known)
            found = undecided.decide_if_many()
        total = total + found
    return total + undecided.decide()


# Blocks of scores, and single cells -> those who ask for more than counts.


def _hand_over(
    work: RangeWork,
    rows: BlockQueries,
    run: int,
    scores_KC: Tensor,
    own_Q: Tensor,
    true_Q: Tensor,
    known: CellIndex | None,
) -> None:
    """Give a block's scores to those who ask for them; `own_Q` are columns of this run."""
    state, block, row_Q = work.state, rows.block, rows.row_Q
    numbers_C = work.numbers_C[run * work.width : (run + 1) * work.width]
    if state.loss is not None:
        fold = state.losses.setdefault(block.first, LossFold(state.loss, state.comparator, true_Q))
        own = own_cells(own_Q, scores_KC.shape[1])
        fold.fold(scores_KC[row_Q], own if known is None else joined(own, _by_query(row_Q, known)))
    if work.in_time is not None:
        for query_P, number in state.in_time_cells(block, work.in_time, sizes_on(scores_KC.device).pairs):
            column = positions(numbers_C, number)
            of_query, of_column = (torch.from_numpy(of[column >= 0]).to(scores_KC.device) for of in (query_P, column))
            with state.lock:
                state.add_in_time(block, count_cells(scores_KC[row_Q[of_query], of_column], of_query, true_Q, true_Q))
    if state.pool is not None:
        of_known = None if known is None else _by_query(row_Q, known)
        _add_all(state.pool, block, scores_KC[row_Q], own_Q, of_known)
    if state.sample is not None:
        query, is_known_P, cells = work.sampled_in(run, block)
        state.result.scores.add(query, scores_KC[cells], is_known_P)
    for sink in state.result.sinks:
        skipped = int(block.continues_key)  # each key is handed over once, by the block that it begins in
        if skipped < scores_KC.shape[0]:
            row_P, column_P = (index.cpu().numpy() for index in known or (row_Q[:0], row_Q[:0]))
            first = np.searchsorted(row_P, skipped)  # rows ascend
            of_rest = row_P[first:] - skipped, column_P[first:]
            with state.lock:
                sink.add(block.first_key + skipped, scores_KC[skipped:], numbers_C, of_rest)


def _by_query(row_Q: Tensor, known: CellIndex) -> CellIndex:
    """Return (query, column) of the known answers of queries, given by the rows of their keys; on the CPU."""
    query, entry = expand_by_row(row_Q, known[0])
    return query.cpu(), known[1][entry].cpu()


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
    state: ContestState,
    table: EntityTable,
    first_number: int,
    sample: CellSample,
    known: KnownAnswers | None,
    threads: BlockThreads,
) -> None:
    """Score those of the cells that the pooled AUC samples whose candidates are in a range.

    Args:
        state: the contest, prepared.
        table: the range's rows.
        first_number: the number of the table's first row.
        sample: arranged by candidate; true entities are left out.
        known: the known answers in this range; None if nothing is filtered.
        threads: each scores the cells of some blocks.

    Raises:
        DataError: a candidate without a direction under cos, or a score that is not a number.
    """
    cells = sample.within(first_number, first_number + table.num_rows)
    others = cells.number_P != state.queries.true_Q[cells.query_P]
    cells = CellSample(cells.query_P[others], cells.number_P[others])
    # One array: many small ones between the blocks' tables scatter the heap.
    score_P = torch.empty(cells.query_P.size, dtype=torch.float32)

    def score(block: QueryBlock) -> None:
        at = int(np.searchsorted(cells.query_P, block.first))
        for query, _, _, pairs in _scored_cells(state, table, first_number, block, cells):
            score_P[at : at + query.size] = pairs[1]
            at += query.size

    threads.map(score, state.queries.blocks)
    state.result.scores.add(cells.query_P, score_P, are_known(state, known, cells.query_P, cells.number_P))


def _scored_cells(
    state: ContestState,
    table: EntityTable,
    first_number: int,
    block: QueryBlock,
    cells: CellSample,
    query_KD: Tensor | None = None,
) -> Iterator[tuple[np.ndarray, np.ndarray, Tensor, tuple[Tensor, Tensor]]]:
    """Yield (query, number, row of the query's key, candidates and scores) of a block's cells, some at a time.

    No cell is of a true entity.
    """
    query, number = cells.of_queries(block.first, block.stop)
    if not query.size:
        return
    query_KD = state.prepared_queries(block, table.device) if query_KD is None else query_KD
    step = sizes_on(table.device).rows(sizes_on(table.device).pairs, query_KD.shape[1])
    for at in range(0, query.size, step):
        of_cell, numbers = query[at : at + step], number[at : at + step]
        row = torch.from_numpy(state.queries.key_Q[of_cell] - block.first_key).to(table.device)
        yield of_cell, numbers, row, score_pairs(state, table, first_number, query_KD[row], (of_cell, numbers))


def score_pairs(
    state: ContestState, table: EntityTable, first_number: int, query_PD: Tensor, cells: tuple[np.ndarray, np.ndarray]
) -> tuple[Tensor, Tensor]:
    """Return the prepared candidates of cells (query, number) of a range, and their scores, none of them NaN."""
    candidate_PD = state.prepared_candidates(
        table.rows(torch.from_numpy(cells[1] - first_number), state.dtype), cells[1]
    )
    scores_P = state.paired_scores(query_PD, candidate_PD)
    if state.certified is None:
        refuse_nan_of_pairs(state.comparator, (query_PD, candidate_PD), scores_P, cells, state.nan_score)
    return candidate_PD, scores_P


def count_in_time(
    state: ContestState, table: EntityTable, first_number: int, in_time: KnownAnswers, threads: BlockThreads
) -> None:
    """Count what a time-aware filter leaves out in a range of candidates; pairs that come again are scored once."""
    width = table.embeddings_ND.shape[1]

    def count(block: QueryBlock) -> None:
        rows = None
        sizes = sizes_on(table.device)
        for query, number in state.in_time_cells(block, in_time, sizes.rows(sizes.compared_pairs, width)):
            rows = rows or BlockQueries.read(state, block, table.device)
            row = state.queries.key_Q[block.first + query] - block.first_key
            _, first, at = np.unique(row * table.num_rows + number, return_index=True, return_inverse=True)
            cells = block.first + query[first], number[first]
            pairs = score_pairs(state, table, first_number, rows.query_KD[torch.from_numpy(row[first])], cells)
            query_P, row_P, at_P = (torch.from_numpy(of).to(table.device) for of in (query, row, at))
            better, tied = rows.compare(query_P, row_P, pairs, at_P)
            counts = count_compared(query_P, better, tied, block.stop - block.first)
            with state.lock:
                state.add_in_time(block, counts)

    threads.map(count, state.queries.blocks)


# A range of candidate rows and the lists that name some of them (`candidate_path`) -> counts. Who is named again counts
# again. The true entity always competes; where a list names it, it is left out.


def rank_given(
    state: ContestState,
    table: EntityTable,
    first_number: int,
    cells: CellSample,
    threads: BlockThreads,
    known: KnownAnswers | None = None,
    in_time: KnownAnswers | None = None,
) -> None:
    """Count a contest's queries against those of a range of candidates that their lists name.

    Args:
        state: the contest, prepared; its result grows.
        table: the range's rows, checked.
        first_number: the number of the table's first row.
        cells: (query, number) of what the lists name in this range, arranged by query, no true entity among them.
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
        rows = BlockQueries.read(state, block, table.device)
        for query, number, row, pairs in _scored_cells(state, table, first_number, block, cells, rows.query_KD):
            local = torch.from_numpy(query - block.first).to(table.device)
            better, tied = rows.compare(local, row, pairs, torch.arange(row.numel(), device=row.device))
            is_known = are_known(state, known, query, number)
            counted = [np.ones(query.shape, bool), is_known]
            if in_time is not None and state.in_time_Q is not None:
                counted.append(in_time.are_known(state.in_time_Q[query], number))
            masks = (torch.from_numpy(of).to(table.device) for of in counted)
            of_masks = ((local[of], better[of], tied[of], block.stop - block.first) for of in masks)
            state.add(block, QueryCounts(*(count_compared(*compared) for compared in of_masks)))
            if state.pool is not None:
                state.pool.add(query, pairs[1], is_known)
    if state.sample is not None:
        score_cells(state, table, first_number, state.sample.cells, known, threads)
