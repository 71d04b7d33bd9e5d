"""Ranked lists of entity types and the true ones of each query -> NDCG with the gains of a hierarchy.

What the published code leaves open is settled here: the root says nothing, so it gains nothing and is not a true type;
a type that the hierarchy does not have gains nothing and keeps its place; a repeated type counts where it comes first;
a query without a list has an empty one, which is worth 0; one without a true type in the hierarchy has no NDCG.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from pbgeval.metrics.ndcg import Discount, Ndcg, ideal_dcg, ndcg_of_lists
from pbgeval.taxonomy import RelatedTypes, Taxonomy, TypeGain

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
