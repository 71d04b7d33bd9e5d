"""Certified ranks are those of exact arithmetic, for every policy, model, filter, block, worker and product."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import certified_reference
from tests.laws.competition import expected_cases
from tests.laws.test_competition_equals_reference import POLICIES, all_rules, evaluated, protocols
from tests.strategies import tiny_graphs

quick = settings(max_examples=8, suppress_health_check=list(HealthCheck))


def assert_counts_of_exact_arithmetic(graph, candidates, data):
    rules = data.draw(all_rules(graph, data.draw(st.booleans())))
    protocol = dataclasses.replace(data.draw(protocols(candidates)), precision="certified")
    cases = [case for case in expected_cases([graph], protocol, rules) if not case.is_outside]
    expected = {
        (0, case.bucket, case.row, case.side): certified_reference.counts(
            graph, case.bucket, graph.buckets[case.bucket][case.row], case.side, case.others, case.is_known
        )
        for case in cases
    }
    with evaluated([graph], protocol, rules, data.draw(st.booleans())) as (report, found):
        assert expected == found
        decided = report.document["run"]["certified"]
        assert decided["in_float64"] >= 0
        assert decided["exactly"] >= 0


@pytest.mark.parametrize("candidates", POLICIES)
@quick
@given(st.data())
def test_counts_are_those_of_exact_arithmetic(candidates, data):
    """Small multiples of 1/4, identical rows, and normal numbers."""
    assert_counts_of_exact_arithmetic(data.draw(tiny_graphs(max_edges=20, max_partitions=3)), candidates, data)
