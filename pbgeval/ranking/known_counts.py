"""A block of scores and cells in it, such as known answers -> what to take back from the block's counts.

Queries with one key (side, relation, known entity) share a row of scores and a list of known answers; only their true
entities differ. A query's own true entity is among the known answers where it is known: the caller leaves it out.
"""

from __future__ import annotations

import torch
from attrs import frozen
from torch import Tensor

from pbgeval.ranking import compiled
from pbgeval.stats.ranks import RankCounts

CellIndex = tuple[Tensor, Tensor]  # (row or query, column) of some cells of a block, int64
FEW_COMPARISONS = 1 << 16


def expand_by_row(row_Q: Tensor, row_P: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    """Pair each query with every entry of its row.

    Args:
        row_Q: row of each query.
        row_P: row of each entry, ascending.
        num_rows: how many rows there are.

    Returns:
        (query, entry) indices of all pairs, int64, queries in order.
    """
    entries_R = torch.bincount(row_P, minlength=num_rows)
    first_R = entries_R.cumsum(0) - entries_R
    entries_Q = entries_R[row_Q]
    query = torch.repeat_interleave(torch.arange(row_Q.numel(), device=row_Q.device), entries_Q)
    before_Q = entries_Q.cumsum(0) - entries_Q
    entry = torch.arange(query.numel(), device=row_Q.device) + (first_R[row_Q] - before_Q)[query]
    return query, entry


def own_cells(own_Q: Tensor, num_columns: int) -> CellIndex:
    """Return (query, column) of the true entities that are in a block; `own_Q` is out of range where one is not."""
    query = ((own_Q >= 0) & (own_Q < num_columns)).nonzero().squeeze(1)
    return query, own_Q[query]


def are_among(query_P: Tensor, column_P: Tensor, cells: CellIndex | None, num_columns: int) -> Tensor:
    """Tell of each (query, column) whether it is among some cells, bool; None: there are none."""
    if cells is None:
        return torch.zeros_like(query_P, dtype=torch.bool)
    codes, code_P = cells[0] * num_columns + cells[1], query_P * num_columns + column_P
    if codes.numel() * code_P.numel() <= FEW_COMPARISONS:  # a sort's calls would take longer
        return (code_P.unsqueeze(1) == codes).any(1)
    return torch.isin(code_P, codes)


def count_known(
    scores_KC: Tensor,
    true_Q: Tensor,
    row_Q: Tensor,
    own_column_Q: Tensor,
    known: CellIndex,
    low_Q: Tensor | None = None,
) -> RankCounts:
    """Count the known answers of each query among a block's candidates.

    Args:
        scores_KC: the block of scores that was counted, a row per key.
        true_Q: score of each query's true entity, from the same kernel.
        row_Q: row of each query's key in the block.
        own_column_Q: column of each query's true entity, negative where it is not in the block.
        known: (row, column) of the known answers of all keys, each pair once, rows ascending and columns
            ascending within a row.
        low_Q: scores from here up to `true_Q` count as the same; None: those equal to it.

    Returns:
        The known answers that score better, the same, and all of them; the true entity is not among them.

    The answers of a key are sorted once by their scores, and each of its queries looks up where its true entity stands:
    a key with many answers and many queries costs their sum, not their product.
    """
    num_rows, num_columns = scores_KC.shape
    if not known[0].numel():
        return RankCounts.zero(true_Q.numel(), scores_KC.device)
    low_Q = true_Q if low_Q is None else low_Q
    if compiled.serves(scores_KC, true_Q.numel()):
        return compiled.count_known_rows(scores_KC, (true_Q, low_Q), row_Q, own_column_Q, known)
    query, column = own_cells(own_column_Q, num_columns)
    own = OwnCells(query, column, scores_KC[row_Q[query], column])
    return count_known_scores(scores_KC[known], known, true_Q, row_Q, own, (num_rows, num_columns), low_Q)


@frozen(eq=False)
class OwnCells:
    """The true entities that are among a block's candidates."""

    query: Tensor  # int64, each once
    column: Tensor
    score: Tensor  # from the block that was counted


def count_known_scores(
    score_P: Tensor,
    known: CellIndex,
    true_Q: Tensor,
    row_Q: Tensor,
    own: OwnCells,
    shape: tuple[int, int],
    low_Q: Tensor | None = None,
) -> RankCounts:
    """Do what `count_known` does, given the scores of the known answers.

    Args:
        score_P: from the block that was counted.
        known: (row, column) of each, every pair once, in any order.
        true_Q: score of each query's true entity.
        row_Q: row of each query's key in the block.
        own: the true entities that are in the block.
        shape: rows and columns of the block.
        low_Q: scores from here up to `true_Q` count as the same; None: those equal to it.
    """
    num_rows, num_columns = shape
    low_Q = true_Q if low_Q is None else low_Q
    if not score_P.numel():
        return RankCounts.zero(true_Q.numel(), true_Q.device)
    code_P, code_QQ = _order_codes(score_P, known[0], torch.cat([true_Q, low_Q]), torch.cat([row_Q, row_Q]))
    code_Q, low_code_Q = code_QQ.chunk(2)
    code_P = code_P.sort().values
    beyond_tied_Q = torch.searchsorted(code_P, code_Q, right=True)
    of_row = torch.bincount(known[0], minlength=num_rows)
    better_Q = of_row.cumsum(0)[row_Q] - beyond_tied_Q
    tied_Q = beyond_tied_Q - torch.searchsorted(code_P, low_code_Q)
    competing_Q = of_row[row_Q]

    cell_P = (known[0] * num_columns + known[1]).sort().values
    cell = row_Q[own.query] * num_columns + own.column
    is_known = cell_P[torch.searchsorted(cell_P, cell).clamp(max=cell_P.numel() - 1)] == cell
    true = true_Q[own.query]
    better_Q[own.query] -= ((own.score > true) & is_known).long()
    tied_Q[own.query] -= ((own.score <= true) & (own.score >= low_Q[own.query]) & is_known).long()
    competing_Q[own.query] -= is_known.long()
    return RankCounts(better_Q, tied_Q, competing_Q)


def _order_codes(score_P: Tensor, row_P: Tensor, score_Q: Tensor, row_Q: Tensor) -> tuple[Tensor, Tensor]:
    """Map (row, score) of two lists to int64 that are ordered by row, then score; 0.0 and -0.0 are one."""
    if score_P.dtype is torch.float32:
        places_P, places_Q = _images(score_P), _images(score_Q)
    else:
        places = torch.unique(torch.cat([score_P, score_Q]) + 0.0, return_inverse=True)[1]
        places_P, places_Q = places.split([score_P.numel(), score_Q.numel()])
    return (row_P << 32) | places_P, (row_Q << 32) | places_Q


def _images(scores: Tensor) -> Tensor:
    """Map float32 to int64 from 0 to 2^32 that compare alike."""
    bits = (scores + 0.0).view(torch.int32).long()
    return torch.where(bits >= 0, bits + (1 << 31), -1 - bits)


def count_cells(scores_QC: Tensor, true_Q: Tensor, cells: CellIndex, low_Q: Tensor | None = None) -> RankCounts:
    """Count the candidates of a block that are named one by one.

    Args:
        scores_QC: the block of scores that was counted.
        true_Q: score of each query's true entity, from the same kernel.
        cells: (query, candidate), each once.
        low_Q: scores from here up to `true_Q` count as tied; None: those equal to it.
    """
    query, candidate = (index.to(scores_QC.device) for index in cells)
    scores, true, num_queries = scores_QC[query, candidate], true_Q[query], true_Q.numel()
    low = true if low_Q is None else low_Q[query]
    return RankCounts(
        torch.bincount(query[scores > true], minlength=num_queries),
        torch.bincount(query[(scores <= true) & (scores >= low)], minlength=num_queries),
        torch.bincount(query, minlength=num_queries),
    )
