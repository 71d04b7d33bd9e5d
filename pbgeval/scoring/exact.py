"""Vectors in float64 -> prepared float32 rows, and the order of the exact scores that such rows have (decision 0013).

A row is prepared in float64 by operations in a fixed order and rounded to float32 once. Scores of prepared rows are
real numbers, which no float need hold; they are compared exactly. Columns of prepared rows:

    candidates   vector, [bias b]
    queries      vector, [weight w of the bias], constant

    dot, cos     q . c + w b
    squared_l2   -|q - c|^2 + w b
    l2           -|q - c|^2; with a bias -|q - c| + w b
    l1           -sum |q - c| + w b
    clamped_dot  q . c, no less than -20 and no more than 20, + w b

The constant is added to every score of a query: it orders nothing, and only the values by which queries are compared
with each other (the pooled AUC) have it.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from attrs import field, frozen
from torch import Tensor

from pbgeval.jit import CompiledLoop
from pbgeval.scoring import device_scores
from pbgeval.scoring.comparators import CLAMP, COMPARATORS, check_finite, joined, refuse_zero_vectors
from pbgeval.scoring.deferred import holds
from pbgeval.scoring.fixed_order import (
    JIT_MIN_NUMBERS,
    are_for_loops,
    directions_in_order,
    norms_in_order,
    sum_in_order,
)
from pbgeval.scoring.operators import FIXED_ORDER_OPERATORS, OPERATORS, Parameters, move_to_query


def exact_signs(terms_PD: np.ndarray) -> np.ndarray:
    """Return the sign (-1, 0 or 1) of the exact sum of each row, int8 (P,): `fsum` rounds that once, so it keeps it.

    Args:
        terms_PD: float64, finite, of magnitudes from 2^-900 to 2^900 or zero; at most 2^20 in a row.
    """
    return np.sign([math.fsum(terms) for terms in terms_PD.tolist()]).astype(np.int8)


# Two distances and what is added to each -> which score is higher, exactly, where no square decides.
#
# Only l2 with a bias needs it, for the pairs that float64 leaves open: exact fractions, one pair after the other.


def root_signs(
    query_PD: np.ndarray, candidate_PD: np.ndarray, added_P: np.ndarray, true_PD: np.ndarray, true_added_P: np.ndarray
) -> np.ndarray:
    """Return the sign of (added - |query - candidate|) - (true_added - |query - true|), int8 (P,).

    Args:
        query_PD: float64, as all others: each holds numbers of float32, or products of two.
        candidate_PD: vectors of candidates.
        added_P: what is added to a candidate's distance.
        true_PD: vectors of true entities.
        true_added_P: what is added to theirs.
    """
    signs = [
        _sign(_square(query, true), _square(query, candidate), Fraction(added) - Fraction(true_added))
        for query, candidate, added, true, true_added in zip(
            query_PD.tolist(),
            candidate_PD.tolist(),
            added_P.tolist(),
            true_PD.tolist(),
            true_added_P.tolist(),
            strict=True,
        )
    ]
    return np.array(signs, np.int8)


def _square(x: list[float], y: list[float]) -> Fraction:
    return sum(((Fraction(a) - Fraction(b)) ** 2 for a, b in zip(x, y, strict=True)), Fraction(0))


def _sign(first: Fraction, second: Fraction, shift: Fraction) -> int:
    """Return the sign of sqrt(first) + shift - sqrt(second)."""
    if shift < 0:
        return -_sign(second, first, -shift)
    # Both sides of sqrt(first) + shift ? sqrt(second) are squared: 2 shift sqrt(first) ? rest.
    rest = second - first - shift * shift
    if rest < 0:
        return 1
    left, right = 4 * shift * shift * first, rest * rest
    return (left > right) - (left < right)


# Pairs of rows -> sums in float64 by a compiled loop, which reads rows where they lie; sums are in any order.

PRODUCTS, SQUARES, MAGNITUDES = range(3)  # what is added up: products of columns, or of their differences


def sums_in_float64(
    x_ND: Tensor, row_P: Tensor, y_ND: Tensor, other_P: Tensor, terms: int
) -> tuple[Tensor, Tensor] | None:
    """Return the sum of the terms of pairs, and that of the terms' magnitudes.

    Args:
        x_ND: rows, of which the columns beyond those of `y` are not read.
        row_P: the row of each pair.
        y_ND: rows.
        other_P: the row of `y` of each pair.
        terms: `PRODUCTS`, `SQUARES` or `MAGNITUDES`.

    Returns:
        Two tensors of shape (P,), float64; None where the loop does not take rows, or is not worth loading.
    """
    takes = all(x.dtype is torch.float32 and are_for_loops(x) for x in (x_ND, y_ND))
    is_worth_it = _sums.is_worth_compiling(row_P.numel() * y_ND.shape[-1], JIT_MIN_NUMBERS)
    if not (takes and is_worth_it):
        return None
    sums_2P = np.empty((2, row_P.numel()), np.float64)
    _sums(x_ND.numpy(), y_ND.numpy(), row_P.contiguous().numpy(), other_P.contiguous().numpy(), terms, sums_2P)
    return torch.from_numpy(sums_2P[0]), torch.from_numpy(sums_2P[1])


def squared_lengths(x_ND: Tensor, taken_ND: Tensor | None = None) -> Tensor:
    """Return the square of each row's length, float64 (..., N), with the roundings of a sum.

    Args:
        x_ND: rows.
        taken_ND: what is taken away from them before.
    """
    rows_ND = x_ND.flatten(0, -2)
    every_N, other_ND = torch.arange(rows_ND.shape[0]), rows_ND if taken_ND is None else taken_ND.flatten(0, -2)
    found = sums_in_float64(rows_ND, every_N, other_ND, every_N, PRODUCTS if taken_ND is None else SQUARES)
    if found is not None:
        return found[0].view(x_ND.shape[:-1])
    length_N: Tensor = torch.linalg.vector_norm(
        x_ND if taken_ND is None else x_ND - taken_ND, dim=-1, dtype=torch.float64
    )
    return length_N.square()


@partial(CompiledLoop, may_reorder=True)
def _sums(x_ND, y_ND, row_P, other_P, terms, sums_2P):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    for pair in range(row_P.size):
        x_D, y_D = x_ND[row_P[pair]], y_ND[other_P[pair]]
        total, magnitude = np.float64(0), np.float64(0)
        for at in range(y_D.size):
            x, y = np.float64(x_D[at]), np.float64(y_D[at])
            term = x * y
            if terms != PRODUCTS:
                term = (x - y) * (x - y) if terms == SQUARES else abs(x - y)
            total += term
            magnitude += abs(term)
        sums_2P[0, pair], sums_2P[1, pair] = total, magnitude


# What has exact ranks: sums of products and differences of prepared rows, whose signs are exact. No bound decides
# between equal sums of many roots (complex_l1), and no standard rounds cosines (rotate).
EXACT_COMPARATORS = ("dot", "cos", "l2", "squared_l2", "l1", "clamped_dot")
EXACT_OPERATORS = (
    *("none", "diagonal", "translation", "linear", "affine", "complex_diagonal"),
    *("swapped_diagonal", "projected_translation"),
)
UNIT = 2.0**-53  # relative error of a rounding in float64
SLACK = 1.001  # for roundings of the errors


def without_exact_ranks(comparator: str, operators: Iterable[str]) -> str | None:
    """Return the comparator or the first operator that has no exact ranks, in words; None if all have them."""
    if comparator in COMPARATORS and comparator not in EXACT_COMPARATORS:
        return f"comparator {comparator!r}, only for {', '.join(EXACT_COMPARATORS)}"
    for operator in operators:
        if operator in OPERATORS and operator not in EXACT_OPERATORS:
            return f"operator {operator!r}, only for {', '.join(EXACT_OPERATORS)}"
    return None


def relative_error(num_columns: int) -> float:
    """Return how far a score of so many columns in float64 may be off, as a share of its terms' magnitudes."""
    return (num_columns + 8) * UNIT * SLACK  # 8 allow for roundings within a term


@frozen(eq=False)
class ExactComparator:
    """A comparator by its PBG name, with or without bias, in exact arithmetic on prepared float32 rows."""

    name: str
    bias: bool = False
    # How candidates were decided that a fast product left open; the lock is held by the thread that adds to it.
    tally: Counter[str] = field(factory=lambda: Counter(in_float64=0, exactly=0), init=False)
    lock: threading.Lock = field(factory=threading.Lock, init=False, repr=False)

    @property
    def adds_squares(self) -> bool:
        """Whether scores are squares of distances, or their roots."""
        return self.name in ("l2", "squared_l2")

    @property
    def adds_magnitudes(self) -> bool:
        """Whether scores are sums of magnitudes of differences."""
        return self.name == "l1"

    @property
    def clamps(self) -> bool:
        """Whether products beyond two ends tie."""
        return self.name == "clamped_dot"

    @property
    def end(self) -> float:
        """Products beyond it, or below its negative, tie; infinity: they are not clamped."""
        return CLAMP if self.clamps else math.inf

    @property
    def is_clamped_product(self) -> bool:
        """Whether scores are products or squares, clamped or not, and nothing else: what compiled loops know."""
        return not (self.has_root or self.adds_magnitudes or (self.clamps and self.bias))

    @property
    def is_product(self) -> bool:
        """Whether they are that and not clamped: what a GPU's kernels know."""
        return self.is_clamped_product and not self.clamps

    @property
    def adds_bias(self) -> bool:
        """Whether a bias is added to something else than a product, of which it would be a column."""
        return self.bias and self.name not in ("dot", "cos")

    @property
    def has_root(self) -> bool:
        """Whether a bias is added to a square root: elsewhere distances are compared as squares."""
        return self.name == "l2" and self.bias

    @property
    def keeps_candidates(self) -> bool:
        """Whether prepared candidates are their vectors, rounded."""
        return self.name != "cos" and not self.bias

    def has_pair_kernel(self, device: torch.device) -> bool:
        """Return whether a GPU's kernel scores pairs of rows on a device."""
        return device_scores.supports(device) and self.is_product

    def prepare_queries(self, x_ND: Tensor) -> Tensor:
        """Return prepared rows of transformed vectors in float64.

        Raises:
            ZeroVectorError: a row has no direction under cos.
            OverflowedError: a row has numbers beyond float32.
        """
        if not self.bias:
            return _rounded([F.pad(self._vector(x_ND), (0, 1))])
        return _rounded([self._vector(x_ND[..., 1:]), torch.ones_like(x_ND[..., :1]), x_ND[..., :1]])

    def prepare_candidates(self, x_ND: Tensor) -> Tensor:
        """Return prepared candidates (..., D') of vectors in float64, or of finite embeddings in float32."""
        if x_ND.dtype is torch.float32 and self.keeps_candidates:
            return x_ND
        return _rounded([self._vector(x_ND[..., 1:]), x_ND[..., :1]] if self.bias else [self._vector(x_ND)])

    def prepare_moved_queries(self, operator: str, parameters: Parameters, q_ND: Tensor) -> Tensor:
        """Return prepared queries that score candidates as they are as `q` scores transformed candidates."""
        moved_ND, constant_N1 = move_to_query(
            FIXED_ORDER_OPERATORS[operator], parameters, self.name, self.bias, q_ND, sum_in_order
        )
        if constant_N1 is None:
            return self.prepare_queries(moved_ND)
        columns = [moved_ND[..., 1:], moved_ND[..., :1]] if self.bias else [moved_ND]
        return _rounded([*columns, constant_N1])

    def _vector(self, x_ND: Tensor) -> Tensor:
        if self.name != "cos":
            return x_ND
        directions_ND = directions_in_order(x_ND)
        if directions_ND is not None:
            return directions_ND
        x_ND = x_ND.double()
        norm_N = norms_in_order(x_ND)
        if not holds(bool, (norm_N > 0).all()):
            refuse_zero_vectors(x_ND)
        return x_ND / norm_N.unsqueeze(-1)

    def scores_in_float64(self, query_ND: Tensor, candidate_ND: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scores of pairs of prepared rows, without the constant, and how far at most they are off.

        Rounding may depend on the hardware: code that needs the same bits everywhere uses fast_products.py.
        """
        q_ND, c_ND = query_ND[..., :-1].double(), candidate_ND.double()
        share = relative_error(c_ND.shape[-1])
        added_N = torch.zeros_like(q_ND[..., 0])
        if self.adds_bias:
            added_N = q_ND[..., -1] * c_ND[..., -1]
            q_ND, c_ND = q_ND[..., :-1], c_ND[..., :-1]
        if self.adds_squares or self.adds_magnitudes:
            apart_ND = q_ND - c_ND
            lengths_N = apart_ND.square().sum(-1) if self.adds_squares else apart_ND.abs().sum(-1)
            lengths_N = lengths_N.sqrt() if self.has_root else lengths_N
            return added_N - lengths_N, share * (lengths_N + added_N.abs())
        terms_ND = q_ND * c_ND
        score_N, error_N = terms_ND.sum(-1), share * terms_ND.abs().sum(-1)
        if self.clamps:
            score_N, error_N = _clamped(score_N, error_N)
        if not self.adds_bias:
            return score_N, error_N
        return score_N + added_N, error_N + share * (score_N.abs() + added_N.abs())

    def pair_scores_in_float64(
        self, queries: tuple[Tensor, Tensor], candidates: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Do the same for pairs of rows.

        Args:
            queries: prepared rows, and the one of each pair.
            candidates: prepared rows, and the one of each pair.
        """
        (query_KD, row_P), (candidate_CD, column_P) = queries, candidates
        pairs = query_KD, row_P, candidate_CD, column_P
        terms = SQUARES if self.adds_squares else MAGNITUDES if self.adds_magnitudes else PRODUCTS
        found = None if self.adds_bias else sums_in_float64(*pairs, terms)
        if found is None:
            return self.scores_in_float64(query_KD.index_select(0, row_P), candidate_CD.index_select(0, column_P))
        sum_P, magnitude_P = found
        error_P = relative_error(candidate_CD.shape[-1]) * magnitude_P
        if self.clamps:
            return _clamped(sum_P, error_P)
        return sum_P if terms == PRODUCTS else -sum_P, error_P

    def signs(self, query_PD: Tensor, candidate_PD: Tensor, true_PD: Tensor) -> np.ndarray:
        """Compare candidates with true entities exactly: 1 higher, 0 tied, -1 lower.

        Args:
            query_PD: prepared query of each pair.
            candidate_PD: prepared candidate of each.
            true_PD: prepared row of its true entity.
        """
        signs_P = np.zeros(candidate_PD.shape[0], np.int8)
        open_P = (candidate_PD != true_PD).any(dim=-1).nonzero().squeeze(1)  # equal rows score the same
        q_PD, c_PD, t_PD = (rows[open_P].cpu().double().numpy() for rows in (query_PD[:, :-1], candidate_PD, true_PD))
        signs_P[open_P.cpu().numpy()] = self._signs(q_PD, c_PD, t_PD)
        return signs_P

    def _signs(self, q_PD: np.ndarray, c_PD: np.ndarray, t_PD: np.ndarray) -> np.ndarray:
        """Products of two float32 numbers are exact in float64: what is left is the sign of a sum."""
        size = c_PD.shape[1] - int(self.adds_bias)
        w_P1, b_P1, u_P1 = (rows_PD[:, size:] for rows_PD in (q_PD, c_PD, t_PD))
        q_PD, c_PD, t_PD = (rows_PD[:, :size] for rows_PD in (q_PD, c_PD, t_PD))
        if self.adds_squares:
            terms = [2 * q_PD * c_PD, -c_PD * c_PD, -2 * q_PD * t_PD, t_PD * t_PD]
        elif self.adds_magnitudes:  # a magnitude is the difference times its sign, which is exact
            above_PD, true_above_PD = np.sign(q_PD - c_PD), np.sign(q_PD - t_PD)
            terms = [-above_PD * q_PD, above_PD * c_PD, true_above_PD * q_PD, -true_above_PD * t_PD]
        elif self.clamps:
            terms = [*_terms_within_ends(q_PD * c_PD), *(-x_PD for x_PD in _terms_within_ends(q_PD * t_PD))]
        else:
            terms = [q_PD * c_PD, -q_PD * t_PD]
        if not self.has_root:
            return exact_signs(np.concatenate([*terms, w_P1 * b_P1, -w_P1 * u_P1], axis=1))
        added_P, true_added_P = (w_P1 * b_P1)[:, 0], (w_P1 * u_P1)[:, 0]
        signs_P = exact_signs(np.concatenate(terms, axis=1))
        unlike_P = added_P != true_added_P  # elsewhere the squares say which root is larger
        signs_P[unlike_P] = root_signs(
            q_PD[unlike_P], c_PD[unlike_P], added_P[unlike_P], t_PD[unlike_P], true_added_P[unlike_P]
        )
        return signs_P


def _clamped(score_N: Tensor, error_N: Tensor) -> tuple[Tensor, Tensor]:
    """Clamp scores, of which those that are surely beyond an end have no error."""
    is_beyond_N = score_N.abs() - error_N > CLAMP * (1 + 2.0**-40)
    return score_N.clamp(-CLAMP, CLAMP), error_N.masked_fill(is_beyond_N, 0.0)


def _terms_within_ends(terms_PD: np.ndarray) -> list[np.ndarray]:
    """Return terms that add up to the clamped sum of the terms, exactly."""
    end_P1 = np.full((terms_PD.shape[0], 1), CLAMP)
    is_above_P = exact_signs(np.concatenate([terms_PD, -end_P1], axis=1)) > 0
    is_below_P = exact_signs(np.concatenate([terms_PD, end_P1], axis=1)) < 0
    is_within_P1 = ~(is_above_P | is_below_P)[:, None]
    return [terms_PD * is_within_P1, end_P1 * is_above_P[:, None], -end_P1 * is_below_P[:, None]]


def _rounded(blocks: list[Tensor]) -> Tensor:
    """Join column blocks and round them, once; 0.0 and -0.0 become one."""
    return check_finite(joined(blocks).float() + 0.0)
