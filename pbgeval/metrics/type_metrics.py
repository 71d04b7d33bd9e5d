"""Statistics of queries for types -> NDCG by the names of the registry."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pbgeval.metrics.level_ndcg import ndcg_of_levels
from pbgeval.metrics.ndcg import Discount
from pbgeval.metrics.registry import NDCG_FAMILIES
from pbgeval.stats.type_stats import TypeStats
from pbgeval.taxonomy import TypeGain

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
