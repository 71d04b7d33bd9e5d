from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pbgeval.inputs.edge_sample import allocate, doubling_rounds
from pbgeval.metrics.intervals import (
    Interval,
    SampleDesign,
    SampledQueries,
    round_level,
    round_needed,
    sample_intervals,
    unseen_ends,
    variance_of_mean,
    wilson_ends,
)
from pbgeval.metrics.student import student_quantile, two_sided_probability
from pbgeval.notation import Side
from pbgeval.stats.query_metrics import keyed_metrics
from pbgeval.stats.rank_stats import RankStats, StatsLayout, rank_metrics
from pbgeval.stats.ranks import RankCounts
from tests.examples import examples
from tests.rank_metrics_reference import of_query

CUTOFFS = (1, 3)
SIDES = (Side.LHS, Side.RHS)
NAMES = [name for name, _, _ in keyed_metrics(CUTOFFS)]
LEAST = {"mean_rank": 1, "adjusted_mean_rank_index": -1}

query = st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3))  # better, tied, beaten
cluster = st.tuples(st.lists(query, max_size=3), st.lists(query, max_size=3))  # head queries, tail queries
strata = st.lists(st.tuples(st.lists(cluster, min_size=2, max_size=5), st.integers(0, 20)), min_size=1, max_size=4)


def sample_of(of) -> tuple[SampledQueries, SampleDesign]:
    """Strata of clusters, each with the number of its clusters that were not drawn."""
    rows = [
        (better, tied, better + tied + beaten, tail, number)
        for number, sides in enumerate(cluster for clusters, _ in of for cluster in clusters)
        for tail, queries in enumerate(sides)
        for better, tied, beaten in queries
    ]
    design = SampleDesign(
        np.repeat(np.arange(len(of)), [len(clusters) for clusters, _ in of]),
        np.array([len(clusters) + unseen for clusters, unseen in of]),
    )
    *counts, tail_Q, cluster_Q = torch.tensor(rows, dtype=torch.int64).reshape(-1, 5).unbind(1)
    return SampledQueries(RankCounts(*counts), tail_Q, cluster_Q), design


def slow_terms(name: str, better: int, tied: int, beaten: int) -> tuple[Fraction, Fraction]:
    """What a query adds above and below the fraction line of a metric (AMRI: of 1 - the metric)."""
    competing = better + tied + beaten
    if name == "query_auc":
        return (1 - (better + Fraction(tied, 2)) / competing, Fraction(1)) if competing else (Fraction(0), Fraction(0))
    rank_type, metric = name.split(".")
    rank = 1 + better + {"optimistic": Fraction(0), "realistic": Fraction(tied, 2), "pessimistic": tied}[rank_type]
    if metric == "adjusted_mean_rank_index":
        return 2 * (rank - 1), Fraction(competing)
    return of_query(metric, rank, competing + 1), Fraction(1)


def slow_variance(values: list[list[Fraction]], sizes: list[int]) -> Fraction:
    """The variance of the mean of sampled values by stratum; the offset's share by going through its steps."""
    num, total = sum(map(len, values)), sum(sizes)
    within = noise = Fraction(0)
    means = [sum(of) / len(of) for of in values]
    for of, mean, size in zip(values, means, sizes, strict=True):
        spread = sum((value - mean) ** 2 for value in of) / (len(of) - 1) * (1 - Fraction(len(of), size))
        part = Fraction(size * num, total) % 1
        within += len(of) * spread
        noise += part * (1 - part) * spread / len(of)
    shares = [Fraction(sum(sizes[: h + 1]) * num, total) for h in range(len(sizes))]
    steps = sorted({Fraction(0), Fraction(1), *(1 - share % 1 for share in shares)})
    first = second = Fraction(0)
    for start, stop in pairwise(steps):
        ends = [0, *(math.floor(share + start) for share in shares)]
        height = sum((after - before) * mean for (before, after), mean in zip(pairwise(ends), means, strict=True))
        first += (stop - start) * height
        second += (stop - start) * height**2
    return (within + max(Fraction(0), second - first**2 - noise)) / num**2


def slow_error(name: str, of, sides: tuple[int, ...]) -> tuple[float, float] | None:
    """The metric and its standard error from the definition, in fractions."""
    sums = [
        [
            [sum(parts) for parts in zip((Fraction(0), Fraction(0)), *terms, strict=True)]
            for cluster in clusters
            for terms in [[slow_terms(name, *query) for side in sides for query in cluster[side]]]
        ]
        for clusters, _ in of
    ]
    above, below = (sum(pair[i] for clusters in sums for pair in clusters) for i in (0, 1))
    if not below:
        return None
    ratio = above / below
    scale = below / sum(map(len, sums))
    residuals = [[(pair[0] - ratio * pair[1]) / scale for pair in clusters] for clusters in sums]
    error = math.sqrt(slow_variance(residuals, [len(clusters) + unseen for clusters, unseen in of]))
    return float(1 - ratio) if name.endswith("index") else float(ratio), error


@pytest.mark.slow
@settings(max_examples=examples(60))
@given(strata, st.randoms(use_true_random=False))
def test_values_and_errors_are_those_of_the_definition_in_any_order_of_queries(of, rng):
    queries, design = sample_of(of)
    found = sample_intervals(queries, design, SIDES, CUTOFFS)

    for label, sides in (("head", (0,)), ("tail", (1,)), ("both", (0, 1))):
        for name in NAMES:
            expected, interval = slow_error(name, of, sides), found.get(f"{label}.{name}")
            assert (expected is None) == (interval is None)
            if interval is None:
                continue
            value, error = expected
            assert math.isclose(value, interval.value, rel_tol=1e-12, abs_tol=1e-12)
            # Reciprocals and shares are rounded to 2^-40; small differences of squares lose half the digits.
            assert error <= 1e-6 or math.isclose(error, interval.standard_error, rel_tol=1e-5)
            assert design.is_population or (interval.standard_error > 0 and interval.low < interval.high)
            most = math.inf if "mean_rank" in name else 1
            assert LEAST.get(name.split(".")[-1], 0) <= interval.low <= interval.value <= interval.high <= most

    order = torch.tensor(rng.sample(range(len(queries.cluster_Q)), len(queries.cluster_Q)), dtype=torch.int64)
    shuffled = SampledQueries(queries.counts.select(order), queries.side_Q[order], queries.cluster_Q[order])
    assert found == sample_intervals(shuffled, design, SIDES, CUTOFFS)


@given(strata)
def test_a_sample_that_is_the_population_gives_the_reports_values_and_no_error(of):
    whole = [(clusters, 0) for clusters, _ in of]
    queries, design = sample_of(whole)

    found = sample_intervals(queries, design, SIDES, CUTOFFS)

    stats = RankStats.from_queries(StatsLayout(CUTOFFS), queries.counts)
    for name, value in rank_metrics(stats.total, CUTOFFS, adjusted=True).items():
        if not name.endswith(".count"):
            assert found.get(f"both.{name}") == (None if value is None else Interval(value, 0.0, value, value))


def test_only_the_keys_asked_for_are_computed_and_a_disabled_side_has_none():
    queries, design = sample_of([([([(0, 0, 3)], []), ([(1, 1, 3)], [])], 5)])
    keys = ["head.realistic.hits_at_3", "both.query_auc", "tail.query_auc", "head.auc"]

    found = sample_intervals(queries, design, (Side.LHS,), CUTOFFS, keys=keys)

    whole = sample_intervals(queries, design, (Side.LHS,), CUTOFFS)
    assert {key: whole[key] for key in keys[:2]} == found
    assert {f"{label}.{name}" for label in ("head", "both") for name in NAMES} == set(whole)


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        ([([([], []), ([], [])], 4)], None),
        ([([], 1)], None),
        ([([([(0, 0, 3)], [])], 4)], None),
        ([([([(0, 0, 3)], [])], 0)], Interval(1.0, 0.0, 1.0, 1.0)),
    ],
    ids=["no queries", "no clusters", "one cluster of many", "one of one"],
)
def test_nothing_is_said_where_nothing_was_measured_or_one_cluster_stands_for_many(of, expected):
    found = sample_intervals(*sample_of(of), SIDES, CUTOFFS)

    assert (found.get("both.realistic.mean_reciprocal_rank"), bool(found)) == (expected, expected is not None)


def test_no_hits_and_all_hits_leave_room_for_what_was_not_seen():
    """Forty clusters of 400, ranks 5 and 9 by turns: as wide as Wilson's for no hit in 40 / .9 draws."""
    clusters = [([(4 + 4 * (number % 2), 0, 11)], []) for number in range(40)]
    queries, design = sample_of([(clusters, 360)])
    found = sample_intervals(queries, design, (Side.LHS,), (1, 20))
    squared = student_quantile(0.95, 39) ** 2
    width = squared / (40 / 0.9 + squared)

    none, every = found["head.realistic.hits_at_1"], found["head.realistic.hits_at_20"]
    assert (none.value, none.low, every.value, every.high) == (0.0, 0.0, 1.0, 1.0)
    assert (none.high, every.low) == pytest.approx((width, 1 - width), rel=1e-9)
    assert min(none.standard_error, every.standard_error) > 0


@pytest.mark.parametrize(
    ("values", "num_draws"),
    [([[1, 5, 2, 9], [0, 3, 3, 10, 4]], 5), ([[1, 5, 2, 9], [20, 23, 23, 30, 24]], 5), ([[0, 0, 7, 1]], 2)],
)
def test_the_variance_is_right_on_average_over_every_sample(values, num_draws):
    """All offsets, all subsets: the mean of the estimates is the variance of the plain mean, or a little more."""
    sizes = [len(of) for of in values]
    means, estimates = [], []
    for offset in range(sum(sizes)):
        allocated = allocate(sizes, num_draws, (offset << 64) // sum(sizes) + 1)
        samples = [()]
        for of, drawn in zip(values, allocated, strict=True):
            samples = [(*some, *more) for some in samples for more in combinations(of, drawn)]
        design = SampleDesign(np.repeat(np.arange(len(sizes)), allocated), np.array(sizes))
        means.append([sum(sample) / num_draws for sample in samples])
        estimates.append([variance_of_mean(np.array(sample) - np.mean(sample), design)[0] for sample in samples])
    true_mean = sum(map(sum, values)) / sum(sizes)
    variance = np.mean([np.mean((np.array(of) - true_mean) ** 2) for of in means])

    assert math.isclose(true_mean, np.mean([np.mean(of) for of in means]), rel_tol=1e-12)
    assert variance * (1 - 1e-12) <= np.mean([np.mean(of) for of in estimates]) <= 1.03 * variance


def test_strata_of_which_all_is_drawn_add_no_degrees_of_freedom():
    residuals, strata = [3, -3] * 10, [0] * 12 + [1] * 8
    of_two = SampleDesign(np.array(strata), np.array([50, 40]))
    of_more = SampleDesign(np.array([*strata, 2, 3]), np.array([50, 40, 1, 1]))

    assert variance_of_mean(np.array(residuals), of_two)[1] == 17
    assert variance_of_mean(np.array([*residuals, 0, 0]), of_more)[1] == 17


def test_a_stratum_of_which_none_is_drawn_takes_no_degree_of_freedom():
    assert SampleDesign(np.array([0, 0, 2]), np.array([50, 40, 1])).degrees_of_freedom == 1


def test_students_quantiles_are_those_of_the_tables():
    table = {1: 12.70620, 2: 4.302653, 3: 3.182446, 5: 2.570582, 10: 2.228139, 30: 2.042272, 120: 1.979930}
    table |= {10**12: 1.959963985}
    assert {of: student_quantile(0.95, of) for of in table} == pytest.approx(table, rel=1e-6)
    assert math.isclose(3.6459586, student_quantile(0.999, 30), rel_tol=1e-7)
    for level in (0.95, 1 - 1e-6):
        for degrees_of_freedom in (1, 7, 200, 201, 1000):  # sums up to 200, beyond the expansion
            outside = two_sided_probability(student_quantile(level, degrees_of_freedom), degrees_of_freedom)
            assert outside == pytest.approx(1 - level, rel=1e-5)


def test_wilsons_interval_by_hand():
    """10 hits of 100, at 1.96."""
    found = wilson_ends(0.1, math.sqrt(0.1 * 0.9 / 100), 1.96)

    assert found == pytest.approx((0.05522854, 0.17436730), rel=1e-6)
    assert [wilson_ends(1.0, 0.1, 2.0), unseen_ends(0.0, 4, 2.0), unseen_ends(0.5, 4, 2.0)] == [
        (0.0, 1.0),
        (0.0, 0.5),
        (0.25, 0.75),
    ]


def test_the_farther_end_decides_whether_to_stop():
    interval = Interval(0.25, 0.01, 0.125, 0.5)

    totals = doubling_rounds(1_000_000, 100)
    assert [round_needed(*of, 1, totals) for of in ((interval, 0.25), (interval, 0.24), (None, 1e9))] == [1, 2, 2]
    assert interval.report() == {"standard_error": 0.01, "low": 0.125, "high": 0.5}


def test_errors_of_all_rounds_add_up_to_five_percent():
    assert round_level(1) == 0.975
    assert math.isclose(0.05, sum(1 - round_level(number) for number in range(1, 40)), rel_tol=1e-9)


@pytest.mark.parametrize(
    ("half_width", "done", "needed"),
    [
        (None, 1, 2),
        (0.012, 1, 2),  # twice as many edges, at a wider level
        (0.014, 1, 3),
        (0.02, 1, 4),
        (0.3, 1, 5),  # sixteen times as many at most
        (30.0, 1, 5),
        (0.0152, 5, 7),
        (30.0, 14, 15),
        (30.0, 13, 15),
    ],
)
def test_rounds_that_will_not_do_are_passed_over(half_width: float | None, done: int, needed: int) -> None:
    interval = None if half_width is None else Interval(0.5, half_width / 2, 0.5 - half_width, 0.5 + half_width)

    assert round_needed(interval, 0.01, done, doubling_rounds(1_000_000, 100)) == needed
