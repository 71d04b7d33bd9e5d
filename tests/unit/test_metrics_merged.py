from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pbgeval import from_ranks
from pbgeval.metrics.summary import all_rank_metrics, macro_over_keys
from pbgeval.notation import ENDS, Side
from pbgeval.stats.grouped import KEY_FREQUENCY, GroupedStats
from pbgeval.stats.histograms import RankHistograms
from pbgeval.stats.rank_stats import RankStats, StatsLayout
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


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.sampled_from(ENDS), st.integers(0, 3), *[st.integers(0, 20)] * 3), min_size=1, max_size=25)
)
def test_macro_averages_give_the_metrics_of_the_weighted_ranks(of):
    """The second number is the query's key; a query weighs 1 / (queries of its key)."""
    frequency = Counter(query[:2] for query in of)
    grouped = GroupedStats(LAYOUT)
    for side in ENDS:
        own = [query for query in of if query[0] is side]
        classes = torch.tensor([frequency[query[:2]] for query in own], dtype=torch.int64)
        grouped.add(KEY_FREQUENCY, side, classes, counts_of([query[2:] for query in own]))

    found = macro_over_keys(grouped, tuple(ENDS))

    for label, sides in (("head", [Side.LHS]), ("tail", [Side.RHS]), ("both", list(ENDS))):
        own = [query for query in of if query[0] in sides]
        if not own:
            assert (found[f"{label}.realistic.count"], found[f"{label}.realistic.mean_rank"]) == (0, None)
            continue
        weights = [float(Fraction(1, frequency[query[:2]])) for query in own]
        expected = from_ranks(*ranks_of([query[2:] for query in own]), weights=weights).to_dict(LAYOUT.cutoffs)
        of_label = {
            name.removeprefix(f"{label}."): value for name, value in found.items() if name.startswith(f"{label}.")
        }
        assert_equal(expected, {name: value for name, value in of_label.items() if "auc" not in name})


def test_without_queries_all_is_undefined_but_the_count():
    found = all_rank_metrics(RankStats.zero(LAYOUT), RankHistograms.zero())

    assert {value for name, value in found.items() if name.endswith(".count")} == {0}
    assert {value for name, value in found.items() if not name.endswith(".count")} == {None}
