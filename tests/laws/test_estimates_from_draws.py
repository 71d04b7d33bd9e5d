"""Estimates from sampled candidates: unbiased for `candidates = "partition"`, with honest errors, in any order."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any
from unittest import mock

import pytest
from attrs import evolve

from pbgeval.config import EvalConfig
from pbgeval.metrics.estimates import Estimate
from pbgeval.notation import ENDS
from pbgeval.ranking import bucket_pass as bucket_passes
from pbgeval.worker.record import DrawTable
from tests.kit.graphs import Relation, TinyGraph
from tests.kit.on_disk import write_graph
from tests.laws.expected import Protocol
from tests.laws.test_order_does_not_matter import result_of

NUM_SEEDS = 200
FIGURES = ("realistic.mean_rank", "optimistic.adjusted_arithmetic_mean_rank", "pessimistic.adjusted_mean_rank_index",
           "query_auc")  # fmt: skip


# Simulations


def graph_of(edges: Mapping[tuple[int, int], Sequence[tuple[int, int, int]]], num_parts: int = 1) -> TinyGraph:
    """Users and items of exact scores that tie now and then."""
    chance = random.Random(3)
    sizes = {"user": [41, 30][:num_parts], "item": [34, 45][:num_parts]}
    tables = {
        name: [[[chance.randint(-4, 4) / 4 for _ in range(3)] for _ in range(size)] for size in of]
        for name, of in sizes.items()
    }
    relations = [Relation(name, "user", "item", "none", {}, {}) for name in ("likes", "owns")]
    return TinyGraph(relations, tables, {}, {bucket: list(of) for bucket, of in edges.items()}, is_quarters=True)


def random_edges(seed: int, count: int, num_users: int = 30, num_items: int = 34) -> list[tuple[int, int, int]]:
    chance = random.Random(seed)
    return [(chance.randrange(num_users), chance.randrange(2), chance.randrange(num_items)) for _ in range(count)]


GRID = {bucket: random_edges(bucket[0], 30) for bucket in [(0, 1), (1, 0)]}
KNOWN = {bucket: random_edges(50 + sum(bucket), 150) for bucket in GRID}  # hides a quarter of an edge's competitors
RULES: dict[str, dict[str, Any]] = {
    "raw": {},
    "filtered": {"filter_edges": [KNOWN]},
    "filtered, with a type constraint": {"train_edges": [KNOWN], "type_constraint": "observed"},
    "filtered, with sets of heads": {
        "filter_edges": [KNOWN],
        "head_candidates": [f"user:{part}:{row}" for part in range(2) for row in range(3, 30)],
    },
}


def simulated(config: EvalConfig) -> Iterator[dict[bool, dict[str, Estimate]]]:
    """Yield the estimates of many seeds, raw (False) and filtered, by key; all files are read once."""
    with mock.patch("pbgeval.worker.buckets.bucket_pass", side_effect=bucket_passes.bucket_pass) as noted:
        result_of(config, 1)
    for seed in range(NUM_SEEDS):
        table = DrawTable()
        for edges, origin, tables, of_pass, competition, _ in (call.args for call in noted.call_args_list):
            results = bucket_passes.bucket_pass(edges, origin, tables, evolve(of_pass, seed=seed), competition)
            for side, result in results.items():
                table.add(side, result)
        yield {
            filtered: {
                f"{label}.{name}": estimate
                for label, sums in table.sums(list(ENDS), filtered=filtered).items()
                for name, estimate in sums.estimates().items()
            }
            for filtered in (False, True)
        }


def by_key(every: Sequence[dict[str, Estimate]], keys: Sequence[str]) -> dict[str, tuple[list[float], list[float]]]:
    """Return values and squared standard errors of all seeds."""
    return {key: ([run[key].value for run in every], [run[key].standard_error ** 2 for run in every]) for key in keys}


@pytest.mark.slow
@pytest.mark.parametrize(
    "rules", [pytest.param(name, marks=[] if name == "filtered" else [pytest.mark.slow]) for name in RULES]
)
def test_their_mean_over_seeds_is_the_figure_of_whole_partitions(rules: str, tmp_path: Path) -> None:
    graph = graph_of(GRID, 2)
    config = write_graph(
        graph, tmp_path, num_batch_negs=0, num_uniform_negs=24, metrics=["rank", "auc", "estimates"],
        candidates="sampled", **RULES[rules],
    )  # fmt: skip
    exact = result_of(evolve(config, candidates="partition", metrics=["rank", "auc"]), 1).document
    keys = [f"{label}.{name}" for label in ("head", "tail", "both") for name in FIGURES]
    runs = list(simulated(config))

    for filtered in {False, config.filtered}:
        expected = exact["metrics"] if filtered or not config.filtered else exact["raw_metrics"]
        for key, (values, squares) in by_key([run[filtered] for run in runs], keys).items():
            assert abs(fmean(values) - expected[key]) <= 4 * (stdev(values) / math.sqrt(NUM_SEEDS)), (key, filtered)
            assert fmean(squares) >= 0.7 * stdev(values) ** 2, (key, filtered)  # too large where lists' queries differ


@pytest.mark.one_case
@pytest.mark.parametrize("rules", ["raw", "filtered"])
def test_their_errors_are_those_of_the_draws_where_lists_have_like_queries(rules: str, tmp_path: Path) -> None:
    """Every chunk holds the same eight edges; they share its draws, so an error query by query would be too small."""
    edges = {(0, 0): random_edges(1, 8, num_users=41)}
    edges[0, 0] = [(lhs, 0, rhs) for lhs, _, rhs in edges[0, 0]] * 25
    filter_edges = [{(0, 0): random_edges(2, 300)}] if rules == "filtered" else []
    config = write_graph(
        graph_of(edges), tmp_path, num_batch_negs=0, num_uniform_negs=8, metrics=["estimates"], candidates="sampled",
        filter_edges=filter_edges,
    )  # fmt: skip
    keys = [f"{label}.{name}" for label in ("head", "tail") for name in FIGURES]

    found = by_key([run[rules == "filtered"] for run in simulated(config)], keys)

    for key, (values, squares) in found.items():
        assert 0.7 <= fmean(squares) / stdev(values) ** 2 <= 1.4, key


# Order


@pytest.mark.parametrize("overrides", [{"sample_edges": 60}, {"target_error": 1e-6}])
def test_of_a_sample_of_edges_they_tell_of_its_queries(overrides: dict[str, Any], tmp_path: Path) -> None:
    protocol = Protocol("sampled", (0, 6))
    config = write_graph(graph_of(GRID, 2), tmp_path, metrics=["rank", "estimates"], **protocol.settings())
    reports = [result_of(evolve(config, **overrides), size).document for size in (1, 2)]
    whole = result_of(config, 1).document

    sections = [json.dumps(document["estimates"], sort_keys=True) for document in reports]
    assert sections[0] == sections[1]
    if "target_error" in overrides:  # every edge was drawn in the end
        assert whole["num_edges"] == reports[0]["num_edges"]
        for key, value in whole["estimates"]["metrics"].items():
            assert reports[0]["estimates"]["metrics"][key] == pytest.approx(value, rel=1e-12)
    else:
        assert 0 < reports[0]["num_edges"] < whole["num_edges"]
        assert whole["estimates"] != reports[0]["estimates"]
