"""A classifier's metrics of pools against those of arrays."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from pbgeval.metrics.auc import AucSample, pooled_classification, pooled_hits
from pbgeval.metrics.classification import classification_metrics
from pbgeval.stats.groups import ScorePool, SortedPool, sortable_int32
from tests.unit.test_metrics_classification import groups_of

SCORES = st.lists(st.sampled_from([-np.inf, -2.5, -0.0, 0.0, 1.0, 1.5, np.inf]), max_size=30)


def pool_of(true, competing) -> SortedPool:
    images = (sortable_int32(torch.tensor(scores, dtype=torch.float32)) for scores in (true, competing))
    return ScorePool(*([image] for image in images)).sort()


def of_whole(true, competing):
    return pooled_classification(pool_of(true, competing), AucSample(True, True))


@given(SCORES, SCORES)
def test_of_whole_pools_they_are_those_of_the_scores(true, competing):
    found, intervals = of_whole(true, competing)

    labels = [1] * len(true) + [0] * len(competing)
    expected = classification_metrics(*groups_of(labels, true + competing), len(labels))
    if not true or not competing:
        expected = {**dict.fromkeys(expected), "num_scores": len(true) + len(competing)}
    assert (found, intervals) == (expected, {})


@given(SCORES, SCORES, st.integers(1, 40))
def test_pooled_hits_are_those_of_ogb(true, competing, cutoff):
    found = pooled_hits(pool_of(true, competing), [cutoff])

    threshold = sorted(competing)[-cutoff] if cutoff <= len(competing) else -np.inf
    num_above = sum(score > threshold or cutoff > len(competing) for score in true)
    assert {f"pooled_hits_at_{cutoff}": num_above / len(true) if true else None} == found
