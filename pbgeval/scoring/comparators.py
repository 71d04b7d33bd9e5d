"""Pairs of transformed vectors -> scores, higher is better: PyTorch-BigGraph's comparators and those of other systems.

PBG's are inner products of *prepared* rows, so one kernel serves all: cos normalises the rows, and
-|x-y|^2 = 2xy - |x|^2 - |y|^2 appends columns. PBG's bias (column 0 is withheld and added to the score) appends
columns too. Queries and candidates are prepared differently.

PBG lacks what other systems' models need (decision 0015): l1 and complex_l1 are distances that no product gives
(`distances`), clamped_dot is DGL-KE's SimplE, whose scores end at -20 and 20.

Distances are ranked by their squares: -sqrt(d2) is monotone in -d2, and rounding it would only add ties.
`real_scores` gives the values that PBG's loss is defined on. Source: PBG.md section 2, torchbiggraph/model.py.

A new comparator is a subclass of `Dot` and a line in `COMPARATORS`. Make it one of `L1` only if each column adds a term
and nothing else is done: kernels then add them up (`Comparator.term`). Its scores are float32 until `scoring/exact.py`
has bounds for it. Tests that read `COMPARATORS` try it, once `tests/reference.py` scores it. People read its name in
config/schema.py and docs/metrics.md.
"""

from __future__ import annotations

import math
import operator
from typing import ClassVar

import torch
from attrs import define, frozen
from torch import Tensor

from pbgeval.scoring.deferred import holds
from pbgeval.scoring.device_scores import Term
from pbgeval.scoring.distances import ABSOLUTE, MODULUS, ColumnDistance
from pbgeval.scoring.product import paired_product, product

SMALLEST_SQUARE = 1e-30  # PBG's floor under the square root
CLAMP = 20.0  # of clamped_dot, as in DGL-KE
SMALLEST_NORM, LARGEST_NORM = 1e-15, 1e15  # between them the squares of float32 neither vanish nor overflow


@define
class UnrankableRowsError(Exception):
    """Rows that cannot be prepared; the scorer's caller knows which entities they are."""

    expected: ClassVar[str]
    found: ClassVar[str]
    rows: list[int]


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
    if not holds(math.isfinite, x_ND.sum()):
        _refuse(~torch.isfinite(x_ND).all(dim=-1), OverflowedError)
    return x_ND


def refuse_zero_vectors(x_ND: Tensor) -> None:
    """Refuse rows that have no direction.

    Raises:
        ZeroVectorError: some of them are zero vectors.
    """
    _refuse((x_ND == 0).all(dim=-1), ZeroVectorError)


def _refuse(bad_N: Tensor, error: type[UnrankableRowsError]) -> None:
    if not holds(operator.not_, bad_N.any()):
        raise error(bad_N.flatten().nonzero().flatten().tolist())


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


class Dot:
    """x . y; also the base of other comparators without bias.

    If inner products of prepared rows do not give the scores, override `scores`, `paired_scores` and `elementwise`. The
    first two give a pair the same bits, which depend on its two rows alone.
    """

    is_inner_product = True  # `scores` are inner products of prepared rows and nothing else: kernels may multiply
    multiplies = True  # `scores` are made of inner products, whose terms can overflow both ways: NaN is possible
    is_distance = False  # x - y alone decides: a translation of one side can be one of the other
    of_complex_numbers = False  # rows are taken apart in two halves

    def prepare_queries(self, x_ND: Tensor) -> list[Tensor]:
        """Return the column blocks of the prepared query rows."""
        return self.prepare_candidates(x_ND)

    def prepare_candidates(self, x_ND: Tensor) -> list[Tensor]:
        """Return the column blocks of the prepared candidate rows."""
        return [x_ND]

    def real_scores(self, products: Tensor) -> Tensor:
        """Return the comparator's own values for inner products of prepared rows."""
        return products

    def elementwise(self, query_QD: Tensor, candidate_QD: Tensor) -> Tensor:
        """Return the inner product of each pair of prepared rows as PBG sums its positive scores."""
        return _row_sums(query_QD * candidate_QD)

    def scores(self, query_BQD: Tensor, candidate_BCD: Tensor) -> Tensor:
        """Return the scores (B, Q, C) of prepared rows; those of a cell depend on its two rows alone."""
        return product(query_BQD, candidate_BCD)

    def paired_scores(self, query_QD: Tensor, candidate_QD: Tensor) -> Tensor:
        """Return the score (Q,) of each query with its own candidate, with the bits that `scores` gives."""
        return paired_product(query_QD, candidate_QD)


def _are_moderate(low: float, high: float) -> bool:
    """Tell whether no norm with such ends is extreme, as float32 compares; False for NaN."""
    return low > 2 * SMALLEST_NORM and high < LARGEST_NORM / 2


class Cos(Dot):
    """x . y / (|x| |y|); rows of norm 0 are refused (PBG divides by zero and reports a perfect rank)."""

    def prepare_candidates(self, x_ND: Tensor) -> list[Tensor]:
        norms_N = _norms(x_ND)
        # Like PBG, times the reciprocal: the last bits, and so near-ties, are those of its figures.
        normalised_ND = x_ND * norms_N.reciprocal().unsqueeze(-1)
        if norms_N.numel() and not holds(_are_moderate, *torch.aminmax(norms_N)):
            refuse_zero_vectors(x_ND)
            extreme_N = ~((norms_N > SMALLEST_NORM) & (norms_N < LARGEST_NORM))
            rows_RD = x_ND[extreme_N].double()
            scaled_RD = rows_RD / rows_RD.abs().amax(dim=-1, keepdim=True)
            normalised_ND[extreme_N] = (scaled_RD / _norms(scaled_RD).unsqueeze(-1)).to(x_ND.dtype)
        return [normalised_ND]


def _squares(x_ND: Tensor) -> Tensor:
    return x_ND.contiguous().double().square().sum(-1, keepdim=True).to(x_ND.dtype)


class SquaredL2(Dot):
    """-|x - y|^2."""

    is_distance = True

    def prepare_queries(self, x_ND: Tensor) -> list[Tensor]:
        squares_N1 = _squares(x_ND)
        return [2 * x_ND, -squares_N1, torch.ones_like(squares_N1)]

    def prepare_candidates(self, x_ND: Tensor) -> list[Tensor]:
        squares_N1 = _squares(x_ND)
        return [x_ND, torch.ones_like(squares_N1), -squares_N1]

    def elementwise(self, query_QD: Tensor, candidate_QD: Tensor) -> Tensor:
        return -_row_sums((query_QD[..., :-2] / 2 - candidate_QD[..., :-2]).square())  # halving is exact


class L2(SquaredL2):
    """-|x - y|, as -sqrt(max(|x - y|^2, 1e-30)); ranked by the square."""

    def real_scores(self, products: Tensor) -> Tensor:
        # clamp keeps NaN, and -inf becomes -inf: a square that overflowed stays the worst score.
        return -torch.sqrt(torch.clamp(-products, min=SMALLEST_SQUARE))


class ClampedDot(Dot):
    """x . y, no less than -20 and no more than 20: scores beyond tie."""

    is_inner_product = False

    def elementwise(self, query_QD: Tensor, candidate_QD: Tensor) -> Tensor:
        return super().elementwise(query_QD, candidate_QD).clamp_(-CLAMP, CLAMP)

    def scores(self, query_BQD: Tensor, candidate_BCD: Tensor) -> Tensor:
        return super().scores(query_BQD, candidate_BCD).clamp_(-CLAMP, CLAMP)

    def paired_scores(self, query_QD: Tensor, candidate_QD: Tensor) -> Tensor:
        return super().paired_scores(query_QD, candidate_QD).clamp_(-CLAMP, CLAMP)


class L1(Dot):
    """-sum |x - y|; also the base of other sums over columns that no product gives."""

    is_inner_product = False
    multiplies = False
    is_distance = True
    distance: ColumnDistance = ABSOLUTE

    def elementwise(self, query_QD: Tensor, candidate_QD: Tensor) -> Tensor:
        return self.paired_scores(query_QD, candidate_QD)

    def scores(self, query_BQD: Tensor, candidate_BCD: Tensor) -> Tensor:
        return self.distance(query_BQD, candidate_BCD)

    def paired_scores(self, query_QD: Tensor, candidate_QD: Tensor) -> Tensor:
        return self.distance.paired(query_QD, candidate_QD)


class ComplexL1(L1):
    """-sum |x - y| of complex numbers, whose real parts are the first half of a row (RotatE by moduli)."""

    of_complex_numbers = True
    distance = MODULUS


COMPARATORS: dict[str, Dot] = {
    "dot": Dot(),
    "cos": Cos(),
    "l2": L2(),
    "squared_l2": SquaredL2(),
    "l1": L1(),
    "complex_l1": ComplexL1(),
    "clamped_dot": ClampedDot(),
}


@frozen
class Comparator:
    """A comparator by its name, with or without bias."""

    name: str
    bias: bool = False

    @property
    def base(self) -> Dot:
        """The comparator without bias."""
        return COMPARATORS[self.name]

    @property
    def is_inner_product(self) -> bool:
        """Whether `scores` are inner products of prepared rows and nothing else."""
        return self.base.is_inner_product and not self._adds_bias_outside

    @property
    def term(self) -> Term | None:
        """What each column adds to `scores`, if they are such sums and nothing else: kernels may add them up."""
        if self.is_inner_product:
            return "product"
        return self.base.distance.name if isinstance(self.base, L1) and not self.bias else None

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
            return joined(self.base.prepare_queries(x_ND))
        bias_N1 = x_ND[..., :1]
        return joined([*self.base.prepare_queries(x_ND[..., 1:]), bias_N1, torch.ones_like(bias_N1)])

    def prepare_candidates(self, x_ND: Tensor) -> Tensor:
        """Return the candidate rows as factors: (..., D) -> (..., D'), contiguous."""
        if not self.bias:
            return joined(self.base.prepare_candidates(x_ND))
        bias_N1 = x_ND[..., :1]
        return joined([*self.base.prepare_candidates(x_ND[..., 1:]), torch.ones_like(bias_N1), bias_N1])

    def width(self, dimension: int) -> int:
        """Return the number of columns of prepared rows, for rows of `dimension` columns."""
        return self.prepare_candidates(torch.ones((1, dimension))).shape[1]

    def scores(self, query_BQD: Tensor, candidate_BCD: Tensor) -> Tensor:
        """Return what candidates are ranked by, (B, Q, C), from prepared rows; see `real_scores`."""
        if not self._adds_bias_outside:
            return self.base.scores(query_BQD, candidate_BCD)
        unbiased_BQC = self.base.real_scores(self.base.scores(query_BQD[..., :-2], candidate_BCD[..., :-2]))
        return unbiased_BQC + query_BQD[..., -2].unsqueeze(2) + candidate_BCD[..., -1].unsqueeze(1)

    def paired_scores(self, query_QD: Tensor, candidate_QD: Tensor) -> Tensor:
        """Return the score (Q,) of each query with its own candidate, with the bits that `scores` gives."""
        if not self._adds_bias_outside:
            return self.base.paired_scores(query_QD, candidate_QD)
        unbiased_Q = self.base.real_scores(self.base.paired_scores(query_QD[..., :-2], candidate_QD[..., :-2]))
        return unbiased_Q + query_QD[..., -2] + candidate_QD[..., -1]

    def pbg_true_scores(self, query_QD: Tensor, candidate_QD: Tensor) -> Tensor:
        """Return the scores (Q,) of true entities as PBG computes them: an elementwise product and a sum.

        More exact than a matrix kernel, but with other last bits: an identical candidate need not tie.
        """
        if not self.bias:
            return self.base.elementwise(query_QD, candidate_QD)
        products_Q = self.base.elementwise(query_QD[..., :-2], candidate_QD[..., :-2])
        unbiased_Q = self.base.real_scores(products_Q) if self._adds_bias_outside else products_Q
        # Each is multiplied by its one, which is none where an operator has moved to the query (`query_group`).
        return unbiased_Q + query_QD[..., -2] * candidate_QD[..., -2] + query_QD[..., -1] * candidate_QD[..., -1]

    def real_scores(self, scores: Tensor) -> Tensor:
        """Return the values that PBG defines, from those that candidates are ranked by (a monotone map)."""
        return scores if self._adds_bias_outside else self.base.real_scores(scores)


def joined(blocks: list[Tensor]) -> Tensor:
    """Return blocks of columns as one tensor, contiguous."""
    return blocks[0].contiguous() if len(blocks) == 1 else torch.cat(blocks, dim=-1)
