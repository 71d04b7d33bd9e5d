"""A block of queries and candidates on a CPU -> counts without and with known answers, and the scores of some cells."""

from __future__ import annotations

import torch
from attrs import frozen
from torch import Tensor

from pbgeval.ranking import blocks, fused
from pbgeval.ranking.chunk_loops import COLUMNS_AT_A_TIME
from pbgeval.ranking.known_counts import OwnCells, count_known_scores, ties_of_twins
from pbgeval.scoring.true_scores import TrueScores
from pbgeval.stats.ranks import QueryCounts, RankCounts

# A block of queries and candidates on a GPU -> counts without and with known answers, and the scores of some cells.

Cells = tuple[Tensor, Tensor]


@frozen(eq=False)
class BlockCells:
    """The cells of a block that are not competitors like any other."""

    own: Cells  # (query, candidate) of the true entities that are in it
    known: Cells | None  # (key, candidate) of known answers, each once; None: nothing is filtered
    twins: Cells  # (query, candidate) of the candidates with a true entity's very vector
    twin_is_known: Tensor  # bool
    sampled: Cells | None  # (query, candidate) whose scores are wanted


@frozen(eq=False)
class FusedBlock:
    """What was found."""

    counts: QueryCounts
    sampled_score_P: Tensor


def count_fused(
    query_KD: Tensor, candidate_CD: Tensor, true: TrueScores, row_Q: Tensor, cells: BlockCells
) -> FusedBlock:
    """Count a block; every score that is taken back or told apart is read off what was counted.

    Args:
        query_KD: prepared queries, one of each key.
        candidate_CD: prepared candidates.
        true: what they are compared with.
        row_Q: the key of each query, ascending.
        cells: those that do not compete, or tie by definition, or are wanted.
    """
    device = query_KD.device
    none = row_Q[:0], row_Q[:0]
    own, twins, sampled = (_to(of_queries or none, device) for of_queries in (cells.own, cells.twins, cells.sampled))
    known = _to(cells.known or none, device)
    lists = [known, *((row_Q[query], column) for query, column in (own, twins, sampled))]
    key_P, column_P = (torch.cat(parts) for parts in zip(*lists, strict=True))
    found = fused.count(query_KD, candidate_CD, true.score_Q, row_Q, (key_P, column_P))
    sizes = [key.numel() for key, _ in lists]
    known_score, own_score, twin_score, sampled_score = torch.split(found.cell_score_P, sizes)

    true_own = true.score_Q[own[0]]
    competing_Q = torch.full_like(row_Q, candidate_CD.shape[0])
    competing_Q[own[0]] -= 1
    found.better_Q[own[0]] -= (own_score > true_own).long()
    found.tied_Q[own[0]] -= (own_score == true_own).long()
    raw = RankCounts(found.better_Q, found.tied_Q, competing_Q)
    of_own, shape = OwnCells(*own, own_score), (query_KD.shape[0], candidate_CD.shape[0])
    counts = QueryCounts(raw, count_known_scores(known_score, known, true.score_Q, row_Q, of_own, shape))
    if twin_score.numel():
        counts = counts + ties_of_twins(twin_score, true.score_Q, true.kernel_Q, twins[0], cells.twin_is_known)
    return FusedBlock(counts, sampled_score)


def _to(cells: Cells, device: torch.device) -> Cells:
    return cells[0].to(device), cells[1].to(device)


# Of the candidates that are counted at a time: enough that calls of Python cost nothing beside it, few enough that
# what is made of them needs little room. Changes no number.
BYTES_PER_BLOCK = 1 << 24


def candidates_per_block(dimension: int) -> int:
    """Return how many candidates the loop counts at a time."""
    return max(BYTES_PER_BLOCK // (4 * max(dimension, 1) * COLUMNS_AT_A_TIME), 1) * COLUMNS_AT_A_TIME


def count_compiled(
    query_KD: Tensor, candidate_CD: Tensor, true: TrueScores, row_Q: Tensor, cells: BlockCells
) -> FusedBlock:
    """Do what `count_fused` does with the same arguments, by a compiled loop; overflow is impossible."""
    none = row_Q[:0]
    own_Q = torch.full_like(row_Q, -1)
    own_Q[cells.own[0]] = cells.own[1]
    twin_query, twin_column = cells.twins
    sampled_query, sampled_column = cells.sampled or (none, none)
    wanted = torch.cat([sampled_query, twin_query]), torch.cat([sampled_column, twin_column])
    limits = true.score_Q, true.score_Q
    found = blocks.count(query_KD, candidate_CD, limits, (row_Q, own_Q), cells.known or (none, none), wanted)
    sampled_score, twin_score = torch.split(found.wanted_score_P, [sampled_query.numel(), twin_query.numel()])
    counts = found.counts
    if twin_score.numel():
        counts = counts + ties_of_twins(twin_score, true.score_Q, true.kernel_Q, twin_query, cells.twin_is_known)
    return FusedBlock(counts, sampled_score)
