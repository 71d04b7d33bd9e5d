from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pbgeval import from_ranks
from pbgeval.metrics.summary import all_rank_metrics
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
