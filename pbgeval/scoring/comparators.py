"""Pairs of transformed vectors -> scores, higher is better: PyTorch-BigGraph's comparators, and three of our own.

PBG's are inner products of *prepared* rows, so one kernel serves all: cos normalises the rows, and
-|x-y|^2 = 2xy - |x|^2 - |y|^2 appends columns. PBG's bias (column 0 is withheld and added to the score) appends
columns too. Queries and candidates are prepared differently.

Other systems' models need three that PBG lacks (decision 0015): l1 and complex_l1 are distances that no product gives
(`distances`), clamped_dot is DGL-KE's SimplE, whose scores end at -20 and 20.

Distances are ranked by their squares: -sqrt(d2) is monotone in -d2, and rounding it would only add ties.
`real_scores` gives the values that PBG's loss is defined on. Source: PBG.md section 2, torchbiggraph/model.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from attrs import field, frozen
from torch import Tensor

from pbgeval.scoring import compiled_distances
from pbgeval.scoring.product import paired_product, product

# Pairs of rows -> minus the sum over columns of how far apart they are: distances that no inner product gives.
#
#     absolute   |x - y|                        per column               (comparator l1)
#     modulus    sqrt((a - c)^2 + (b - d)^2)    per complex column       (comparator complex_l1)
#
# Columns are added one after the other, each difference, square, root and sum being rounded by itself as IEEE says. So
# a
# score has the same bits whatever the shape of its block, the number of threads or the device, and nothing is padded.
# On a CPU compiled loops do the same where that is worth it (`compiled_distances`).

CELLS_AT_A_TIME = 1 << 16  # so that differences and sums stay in cache; changes no number

Columns = tuple[Tensor, ...]  # buffers of one shape
AddTerm = Callable[[Tensor, Tensor, int, Columns], None]


def absolute_sums(query_BQD: Tensor, candidate_BCD: Tensor) -> Tensor:
    """Return -sum |x - y|, (B, Q, C)."""
    if compiled_distances.serves(query_BQD, candidate_BCD):
        return compiled_distances.absolute_sums(query_BQD, candidate_BCD)
    return _sums(query_BQD, candidate_BCD, query_BQD.shape[-1], 1, _add_absolute)


def modulus_sums(query_BQD: Tensor, candidate_BCD: Tensor) -> Tensor:
    """Return -sum |x - y| of complex numbers, (B, Q, C); halves of a row are real and imaginary parts."""
    if compiled_distances.serves(query_BQD, candidate_BCD):
        return compiled_distances.modulus_sums(query_BQD, candidate_BCD)
    return _sums(query_BQD, candidate_BCD, query_BQD.shape[-1] // 2, 2, _add_modulus)


def _add_absolute(query_BQD: Tensor, candidate_BCD: Tensor, column: int, buffers: Columns) -> None:
    sum_BQC, term_BQC = buffers
    torch.sub(query_BQD[:, :, column].unsqueeze(2), candidate_BCD[:, :, column].unsqueeze(1), out=term_BQC)
    sum_BQC.add_(term_BQC.abs_())


def _add_modulus(query_BQD: Tensor, candidate_BCD: Tensor, column: int, buffers: Columns) -> None:
    sum_BQC, real_BQC, imag_BQC = buffers
    half = query_BQD.shape[-1] // 2
    for at, out in ((column, real_BQC), (half + column, imag_BQC)):
        torch.sub(query_BQD[:, :, at].unsqueeze(2), candidate_BCD[:, :, at].unsqueeze(1), out=out)
        out.mul_(out)
    sum_BQC.add_(_root(real_BQC.add_(imag_BQC)))


def _root(square_BQC: Tensor) -> Tensor:
    """Take the roots in place, rounded as IEEE says, which those of torch on a CPU are not (MKL's are 1 ulp off)."""
    if square_BQC.device.type != "cpu":
        return square_BQC.sqrt_()
    np.sqrt(square_BQC.numpy(), out=square_BQC.numpy())
    return square_BQC


def _sums(query_BQD: Tensor, candidate_BCD: Tensor, num_terms: int, num_buffers: int, add: AddTerm) -> Tensor:
    """Add up the terms of all cells, some batches or some queries of one batch at a time."""
    num_products, num_queries = query_BQD.shape[:2]
    num_candidates = candidate_BCD.shape[1]
    scores_BQC = query_BQD.new_zeros((num_products, num_queries, num_candidates))
    if not scores_BQC.numel():
        return scores_BQC
    batches = max(1, CELLS_AT_A_TIME // (num_queries * num_candidates))
    rows = max(1, CELLS_AT_A_TIME // num_candidates)
    for batch in range(0, num_products, batches):
        for row in range(0, num_queries, rows):
            sum_BQC = scores_BQC[batch : batch + batches, row : row + rows]
            buffers = (sum_BQC, *(torch.empty_like(sum_BQC) for _ in range(num_buffers)))
            queries = query_BQD[batch : batch + batches, row : row + rows]
            candidates = candidate_BCD[batch : batch + batches]
            for column in range(num_terms):
                add(queries, candidates, column, buffers)
    return scores_BQC.neg_()


SMALLEST_SQUARE = 1e-30  # PBG's floor under the square root
CLAMP = 20.0  # of clamped_dot, as in DGL-KE
SMALLEST_NORM, LARGEST_NORM = 1e-15, 1e15  # between them the squares of float32 neither vanish nor overflow


class UnrankableRowsError(Exception):
    """Rows that cannot be prepared; the scorer's caller knows which entities they are."""

    expected: str
    found: str

    def __init__(self, rows: list[int]) -> None:
        super().__init__(rows)
        self.rows = rows


class ZeroVectorError(UnrankableRowsError):
    """Rows without a direction under `cos`."""

    expected = "a vector with a direction for comparator 'cos'"
    found = "a zero vector"


class OverflowedError(UnrankableRowsError):
    """Rows that would be rounded to infinity, or hold it after an operator."""

    expected = "numbers within float32"
    found = "larger ones"


def check_finite(x_ND: Tensor) -> Tensor:
    """Return the rows that an operator made.

    Raises:
        OverflowedError: some of them overflow, so that infinity, or the order of a sum, would decide ranks.
    """
    if not bool(torch.isfinite(x_ND.sum())):
        infinite_N = ~torch.isfinite(x_ND).all(dim=-1)
        if bool(infinite_N.any()):
            raise OverflowedError(infinite_N.flatten().nonzero().flatten().tolist())
    return x_ND


def _norms(x_ND: Tensor) -> Tensor:
    """Return the Euclidean norms (N,); a contiguous row's bits depend on that row alone (tests/unit)."""
    dtype = torch.float64 if x_ND.is_cuda else x_ND.dtype  # as in `_row_sums`
    norms_N: Tensor = torch.linalg.vector_norm(x_ND.contiguous(), dim=-1, dtype=dtype)
    return norms_N.to(x_ND.dtype)


def _row_sums(x_ND: Tensor) -> Tensor:
    """Return the sum of each row.

    On a GPU the order of a row's sum depends on how many rows there are: added up in float64 and rounded once, it makes
    no difference that is left, but for one row in millions.
    """
    return x_ND.double().sum(-1).to(x_ND.dtype) if x_ND.is_cuda else x_ND.sum(-1)


class Base(ABC):
    """The comparator without bias: how rows become factors of an inner product, or what is done with them instead."""

    is_inner_product = True  # `scores` are inner products of prepared rows and nothing else
    multiplies = True  # `scores` are made of inner products, whose terms can overflow both ways

    @abstractmethod
    def prepare_queries(self, x_ND: Tensor) -> list[Tensor]:
        """Return the column blocks of the prepared query rows."""

    @abstractmethod
    def prepare_candidates(self, x_ND: Tensor) -> list[Tensor]:
        """Return the column blocks of the prepared candidate rows."""

    @abstractmethod
    def real_scores(self, products: Tensor) -> Tensor:
        """Return the comparator's own values for inner products of prepared rows."""

    @abstractmethod
    def elementwise(self, query_QD: Tensor, candidate_QD: Tensor) -> Tensor:
        """Return the inner product of each pair of prepared rows as PBG sums its positive scores."""

    def scores(self, query_BQD: Tensor, candidate_BCD: Tensor) -> Tensor:
        """Return the scores (B, Q, C) of prepared rows; those of a cell depend on its two rows alone."""
        return product(query_BQD, candidate_BCD)

    def paired_scores(self, query_QD: Tensor, candidate_QD: Tensor) -> Tensor:
        """Return the score (Q,) of each query with its own candidate, with the bits that `scores` gives."""
        return paired_product(query_QD, candidate_QD)


class Dot(Base):
    """x . y."""

    def prepare_queries(self, x_ND: Tensor) -> list[Tensor]:
        return [x_ND]

    def prepare_candidates(self, x_ND: Tensor) -> list[Tensor]:
        return [x_ND]

    def real_scores(self, products: Tensor) -> Tensor:
        return products

    def elementwise(self, query_QD: Tensor, candidate_QD: Tensor) -> Tensor:
        return _row_sums(query_QD * candidate_QD)


class Cos(Base):
    """x . y / (|x| |y|); rows of norm 0 are refused (PBG divides by zero and reports a perfect rank)."""

    def prepare_queries(self, x_ND: Tensor) -> list[Tensor]:
        return [self._normalised(x_ND)]

    def prepare_candidates(self, x_ND: Tensor) -> list[Tensor]:
        return [self._normalised(x_ND)]

    def real_scores(self, products: Tensor) -> Tensor:
        return products

    def elementwise(self, query_QD: Tensor, candidate_QD: Tensor) -> Tensor:
        return _row_sums(query_QD * candidate_QD)

    def _normalised(self, x_ND: Tensor) -> Tensor:
        norms_N = _norms(x_ND)
        # Like PBG, times the reciprocal: the last bits, and so near-ties, are those of its figures.
        normalised_ND = x_ND * norms_N.reciprocal().unsqueeze(-1)
        extreme_N = ~((norms_N > SMALLEST_NORM) & (norms_N < LARGEST_NORM))
        if bool(extreme_N.any()):
            normalised_ND[extreme_N] = self._normalised_extremes(x_ND, extreme_N)
        return normalised_ND

    def _normalised_extremes(self, x_ND: Tensor, extreme_N: Tensor) -> Tensor:
        """Return the rows whose squares float32 may not hold, normalised in float64."""
        zero_N = (x_ND == 0).all(dim=-1)
        if bool(zero_N.any()):
            raise ZeroVectorError(zero_N.flatten().nonzero().flatten().tolist())
        rows_RD = x_ND[extreme_N].double()
        scaled_RD = rows_RD / rows_RD.abs().amax(dim=-1, keepdim=True)
        return (scaled_RD / _norms(scaled_RD).unsqueeze(-1)).to(x_ND.dtype)


def _squares(x_ND: Tensor) -> Tensor:
    return x_ND.contiguous().double().square().sum(-1, keepdim=True).to(x_ND.dtype)


class SquaredL2(Base):
    """-|x - y|^2."""

    def prepare_queries(self, x_ND: Tensor) -> list[Tensor]:
        squares_N1 = _squares(x_ND)
        return [2 * x_ND, -squares_N1, torch.ones_like(squares_N1)]

    def prepare_candidates(self, x_ND: Tensor) -> list[Tensor]:
        squares_N1 = _squares(x_ND)
        return [x_ND, torch.ones_like(squares_N1), -squares_N1]

    def real_scores(self, products: Tensor) -> Tensor:
        return products

    def elementwise(self, query_QD: Tensor, candidate_QD: Tensor) -> Tensor:
        return _elementwise_square(query_QD, candidate_QD)


def _elementwise_square(query_QD: Tensor, candidate_QD: Tensor) -> Tensor:
    """Return -|x - y|^2 of each pair of rows that SquaredL2 prepared; halving is exact."""
    return -_row_sums((query_QD[..., :-2] / 2 - candidate_QD[..., :-2]).square())


class L2(Base):
    """-|x - y|, as -sqrt(max(|x - y|^2, 1e-30)); ranked by the square."""

    def prepare_queries(self, x_ND: Tensor) -> list[Tensor]:
        return SquaredL2().prepare_queries(x_ND)

    def prepare_candidates(self, x_ND: Tensor) -> list[Tensor]:
        return SquaredL2().prepare_candidates(x_ND)

    def real_scores(self, products: Tensor) -> Tensor:
        # clamp keeps NaN, and -inf becomes -inf: a square that overflowed stays the worst score.
        return -torch.sqrt(torch.clamp(-products, min=SMALLEST_SQUARE))

    def elementwise(self, query_QD: Tensor, candidate_QD: Tensor) -> Tensor:
        return _elementwise_square(query_QD, candidate_QD)


class ClampedDot(Dot):
    """x . y, no less than -20 and no more than 20: scores beyond tie."""

    is_inner_product = False

    def elementwise(self, query_QD: Tensor, candidate_QD: Tensor) -> Tensor:
        return super().elementwise(query_QD, candidate_QD).clamp_(-CLAMP, CLAMP)

    def scores(self, query_BQD: Tensor, candidate_BCD: Tensor) -> Tensor:
        return product(query_BQD, candidate_BCD).clamp_(-CLAMP, CLAMP)

    def paired_scores(self, query_QD: Tensor, candidate_QD: Tensor) -> Tensor:
        return paired_product(query_QD, candidate_QD).clamp_(-CLAMP, CLAMP)


class L1(Dot):
    """-sum |x - y|."""

    is_inner_product = False
    multiplies = False

    def elementwise(self, query_QD: Tensor, candidate_QD: Tensor) -> Tensor:
        return self.paired_scores(query_QD, candidate_QD)

    def scores(self, query_BQD: Tensor, candidate_BCD: Tensor) -> Tensor:
        return absolute_sums(query_BQD, candidate_BCD)

    def paired_scores(self, query_QD: Tensor, candidate_QD: Tensor) -> Tensor:
        return self.scores(query_QD.unsqueeze(1), candidate_QD.unsqueeze(1)).flatten()


class ComplexL1(L1):
    """-sum |x - y| of complex numbers, whose real parts are the first half of a row (RotatE by moduli)."""

    def scores(self, query_BQD: Tensor, candidate_BCD: Tensor) -> Tensor:
        return modulus_sums(query_BQD, candidate_BCD)


COMPARATORS: dict[str, Base] = {
    "dot": Dot(),
    "cos": Cos(),
    "l2": L2(),
    "squared_l2": SquaredL2(),
    "l1": L1(),
    "complex_l1": ComplexL1(),
    "clamped_dot": ClampedDot(),
}
DISTANCES = frozenset({"l2", "squared_l2", "l1", "complex_l1"})  # a translation of one side can be one of the other


class RowComparator(Protocol):
    """What passes ask for the scores of prepared rows: a `Comparator`, or a model of numbers (`block_scorer`)."""

    @property
    def name(self) -> str: ...
    @property
    def bias(self) -> bool: ...
    @property
    def is_inner_product(self) -> bool: ...
    @property
    def multiplies(self) -> bool: ...
    def width(self, dimension: int) -> int: ...
    def scores(self, query_BQD: Tensor, candidate_BCD: Tensor) -> Tensor: ...
    def paired_scores(self, query_QD: Tensor, candidate_QD: Tensor) -> Tensor: ...
    def pbg_true_scores(self, query_QD: Tensor, candidate_QD: Tensor) -> Tensor | None: ...
    def real_scores(self, scores: Tensor) -> Tensor: ...


@frozen
class Comparator:
    """A comparator by its name, with or without bias."""

    name: str
    bias: bool = False
    base: Base = field(init=False)

    @base.default
    def _of_name(self) -> Base:
        return COMPARATORS[self.name]

    @property
    def is_inner_product(self) -> bool:
        """Whether `scores` are inner products of prepared rows and nothing else."""
        return self.base.is_inner_product and not self._adds_bias_outside

    @property
    def multiplies(self) -> bool:
        """Whether `scores` are made of inner products of prepared rows, whose terms can overflow both ways."""
        return self.base.multiplies

    @property
    def _adds_bias_outside(self) -> bool:
        """Whether the bias is added to a square root or to what is no inner product, so that scores are none."""
        return self.bias and (self.name == "l2" or not self.base.is_inner_product)

    def prepare_queries(self, x_ND: Tensor) -> Tensor:
        """Return the query rows as factors: (..., D) -> (..., D'), contiguous."""
        if not self.bias:
            return _joined(self.base.prepare_queries(x_ND))
        bias_N1 = x_ND[..., :1]
        return _joined([*self.base.prepare_queries(x_ND[..., 1:]), bias_N1, torch.ones_like(bias_N1)])

    def prepare_candidates(self, x_ND: Tensor) -> Tensor:
        """Return the candidate rows as factors: (..., D) -> (..., D'), contiguous."""
        if not self.bias:
            return _joined(self.base.prepare_candidates(x_ND))
        bias_N1 = x_ND[..., :1]
        return _joined([*self.base.prepare_candidates(x_ND[..., 1:]), torch.ones_like(bias_N1), bias_N1])

    def width(self, dimension: int) -> int:
        """Return the number of columns of prepared rows, for rows of `dimension` columns."""
        return self.prepare_candidates(torch.ones((1, dimension))).shape[1]

    def scores(self, query_BQD: Tensor, candidate_BCD: Tensor) -> Tensor:
        """Return what candidates are ranked by, (B, Q, C), from prepared rows; see `real_scores`."""
        if not self._adds_bias_outside:
            return self.base.scores(query_BQD, candidate_BCD)
        unbiased_BQC = self.base.real_scores(self.base.scores(query_BQD[..., :-2], candidate_BCD[..., :-2]))
        return unbiased_BQC + query_BQD[..., -2].unsqueeze(2) + candidate_BCD[..., -1].unsqueeze(1)

    def pbg_true_scores(self, query_QD: Tensor, candidate_QD: Tensor) -> Tensor:
        """Return the scores (Q,) of true entities as PBG computes them: an elementwise product and a sum.

        More exact than a matrix kernel, but with other last bits: an identical candidate need not tie.
        """
        if not self.bias:
            return self.base.elementwise(query_QD, candidate_QD)
        products_Q = self.base.elementwise(query_QD[..., :-2], candidate_QD[..., :-2])
        unbiased_Q = self.base.real_scores(products_Q) if self._adds_bias_outside else products_Q
        # Each is multiplied by its one, which is none where an operator has moved to the query (`contest`).
        bias_Q = query_QD[..., -2] * candidate_QD[..., -2]
        return unbiased_Q + bias_Q + query_QD[..., -1] * candidate_QD[..., -1]

    def paired_scores(self, query_QD: Tensor, candidate_QD: Tensor) -> Tensor:
        """Return the score (Q,) of each query with its own candidate, with the bits that `scores` gives."""
        if not self._adds_bias_outside:
            return self.base.paired_scores(query_QD, candidate_QD)
        unbiased_Q = self.base.real_scores(self.base.paired_scores(query_QD[..., :-2], candidate_QD[..., :-2]))
        return unbiased_Q + query_QD[..., -2] + candidate_QD[..., -1]

    def real_scores(self, scores: Tensor) -> Tensor:
        """Return the values that PBG defines, from those that candidates are ranked by (a monotone map)."""
        return scores if self._adds_bias_outside else self.base.real_scores(scores)


def _joined(blocks: list[Tensor]) -> Tensor:
    return blocks[0].contiguous() if len(blocks) == 1 else torch.cat(blocks, dim=-1)
