"""Vectors in float64 -> prepared float32 rows, and the order of the exact scores that such rows have (decision 0013).

A row is prepared in float64 by operations in a fixed order and rounded to float32 once. What is certified is the order
of the exact scores of prepared rows: real numbers, which no float need hold. Columns of prepared rows:

    candidates   vector, [bias b]
    queries      vector, [weight w of the bias], constant

    dot, cos     q . c + w b
    squared_l2   -|q - c|^2 + w b
    l2           -|q - c|^2; with a bias -|q - c| + w b

The constant is added to every score of a query: it orders nothing, and only the values by which queries are compared
with each other (the pooled AUC) have it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import torch
from attrs import define, field, frozen
from torch import Tensor

from pbgeval.scoring import compiled_pairs
from pbgeval.scoring.comparators import ZeroVectorError, check_finite
from pbgeval.scoring.exact_sign import exact_signs
from pbgeval.scoring.fixed_order import norms_in_order, sum_in_order
from pbgeval.scoring.operators import FIXED_ORDER_OPERATORS, Operator, Parameters
from pbgeval.scoring.root_sign import root_signs

# What certified ranks know: sums of products of prepared rows, whose signs are exact. Ours beside PBG's are no such
# sums, or need cosines, which no standard rounds.
CERTIFIED_COMPARATORS = ("dot", "cos", "l2", "squared_l2")
CERTIFIED_OPERATORS = ("none", "diagonal", "translation", "linear", "affine", "complex_diagonal")
UNIT = 2.0**-53  # relative error of a rounding in float64


@define
class DecisionTally:
    """How candidates were decided that a fast product left open."""

    in_float64: int = 0
    exactly: int = 0
    _lock: threading.Lock = field(factory=threading.Lock, init=False, repr=False)

    def add(self, in_float64: int, exactly: int) -> None:
        with self._lock:
            self.in_float64 += in_float64
            self.exactly += exactly

    def as_dict(self) -> dict[str, int]:
        return {"in_float64": self.in_float64, "exactly": self.exactly}


@frozen(eq=False)
class CertifiedComparator:
    """A comparator by its PBG name, with or without bias, in exact arithmetic on prepared float32 rows."""

    name: str
    bias: bool = False
    tally: DecisionTally = field(factory=DecisionTally)

    @property
    def is_distance(self) -> bool:
        return self.name in ("l2", "squared_l2")

    @property
    def has_root(self) -> bool:
        """Whether a bias is added to a square root: elsewhere distances are compared as squares."""
        return self.name == "l2" and self.bias

    @staticmethod
    def query_width(dimension: int) -> int:
        """Return the number of columns of prepared queries."""
        return dimension + 1

    @staticmethod
    def candidate_width(dimension: int) -> int:
        """Return the number of columns of prepared candidates."""
        return dimension

    def prepare_queries(self, x_ND: Tensor) -> Tensor:
        """Return prepared rows of transformed vectors in float64.

        Raises:
            ZeroVectorError: a row has no direction under cos.
            OverflowedError: a row has numbers beyond float32.
        """
        constant_N1 = torch.zeros_like(x_ND[..., :1])
        if not self.bias:
            return _rounded([self._vector(x_ND), constant_N1])
        return _rounded([self._vector(x_ND[..., 1:]), torch.ones_like(constant_N1), x_ND[..., :1]])

    def prepare_candidates(self, x_ND: Tensor) -> Tensor:
        """Likewise."""
        return _rounded([self._vector(x_ND[..., 1:]), x_ND[..., :1]] if self.bias else [self._vector(x_ND)])

    def prepare_moved_queries(self, operator: str, parameters: Parameters, q_ND: Tensor) -> Tensor:
        """Return prepared queries that score candidates as they are as `q` scores transformed candidates."""
        acting = FIXED_ORDER_OPERATORS[operator]
        if self.name == "dot":
            return self._moved_under_dot(acting, parameters, q_ND)
        translation_D = acting.translation(parameters)
        if translation_D is not None:
            moved_ND = q_ND - translation_D
            if self.bias:  # column 0 is added to the score
                moved_ND[..., 0] = q_ND[..., 0] + translation_D[0]
            q_ND = moved_ND
        return self.prepare_queries(q_ND)

    def _moved_under_dot(self, acting: Operator, parameters: Parameters, q_ND: Tensor) -> Tensor:
        weight_ND = q_ND
        constant_N1: Tensor = torch.zeros_like(q_ND[..., :1])
        if self.bias:  # q[1:] . y[1:] + q[0] + y[0] = w . y + q[0] with w = (1, q[1:])
            weight_ND = torch.cat([torch.ones_like(constant_N1), q_ND[..., 1:]], dim=-1)
            constant_N1 = q_ND[..., :1]
        translation_D = acting.translation(parameters)
        if translation_D is not None:
            constant_N1 = constant_N1 + sum_in_order(weight_ND * translation_D).unsqueeze(-1)
        moved_ND = acting.adjoint(parameters, weight_ND)
        if self.bias:
            return _rounded([moved_ND[..., 1:], moved_ND[..., :1], constant_N1])
        return _rounded([moved_ND, constant_N1])

    def _vector(self, x_ND: Tensor) -> Tensor:
        if self.name != "cos":
            return x_ND
        zero_N = (x_ND == 0).all(dim=-1)
        if bool(zero_N.any()):
            raise ZeroVectorError(zero_N.flatten().nonzero().flatten().tolist())
        return x_ND / norms_in_order(x_ND).unsqueeze(-1)

    def scores_in_float64(self, query_NL: Tensor, candidate_NL: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scores of pairs of prepared rows, without the constant, and how far at most they are off.

        Rounding may depend on the hardware: who needs the same bits everywhere takes values (fast_products.py).
        """
        q_NL, c_NL = query_NL[..., :-1].double(), candidate_NL.double()
        num_terms = c_NL.shape[-1] + 8  # of which some allow for roundings within a term
        if not self.is_distance:
            terms_NL = q_NL * c_NL
            return terms_NL.sum(-1), num_terms * UNIT * 1.001 * terms_NL.abs().sum(-1)
        added_N = torch.zeros_like(q_NL[..., 0])
        if self.bias:
            added_N = q_NL[..., -1] * c_NL[..., -1]
            q_NL, c_NL = q_NL[..., :-1], c_NL[..., :-1]
        squares_N = (q_NL - c_NL).square().sum(-1)
        lengths_N = squares_N.sqrt() if self.has_root else squares_N
        scores_N = added_N - lengths_N
        return scores_N, num_terms * UNIT * 1.001 * (lengths_N + added_N.abs())

    def pair_scores_in_float64(
        self, queries: tuple[Tensor, Tensor], candidates: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Do the same for pairs of rows.

        Args:
            queries: prepared rows, and the one of each pair.
            candidates: likewise.
        """
        (query_KL, row_P), (candidate_CL, column_P) = queries, candidates
        if (self.is_distance and self.bias) or not compiled_pairs.serves(query_KL, candidate_CL, row_P.numel()):
            return self.scores_in_float64(query_KL.index_select(0, row_P), candidate_CL.index_select(0, column_P))
        sum_P, magnitude_P = compiled_pairs.sums(query_KL, row_P, candidate_CL, column_P, of_squares=self.is_distance)
        error_P = (candidate_CL.shape[-1] + 8) * UNIT * 1.001 * magnitude_P
        return -sum_P if self.is_distance else sum_P, error_P

    def signs(self, query_PL: Tensor, candidate_PL: Tensor, true_PL: Tensor) -> np.ndarray:
        """Return whether candidates score higher (1), the same (0) or lower (-1) than true entities: exactly.

        Args:
            query_PL: prepared query of each pair.
            candidate_PL: prepared candidate of each.
            true_PL: prepared row of its true entity.
        """
        signs_P = np.zeros(candidate_PL.shape[0], np.int8)
        open_P = np.flatnonzero((candidate_PL != true_PL).any(dim=-1).cpu().numpy())  # equal rows score the same
        q_PL, c_PL, t_PL = (rows.cpu().double().numpy()[open_P] for rows in (query_PL[:, :-1], candidate_PL, true_PL))
        signs_P[open_P] = self._signs(q_PL, c_PL, t_PL)
        return signs_P

    def _signs(self, q_PL: np.ndarray, c_PL: np.ndarray, t_PL: np.ndarray) -> np.ndarray:
        """Products of two float32 numbers are exact in float64: what is left is the sign of a sum."""
        if not self.is_distance:
            return exact_signs(np.concatenate([q_PL * c_PL, -q_PL * t_PL], axis=1))
        size = c_PL.shape[1] - int(self.bias)
        w_P1, b_P1, u_P1 = (rows_PL[:, size:] for rows_PL in (q_PL, c_PL, t_PL))
        q_PL, c_PL, t_PL = (rows_PL[:, :size] for rows_PL in (q_PL, c_PL, t_PL))
        terms = [2 * q_PL * c_PL, -c_PL * c_PL, -2 * q_PL * t_PL, t_PL * t_PL]
        if not self.has_root:
            return exact_signs(np.concatenate([*terms, w_P1 * b_P1, -w_P1 * u_P1], axis=1))
        added_P, true_added_P = (w_P1 * b_P1)[:, 0], (w_P1 * u_P1)[:, 0]
        signs_P = exact_signs(np.concatenate(terms, axis=1))
        unlike_P = added_P != true_added_P  # elsewhere the squares say which root is larger
        signs_P[unlike_P] = root_signs(
            q_PL[unlike_P], c_PL[unlike_P], added_P[unlike_P], t_PL[unlike_P], true_added_P[unlike_P]
        )
        return signs_P


def _rounded(blocks: Sequence[Tensor]) -> Tensor:
    """Join column blocks and round them, once; 0.0 and -0.0 become one."""
    joined_NL = blocks[0] if len(blocks) == 1 else torch.cat(list(blocks), dim=-1)
    rows_NL = joined_NL.float() + 0.0
    return check_finite(rows_NL)
