"""Filters, restrictions and constraints, with all candidate policies, from files to the report and the ranks of edges.

Where float32 is exact every count of every query is the reference's. Elsewhere a rank may differ by the candidates
whose scores lie within the rounding bound of the true score; copies of the true entity's row tie always.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pbgeval import Report, evaluate
from pbgeval.notation import Bucket as PackageBucket
from pbgeval.storage.row_files import RANK_COLUMNS
from tests import reference
from tests.examples import among, examples
from tests.kit.graphs import TinyGraph, edge_lists, tiny_graphs
from tests.kit.on_disk import write_graph
from tests.laws.competition import Case, Rules, expected_cases, macro_figures, relation_macro_figures
from tests.laws.expected import LABELS, SIDES, Draws, Protocol, is_in
from tests.laws.test_evaluation_equals_reference import assert_equal, auc_figures, doubtful_pairs, rank_figures
from tests.laws.test_order_does_not_matter import SMALL_BLOCKS, with_constants
from tests.saved_ranks import read_ranks

POLICIES = ["all", "partition", "sampled", None]

quick = settings(max_examples=examples(5), suppress_health_check=list(HealthCheck))

Ranks = dict[tuple[int, tuple[int, int], int, str], dict[str, int]]  # by path, bucket, row and hidden side


@st.composite
def protocols(draw: st.DrawFn, candidates: str | None, *, hides_relations: bool = False) -> Protocol:
    relations = ("rel",) if hides_relations or ((candidates in ("all", "partition")) and draw(st.booleans())) else ()
    return Protocol(
        candidates=candidates,
        num_negs=draw(st.sampled_from([(2, 3), (3, 0), (0, 4), (7, 2)])),
        seed=draw(st.integers(0, 3)),
        sides=draw(st.sampled_from([("lhs", "rhs"), ("lhs", "rhs"), ("lhs",), ("rhs",)])) + relations,
        precision=draw(st.sampled_from(["float32", "float64", *([] if relations else ["certified"])])),
    )


def known_paths(graph: TinyGraph, max_paths: int = 2) -> st.SearchStrategy[list[dict[tuple[int, int], Any]]]:
    sizes = {entity_type: [len(table) for table in tables] for entity_type, tables in graph.embeddings.items()}
    path = st.fixed_dictionaries({bucket: edge_lists(bucket, graph.relations, sizes, 40) for bucket in graph.buckets})
    return st.lists(path, max_size=max_paths)


@st.composite
def all_rules(draw: st.DrawFn, graph: TinyGraph, restricted: bool) -> Rules:
    """Known edges, at times; and if `restricted`, sets of entities and relations, each at times."""
    filter_edges, train_edges = draw(known_paths(graph)), draw(known_paths(graph, 1))
    if not restricted:
        if not (filter_edges or train_edges):
            filter_edges = [graph.buckets]
        return Rules(filter_edges, train_edges)
    used = sorted({of_type for relation in graph.relations for of_type in (relation.lhs, relation.rhs)})
    places = [
        (of_type, part, row)
        for of_type in used
        for part, table in enumerate(graph.embeddings[of_type])
        for row in range(len(table))
    ]
    random = draw(st.randoms(use_true_random=False))

    def some(of: Sequence[Any]) -> list[Any]:
        return random.sample(of, max(1, round(len(of) * random.choice([0.2, 0.7, 0.95, 1]))))

    entities = some(places) if draw(st.booleans()) else None
    of_side = {}
    for side in ("lhs", "rhs"):
        if draw(st.booleans()):
            of_side[side] = some(entities or places)  # some of restrict_entities, or it is refused as empty
    relations = some(range(len(graph.relations))) if draw(st.booleans()) else None
    return Rules(filter_edges, train_edges, entities, relations, of_side, observed=draw(st.booleans()))


@st.composite
def by_degree(draw: st.DrawFn, graph: TinyGraph, rules: Rules, protocol: Protocol) -> tuple[Rules, Protocol]:
    """Draw negatives by degree, too; an edge of every relation in every bucket is trained on, so all can be drawn."""
    [training] = rules.train_edges or [{}]
    each = [(0, relation, 0) for relation in range(len(graph.relations))]
    training = {bucket: [*training.get(bucket, []), *each] for bucket in graph.buckets}
    drawn = {"num_degree": draw(st.integers(1, 4)), "degree_power": draw(st.sampled_from([1.0, 2.0, 0.5]))}
    num_negs = draw(st.sampled_from([protocol.num_negs, (0, 0)]))
    rules = dataclasses.replace(rules, train_edges=[training])
    return rules, dataclasses.replace(protocol, num_negs=num_negs, **drawn)


@contextmanager
def evaluated(
    graphs: Sequence[TinyGraph], protocol: Protocol, rules: Rules, small: bool
) -> Iterator[tuple[Report, Ranks]]:
    """Evaluate from files with one worker; yields the report and every query of the ranks files that was ranked."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        more = [graph.buckets for graph in graphs[1:]]
        keys = protocol.settings() | rules.settings(graphs[0])
        config = write_graph(graphs[0], Path(folder) / "data", more_edge_paths=more, save_ranks=True, **keys)
        stack.enter_context(without_fsync())
        if small:
            with_constants(stack, SMALL_BLOCKS)
        report = evaluate(config, output=Path(folder) / "out", workers=1, device="cpu")
        yield report, ranks_in(Path(folder) / "out", graphs, protocol.sides)


def without_fsync() -> Any:
    """Most of the time of so small a run would be spent on making its files durable."""
    return mock.patch("os.fsync")


def ranks_in(output: Path, graphs: Sequence[TinyGraph], sides: Sequence[str]) -> Ranks:
    found: Ranks = {}
    for path_index, graph in enumerate(graphs):
        for bucket, edges in graph.buckets.items():
            if not edges:
                continue
            ranks = read_ranks(output, path_index, PackageBucket(*bucket))
            assert len(edges) == ranks.num_edges
            assert [SIDES[side] for side in sides] == sorted(ranks.columns, key=lambda side: side.value)
            for side in sides:
                columns = ranks.columns[SIDES[side]]
                for row in range(len(edges)):
                    counts = {name: int(columns[name][row]) for name in RANK_COLUMNS}
                    if counts["num_candidates"]:
                        found[path_index, bucket, row, side] = counts
                    else:
                        assert not any(counts.values())
    return found


def of_label(cases: Sequence[Case], label: str) -> list[Case]:
    return [case for case in cases if not case.is_outside and is_in(case.side, label)]


def labels(protocol: Protocol) -> list[str]:
    return [*(LABELS[side] for side in protocol.sides), "both"]


def assert_numbers_of_queries(cases: Sequence[Case], protocol: Protocol, rules: Rules, report: Report) -> None:
    """What holds whether or not scores are rounded."""
    document = report.document
    assert ("filtered" if rules.filtered else "raw", rules.filtered) == (document["filter"], "raw_metrics" in document)
    assert len(cases) == document["num_edges"] * len(protocol.sides)
    assert len(of_label(cases, "both")) == document["num_queries"]
    for label in labels(protocol):
        ranked, found = of_label(cases, label), document["diagnostics"][label]
        outside = sum(case.is_outside and is_in(case.side, label) for case in cases)
        assert (len(ranked), outside) == (found["num_queries"], found["num_queries_outside"])
        assert sum(sum(case.is_known) for case in ranked) == found["num_known_excluded"]
        alone = sum(not case.judged(filtered=rules.filtered).others for case in ranked)
        assert alone == found["num_queries_without_competitors"]
        ties = [case.counts()["tied"] - (rules.filtered and case.counts()["excluded_tied"]) for case in ranked]
        if all(case.graph.is_exact for case in ranked):
            share = sum(tied > 0 for tied in ties) / len(ties) if ties else None
            assert (share, sum(ties) / len(ties) if ties else None) == (found["tied_share"], found["mean_num_ties"])
    assert_edge_diagnostics([case for case in cases if case.side == protocol.sides[0]], rules, report)


def assert_edge_diagnostics(edges: Sequence[Case], rules: Rules, report: Report) -> None:
    """Repeated edges, edges that are trained on, entities that are not; a case for each evaluated edge."""
    expected = None
    if edges:
        graph = edges[0].graph
        evaluated = [(of.bucket, of.graph.buckets[of.bucket][of.row]) for of in edges]
        named = [(edge[1], *reference.true_entities(graph, bucket, edge).values()) for bucket, edge in evaluated]
        trained = {known for path in rules.train_edges for known in reference.known_edges(graph, path)}
        types = [(relation.lhs, relation.rhs) for relation in graph.relations]
        touched = {(types[rel][at], ends[at]) for rel, *ends in named for at in (0, 1)}
        seen = {(types[rel][at], (lhs, rhs)[at]) for lhs, rel, rhs in trained for at in (0, 1)}
        with_training = bool(rules.train_edges)
        expected = {
            "num_edges": len(named),
            "num_repeated": len(named) - len(set(named)),
            "num_in_training": sum((lhs, rel, rhs) in trained for rel, lhs, rhs in named) if with_training else None,
            "num_entities": len(touched),
            "num_entities_unseen": len(touched - seen) if with_training else None,
        }
    found = report.document["edge_diagnostics"]
    assert found == expected or (expected is None and found["num_edges"] == 0)


def assert_exactly(graphs: Sequence[TinyGraph], protocol: Protocol, rules: Rules, small: bool = False) -> None:
    assert all(graph.is_exact for graph in graphs)
    cases = expected_cases(graphs, protocol, rules)
    with evaluated(graphs, protocol, rules, small) as (report, ranks):
        expected = {
            (case.path_index, case.bucket, case.row, case.side): case.counts() for case in cases if not case.is_outside
        }
        assert ranks == expected
        assert_numbers_of_queries(cases, protocol, rules, report)
        for label in labels(protocol):
            ranked = of_label(cases, label)
            for key, filtered in (("metrics", rules.filtered), ("raw_metrics", False)):
                if key in report.document:
                    judged = [case.judged(filtered=filtered) for case in ranked]
                    assert_equal(rank_figures(judged) | auc_figures(judged), report.document[key], label)
            if rules.window is not None:
                judged = [case.judged(filtered=True, in_time=True) for case in ranked]
                expected_auc = {"query_auc": auc_figures(judged)["query_auc"]}
                assert_equal(rank_figures(judged) | expected_auc, report.document["time_filtered_metrics"], label)
            macro = macro_figures(cases, label, filtered=rules.filtered)
            assert_equal(macro, report.document["macro_metrics"], label)
            macro = relation_macro_figures(cases, label, filtered=rules.filtered)
            assert_equal(macro, report.document["relation_macro_metrics"], label)


def assert_nearly(graph: TinyGraph, protocol: Protocol, rules: Rules, small: bool) -> None:
    cases = expected_cases([graph], protocol, rules)
    with evaluated([graph], protocol, rules, small) as (report, ranks):
        assert_numbers_of_queries(cases, protocol, rules, report)
        every = (case for label in LABELS.values() for case in of_label(cases, label))
        ranked = {(0, case.bucket, case.row, case.side): case for case in every}
        assert ranked.keys() == ranks.keys()
        for key, case in ranked.items():
            found = ranks[key]
            assert (len(case.others) + 1, sum(case.is_known)) == (found["num_candidates"], found["num_excluded"])
            raw = 1 + found["better"], 1 + found["better"] + found["tied"]
            excluded = found["excluded_better"], found["excluded_better"] + found["excluded_tied"]
            assert_in_ranges(case, raw, filtered=False)
            assert_in_ranges(case, (raw[0] - excluded[0], raw[1] - excluded[1]), filtered=True)
        for label in labels(protocol):
            judged = [case.judged(filtered=rules.filtered) for case in of_label(cases, label)]
            pooled, found_auc = auc_figures(judged)["auc"], report.document["metrics"][f"{label}.auc"]
            assert (pooled is None) == (found_auc is None)
            if pooled is not None:
                num_pairs = len(judged) * sum(len(one.others) for one in judged)
                assert abs(pooled - found_auc) <= doubtful_pairs(judged) / num_pairs + 1e-12


def assert_in_ranges(case: Case, found: tuple[int, int], *, filtered: bool) -> None:
    for rank, (low, high) in zip(found, case.judged(filtered=filtered).rank_ranges(), strict=True):
        assert low <= rank <= high


# Laws


@pytest.mark.parametrize("candidates", ["all", "partition", "sampled"])
@settings(quick, max_examples=examples(5))
@given(st.data())
def test_without_restrictions_those_who_compete_here_are_the_references(candidates, data):
    graph = data.draw(tiny_graphs(max_edges=8))
    rules, protocol = data.draw(all_rules(graph, restricted=False)), data.draw(protocols(candidates))
    every = [graph.buckets, *rules.filter_edges, *rules.train_edges]
    known = set().union(*(reference.known_edges(graph, buckets) for buckets in every))
    cases = expected_cases([graph], protocol, rules)

    for bucket, edges in graph.buckets.items():
        if candidates == "sampled":
            batches = [of for of in reference.default_batches(edges, graph.dynamic, protocol.window) if of]
            chunks = reference.chunks(edges, batches, protocol.num_negs, Draws(graph, protocol, bucket, 0))
            queries = reference.sampled_queries(graph, bucket, chunks, known)
        else:
            queries = reference.full_queries(graph, bucket, candidates, known)
        expected = {(query.row, query.side): query.ranks for query in queries if query.side in protocol.sides}
        here = [case for case in cases if case.bucket == bucket and case.side != "rel"]
        assert {(case.row, case.side): case.judged(filtered=True).query.ranks for case in here} == expected


@pytest.mark.one_case
@pytest.mark.parametrize("restricted", [False, True], ids=["filtered", "restricted"])
@pytest.mark.parametrize("candidates", POLICIES)
@settings(quick, max_examples=examples(12, quick=2))
@given(st.data())
def test_where_float32_is_exact_every_count_is_the_references(candidates, restricted, data):
    graph = data.draw(tiny_graphs(exact=True, max_edges=among(16, 40)))
    rules, protocol = data.draw(all_rules(graph, restricted)), data.draw(protocols(candidates))
    assert_exactly([graph], protocol, rules, small=data.draw(st.booleans()))


@pytest.mark.slow
@settings(quick, max_examples=examples(24, quick=4))
@given(st.data())
def test_draws_by_degree_are_those_of_exact_weights(data):
    graph = data.draw(tiny_graphs(exact=True, max_edges=16, max_partitions=3))
    rules, protocol = data.draw(all_rules(graph, data.draw(st.booleans()))), data.draw(protocols("sampled"))
    assert_exactly([graph], *reversed(data.draw(by_degree(graph, rules, protocol))), small=data.draw(st.booleans()))


@pytest.mark.one_case
@pytest.mark.parametrize("comparator", ["dot", "cos", "l2", "squared_l2"])
@pytest.mark.parametrize("candidates", ["all", "all but restricted", "partition", "sampled"])
@settings(quick, max_examples=examples(6, quick=1))
@given(st.data())
def test_where_scores_are_rounded_only_near_ties_may_differ(candidates, comparator, data):
    kind = data.draw(st.sampled_from(["normal", "normal", "quarters", "identical"]))
    graph = data.draw(tiny_graphs(kind=kind, comparator=comparator, max_edges=among(8, 16), max_partitions=among(3, 4)))
    restricted = candidates != "all" and data.draw(st.booleans())
    rules, protocol = data.draw(all_rules(graph, restricted)), data.draw(protocols(candidates.split()[0]))
    assert_nearly(graph, protocol, rules, small=data.draw(st.booleans()))


@pytest.mark.parametrize("candidates", POLICIES)
@settings(quick, max_examples=examples(3))
@given(st.data())
def test_edges_of_every_path_are_known_to_all_and_share_their_keys(candidates, data):
    graph = data.draw(tiny_graphs(exact=True, max_edges=10, max_partitions=2))
    second = {bucket: edges[::-1] for bucket, edges in graph.buckets.items()}
    graphs = [graph, dataclasses.replace(graph, buckets=second)]
    rules, protocol = data.draw(all_rules(graph, data.draw(st.booleans()))), data.draw(protocols(candidates))
    assert_exactly(graphs, protocol, rules)
