from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pbgeval.stats.rank_stats import FRACTION_BITS, MAX_LOSS, RankStats, StatsLayout, mean_loss, rank_metrics
from pbgeval.stats.ranks import QueryCounts, RankCounts
from tests import reference
from tests.kit.counts import counts_of
from tests.reference import Ranks

LAYOUT = StatsLayout((1, 3, 10))
sizes = st.one_of(st.integers(0, 3), st.integers(0, 1 << 33))


@given(st.lists(st.tuples(sizes, sizes, sizes), min_size=1, max_size=10))
def test_metrics_of_the_sums_are_the_references(of):
    """Counts are beyond 2^32; of what evaluations count, figures are compared by tests/laws."""
    ranks = [Ranks(1 + better, 1 + better + tied, 1 + better + tied + beaten) for better, tied, beaten in of]
    found = rank_metrics(RankStats.from_queries(LAYOUT, counts_of(of)).total, LAYOUT.cutoffs)

    # A reciprocal is rounded to 2^-58: a mean of tiny ones is off by that at most. All else is exact, but for the AUC.
    expected = {
        f"{rank_type}.{name}": pytest.approx(value, rel=1e-15, abs=2.0**-FRACTION_BITS)
        if "reciprocal" in name
        else value
        for rank_type, of_type in reference.rank_metrics(ranks, LAYOUT.cutoffs).items()
        for name, value in of_type.items()
    }
    auc = reference.query_auc(ranks)
    assert found == expected | {"query_auc": None if auc is None else pytest.approx(auc, rel=0, abs=1e-14)}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, MAX_LOSS])
def test_losses_that_are_no_usable_number_make_the_mean_undefined(bad):
    loss_Q = torch.tensor([0.5, bad, bad], dtype=torch.float64)
    stats = RankStats.from_queries(LAYOUT, RankCounts.zero(3), loss_Q=loss_Q)

    assert (stats.total("num_undefined_losses"), mean_loss(stats, 1)) == (2, None)


def test_a_bucket_in_which_nothing_is_ranked_joins_those_with_counts_in_time():
    ones = RankCounts(*(torch.ones(2, dtype=torch.int64) for _ in range(3)))
    timed, empty = QueryCounts(ones, ones, ones), QueryCounts.concatenate([])

    joined = QueryCounts.concatenate([empty, timed, empty, timed])

    assert QueryCounts.concatenate([empty, timed.select(slice(0))]).raw.better_Q.tolist() == []
    assert joined.in_time is not None
    assert joined.in_time.better_Q.tolist() == joined.raw.better_Q.tolist() == [1, 1, 1, 1]
