"""Graded gains by position -> discounted cumulative gain, and its share of the best possible one (NDCG).

Gains are what an item is worth; a query's list is complete (gains and scores of all candidates) or its top only, with
the best possible gain computed apart (`ndcg_of_lists`), so that it streams. Queries without anything to gain have no
NDCG: they are counted, and left out of the mean.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import Enum

import numpy as np
import torch
from attrs import field, frozen
from numpy.typing import NDArray
from torch import Tensor

from pbgeval.metrics.registry import NDCG_FAMILIES
from pbgeval.metrics.taxonomy import RelatedTypes, Taxonomy, TypeGain
from pbgeval.stats.groups import TypeStats
from pbgeval.stats.ranks import Array

# Arrays of numpy or torch -> torch tensors to compute with, and back to the library they came in.


def as_tensor(values: Tensor | np.ndarray) -> Tensor:
    """Return the values as a tensor on the device where they are; a numpy array is copied, so it may be read-only."""
    return values.detach() if isinstance(values, Tensor) else torch.from_numpy(np.array(values, order="C"))


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


# Levels of tied candidates with their gains, and how many candidates have which gain -> NDCG of each query.
#
# Every operation is one of IEEE, in an order that does not depend on how many queries there are, so a query has the
# same
# bits wherever it is computed.

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


def ndcg_of_levels(
    count_Qk: Integers,
    gain_Qk: Integers,
    ideal_QH: Integers,
    gain_H: Integers,
    cutoffs: Sequence[int],
    discount: Discount,
) -> Floats:
    """Return NDCG at each cut-off, the mean over all orders of tied candidates, float64 (Q, cutoffs).

    In [0, 1]; NaN where there is nothing to gain. Source: `metrics.ndcg.dcg`.

    Args:
        count_Qk: candidates of each level, best first, 0 beyond the last.
        gain_Qk: sums of their gains, in the unit of `gain_H`.
        ideal_QH: candidates of each gain.
        gain_H: descending, none negative.
        cutoffs: each from 1; levels hold at least as many candidates as the greatest, or all there are.
        discount: of positions.
    """
    weights = _weights(max(cutoffs, default=1), discount)
    mean_Qk = gain_Qk / np.maximum(count_Qk, 1)
    found_QK = _discounted(count_Qk, mean_Qk, weights, cutoffs)
    ideal_QK = _discounted(ideal_QH, np.broadcast_to(gain_H.astype(np.float64), ideal_QH.shape), weights, cutoffs)
    shares_QK = np.minimum(found_QK / np.where(ideal_QK > 0, ideal_QK, 1.0), 1.0)  # rounding alone could pass 1
    return np.where(ideal_QK > 0, shares_QK, np.nan)


def _weights(most: int, discount: Discount) -> Floats:
    """Return the sums of 1 / discount over positions 1..p for p = 0..most."""
    positions = range(1, most + 1)
    terms = [1.0 / math.log2(p + 1 if discount is Discount.STANDARD else max(p, 2)) for p in positions]
    return np.array([math.fsum(terms[:number]) for number in range(most + 1)])


def _discounted(count_Qn: Integers, mean_Qn: Floats, weights: Floats, cutoffs: Sequence[int]) -> Floats:
    """Return the sums of mean gains over the positions that candidates fill, one group after the other."""
    total_QK = np.zeros((len(count_Qn), len(cutoffs)))
    cutoff_K = np.array(cutoffs, np.int64)
    before_Q = np.zeros(len(count_Qn), np.int64)
    for column in range(count_Qn.shape[1]):
        after_Q = before_Q + count_Qn[:, column]
        filled_QK = weights[np.minimum(after_Q[:, None], cutoff_K)] - weights[np.minimum(before_Q[:, None], cutoff_K)]
        total_QK += mean_Qn[:, column, None] * filled_QK
        before_Q = after_Q
    return total_QK


# Statistics of queries for types -> NDCG by the names of the registry.

VARIANTS = tuple((gain, discount) for gain in TypeGain for discount in (Discount.JK, Discount.STANDARD))


def num_values(cutoffs: Sequence[int]) -> int:
    """Return how many values a query has."""
    return len(VARIANTS) * len(cutoffs)


def type_values(
    count_Qk: np.ndarray, gain_QkG: np.ndarray, ideal_QH: np.ndarray, gain_HG: np.ndarray, cutoffs: Sequence[int]
) -> np.ndarray:
    """Return every NDCG of queries, float64 (Q, `num_values`); all NaN where there is nothing to gain.

    Args:
        count_Qk: candidates of each level.
        gain_QkG: sums of their gains, of each kind in the order of `TypeGain`.
        ideal_QH: how many candidates have the gain of each distance.
        gain_HG: gain at each distance.
        cutoffs: k of NDCG@k.
    """
    kinds = list(TypeGain)
    parts = []
    for gain, discount in VARIANTS:
        kind = kinds.index(gain)
        values_QK = ndcg_of_levels(count_Qk, gain_QkG[:, :, kind], ideal_QH, gain_HG[:, kind], cutoffs, discount)
        parts.append(values_QK)
    return np.concatenate(parts, axis=1)


def type_metrics(stats: TypeStats, cutoffs: Sequence[int], relation: int | None = None) -> dict[str, float | None]:
    """Return the mean NDCG of the queries of a relation, or of all: `ndcg_jk_at_10` and its like."""
    keys = [f"{family.prefix}{cutoff}" for family in NDCG_FAMILIES for cutoff in cutoffs]
    return dict(zip(keys, stats.means(relation), strict=True))


# Ranked lists of entity types and the true ones of each query -> NDCG with the gains of a hierarchy.
#
# What the published code leaves open is settled here: the root says nothing, so it gains nothing and is not a true
# type;
# a type that the hierarchy does not have gains nothing and keeps its place; a repeated type counts where it comes
# first;
# a query without a list has an empty one, which is worth 0; one without a true type in the hierarchy has no NDCG.

DEFAULT_CUTOFFS = (1, 3, 5, 10)


@frozen
class TypeProtocol:
    """What a place in a list is worth."""

    gain: TypeGain = field(default=TypeGain.LINEAR, converter=TypeGain)
    discount: Discount = field(default=Discount.JK, converter=Discount)
    base: float = 2.0  # of the exponential gain
    as_published: bool = False  # the root gains by its distance, repeated types each time: the value can pass 1


@frozen(eq=False)
class TypeNdcg:
    """NDCG of lists of types."""

    queries: tuple[str, ...]
    of_cutoff: Mapping[int, Ndcg]
    counts: Mapping[str, int]  # of what a reader must know

    def mean(self, cutoff: int) -> float | None:
        """The mean over queries that have an NDCG; None if none has."""
        return self.of_cutoff[cutoff].mean


def evaluate_types(
    taxonomy: Taxonomy,
    truth: Mapping[str, Sequence[str]],
    ranking: Mapping[str, Sequence[str]],
    cutoffs: Sequence[int] = DEFAULT_CUTOFFS,
    protocol: TypeProtocol | None = None,
) -> TypeNdcg:
    """Judge lists of types.

    Args:
        taxonomy: of the types.
        truth: true types of each query.
        ranking: types of each query, best first.
        cutoffs: the k of NDCG@k, each from 1; a list may be shorter.
        protocol: default: linear gain, discount jk.

    Returns:
        A value for each query of `truth`, in its order, and these counts: `num_queries`; `num_undefined` without a
        true type in the hierarchy; `num_missing`, which `ranking` lacks; `num_unasked`, which only `ranking` has;
        `num_unknown_true_types` and `num_unknown_listed_types`, which are not in the hierarchy; `num_roots_listed`;
        `num_repeated_types`, those beyond the first of each list; `num_on_one_branch`, queries whose true types are
        not all on branches of their own.

    Raises:
        ValueError: a cutoff below 1, or a base of at most 1.
    """
    protocol = protocol or TypeProtocol()
    width = max(cutoffs, default=1)
    judge = _Judge(taxonomy, protocol, width)
    lists = [judge.judge(true, ranking.get(query)) for query, true in truth.items()]
    judge.counts["num_unasked"] = len(ranking.keys() - truth.keys())
    gains_QK, ideal_QK = (np.array([pair[at] for pair in lists]).reshape(-1, width) for at in (0, 1))
    of_cutoff = {}
    for cutoff in cutoffs:
        best_Q = ideal_dcg(ideal_QK, cutoff, protocol.discount)
        of_cutoff[cutoff] = ndcg_of_lists(gains_QK, best_Q, cutoff, protocol.discount)
    return TypeNdcg(tuple(truth), of_cutoff, {name: judge.counts[name] for name in COUNTS})


COUNTS = (
    "num_queries",
    "num_undefined",
    "num_missing",
    "num_unasked",
    "num_unknown_true_types",
    "num_unknown_listed_types",
    "num_roots_listed",
    "num_repeated_types",
    "num_on_one_branch",
)


@frozen(eq=False)
class _Judge:
    """Lists of one hierarchy, under one protocol."""

    taxonomy: Taxonomy
    protocol: TypeProtocol
    width: int  # places of a list that count
    counts: Counter[str] = field(factory=Counter, init=False)
    _related: dict[tuple[int, ...], RelatedTypes] = field(factory=dict, init=False)

    def judge(
        self, true: Sequence[str], listed: Sequence[str] | None
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the gains of a list's places, and those of the ideal list."""
        self.counts["num_queries"] += 1
        self.counts["num_missing"] += listed is None
        found = [self.taxonomy.find(name) for name in dict.fromkeys(true) if name != self.taxonomy.root]
        known = tuple(sorted(type_ for type_ in found if type_ is not None))
        self.counts["num_unknown_true_types"] += len(found) - len(known)
        self.counts["num_undefined"] += not known
        self.counts["num_on_one_branch"] += self.taxonomy.share_a_branch(known)
        related = self._related_to(known)
        ideal_K = self._padded(np.sort(self._gains(related.distance_n))[::-1])
        names = self._counted(listed or ())[: self.width]
        return self._padded(np.array([self._gain(name, related) for name in names])), ideal_K

    def _related_to(self, known: tuple[int, ...]) -> RelatedTypes:
        if known not in self._related:
            self._related[known] = self.taxonomy.related(known)
        return self._related[known]

    def _counted(self, listed: Sequence[str]) -> list[str]:
        """Return the names that have a place, and count what is odd among all."""
        once = list(dict.fromkeys(listed))
        self.counts["num_repeated_types"] += len(listed) - len(once)
        self.counts["num_roots_listed"] += self.taxonomy.root in once
        unknown = [name for name in once if self.taxonomy.find(name) is None and name != self.taxonomy.root]
        self.counts["num_unknown_listed_types"] += len(unknown)
        return list(listed) if self.protocol.as_published else once

    def _gain(self, name: str, related: RelatedTypes) -> float:
        type_ = self.taxonomy.find(name)
        if type_ is None:
            return self._gain_of_root(related) if name == self.taxonomy.root else 0.0
        at = int(np.searchsorted(related.type_n, type_))
        if at == len(related.type_n) or related.type_n[at] != type_:
            return 0.0
        return float(self._gains(related.distance_n[at : at + 1])[0])

    def _gain_of_root(self, related: RelatedTypes) -> float:
        depths = self.taxonomy.depth_T[related.type_n[related.distance_n == 0]]  # of the true types
        if not self.protocol.as_published or not depths.size:
            return 0.0
        return float(self._gains(depths.min(keepdims=True))[0])

    def _gains(self, distance_n: NDArray[np.int64]) -> NDArray[np.float64]:
        return self.taxonomy.gains(distance_n, self.protocol.gain, self.protocol.base)

    def _padded(self, gains_n: NDArray[np.float64]) -> NDArray[np.float64]:
        padded_K = np.zeros(self.width)
        padded_K[: min(len(gains_n), self.width)] = gains_n[: self.width]
        return padded_K
