"""Labels and scores -> weights of positives and negatives at each distinct score, from the highest down.

All metrics of binary classification follow from them, and ties are no case of their own: what scores alike falls on
the same side of any threshold. Names end in N for scores as they come, in T for distinct scores.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

Values = Tensor | np.ndarray | Sequence[float] | Sequence[int] | Sequence[bool]


@frozen(eq=False)
class LabelledScores:
    """Checked input, in the order it came."""

    is_positive_N: np.ndarray  # bool
    scores_N: np.ndarray  # no NaN
    weights_N: np.ndarray | None  # float64, finite, at least 0; None: all 1

    @classmethod
    def of(cls, y_true: Values, scores: Values, weights: Values | None = None) -> LabelledScores:
        """Check arrays (N,) of one length.

        Raises:
            ValueError: lengths differ, a label is not 0 or 1, a score is NaN, a weight is negative or not finite.
        """
        labels_N, scores_N = _array(y_true), _array(scores)
        weights_N = None if weights is None else _array(weights).astype(np.float64)
        for name, of in (("y_true", labels_N), ("scores", scores_N), ("weights", weights_N)):
            if of is not None and of.shape != (labels_N.size,):
                raise ValueError(f"{name}: expected {labels_N.size} values, one per score, got shape {of.shape}")
        _refuse("y_true", labels_N, (labels_N != 0) & (labels_N != 1), "0 or 1")
        _refuse("scores", scores_N, scores_N != scores_N, "a number")
        if weights_N is not None:
            _refuse("weights", weights_N, ~(np.isfinite(weights_N) & (weights_N >= 0)), "finite and at least 0")
            with np.errstate(over="ignore"):  # refused in words
                total = weights_N.sum()
            if not np.isfinite(total):
                raise ValueError("weights: their sum is not a finite number; divide them all by the largest")
        return cls(labels_N.astype(np.bool_), scores_N, weights_N)

    @property
    def num_scores(self) -> int:
        return len(self.scores_N)

    def by_threshold(self) -> ScoreGroups:
        """Return the weights at each distinct score; what weighs nothing is left out."""
        ordered = self.in_order()
        one_N = np.ones(ordered.num_scores, np.int64) if ordered.weights_N is None else ordered.weights_N
        starts_T = ordered.starts_of_ties()
        parts = one_N * ordered.is_positive_N, one_N * ~ordered.is_positive_N
        positive_T, negative_T = (np.add.reduceat(part, starts_T) if len(part) else part for part in parts)
        return ScoreGroups(ordered.scores_N[starts_T], positive_T, negative_T)

    def in_order(self) -> LabelledScores:
        """Return those that weigh anything by decreasing score; equal ones stand next to each other."""
        order_N = np.argsort(self.scores_N, kind="stable")[::-1]
        if self.weights_N is None:
            return LabelledScores(self.is_positive_N[order_N], self.scores_N[order_N], None)
        order_N = order_N[self.weights_N[order_N] > 0]
        return LabelledScores(self.is_positive_N[order_N], self.scores_N[order_N], self.weights_N[order_N])

    def starts_of_ties(self) -> np.ndarray:
        """Return where each distinct score begins, scores being in order."""
        scores_N = self.scores_N
        return np.flatnonzero(np.append(True, scores_N[1:] != scores_N[:-1])[: len(scores_N)])


@frozen(eq=False)
class ScoreGroups:
    """Weights by distinct score, scores decreasing; int64 where there are no weights, so that sums are exact."""

    scores_T: np.ndarray
    positive_T: np.ndarray
    negative_T: np.ndarray

    @property
    def has_both_classes(self) -> bool:
        return bool(self.positive_T.any() and self.negative_T.any())


def _array(values: Values) -> np.ndarray:
    if isinstance(values, Tensor):
        values = values.detach().cpu()  # numpy has no bfloat16
        return (values.double() if values.dtype in (torch.bfloat16, torch.float16) else values).numpy()
    return np.asarray(values)


def _refuse(name: str, values_N: np.ndarray, is_wrong_N: np.ndarray, expected: str) -> None:
    if bool(is_wrong_N.any()):
        row = int(np.argmax(is_wrong_N))
        raise ValueError(f"{name}, row {row}: expected {expected}, got {values_N[row]}")
