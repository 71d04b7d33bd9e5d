"""Estimates from sampled candidates: unbiased for `candidates = "partition"`, with honest errors, in any order."""

from __future__ import annotations

import json
import math
import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any
from unittest import mock

import numpy as np
import pytest
from attrs import evolve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pbgeval.config import EvalConfig
from pbgeval.metrics.estimates import Estimate
from pbgeval.notation import ENDS
from pbgeval.ranking import bucket_pass as bucket_passes
from pbgeval.worker.record import DrawTable
from tests import reference
from tests.examples import examples
from tests.kit.graphs import Relation, TinyGraph, tiny_graphs
from tests.kit.on_disk import write_graph
from tests.laws.competition import Case, Rules, expected_cases
from tests.laws.expected import Protocol
from tests.laws.test_evaluation_equals_reference import all_rules, labels, of_label
from tests.laws.test_order_does_not_matter import result_of
from tests.sampled_estimates_reference import UniformSample, estimates

NUM_SEEDS = 200
FIGURES = ("realistic.mean_rank", "optimistic.adjusted_arithmetic_mean_rank", "pessimistic.adjusted_mean_rank_index",
           "query_auc")  # fmt: skip

some = settings(max_examples=examples(25), suppress_health_check=list(HealthCheck))


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
    found = {}
    for key in keys:
        values = [run[key].value for run in every]
        errors = [run[key].standard_error for run in every]
        assert None not in (*values, *errors), "each query has draws, and there are several lists"
        found[key] = values, [error**2 for error in errors]
    return found


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


@pytest.mark.slow
def test_their_errors_are_too_large_where_queries_differ(tmp_path: Path) -> None:
    """The spread between lists holds that between their queries: with scores at random 2.5 times the draws' own."""
    graph = graph_of({(0, 0): random_edges(4, 200)})
    config = write_graph(
        graph, tmp_path, num_batch_negs=0, num_uniform_negs=8, metrics=["estimates"], candidates="sampled"
    )

    found = by_key([run[False] for run in simulated(config)], ["head.realistic.mean_rank", "tail.query_auc"])

    for key, (values, squares) in found.items():
        assert 2 <= math.sqrt(fmean(squares)) / stdev(values) <= 3, key


# The slow reference


def lists_of(graph: TinyGraph, protocol: Protocol, rules: Rules, cases: Sequence[Case]) -> dict[tuple[Any, ...], int]:
    """Number the lists of draws, by bucket and row of an edge."""
    numbers: dict[tuple[Any, ...], int] = {}
    for bucket, edges in graph.buckets.items():
        evaluated = {case.row for case in cases if case.bucket == bucket}
        batches = reference.default_batches(edges, graph.dynamic, protocol.window)
        batches = [[row for row in batch if row in evaluated] for batch in batches]
        chunks = reference.chunks(
            edges, filter(None, batches), protocol.num_negs, lambda side, rows, count: [0] * count
        )
        for number, chunk in enumerate(chunks, start=len(numbers)):
            numbers |= {(bucket, row): number for row in chunk.rows}
    return numbers


def expected_estimates(
    drawn: Sequence[Case], whole: Sequence[Case], list_of: Mapping[tuple[Any, ...], int], *, filtered: bool
) -> tuple[int, dict[str, Estimate]]:
    """Rebuild arrays of all queries, entity by entity, and return those without draws, and estimates from the rest."""
    rows = []
    without_draws = 0
    for case, among_all in zip(drawn, whole, strict=True):
        assert (case.bucket, case.row, case.side) == (among_all.bucket, among_all.row, among_all.side)
        ranks = case.judged(filtered=filtered).query.ranks
        num_competitors = len(among_all.judged(filtered=filtered).others)
        without_draws += num_competitors > 0 and ranks.num_candidates == 1
        number = 2 * list_of[case.bucket, case.row] + (case.side == "rhs")
        rows.append((ranks.optimistic, ranks.pessimistic, ranks.num_candidates - 1, num_competitors, number))
    if without_draws:
        return without_draws, {}
    columns = list(np.array(rows, np.int64).reshape(-1, 5).T)
    sample = UniformSample(*columns)
    found = estimates(sample)
    if rows and not sample.num_competitors_Q.any():
        found |= {name: Estimate(0.0, 0.0) for name in found if name.endswith("index")}  # as in every report
    return 0, found


def assert_section(figures: Mapping[str, Any], label: str, num_without_draws: int, of: Mapping[str, Estimate]) -> None:
    mine = {key: value for key, value in figures["metrics"].items() if key.startswith(f"{label}.")}
    if num_without_draws:
        assert set(mine.values()) == {None}
        return
    assert {f"{label}.{name}" for name in of} == set(mine)
    for name, estimate in of.items():
        key = f"{label}.{name}"
        interval = figures["intervals"][key]
        if estimate.value is None:
            assert (mine[key], interval) == (None, None)
            continue
        assert mine[key] == pytest.approx(estimate.value, rel=1e-12)
        assert (interval is None) == (estimate.standard_error is None)
        if interval is not None:  # of lists that agree, the roots of roundings are left
            assert interval["standard_error"] == pytest.approx(estimate.standard_error, rel=1e-6, abs=1e-6)
            assert interval["low"] <= mine[key] <= interval["high"]


@pytest.mark.slow
@some
@given(tiny_graphs(exact=True, max_edges=25, max_partitions=2), st.sampled_from([2, 9, 60]), st.booleans(), st.data())
def test_they_are_those_of_arrays_that_the_reference_rebuilds(
    graph: TinyGraph, num_uniform: int, restricted: bool, data: st.DataObject
) -> None:
    protocol = Protocol("sampled", (0, num_uniform), seed=data.draw(st.integers(0, 3)))
    rules = data.draw(all_rules(graph, restricted)) if data.draw(st.booleans()) else Rules()
    drawn = expected_cases([graph], protocol, rules)
    list_of = lists_of(graph, protocol, rules, drawn)
    whole = expected_cases([graph], Protocol("partition"), rules)
    with tempfile.TemporaryDirectory() as folder:
        keys = {**protocol.settings(), **rules.settings(graph), "metrics": ["estimates"]}
        section = result_of(write_graph(graph, Path(folder), **keys), 1).document["estimates"]

    assert ("raw" in section) == rules.filtered
    for filtered in {False, rules.filtered}:
        figures = section if filtered == rules.filtered else section["raw"]
        for label in labels(protocol):
            of_both = [of_label(cases, label) for cases in (drawn, whole)]
            num_without_draws, expected = expected_estimates(*of_both, list_of, filtered=filtered)
            assert_section(figures, label, num_without_draws, expected)
            if label == "both":
                assert num_without_draws == figures["num_queries_without_draws"]


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
