"""Prepared rows for certified ranks -> fast scores, each with a bound of how far it is from the exact score.

Three kinds. A *float product* multiplies the rows themselves: whatever the kernel's order, shape or threads, rounding
moves a sum of n products by at most n roundings of the sum of their magnitudes, which the rows' norms bound (Cauchy
and Schwarz). A *bfloat16 product* rounds the rows before, and the bound grows by what they lose. A *grid product*
first puts each row on a grid, a power of two below its largest number, so coarse that float64 adds the products
without rounding: its scores have the same bits on any hardware, and the bound is that of what the grids left out.
Products on grids are the *values* that certified runs report where a score is asked for.
"""

from __future__ import annotations

import math

import torch
from attrs import define, evolve, field, frozen
from torch import Tensor

from pbgeval.scoring import compiled_lengths
from pbgeval.scoring.certified import CertifiedComparator
from pbgeval.scoring.comparators import SMALLEST_SQUARE
from pbgeval.scoring.product import product

LARGEST_SAFE_SCORE = 1e37  # a tenth of the largest float32, so that no sum of float32 products overflows
FLUSHED = 2.0**-120  # more than what becomes of a float32 product that underflows, on hardware that flushes to zero
SLACK = 1.0 + 1e-9  # for roundings of bounds, which are computed in float64
ROUNDINGS = {torch.float32: 2.0**-23, torch.float64: 2.0**-52}  # of one operation, rounded to nearest or not
SIGNIFICAND = 53


@frozen(eq=False)
class Operand:
    """Rows of queries or of candidates, ready for one kind of product; leading axes are batches."""

    rows_NW: Tensor  # what is multiplied
    norm_N: Tensor  # float64: at least the length of each vector
    square_N: Tensor  # float64: of that length, for distances
    left_out_N: Tensor  # float64: at least the length of what a grid left out
    bias_N: Tensor  # float64: a candidate's bias, what a query multiplies it by
    constant_N: Tensor  # float64: of a query

    def take(self, index: Tensor) -> Operand:
        """Return some rows, which may repeat; without batches."""
        return Operand(*(column.index_select(0, index) for column in self._columns))

    def between(self, start: int, stop: int) -> Operand:
        """Return consecutive rows; without batches."""
        return Operand(*(column[start:stop] for column in self._columns))

    @property
    def _columns(self) -> tuple[Tensor, ...]:
        return self.rows_NW, self.norm_N, self.square_N, self.left_out_N, self.bias_N, self.constant_N

    @property
    def num_columns(self) -> int:
        return self.rows_NW.shape[-1]


@frozen(eq=False)
class FastScores:
    """A block of fast scores, (..., K, C), and what is known of them."""

    scores_KC: Tensor
    offset_K: Tensor  # float64: what a row's scores have more than exact scores without the constant
    error_K: Tensor  # float64: they are off by at most this


class FloatProduct:
    """Rows multiplied as they are."""

    def __init__(self, comparator: CertifiedComparator, dtype: torch.dtype) -> None:
        self.comparator, self.dtype = comparator, dtype

    def queries(self, rows_NL: Tensor) -> Operand:
        vector_NL, bias_N, constant_N = _columns(self.comparator, rows_NL, of_queries=True)
        square_N = _squared_lengths(vector_NL)
        columns = [vector_NL.to(self.dtype)]
        if self.comparator.is_distance:
            columns = [2 * columns[0], torch.ones_like(columns[0][..., :1])]
            if not self.comparator.has_root:
                columns.append(bias_N.unsqueeze(-1).to(self.dtype))
        return _operand(columns, square_N, torch.zeros_like(square_N), bias_N, constant_N)

    def candidates(self, rows_NL: Tensor) -> Operand:
        vector_NL, bias_N, _ = _columns(self.comparator, rows_NL, of_queries=False)
        square_N = _squared_lengths(vector_NL)
        columns = [vector_NL.to(self.dtype)]
        if self.comparator.is_distance:
            columns.append(-square_N.unsqueeze(-1).to(self.dtype))
            if not self.comparator.has_root:
                columns.append(bias_N.unsqueeze(-1).to(self.dtype))
        return _operand(columns, square_N, torch.zeros_like(square_N), bias_N, torch.zeros_like(square_N))

    def is_safe(self, queries: Operand, candidates: Operand) -> bool:
        """Tell whether no score of a block can overflow."""
        magnitude_K = torch.maximum(_magnitudes(self.comparator, queries, candidates), queries.norm_N)
        return bool((magnitude_K < LARGEST_SAFE_SCORE).all())

    def scores(self, queries: Operand, candidates: Operand) -> FastScores:
        """Multiply queries (..., K, W) and candidates (..., C, W)."""
        scores_KC = _product(queries.rows_NW, candidates.rows_NW)
        offset_K, error_K = self.bounds(queries, candidates)
        if not self.comparator.has_root:
            return FastScores(scores_KC, offset_K, error_K)
        squares_KC = (queries.square_N.unsqueeze(-1) - scores_KC).clamp(min=0.0)
        added_KC = queries.bias_N.unsqueeze(-1) * candidates.bias_N.unsqueeze(-2)
        error_K = error_K.sqrt() + _magnitudes(self.comparator, queries, candidates).sqrt() * 2.0**-40
        error_K += (queries.bias_N * candidates.bias_N.abs().amax(-1, keepdim=True)).abs() * 2.0**-40
        return FastScores(added_KC - squares_KC.sqrt(), torch.zeros_like(error_K), error_K)

    def bounds(self, queries: Operand, candidates: Operand) -> tuple[Tensor, Tensor]:
        """Return offset and error (..., K) of the products of rows, which under `has_root` are no scores yet."""
        magnitude_K = _magnitudes(self.comparator, queries, candidates)
        roundings = (queries.num_columns + 8) * ROUNDINGS[self.dtype]  # of the square's column, too
        error_K = magnitude_K * (roundings / (1 - roundings) * SLACK)
        if self.dtype is torch.float32:
            error_K = error_K + queries.num_columns * FLUSHED * (1 + queries.norm_N.max() + candidates.norm_N.max())
        if not self.comparator.is_distance:
            return torch.zeros_like(error_K), error_K
        # The offset is a sum of squares in float64, which rounds once for each.
        return queries.square_N, error_K + queries.square_N * (2.0**-40 + queries.num_columns * 2.0**-52)


class Bfloat16Product:
    """Rows rounded to bfloat16, whose products are added up in float32: three times as fast where hardware has it.

    Beside what float32 rounds, a score lacks what the rows have lost, whose lengths bound it. Not for distances with a
    bias, whose columns would lose too much.
    """

    def __init__(self, comparator: CertifiedComparator) -> None:
        self.comparator = comparator
        self.in_float32 = FloatProduct(comparator, torch.float32)

    @staticmethod
    def serves(comparator: CertifiedComparator) -> bool:
        return not (comparator.is_distance and comparator.bias)

    def queries(self, rows_NL: Tensor) -> Operand:
        vector_NL, bias_N, constant_N = _columns(self.comparator, rows_NL, of_queries=True)
        rounded_NL, lost_N = _in_bfloat16(vector_NL)
        square_N = _squared_lengths(vector_NL)
        columns = [rounded_NL]
        if self.comparator.is_distance:
            one_N1 = torch.ones_like(rounded_NL[..., :1])
            columns = [2 * rounded_NL, one_N1, one_N1, one_N1]
        return _operand(columns, square_N, lost_N, bias_N, constant_N)

    def candidates(self, rows_NL: Tensor) -> Operand:
        vector_NL, bias_N, _ = _columns(self.comparator, rows_NL, of_queries=False)
        rounded_NL, lost_N = _in_bfloat16(vector_NL)
        square_N = _squared_lengths(vector_NL)
        columns, rest_N = [rounded_NL], -square_N
        for _ in range(3 if self.comparator.is_distance else 0):  # three of them hold all that float32 would
            part_N = rest_N.to(torch.bfloat16)
            columns.append(part_N.unsqueeze(-1))
            rest_N = rest_N - part_N.double()
        return _operand(columns, square_N, lost_N, bias_N, torch.zeros_like(square_N))

    def is_safe(self, queries: Operand, candidates: Operand) -> bool:
        """Tell whether no score of a block can overflow."""
        return self.in_float32.is_safe(queries, candidates)

    def bounds(self, queries: Operand, candidates: Operand) -> tuple[Tensor, Tensor]:
        """Return offset and error (..., K) of the products."""
        offset_K, error_K = self.in_float32.bounds(queries, candidates)
        norm, lost = candidates.norm_N.amax(-1, keepdim=True), candidates.left_out_N.amax(-1, keepdim=True)
        lost_K = queries.left_out_N * norm + queries.norm_N * lost
        # A square's parts add up to a little more than the square, by less than a fiftieth.
        return offset_K, error_K * 1.02 + lost_K * (2 if self.comparator.is_distance else 1) * SLACK


def _in_bfloat16(vector_NL: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows in bfloat16, and at least the length of what each has lost, float64."""
    rounded_NL = vector_NL.to(torch.bfloat16)
    kept_NL = rounded_NL.to(vector_NL.dtype)
    if compiled_lengths.serves(vector_NL):
        return rounded_NL, compiled_lengths.squared_lengths(vector_NL, kept_NL).sqrt() * SLACK
    lost_NL = vector_NL - kept_NL  # without rounding: both have the exponent of one
    return rounded_NL, torch.linalg.vector_norm(lost_NL, dim=-1, dtype=torch.float64) * SLACK


def _squared_lengths(vector_NL: Tensor) -> Tensor:
    """Return the square of each row's length, float64 (..., N), with the roundings of some sums."""
    if compiled_lengths.serves(vector_NL):
        return compiled_lengths.squared_lengths(vector_NL)
    square_N: Tensor = torch.linalg.vector_norm(vector_NL, dim=-1, dtype=torch.float64).square()
    return square_N


class GridProduct:
    """Rows on grids, multiplied in float64 without rounding: values with the same bits on any hardware."""

    def __init__(self, comparator: CertifiedComparator) -> None:
        self.comparator = comparator

    def queries(self, rows_NL: Tensor) -> Operand:
        return self._on_grid(*_columns(self.comparator, rows_NL, of_queries=True))

    def candidates(self, rows_NL: Tensor) -> Operand:
        return self._on_grid(*_columns(self.comparator, rows_NL, of_queries=False))

    def _on_grid(self, vector_NL: Tensor, bias_N: Tensor, constant_N: Tensor) -> Operand:
        vector_NL = vector_NL.double()
        largest_N1 = vector_NL.abs().amax(-1, keepdim=True)
        fraction_N1, _ = torch.frexp(largest_N1)
        bits = (SIGNIFICAND - (vector_NL.shape[-1] - 1).bit_length()) // 2
        # The power of two above the largest number, exactly: an exponential would round on some hardware.
        step_N1 = torch.where(largest_N1 > 0, largest_N1 / fraction_N1, 1.0) * 2.0**-bits
        on_grid_NL = (vector_NL / step_N1).round() * step_N1
        left_out_N = (vector_NL - on_grid_NL).square().sum(-1).sqrt() * SLACK
        square_N = on_grid_NL.square().sum(-1)  # without rounding, too
        return _operand([on_grid_NL], square_N, left_out_N, bias_N, constant_N)

    def scores(self, queries: Operand, candidates: Operand) -> FastScores:
        """Return the values of a block, and how far they are from the exact scores."""
        values_KC = self._values(
            _product(queries.rows_NW, candidates.rows_NW),
            (queries.square_N.unsqueeze(-1), queries.bias_N.unsqueeze(-1), queries.constant_N.unsqueeze(-1)),
            (candidates.square_N.unsqueeze(-2), candidates.bias_N.unsqueeze(-2)),
        )
        return FastScores(values_KC, queries.constant_N, self._errors(queries, candidates))

    def paired(self, queries: Operand, candidates: Operand) -> Tensor:
        """Return the value of each query with its own candidate, with the bits that `scores` gives."""
        return self._values(
            (queries.rows_NW * candidates.rows_NW).sum(-1),
            (queries.square_N, queries.bias_N, queries.constant_N),
            (candidates.square_N, candidates.bias_N),
        )

    def _values(
        self, products: Tensor, of_query: tuple[Tensor, Tensor, Tensor], of_candidate: tuple[Tensor, Tensor]
    ) -> Tensor:
        if not self.comparator.is_distance:
            return products + of_query[2]
        values: Tensor = products.mul_(2).sub_(of_candidate[0]).sub_(of_query[0])
        if self.comparator.name == "l2" and self.comparator.bias:
            values = values.neg_().clamp_(min=SMALLEST_SQUARE).sqrt_().neg_()
        if self.comparator.bias:
            values = values + of_query[1] * of_candidate[1]
        return values + of_query[2]

    def _errors(self, queries: Operand, candidates: Operand) -> Tensor:
        norm, left_out = candidates.norm_N.amax(-1, keepdim=True), candidates.left_out_N.amax(-1, keepdim=True)
        added_K = (queries.bias_N * candidates.bias_N.abs().amax(-1, keepdim=True)).abs() + queries.constant_N.abs()
        if not self.comparator.is_distance:
            error_K = queries.left_out_N * (norm + left_out) + queries.norm_N * left_out
            return (error_K + (queries.norm_N * norm + added_K) * 2.0**-40) * SLACK
        apart_K, both_K = queries.norm_N + norm, queries.left_out_N + left_out
        if self.comparator.has_root:
            return both_K + apart_K * 2.0**-20 + added_K * 2.0**-40 + 2 * math.sqrt(SMALLEST_SQUARE)
        return (both_K * (2 * apart_K + both_K) + (apart_K.square() + added_K) * 2.0**-40) * SLACK


@define(eq=False)
class PreparedRows:
    """Prepared rows of queries or candidates; what each kind of product needs of them is made when asked for."""

    comparator: CertifiedComparator
    rows_NL: Tensor
    of_queries: bool
    _operands: dict[str, Operand] = field(factory=dict, init=False)

    def of_float_product(self, dtype: torch.dtype) -> Operand:
        return self._operand(str(dtype), FloatProduct(self.comparator, dtype))

    def of_bfloat16_product(self) -> Operand:
        return self._operand("bfloat16", Bfloat16Product(self.comparator))

    def on_grid(self) -> Operand:
        return self._operand("grid", GridProduct(self.comparator))

    def _operand(self, name: str, kind: FloatProduct | Bfloat16Product | GridProduct) -> Operand:
        if name not in self._operands:
            make = kind.queries if self.of_queries else kind.candidates
            self._operands[name] = make(self.rows_NL)
        return self._operands[name]


def fast_scores(queries: PreparedRows, candidates: PreparedRows, *, values: bool = False) -> FastScores:
    """Score a block by the cheapest product that can be trusted there.

    Args:
        queries: (..., K, L + 1).
        candidates: (..., C, L).
        values: whether the scores must be values, to be reported.
    """
    if values:
        return GridProduct(queries.comparator).scores(queries.on_grid(), candidates.on_grid())
    operands = operands_of(queries, candidates)
    if operands is not None:
        return FloatProduct(queries.comparator, torch.float32).scores(operands.queries, operands.candidates)
    in_float64 = FloatProduct(queries.comparator, torch.float64)
    return in_float64.scores(queries.of_float_product(torch.float64), candidates.of_float_product(torch.float64))


@frozen(eq=False)
class Operands:
    """What a product in float32, or of bfloat16, multiplies."""

    kind: FloatProduct | Bfloat16Product
    queries: Operand
    candidates: Operand

    def bounds(self) -> tuple[Tensor, Tensor]:
        """Return offset and error (..., K) of the products."""
        return self.kind.bounds(self.queries, self.candidates)

    def of_candidates(self, start: int, stop: int) -> Operands:
        """Return those of consecutive candidates; without batches."""
        return evolve(self, candidates=self.candidates.between(start, stop))


def operands_of(queries: PreparedRows, candidates: PreparedRows, *, in_bfloat16: bool = False) -> Operands | None:
    """Return what a product multiplies, None where its scores cannot be trusted."""
    comparator = queries.comparator
    if comparator.has_root:  # a root's error is the root of the square's, too wide in float32
        return None
    kind: FloatProduct | Bfloat16Product
    if in_bfloat16:
        if not Bfloat16Product.serves(comparator):
            return None
        kind, rows = Bfloat16Product(comparator), (queries.of_bfloat16_product(), candidates.of_bfloat16_product())
    else:
        rows = queries.of_float_product(torch.float32), candidates.of_float_product(torch.float32)
        kind = FloatProduct(comparator, torch.float32)
    return Operands(kind, *rows) if kind.is_safe(*rows) else None


def values_of_cells(queries: PreparedRows, row_P: Tensor, candidates: PreparedRows, column_P: Tensor) -> Tensor:
    """Return the values (P,) of cells of a block, with the bits that `fast_scores` gives."""
    if row_P.numel() < candidates.rows_NL.shape[0] // 2:  # putting their rows on grids costs less than all rows
        return values_of_pairs(queries.comparator, queries.rows_NL[row_P], candidates.rows_NL[column_P])
    kind = GridProduct(queries.comparator)
    return kind.paired(queries.on_grid().take(row_P), candidates.on_grid().take(column_P))


def values_of_pairs(comparator: CertifiedComparator, query_PL: Tensor, candidate_PL: Tensor) -> Tensor:
    """Return the values (P,) of each query with its own candidate, likewise."""
    kind = GridProduct(comparator)
    return kind.paired(kind.queries(query_PL), kind.candidates(candidate_PL))


def _columns(comparator: CertifiedComparator, rows_NL: Tensor, *, of_queries: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return vectors, biases and constants of prepared rows; under dot and cos the bias is part of the vector."""
    zero_N = torch.zeros(rows_NL.shape[:-1], dtype=torch.float64, device=rows_NL.device)
    constant_N = rows_NL[..., -1].double() if of_queries else zero_N
    vector_NL = rows_NL[..., :-1] if of_queries else rows_NL
    if not (comparator.is_distance and comparator.bias):
        return vector_NL, zero_N, constant_N
    return vector_NL[..., :-1], vector_NL[..., -1].double(), constant_N


def _operand(
    columns: list[Tensor], square_N: Tensor, left_out_N: Tensor, bias_N: Tensor, constant_N: Tensor
) -> Operand:
    rows_NW = columns[0].contiguous() if len(columns) == 1 else torch.cat(columns, dim=-1)
    return Operand(rows_NW, square_N.sqrt() * SLACK + left_out_N, square_N, left_out_N, bias_N, constant_N)


def _magnitudes(comparator: CertifiedComparator, queries: Operand, candidates: Operand) -> Tensor:
    """Return for each query at least the sum of the magnitudes that add up to a score, (..., K)."""
    norm = candidates.norm_N.amax(-1, keepdim=True)
    if not comparator.is_distance:
        return queries.norm_N * norm
    added_K = (queries.bias_N * candidates.bias_N.abs().amax(-1, keepdim=True)).abs()
    return (queries.norm_N * 2 + norm) * norm + added_K


def _product(query_KW: Tensor, candidate_CW: Tensor) -> Tensor:
    if query_KW.dim() == 2:
        return product(query_KW.unsqueeze(0), candidate_CW.unsqueeze(0))[0]
    return product(query_KW, candidate_CW)
