"""Ranked lists of entity types and the true ones of each query -> NDCG with the gains of a hierarchy.

What the published code leaves open is settled here: the root says nothing, so it gains nothing and is not a true
type; a type that the hierarchy does not have gains nothing and keeps its place; a repeated type counts where it comes
first; a query without a list has an empty one, which is worth 0; one without a true type in the hierarchy has no
NDCG, is counted, and is left out of the mean.
Source: Jaervelin and Kekaelaeinen, "Cumulated gain-based evaluation of IR techniques" (ACM TOIS, 2002).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import Enum

import numpy as np
import torch
from attrs import field, frozen

from pbgeval.metrics.taxonomy import Taxonomy, TypeGain
from pbgeval.notation import Floats


class Discount(Enum):
    """The divisor of the gain at position p = 1, 2, ..."""

    STANDARD = "standard"  # log2(p + 1); scikit-learn, torchmetrics, trec_eval
    JK = "jk"  # 1 for p = 1, else log2(p): Jaervelin and Kekaelaeinen (2002) with b = 2; positions 1 and 2 count alike


DEFAULT_CUTOFFS = (1, 3, 5, 10)


@frozen
class TypeProtocol:
    """How to value a place in a list."""

    gain: TypeGain = field(default=TypeGain.LINEAR, converter=TypeGain)
    discount: Discount = field(default=Discount.JK, converter=Discount)
    base: float = 2.0  # of the exponential gain
    as_published: bool = False  # the root gains by its distance, repeated types each time: the value can pass 1


@frozen(eq=False)
class TypeNdcg:
    """NDCG of lists of types."""

    queries: tuple[str, ...]
    of_cutoff: Mapping[int, list[float | None]]  # of each query; None: nothing to gain
    counts: Mapping[str, int]  # of what a reader must know

    def mean(self, cutoff: int) -> float | None:
        """Return the mean over queries that have an NDCG, rounded once; None if none has."""
        defined = [value for value in self.of_cutoff[cutoff] if value is not None]
        return math.fsum(defined) / len(defined) if defined else None


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
    if min(cutoffs, default=1) < 1:
        raise ValueError(f"cutoffs: expected numbers from 1, got {min(cutoffs)}")
    protocol = protocol or TypeProtocol()
    width = max(cutoffs, default=1)
    counts: Counter[str] = Counter()
    lists = [_judge(taxonomy, protocol, width, true, ranking.get(query), counts) for query, true in truth.items()]
    counts["num_unasked"] = len(ranking.keys() - truth.keys())
    gains_QK, ideal_QK = (np.array([pair[at] for pair in lists]).reshape(-1, width) for at in (0, 1))
    of_cutoff = {}
    for cutoff in cutoffs:
        place_K = torch.arange(1, cutoff + 1, dtype=torch.float64)
        divisor_K = torch.log2(place_K + 1.0 if protocol.discount is Discount.STANDARD else place_K.clamp(min=2.0))
        dcg, ideal = (
            (torch.from_numpy(of_QK[:, :cutoff]) / divisor_K).sum(1).tolist() for of_QK in (gains_QK, ideal_QK)
        )
        of_cutoff[cutoff] = [found / best if best > 0 else None for found, best in zip(dcg, ideal, strict=True)]
    return TypeNdcg(tuple(truth), of_cutoff, {name: counts[name] for name in COUNTS})


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


def _judge(
    taxonomy: Taxonomy,
    protocol: TypeProtocol,
    width: int,
    true: Sequence[str],
    listed: Sequence[str] | None,
    counts: Counter[str],
) -> tuple[Floats, Floats]:
    """Return the gains of the first places of a list, and those of the ideal one; count what is odd in it."""
    names = list(listed or ())
    root = taxonomy.root
    once = list(dict.fromkeys(names))
    found = [taxonomy.find(name) for name in dict.fromkeys(true) if name != root]
    known = tuple(sorted(type_ for type_ in found if type_ is not None))
    counts.update(
        num_queries=1,
        num_missing=int(listed is None),
        num_unknown_true_types=len(found) - len(known),
        num_undefined=int(not known),
        num_on_one_branch=int(taxonomy.share_a_branch(known)),
        num_repeated_types=len(names) - len(once),
        num_roots_listed=int(root in once),
        num_unknown_listed_types=sum(taxonomy.find(name) is None and name != root for name in once),
    )
    related_n, distance_n = taxonomy.related(known)

    def gain(name: str) -> float:
        distance_1 = distance_n[related_n == taxonomy.find(name)]
        if name == root and protocol.as_published:  # by its distance of the nearest true type
            distance_1 = np.sort(taxonomy.depth_N[related_n[distance_n == 0]])[:1]
        return float(taxonomy.gains(distance_1, protocol.gain, protocol.base).sum())

    places = (names if protocol.as_published else once)[:width]
    ideal = np.sort(taxonomy.gains(distance_n, protocol.gain, protocol.base))[::-1][:width]
    gains_K, ideal_K = np.zeros(width), np.zeros(width)
    gains_K[: len(places)], ideal_K[: len(ideal)] = [gain(name) for name in places], ideal
    return gains_K, ideal_K
