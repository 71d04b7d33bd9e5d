"""A block of scores -> how many competitors beat, tie with and lose to each true entity, known answers among them.

Queries with one key (side, relation, known entity) share a row of scores and a list of known answers; only their true
entities differ. This is the general way, for any device and block shape; on a CPU a compiled loop does the same in one
reading (`cpu_counting`). Loading numba takes half a second, so a process begins without it and small blocks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pbgeval.scoring.block_sizes import sizes_on
from pbgeval.stats.ranks import QueryCounts, RankCounts

CellIndex = tuple[Tensor, Tensor]  # (row or query, column) of some cells of a block, int64


def no_cells(device: torch.device | str) -> CellIndex:
    """Return a list of cells that is empty, on a device."""
    index = torch.empty(0, dtype=torch.int64, device=device)
    return index, index


NO_CELLS = no_cells("cpu")
EXPANDED_AT_A_TIME = 1 << 23  # known answers, for each query that has them; changes no number


def count(
    scores_KC: Tensor,
    high_Q: Tensor,
    low_Q: Tensor | None = None,
    *,
    row_Q: Tensor | None = None,
    own_Q: Tensor | None = None,
    excluded: CellIndex | None = None,
    known: CellIndex | None = None,
) -> QueryCounts:
    """Compare every candidate with its query's true entity.

    Args:
        scores_KC: scores of the block, no NaN among them.
        high_Q: scores above are better: the score of each query's true entity, from the same kernel.
        low_Q: scores from here up to `high_Q` tie; None: those equal to it.
        row_Q: row of each query's scores; None: each query has its own, in order.
        own_Q: candidate that is the true entity itself and does not compete, out of range where it is none of these;
            None: it never is. Its score is read from this very block, so what was counted is what is taken back.
        excluded: (query, candidate) of other cells that do not compete, each once, none of them known.
        known: (row, candidate) of known answers, each once, rows ascending and candidates ascending within a row; the
            true entity may be among them. None: nothing is filtered.
    """
    num_queries, num_candidates, device = high_Q.numel(), scores_KC.shape[1], scores_KC.device
    low_Q, may_hold_own = high_Q if low_Q is None else low_Q, own_Q is not None and num_candidates > 0
    row_Q = torch.arange(num_queries, device=device) if row_Q is None else row_Q
    own_Q = torch.full_like(row_Q, -1) if own_Q is None else own_Q.to(device)
    raw = RankCounts(*_compare(scores_KC, high_Q, low_Q, row_Q), torch.full_like(row_Q, num_candidates))
    if may_hold_own:
        raw = raw - _count_own(scores_KC, high_Q, low_Q, row_Q, own_Q)
    if excluded is not None:
        query, column = excluded[0].to(device), excluded[1].to(device)
        raw = raw - count_cells(scores_KC[row_Q[query], column], query, high_Q, low_Q)
    of_queries = row_Q, own_Q, high_Q, low_Q
    return (
        QueryCounts.unfiltered(raw)
        if known is None
        else QueryCounts(raw, count_known(scores_KC[known], known, *of_queries))
    )


def _count_own(scores_KC: Tensor, high_Q: Tensor, low_Q: Tensor, row_Q: Tensor, own_Q: Tensor) -> RankCounts:
    """Count the true entities that are in a block, without asking which: a GPU would have to answer first."""
    last = scores_KC.shape[1] - 1
    is_here_Q = (own_Q >= 0) & (own_Q <= last)
    score_Q = scores_KC[row_Q, own_Q.clamp(0, last)]
    better_Q = is_here_Q & (score_Q > high_Q)
    return RankCounts(*(of.long() for of in (better_Q, is_here_Q & (score_Q >= low_Q) & ~better_Q, is_here_Q)))


def _compare(scores_KC: Tensor, high_Q: Tensor, low_Q: Tensor, row_Q: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many scores of each query's row are better, and how many tie."""
    better_Q, at_least_Q = torch.empty_like(row_Q), torch.empty_like(row_Q)
    step = max(sizes_on(scores_KC.device).cells // max(scores_KC.shape[1], 1), 1)
    for start in range(0, row_Q.numel(), step):
        part = slice(start, start + step)
        scores_QC = scores_KC.index_select(0, row_Q[part])
        better_Q[part] = (scores_QC > high_Q[part].unsqueeze(1)).sum(1)
        at_least_Q[part] = (scores_QC >= low_Q[part].unsqueeze(1)).sum(1)
    return better_Q, at_least_Q - better_Q


def count_cells(score_P: Tensor, query_P: Tensor, high_Q: Tensor, low_Q: Tensor) -> RankCounts:
    """Count candidates that are named one by one."""
    better_P = score_P > high_Q[query_P]
    return count_compared(query_P, better_P, (score_P >= low_Q[query_P]) & ~better_P, high_Q.numel())


def count_compared(query_P: Tensor, better_P: Tensor, tied_P: Tensor, num_queries: int) -> RankCounts:
    """Count candidates of which it is known whether they are better than the true entity of their query, or tie."""
    counted_P3 = torch.stack([better_P, tied_P, torch.ones_like(better_P)], dim=1).long()
    counts_Q3 = counted_P3.new_zeros((num_queries, 3)).index_add_(0, query_P, counted_P3)
    return RankCounts(*counts_Q3.t().contiguous().unbind())


def count_known(
    score_P: Tensor, known: CellIndex, row_Q: Tensor, own_Q: Tensor, high_Q: Tensor, low_Q: Tensor
) -> RankCounts:
    """Count the known answers of each query but its true entity, given their scores; arguments are those of `count`."""
    total = RankCounts.zero(row_Q.numel(), row_Q.device)
    if not score_P.numel():
        return total
    row_P, column_P = known
    # A hub's answers for each of its queries take much room.
    step = max(EXPANDED_AT_A_TIME // int(torch.bincount(row_P).max()), 1)
    for start in range(0, row_Q.numel(), step):
        query, entry = expand_by_row(row_Q[start : start + step], row_P)
        query += start
        others = column_P[entry] != own_Q[query]
        total = total + count_cells(score_P[entry[others]], query[others], high_Q, low_Q)
    return total


def expand_by_row(row_Q: Tensor, row_P: Tensor) -> tuple[Tensor, Tensor]:
    """Pair each query with every entry of its row.

    Args:
        row_Q: row of each query.
        row_P: row of each entry, ascending.

    Returns:
        (query, entry) indices of all pairs, int64, queries in order.
    """
    entries_K = torch.bincount(row_P, minlength=int(row_Q.max()) + 1 if row_Q.numel() else 0)
    first_K = entries_K.cumsum(0) - entries_K
    entries_Q = entries_K[row_Q]
    query = torch.repeat_interleave(torch.arange(row_Q.numel(), device=row_Q.device), entries_Q)
    before_Q = entries_Q.cumsum(0) - entries_Q
    return query, torch.arange(query.numel(), device=row_Q.device) + (first_K[row_Q] - before_Q)[query]


def own_cells(own_Q: Tensor, num_columns: int) -> CellIndex:
    """Return (query, column) of the true entities that are in a block; `own_Q` is out of range where one is not."""
    query = ((own_Q >= 0) & (own_Q < num_columns)).nonzero().squeeze(1)
    return query, own_Q[query]


def joined(some: CellIndex, others: CellIndex) -> CellIndex:
    """Return two lists of cells as one, not in order."""
    return torch.cat([some[0], others[0]]), torch.cat([some[1], others[1]])


def competing_scores(
    scores_QC: Tensor, competes_QC: Tensor, known: CellIndex | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the scores of all competitors, their queries, and which are known answers (None: nothing is filtered).

    Args:
        scores_QC: of a block.
        competes_QC: bool, on the device of `known`.
        known: (query, column) of known answers.
    """
    is_known = None
    if known is not None:
        known_QC = torch.zeros_like(competes_QC)
        known_QC[known] = True
        is_known = known_QC[competes_QC]
    return scores_QC[competes_QC.to(scores_QC.device)], competes_QC.nonzero()[:, 0], is_known


def are_among(query_P: Tensor, column_P: Tensor, cells: CellIndex | None, num_columns: int) -> Tensor:
    """Tell of each (query, column) whether it is among some cells, bool; None: there are none."""
    if cells is None:
        return torch.zeros_like(query_P, dtype=torch.bool)
    return torch.isin(query_P * num_columns + column_P, cells[0] * num_columns + cells[1])
