"""A range of candidate rows and the lists that name some of them -> counts (`candidate_path`).

A list may name an entity again: it counts as often as it is listed. The true entity always competes; where a list names
it, it is left out.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from pbgeval.ranking.cells import CellSample, ScoreCollector
from pbgeval.ranking.certified import decide
from pbgeval.ranking.groups import first_nan_of_pairs
from pbgeval.ranking.query_edges import QueryBlock, QueryEdges
from pbgeval.ranking.sweep_cells import KnownAnswers
from pbgeval.ranking.sweep_pass import SweepState, nan_score, prepared_candidates
from pbgeval.scoring.duplicates import row_hashes
from pbgeval.scoring.entities import EntityTable
from pbgeval.scoring.fast_products import values_of_pairs
from pbgeval.stats.ranks import QueryCounts, RankCounts

CELLS_AT_A_TIME = 1 << 12  # scored together; changes no number


def rank_given(
    state: SweepState,
    edges: QueryEdges,
    table: EntityTable,
    first_number: int,
    dtype: torch.dtype,
    cells: CellSample,
    known: KnownAnswers | None,
    collector: ScoreCollector | None,
) -> None:
    """Count a contest's queries against those of a range of candidates that their lists name.

    Args:
        state: the contest, prepared; its counts grow.
        edges: all edges, for errors.
        table: the range's rows, checked.
        first_number: the number of the table's first row.
        dtype: of products and comparisons.
        cells: (query, number) of what the lists name in this range, arranged by query, no true entity among them.
        known: the known answers in this range; None if nothing is filtered.
        collector: where the scores go that the pooled AUC compares; None: nowhere.

    Raises:
        DataError: a candidate without a direction under cos, or a score that is not a number.
    """
    device = table.device
    for block in state.queries.blocks:
        query, number = cells.of_queries(block.first, block.stop)
        if not query.size:
            continue
        prepared_KD = state.prepared.read(block.first_key, block.stop_key).to(device)
        compare = _comparison(state, block, prepared_KD)
        for at in range(0, query.size, CELLS_AT_A_TIME):
            of_cell, numbers = query[at : at + CELLS_AT_A_TIME], number[at : at + CELLS_AT_A_TIME]
            x_PD = table.rows(torch.from_numpy(numbers - first_number), dtype)
            candidates_PD = prepared_candidates(state, edges, x_PD, numbers)
            key = state.queries.key_Q[of_cell]
            row = torch.from_numpy(key - block.first_key).to(device)
            local = torch.from_numpy(of_cell - block.first).to(device)
            scores, better, tied = compare(local, row, candidates_PD)
            _refuse_nan(state, edges, (prepared_KD[row], candidates_PD), scores, (of_cell, numbers))
            is_known = np.zeros(of_cell.shape, bool) if known is None else known.are_known(key, numbers)
            every = torch.ones_like(better)
            parts = [
                _counts(local, better, tied, counted, block.stop - block.first)
                for counted in (every, torch.from_numpy(is_known).to(device))
            ]
            state.add(block.first, block.stop, QueryCounts(parts[0], parts[1]))
            if collector is not None:
                collector.add(of_cell, scores, None if known is None else is_known)


Comparison = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]


def _comparison(state: SweepState, block: QueryBlock, prepared_KD: torch.Tensor) -> Comparison:
    """Return what tells of (query in the block, its row, candidate) the score, and whether it is better, and tied."""
    certified = state.certified
    if certified is not None:
        row_Q = torch.from_numpy(state.queries.key_Q[block.first : block.stop] - block.first_key)
        exact = state.certified_true(certified, block.first, prepared_KD[row_Q.to(prepared_KD.device)])

        def compare_exactly(
            query: torch.Tensor, row: torch.Tensor, candidates_PD: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            at = torch.arange(row.numel(), device=row.device)
            signs = decide(certified, (prepared_KD, row), (candidates_PD, at), exact, query)
            return _pair_scores(state, prepared_KD[row], candidates_PD), signs > 0, signs == 0

        return compare_exactly
    true = state.true(block.first, block.stop, prepared_KD.device)

    def compare(
        query: torch.Tensor, row: torch.Tensor, candidates_PD: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        scores = _pair_scores(state, prepared_KD[row], candidates_PD)
        twin = (row_hashes(candidates_PD) == true.hash_Q[query]) & (scores == true.kernel_Q[query])
        return scores, (scores > true.score_Q[query]) & ~twin, (scores == true.score_Q[query]) | twin

    return compare


def _pair_scores(state: SweepState, query_PD: torch.Tensor, candidates_PD: torch.Tensor) -> torch.Tensor:
    """Return the score of each query with its own candidate, as the pooled AUC compares it."""
    if state.certified is None:
        return state.comparator.paired_scores(query_PD, candidates_PD)
    return values_of_pairs(state.certified, query_PD, candidates_PD)


def _refuse_nan(
    state: SweepState,
    edges: QueryEdges,
    rows: tuple[torch.Tensor, torch.Tensor],
    scores: torch.Tensor,
    cells: tuple[np.ndarray, np.ndarray],
) -> None:
    """Name the first of some cells (query, candidate's number) whose score is not a number."""
    bad = None if state.certified is not None else first_nan_of_pairs(state.comparator, *rows, scores)
    if bad is not None:
        raise nan_score(state, edges, int(cells[0][bad]), int(cells[1][bad]))


def _counts(
    query: torch.Tensor, better: torch.Tensor, tied: torch.Tensor, counted: torch.Tensor, num_queries: int
) -> RankCounts:
    return RankCounts(
        torch.bincount(query[better & counted], minlength=num_queries),
        torch.bincount(query[tied & counted], minlength=num_queries),
        torch.bincount(query[counted], minlength=num_queries),
    )


def score_cells(
    state: SweepState,
    edges: QueryEdges,
    table: EntityTable,
    first_number: int,
    dtype: torch.dtype,
    sample: CellSample,
    known: KnownAnswers | None,
    collector: ScoreCollector,
) -> None:
    """Score those of the cells that the pooled AUC samples whose candidates are in a range.

    Args:
        state: the contest, prepared.
        edges: all edges, for errors.
        table: the range's rows.
        first_number: the number of the table's first row.
        dtype: of products.
        sample: (query, number), arranged by candidate, no true entity among them.
        known: the known answers in this range; None if nothing is filtered.
        collector: where the scores go.

    Raises:
        DataError: a candidate without a direction under cos, or a score that is not a number.
    """
    cells = sample.within(np.arange(first_number, first_number + table.num_rows))
    for block in state.queries.blocks:
        query, number = cells.of_queries(block.first, block.stop)
        for at in range(0, query.size, CELLS_AT_A_TIME):
            of_cell, numbers = query[at : at + CELLS_AT_A_TIME], number[at : at + CELLS_AT_A_TIME]
            prepared_KD = state.prepared.read(block.first_key, block.stop_key).to(table.device)
            key = state.queries.key_Q[of_cell]
            row = torch.from_numpy(key - block.first_key).to(table.device)
            x_PD = table.rows(torch.from_numpy(numbers - first_number), dtype)
            candidates_PD = prepared_candidates(state, edges, x_PD, numbers)
            scores = _pair_scores(state, prepared_KD[row], candidates_PD)
            _refuse_nan(state, edges, (prepared_KD[row], candidates_PD), scores, (of_cell, numbers))
            collector.add(of_cell, scores, None if known is None else known.are_known(key, numbers))
