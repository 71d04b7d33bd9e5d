"""A range of candidate rows -> counts of every query against them: the second sweep.

Queries stream past the range block by block; a block's scores are multiplied, compared, and dropped. The known answers
and the cells that the pooled AUC samples are read from the same kernel's scores.
"""

from __future__ import annotations

import threading
from itertools import groupby

import numpy as np
import torch
from attrs import field, frozen
from torch import Tensor

from pbgeval.candidates.constraints import CandidateSets, is_among
from pbgeval.counting.general import BlockCounter
from pbgeval.counting.known import count_known, ties_of_twins
from pbgeval.passes.block_threads import BlockThreads
from pbgeval.passes.cells import CellSample, ScoreCollector
from pbgeval.passes.certified import CertifiedQueries, count_certified
from pbgeval.passes.fused_block import BlockCells, count_fused
from pbgeval.passes.nan import first_nan, largest, overflow_is_impossible
from pbgeval.passes.query_edges import QueryBlock, QueryEdges
from pbgeval.passes.sweep_cells import CellsByBlock, KnownAnswers, KnownByBlock, own_cells, positions
from pbgeval.passes.sweep_pass import SweepState, nan_score, prepared_range
from pbgeval.passes.topk import TopCandidates
from pbgeval.ranking import QueryCounts, RankCounts
from pbgeval.scoring.certified import CertifiedComparator
from pbgeval.scoring.entities import EntityTable
from pbgeval.scoring.fast_products import PreparedRows, fast_scores
from pbgeval.scoring.product import padded_rows
from pbgeval.scoring.true_scores import TrueScores
from pbgeval.scoring.twins import Twins

CANDIDATES_PER_BLOCK = 2048  # changes no number
TURNS_PER_THREAD = 4  # so that none waits long for the last


@frozen(eq=False)
class RangeSinks:
    """What a range of candidates is asked for besides counts; None where nobody asks."""

    sample: CellSample | None = None  # the cells whose scores the pooled AUC compares
    collector: ScoreCollector | None = None  # where they go; without a sample: all cells
    top: TopCandidates | None = None
    lock: threading.Lock = field(factory=threading.Lock, init=False)  # held by the thread that hands something over


@frozen(eq=False)
class _Columns:
    """The candidates of a range that compete in some blocks' queries."""

    numbers_C: np.ndarray
    prepared_CD: Tensor
    width: int  # of a block of scores: CANDIDATES_PER_BLOCK, or all of them
    certified: tuple[PreparedRows, ...] = ()  # the same in runs of `width` rows, if ranks are certified
    largest: tuple[float, ...] = field(init=False)  # magnitude in each run of `width` rows

    @largest.default
    def _largest(self) -> tuple[float, ...]:
        return tuple(largest(part) for part in torch.split(self.prepared_CD, self.width))


def rank(
    state: SweepState,
    edges: QueryEdges,
    table: EntityTable,
    first_number: int,
    sets: CandidateSets,
    dtype: torch.dtype,
    known: KnownAnswers | None,
    counter: BlockCounter,
    threads: BlockThreads,
    sinks: RangeSinks,
) -> None:
    """Count a contest's queries against a range of candidates, which no other call names again.

    Args:
        state: the contest, prepared; its counts grow.
        edges: all edges, for errors.
        table: the range's rows, checked.
        first_number: the number of the table's first row.
        sets: who may compete.
        dtype: of products and comparisons.
        known: the known answers in this range; None if nothing is filtered.
        counter: keeps the comparison buffers.
        threads: each counts some blocks.
        sinks: what else is wanted.

    Raises:
        DataError: a candidate without a direction under cos, or a score that is not a number.
    """
    if not state.queries.blocks:
        return
    all_numbers_C = np.arange(first_number, first_number + table.num_rows)
    prepared_CD = prepared_range(state, edges, table, all_numbers_C, dtype)
    for relation, blocks in groupby(state.queries.blocks, key=lambda block: block.relation):
        allowed = sets.of(state.hidden, relation)
        columns = (all_numbers_C, prepared_CD)
        if allowed is not None:
            rows = np.flatnonzero(is_among(all_numbers_C, allowed))
            columns = (all_numbers_C[rows], prepared_CD[torch.from_numpy(rows).to(prepared_CD.device)])
        if columns[0].size:
            width = columns[0].size if state.fused else CANDIDATES_PER_BLOCK
            of_blocks = _Columns(*columns, width, _in_runs(state.certified, columns[1], width))
            _rank_blocks(state, edges, list(blocks), of_blocks, known, counter, threads, sinks)


def _in_runs(comparator: CertifiedComparator | None, prepared_CL: Tensor, width: int) -> tuple[PreparedRows, ...]:
    """Return the runs of candidates that certified ranks multiply: what they need of each is made while in cache."""
    if comparator is None:
        return ()
    runs = torch.split(prepared_CL, width)
    return tuple(PreparedRows(comparator, run_CL, of_queries=False) for run_CL in runs)


def _rank_blocks(
    state: SweepState,
    edges: QueryEdges,
    blocks: list[QueryBlock],
    columns: _Columns,
    known: KnownAnswers | None,
    counter: BlockCounter,
    threads: BlockThreads,
    sinks: RangeSinks,
) -> None:
    known_of = None
    if known is not None:
        known = known.of_keys(blocks[0].first_key, blocks[-1].stop_key)
        known_of = KnownByBlock.arrange(known, columns.numbers_C, columns.width)
    cells = (
        CellsByBlock.arrange(sinks.sample, columns.numbers_C, state, blocks, known, columns.width)
        if sinks.sample is not None
        else None
    )
    twins = Twins.of_rows(columns.prepared_CD) if state.certified is None else None
    turns = _turns(blocks, columns, threads.num_threads)

    def count(turn: _Turn) -> QueryCounts:
        if twins is None:
            return _count_certified_turn(state, turn, columns, known_of, cells, counter, sinks)
        if state.fused:
            return _count_fused(state, edges, turn.block, columns, known, known_of, cells, twins)
        return _count_turn(state, edges, turn, columns, known, known_of, cells, twins, counter, sinks)

    for turn, counts in zip(turns, threads.map(count, turns), strict=True):
        state.add(turn.block.first, turn.block.stop, counts)
    if cells is not None and sinks.collector is not None:
        sinks.collector.add(cells.query_P, torch.from_numpy(cells.score_P), cells.known_P)


@frozen(eq=False)
class _Turn:
    """A block of queries and the runs of candidates that it meets in one thread."""

    block: QueryBlock
    parts: range


def _turns(blocks: list[QueryBlock], columns: _Columns, num_threads: int) -> list[_Turn]:
    """Cut the work so that every thread has some: few blocks of queries meet the candidates in several turns."""
    num_parts = len(columns.largest)
    turns_per_block = min(num_parts, -(-TURNS_PER_THREAD * num_threads // len(blocks))) if num_threads > 1 else 1
    length = -(-num_parts // turns_per_block)
    starts = range(0, num_parts, length)
    return [_Turn(block, range(at, min(at + length, num_parts))) for block in blocks for at in starts]


def _count_turn(
    state: SweepState,
    edges: QueryEdges,
    turn: _Turn,
    columns: _Columns,
    known: KnownAnswers | None,
    known_of: KnownByBlock | None,
    cells: CellsByBlock | None,
    twins: Twins,
    counter: BlockCounter,
    sinks: RangeSinks,
) -> QueryCounts:
    block = turn.block
    rows = _BlockRows.read(state, block, columns)
    twin_cells = twins.of_queries(rows.true.hash_Q.cpu().numpy(), rows.own_Q.numpy())
    counts: list[QueryCounts] = []
    for part in turn.parts:
        start = part * CANDIDATES_PER_BLOCK
        scores_KC = _scores(state, edges, block, columns, rows, part)
        own_Q = rows.own_Q - start
        excluded = own_cells(own_Q, scores_KC.shape[1])
        raw = counter.count(scores_KC, rows.true.score_Q, excluded, row_Q=rows.row_Q)
        in_block = None
        of_known = RankCounts.zero(rows.row_Q.numel(), scores_KC.device)
        if known_of is not None:
            in_block = known_of.in_block(part, block, scores_KC.device)
            own = own_Q.to(scores_KC.device)
            of_known = count_known(scores_KC, rows.true.score_Q, rows.row_Q, own, in_block)
        counts.append(QueryCounts(raw, of_known))
        if twin_cells[0].size:
            counts.append(_tie_twins(state, block, columns, known, rows, scores_KC, start, twin_cells))
        if cells is not None:
            cells.read(part, block, scores_KC)
        _hand_over(sinks, cells, turn, part, columns, scores_KC, (rows.row_Q, own_Q), in_block)
    return _sum(counts)


def _count_fused(
    state: SweepState,
    edges: QueryEdges,
    block: QueryBlock,
    columns: _Columns,
    known: KnownAnswers | None,
    known_of: KnownByBlock | None,
    cells: CellsByBlock | None,
    twins: Twins,
) -> QueryCounts:
    """Do what `_count_turn` does for all of a range's candidates at once, without a block of scores in memory."""
    device = columns.prepared_CD.device
    rows = _BlockRows.read(state, block, columns)
    twin_query, twin_column = twins.of_queries(rows.true.hash_Q.cpu().numpy(), rows.own_Q.numpy())
    found = count_fused(
        rows.prepared_KD[: rows.num_keys],
        columns.prepared_CD,
        rows.true,
        rows.row_Q,
        BlockCells(
            own=own_cells(rows.own_Q, columns.numbers_C.size),
            known=None if known_of is None else known_of.in_block(0, block, device),
            twins=(torch.from_numpy(twin_query), torch.from_numpy(twin_column)),
            twin_is_known=torch.from_numpy(_are_known(state, block, columns, known, twin_query, twin_column)),
            sampled=None if cells is None else cells.in_block(0, block, device),
        ),
        check_nan=not overflow_is_impossible(rows.largest, max(columns.largest), rows.prepared_KD.shape[1]),
    )
    if found.nan is not None:
        query = int(np.searchsorted(state.queries.key_Q, block.first_key + found.nan[0]))
        raise nan_score(state, edges, query, int(columns.numbers_C[found.nan[1]]))
    if cells is not None:
        cells.keep(0, block, found.sampled_score_P)
    return found.counts


def _count_certified_turn(
    state: SweepState,
    turn: _Turn,
    columns: _Columns,
    known_of: KnownByBlock | None,
    cells: CellsByBlock | None,
    counter: BlockCounter,
    sinks: RangeSinks,
) -> QueryCounts:
    """Do the same in exact arithmetic: the scores of a block are fast ones, or values where they are handed over."""
    block, comparator, device = turn.block, columns.certified[0].comparator, columns.prepared_CD.device
    prepared_KL = state.prepared.read(block.first_key, block.stop_key).to(device)
    row_Q = torch.from_numpy(state.queries.key_Q[block.first : block.stop] - block.first_key).to(device)
    in_range_Q = torch.from_numpy(positions(columns.numbers_C, state.queries.true_Q[block.first : block.stop]))
    true = state.certified_true(comparator, block.first, prepared_KL[row_Q])
    prepared = PreparedRows(comparator, prepared_KL, of_queries=True)
    queries = CertifiedQueries(comparator, prepared, row_Q, true)
    values = sinks.top is not None or (cells is None and sinks.collector is not None)
    counts: list[QueryCounts] = []
    for part in turn.parts:
        candidates = columns.certified[part]
        fast = fast_scores(prepared, candidates, values=values)
        own_Q = in_range_Q - part * CANDIDATES_PER_BLOCK
        in_block = None if known_of is None else known_of.in_block(part, block, device)
        excluded = own_cells(own_Q, candidates.rows_NL.shape[0])
        counts.append(
            count_certified(queries, candidates.rows_NL, 0, fast, counter, excluded, in_block, own_Q.to(device))
        )
        if cells is not None:
            cells.read_values(part, block, prepared, candidates)
        _hand_over(sinks, cells, turn, part, columns, fast.scores_KC, (row_Q, own_Q), in_block)
    return _sum(counts)


def _hand_over(
    sinks: RangeSinks,
    cells: CellsByBlock | None,
    turn: _Turn,
    part: int,
    columns: _Columns,
    scores_KC: Tensor,
    row_and_own_Q: tuple[Tensor, Tensor],
    known: tuple[Tensor, Tensor] | None,
) -> None:
    """Give a block's scores to who asks for them all."""
    row_Q, own_Q = row_and_own_Q
    if cells is None and sinks.collector is not None:
        with sinks.lock:
            sinks.collector.add_block(turn.block.first, scores_KC[row_Q], own_Q, row_Q.cpu(), known)
    if sinks.top is not None:
        numbers = columns.numbers_C[part * CANDIDATES_PER_BLOCK : (part + 1) * CANDIDATES_PER_BLOCK]
        with sinks.lock:
            _offer(sinks.top, turn.block, scores_KC, numbers, known)


def _offer(
    top: TopCandidates, block: QueryBlock, scores_KC: Tensor, numbers_C: np.ndarray, known: tuple[Tensor, Tensor] | None
) -> None:
    """Let a run of candidates compete for the lists of the keys that begin in a block, so that each does once."""
    skipped = int(block.continues_key)
    if known is not None:
        first = int((known[0] < skipped).sum())
        known = known[0][first:] - skipped, known[1][first:]
    if skipped < scores_KC.shape[0]:
        top.add(block.first_key + skipped, scores_KC[skipped:], numbers_C, known)


@frozen(eq=False)
class _BlockRows:
    """What a block of queries brings."""

    prepared_KD: Tensor  # padded for products
    num_keys: int
    largest: float  # magnitude in it
    row_Q: Tensor  # row of each query's key
    own_Q: Tensor  # column of each true entity, far below zero where it is not in the range
    true: TrueScores

    @classmethod
    def read(cls, state: SweepState, block: QueryBlock, columns: _Columns) -> _BlockRows:
        device = columns.prepared_CD.device
        prepared_KD = state.prepared.read(block.first_key, block.stop_key).to(device)
        queries = state.queries
        own_Q = positions(columns.numbers_C, queries.true_Q[block.first : block.stop])
        return cls(
            padded_rows(prepared_KD),
            block.stop_key - block.first_key,
            largest(prepared_KD),
            torch.from_numpy(queries.key_Q[block.first : block.stop] - block.first_key).to(device),
            torch.from_numpy(own_Q),
            state.true(block.first, block.stop, device),
        )


def _scores(
    state: SweepState, edges: QueryEdges, block: QueryBlock, columns: _Columns, rows: _BlockRows, part: int
) -> Tensor:
    """Return the scores (K, C) of a run of candidates, none of them NaN."""
    start = part * CANDIDATES_PER_BLOCK
    candidates_CD = columns.prepared_CD[start : start + CANDIDATES_PER_BLOCK]
    scores_KC = state.comparator.scores(rows.prepared_KD.unsqueeze(0), candidates_CD.unsqueeze(0))[0, : rows.num_keys]
    if not overflow_is_impossible(rows.largest, columns.largest[part], rows.prepared_KD.shape[1]):
        found = first_nan(rows.prepared_KD[: rows.num_keys], candidates_CD, scores_KC.unsqueeze(0))
        if found is not None:
            _, key, column = found
            query = int(np.searchsorted(state.queries.key_Q, block.first_key + key))
            raise nan_score(state, edges, query, int(columns.numbers_C[start + column]))
    return scores_KC


def _tie_twins(
    state: SweepState,
    block: QueryBlock,
    columns: _Columns,
    known: KnownAnswers | None,
    rows: _BlockRows,
    scores_KC: Tensor,
    start: int,
    cells: tuple[np.ndarray, np.ndarray],
) -> QueryCounts:
    """Return the correction that makes twins of true entities tie with them."""
    here = (cells[1] >= start) & (cells[1] < start + scores_KC.shape[1])
    query, column = cells[0][here], cells[1][here]
    is_known = _are_known(state, block, columns, known, query, column)
    query_P = torch.from_numpy(query).to(scores_KC.device)
    scores_P = scores_KC[rows.row_Q[query_P], torch.from_numpy(column - start).to(scores_KC.device)]
    return ties_of_twins(scores_P, rows.true.score_Q, rows.true.kernel_Q, query_P, torch.from_numpy(is_known))


def _are_known(
    state: SweepState,
    block: QueryBlock,
    columns: _Columns,
    known: KnownAnswers | None,
    query: np.ndarray,
    column: np.ndarray,
) -> np.ndarray:
    """Tell of each cell (query of a block, column) whether it is a known answer, bool."""
    if known is None:
        return np.zeros(query.shape, bool)
    return known.are_known(state.queries.key_Q[block.first + query], columns.numbers_C[column])


def _sum(counts: list[QueryCounts]) -> QueryCounts:
    total = counts[0]
    for part in counts[1:]:
        total = total + part
    return total
