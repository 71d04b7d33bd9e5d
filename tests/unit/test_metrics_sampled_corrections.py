from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction
from statistics import fmean

import numpy as np
import pytest

from pbgeval.metrics.sampled_corrections import (
    CorrectedMetric,
    corrected_metric,
    estimate_hits,
    estimate_mean_reciprocal_rank,
    sampled_rank_probabilities,
)
from pbgeval.metrics.sampled_estimates import UniformSample
from pbgeval.stats.ranks import RankType


def listed_probabilities(rank, num_drawn, num_candidates, with_replacement) -> list[Fraction]:
    """Count all draws; competitor i < rank - 1 scores higher."""
    competitors = range(num_candidates - 1)
    if with_replacement:
        draws = list(itertools.product(competitors, repeat=num_drawn))
    else:
        draws = list(itertools.combinations(competitors, num_drawn))
    times = Counter(1 + sum(drawn < rank - 1 for drawn in draw) for draw in draws)
    return [Fraction(times[s], len(draws)) for s in range(1, num_drawn + 2)]


@pytest.mark.parametrize("with_replacement", [True, False])
@pytest.mark.parametrize(("num_drawn", "num_candidates"), [(1, 2), (1, 5), (2, 5), (3, 6), (4, 5)])
def test_probabilities_are_those_of_all_draws(num_drawn, num_candidates, with_replacement):
    ranks = np.arange(1, num_candidates + 1)

    found = sampled_rank_probabilities(ranks, num_drawn, num_candidates, with_replacement)

    for rank, row in zip(ranks.tolist(), found, strict=True):
        expected = listed_probabilities(rank, num_drawn, num_candidates, with_replacement)
        assert [pytest.approx(float(of), abs=1e-14) for of in expected] == row.tolist()


@pytest.mark.parametrize("with_replacement", [True, False])
def test_probabilities_of_huge_graphs_have_the_mean_that_they_must(with_replacement):
    ranks = np.array([1, 2, 1000, 123_456_789, 10**9])

    found = sampled_rank_probabilities(ranks, 1000, 10**9, with_replacement)

    assert [pytest.approx(1.0, rel=1e-12)] * 5 == found.sum(1).tolist()
    expected = 1000 * (ranks - 1) / (10**9 - 1)
    assert [pytest.approx(of, rel=1e-6, abs=1e-12) for of in expected.tolist()] == (found @ np.arange(1001)).tolist()


def objective(values, metric, probabilities, weight) -> float:
    """Mean over ranks of squared bias + weight x variance, by its definition."""
    total = 0.0
    for at, row in enumerate(probabilities):
        mean = sum(float(p) * value for p, value in zip(row, values, strict=True))
        variance = sum(float(p) * (value - mean) ** 2 for p, value in zip(row, values, strict=True))
        total += (mean - metric(at + 1)) ** 2 + weight * variance
    return total / len(probabilities)


@pytest.mark.parametrize("with_replacement", [True, False])
@pytest.mark.parametrize("weight", [0.01, 0.3, 1.0])
def test_no_other_table_does_better(weight, with_replacement):
    probabilities = [listed_probabilities(rank, 3, 8, with_replacement) for rank in range(1, 9)]
    for vectorised, metric in ((np.reciprocal, lambda r: 1 / r), (lambda r: (r <= 2) * 1.0, lambda r: r <= 2)):
        table = corrected_metric(vectorised, 3, 8, with_replacement=with_replacement, variance_weight=weight)
        best = objective(table.values_S.tolist(), metric, probabilities, weight)

        for at, change in itertools.product(range(4), (-1e-3, 1e-3)):
            other = table.values_S.copy()
            other[at] += change
            assert best < objective(other.tolist(), metric, probabilities, weight)


@pytest.mark.parametrize("with_replacement", [True, False])
def test_expectation_and_variance_are_those_of_all_draws(with_replacement):
    table = CorrectedMetric(np.array([0.9, -0.2, 0.3]), 6, with_replacement)
    for rank in range(1, 7):
        chances = listed_probabilities(rank, 2, 6, with_replacement)
        mean = sum(float(p) * value for p, value in zip(chances, table.values_S, strict=True))
        square = sum(float(p) * value**2 for p, value in zip(chances, table.values_S, strict=True))

        assert [pytest.approx(mean)] == table.expectation(np.array([rank])).tolist()
        assert [pytest.approx(square - mean**2, abs=1e-14)] == table.variance(np.array([rank])).tolist()


def test_less_weight_on_variance_gives_less_bias_and_more_variance():
    ranks = np.arange(1.0, 201)
    tables = [
        corrected_metric(np.reciprocal, 20, 200, with_replacement=True, variance_weight=weight)
        for weight in (1e-3, 1e-2, 1e-1, 1.0)
    ]
    biases = [float(((table.expectation(ranks) - 1 / ranks) ** 2).mean()) for table in tables]
    variances = [float(table.variance(ranks).mean()) for table in tables]

    assert sorted(biases) == biases
    assert sorted(variances, reverse=True) == variances
    naive = CorrectedMetric(1 / np.arange(1.0, 22), 200, True)  # the metric of the sampled rank, as often reported
    assert biases[1] < 0.1 * float(((naive.expectation(ranks) - 1 / ranks) ** 2).mean())


def test_every_competitor_drawn_once_gives_the_metric_itself():
    optimistic, pessimistic = np.array([1, 2, 5, 1]), np.array([1, 4, 5, 5])
    sample = UniformSample.of_ranks(optimistic, pessimistic, 4, 5, with_replacement=False)
    over_orders = [1, (1 / 2 + 1 / 3 + 1 / 4) / 3, 1 / 5, sum(1 / r for r in range(1, 6)) / 5]
    hits_over_orders = [1, 1 / 3, 0, 2 / 5]

    for rank_type, reciprocal, hits in (
        (RankType.OPTIMISTIC, 1 / optimistic, optimistic <= 2),
        (RankType.PESSIMISTIC, 1 / pessimistic, pessimistic <= 2),
        (RankType.REALISTIC, over_orders, hits_over_orders),
    ):
        mrr, at_2 = estimate_mean_reciprocal_rank(sample, rank_type), estimate_hits(sample, 2, rank_type)
        assert (pytest.approx(np.mean(reciprocal)), 0.0, False) == (mrr.value, mrr.standard_error, mrr.is_biased)
        assert (pytest.approx(np.mean(hits)), 0.0, False) == (at_2.value, at_2.standard_error, at_2.is_biased)


def test_with_replacement_as_many_draws_are_not_exact():
    found = estimate_mean_reciprocal_rank(UniformSample.of_ranks([1, 3], [1, 3], 4, 5, with_replacement=True))

    assert found.is_biased
    assert found.standard_error > 0
    assert found.interval() is None


@pytest.mark.parametrize("with_replacement", [True, False])
def test_simulated_estimates_have_the_expectation_and_the_error_that_are_claimed(with_replacement):
    """Queries of two graphs; 500 simulations know the mean of the estimate to 1/22 of its spread."""
    generator = np.random.default_rng(17)
    sizes = np.repeat([61, 301], 30)
    ranks = np.ceil(generator.random(60) ** 3 * sizes).astype(np.int64)
    tables = {size: corrected_metric(np.reciprocal, 12, size, with_replacement=with_replacement) for size in (61, 301)}
    expected = fmean(float(tables[s].expectation(np.array([r]))[0]) for r, s in zip(ranks, sizes.tolist(), strict=True))
    variance = sum(float(tables[s].variance(np.array([r]))[0]) for r, s in zip(ranks, sizes.tolist(), strict=True))
    values, errors = [], []
    for _ in range(500):
        drawn = np.stack([generator.choice(size - 1, 12, replace=with_replacement) for size in sizes])
        sampled = 1 + (drawn < ranks[:, None] - 1).sum(1)
        sample = UniformSample.of_ranks(sampled, sampled, 12, sizes, with_replacement=with_replacement)
        found = estimate_mean_reciprocal_rank(sample)
        values.append(found.value)
        errors.append(found.standard_error)
        assert found.is_biased

    spread = math.sqrt(variance) / 60
    assert abs(fmean(values) - expected) < 4 * spread / math.sqrt(500)
    assert pytest.approx(spread, rel=0.15) == np.std(values)
    assert spread * 0.9 < math.sqrt(fmean(error**2 for error in errors)) < spread * 2  # queries differ, too


def test_realistic_ranks_are_the_mean_over_the_orders_of_ties():
    parts = {"num_drawn": 6, "num_candidates": 40, "with_replacement": True}
    tied = UniformSample.of_ranks([2], [4], **parts)
    orders = [UniformSample.of_ranks([s], [s], **parts) for s in (2, 3, 4)]

    for estimate in (estimate_mean_reciprocal_rank, lambda of, **kw: estimate_hits(of, 3, **kw)):
        values = [estimate(one).value for one in orders]
        assert pytest.approx(fmean(values)) == estimate(tied).value
        assert values[0] == estimate(tied, rank_type=RankType.OPTIMISTIC).value
        assert values[2] == estimate(tied, rank_type=RankType.PESSIMISTIC).value


def test_ranks_of_a_large_prior_in_bins_are_as_good_as_each_by_itself():
    """With 1024 ranks alone and bins beyond, the table is that of all 20 000 ranks but for a part in 10^3."""
    ranks = np.arange(1.0, 20_001)
    chance = sampled_rank_probabilities(ranks, 30, 20_000, with_replacement=True)
    squares = 0.99 * chance.T @ chance + 0.01 * np.diag(chance.sum(0))
    expected = np.linalg.solve(squares, chance.T @ (1 / ranks))

    found = corrected_metric(np.reciprocal, 30, 20_000, with_replacement=True, variance_weight=0.01).values_S

    assert np.abs(found - expected).max() < 1e-3 * np.abs(expected).max()


def test_one_query_or_one_list_has_no_spread_and_none_has_no_value():
    one = UniformSample.of_ranks([2], [2], 5, 50, with_replacement=True)
    of_one_list = UniformSample.of_ranks([2, 3], [2, 3], 5, 50, with_replacement=True, lists=[0, 0])
    nothing = UniformSample.of_ranks([], [], 5, 50, with_replacement=True)

    assert estimate_mean_reciprocal_rank(one).standard_error is None
    assert estimate_hits(of_one_list, 1).standard_error is None
    assert estimate_hits(nothing, 1).value is None


def test_queries_without_competitors_are_first():
    alone = UniformSample.of_ranks([1, 1], [1, 1], 0, 1, with_replacement=True)

    assert (1.0, 0.0, False) == tuple(
        getattr(estimate_mean_reciprocal_rank(alone), name) for name in ("value", "standard_error", "is_biased")
    )
    assert 1.0 == estimate_hits(alone, 1).value


@pytest.mark.parametrize(
    ("num_drawn", "num_candidates", "weight", "message"),
    [
        (3, 9, 0.0, "variance_weight"),
        (3, 9, 1.5, "variance_weight"),
        (0, 9, 0.1, "0 draws from 9"),
        (9, 9, 0.1, "9 draws from 9"),
        (3, 1, 0.1, "3 draws from 1"),
        (5000, 10**6, 0.1, "at most 4096"),
    ],
)
def test_what_cannot_be_corrected_is_refused(num_drawn, num_candidates, weight, message):
    with pytest.raises(ValueError, match=message):
        corrected_metric(np.reciprocal, num_drawn, num_candidates, with_replacement=False, variance_weight=weight)


def test_hits_begin_at_one():
    with pytest.raises(ValueError, match="k: expected at least 1, got 0"):
        estimate_hits(UniformSample.of_ranks([2], [2], 5, 50, with_replacement=True), 0)
