"""Statistics of counts that many queries share are, to the bit, those of the queries one by one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pbgeval.notation import Side
from pbgeval.stats import ranks as ranking
from pbgeval.stats.grouped import KEY_FREQUENCY, RELATION, GroupedStats
from pbgeval.stats.histograms import RankHistograms
from pbgeval.stats.rank_stats import RankStats, StatsLayout
from pbgeval.stats.ranks import RankCounts
from tests.kit.counts import counts_of

LAYOUT = StatsLayout((1, 3, 10))
NEVER = 1 << 60
few = st.integers(0, 3)
# Groups of any numbers, none (negative), and in any order
groups = st.one_of(st.integers(-1, 3), st.sampled_from([-(2**62), 2**20, 2**26]))
queries = st.lists(st.tuples(groups, few, few, few), min_size=1, max_size=40)


@contextmanager
def looking_for_repeats(fewest: int, codes_per_query: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranking, "MIN_REPEATED", fewest)
        patch.setattr(ranking, "CODES_PER_QUERY", codes_per_query)
        yield


def statistics_of(of: list[tuple[int, int, int, int]]) -> list[np.ndarray]:
    group_Q, counts = torch.tensor([query[0] for query in of]), counts_of([query[1:] for query in of])
    grouped = GroupedStats(LAYOUT)
    for dimension in (RELATION, KEY_FREQUENCY):
        grouped.add(dimension, Side.RHS, group_Q, counts)
    parts = RankHistograms.from_queries(counts).parts
    histograms = [column for part in parts for column in (part.keys, part.counts)]
    return [RankStats.from_queries(LAYOUT, counts).sums.numpy(), grouped.pack(), *histograms]


@given(queries, st.sampled_from([64, 4096]))
def test_statistics_of_repeated_counts_are_those_of_their_queries(of, codes_per_query):
    with looking_for_repeats(NEVER, 0):
        one_by_one = statistics_of(of)
    with looking_for_repeats(1, codes_per_query):
        together = statistics_of(of)

    assert [column.tolist() for column in one_by_one] == [column.tolist() for column in together]


def test_ranks_that_are_all_different_are_left_alone():
    better_Q = torch.arange(0, 1 << 20, 64)
    counts = RankCounts(better_Q, torch.zeros_like(better_Q), torch.full_like(better_Q, 1 << 20))
    assert counts.better_Q.numel() >= ranking.MIN_REPEATED

    assert counts.repeated is None
    assert RankCounts(better_Q[:100] % 3, 0 * better_Q[:100], better_Q[:100] * 0 + 5).repeated is None


@given(queries, st.sampled_from([0, 1, 64]))
def test_counts_come_from_a_device_with_what_they_share(of, codes_per_query):
    counts = counts_of([query[1:] for query in of])

    with looking_for_repeats(1, codes_per_query):
        found, expected = counts.from_device(), counts.repeated

        assert [of.tolist() for of in found.columns] == [of.tolist() for of in counts.columns]
        assert {of.dtype for of in found.columns} == {torch.int64}
        assert (found.repeated is None) is (expected is None)
        if expected is not None:
            assert [of.tolist() for of in found.repeated.counts.columns] == [
                of.tolist() for of in expected.counts.columns
            ]
            for name in ("times_D", "index_Q"):
                of_found, of_expected = getattr(found.repeated, name), getattr(expected, name)
                np.testing.assert_array_equal(of_found, of_expected)
                assert of_found.dtype == of_expected.dtype
