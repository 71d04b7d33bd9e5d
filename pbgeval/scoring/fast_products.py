"""Prepared rows for exact ranks -> fast scores with error bounds.

A *float product* multiplies the rows as they are. For any order, shape or number of threads of the kernel, a sum of n
products is off by at most n roundings of the sum of their magnitudes, which the rows' norms bound (Cauchy-Schwarz). In
bfloat16 the rows are rounded first, and the bound grows by what they lose.

A *grid product* first rounds each row to a grid, whose step is a power of two below the row's largest number. The grid
is so coarse that float64 adds the products without rounding. So scores have the same bits on any hardware, and the
bound covers only what the grids left out. Grid products are the *values* that exact runs report as scores.

Under l1 no product gives the scores: *column sums* take the place of both.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import torch
from attrs import define, field, frozen
from torch import Tensor

from pbgeval.jit import CompiledLoop, inner_loop
from pbgeval.scoring import device_pairs
from pbgeval.scoring.comparators import CLAMP, SMALLEST_SQUARE, joined
from pbgeval.scoring.distances import ABSOLUTE, absolute_of_pairs
from pbgeval.scoring.exact import ExactComparator, squared_lengths
from pbgeval.scoring.fixed_order import JIT_MIN_NUMBERS, SIGNIFICAND, are_for_loops, grid_bits, squares_in_order
from pbgeval.scoring.product import product

LARGEST_SAFE_SCORE = 1e37  # a tenth of the largest float32, so that no sum of float32 products overflows
FLUSHED = 2.0**-120  # exceeds the error of a float32 product that underflows, on hardware that flushes to zero
SLACK = 1.0 + 1e-9  # covers rounding errors of the bounds, which are computed in float64
# Relative error of one operation in any rounding mode; bfloat16 products are added in float32.
ROUNDINGS = {torch.bfloat16: 2.0**-23, torch.float32: 2.0**-23, torch.float64: 2.0**-52}


@frozen(eq=False)
class Operand:
    """Rows of queries or of candidates, ready for one kind of product; leading axes are batches."""

    factors_ND: Tensor  # the factors of the product
    norm_N: Tensor  # float64: at least the length of each vector
    square_N: Tensor  # float64: the squared length, for distances
    left_out_N: Tensor  # float64: at least the length of what rounding the row removed
    bias_N: Tensor  # float64: a candidate's bias, or a query's factor of it
    constant_N: Tensor  # float64: a query's constant


@frozen(eq=False)
class FastScores:
    """A block of fast scores, (..., K, C), and their error bounds."""

    scores_KC: Tensor
    offset_K: Tensor  # float64: fast score minus exact score without the constant
    error_K: Tensor  # float64: largest error of a row's scores


@frozen(eq=False)
class FloatProduct:
    """Multiplies rows as they are, or in bfloat16, which is three times as fast on hardware with support.

    Products of bfloat16 are added in float32. The error bound covers the roundings of that sum and those of the rows.
    Distances with a bias do not use bfloat16, because their extra columns would lose too much.
    """

    comparator: ExactComparator
    dtype: torch.dtype

    @property
    def in_bfloat16(self) -> bool:
        return self.dtype is torch.bfloat16

    def operand(self, rows_ND: Tensor, *, of_queries: bool) -> Operand:
        """Turn prepared rows into the operand of a product."""
        vector_ND, bias_N, constant_N = _columns(self.comparator, rows_ND, of_queries=of_queries)
        # As the loops add them that keep scores; there are none on a GPU.
        in_order = self.comparator.adds_squares and vector_ND.device.type == "cpu"
        square_N = squares_in_order(vector_ND) if in_order else squared_lengths(vector_ND)
        rounded_ND = vector_ND.to(self.dtype)
        lost_N = torch.zeros_like(square_N)
        if self.in_bfloat16:  # the difference is exact: a number and its rounding are close
            lost_N = squared_lengths(vector_ND, rounded_ND.to(vector_ND.dtype)).sqrt() * SLACK
        columns = [rounded_ND]
        if self.comparator.bias and not self.comparator.adds_bias:  # as in embeddings: loops add in this order, too
            columns = [rounded_ND[..., -1:], rounded_ND[..., :-1]]
        if self.comparator.adds_squares:
            parts = self._parts(-square_N)
            if of_queries:
                columns, parts = [2 * rounded_ND], [torch.ones_like(rounded_ND[..., :1]) for _ in parts]
            columns += parts
            if self.comparator.bias and not self.comparator.has_root:
                columns.append(bias_N.unsqueeze(-1).to(self.dtype))
        return _operand(columns, square_N, lost_N, bias_N, constant_N)

    def _parts(self, rest_N: Tensor) -> list[Tensor]:
        """Return columns that add up to float32 precision: three in bfloat16, else one."""
        parts = []
        for _ in range(3 if self.in_bfloat16 else 1):
            part_N = rest_N.to(self.dtype)
            parts.append(part_N.unsqueeze(-1))
            rest_N = rest_N - part_N.double()
        return parts

    def scores(self, queries: Operand, candidates: Operand) -> FastScores:
        """Multiply queries (..., K, W) and candidates (..., C, W)."""
        scores_KC = _product_alike(queries.factors_ND, candidates.factors_ND)
        offset_K, error_K = self.bounds(queries, candidates)
        if self.comparator.clamps:
            return _with_bias(self.comparator, scores_KC.clamp_(-CLAMP, CLAMP), error_K, (queries, candidates))
        if not self.comparator.has_root:
            return FastScores(scores_KC, offset_K, error_K)
        squares_KC = (queries.square_N.unsqueeze(-1) - scores_KC).clamp(min=0.0)
        added_KC = queries.bias_N.unsqueeze(-1) * candidates.bias_N.unsqueeze(-2)
        error_K = error_K.sqrt() + _magnitudes(self.comparator, queries, candidates).sqrt() * 2.0**-40
        error_K += (queries.bias_N * candidates.bias_N.abs().amax(-1, keepdim=True)).abs() * 2.0**-40
        return FastScores(added_KC - squares_KC.sqrt(), torch.zeros_like(error_K), error_K)

    def bounds(self, queries: Operand, candidates: Operand) -> tuple[Tensor, Tensor]:
        """Return offset and error (..., K) of the products; under `has_root` these are not scores yet."""
        magnitude_K = _magnitudes(self.comparator, queries, candidates)
        num_columns = queries.factors_ND.shape[-1]
        relative, flushed = product_error(num_columns, self.dtype)
        error_K = magnitude_K * relative + flushed * (1 + queries.norm_N.max() + candidates.norm_N.max())
        offset_K = torch.zeros_like(error_K)
        if self.comparator.adds_squares:  # a sum of squares in float64, with one rounding per column
            offset_K = queries.square_N
            error_K = error_K + queries.square_N * (2.0**-40 + num_columns * 2.0**-52)
        if self.in_bfloat16:
            norm, lost = candidates.norm_N.amax(-1, keepdim=True), candidates.left_out_N.amax(-1, keepdim=True)
            lost_K = queries.left_out_N * norm + queries.norm_N * lost
            # The magnitudes of a square's parts add up to less than 1.02 times the square.
            error_K = error_K * 1.02 + lost_K * (2 if self.comparator.adds_squares else 1) * SLACK
        return offset_K, error_K


def product_error(num_columns: int, dtype: torch.dtype) -> tuple[float, float]:
    """Return the error bounds of a sum of products: relative to its magnitudes, and by underflow.

    The bound by underflow is per unit of 1 + the length of the query + the length of the candidate.
    """
    roundings = (num_columns + 8) * ROUNDINGS[dtype]  # including the square's columns
    flushed = 0.0 if dtype is torch.float64 else num_columns * FLUSHED
    return roundings / (1 - roundings) * SLACK, flushed


@frozen(eq=False)
class GridProduct:
    """Multiplies rows on grids in float64 without rounding: values have the same bits on any hardware."""

    comparator: ExactComparator

    def operand(self, rows_ND: Tensor, *, of_queries: bool) -> Operand:
        """Round prepared rows to grids."""
        vector_ND, bias_N, constant_N = _columns(self.comparator, rows_ND, of_queries=of_queries)
        on_grid_ND, square_N, left_out_N = grid_rows(vector_ND)  # squares are exact as well
        return _operand([on_grid_ND], square_N, left_out_N.sqrt() * SLACK, bias_N, constant_N)

    def scores(self, queries: Operand, candidates: Operand) -> FastScores:
        """Return the values of a block and their error bounds."""
        values_KC = _values(
            self.comparator,
            queries.factors_ND @ candidates.factors_ND.mT,  # sums on grids are exact in any order
            (queries.square_N.unsqueeze(-1), queries.bias_N.unsqueeze(-1), queries.constant_N.unsqueeze(-1)),
            (candidates.square_N.unsqueeze(-2), candidates.bias_N.unsqueeze(-2)),
        )
        return FastScores(values_KC, queries.constant_N, self._errors(queries, candidates))

    def _errors(self, queries: Operand, candidates: Operand) -> Tensor:
        norm, left_out = candidates.norm_N.amax(-1, keepdim=True), candidates.left_out_N.amax(-1, keepdim=True)
        added_K = (queries.bias_N * candidates.bias_N.abs().amax(-1, keepdim=True)).abs() + queries.constant_N.abs()
        if not self.comparator.adds_squares:
            error_K = queries.left_out_N * (norm + left_out) + queries.norm_N * left_out
            return (error_K + (queries.norm_N * norm + added_K) * 2.0**-40) * SLACK
        apart_K, both_K = queries.norm_N + norm, queries.left_out_N + left_out
        if self.comparator.has_root:
            return both_K + apart_K * 2.0**-20 + added_K * 2.0**-40 + 2 * math.sqrt(SMALLEST_SQUARE)
        return (both_K * (2 * apart_K + both_K) + (apart_K.square() + added_K) * 2.0**-40) * SLACK


@frozen(eq=False)
class ColumnSums:
    """Adds up how far apart rows are in their columns, under l1.

    Columns are added in order, and each operation is rounded by itself: in float64, sums are values, which have the
    same bits on any hardware.
    """

    comparator: ExactComparator
    dtype: torch.dtype  # float64: values

    def operand(self, rows_ND: Tensor, *, of_queries: bool) -> Operand:
        """Turn prepared rows into the operand of sums; its norms are sums of magnitudes."""
        vector_ND, bias_N, constant_N = _columns(self.comparator, rows_ND, of_queries=of_queries)
        relative, flushed = product_error(vector_ND.shape[-1], self.dtype)
        norm_N = vector_ND.abs().sum(-1, dtype=self.dtype).double() * (1 + relative) + flushed
        zero_N = torch.zeros_like(norm_N)
        return Operand(vector_ND.to(self.dtype).contiguous(), norm_N, zero_N, zero_N, bias_N, constant_N)

    def scores(self, queries: Operand, candidates: Operand) -> FastScores:
        """Return a block of sums, in float64 with the constants, and their error bounds."""
        query_KD, candidate_CD = queries.factors_ND, candidates.factors_ND
        scores_KC = ABSOLUTE(query_KD, candidate_CD)
        apart_K = queries.norm_N + candidates.norm_N.amax(-1, keepdim=True)
        relative, flushed = product_error(query_KD.shape[-1], self.dtype)
        fast = _with_bias(self.comparator, scores_KC, apart_K * relative + flushed, (queries, candidates))
        if self.dtype is torch.float32:
            return fast
        error_K = fast.error_K + (apart_K + queries.constant_N.abs()) * 2.0**-40
        return FastScores(fast.scores_KC + queries.constant_N.unsqueeze(-1), queries.constant_N, error_K)


Kind = FloatProduct | GridProduct | ColumnSums
Operands = tuple[Kind, Operand, Operand]  # of queries and of candidates


def kind_in(comparator: ExactComparator, dtype: torch.dtype | None) -> Kind:
    """Return what makes the scores of a comparator in a type of floats, or its values if that is None."""
    if comparator.adds_magnitudes:
        return ColumnSums(comparator, dtype or torch.float64)
    return GridProduct(comparator) if dtype is None else FloatProduct(comparator, dtype)


def values_of_pairs(comparator: ExactComparator, query_PD: Tensor, candidate_PD: Tensor) -> Tensor:
    """Return the value of each pair of prepared rows, with the bits that it has in a block."""
    if comparator.has_pair_kernel(query_PD.device):
        return device_pairs.values(comparator, query_PD, candidate_PD)
    every_P = torch.arange(query_PD.shape[0], device=query_PD.device)
    return values_of_cells(comparator, query_PD[None], candidate_PD[None], (every_P, every_P))


def values_of_cells(
    comparator: ExactComparator, query_BKD: Tensor, candidate_BCD: Tensor, cells: tuple[Tensor, Tensor]
) -> Tensor:
    """Do the same for cells of grids: (row of all grids' queries, column)."""
    if comparator.has_pair_kernel(query_BKD.device):
        return device_pairs.values(comparator, query_BKD, candidate_BCD, cells)
    (query_KD, row_P), (candidate_CD, column_P) = rows_of_cells(query_BKD, candidate_BCD, cells)
    query_KD, weight_K, constant_K = _columns(comparator, query_KD, of_queries=True)
    candidate_CD, bias_C, zero_C = _columns(comparator, candidate_CD, of_queries=False)
    if comparator.adds_magnitudes:
        sums = absolute_of_pairs((query_KD, row_P), (candidate_CD, column_P)), zero_C, zero_C
    else:
        sums = grid_sums(query_KD, row_P, candidate_CD, column_P, with_squares=comparator.adds_squares)
    product_P, square_q_P, square_c_P = sums
    of_queries = square_q_P, weight_K[row_P], constant_K[row_P]
    return _values(comparator, product_P, of_queries, (square_c_P, bias_C[column_P]))


def _values(
    comparator: ExactComparator,
    products: Tensor,
    query_terms: tuple[Tensor, Tensor, Tensor],
    candidate_terms: tuple[Tensor, Tensor],
) -> Tensor:
    """Return the values of sums of products: the terms are squares and biases, and the constants of queries."""
    values = products
    if comparator.adds_squares:
        values = products.mul_(2).sub_(candidate_terms[0]).sub_(query_terms[0])
    if comparator.has_root:
        values = values.neg_().clamp_(min=SMALLEST_SQUARE).sqrt_().neg_()
    if comparator.clamps:
        values = values.clamp_(-CLAMP, CLAMP)
    if comparator.adds_bias:
        values = values + query_terms[1] * candidate_terms[1]
    return values + query_terms[2]


def _on_grid(vector_ND: Tensor) -> Tensor:
    """Return rows rounded to their grids, float64."""
    largest_N1 = vector_ND.abs().amax(-1, keepdim=True).double()
    fraction_N1, _ = torch.frexp(largest_N1)
    bits = grid_bits(vector_ND.shape[-1])
    # The exact power of two above the largest number; an exponential would round on some hardware.
    step_N1 = torch.where(largest_N1 > 0, largest_N1 / fraction_N1, 1.0) * 2.0**-bits
    return (vector_ND / step_N1).round_().mul_(step_N1)


def rows_of_cells(
    query_BKD: Tensor, candidate_BCD: Tensor, cells: tuple[Tensor, Tensor]
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return the rows of all grids' queries, the one of each cell (row, column) of grids, and those of candidates."""
    row_P, at_P = cells
    if query_BKD.shape[0] > 1:
        at_P = row_P // query_BKD.shape[1] * candidate_BCD.shape[1] + at_P
    return (query_BKD.flatten(0, 1), row_P), (candidate_BCD.flatten(0, 1), at_P)


def grid_shifts(num_columns: int) -> float:
    """Return 1.5 * 2^52 steps of a grid, per power of two that is not above the largest number of its row."""
    return 3.0 * math.ldexp(1.0, SIGNIFICAND - 1 - grid_bits(num_columns))


def grid_sums(
    x_ND: Tensor, row_P: Tensor, y_ND: Tensor, other_P: Tensor, *, with_squares: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sums of the products of pairs of rows on their grids, and of the squares of either row, float64 (P,).

    Args:
        x_ND: rows.
        row_P: the row of each pair.
        y_ND: rows.
        other_P: the row of `y` of each pair.
        with_squares: False: squares are not read.
    """
    is_worth_it = _grid_sums.is_worth_compiling(row_P.numel() * x_ND.shape[-1], JIT_MIN_NUMBERS)
    if not (is_worth_it and _are_prepared(x_ND) and _are_prepared(y_ND)):
        x_PD, y_PD = _on_grid(x_ND[row_P]), _on_grid(y_ND[other_P])
        return (x_PD * y_PD).sum(-1), x_PD.square().sum(-1), y_PD.square().sum(-1)
    sums_3P = np.empty((3, row_P.numel()), np.float64)
    rows = [(x.numpy(), of_P.contiguous().numpy()) for x, of_P in ((x_ND, row_P), (y_ND, other_P))]
    _grid_sums(*rows, grid_shifts(x_ND.shape[1]), with_squares, sums_3P)
    products_P, square_x_P, square_y_P = torch.from_numpy(sums_3P)
    return products_P, square_x_P, square_y_P


@inner_loop()
def _grid_shift(x_D, shifts):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    """Return what `_rounded` needs to put a row on its grid: 1.5 * 2^52 steps of that, exactly (`grid_shifts`)."""
    largest = np.int32(0)
    for at in range(x_D.size):  # as integers, numbers without their signs have the same order
        largest = np.int32(max(largest, np.int32(np.float32(x_D[at]).view(np.int32) & 0x7FFFFFFF)))
    number = np.float64(np.int32(largest).view(np.float32)).view(np.int64)
    return np.int64(number & 0x7FF0000000000000).view(np.float64) * shifts  # by the power of two that is not above it


@inner_loop()
def _rounded(x, shift):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    """Return the nearest number on a grid, of two the even one; in half of the time of `rint`."""
    return (x + shift) - shift


@partial(CompiledLoop, may_reorder=True)  # no sum is rounded
def _grid_sums(x_rows, y_rows, shifts, with_squares, sums_3P):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    (x_ND, row_P), (y_ND, other_P) = x_rows, y_rows
    for pair in range(row_P.size):
        x_D, y_D = x_ND[row_P[pair]], y_ND[other_P[pair]]
        shift_x, shift_y = _grid_shift(x_D, shifts), _grid_shift(y_D, shifts)
        products, squares_x, squares_y = np.float64(0), np.float64(0), np.float64(0)
        for at in range(x_D.size):
            products += _rounded(np.float64(x_D[at]), shift_x) * _rounded(np.float64(y_D[at]), shift_y)
        if with_squares:
            for at in range(x_D.size):
                x, y = _rounded(np.float64(x_D[at]), shift_x), _rounded(np.float64(y_D[at]), shift_y)
                squares_x += x * x
                squares_y += y * y
        sums_3P[0, pair], sums_3P[1, pair], sums_3P[2, pair] = products, squares_x, squares_y


def _are_prepared(x_ND: Tensor) -> bool:
    """Tell whether loops over grids take rows: prepared ones are float32."""
    return are_for_loops(x_ND) and x_ND.dtype is torch.float32


def grid_rows(x_ND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows (..., D) on their grids, their squared lengths, and those of what the grids left out, all float64."""
    if not (_are_prepared(x_ND) and _grid_rows.is_worth_compiling(x_ND.numel(), JIT_MIN_NUMBERS)):
        on_grid_ND = _on_grid(x_ND)
        return on_grid_ND, on_grid_ND.square().sum(-1), (x_ND - on_grid_ND).square().sum(-1)
    rows_ND = x_ND.flatten(0, -2)
    on_grid_ND, sums_2N = (torch.empty(of, dtype=torch.float64) for of in (rows_ND.shape, (2, rows_ND.shape[0])))
    _grid_rows(rows_ND.numpy(), grid_shifts(x_ND.shape[-1]), on_grid_ND.numpy(), sums_2N.numpy())
    square_N, left_out_N = sums_2N.view(2, *x_ND.shape[:-1])
    return on_grid_ND.view(x_ND.shape), square_N, left_out_N


@partial(CompiledLoop, may_reorder=True)  # no sum of squares is rounded, and what is left out need only be bounded
def _grid_rows(x_ND, shifts, on_grid_ND, sums_2N):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    for row in range(x_ND.shape[0]):
        x_D, on_grid_D = x_ND[row], on_grid_ND[row]
        shift = _grid_shift(x_D, shifts)
        square, left_out = np.float64(0), np.float64(0)
        for at in range(x_D.size):
            x = np.float64(x_D[at])
            number = _rounded(x, shift)
            on_grid_D[at] = number
            square += number * number
            left_out += (x - number) * (x - number)
        sums_2N[0, row], sums_2N[1, row] = square, left_out


@define(eq=False)
class PreparedRows:
    """Prepared rows of queries or candidates; the operand of each kind of product is made on first use."""

    comparator: ExactComparator
    rows_ND: Tensor
    of_queries: bool
    _operands: dict[torch.dtype | None, Operand] = field(factory=dict, init=False)

    def operand(self, dtype: torch.dtype | None) -> Operand:
        """Return the operand of a product or sum in `dtype`, or of values if it is None."""
        if dtype not in self._operands:
            kind = kind_in(self.comparator, dtype)
            self._operands[dtype] = kind.operand(self.rows_ND, of_queries=self.of_queries)
        return self._operands[dtype]


def fast_scores(queries: PreparedRows, candidates: PreparedRows, *, values: bool = False) -> FastScores:
    """Score a block with the cheapest product whose error bounds hold.

    Args:
        queries: (B, K, L + 1).
        candidates: (B, C, L).
        values: whether the scores must be values, to be reported.
    """
    operands = None if values else operands_of(queries, candidates)
    if operands is None:
        dtype = None if values else torch.float64
        operands = kind_in(queries.comparator, dtype), queries.operand(dtype), candidates.operand(dtype)
    kind, query_operand, candidate_operand = operands
    return kind.scores(query_operand, candidate_operand)


def operands_of(queries: PreparedRows, candidates: PreparedRows, *, in_bfloat16: bool = False) -> Operands | None:
    """Return a float product and its operands, or None if its scores might overflow or be too inexact."""
    comparator, dtype = queries.comparator, torch.bfloat16 if in_bfloat16 else torch.float32
    # A root's error is the root of its square's error, which is too wide in float32.
    if comparator.has_root or (in_bfloat16 and comparator.adds_squares and comparator.bias):
        return None
    query_operand, candidate_operand = queries.operand(dtype), candidates.operand(dtype)
    magnitude_K = torch.maximum(_magnitudes(comparator, query_operand, candidate_operand), query_operand.norm_N)
    is_safe = bool((magnitude_K < LARGEST_SAFE_SCORE).all())  # no score can overflow
    return (kind_in(comparator, dtype), query_operand, candidate_operand) if is_safe else None


@define
class Bfloat16Use:
    """Counts blocks tried and given up in bfloat16, to decide whether to go on using it.

    A block is given up if many cells stay open, because deciding them pair by pair takes longer than bfloat16 saves.
    Does not change the results.
    """

    num_blocks: int = 0
    num_given_up: int = 0


def _columns(comparator: ExactComparator, rows_ND: Tensor, *, of_queries: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return vectors, biases and constants of prepared rows; under dot and cos the bias is part of the vector."""
    zero_N = torch.zeros(rows_ND.shape[:-1], dtype=torch.float64, device=rows_ND.device)
    constant_N = rows_ND[..., -1].double() if of_queries else zero_N
    vector_ND = rows_ND[..., :-1] if of_queries else rows_ND
    if not comparator.adds_bias:
        return vector_ND, zero_N, constant_N
    return vector_ND[..., :-1], vector_ND[..., -1].double(), constant_N


def _operand(
    columns: list[Tensor], square_N: Tensor, left_out_N: Tensor, bias_N: Tensor, constant_N: Tensor
) -> Operand:
    return Operand(joined(columns), square_N.sqrt() * SLACK + left_out_N, square_N, left_out_N, bias_N, constant_N)


def _magnitudes(comparator: ExactComparator, queries: Operand, candidates: Operand) -> Tensor:
    """Return an upper bound of the summed magnitudes of a score's terms, for each query (..., K)."""
    norm = candidates.norm_N.amax(-1, keepdim=True)
    if comparator.adds_magnitudes:
        return queries.norm_N + norm
    if not comparator.adds_squares:
        return queries.norm_N * norm
    return (queries.norm_N * 2 + norm) * norm + (queries.bias_N * candidates.bias_N.abs().amax(-1, keepdim=True)).abs()


def _with_bias(
    comparator: ExactComparator, scores_KC: Tensor, error_K: Tensor, operands: tuple[Operand, Operand]
) -> FastScores:
    """Add a bias in float64, if there is one, to scores that are off by at most `error_K`."""
    queries, candidates = operands
    if comparator.bias:
        added_KC = queries.bias_N.unsqueeze(-1) * candidates.bias_N.unsqueeze(-2)
        largest_K = scores_KC.abs().amax(-1).double() + added_KC.abs().amax(-1)
        scores_KC, error_K = scores_KC + added_KC, error_K + largest_K * 2.0**-40
    return FastScores(scores_KC, torch.zeros_like(error_K), error_K)


def _product_alike(query_BKD: Tensor, candidate_BCD: Tensor) -> Tensor:
    """Multiply as compiled loops do: both make the scores of a loss. No loop runs on a GPU."""
    if query_BKD.device.type == "cpu":
        return product(query_BKD, candidate_BCD)
    return query_BKD @ candidate_BCD.mT
