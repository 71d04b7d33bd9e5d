"""Sums of draws: their estimates are those of arrays however the queries are cut, and where there are none."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from pbgeval.metrics.estimates import NUM_SUMS, DrawSums, Estimate, interval_of
from pbgeval.stats.ranks import RankCounts
from tests.sampled_estimates_reference import UniformSample, estimates

Rows = list[tuple[int, int, int, int, int]]  # better, tied, competing, N, list


def sums_of(rows: Rows) -> DrawSums:
    columns = torch.tensor(rows, dtype=torch.int64).reshape(-1, 5).unbind(1)
    return DrawSums.from_queries(RankCounts(*columns[:3]), columns[3].numpy(), columns[4].numpy())


def random_rows(seed: int, num_lists: int) -> Rows:
    generator = np.random.default_rng(seed)
    rows = []
    for number in np.repeat(np.arange(num_lists), 7).tolist():
        num_competitors = int(generator.choice([0, 1, 2, generator.integers(3, 3 * 10**6)]))
        better, tied, beaten = generator.integers(0, 9, 3).tolist() if num_competitors else (0, 0, 0)
        rows.append((better, tied, better + tied + beaten + (num_competitors > 0), num_competitors, number))
    return rows


@pytest.mark.parametrize("seed", range(3))
def test_units_give_the_estimates_of_one_array_of_all_queries(seed: int) -> None:
    rows = random_rows(seed, 20)
    of_units = [[row for row in rows if row[4] % 6 == unit] for unit in range(6)]  # no list is cut
    total = DrawSums.total([sums_of(unit) for unit in of_units])
    better, tied, competing, num_competitors, lists = np.array(rows).T
    expected = estimates(UniformSample(1 + better, 1 + better + tied, competing, num_competitors, lists))
    assert {name: (of.value, of.standard_error) for name, of in total.estimates().items()} == {
        name: (pytest.approx(of.value, rel=1e-12), pytest.approx(of.standard_error, rel=1e-9))
        for name, of in expected.items()  # whose terms are added in another order
    }


def test_a_single_list_has_no_error_and_lists_that_agree_have_none_to_speak_of() -> None:
    rows = [(1, 1, 3, 10**6 + number, number) for number in range(50)]

    single, agreeing = sums_of(rows[:1]).estimates(), sums_of(rows).estimates()

    assert {estimate.standard_error for estimate in single.values()} == {None}
    assert [of for of in agreeing.values() if of.standard_error > 1e-7 * abs(of.value)] == []


def test_a_query_without_draws_leaves_all_undefined_unless_it_has_no_competitors() -> None:
    rows = [(0, 0, 2, 5, 0), (1, 0, 2, 5, 1)]
    lonely, unlucky = (0, 0, 0, 0, 2), (0, 0, 0, 4, 2)

    undefined, defined = sums_of([*rows, unlucky]), sums_of([*rows, lonely])

    assert (undefined.num_without_draws, {*undefined.estimates().values()}) == (1, {Estimate(None, None)})
    assert (defined.num_without_draws, defined.estimates()["pessimistic.mean_rank"].value) == (
        0,
        pytest.approx(1 + 2.5 / 3),
    )
    assert sums_of(rows).estimates()["query_auc"] == defined.estimates()["query_auc"]


def test_no_queries_have_no_estimates() -> None:
    for sums in (sums_of([]), DrawSums.total([])):
        assert (sums.values.tolist(), {*sums.estimates().values()}) == ([0.0] * NUM_SUMS, {Estimate(None, None)})


@pytest.mark.parametrize(
    ("key", "value", "low", "high"),
    [
        ("head.realistic.mean_rank", 1.5, 1.0, math.inf),
        ("both.realistic.adjusted_arithmetic_mean_rank", 1.0, 0.0, 2.0),
        ("tail.optimistic.adjusted_mean_rank_index", 0.5, -1.0, 1.0),
        ("tail.query_auc", 0.5, 0.0, 1.0),
    ],
)
def test_intervals_end_where_the_metric_does(key: str, value: float, low: float, high: float) -> None:
    wide, narrow = interval_of(key, Estimate(value, 10.0)), interval_of(key, Estimate(value, 0.01))

    assert (10.0, low, min(high, value + 19.6)) == pytest.approx(tuple(wide.values()), rel=1e-4)
    assert (value - 0.0196, value + 0.0196) == pytest.approx((narrow["low"], narrow["high"]), rel=1e-4)
    assert interval_of(key, Estimate(value, None)) is None
