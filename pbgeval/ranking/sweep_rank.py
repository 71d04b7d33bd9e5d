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

from pbgeval.errors import DataError
from pbgeval.ranking import blocks as compiled_blocks
from pbgeval.ranking.block_threads import BlockThreads
from pbgeval.ranking.cells import CellSample, ScoreCollector
from pbgeval.ranking.certified import CertifiedQueries, count_certified, count_certified_compiled
from pbgeval.ranking.chunk_loops import COLUMNS_AT_A_TIME
from pbgeval.ranking.compiled_block import BlockCells, Cells, candidates_per_block, count_compiled, count_fused
from pbgeval.ranking.constraints import CandidateSets, is_among
from pbgeval.ranking.general import BlockCounter
from pbgeval.ranking.groups import first_nan, largest, overflow_is_impossible
from pbgeval.ranking.known_counts import count_known, own_cells, ties_of_twins
from pbgeval.ranking.query_edges import QueryBlock, QueryEdges
from pbgeval.ranking.sweep_cells import CellsByBlock, KnownAnswers, KnownByBlock, positions
from pbgeval.ranking.sweep_pass import SweepState, nan_score, prepared_range
from pbgeval.ranking.topk import TopCandidates
from pbgeval.ranking.type_gains import TypeGains
from pbgeval.scoring.certified import CertifiedComparator
from pbgeval.scoring.duplicates import Twins
from pbgeval.scoring.entities import EntityTable
from pbgeval.scoring.fast_products import PreparedRows, fast_scores
from pbgeval.scoring.product import padded_rows
from pbgeval.scoring.true_scores import TrueScores
from pbgeval.stats.ranks import QueryCounts, RankCounts

# A block of queries and runs of a range's candidates -> counts: by scores, exactly, or without keeping scores.


@frozen(eq=False)
class RangeSinks:
    """What a range of candidates is asked for besides counts; None where nobody asks."""

    sample: CellSample | None = None  # the cells whose scores the pooled AUC compares
    collector: ScoreCollector | None = None  # where they go; without a sample: all cells
    top: TopCandidates | None = None
    gains: TypeGains | None = None
    lock: threading.Lock = field(factory=threading.Lock, init=False)  # held by the thread that hands something over

    @property
    def wants_all_scores(self) -> bool:
        """Whether somebody asks for every score of a block."""
        return bool(self.by_key) or (self.sample is None and self.collector is not None)

    @property
    def by_key(self) -> list[TopCandidates | TypeGains]:
        """Those that compare the candidates of a key, and want its scores once."""
        return [sink for sink in (self.top, self.gains) if sink is not None]


@frozen(eq=False)
class Columns:
    """The candidates of a range that compete in some blocks' queries."""

    numbers_C: np.ndarray
    prepared_CD: Tensor
    width: int  # of a block
    certified: tuple[PreparedRows, ...] = ()  # the same in runs of `width` rows, if ranks are certified
    largest: tuple[float, ...] = field(init=False)  # magnitude in each run of `width` rows

    @largest.default
    def _largest(self) -> tuple[float, ...]:
        return tuple(largest(part) for part in torch.split(self.prepared_CD, self.width))

    def rows(self, part: int) -> Tensor:
        """Return the prepared rows of a run."""
        return self.prepared_CD[part * self.width : (part + 1) * self.width]


@frozen(eq=False)
class RangeWork:
    """What all blocks of queries that meet the same candidates have in common."""

    state: SweepState
    edges: QueryEdges  # for errors
    columns: Columns
    known: KnownAnswers | None  # None: nothing is filtered
    known_of: KnownByBlock | None
    cells: CellsByBlock | None  # those that the pooled AUC samples; None: no sample
    counter: BlockCounter
    sinks: RangeSinks

    @property
    def device(self) -> torch.device:
        return self.columns.prepared_CD.device

    def known_in(self, part: int, block: QueryBlock) -> Cells | None:
        """Return (row, column) of the known answers of a block's keys in a run of columns; None: no filter."""
        return None if self.known_of is None else self.known_of.in_block(part, block, self.device)

    def are_known(self, block: QueryBlock, query: np.ndarray, column: np.ndarray) -> np.ndarray:
        """Tell of each cell (query of a block, column) whether it is a known answer, bool."""
        if self.known is None:
            return np.zeros(query.shape, bool)
        return self.known.are_known(self.state.queries.key_Q[block.first + query], self.columns.numbers_C[column])


@frozen(eq=False)
class Turn:
    """A block of queries and the runs of candidates that it meets in one thread."""

    block: QueryBlock
    parts: range


def count_turn(work: RangeWork, turn: Turn, twins: Twins) -> QueryCounts:
    """Count candidates by their scores."""
    block = turn.block
    rows = _BlockRows.read(work, block)
    twin_cells = twins.of_queries(rows.true.hash_Q.cpu().numpy(), rows.own_Q.numpy())
    counts: list[QueryCounts] = []
    for part in turn.parts:
        start = part * work.columns.width
        scores_KC = _scores(work, block, rows, part)
        own_Q = rows.own_Q - start
        excluded = own_cells(own_Q, scores_KC.shape[1])
        raw = work.counter.count(scores_KC, rows.true.score_Q, excluded, row_Q=rows.row_Q)
        in_block = work.known_in(part, block)
        of_known = RankCounts.zero(rows.row_Q.numel(), scores_KC.device)
        if in_block is not None:
            of_known = count_known(scores_KC, rows.true.score_Q, rows.row_Q, own_Q.to(work.device), in_block)
        counts.append(QueryCounts(raw, of_known))
        if twin_cells[0].size:
            counts.append(_tie_twins(work, block, rows, scores_KC, start, twin_cells))
        if work.cells is not None:
            work.cells.read(part, block, scores_KC)
        _hand_over(work, block, part, scores_KC, (rows.row_Q, own_Q), in_block)
    return _sum(counts)


def count_forgetting_turn(work: RangeWork, turn: Turn, twins: Twins) -> QueryCounts:
    """Do what `count_turn` does without a block of scores in memory: in a kernel on a GPU, or in a compiled loop."""
    block, columns = turn.block, work.columns
    rows = _BlockRows.read(work, block)
    largest_there = max(columns.largest[part] for part in turn.parts)
    may_overflow = not overflow_is_impossible(rows.largest, largest_there, rows.prepared_KD.shape[1])
    if may_overflow and not work.state.fused:
        return count_turn(work, turn, twins)
    twin_cells = twins.of_queries(rows.true.hash_Q.cpu().numpy(), rows.own_Q.numpy())
    query_KD = rows.prepared_KD[: rows.num_keys]
    counts: list[QueryCounts] = []
    for part in turn.parts:
        cells = _cells(work, block, rows, part, twin_cells)
        if work.state.fused:
            if may_overflow:
                _scores(work, block, rows, part)  # refuses NaN; the kernel has bits of its own, so it counts
            found = count_fused(query_KD, columns.rows(part), rows.true, rows.row_Q, cells)
        else:
            found = count_compiled(query_KD, columns.rows(part), rows.true, rows.row_Q, cells)
        if work.cells is not None:
            work.cells.keep(part, block, found.sampled_score_P)
        counts.append(found.counts)
    return _sum(counts)


def _cells(
    work: RangeWork, block: QueryBlock, rows: _BlockRows, part: int, twin_cells: tuple[np.ndarray, np.ndarray]
) -> BlockCells:
    """Return the cells of a block and a run of columns that are not competitors like any other."""
    start = part * work.columns.width
    num_columns = work.columns.rows(part).shape[0]
    here = (twin_cells[1] >= start) & (twin_cells[1] < start + num_columns)
    query, column = twin_cells[0][here], twin_cells[1][here]
    return BlockCells(
        own=own_cells(rows.own_Q - start, num_columns),
        known=work.known_in(part, block),
        twins=(torch.from_numpy(query), torch.from_numpy(column - start)),
        twin_is_known=torch.from_numpy(work.are_known(block, query, column)),
        sampled=None if work.cells is None else work.cells.of_queries_in_block(part, block),
    )


def count_certified_turn(work: RangeWork, turn: Turn) -> QueryCounts:
    """Do the same in exact arithmetic: the scores of a block are fast ones, or values where they are handed over."""
    block, columns, device = turn.block, work.columns, work.device
    comparator = columns.certified[0].comparator
    prepared_KL = work.state.prepared.read(block.first_key, block.stop_key).to(device)
    row_Q, in_range_Q = _rows_and_columns(work, block)
    true = work.state.certified_true(comparator, block.first, prepared_KL[row_Q])
    prepared = PreparedRows(comparator, prepared_KL, of_queries=True)
    queries = CertifiedQueries(comparator, prepared, row_Q, true)
    values = work.sinks.wants_all_scores
    counts: list[QueryCounts] = []
    for part in turn.parts:
        candidates = columns.certified[part]
        own_Q = in_range_Q - part * work.columns.width
        in_block = work.known_in(part, block)
        found = None
        if not values:
            found = count_certified_compiled(queries, candidates, own_Q, in_block, work.state.bfloat16)
        if found is None:
            fast = fast_scores(prepared, candidates, values=values)
            there_Q = own_Q.to(device)
            excluded = own_cells(there_Q, candidates.rows_NL.shape[0])
            found = count_certified(queries, candidates.rows_NL, 0, fast, work.counter, excluded, in_block, there_Q)
            _hand_over(work, block, part, fast.scores_KC, (row_Q, own_Q), in_block)
        counts.append(found)
        if work.cells is not None:
            work.cells.read_values(part, block, prepared, candidates)
    return _sum(counts)


def _hand_over(
    work: RangeWork,
    block: QueryBlock,
    part: int,
    scores_KC: Tensor,
    row_and_own_Q: tuple[Tensor, Tensor],
    known: Cells | None,
) -> None:
    """Give a block's scores to who asks for them all."""
    row_Q, own_Q = row_and_own_Q
    sinks = work.sinks
    if work.cells is None and sinks.collector is not None:
        with sinks.lock:
            sinks.collector.add_block(block.first, scores_KC[row_Q], own_Q, row_Q.cpu(), known)
    for sink in sinks.by_key:
        numbers = work.columns.numbers_C[part * work.columns.width : (part + 1) * work.columns.width]
        with sinks.lock:
            _offer(sink, block, scores_KC, numbers, known)


def _offer(
    sink: TopCandidates | TypeGains, block: QueryBlock, scores_KC: Tensor, numbers_C: np.ndarray, known: Cells | None
) -> None:
    """Let a run of candidates compete for the lists of the keys that begin in a block, so that each does once."""
    skipped = int(block.continues_key)
    if known is not None:
        first = int((known[0] < skipped).sum())
        known = known[0][first:] - skipped, known[1][first:]
    if skipped < scores_KC.shape[0]:
        sink.add(block.first_key + skipped, scores_KC[skipped:], numbers_C, known)


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
    def read(cls, work: RangeWork, block: QueryBlock) -> _BlockRows:
        prepared_KD = work.state.prepared.read(block.first_key, block.stop_key).to(work.device)
        return cls(
            padded_rows(prepared_KD),
            block.stop_key - block.first_key,
            largest(prepared_KD),
            *_rows_and_columns(work, block),
            work.state.true(block.first, block.stop, work.device),
        )


def _rows_and_columns(work: RangeWork, block: QueryBlock) -> tuple[Tensor, Tensor]:
    """Return the row of each query's key, and the column of its true entity, far below zero where it is elsewhere."""
    queries = work.state.queries
    row_Q = torch.from_numpy(queries.key_Q[block.first : block.stop] - block.first_key)
    own_Q = torch.from_numpy(positions(work.columns.numbers_C, queries.true_Q[block.first : block.stop]))
    return row_Q.to(work.device), own_Q


def _scores(work: RangeWork, block: QueryBlock, rows: _BlockRows, part: int) -> Tensor:
    """Return the scores (K, C) of a run of candidates, none of them NaN."""
    start = part * work.columns.width
    candidates_CD = work.columns.rows(part)
    scores_BKC = work.state.comparator.scores(rows.prepared_KD.unsqueeze(0), candidates_CD.unsqueeze(0))
    scores_KC = scores_BKC[0, : rows.num_keys]
    if not overflow_is_impossible(rows.largest, work.columns.largest[part], rows.prepared_KD.shape[1]):
        query_KD = rows.prepared_KD[: rows.num_keys]
        found = first_nan(work.state.comparator, query_KD[None], candidates_CD[None], scores_KC[None])
        if found is not None:
            raise _nan_score(work, block, found[1], start + found[2])
    return scores_KC


def _nan_score(work: RangeWork, block: QueryBlock, key: int, column: int) -> DataError:
    """Return the error that names the first query of a block's key, and a candidate."""
    query = int(np.searchsorted(work.state.queries.key_Q, block.first_key + key))
    return nan_score(work.state, work.edges, query, int(work.columns.numbers_C[column]))


def _tie_twins(
    work: RangeWork,
    block: QueryBlock,
    rows: _BlockRows,
    scores_KC: Tensor,
    start: int,
    cells: tuple[np.ndarray, np.ndarray],
) -> QueryCounts:
    """Return the correction that makes twins of true entities tie with them."""
    here = (cells[1] >= start) & (cells[1] < start + scores_KC.shape[1])
    query, column = cells[0][here], cells[1][here]
    is_known = work.are_known(block, query, column)
    query_P = torch.from_numpy(query).to(scores_KC.device)
    scores_P = scores_KC[rows.row_Q[query_P], torch.from_numpy(column - start).to(scores_KC.device)]
    return ties_of_twins(scores_P, rows.true.score_Q, rows.true.kernel_Q, query_P, torch.from_numpy(is_known))


def _sum(counts: list[QueryCounts]) -> QueryCounts:
    total = counts[0]
    for part in counts[1:]:
        total = total + part
    return total


CANDIDATES_PER_BLOCK = 2048  # changes no number
TURNS_PER_THREAD = 4  # so that none waits long for the last


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
            of_relation = list(blocks)
            keeps_scores = _keeps_scores(state, of_relation, columns[1], sinks)
            width = CANDIDATES_PER_BLOCK
            if not keeps_scores:
                width = columns[0].size if state.fused else _compiled_width(columns[1], len(of_relation), threads)
            of_blocks = Columns(*columns, width, _in_runs(state.certified, columns[1], width))
            _rank_blocks(state, edges, of_relation, of_blocks, known, counter, threads, sinks, keeps_scores)


def _keeps_scores(state: SweepState, blocks: list[QueryBlock], prepared_CD: Tensor, sinks: RangeSinks) -> bool:
    """Tell whether blocks of scores are made; else nobody asks for the scores that are forgotten at once."""
    if state.fused:
        return False
    if sinks.wants_all_scores:
        return True
    num_cells = (blocks[-1].stop - blocks[0].first) * prepared_CD.shape[0]
    if state.certified is not None:
        return state.certified.has_root or not compiled_blocks.is_worth_it(prepared_CD.device, num_cells)
    return not compiled_blocks.serves(state.comparator, prepared_CD.device, prepared_CD.dtype, num_cells)


def _compiled_width(prepared_CD: Tensor, num_blocks: int, threads: BlockThreads) -> int:
    """Return how many candidates the compiled loop counts at a time; fewer where few blocks leave threads idle."""
    most = candidates_per_block(prepared_CD.shape[1])
    if threads.num_threads == 1:
        return most
    runs = -(-TURNS_PER_THREAD * threads.num_threads // num_blocks)
    columns = -(-prepared_CD.shape[0] // (runs * COLUMNS_AT_A_TIME)) * COLUMNS_AT_A_TIME
    return min(columns, most)


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
    columns: Columns,
    known: KnownAnswers | None,
    counter: BlockCounter,
    threads: BlockThreads,
    sinks: RangeSinks,
    keeps_scores: bool,
) -> None:
    known_of = cells = None
    if known is not None:
        known = known.of_keys(blocks[0].first_key, blocks[-1].stop_key)
        known_of = KnownByBlock.arrange(known, columns.numbers_C, columns.width)
    if sinks.sample is not None:
        cells = CellsByBlock.arrange(sinks.sample, columns.numbers_C, state, blocks, known, columns.width)
    work = RangeWork(state, edges, columns, known, known_of, cells, counter, sinks)
    twins = Twins.of_rows(columns.prepared_CD) if state.certified is None else None
    turns = _turns(blocks, columns, threads.num_threads)

    def count(turn: Turn) -> QueryCounts:
        if twins is None:
            return count_certified_turn(work, turn)
        return (count_turn if keeps_scores else count_forgetting_turn)(work, turn, twins)

    for turn, counts in zip(turns, threads.map(count, turns), strict=True):
        state.add(turn.block.first, turn.block.stop, counts)
    if cells is not None and sinks.collector is not None:
        sinks.collector.add(cells.query_P, torch.from_numpy(cells.score_P), cells.known_P)


def _turns(blocks: list[QueryBlock], columns: Columns, num_threads: int) -> list[Turn]:
    """Cut the work so that every thread has some: few blocks of queries meet the candidates in several turns."""
    num_parts = len(columns.largest)
    turns_per_block = min(num_parts, -(-TURNS_PER_THREAD * num_threads // len(blocks))) if num_threads > 1 else 1
    length = -(-num_parts // turns_per_block)
    starts = range(0, num_parts, length)
    return [Turn(block, range(at, min(at + length, num_parts))) for block in blocks for at in starts]
