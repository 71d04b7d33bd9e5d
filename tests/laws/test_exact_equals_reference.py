"""Exact ranks are those of exact arithmetic, for every policy, model and filter.

Products of other kinds: tests/unit/test_exact.py. Workers, blocks, memory, partitions and figures: the laws of
other precisions draw this one too.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pbgeval import evaluate
from pbgeval.errors import EvalError
from tests import exact_reference
from tests.examples import examples
from tests.kit.graphs import Relation, TinyGraph, tiny_graphs
from tests.kit.loops import loops_used
from tests.kit.on_disk import write_graph
from tests.laws.competition import expected_cases
from tests.laws.test_evaluation_equals_reference import POLICIES, all_rules, evaluated, protocols

quick = settings(max_examples=examples(8), suppress_health_check=list(HealthCheck))


def assert_counts_of_exact_arithmetic(graph, candidates, data):
    rules = data.draw(all_rules(graph, data.draw(st.booleans())))
    drawn = data.draw(protocols(candidates))
    sides = tuple(side for side in drawn.sides if side != "rel")  # ranks of relations are not exact
    protocol = dataclasses.replace(drawn, precision="exact", sides=sides, pbg=False)
    cases = [case for case in expected_cases([graph], protocol, rules) if not case.is_outside]
    expected = {
        (0, case.bucket, case.row, case.side): exact_reference.counts(
            graph, case.bucket, graph.buckets[case.bucket][case.row], case.side, case.others, case.is_known
        )
        for case in cases
    }
    with evaluated([graph], protocol, rules, data.draw(st.booleans())) as (report, found):
        assert found == expected
        decided = report.run["open_candidates"]
        assert decided["in_float64"] >= 0
        assert decided["exactly"] >= 0


@pytest.mark.one_case
@pytest.mark.parametrize(("candidates", "by_loops"), [*((one, False) for one in POLICIES), ("sampled", True)])
@quick
@given(st.data())
def test_counts_are_those_of_exact_arithmetic(candidates, by_loops, data):
    """Small multiples of 1/4, identical rows, and normal numbers."""
    with loops_used(by_loops):
        assert_counts_of_exact_arithmetic(data.draw(tiny_graphs(max_edges=20, max_partitions=3)), candidates, data)


def graph_of(scale: float, diagonal: float) -> TinyGraph:
    rows = [[scale, -scale], [scale, scale], [-scale, scale], [scale / 2, scale / 4], [scale, -scale]]
    return TinyGraph(
        relations=[Relation("likes", "user", "user", "diagonal", {"diagonal": [diagonal, diagonal]}, {})],
        embeddings={"user": [rows]},
        global_embeddings={},
        buckets={(0, 0): [(0, 0, 1), (3, 0, 2), (4, 0, 0)]},
        comparator="squared_l2",
    )


@pytest.mark.parametrize("candidates", ["all", "partition", "sampled"])
def test_scores_that_overflow_float32_are_ranked(candidates, tmp_path: Path):
    """In float32 one of them is not a number, which is refused."""
    settings = {"candidates": candidates, "num_batch_negs": 2, "num_uniform_negs": 3}
    config = write_graph(graph_of(2.0**100, 2.0), tmp_path / "large", precision="exact", **settings)
    small = write_graph(graph_of(1.0, 2.0), tmp_path / "small", precision="exact", **settings)

    reports = [
        evaluate(one, output=tmp_path / f"out{index}", workers=1, device="cpu")
        for index, one in enumerate((config, small))
    ]

    large, expected = ({key: of for key, of in one.document["metrics"].items() if ".auc" not in key} for one in reports)
    assert large == expected
    in_float32 = write_graph(graph_of(2.0**100, 2.0), tmp_path / "float32", precision="float32", **settings)
    with pytest.raises(EvalError, match="got NaN"):
        evaluate(in_float32, output=tmp_path / "refused", workers=1, device="cpu")


@pytest.mark.parametrize("candidates", ["all", "partition", "sampled"])
def test_vectors_beyond_float32_are_refused_with_a_name(candidates, tmp_path: Path):
    settings = {"candidates": candidates, "num_batch_negs": 2, "num_uniform_negs": 3}
    config = write_graph(graph_of(2.0**100, 2.0**100), tmp_path / "data", precision="exact", **settings)

    with pytest.raises(EvalError, match=r"expected numbers within float32, got larger ones .*'likes'"):
        evaluate(config, output=tmp_path / "out", workers=1, device="cpu")
