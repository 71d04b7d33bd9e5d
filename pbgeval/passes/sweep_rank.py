"""A range of candidate rows -> counts of every query against them: the second sweep.

Queries stream past the range block by block; a block's scores are multiplied, compared, and dropped. The known answers
and the cells that the pooled AUC samples are read from the same kernel's scores.
"""

from __future__ import annotations

from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from pbgeval.candidates.constraints import CandidateSets, is_among
from pbgeval.counting import blocks as compiled_blocks
from pbgeval.counting.chunk_loops import COLUMNS_AT_A_TIME
from pbgeval.counting.general import BlockCounter
from pbgeval.passes.block_threads import BlockThreads
from pbgeval.passes.compiled_block import candidates_per_block
from pbgeval.passes.query_edges import QueryBlock, QueryEdges
from pbgeval.passes.sweep_blocks import (
    Columns,
    RangeSinks,
    RangeWork,
    Turn,
    count_certified_turn,
    count_forgetting_turn,
    count_turn,
)
from pbgeval.passes.sweep_cells import CellsByBlock, KnownAnswers, KnownByBlock
from pbgeval.passes.sweep_pass import SweepState, prepared_range
from pbgeval.ranking import QueryCounts
from pbgeval.scoring.certified import CertifiedComparator
from pbgeval.scoring.entities import EntityTable
from pbgeval.scoring.fast_products import PreparedRows
from pbgeval.scoring.twins import Twins

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
