from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pbgeval.notation import Side
from pbgeval.stats.rank_stats import FRACTION_BITS, MAX_LOSS, RankStats, StatsLayout, by_label, mean_loss, rank_metrics
from pbgeval.stats.ranks import RankCounts
from tests import reference
from tests.kit.counts import counts_of
from tests.reference import Ranks

LAYOUT = StatsLayout((1, 3, 10))
sizes = st.one_of(st.integers(0, 3), st.integers(0, 1 << 33))


def stats_of(of) -> RankStats:
    return RankStats.from_queries(LAYOUT, counts_of(of))


@given(st.lists(st.tuples(sizes, sizes, sizes), min_size=1, max_size=10))
def test_metrics_of_the_sums_are_the_references(of):
    ranks = [Ranks(1 + better, 1 + better + tied, 1 + sum(query)) for query in of for better, tied, _ in [query]]
    stats = stats_of(of)

    expected = reference.rank_metrics(ranks, LAYOUT.cutoffs)
    found = metrics_of(stats)
    competitors = sum(rank.num_candidates - 1 for rank in ranks)
    for rank_type, of_type in expected.items():
        index = 1 - 2 * (of_type["mean_rank"] - 1) * len(ranks) / competitors if competitors else None
        found_index = found.pop(f"{rank_type}.adjusted_mean_rank_index")
        assert found_index == (None if index is None else pytest.approx(index, rel=1e-12, abs=1e-12))
    auc = found.pop("query_auc")
    assert set(found) == {f"{rank_type}.{name}" for rank_type, of_type in expected.items() for name in of_type}
    for rank_type, of_type in expected.items():
        for name, value in of_type.items():
            # A reciprocal is rounded to 2^-58: a mean of tiny ones is off by that at most.
            error = abs(value - found[f"{rank_type}.{name}"])
            assert error <= (2.0**-FRACTION_BITS + 1e-15 * value if name == "mean_reciprocal_rank" else 0)
    assert auc == (None if auc is None else pytest.approx(reference.query_auc(ranks), rel=0, abs=1e-14))


def metrics_of(stats: RankStats) -> dict:
    return rank_metrics(stats.total, LAYOUT.cutoffs, adjusted=True)


def test_both_pools_the_enabled_sides():
    of_side = {Side.LHS: stats_of([(0, 0, 1)]), Side.RHS: stats_of([(1, 0, 0), (2, 0, 3)])}

    labelled = by_label(of_side, (Side.LHS, Side.RHS))

    assert {name: of.total("num_queries") for name, of in labelled.items()} == {"head": 1, "tail": 2, "both": 3}
    assert {name: of.total("num_queries") for name, of in by_label(of_side, (Side.RHS,)).items()} == {
        "tail": 2,
        "both": 2,
    }


def test_further_columns_are_what_they_are_told():
    counts = RankCounts(*torch.tensor([[0, 1], [0, 0], [3, 3]]))
    stats = RankStats.from_queries(
        LAYOUT, counts, num_short_lists=2, num_excluded=3, num_outside=5, known_Q=torch.tensor([1 << 33, 7])
    )

    assert [stats.total(f"num_{name}") for name in ("short_lists", "excluded", "outside")] == [2, 3, 5]
    assert stats.total("known") == (1 << 33) + 7


def test_without_queries_metrics_are_undefined():
    stats = RankStats.zero(LAYOUT)

    assert ({0, None}, {None}, None, stats_of([]).sums.tolist()) == (
        {0 if name.endswith(".count") else None for name in metrics_of(stats)},
        {value for name, value in metrics_of(stats).items() if not name.endswith(".count")},
        mean_loss(stats, 0),
        stats.sums.tolist(),
    )


def stats_of_losses(losses: list[float]) -> RankStats:
    loss_Q = torch.tensor(losses, dtype=torch.float64)
    return RankStats.from_queries(LAYOUT, RankCounts.zero(len(losses)), loss_Q=loss_Q)


@given(st.lists(st.floats(0, 1e8), min_size=1, max_size=8))
def test_the_loss_is_the_mean_over_edges(losses):
    stats = stats_of_losses(losses)

    assert math.isclose(math.fsum(losses) / 4, mean_loss(stats, 4), rel_tol=1e-12, abs_tol=2.0**-30 * len(losses))


def test_losses_that_are_no_usable_number_make_the_mean_undefined():
    for bad in (math.nan, math.inf, -math.inf, MAX_LOSS):
        stats = stats_of_losses([0.5, bad, bad])
        assert (stats.total("num_undefined_losses"), mean_loss(stats, 1)) == (2, None)


tied_queries = st.lists(
    st.tuples(st.integers(0, 12), st.one_of(st.just(0), st.integers(0, 40)), st.integers(0, 3)), max_size=12
)


@given(tied_queries)
def test_means_over_all_orders_of_the_ties_are_those_of_counting_every_place(of):
    stats = stats_of(of)
    places = [[Fraction(better + 1 + at) for at in range(tied + 1)] for better, tied, _ in of]

    def expected(value) -> Fraction:
        return sum((sum(map(value, own), Fraction(0)) / len(own) for own in places), Fraction(0))

    unit = 2**FRACTION_BITS
    name = "mean_reciprocal_rank"
    found = stats.total(f"optimistic.{name}") - stats.total(f"expected_below_optimistic.{name}")
    assert abs(Fraction(found, unit) - expected(lambda rank: 1 / rank)) < Fraction(1, 10**15)
    for cutoff in LAYOUT.cutoffs:
        hits = stats.total(f"optimistic.hits_at_{cutoff}") * unit
        found = hits - stats.total(f"expected_below_optimistic.hits_at_{cutoff}")
        share = expected(lambda rank, cutoff=cutoff: Fraction(rank <= cutoff))
        assert abs(Fraction(found, unit) - share) < Fraction(1, 10**15)
