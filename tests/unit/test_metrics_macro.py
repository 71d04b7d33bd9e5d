from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pbgeval.metrics.summary import macro_over_keys, macro_over_relations
from pbgeval.notation import ENDS, Side
from pbgeval.stats.grouped import KEY_FREQUENCY, RELATION, GroupedStats
from pbgeval.stats.rank_stats import StatsLayout, rank_metrics
from pbgeval.stats.ranks import RankCounts, RankType
from tests.examples import examples
from tests.kit.counts import counts_of

LAYOUT = StatsLayout((1, 3, 10))
SIDES = tuple(ENDS)
sizes = st.one_of(st.integers(0, 3), st.integers(0, 1 << 33))
# (side, relation, known entity, better, tied, beaten)
queries = st.lists(
    st.tuples(st.sampled_from(ENDS), st.integers(0, 2), st.integers(0, 2), sizes, sizes, sizes), max_size=12
)


def grouped_of(of) -> GroupedStats:
    frequency = Counter(query[:3] for query in of)
    grouped = GroupedStats(LAYOUT)
    for query in of:
        side, relation, _, better, tied, beaten = query
        counts = counts_of([(better, tied, beaten)])
        grouped.add(RELATION, side, torch.tensor([relation]), counts)
        grouped.add(KEY_FREQUENCY, side, torch.tensor([frequency[query[:3]]]), counts)
    return grouped


@pytest.mark.slow
@settings(max_examples=examples(25))
@given(queries)
def test_a_disabled_side_has_no_keys_and_does_not_count(of):
    own = [query for query in of if query[0] is Side.RHS]
    for macro in (macro_over_keys, macro_over_relations):
        expected = macro(grouped_of(own), SIDES)
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

    found = macro_over_keys(grouped, SIDES)

    expected = rank_metrics(first.total, LAYOUT.cutoffs)
    expected |= {f"{rank_type.value}.count": 500500 for rank_type in RankType}
    assert {name: found[f"both.{name}"] for name in expected} == expected
    assert (found["both.realistic.median_rank"], found["both.pessimistic.geometric_mean_rank"]) == (2.0, 2.0)
