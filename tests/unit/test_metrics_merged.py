from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pbgeval import from_ranks
from pbgeval.metrics.summary import all_rank_metrics, macro_over_keys, macro_over_relations
from pbgeval.notation import ENDS, Side
from pbgeval.stats.grouped import KEY_FREQUENCY, RELATION, GroupedStats
from pbgeval.stats.histograms import RankHistograms
from pbgeval.stats.rank_stats import RankStats, StatsLayout, rank_metrics
from pbgeval.stats.ranks import RankCounts, RankType
from tests.examples import examples
from tests.kit.counts import counts_of

LAYOUT = StatsLayout((1, 3, 10))
queries = st.lists(
    st.tuples(st.integers(0, 30), st.one_of(st.just(0), st.integers(0, 9)), st.integers(0, 200)),
    min_size=1,
    max_size=30,
)


def ranks_of(of) -> tuple[list[int], list[int], list[int]]:
    return [b + 1 for b, _, _ in of], [b + t + 1 for b, t, _ in of], [sum(query) + 1 for query in of]


def assert_equal(expected, found) -> None:
    assert set(found) == set(expected)
    for name, value in expected.items():
        loose = 1e-9 if "z_" in name or "adjusted" in name else 1e-12
        assert found[name] == pytest.approx(value, rel=loose, abs=loose), name


@given(queries, st.integers(1, 4))
def test_merged_statistics_give_the_metrics_of_the_ranks(of, num_parts):
    parts = [part for part in (of[at::num_parts] for at in range(num_parts)) if part]
    stats, histograms = RankStats.zero(LAYOUT), RankHistograms.zero()
    for part in parts:
        stats += RankStats.from_queries(LAYOUT, counts_of(part))
        histograms += RankHistograms.from_queries(counts_of(part))

    assert_equal(from_ranks(*ranks_of(of)).to_dict(LAYOUT.cutoffs), all_rank_metrics(stats, histograms))


# (side, relation, known entity, better, tied, beaten)
keyed_queries = st.lists(
    st.tuples(st.sampled_from(ENDS), *[st.integers(0, 2)] * 2, *[st.integers(0, 20)] * 3), min_size=1, max_size=25
)


def grouped_of(of) -> GroupedStats:
    frequency = Counter(query[:3] for query in of)
    grouped = GroupedStats(LAYOUT)
    for query in of:
        side, relation, _, *numbers = query
        counts = counts_of([numbers])
        grouped.add(RELATION, side, torch.tensor([relation]), counts)
        grouped.add(KEY_FREQUENCY, side, torch.tensor([frequency[query[:3]]]), counts)
    return grouped


@pytest.mark.slow
@settings(max_examples=examples(50))
@given(keyed_queries)
def test_macro_averages_give_the_metrics_of_the_weighted_ranks(of):
    """A query weighs 1 / (queries of its key)."""
    frequency = Counter(query[:3] for query in of)

    found = macro_over_keys(grouped_of(of), tuple(ENDS))

    for label, sides in (("head", [Side.LHS]), ("tail", [Side.RHS]), ("both", list(ENDS))):
        own = [query for query in of if query[0] in sides]
        if not own:
            assert (found[f"{label}.realistic.count"], found[f"{label}.realistic.mean_rank"]) == (0, None)
            continue
        weights = [float(Fraction(1, frequency[query[:3]])) for query in own]
        expected = from_ranks(*ranks_of([query[3:] for query in own]), weights=weights).to_dict(LAYOUT.cutoffs)
        of_label = {
            name.removeprefix(f"{label}."): value for name, value in found.items() if name.startswith(f"{label}.")
        }
        assert_equal(expected, {name: value for name, value in of_label.items() if "auc" not in name})


def test_without_queries_all_is_undefined_but_the_count():
    found = all_rank_metrics(RankStats.zero(LAYOUT), RankHistograms.zero())

    assert {value for name, value in found.items() if name.endswith(".count")} == {0}
    assert {value for name, value in found.items() if not name.endswith(".count")} == {None}


@pytest.mark.slow
@settings(max_examples=examples(25))
@given(keyed_queries)
def test_a_disabled_side_has_no_keys_and_does_not_count(of):
    own = [query for query in of if query[0] is Side.RHS]
    for macro in (macro_over_keys, macro_over_relations):
        expected = macro(grouped_of(own), tuple(ENDS))
        found = macro(grouped_of(of), (Side.RHS,))
        assert {key: value for key, value in expected.items() if not key.startswith("head.")} == found


@pytest.mark.slow
def test_many_weights_are_summed_exactly():
    """A thousand frequencies, each with as many queries of rank 2 as makes their weights one: 1 / f, f times."""
    grouped = GroupedStats(LAYOUT)
    frequency_Q = torch.arange(1, 1001).repeat_interleave(torch.arange(1, 1001))
    one_Q = torch.ones_like(frequency_Q)
    grouped.add(KEY_FREQUENCY, Side.LHS, frequency_Q, RankCounts(one_Q, 0 * one_Q, 3 * one_Q))
    first = grouped.rows(KEY_FREQUENCY)[1][Side.LHS]

    found = macro_over_keys(grouped, tuple(ENDS))

    expected = rank_metrics(first.total, LAYOUT.cutoffs)
    expected |= {f"{rank_type.value}.count": 500500 for rank_type in RankType}
    assert {name: found[f"both.{name}"] for name in expected} == expected
    assert (found["both.realistic.median_rank"], found["both.pessimistic.geometric_mean_rank"]) == (2.0, 2.0)
