"""Counts of a pool that is not kept: any order and any cut gives the figures of all its scores."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pbgeval.metrics.auc import AucSample, pooled_auc, pooled_classification, pooled_hits
from pbgeval.metrics.classification import classification_metrics
from pbgeval.stats.groups import ScorePool, sortable_int32
from pbgeval.stats.pooled_counts import PooledCounts

VALUES = st.sampled_from([-np.inf, -2.5, -1.0, -0.0, 0.0, 0.5, 1.0, 1.5, 3.0, np.inf]) | st.floats(-4, 4, width=32)
SCORES = st.lists(VALUES, max_size=30)


def images(scores) -> np.ndarray:
    return np.sort(sortable_int32(torch.tensor(scores, dtype=torch.float32)))


def counted(true, parts, others=()) -> PooledCounts:
    """Count parts one by one in two sums, as two workers do; `others` are true scores of other queries."""
    every = np.concatenate([images(true), images(others)])
    sums = [PooledCounts.zero(np.unique(every), len(every)) for _ in range(2)]
    for number, part in enumerate(parts):
        sums[number % 2] = sums[number % 2].plus(images(part))
    first, second = (PooledCounts.unpack(iter(of.pack())) for of in sums)
    return second + first


@given(SCORES, st.lists(SCORES, max_size=5), SCORES)
def test_figures_of_counts_are_those_of_all_scores(true, parts, others):
    competing = [score for part in parts for score in part]
    pool = ScorePool([images(true)], [images(competing)]).sort()
    found = counted(true, parts, others)

    assert found.num_competing == len(competing)
    expected, _ = pooled_classification(pool, AucSample(True, True))
    if true and competing:
        of_counts = classification_metrics(*found.by_score(images(true)), len(true) + len(competing))
        sums_of_any_order = {
            name: None if value is None else pytest.approx(value, rel=1e-13) for name, value in expected.items()
        }
        assert of_counts == sums_of_any_order
        auc = pooled_auc([pool], all_true=True, all_competing=True)
        assert found.doubled_wins(images(true)) / (2 * len(true) * len(competing)) == auc.value
    for k in (1, 2, 10, 40):
        above = pooled_hits(pool, [k])[f"pooled_hits_at_{k}"]
        assert (found.num_above(images(true), k) / len(true) if true else None) == above
