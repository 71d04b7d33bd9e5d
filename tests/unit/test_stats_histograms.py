from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pbgeval.stats.bins import EXACT_BINS, bin_edges
from pbgeval.stats.histograms import MAX_CLASSES, VALUE_BITS, RankHistograms, class_histograms, rank_bins
from pbgeval.stats.rank_types import RankType
from tests.kit.counts import counts_of

LARGEST = 1 << 40
around_powers = st.builds(lambda bits, by: max(1, (1 << bits) + by), st.integers(18, 39), st.integers(-2, 2))
ranks = st.one_of(
    st.integers(1, 9), st.integers(1, LARGEST), around_powers, st.integers(EXACT_BINS - 3, EXACT_BINS + 3)
)


@given(st.lists(ranks, min_size=1, max_size=20))
def test_a_rank_lies_within_the_edges_of_its_bin(of):
    for rank, index in zip(of, rank_bins(torch.tensor(of)).tolist(), strict=True):
        low, high = bin_edges(index)
        assert low <= rank <= high
        assert low == high if rank < EXACT_BINS else (high - low + 1) * 2**10 <= low
        assert rank_bins(torch.tensor([low, high])).tolist() == [index, index]


@pytest.mark.parametrize(
    "first", [EXACT_BINS - 5, EXACT_BINS, EXACT_BINS + 1023, EXACT_BINS + 1024, EXACT_BINS + 19 * 1024 - 2]
)
def test_bins_follow_each_other_without_gap(first):
    edges = [bin_edges(index) for index in range(first, first + 5)]

    assert all(high + 1 == low for (_, high), (low, _) in pairwise(edges))


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)), max_size=20))
def test_histograms_count_every_query_once_per_rank_type(of):
    histograms = RankHistograms.from_queries(counts_of(of))
    expected = {
        RankType.OPTIMISTIC: Counter(1 + better for better, _, _ in of),
        RankType.REALISTIC: Counter(2 + 2 * better + tied for better, tied, _ in of),
        RankType.PESSIMISTIC: Counter(1 + better + tied for better, tied, _ in of),
    }
    sizes = (Counter(1 + sum(query) for query in of), histograms.num_candidates)
    for counter, found in (*((of, histograms.ranks(rank_type)) for rank_type, of in expected.items()), sizes):
        assert counter == Counter(dict(zip(found.keys.tolist(), found.counts.tolist(), strict=True)))


def test_what_does_not_fit_beside_a_class_is_refused():
    """A class and a value share an int64; a query has one candidate more than competitors."""
    largest, most = np.array([MAX_CLASSES - 1]), counts_of([(0, 0, (1 << VALUE_BITS) - 2)])

    assert [of.keys.tolist()[0] >> VALUE_BITS for of in class_histograms(largest, most)] == [MAX_CLASSES - 1] * 4
    for classes, counts in ((largest + 1, most), (largest, counts_of([(0, 0, (1 << VALUE_BITS) - 1)]))):
        with pytest.raises(ValueError, match="expected classes below 2"):
            class_histograms(classes, counts)
