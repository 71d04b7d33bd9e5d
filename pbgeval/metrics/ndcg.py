"""Graded gains by position -> discounted cumulative gain, and its share of the best possible one (NDCG).

Gains are what an item is worth; a query's list is complete (gains and scores of all candidates) or its top only, with
the best possible gain computed apart (`ndcg_of_lists`), so that it streams. Queries without anything to gain have no
NDCG: they are counted, and left out of the mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum

import torch
from attrs import frozen
from torch import Tensor

from pbgeval.metrics.arrays import as_tensor
from pbgeval.ranking import Array


class Discount(Enum):
    """What the gain at position p = 1, 2, ... is divided by."""

    STANDARD = "standard"  # log2(p + 1); scikit-learn, torchmetrics, trec_eval
    JK = "jk"  # 1 for p = 1, else log2(p): Jaervelin and Kekaelaeinen (2002) with b = 2; positions 1 and 2 count alike


class Gain(Enum):
    """What a grade of relevance g is worth."""

    LINEAR = "linear"  # g; Jaervelin and Kekaelaeinen (2002)
    EXPONENTIAL = "exponential"  # 2^g - 1; Burges et al. (2005)


class TieOrder(Enum):
    """Where candidates of one score stand."""

    MEAN = "mean"  # the mean over all their orders: McSherry and Najork (2008), as in scikit-learn
    GIVEN = "given"  # in the order of the columns


@frozen(eq=False)
class Ndcg:
    """NDCG of each query."""

    values_Q: Tensor  # float64 in [0, 1], higher is better; NaN where there is nothing to gain

    @property
    def num_undefined(self) -> int:
        """Queries without anything to gain."""
        return int(torch.isnan(self.values_Q).sum())

    @property
    def mean(self) -> float | None:
        """The mean over queries that have one, rounded once, whatever their order; None if none has."""
        defined = self.values_Q[~torch.isnan(self.values_Q)].tolist()
        return math.fsum(defined) / len(defined) if defined else None

    def values(self) -> list[float | None]:
        """Return the value of each query, None where there is nothing to gain."""
        return [None if math.isnan(value) else value for value in self.values_Q.tolist()]

    @classmethod
    def concatenate(cls, parts: Sequence[Ndcg]) -> Ndcg:
        """Join disjoint sets of queries."""
        return cls(torch.cat([torch.empty(0, dtype=torch.float64), *(part.values_Q.cpu() for part in parts)]))


def gains(relevance: Array, gain: Gain | str = Gain.LINEAR) -> Array:
    """Return what grades of relevance are worth, float64 of the same shape and library.

    Raises:
        ValueError: a grade is negative or not finite, or its gain is too large for float64.
    """
    found = _gains(as_tensor(relevance), Gain(gain))
    return found if isinstance(relevance, Tensor) else found.numpy()


def dcg(gains_QK: Array, k: int | None = None, discount: Discount | str = Discount.STANDARD) -> Array:
    """Return the discounted cumulative gain of lists: sum over positions p <= k of gain_p / discount(p).

    [0, inf), higher is better. Source: Jaervelin and Kekaelaeinen, "Cumulated gain-based evaluation of IR techniques"
    (ACM TOIS, 2002).

    Args:
        gains_QK: gains in the order of the list, best position first; lists shorter than others end in zeros.
        k: the positions that count; None: all. A list may be shorter.
        discount: see `Discount`.

    Returns:
        float64 (Q,), of the library that the gains came in.

    Raises:
        ValueError: k is less than 1; a gain is negative or not finite, or their sum is too large for float64.
    """
    found = _dcg(_gains(as_tensor(gains_QK), Gain.LINEAR), k, Discount(discount))
    return found if isinstance(gains_QK, Tensor) else found.numpy()


def ideal_dcg(gains_QC: Array, k: int | None = None, discount: Discount | str = Discount.STANDARD) -> Array:
    """Return the greatest DCG that any order of the candidates has: that of decreasing gain.

    Args:
        gains_QC: gains of all candidates that have any, in any order, with zeros beside them.
        k: as `dcg`.
        discount: as `dcg`.

    Returns:
        float64 (Q,), of the library that the gains came in; 0 where there is nothing to gain.

    Raises:
        ValueError: as `dcg`.
    """
    found = _ideal_dcg(_gains(as_tensor(gains_QC), Gain.LINEAR), k, Discount(discount))
    return found if isinstance(gains_QC, Tensor) else found.numpy()


def ndcg_of_lists(
    gains_QK: Array, ideal_dcg_Q: Array, k: int | None = None, discount: Discount | str = Discount.STANDARD
) -> Ndcg:
    """Return the NDCG of lists whose best possible gain is known: all that a stream of queries has to keep.

    Args:
        gains_QK: gains in the order of the list, best position first; lists shorter than others end in zeros.
        ideal_dcg_Q: `ideal_dcg` of all candidates at the same k and discount. The value passes 1 where a list has
            gains that the ideal does not, say those of one item listed twice.
        k: as `dcg`.
        discount: as `dcg`.

    Raises:
        ValueError: as `dcg`; an ideal that is negative or not finite.
    """
    best_Q = as_tensor(ideal_dcg_Q).double()
    found_Q = _dcg(_gains(as_tensor(gains_QK), Gain.LINEAR), k, Discount(discount))
    if best_Q.shape != found_Q.shape:
        raise ValueError(f"ideal_dcg: expected {len(found_Q)} values, one per list, got shape {tuple(best_Q.shape)}")
    if bool((~torch.isfinite(best_Q) | (best_Q < 0)).any()):
        raise ValueError("ideal_dcg: expected values that are finite and at least 0")
    return Ndcg(torch.where(best_Q > 0, found_Q / best_Q, math.nan))


def ndcg(
    relevance_QC: Array,
    scores_QC: Array,
    k: int | None = None,
    *,
    discount: Discount | str = Discount.STANDARD,
    gain: Gain | str = Gain.LINEAR,
    ties: TieOrder | str = TieOrder.MEAN,
) -> Ndcg:
    """Return DCG / ideal DCG of each query's candidates in the order of their scores.

    [0, 1], higher is better. Sources: `dcg`, and `TieOrder` for ties.

    Args:
        relevance_QC: grades of all candidates, at least 0.
        scores_QC: their scores, higher is better; +-inf compare as numbers.
        k: the positions that count; None: all. The ideal is cut at k too.
        discount: see `Discount`.
        gain: see `Gain`.
        ties: see `TieOrder`.

    Raises:
        ValueError: shapes differ, a score is NaN, k is less than 1, or grades as `gains`.
    """
    gains_QC, unsorted_QC = _gains(as_tensor(relevance_QC), Gain(gain)), as_tensor(scores_QC)
    if gains_QC.shape != unsorted_QC.shape or gains_QC.ndim != 2:
        shapes = f"{tuple(gains_QC.shape)} and {tuple(unsorted_QC.shape)}"
        raise ValueError(f"relevance and scores: expected two arrays (queries, candidates) of one shape, got {shapes}")
    undefined_Q = (unsorted_QC != unsorted_QC).any(1)
    if bool(undefined_Q.any()):
        raise ValueError(f"row {int(undefined_Q.nonzero()[0])}: a score is NaN, which cannot be ranked")
    sorted_QC, order_QC = torch.sort(unsorted_QC + 0, dim=1, descending=True, stable=True)  # + 0: one zero, not two
    listed_QC = gains_QC.gather(1, order_QC)
    if TieOrder(ties) is TieOrder.MEAN:
        listed_QC = _mean_of_ties(listed_QC, sorted_QC)
    ideal_Q = _ideal_dcg(gains_QC, k, Discount(discount))
    shares_Q = (_dcg(listed_QC, k, Discount(discount)) / ideal_Q).clamp(max=1.0)  # rounding alone could pass 1
    return Ndcg(torch.where(ideal_Q > 0, shares_Q, math.nan))


def _mean_of_ties(gains_QC: Tensor, scores_QC: Tensor) -> Tensor:
    """Give each candidate the mean gain of those of its score: each position's expectation over their orders."""
    is_first_QC = torch.ones_like(scores_QC, dtype=torch.bool)
    is_first_QC[:, 1:] = scores_QC[:, 1:] != scores_QC[:, :-1]
    tie_QC = (torch.cumsum(is_first_QC.reshape(-1), 0) - 1).reshape(gains_QC.shape)  # numbered through all queries
    tie, of_gain = tie_QC.reshape(-1), gains_QC.reshape(-1)
    num_ties = int(is_first_QC.sum())
    sizes = torch.zeros(num_ties, dtype=torch.float64, device=tie.device).index_add_(0, tie, torch.ones_like(of_gain))
    # Divided before they are summed, so that equal gains keep their value within rounding, and none overflows.
    means = torch.zeros_like(sizes).index_add_(0, tie, of_gain / sizes[tie])
    return means[tie_QC]


def _gains(relevance: Tensor, gain: Gain) -> Tensor:
    grades = relevance.double()
    if bool((~torch.isfinite(grades) | (grades < 0)).any()):
        raise ValueError("relevance: expected grades that are finite and at least 0")
    if gain is Gain.LINEAR:
        return grades
    found = torch.exp2(grades) - 1.0
    if bool(torch.isinf(found).any()):
        raise ValueError("relevance: 2^grade - 1 is too large for float64; use linear gains")
    return found


def _dcg(gains_QK: Tensor, k: int | None, discount: Discount) -> Tensor:
    if gains_QK.ndim != 2:
        raise ValueError(f"gains: expected an array (queries, positions), got {gains_QK.ndim} axes")
    if k is not None and k < 1:
        raise ValueError(f"k: expected at least 1, got {k}")
    counted_QK = gains_QK[:, :k]
    position_K = torch.arange(1, counted_QK.shape[1] + 1, dtype=torch.float64, device=gains_QK.device)
    divisor_K = torch.log2(position_K + 1.0 if discount is Discount.STANDARD else position_K.clamp(min=2.0))
    found_Q = (counted_QK / divisor_K).sum(1)
    if bool(torch.isinf(found_Q).any()):
        raise ValueError("gains: their sum is too large for float64; divide them all by the largest")
    return found_Q


def _ideal_dcg(gains_QC: Tensor, k: int | None, discount: Discount) -> Tensor:
    return _dcg(torch.sort(gains_QC, dim=-1, descending=True).values, k, discount)
