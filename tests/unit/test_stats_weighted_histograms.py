from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pbgeval.notation import Side
from pbgeval.stats.grouped import KEY_FREQUENCY, GroupedStats
from pbgeval.stats.histograms import EXACT_BINS, NUM_CANDIDATES, bin_edges, by_class, class_histograms
from pbgeval.stats.rank_stats import StatsLayout
from pbgeval.stats.ranks import RankCounts, RankType

sizes = st.one_of(st.integers(0, 5), st.integers(0, 1 << 33))
queries = st.lists(
    st.tuples(st.sampled_from(Side), st.one_of(st.integers(0, 4), st.integers(0, (1 << 27) - 1)), sizes, sizes, sizes),
    max_size=20,
)


def counts_of(of) -> RankCounts:
    better_Q, tied_Q, beaten_Q = torch.tensor(of, dtype=torch.int64).reshape(-1, 3).unbind(1)
    return RankCounts(better_Q, tied_Q, better_Q + tied_Q + beaten_Q)


def grouped_of(of) -> GroupedStats:
    grouped = GroupedStats(StatsLayout((1, 3)))
    for side in Side:
        own = [query[1:] for query in of if query[0] is side]
        classes = torch.tensor([query[0] for query in own], dtype=torch.int64)
        grouped.add(KEY_FREQUENCY, side, classes, counts_of([query[1:] for query in own]))
    return grouped


def entries(of) -> list[tuple[int, int, int]]:
    return list(zip(*(column.tolist() for column in by_class(of)), strict=True))


@given(queries)
def test_each_class_has_the_values_of_its_own_queries(of):
    grouped = grouped_of(of)

    for side in Side:
        own = [query[1:] for query in of if query[0] is side]
        sizes = Counter((group, better + tied + beaten + 1) for group, better, tied, beaten in own)
        found = entries(grouped.key_histogram(NUM_CANDIDATES, side))
        assert sizes == Counter({(group, value): n for group, value, n in found})
        for rank_type in RankType:
            found = entries(grouped.key_histogram(rank_type.value, side))
            assert len(own) == sum(count for *_, count in found)
            for group, better, tied, _ in own:
                ranks = {"optimistic": 1 + better, "pessimistic": 1 + better + tied, "realistic": 2 + 2 * better + tied}
                value = ranks[rank_type.value]
                holding = [bin_ for of_class, bin_, _ in found if of_class == group and low_high(bin_, value)]
                assert 1 == len(holding)


def low_high(bin_index: int, value: int) -> bool:
    low, high = bin_edges(bin_index)
    assert low == high or value >= EXACT_BINS or not low <= value <= high
    return low <= value <= high


@given(queries, st.integers(1, 4), st.randoms(use_true_random=False))
def test_workers_and_order_do_not_change_a_bit(of, num_workers, random):
    merged = GroupedStats(StatsLayout((1, 3)))
    shuffled = random.sample(of, len(of))
    for worker in range(num_workers):
        merged.add_packed(grouped_of(shuffled[worker::num_workers]).pack())

    assert grouped_of(of).pack().tolist() == merged.pack().tolist()


@pytest.mark.parametrize(("group", "beaten"), [(1 << 27, 1), (1, 1 << 36)])
def test_numbers_beyond_the_packing_are_refused(group, beaten):
    with pytest.raises(ValueError, match="2\\^27"):
        class_histograms(np.array([group]), counts_of([(0, 0, beaten)]))
