from __future__ import annotations

from unittest import mock

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
    st.tuples(st.sampled_from(DIMENSIONS), st.sampled_from(ENDS), keys, sizes, sizes, sizes), max_size=15
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


@settings(max_examples=examples(30))
@given(queries, st.randoms(use_true_random=False), st.integers(1, 4), st.sampled_from([4, module.MAX_PENDING_ROWS]))
def test_each_group_has_the_sums_of_its_own_queries_whatever_the_order_blocks_and_workers(of, random, workers, most):
    expected: dict[str, dict[int, dict[Side, list]]] = {dimension: {} for dimension in (*DIMENSIONS, "unknown")}
    for dimension, side, group, *query in of:
        if group >= 0:
            expected[dimension].setdefault(group, {side: [] for side in ENDS})[side].append(tuple(query))
    shuffled = random.sample(of, len(of))
    merged = GroupedStats(LAYOUT)
    with mock.patch.object(module, "MAX_PENDING_ROWS", most):  # more are added up in between
        for worker in range(workers):
            merged.add_packed(grouped_of(shuffled[worker::workers]).pack())

    for grouped in (grouped_of(of), merged):
        assert {dimension: rows_of(grouped, dimension) for dimension in expected} == {
            dimension: [
                (
                    group,
                    {side: RankStats.from_queries(LAYOUT, counts_of(of[side])).sums.tolist() for side in ENDS},
                )
                for group, of in sorted(groups.items())
            ]
            for dimension, groups in expected.items()
        }
    assert merged.pack().tolist() == grouped_of(of).pack().tolist()


def rows_of(grouped: GroupedStats, dimension: str) -> list[tuple[int, dict[Side, list[int]]]]:
    return [
        (group, {side: of_side[side].sums.tolist() for side in ENDS})
        for group, of_side in grouped.rows(dimension).items()
    ]


def test_queries_are_counted_in_one_column_of_their_groups():
    grouped = GroupedStats(LAYOUT)
    grouped.count("relation", Side.LHS, torch.tensor([2, 0, -1, 0]), "num_outside")

    found = {group: of_side[Side.LHS].total("num_outside") for group, of_side in grouped.rows("relation").items()}
    assert found == {0: 2, 2: 1}
