"""Fast scores with error bounds -> the counts of exact arithmetic.

A candidate is better if its score exceeds the true score by more than both error bounds together, and worse if it is as
far below, however the scores were rounded. Cells in between are open: they are first counted as ties, then decided pair
by pair, in float64 where its error bound allows, else exactly. So counts do not depend on the product, its blocks or
the hardware.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from pbgeval.ranking.block import Block, QueryRows
from pbgeval.ranking.counting import CellIndex, are_among, count_compared
from pbgeval.scoring import device_lists, device_pairs
from pbgeval.scoring.block_sizes import sizes_on
from pbgeval.scoring.deferred import holds, pass_on
from pbgeval.scoring.exact import ExactComparator
from pbgeval.scoring.fast_products import rows_of_cells
from pbgeval.scoring.true_scores import ExactTrue
from pbgeval.stats.ranks import QueryCounts, RankCounts


def limits(
    offset_and_error_K: tuple[Tensor, Tensor],
    true: ExactTrue,
    row_Q: Tensor,
    dtype: torch.dtype,
    end: float = torch.inf,
) -> tuple[Tensor, Tensor]:
    """Return the scores above which a candidate is better and below which it is worse, in the scores' type.

    Args:
        offset_and_error_K: of the block's rows.
        true: true scores to compare candidates with.
        row_Q: row of each query.
        dtype: of the block's scores.
        end: scores beyond it, or below its negative, tie, though they are not clamped.
    """
    offset_K, error_K = offset_and_error_K
    middle_Q = true.score_Q + offset_K[row_Q]
    # The last term covers the rounding errors of these lines.
    width_Q = (true.error_Q + error_K[row_Q]) * (1 + 2.0**-40) + middle_Q.abs() * 2.0**-50
    high_Q, low_Q = middle_Q + width_Q, middle_Q - width_Q
    high_Q, low_Q = high_Q.masked_fill_(high_Q >= end, torch.inf), low_Q.masked_fill_(low_Q <= -end, -torch.inf)
    return _rounded(high_Q, dtype, torch.inf), _rounded(low_Q, dtype, -torch.inf)


def _rounded(x_Q: Tensor, dtype: torch.dtype, towards: float) -> Tensor:
    """Convert numbers to a type, rounding toward plus or minus infinity."""
    rounded_Q = x_Q.to(dtype)
    short_Q = rounded_Q.double() < x_Q if towards > 0 else rounded_Q.double() > x_Q
    return torch.where(short_Q, torch.nextafter(rounded_Q, torch.full_like(rounded_Q, towards)), rounded_Q)


def signs_of(
    queries: QueryRows, candidate_BCD: Tensor, query_P: Tensor, column_P: Tensor, number: Tensor | None = None
) -> Tensor:
    """Return whether cells score higher (1), the same (0) or lower (-1) than the true entity of their query, int8.

    Args:
        queries: whose true scores are known.
        candidate_BCD: prepared rows, as many grids as queries have.
        query_P: the query of each cell.
        column_P: its column.
        number: where a GPU's kernels have listed the cells, how many there are, and a zero; None: all.
    """
    comparator = queries.exact_comparator
    assert comparator is not None, "ranks are exact"
    if query_P.numel() and comparator.has_pair_kernel(query_P.device):
        return _signs_by_kernel(comparator, queries, candidate_BCD, (query_P, column_P), number)
    assert number is None or not query_P.numel(), "only kernels list cells"
    parts = [torch.empty(0, dtype=torch.int8, device=query_P.device)]
    sizes = sizes_on(query_P.device)
    step = sizes.rows(sizes.pairs, candidate_BCD.shape[-1])
    for start in range(0, query_P.numel(), step):
        cells = query_P[start : start + step], column_P[start : start + step]
        parts.append(_signs_of_some(comparator, queries, candidate_BCD, cells))
    return torch.cat(parts)


def _signs_of_some(comparator: ExactComparator, queries: QueryRows, candidate_BCD: Tensor, cells: CellIndex) -> Tensor:
    true, query_P = queries.exact_true, cells[0]
    of_rows = queries.row_on_device_Q[query_P], cells[1]
    score_P, error_P = comparator.pair_scores_in_float64(*rows_of_cells(queries.rows_BKD, candidate_BCD, of_rows))
    gap_P = score_P - true.score_Q[query_P]
    signs_P = gap_P.sign().to(torch.int8)
    bound_P = (error_P + true.error_Q[query_P]) * (1 + 2.0**-40)
    # If neither score has an error, equal numbers are equal scores.
    open_P = ((gap_P.abs() <= bound_P) & (bound_P > 0)).nonzero().squeeze(1)
    if open_P.numel():
        _decide_exactly(comparator, queries, candidate_BCD, cells, signs_P, open_P)
    _add_to_tally(comparator, query_P.numel(), open_P.numel())
    return signs_P


def _signs_by_kernel(
    comparator: ExactComparator, queries: QueryRows, candidate_BCD: Tensor, cells: CellIndex, number: Tensor | None
) -> Tensor:
    true = queries.exact_true
    known = true.score_Q, true.error_Q, true.rows_QD
    rows = queries.own_rows_BQD, candidate_BCD
    signs_P, num_open = device_pairs.signs(comparator, *rows, known, cells, number)
    if not holds(_none_is_open, num_open):
        open_P = (signs_P[: None if number is None else int(number[0])] == device_pairs.OPEN).nonzero().squeeze(1)
        _decide_exactly(comparator, queries, candidate_BCD, cells, signs_P, open_P)
    if number is None:
        pass_on(partial(_add_to_tally, comparator, cells[0].numel()), num_open)
    else:
        pass_on(partial(_add_to_tally, comparator), number[:1], num_open)
    return signs_P


def _decide_exactly(
    comparator: ExactComparator,
    queries: QueryRows,
    candidate_BCD: Tensor,
    cells: CellIndex,
    signs_P: Tensor,
    open_P: Tensor,
) -> None:
    """Write the signs of some of the cells, which float64 leaves open."""
    sizes = sizes_on(signs_P.device)
    for some_P in torch.split(open_P, sizes.rows(sizes.pairs, candidate_BCD.shape[-1])):
        query_P, column_P = (of[some_P] for of in cells)
        of_rows = queries.row_on_device_Q[query_P], column_P
        pairs = rows_of_cells(queries.rows_BKD, candidate_BCD, of_rows)
        query_PD, candidate_PD = (rows_ND[at_P] for rows_ND, at_P in pairs)
        exact_P = comparator.signs(query_PD, candidate_PD, queries.exact_true.rows_QD[query_P])
        signs_P[some_P] = torch.from_numpy(exact_P).to(signs_P.device)


def _none_is_open(num_open: int) -> bool:
    return num_open == 0


def _add_to_tally(comparator: ExactComparator, num_cells: int, num_open: int) -> None:
    with comparator.lock:
        comparator.tally.update(in_float64=num_cells - num_open, exactly=num_open)


def _with_decisions(counts: RankCounts, query_P: Tensor, signs_P: Tensor) -> RankCounts:
    """Return counts in which open cells, counted as tied before, are counted by their decided signs."""
    decided = count_compared(query_P, signs_P > 0, signs_P == 0, counts.better_Q.numel())
    tied_Q = counts.tied_Q - decided.num_competitors_Q + decided.tied_Q
    return RankCounts(counts.better_Q + decided.better_Q, tied_Q, counts.num_competitors_Q)


# Blocks of fast scores -> the counts of exact arithmetic, for every pass (`precision = "exact"`).


def competing_cells(block: Block, cells: CellIndex) -> CellIndex:
    """Return those of some cells of a block, (query, column), that compete."""
    query_P, column_P = cells
    if block.marks is not None:
        competes_P = block.marks.competes_QC[query_P, column_P]
    else:
        competes_P = column_P != block.own_on_device_Q[query_P]
    if block.excluded is not None:
        competes_P &= ~are_among(query_P, column_P, block.excluded_on_device, block.num_columns)
    return query_P[competes_P], column_P[competes_P]


def decided(block: Block, counts: QueryCounts, cells: CellIndex) -> QueryCounts:
    """Decide the cells that error bounds leave open, and return the exact counts.

    Args:
        block: what was counted.
        counts: counts in which open cells are tied.
        cells: (query, column) of the open cells.
    """
    query_P, column_P = cells
    if not query_P.numel():
        return counts
    if block.marks is None:
        row_P = block.queries.row_on_device_Q[query_P]
        known_P, in_time_P = are_among(row_P, column_P, block.known_on_device, block.num_columns), None
    else:
        mark_P = block.marks.mark_QC[query_P, column_P]
        known_P, in_time_P = (mark_P & device_lists.KNOWN) != 0, (mark_P & device_lists.IN_TIME) != 0
    signs_P = signs_of(block.queries, block.candidates.rows_BCD, *cells)
    return with_signs(counts, query_P, signs_P, known_P, in_time_P)


def with_signs(
    counts: QueryCounts, query_P: Tensor, signs_P: Tensor, known_P: Tensor, in_time_P: Tensor | None = None
) -> QueryCounts:
    """Return counts in which open cells, counted as tied, have the order of their signs.

    Args:
        counts: counts in which open cells are tied.
        query_P: the query of each open cell.
        signs_P: as `signs_of` returns them.
        known_P: bool, whether each open cell is a known answer.
        in_time_P: the same of answers known at the query's time; None: they are not counted here.
    """
    raw = _with_decisions(counts.raw, query_P, signs_P)
    known = _with_decisions(counts.known, query_P[known_P], signs_P[known_P])
    if in_time_P is None or counts.in_time is None:
        return QueryCounts(raw, known, counts.in_time)
    return QueryCounts(raw, known, _with_decisions(counts.in_time, query_P[in_time_P], signs_P[in_time_P]))
