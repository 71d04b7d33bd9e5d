"""A classifier's metrics of pools: exact ones against those of arrays, estimates against the population."""

from __future__ import annotations

import numpy as np
import pytest
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
    return pooled_classification(pool_of(true, competing), len(true), len(competing), AucSample(True, True))


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
    found = pooled_hits(pool_of(true, competing), [cutoff], whole=True)

    threshold = sorted(competing)[-cutoff] if cutoff <= len(competing) else -np.inf
    num_above = sum(score > threshold or cutoff > len(competing) for score in true)
    assert {f"pooled_hits_at_{cutoff}": num_above / len(true) if true else None} == found


def test_pooled_hits_of_a_sample_are_not_known():
    assert pooled_hits(pool_of([1.0], [0.0]), [1], whole=False) == {"pooled_hits_at_1": None}


@pytest.mark.one_case
@pytest.mark.parametrize("sampled", ["competing", "both"])
def test_estimates_from_samples_are_right_on_average_and_so_are_their_errors(sampled):
    generator = np.random.default_rng(5)
    true, competing = generator.normal(1.5, 1, 3000), generator.normal(0, 1, 60_000)
    expected, _ = of_whole(true, competing)
    values, errors, covered = [], [], []
    for _ in range(60):
        kept_true = generator.choice(true, 1500) if sampled == "both" else true
        pool = pool_of(kept_true, generator.choice(competing, 6000))
        found, intervals = pooled_classification(pool, 3000, 60_000, AucSample(sampled == "competing", False))
        values.append([found[name] for name in intervals])
        errors.append([intervals[name]["standard_error"] for name in intervals])
        covered.append([intervals[name]["low"] <= expected[name] <= intervals[name]["high"] for name in intervals])

    names = list(intervals)
    assert {"average_precision_score", "f1_score", "matthews_correlation_coefficient"} <= set(names)
    spread = np.std(values, axis=0, ddof=1)
    truth = np.array([expected[name] for name in names])
    varying = spread > 1e-12
    assert np.all(np.abs(np.mean(values, axis=0) - truth)[varying] < spread[varying])  # bias is below the error
    ratio = np.mean(errors, axis=0)[varying] / spread[varying]
    assert np.all((ratio > 0.7) & (ratio < 1.5)), dict(zip(np.array(names)[varying], ratio, strict=True))
    assert np.mean(covered) > 0.85


@pytest.mark.parametrize(
    ("true", "competing", "sizes", "all_true", "has_error"),
    [
        ([1.0, 2.0], [0.0, 1.5], (100, 4000), False, False),
        # Of 20 above the threshold, intervals of the false positive rate covered 74 % of their values.
        ([1.0] * 200, [2.0] * 99 + [0.0] * 1000, (100, 1099), True, False),
        ([1.0] * 200, [2.0] * 100 + [0.0] * 1000, (101, 1100), True, True),
    ],
)
def test_few_draws_have_no_error(true, competing, sizes, all_true, has_error):
    found, intervals = pooled_classification(pool_of(true, competing), *sizes, AucSample(all_true, False))

    assert (bool(intervals), found["average_precision_score"] is None) == (has_error, False)


def test_what_no_draw_changes_has_an_interval_of_one_value():
    pool = pool_of([1.0] * 200, [0.0] * 200)
    found, intervals = pooled_classification(pool, 400, 200, AucSample(all_true=False, all_competing=True))

    assert found["average_precision_score"] == 1.0
    assert intervals["average_precision_score"] == {"standard_error": 0.0, "low": 1.0, "high": 1.0}
