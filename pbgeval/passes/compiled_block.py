"""A block of queries and candidates on a CPU -> counts without and with known answers, and the scores of some cells."""

from __future__ import annotations

import torch
from torch import Tensor

from pbgeval.counting import blocks
from pbgeval.counting.chunk_loops import COLUMNS_AT_A_TIME
from pbgeval.counting.known import ties_of_twins
from pbgeval.passes.fused_block import BlockCells, FusedBlock
from pbgeval.scoring.true_scores import TrueScores

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
