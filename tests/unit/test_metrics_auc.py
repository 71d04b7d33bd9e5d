from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pbgeval.metrics.auc import JACKKNIFE_GROUPS, _intervals, _without_a_group, pooled_auc
from pbgeval.metrics.intervals import SampleDesign
from pbgeval.stats.groups import ScorePool, SortedPool, sortable_int32, with_clusters
from tests.kit.graphs import score_values

scores = st.lists(st.one_of(score_values(), st.floats(-4, 4, width=32)), max_size=8)


def pool(true: list[float], competing: list[float]) -> SortedPool:
    return ScorePool([sortable_int32(torch.tensor(true))], [sortable_int32(torch.tensor(competing))]).sort()


def exact(*pools: SortedPool) -> float | None:
    found = pooled_auc(pools, all_true=True, all_competing=True)
    return None if found is None else found.value


@given(st.lists(st.tuples(scores, scores), min_size=1, max_size=3), st.booleans(), st.booleans())
def test_the_value_does_not_depend_on_what_is_sampled(parts, all_true, all_competing):
    pools = [pool(*part) for part in parts]
    found = pooled_auc(pools, all_true=all_true, all_competing=all_competing)

    assert exact(*pools) == (None if found is None else pytest.approx(found.value, abs=1e-15))
    if found is not None:
        assert (found.standard_error is None) == (all_true and all_competing)


def test_the_standard_error_is_that_of_two_means():
    true, competing = [0.0, 1.0, 1.0, 3.0], [0.0, 0.0, 2.0]
    placement_of_true = [1 / 3, 2 / 3, 2 / 3, 1.0]
    placement_of_competing = [1 - 0.5 / 4, 1 - 0.5 / 4, 1 / 4]
    variances = np.var(placement_of_true, ddof=1) / 4, np.var(placement_of_competing, ddof=1) / 3

    def error(**which: bool) -> float | None:
        return pooled_auc([pool(true, competing)], **which).standard_error

    assert error(all_true=False, all_competing=False) == pytest.approx(math.sqrt(sum(variances)))
    assert error(all_true=False, all_competing=True) == pytest.approx(math.sqrt(variances[0]))
    assert error(all_true=True, all_competing=False) == pytest.approx(math.sqrt(variances[1]))


def test_the_error_of_a_sample_is_that_of_sums_over_clusters_of_any_sizes() -> None:
    """Of clusters of one to three true scores with none to four competitors, among 1,000 clusters."""
    true = [(0, 3.0), (0, 1.0), (1, 2.0), (2, 0.5), (2, 0.0), (2, 4.0), (3, 1.0)]
    competing = [(0, 0.0), (1, 1.0), (1, 2.5), (1, 0.25), (1, 3.5), (3, -1.0), (3, 2.0)]
    images = [
        with_clusters(
            sortable_int32(torch.tensor([score for _, score in of])), np.array([cluster for cluster, _ in of])
        )
        for of in (true, competing)
    ]
    design = SampleDesign(np.zeros(4, np.int64), np.array([1000]))

    def wins(one: float, other: float) -> float:
        return 1.0 if one > other else 0.5 if one == other else 0.0

    value = np.mean([wins(one, other) for _, one in true for _, other in competing])
    parts = np.zeros(4)
    for cluster, one in true:
        parts[cluster] += (np.mean([wins(one, other) for _, other in competing]) - value) / len(true)
    for cluster, other in competing:
        parts[cluster] += (np.mean([wins(one, other) for _, one in true]) - value) / len(competing)
    variance = np.var(4 * parts, ddof=1) / 4 * (1 - 4 / 1000)

    found = pooled_auc([ScorePool(*([of] for of in images)).sort()], all_true=True, all_competing=True, design=design)

    assert found.value == pytest.approx(value)
    assert found.standard_error == pytest.approx(math.sqrt(variance), rel=1e-12)


def test_a_single_draw_tells_nothing_about_its_error():
    assert pooled_auc([pool([1.0], [0.0, 2.0])], all_true=False, all_competing=True).standard_error == math.inf


def test_an_error_is_that_of_the_replicates_around_their_mean():
    parts = np.random.default_rng(0).normal(0.6, 0.01, JACKKNIFE_GROUPS)

    found = _intervals(
        {"average_precision": 0.5, "num_scores": 9.0, "accuracy": None},
        [{"average_precision": part, "num_scores": 9.0, "accuracy": None} for part in parts.tolist()],
        unseen_share=0.75,
        level=0.95,
    )

    [of] = found.values()
    expected = math.sqrt((JACKKNIFE_GROUPS - 1) * 0.75 * np.var(parts))
    assert of["standard_error"] == pytest.approx(expected)
    assert of["low"] < 0.5 - expected
    assert of["high"] > 0.5 + expected


def test_intervals_stay_within_zero_and_one():
    found = pooled_auc([pool([5.0] * 9 + [0.0], [1.0] * 9 + [0.0])], all_true=False, all_competing=False)

    assert 0.0 <= found.interval()["low"] < found.value < found.interval()["high"] <= 1.0


def test_where_no_draw_differs_the_interval_leaves_room_for_what_was_not_drawn():
    found = pooled_auc([pool([2.0] * 4, [1.0] * 4)], all_true=False, all_competing=False).interval()

    assert 0.0 < found["low"] < 1.0 == found["high"]
    assert 0.0 < found["standard_error"] < found["high"] - found["low"]


def test_each_group_is_left_out_once_and_the_rest_stands_for_as_many():
    """A positive score of each cluster, and two negative ones."""
    every = np.arange(2 * JACKKNIFE_GROUPS)
    ones, size = np.ones(len(every), np.int64), len(every)
    design = SampleDesign(0 * every, np.array([1000]))

    found = [*_without_a_group(design, [(ones, every, every), (2 * ones, *[np.repeat(every, 2)] * 2)])]

    share = size / (size - 2)
    assert [[of.tolist() for of in weights] for weights in found] == JACKKNIFE_GROUPS * [
        [[share] * (size - 2), [2 * share] * (size - 2)]
    ]


def test_a_group_that_holds_every_cluster_is_not_left_out():
    """Of a single cluster, nothing would be left that could stand for it."""
    once, place = np.ones(3, np.int64), np.arange(3)
    design = SampleDesign(np.zeros(1, np.int64), np.array([1000]))

    found = [*_without_a_group(design, [(once, place, np.zeros(3, np.int64))] * 2)]

    assert [[of.tolist() for of in weights] for weights in found] == JACKKNIFE_GROUPS * [[[1.0] * 3] * 2]
