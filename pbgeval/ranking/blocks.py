"""Prepared queries and candidates on a CPU -> counts, by one compiled loop: scores are multiplied, compared, forgotten.

A block of scores that is a tensor goes through memory, whose pages are new each time: that took as long as the product.
Here a part of it at a time stays in a core's cache. The fast path of `general` and `known` where nobody asks for all
scores; it multiplies by the same routine, and a self-check and a property test hold it to the same bits and integers.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from attrs import frozen
from torch import Tensor
from torch.nn import functional

from pbgeval.jit import is_installed
from pbgeval.ranking.chunk_loops import COLUMNS_AT_A_TIME, count_block
from pbgeval.ranking.compiled import CELLS_WORTH_COMPILING
from pbgeval.ranking.count_chunks import arguments_of, multiplication_of, product_is_callable
from pbgeval.scoring import blas
from pbgeval.scoring.product import padded_rows, size_in_chunks
from pbgeval.stats.ranks import QueryCounts, RankCounts

CHECKED_SHAPES = ((1, 1, 3), (16, 40, 100), (193, 600, 128), (50, 20, 300))
Cells = tuple[Tensor, Tensor]  # (row or query, candidate), int64


def is_worth_it(device: torch.device, num_cells: int) -> bool:
    """Tell whether the loop counts inner products in float32 on a device, and so many scores pay for loading it."""
    if device.type != "cpu" or not (count_block.is_loaded or num_cells >= CELLS_WORTH_COMPILING):
        return False
    return is_installed() and product_is_callable()


@functools.cache
def multiplies_bfloat16() -> bool:
    """Tell whether the loop multiplies bfloat16 faster than float32 on this machine, and rightly.

    What it adds up in float32 may be off by a rounding of each product and sum, in any order.
    """
    routine = blas.find_bfloat16_gemm()
    if routine is None or not is_installed() or not product_is_callable():
        return False
    generator = torch.Generator().manual_seed(0)
    for num_rows, num_columns, dimension in CHECKED_SHAPES:
        query_KD, candidate_CD = (
            torch.randn((size, dimension), generator=generator).bfloat16() for size in (num_rows, num_columns)
        )
        every = torch.arange(num_rows).repeat_interleave(num_columns), torch.arange(num_columns).repeat(num_rows)
        none = torch.empty(0, dtype=torch.int64)
        true_Q, own_Q = torch.zeros(num_rows), torch.full((num_rows,), -1)
        found = count(query_KD, candidate_CD, (true_Q, true_Q), (torch.arange(num_rows), own_Q), (none, none), every)
        exact_KC = query_KD.double() @ candidate_CD.double().T
        bound_KC = (query_KD.double().abs() @ candidate_CD.double().abs().T) * (dimension + 1) * 2.0**-23
        if not bool(((found.wanted_score_P.view(num_rows, -1) - exact_KC).abs() <= bound_KC).all()):
            return False
    return True


def load() -> None:
    """Import numba and load (at first compile) the loop, if it can serve."""
    if is_installed() and product_is_callable():
        none = torch.empty(0, dtype=torch.int64)
        nobody = torch.empty((0, 16))
        count(nobody, nobody, (torch.empty(0), torch.empty(0)), (none, none), (none, none), (none, none))


@frozen(eq=False)
class BlockFound:
    """What a block of candidates says about each query."""

    counts: QueryCounts
    wanted_score_P: Tensor
    open: Cells | None  # (query, candidate) of the cells that were counted as tied; None: there is no room for them


def count(
    query_KD: Tensor,
    candidate_CD: Tensor,
    high_and_low_Q: tuple[Tensor, Tensor],
    row_and_own_Q: tuple[Tensor, Tensor],
    known: Cells,
    wanted: Cells,
    *,
    room_for_open: int = 0,
) -> BlockFound:
    """Compare every candidate with the true entity of each query. No score may be NaN: the caller has seen to it.

    Args:
        query_KD: prepared queries, one of each key; in bfloat16 if scores need no bits (`multiplies_bfloat16`).
        candidate_CD: prepared candidates, likewise.
        high_and_low_Q: higher scores are better, those from the lower number up to the higher one tie; usually both are
            the score of each query's true entity.
        row_and_own_Q: the row of each query's key, ascending; the candidate that is the true entity itself and does
            not compete, out of range where it is none of these.
        known: (row, candidate) of known answers, each once; the true entity may be among them and is left out.
        wanted: (query, candidate) whose scores are asked for.
        room_for_open: so many cells that tie are listed, if there are no more.
    """
    query_RD, candidate_CD = padded_rows(query_KD).contiguous(), candidate_CD.contiguous()
    shape = query_RD.shape[0], COLUMNS_AT_A_TIME, query_RD.shape[1]
    low_precision = blas.find_bfloat16_gemm() if query_RD.dtype is torch.bfloat16 else None
    if low_precision is not None:
        routine, multiplication = low_precision, arguments_of(low_precision, *shape, inner=max(shape[2], 1))
    else:
        query_RD, candidate_CD = query_RD.float(), candidate_CD.float()  # as they are, or without that routine
        routine, multiplication = multiplication_of(*shape)
    row_Q, own_Q = (of_query.contiguous().numpy() for of_query in row_and_own_Q)
    num_candidates, num_queries = candidate_CD.shape[0], row_Q.size
    known_start_R, known_column_P, _ = _in_order(known, query_KD.shape[0], num_candidates)
    wanted_start_Q, wanted_column_P, order_P = _in_order(wanted, num_queries, num_candidates)
    counts_6Q = np.zeros((6, num_queries), np.int64)
    wanted_score_P = np.empty(wanted_column_P.size, np.float32)
    listed = (room_for_open > 0, *np.empty((2, room_for_open), np.int64))
    with routine.one_thread():
        num_open = count_block(
            multiplication,
            _numbers(query_RD),
            _numbers(candidate_CD),
            _numbers(_padded_tail(candidate_CD)),
            np.searchsorted(row_Q, np.arange(query_KD.shape[0] + 1)),
            (*(limit_Q.contiguous().numpy() for limit_Q in high_and_low_Q), own_Q),
            (known_start_R, known_column_P, np.empty(known_column_P.size, np.float32)),
            (wanted_start_Q, wanted_column_P, wanted_score_P),
            listed,
            counts_6Q,
        )
    if order_P is not None:
        wanted_score_P[order_P] = wanted_score_P.copy()
    found = torch.from_numpy(counts_6Q)
    counts = QueryCounts(RankCounts(*found[:3]), RankCounts(*found[3:]))
    open_query_P, open_column_P = (torch.from_numpy(index[:num_open]) for index in listed[1:])
    is_listed = num_open <= room_for_open
    return BlockFound(counts, torch.from_numpy(wanted_score_P), (open_query_P, open_column_P) if is_listed else None)


def _numbers(x_ND: Tensor) -> np.ndarray:
    """Return rows as an array, of which the loop knows the address and shape; numpy has no bfloat16."""
    array: np.ndarray = (x_ND.view(torch.int16) if x_ND.dtype is torch.bfloat16 else x_ND).numpy()
    return array


def _padded_tail(candidate_CD: Tensor) -> Tensor:
    """Return the candidates that fill no part of the usual width, and what `product` adds to so few."""
    tail_ND = candidate_CD[candidate_CD.shape[0] // COLUMNS_AT_A_TIME * COLUMNS_AT_A_TIME :]
    return functional.pad(tail_ND, (0, 0, 0, size_in_chunks(tail_ND.shape[0], tail_ND) - tail_ND.shape[0]))


def _in_order(cells: Cells, num_rows: int, num_columns: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return where each row's cells start, and all columns by row, ascending; and the order, unless it was this one."""
    row_P, column_P = (index.contiguous().numpy() for index in cells)
    order = None
    code_P = row_P * num_columns + column_P
    if code_P.size > 1 and bool((code_P[1:] < code_P[:-1]).any()):
        order = np.argsort(code_P)
        row_P, column_P = row_P[order], column_P[order]
    return np.searchsorted(row_P, np.arange(num_rows + 1)), column_P, order
