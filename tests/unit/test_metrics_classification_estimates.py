from __future__ import annotations

import itertools
import math
from statistics import NormalDist, variance

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pbgeval.metrics.classification import area_under_roc, average_precision
from pbgeval.metrics.classification_estimates import estimate_area_under_roc, estimate_average_precision
from pbgeval.metrics.estimates import Estimate
from tests.kit.graphs import score_values

classes = st.lists(score_values(), min_size=2, max_size=6)


def labelled(positive, negative) -> tuple[list[int], list[float]]:
    return [1] * len(positive) + [0] * len(negative), [*positive, *negative]


@given(classes, classes)
def test_delongs_variance_is_that_of_each_scores_share_of_pairs(positive, negative):
    pairs = [[(p > n) + (p == n) / 2 for n in negative] for p in positive]
    rows = [sum(row) / len(row) for row in pairs]
    columns = [sum(column) / len(column) for column in zip(*pairs, strict=True)]
    expected = math.sqrt(variance(rows) / len(rows) + variance(columns) / len(columns))

    found = estimate_area_under_roc(*labelled(positive, negative))

    assert pytest.approx(expected, abs=1e-12) == found.standard_error
    assert area_under_roc(*labelled(positive, negative)) == found.value
    assert not found.is_biased


def test_the_intervals_of_the_area_cover_the_populations():
    """Normal scores one standard deviation apart: the area is Phi(1 / sqrt 2). 95 % of 400 is 380, give or take 4.4."""
    truth = NormalDist().cdf(1 / math.sqrt(2))
    generator = np.random.default_rng(7)
    covered = 0
    for _ in range(400):
        found = estimate_area_under_roc(*labelled(generator.normal(1, 1, 60), generator.normal(0, 1, 200)))
        low, high = found.interval()
        covered += low <= truth <= high

    assert 365 <= covered <= 395


def test_the_bootstrap_error_is_the_spread_over_all_resamples():
    """27 x 27 equally likely resamples are listed; 20 000 drawn ones know a spread to half a percent or so."""
    positive, negative, weights = [3.0, 2.0, 0.0], [2.0, 1.0, 0.5], [1.0, 1.0, 1.0, 4.0, 1.0, 2.0]
    for used in (None, weights):
        values = []
        for ours in itertools.product(range(3), repeat=3):
            for theirs in itertools.product(range(3), repeat=3):
                chosen = [*ours, *(3 + at for at in theirs)]
                scores = [[*positive, *negative][at] for at in chosen]
                of_chosen = None if used is None else [used[at] for at in chosen]
                values.append(average_precision([1] * 3 + [0] * 3, scores, of_chosen))

        found = estimate_average_precision(*labelled(positive, negative), used, seed=1, num_resamples=20_000)

        assert pytest.approx(float(np.std(values)), rel=0.03) == found.standard_error
        assert average_precision(*labelled(positive, negative), used) == found.value


def test_the_bootstrap_error_is_that_of_repeated_samples():
    generator = np.random.default_rng(11)
    draws = [labelled(generator.normal(1, 1, 80), generator.normal(0, 1, 160)) for _ in range(150)]
    spread = np.std([average_precision(*draw) for draw in draws], ddof=1)

    errors = [
        estimate_average_precision(*draw, seed=at, num_resamples=100).standard_error for at, draw in enumerate(draws)
    ]

    assert pytest.approx(spread, rel=0.2) == np.mean(errors)  # 150 draws know their spread to 6 %


def test_weights_give_back_the_negatives_that_were_not_drawn():
    """A tenth of the negatives, each weighing ten, estimates the average precision of all of them."""
    generator = np.random.default_rng(5)
    positive, negative = generator.normal(1.5, 1, 1000), generator.normal(0, 1, 20_000)
    truth = average_precision(*labelled(positive, negative))
    labels, scores = labelled(positive, generator.choice(negative, 2000, replace=False))
    weights = [1.0 if label else 10.0 for label in labels]

    found = estimate_average_precision(labels, scores, weights, seed=0, num_resamples=200)

    assert abs(found.value - truth) < 4 * found.standard_error < 0.15
    assert abs(average_precision(labels, scores) - truth) > 0.2


def test_a_seed_gives_the_same_bits_and_another_seed_others():
    draw = labelled([1.0, 0.5, 3.0], [0.5, 0.0, 2.0])

    first, again, other = (estimate_average_precision(*draw, seed=seed, num_resamples=50) for seed in (3, 3, 4))

    assert first == again
    assert first != other


def test_equal_scores_leave_no_error_once_the_class_sizes_are_known():
    draw = labelled([1.0, 1.0], [1.0, 1.0, 1.0])

    assert Estimate(0.5, 0.0) == estimate_area_under_roc(*draw)
    assert Estimate(pytest.approx(0.4), pytest.approx(0.0)) == estimate_average_precision(*draw, seed=0)


@pytest.mark.parametrize(
    ("positive", "negative", "area", "precision"),
    [([], [], None, None), ([], [1.0, 2.0], None, None), ([1.0, 2.0], [], None, 1.0), ([1.0], [0.0, 0.5], 1.0, 1.0)],
)
def test_too_few_of_a_class_have_no_error(positive, negative, area, precision):
    draw = labelled(positive, negative)

    assert Estimate(area, None) == estimate_area_under_roc(*draw)
    assert Estimate(precision, None) == estimate_average_precision(*draw, seed=0)
    assert estimate_area_under_roc(*draw).interval() is None


def test_what_weighs_nothing_is_not_drawn():
    labels, scores = [1, 1, 1, 0, 0, 0], [3.0, 1.0, 9.0, 2.0, 1.0, 0.0]

    with_more = estimate_average_precision(labels, scores, [1, 1, 0, 1, 1, 1], seed=2)

    assert estimate_average_precision([1, 1, 0, 0, 0], [3.0, 1.0, 2.0, 1.0, 0.0], [1] * 5, seed=2) == with_more
    assert estimate_average_precision(labels, scores, [1, 0, 0, 1, 1, 1], seed=2).standard_error is None


def test_a_single_resample_has_no_spread():
    with pytest.raises(ValueError, match="expected at least 2, got 1"):
        estimate_average_precision([1, 0], [1.0, 0.0], seed=0, num_resamples=1)


def test_an_interval_is_normal_and_there_is_none_for_biased_estimates():
    low, high = Estimate(0.5, 0.1).interval(0.95)

    assert (pytest.approx(0.5 - 0.1959963984540054), pytest.approx(0.5 + 0.1959963984540054)) == (low, high)
    assert Estimate(0.5, 0.1, is_biased=True).interval() is None
    assert Estimate(None, None).interval() is None
