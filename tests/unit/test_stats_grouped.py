from __future__ import annotations

from collections import defaultdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pbgeval.notation import ENDS, Side
from pbgeval.stats import grouped as module
from pbgeval.stats.grouped import GroupedStats
from pbgeval.stats.rank_stats import RankStats, StatsLayout
from tests.examples import examples
from tests.kit.counts import counts_of

LAYOUT = StatsLayout((1, 3, 10))
DIMENSIONS = ("relation", "lhs_frequency", "größe")
sizes = st.one_of(st.integers(0, 3), st.integers(0, 1 << 33))
keys = st.one_of(st.integers(-1, 3), st.sampled_from([-(2**62), 2**16 - 1, 2**16, 2**40]))
queries = st.lists(
    st.tuples(st.sampled_from(DIMENSIONS), st.sampled_from(ENDS), keys, sizes, sizes, sizes), max_size=24
)


def grouped_of(of) -> GroupedStats:
    """Add queries, those of one dimension and side at once."""
    grouped = GroupedStats(LAYOUT)
    for dimension in DIMENSIONS:
        for side in ENDS:
            own = [query[2:] for query in of if query[:2] == (dimension, side)]
            group_Q = torch.tensor([group for group, *_ in own], dtype=torch.int64)
            grouped.add(dimension, side, group_Q, counts_of([query[1:] for query in own]))
    return grouped


@settings(max_examples=examples(50))
@given(queries)
def test_each_group_has_the_sums_of_its_own_queries(of):
    grouped = grouped_of(of)

    for dimension in DIMENSIONS:
        expected = defaultdict(lambda: {side: [] for side in ENDS})
        for of_dimension, side, group, *query in of:
            if of_dimension == dimension and group >= 0:
                expected[group][side].append(tuple(query))
        found = grouped.rows(dimension)
        assert sorted(expected) == list(found)
        for group, of_side in expected.items():
            for side, own in of_side.items():
                expected_stats = RankStats.from_queries(LAYOUT, counts_of(own))
                assert expected_stats.sums.tolist() == found[group][side].sums.tolist()


@settings(max_examples=examples(50))
@given(queries, st.randoms(use_true_random=False), st.integers(1, 4))
def test_order_blocks_and_workers_do_not_change_a_bit(of, random, num_workers):
    expected = grouped_of(of)
    shuffled = random.sample(of, len(of))
    parts = [grouped_of(shuffled[worker::num_workers]) for worker in range(num_workers)]

    merged = GroupedStats(LAYOUT)
    for part in parts:
        merged.add_packed(part.pack())

    assert (expected.pack().tolist(), torch.int64) == (merged.pack().tolist(), expected.pack().dtype)


@given(queries.filter(bool))
def test_unranked_queries_are_counted_in_their_column_alone(of):
    grouped = GroupedStats(LAYOUT)
    for dimension, side, group, *_ in of:
        grouped.count(dimension, side, torch.tensor([group, group]), "num_queries")

    for dimension in DIMENSIONS:
        for group, of_side in grouped.rows(dimension).items():
            for side, stats in of_side.items():
                expected = 2 * sum(query[:3] == (dimension, side, group) for query in of)
                assert expected == stats.total("num_queries") == int(stats.sums.sum())


def test_many_parts_are_added_up_in_between(monkeypatch):
    group_Q, counts = torch.tensor([5, 2, 5, 9]), counts_of([(0, 0, 4), (1, 1, 4), (2, 0, 0), (0, 0, 0)])
    expected = GroupedStats(LAYOUT)
    for _ in range(40):
        expected.add("relation", Side.LHS, group_Q, counts)
    monkeypatch.setattr(module, "MAX_PENDING_ROWS", 4)
    grouped = GroupedStats(LAYOUT)
    for _ in range(40):
        grouped.add("relation", Side.LHS, group_Q, counts)

    assert (expected.pack().tolist(), [2, 5, 9], [40, 80, 40], 0) == (
        grouped.pack().tolist(),
        list(grouped.rows("relation")),
        [of_side[Side.LHS].total("num_queries") for of_side in grouped.rows("relation").values()],
        grouped.rows("relation")[2][Side.RHS].total("num_queries"),
    )


@pytest.mark.parametrize("group", [[], [-1, -5]])
def test_without_queries_in_a_group_there_is_nothing(group):
    grouped = GroupedStats(LAYOUT)
    grouped.add("relation", Side.LHS, torch.tensor(group, dtype=torch.int64), counts_of([(0, 0, 1)] * len(group)))
    grouped.add_packed(GroupedStats(LAYOUT).pack())

    assert {} == grouped.rows("relation") == grouped.rows("unknown")
    assert grouped.pack().tolist() == []


def test_unlike_columns_do_not_add():
    other = GroupedStats(StatsLayout((1,)))
    other.add("relation", Side.LHS, torch.tensor([0]), counts_of([(0, 0, 1)]))

    with pytest.raises(ValueError, match="unlike columns"):
        GroupedStats(LAYOUT).add_packed(other.pack())
