"""Differences of paired queries: errors, flips, Student's probabilities, Holm's correction, by slow definitions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbgeval.metrics.paired import Difference, differences, holm
from pbgeval.metrics.paired import values_of as paired_values
from pbgeval.metrics.student import student_quantile, two_sided_probability
from pbgeval.stats import paired
from pbgeval.stats.paired import PairedEdges, PairedKeys, PairedSide, PairedStats
from pbgeval.stats.query_metrics import query_metrics
from pbgeval.stats.rank_types import RankType
from tests import paired_reference
from tests.examples import examples
from tests.paired_reference import Query, value_of

METRICS = query_metrics((1, 3))
NUM_CANDIDATES = 10**7 + 1  # of every query, the true entity included
Counts = tuple[int, int]  # better, tied


class Edge:
    """An edge as tests draw it; a side that is not ranked has no counts."""

    def __init__(
        self,
        group: int,
        unit: int,
        keys: Sequence[int],
        a: Sequence[Counts],
        b: Sequence[Counts],
        ranked: Sequence[bool],
    ):
        self.group, self.unit, self.keys, self.a, self.b, self.ranked = group, unit, keys, a, b, ranked


@st.composite
def edges_of_two_runs(draw: st.DrawFn, most: int = 9, num_groups: int = 2) -> list[Edge]:
    counts = st.tuples(st.integers(0, 4) | st.sampled_from([0, 0, 0, 10**6]), st.sampled_from([0, 0, 1, 2]))
    by_chunk = draw(st.booleans())
    found, unit = [], -1
    for _ in range(draw(st.integers(1, most))):
        if not by_chunk or unit < 0 or draw(st.booleans()):
            unit += 1
        a = [draw(counts), draw(counts)]
        b = [one if draw(st.booleans()) else draw(counts) for one in a]
        ranked = draw(st.sampled_from([(True, True), (True, True), (True, False), (False, True)]))
        group = draw(st.integers(0, num_groups - 1))
        found.append(Edge(group, unit, [draw(st.integers(0, 3)), draw(st.integers(0, 6))], a, b, ranked))
    return found


def values_of(edges: Sequence[Edge], number: int, run: str, rank_type: RankType) -> np.ndarray:
    better, tied = np.array([getattr(edge, run)[number] for edge in edges]).T
    counts = (better.copy(), tied.copy(), np.full(len(edges), NUM_CANDIDATES - 1))
    ranked_E = np.array([edge.ranked[number] for edge in edges])
    return paired_values(METRICS, counts, rank_type) * ranked_E


def block_of(
    edges: Sequence[Edge], sides: Sequence[int], rank_type: RankType, *, with_keys: bool = True
) -> PairedEdges:
    of_sides = []
    for number in sides:
        a_ME, b_ME = (values_of(edges, number, run, rank_type) for run in "ab")
        # As hashes are, keys are spread over all 64 bits and those of unlike groups differ.
        keys = [(edge.keys[number] + 8 * edge.group + 1) * 0x9E3779B97F4A7C15 % 2**64 for edge in edges]
        of_sides.append(
            PairedSide(
                np.array([edge.ranked[number] for edge in edges]),
                a_ME,
                b_ME - a_ME,
                np.array(keys, np.uint64) if with_keys else None,
            )
        )
    groups, units = (np.array([getattr(edge, name) for edge in edges]) for name in ("group", "unit"))
    return PairedEdges(groups, units, tuple(of_sides))


def queries_of(
    edges: Sequence[Edge], sides: Sequence[int], metric: str, rank_type: RankType, *, with_keys: bool = True
) -> list[Query]:
    return [
        Query(
            ["head", "tail"][number],
            place,
            edge.unit,
            (edge.group, edge.keys[number]) if with_keys else None,
            *(value_of(metric, *getattr(edge, run)[number], NUM_CANDIDATES, rank_type.value) for run in "ab"),
        )
        for place, edge in enumerate(edges)
        for number in sides
        if edge.ranked[number]
    ]


def check(found: Difference, queries: Sequence[Query]) -> None:
    near = 1e-9
    a, b, change = (
        float(paired_reference.mean([getattr(query, of) for query in queries])) for of in ("a", "b", "change")
    )
    assert (found.a, found.b) == pytest.approx((a, b), rel=1e-12, abs=near)
    assert change == pytest.approx(found.difference, rel=1e-9, abs=near)
    expected = paired_reference.variance_and_freedom(queries)
    if expected is None:
        assert (found.standard_error, found.low, found.high) == (None, None, None)
    else:
        error, largest = math.sqrt(expected[0]), max(abs(float(query.change)) for query in queries)
        assert error == pytest.approx(found.standard_error, rel=1e-6, abs=2e-6 * largest + near)
        reach = student_quantile(0.95, max(1, int(float(expected[1]) + 1e-9)))
        if error > 1e-3 * largest:  # else the degrees of freedom are those of rounding
            assert change - reach * error == pytest.approx(found.low, rel=1e-6, abs=1e-6 * largest + near)
    differing = [query for query in queries if query.change]
    num_units, num_differing = (len({query.unit for query in of}) for of in (queries, differing))
    if not differing:
        assert (1.0 if num_units > 1 else None) == found.p_value
    elif len({query.edge for query in differing}) > paired.MAX_FLIPPED and expected is not None:
        t = abs(change) / math.sqrt(expected[0])
        assert student_probability(t, float(expected[1])) == pytest.approx(found.p_value, rel=1e-5, abs=1e-9)
    elif num_differing <= 9 and num_units > 1:  # more would take long
        assert float(paired_reference.flip_probability(differing)) == pytest.approx(found.p_value, rel=1e-12)


def student_probability(t: float, freedom: float) -> float:
    with mpmath.workdps(40):
        x = freedom / (freedom + mpmath.mpf(t) ** 2)
        return float(mpmath.betainc(mpmath.mpf(freedom) / 2, 0.5, 0, x, regularized=True))


@settings(max_examples=examples(60))
@given(
    edges=edges_of_two_runs(),
    sides=st.sampled_from([(0, 1), (0,), (1,)]),
    rank_type=st.sampled_from(list(RankType)),
    with_keys=st.booleans(),
)
def test_differences_are_those_of_sums_over_all_pairs_of_queries(
    edges: list[Edge], sides: tuple[int, ...], rank_type: RankType, with_keys: bool
):
    edges = [edge for edge in edges if any(edge.ranked[side] for side in sides)]
    stats = PairedStats.zero(len(METRICS), len(sides), with_keys=with_keys)
    if edges:
        stats.add(block_of(edges, sides, rank_type, with_keys=with_keys))

    whole, groups = (differences(stats, METRICS, by_group=by_group) for by_group in (False, True))
    assert (bool(edges), sorted({edge.group for edge in edges})) == (bool(whole), [of.group for of in groups])
    for of in (*whole, *groups):
        chosen = edges if of in whole else [edge for edge in edges if edge.group == of.group]
        for found in of.differences:
            queries = queries_of(chosen, sides, found.metric, rank_type, with_keys=with_keys)
            assert len(queries) == of.num_queries
            check(found, queries)


def test_too_many_keys_are_joined_within_their_group_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(paired, "MAX_KEYS", 600)
    monkeypatch.setattr(paired, "_PENDING_ROWS", 100)
    words = np.random.default_rng(5)
    table = PairedKeys(2)
    group_Q, change_MQ = words.integers(0, 7, 2700), words.integers(-9, 10, (2, 2700))
    for at in range(0, 2700, 90):
        some = slice(at, at + 90)
        table.add(group_Q[some], words.integers(0, 2**64, 90, dtype=np.uint64), change_MQ[:, some])

    of_groups = [table.sums(group) for group in range(7)]

    assert 600 >= table.sums().shape[1] == sum(of_group.shape[1] for of_group in of_groups) > 7
    for group, (num_K, *change_MK) in enumerate(of_groups):
        assert (group_Q == group).sum() == num_K.sum()
        assert change_MQ[:, group_Q == group].sum(1).tolist() == np.sum(change_MK, 1).tolist()


@pytest.mark.parametrize("freedom", [1.0, 1.5, 2.0, 7.0, 30.25, 999.0, 2e5])
@pytest.mark.parametrize("t", [1e-8, 0.3, 1.0, 1.7, 2.0, 4.5, 12.0, 300.0])
def test_students_probability_is_that_of_the_incomplete_beta_function(t: float, freedom: float):
    expected = student_probability(t, freedom)

    found = two_sided_probability(t, freedom)

    # exp of a logarithm of size x is off by x roundings.
    assert expected == pytest.approx(found, rel=1e-9 + 1e-15 * freedom * 50, abs=1e-300)
    assert found == two_sided_probability(-t, freedom)


def test_student_becomes_the_normal_and_ends_are_exact():
    normal, cases = math.erfc(2.0 / math.sqrt(2)), ((0.0, 3.0), (math.inf, 3.0), (2.0, 1e9), (2.0, 999_999.0))
    assert [two_sided_probability(*of) for of in cases] == [1.0, 0.0, normal, pytest.approx(normal, rel=1e-5)]


def corrected_by_holm(p_values: list[float | None]) -> list[float | None]:
    return [of.p_holm for of in holm([Difference("mrr", 0, 0, 0, None, None, None, p, 1) for p in p_values])]


def test_a_difference_is_significant_where_its_corrected_p_value_is_small():
    differences = holm([Difference("mrr", 0, 0, 0, None, None, None, p, 1) for p in (0.02, 0.03, None, 0.0)])

    assert [of.p_holm for of in differences] == [0.04, 0.04, None, 0.0]
    assert [of.is_significant for of in differences] == [True, True, False, True]
    [alone] = holm([Difference("mrr", 0, 0, 0, None, None, None, 0.05, 1)])
    assert alone.is_significant is False


@given(st.lists(st.floats(0, 1) | st.sampled_from([0.0, 0.01, 0.05, 1.0]), max_size=7), st.floats(0.0001, 0.9999))
def test_holm_rejects_what_the_procedure_rejects(p_values: list[float], alpha: float):
    corrected = corrected_by_holm([*p_values])

    rejected = paired_reference.holm(p_values, alpha)
    for index, (before, p) in enumerate(zip(p_values, corrected, strict=True)):
        assert before <= p <= 1.0
        assert abs(p - alpha) <= 1e-12 or (index in rejected) == (p <= alpha)  # products round


def test_what_has_no_p_value_counts_for_nothing():
    assert (pytest.approx(corrected_by_holm([0.01, None, 0.03])), holm([])) == ([0.02, None, 0.03], [])


@pytest.mark.parametrize(("most", "p_value"), [(paired.MAX_FLIPPED, 2 / 2**5), (5, 2 / 2**5), (4, 0.0)])
def test_a_difference_that_all_queries_share_has_no_error_and_the_p_value_of_flips(
    most: int, p_value: float, monkeypatch: pytest.MonkeyPatch
):
    """While so many edges are kept one by one; of more edges it is Student's."""
    monkeypatch.setattr(paired, "MAX_FLIPPED", most)
    edges = [Edge(0, unit, [unit % 4, unit], [(3, 0)] * 2, [(2, 0)] * 2, (True, True)) for unit in range(5)]
    stats = PairedStats.zero(len(METRICS), 2, with_keys=False)
    stats.add(block_of(edges, (0, 1), RankType.REALISTIC, with_keys=False))

    found = differences(stats, METRICS, by_group=False)[0].differences[0]

    figures = (found.a, found.b, found.difference, found.standard_error, found.low, found.high, found.p_value)
    assert figures == (4.0, 3.0, -1.0, 0.0, -1.0, -1.0, p_value)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 2)), max_size=12))
def test_runs_of_keys_are_in_lexicographic_order(pairs):
    keys = [np.array([pair[at] for pair in pairs], np.int64) for at in (0, 1)]

    order, starts = paired.runs_of(*keys)

    in_order = [pairs[at] for at in order.tolist()]
    assert in_order == sorted(pairs)
    assert starts.tolist() == [at for at, pair in enumerate(in_order) if at == 0 or pair != in_order[at - 1]]
