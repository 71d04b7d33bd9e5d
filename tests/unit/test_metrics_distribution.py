from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from pbgeval.metrics.distribution import CandidateGroups, RankDistribution, comparable_weights, weighted_median
from pbgeval.stats.histograms import RankHistograms
from pbgeval.stats.rank_types import RankType
from pbgeval.stats.ranks import RankCounts
from tests import rank_metrics_reference as reference

WEIGHTS = st.one_of(st.integers(0, 4).map(lambda quarters: quarters / 4), st.floats(2.0**-20, 2.0**20))


def distribution_of(ranks, weights) -> RankDistribution:
    weight_Q = comparable_weights(np.array(weights, float))
    num_candidates_Q = np.full(len(weight_Q), 10)
    groups = CandidateGroups.from_queries(num_candidates_Q, weight_Q)
    return RankDistribution.from_queries(np.array(ranks, float), num_candidates_Q, groups, weight_Q)


@given(
    st.lists(st.tuples(st.integers(1, 6), WEIGHTS), min_size=1, max_size=20).filter(lambda of: any(w for _, w in of))
)
def test_the_median_divides_the_weight_in_halves(pairs):
    values = [Fraction(value) for value, _ in pairs]
    total = sum(Fraction(weight) for _, weight in pairs)
    shares = [Fraction(weight) / total for _, weight in pairs]
    by_value = {value: sum(s for v, s in zip(values, shares, strict=True) if v == value) for value in values}
    nearest = min(abs(sum(by_value[v] for v in by_value if v <= value) - Fraction(1, 2)) for value in values)
    assume(nearest == 0 or nearest > Fraction(1, 2**45))  # nearly half, up to rounding: either answer is right
    distribution = distribution_of([float(v) for v in values], [weight for _, weight in pairs])

    assert float(reference.median(values, shares)) == weighted_median(distribution.ranks_K, distribution.weight_K)


def test_rounded_weights_reach_exactly_half():
    """Three thirds and one whole weigh the same, though 1/3 + 1/3 + 1/3 is rounded; so do 5 and 5 tenths."""
    thirds = distribution_of([1, 2, 3, 8], [1 / 3, 1 / 3, 1 / 3, 1])
    tenths = distribution_of(range(1, 11), [0.1] * 10)

    assert weighted_median(thirds.ranks_K, thirds.weight_K) == 5.5
    assert weighted_median(tenths.ranks_K, tenths.weight_K) == 5.5


def test_a_median_is_found_among_many_tiny_weights():
    weight_K = np.concatenate([[1.0], np.full(1000, 2.0**-45), [1.0 - 400 * 2.0**-45]])

    # the first and 300 tiny ones, up to 301, are exactly half: 1 + 300 t = 700 t + 1 - 400 t
    assert weighted_median(np.arange(1.0, 1003.0), weight_K) == 301.5


@given(st.lists(st.integers(1, 2**40), min_size=1, max_size=20).filter(lambda counts: any(n % 2 for n in counts)))
def test_whole_numbers_of_queries_have_the_median_of_any_weights(counts):
    values, weight_K = np.arange(1.0, 2.0 * len(counts), 2.0), np.array(counts, np.float64)

    # half of an odd number is not whole: the general way
    assert weighted_median(values, weight_K / 2) == weighted_median(values, weight_K)


@pytest.mark.parametrize("rank_type", RankType)
def test_histograms_give_ranks_exactly_or_within_the_bound(rank_type):
    generator = random.Random(3)
    for largest, bound in ((1 << 19, 0.0), (1 << 34, 2.0**-11)):
        better = [generator.randrange(largest) for _ in range(500)]
        counts = RankCounts(*map(torch.tensor, (better, [at % 3 for at in range(500)], [largest] * 500)))
        histograms = RankHistograms.from_queries(counts)
        distribution = RankDistribution.from_counts(
            histograms.ranks(rank_type),
            CandidateGroups.from_counts(histograms.num_candidates),
            doubled=rank_type is RankType.REALISTIC,
        )
        exact = np.unique(counts.doubled_rank(rank_type).numpy() / 2.0)
        nearest = distribution.ranks_K[np.abs(distribution.ranks_K[:, None] - exact).argmin(0)]

        assert (np.abs(nearest - exact) <= bound * exact).all()
        assert (distribution.num_queries, distribution.total_weight) == (500, 500)
        groups = distribution.groups
        assert (groups.candidates_G.tolist(), groups.num_queries_G.tolist()) == ([largest + 1], [500])
