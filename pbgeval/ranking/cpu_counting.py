"""Prepared queries and candidates on a CPU -> counts, by one compiled loop: scores are multiplied, compared, forgotten.

A block of scores that is a tensor goes through memory, whose pages are new each time: that took as long as the product.
Here one part of the block at a time stays in a core's cache. This is the fast path of `counting` where the scores
themselves are not needed. It calls the same multiplication routine; a self-check and a property test verify that bits
and counts are equal.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from attrs import field, frozen
from torch import Tensor

from pbgeval.jit import is_installed
from pbgeval.ranking.counting import CellIndex
from pbgeval.ranking.cpu_loops import COLUMNS_AT_A_TIME, ROWS_AT_A_TIME, count_block, count_rows, list_between, multiply
from pbgeval.scoring import blas
from pbgeval.scoring.exact import relative_error
from pbgeval.scoring.product import BlockRule, block_rule, longest_inner, padded_in_chunks, padded_rows, product
from pbgeval.stats.ranks import QueryCounts

CHECKED_SHAPES = ((1, 1), (1, 40), (3, 17), (16, 107), (50, 100), (64, 129), (100, 200), (130, 300))
CHECKED_DIMENSIONS = (16, 101, 257)


def product_is_callable() -> bool:
    """Tell whether torch's matrix product can be called from a compiled loop, with the bits of `product`."""
    rule = block_rule(torch.float32)
    return rule is not BlockRule.ONE_SHAPE and blas.find_sgemm() is not None and _agrees(rule)


@functools.cache
def _agrees(rule: BlockRule) -> bool:
    """Tell whether the loops' products have the bits of `product` on this machine."""
    return all(
        torch.equal(product(query_KD[None], candidate_CD[None])[0], multiplied(query_KD, candidate_CD))
        for query_KD, candidate_CD in _checked_rows()
    )


@functools.cache
def multiplies_bfloat16() -> bool:
    """Tell whether the loop multiplies bfloat16 faster than float32 on this machine, and rightly.

    What it adds up in float32 may be off by a rounding of each product and sum, in any order.
    """
    if blas.find_bfloat16_gemm() is None or not is_installed() or not product_is_callable():
        return False
    for rows in _checked_rows():
        query_KD, candidate_CD = (x_ND.bfloat16() for x_ND in rows)
        found_KC = multiplied(query_KD, candidate_CD)
        exact_KC = query_KD.double() @ candidate_CD.double().T
        bound_KC = (query_KD.double().abs() @ candidate_CD.double().abs().T) * (query_KD.shape[1] + 1) * 2.0**-23
        if not bool(((found_KC - exact_KC).abs() <= bound_KC).all()):
            return False
    return True


def _checked_rows() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.randn((rows, dimension), generator=generator), torch.randn((columns, dimension), generator=generator))
        for rows, columns in CHECKED_SHAPES
        for dimension in CHECKED_DIMENSIONS
    ]


def multiplied(query_KD: Tensor, candidate_CD: Tensor) -> Tensor:
    """Return the scores (K, C) of rows as compiled loops multiply them, for checks."""
    routine, inner, padded_query_KD, padded_candidate_CD = _factors(
        padded_in_chunks(query_KD), padded_in_chunks(candidate_CD)
    )
    num_rows, dimension = padded_query_KD.shape
    scores_KC = torch.empty((num_rows, padded_candidate_CD.shape[0]), dtype=torch.float32)
    multiplication = routine.multiplication(num_rows, padded_candidate_CD.shape[0], dimension, inner)
    with routine.one_thread():
        multiply(multiplication, _numbers(padded_query_KD), _numbers(padded_candidate_CD), dimension, scores_KC.numpy())
    return scores_KC[: query_KD.shape[0], : candidate_CD.shape[0]]


def _factors(query_KD: Tensor, candidate_CD: Tensor) -> tuple[blas.Gemm, int, Tensor, Tensor]:
    """Return the routine for rows, how many products it adds up in one go, and the rows as it takes them."""
    routine = blas.find_bfloat16_gemm() if query_KD.dtype is torch.bfloat16 else None
    if routine is not None:
        return routine, max(query_KD.shape[1], 1), query_KD.contiguous(), candidate_CD.contiguous()
    routine = blas.find_sgemm()
    assert routine is not None, "the caller has asked"
    return routine, longest_inner(query_KD.shape[1]), query_KD.float().contiguous(), candidate_CD.float().contiguous()


@frozen(eq=False)
class Between:
    """What decides the cells between two limits: prepared rows, and the scores of true entities in float64."""

    query_KD: Tensor  # may have more columns than candidates
    candidate_CD: Tensor
    true_QD: Tensor  # the rows of the true entities
    score_Q: Tensor  # their scores
    error_Q: Tensor  # how far these may be off; infinity: all cells of the query stay open
    of_squares: bool  # whether scores are squared distances, else they are inner products
    end: float  # products beyond it are clamped; infinity: none are
    max_open: int  # so many cells that stay open are listed
    max_tied: int = 1 << 62  # if about so many are between limits, the loop gives up
    numbers: np.ndarray = field(init=False)  # cells that stayed open, that were decided, `max_tied`

    @numbers.default
    def _no_cells(self) -> np.ndarray:
        return np.array([0, 0, self.max_tied])

    @property
    def is_listed(self) -> bool:
        """Whether all cells that stayed open are listed, and the loop did not give up."""
        return bool(self.numbers[0] <= self.max_open and self.numbers[:2].sum() <= self.max_tied)

    def arrays(self) -> tuple[Any, ...]:
        """Return the arguments of the loop."""
        true, width = (self.true_QD, self.score_Q, self.error_Q), self.candidate_CD.shape[1]
        return (
            *(of.contiguous().numpy() for of in (self.query_KD, self.candidate_CD)),
            tuple(of.contiguous().numpy() for of in true),
            (self.of_squares, width, relative_error(width), self.end),
            (*np.empty((2, self.max_open), np.int64), self.numbers),
        )


def _nothing_between() -> Between:
    none_KD, none_Q = torch.empty((0, 0)), torch.empty(0, dtype=torch.float64)
    return Between(none_KD, none_KD, none_KD, none_Q, none_Q, of_squares=False, end=np.inf, max_open=0)


def count(
    query_KD: Tensor,
    candidate_CD: Tensor,
    high_and_low_Q: tuple[Tensor, Tensor],
    row_and_own_Q: tuple[Tensor, Tensor],
    known: CellIndex | None,
    sampled: CellIndex | None = None,
    between: Between | None = None,
) -> tuple[QueryCounts, CellIndex | None, Tensor]:
    """Count every candidate for every query.

    Args:
        query_KD: prepared queries, one of each key, float32; or bfloat16, to be multiplied in that.
        candidate_CD: prepared candidates of the same type. No score is NaN: overflow must be impossible.
        high_and_low_Q: higher scores are better, those from the lower number up to the higher one tie; usually both are
            the score of each query's true entity.
        row_and_own_Q: the row of each query's key, ascending; the candidate that is the true entity itself and does
            not compete, out of range where it is none of these.
        known: (row, candidate) of known answers, each once; the true entity may be among them and is left out. None:
            nothing is filtered.
        sampled: (row, candidate) of cells whose scores are returned, by row, then candidate; cells may repeat.
        between: decides cells that would tie; None: they tie.

    Returns:
        The counts; (query, candidate) of the cells that stay open and were counted as tied, None: there are too many,
        and counts are invalid or must be made again; and the scores of the sampled cells, float32.
    """
    row_Q, own_Q = (of_query.contiguous().numpy() for of_query in row_and_own_Q)
    routine, inner, padded_query_KD, candidate_CD = _factors(padded_rows(query_KD), candidate_CD)
    num_candidates, num_queries = candidate_CD.shape[0], row_Q.size
    counts_6Q = np.zeros((6, num_queries), np.int64)
    between = between or _nothing_between()
    of_between = between.arrays()
    tail_CD = padded_in_chunks(candidate_CD[num_candidates // COLUMNS_AT_A_TIME * COLUMNS_AT_A_TIME :])
    known_cells, sampled_cells = (
        (start_K.copy(), start_K, column_P, np.empty(column_P.size, np.float32))
        for start_K, column_P in (by_row(of, query_KD.shape[0], num_candidates) for of in (known, sampled))
    )
    (scores_P,) = blas.aligned_zeros([(ROWS_AT_A_TIME * max(COLUMNS_AT_A_TIME, tail_CD.shape[0]),)])
    with routine.one_thread():
        count_block(
            routine.multiplication(padded_query_KD.shape[0], COLUMNS_AT_A_TIME, padded_query_KD.shape[1], inner),
            _numbers(padded_query_KD),
            _numbers(candidate_CD),
            _numbers(tail_CD),
            np.searchsorted(row_Q, np.arange(query_KD.shape[0] + 1)),
            (*(limit_Q.contiguous().numpy() for limit_Q in high_and_low_Q), own_Q),
            known_cells,
            sampled_cells,
            of_between,
            scores_P,
            counts_6Q,
        )
    query_P, column_P = (torch.from_numpy(listed_P[: between.numbers[0]]) for listed_P in of_between[-1][:2])
    return (
        QueryCounts.of_rows(torch.from_numpy(counts_6Q)),
        (query_P, column_P) if between.is_listed else None,
        torch.from_numpy(sampled_cells[-1]),
    )


def _numbers(x_ND: Tensor) -> np.ndarray:
    """Return rows as an array, of which the loop knows the address and shape; numpy has no bfloat16."""
    return np.asarray((x_ND.view(torch.int16) if x_ND.dtype is torch.bfloat16 else x_ND).numpy())


# Blocks of scores -> counts, by a compiled loop.


def count_scores(
    scores_KC: Tensor,
    queries: tuple[Tensor, Tensor, Tensor],
    row_Q: Tensor,
    excluded: CellIndex | None,
    known: CellIndex | None,
) -> QueryCounts:
    """Count a block; `queries` are high_Q, low_Q and own_Q."""
    num_rows, num_columns = scores_KC.shape
    counts_6Q = np.zeros((6, row_Q.numel()), np.int64)
    known_start_K, known_P = by_row(known, num_rows, num_columns)
    count_rows(
        _flat(scores_KC),
        scores_KC.stride(0),
        num_columns,
        row_Q.contiguous().numpy(),
        tuple(of_query.contiguous().numpy() for of_query in queries),
        by_row(excluded, row_Q.numel(), num_columns),
        (known_start_K, known_P, np.empty(known_P.size, queries[0].numpy().dtype)),
        counts_6Q,
    )
    return QueryCounts.of_rows(torch.from_numpy(counts_6Q))


def cells_between(
    scores_KC: Tensor, row_Q: Tensor, limits: tuple[Tensor, Tensor], tied_Q: Tensor, num_excluded: int
) -> CellIndex:
    """Return (query, column) of the scores between the limits of their query.

    Args:
        scores_KC: of rows, whose columns are adjacent.
        row_Q: the row of each query.
        limits: the highest and the lowest score that is listed, of each query.
        tied_Q: how many of these compete, without the true entity.
        num_excluded: how many cells of the block do not compete, beside the true entities.
    """
    # A query's true entity and what is excluded may lie between the limits, too.
    query_P, column_P = np.empty((2, int(tied_Q.sum()) + row_Q.numel() + num_excluded), np.int64)
    number = list_between(
        _flat(scores_KC),
        scores_KC.stride(0),
        scores_KC.shape[1],
        row_Q.contiguous().numpy(),
        tuple(limit_Q.contiguous().numpy() for limit_Q in limits),
        tied_Q.contiguous().numpy(),
        query_P,
        column_P,
    )
    return torch.from_numpy(query_P[:number]), torch.from_numpy(column_P[:number])


def _flat(scores_KC: Tensor) -> np.ndarray:
    """Return the numbers from the first to the last score; the columns of a row are adjacent."""
    num_rows, num_columns = scores_KC.shape
    length = (num_rows - 1) * scores_KC.stride(0) + num_columns if num_rows and num_columns else 0
    return scores_KC.as_strided((length,), (1,)).numpy()


def by_row(cells: CellIndex | None, num_rows: int, num_columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Return where each row's cells start, and all columns by row, ascending; None: there are no cells."""
    if cells is None or not cells[0].numel():
        return np.zeros(num_rows + 1, np.int64), np.empty(0, np.int64)
    row_P, column_P = (index.contiguous().numpy() for index in cells)
    code_P = row_P * num_columns + column_P
    if code_P.size > 1 and bool((code_P[1:] < code_P[:-1]).any()):
        order = np.argsort(code_P)
        row_P, column_P = row_P[order], column_P[order]
    return first_by_row(row_P, num_rows), column_P


def first_by_row(row_P: np.ndarray, num_rows: int) -> np.ndarray:
    """Return where the cells of each row start, and the end of the last one's; cells are ordered by row."""
    start_K: np.ndarray = np.zeros(num_rows + 1, np.int64)
    np.cumsum(np.bincount(row_P, minlength=num_rows), out=start_K[1:])
    return start_K
