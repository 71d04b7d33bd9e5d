"""A range of candidate rows and the lists that name some of them -> counts (`candidate_path`).

A list may name an entity again: it counts as often as it is listed. The true entity always competes; where a list names
it, it is left out.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from pbgeval.ranking.cells import CellSample
from pbgeval.ranking.certified import decide
from pbgeval.ranking.contest_state import ContestState
from pbgeval.ranking.known_by_block import KnownAnswers
from pbgeval.ranking.query_edges import QueryBlock
from pbgeval.ranking.ranking_pass import score_cells, score_pairs
from pbgeval.scoring.duplicates import row_hashes
from pbgeval.scoring.entities import EntityTable
from pbgeval.stats.ranks import QueryCounts, RankCounts

CELLS_AT_A_TIME = 1 << 12  # scored together; changes no number


def rank_given(
    state: ContestState, table: EntityTable, first_number: int, cells: CellSample, known: KnownAnswers | None
) -> None:
    """Count a contest's queries against those of a range of candidates that their lists name.

    Args:
        state: the contest, prepared; its result grows.
        table: the range's rows, checked.
        first_number: the number of the table's first row.
        cells: (query, number) of what the lists name in this range, arranged by query, no true entity among them.
        known: the known answers in this range; None if nothing is filtered.

    Raises:
        DataError: a candidate without a direction under cos, or a score that is not a number.
    """
    for block in state.queries.blocks:
        query, number = cells.of_queries(block.first, block.stop)
        if not query.size:
            continue
        prepared_KD = state.prepared.read(block.first_key, block.stop_key).to(table.device)
        compare = _exactly(state, block, prepared_KD) if state.certified is not None else _by_scores(state, block)
        for at in range(0, query.size, CELLS_AT_A_TIME):
            of_cell, numbers = query[at : at + CELLS_AT_A_TIME], number[at : at + CELLS_AT_A_TIME]
            key = state.queries.key_Q[of_cell]
            row = torch.from_numpy(key - block.first_key).to(table.device)
            candidate_PD, scores_P = score_pairs(state, table, first_number, prepared_KD[row], (of_cell, numbers))
            local = torch.from_numpy(of_cell - block.first).to(table.device)
            better, tied = compare(local, row, candidate_PD, scores_P)
            is_known = np.zeros(of_cell.shape, bool) if known is None else known.are_known(key, numbers)
            parts = [
                _counts(local, better, tied, counted, block.stop - block.first)
                for counted in (torch.ones_like(better), torch.from_numpy(is_known).to(table.device))
            ]
            state.add(block.first, block.stop, QueryCounts(parts[0], parts[1]))
            if state.sample is None:
                state.scores.add(of_cell, scores_P, None if known is None else is_known)
    if state.sample is not None:
        score_cells(state, table, first_number, state.sample.cells, known)


# (query in a block, its row, candidate, score) -> whether candidates are better than true entities, and tied with them
Comparison = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def _by_scores(state: ContestState, block: QueryBlock) -> Comparison:
    true = state.true(block.first, block.stop)

    def compare(query_P: Tensor, _: Tensor, candidate_PD: Tensor, score_P: Tensor) -> tuple[Tensor, Tensor]:
        true_P = true.score_Q[query_P]
        is_twin = (row_hashes(candidate_PD) == true.hash_Q[query_P]) & (score_P == true.kernel_Q[query_P])
        return (score_P > true_P) & ~is_twin, (score_P == true_P) | is_twin

    return compare


def _exactly(state: ContestState, block: QueryBlock, prepared_KD: Tensor) -> Comparison:
    comparator = state.certified
    assert comparator is not None, "the caller has asked"
    row_Q = torch.from_numpy(state.queries.key_Q[block.first : block.stop] - block.first_key)
    true = state.certified_true(comparator, block.first, prepared_KD[row_Q.to(prepared_KD.device)])

    def compare(query_P: Tensor, row_P: Tensor, candidate_PD: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        at = torch.arange(row_P.numel(), device=row_P.device)
        signs_P = decide(comparator, (prepared_KD, row_P), (candidate_PD, at), true, query_P)
        return signs_P > 0, signs_P == 0

    return compare


def _counts(query: Tensor, better: Tensor, tied: Tensor, counted: Tensor, num_queries: int) -> RankCounts:
    return RankCounts(
        torch.bincount(query[better & counted], minlength=num_queries),
        torch.bincount(query[tied & counted], minlength=num_queries),
        torch.bincount(query[counted], minlength=num_queries),
    )
