"""The whole evaluation, from files to the report and the ranks of edges, equals the slow reference.

Filters, at times by time, restrictions and constraints, with all candidate policies. Where float32 is exact every count
of every query is the reference's. Elsewhere a rank may differ by the candidates whose scores lie within the rounding
bound of the true score; copies of the true entity's row tie always.
"""

from __future__ import annotations

import dataclasses
import math
import random
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pbgeval import Report, evaluate
from pbgeval.notation import Bucket as PackageBucket
from pbgeval.storage.row_files import RANK_COLUMNS
from tests import reference
from tests.examples import among, crossed, examples
from tests.kit.graphs import COMPARATORS, OWN_COMPARATORS, Relation, TinyGraph, edge_lists, tiny_graphs
from tests.kit.on_disk import has_file, write_graph
from tests.laws.competition import (
    Case,
    Rules,
    expected_cases,
    macro_figures,
    of_label,
    rank_figures,
    relation_macro_figures,
)
from tests.laws.expected import LABELS, SIDES, Protocol, is_in
from tests.laws.test_order_does_not_matter import SMALL_BLOCKS, with_constants
from tests.saved_ranks import read_ranks

POLICIES = ["all", "partition", "sampled", None]
RANK_TYPES = ("optimistic", "realistic", "pessimistic")
LONG = 2**63 - 1
WINDOWS = (0, 1, 4, LONG)

quick = settings(max_examples=examples(5), suppress_health_check=list(HealthCheck))

Ranks = dict[tuple[int, tuple[int, int], int, str], dict[str, int]]  # by path, bucket, row and hidden side


# What is asked for


@st.composite
def protocols(draw: st.DrawFn, candidates: str | None, *, exact: bool = True, pbg: bool = True) -> Protocol:
    """Any protocol with these candidates; at times with exact ranks, or as PyTorch-BigGraph, if they may be."""
    relations = ("rel",) if candidates in ("all", "partition") and draw(st.booleans()) else ()
    pbg = pbg and candidates != "all" and not relations and draw(st.booleans())
    exact = exact and not relations and not pbg
    return Protocol(
        candidates=candidates,
        num_negs=draw(st.sampled_from([(2, 3), (3, 0), (0, 4), (7, 2)])),
        pbg=pbg,
        slices=draw(st.integers(1, 5)),
        batches_of=draw(st.integers(1, 3)),
        seed=draw(st.integers(0, 3)),
        sides=draw(st.sampled_from([("lhs", "rhs"), ("lhs", "rhs"), ("lhs",), ("rhs",)])) + relations,
        window_rows=draw(st.sampled_from([1 << 17, 1, 4, 7])),
        precision=draw(st.sampled_from(["float32", "float64", *(["exact"] if exact else [])])),
    )


def known_paths(graph: TinyGraph, max_paths: int = 2) -> st.SearchStrategy[list[dict[tuple[int, int], Any]]]:
    sizes = {entity_type: [len(table) for table in tables] for entity_type, tables in graph.embeddings.items()}
    path = st.fixed_dictionaries({bucket: edge_lists(bucket, graph.relations, sizes, 40) for bucket in graph.buckets})
    # As many as there may be, or fewer: of one strategy of lists hypothesis draws the empty one most.
    return st.one_of(st.lists(path, min_size=max_paths, max_size=max_paths), st.lists(path, max_size=max_paths))


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
    source = draw(st.randoms(use_true_random=False))

    def some(of: Sequence[Any]) -> list[Any]:
        return source.sample(of, max(1, round(len(of) * source.choice([0.2, 0.7, 0.95, 1]))))

    entities = some(places) if draw(st.booleans()) else None
    of_side = {}
    for side in ("lhs", "rhs"):
        if draw(st.booleans()):
            of_side[side] = some(entities or places)  # some of restrict_entities, or it is refused as empty
    relations = some(range(len(graph.relations))) if draw(st.booleans()) else None
    observed = bool(filter_edges or train_edges) and draw(st.booleans())
    return Rules(filter_edges, train_edges, entities, relations, of_side, observed=observed)


@st.composite
def timed(draw: st.DrawFn, graphs: list[TinyGraph], rules: Rules, latest: int | None = None) -> Rules:
    """Give every edge a time, of few or of many, and filters that go by them."""
    if not rules.filtered:
        rules = dataclasses.replace(rules, filter_edges=[graphs[0].buckets])
    source = random.Random(draw(st.integers(0, 2**32 - 1)))
    latest = draw(st.sampled_from([0, 2, 5, 40, LONG])) if latest is None else latest
    paths = [graph.buckets for graph in graphs] + [*rules.filter_edges, *rules.train_edges]
    times = [
        {bucket: [source.choice([source.randint(0, latest), latest]) for _ in edges] for bucket, edges in path.items()}
        for path in paths
    ]
    window = draw(st.sampled_from([*WINDOWS, None]))
    until_query = window is None or draw(st.booleans())
    observed = rules.observed and not until_query  # what is observed is of all times, so together they are refused
    return dataclasses.replace(rules, times=times, window=window, until_query=until_query, observed=observed)


@st.composite
def by_degree(draw: st.DrawFn, graph: TinyGraph, rules: Rules, protocol: Protocol) -> tuple[Rules, Protocol]:
    """Draw negatives by degree, too; an edge of every relation in every bucket is trained on, so all can be drawn."""
    [training] = rules.train_edges or [{}]
    each = [(0, relation, 0) for relation in range(len(graph.relations))]
    training = {bucket: [*training.get(bucket, []), *each] for bucket in graph.buckets}
    drawn = {"num_degree": draw(st.integers(1, 4)), "degree_power": draw(st.sampled_from([1.0, 2.0, 0.5]))}
    num_negs = draw(st.sampled_from([protocol.num_negs, (0, 0)]))
    rules = dataclasses.replace(rules, train_edges=[training])
    return rules, dataclasses.replace(protocol, num_negs=num_negs, pbg=False, **drawn)


# What is found


@contextmanager
def evaluated(
    graphs: Sequence[TinyGraph], protocol: Protocol, rules: Rules, small: bool = False, **more: Any
) -> Iterator[tuple[Report, Ranks]]:
    """Evaluate from files with one worker; yields the report and every query of the ranks files that was ranked."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        others = [graph.buckets for graph in graphs[1:]]
        keys = protocol.settings() | rules.settings(graphs[0], protocol.sides) | more
        config = write_graph(graphs[0], Path(folder) / "data", more_edge_paths=others, save_ranks=True, **keys)
        with_constants(stack, {"ranking.sampled_lists.WINDOW_ROWS": protocol.window_rows})
        if small:
            with_constants(stack, SMALL_BLOCKS)
        evaluate(config, output=Path(folder) / "out", workers=1, device="cpu")
        yield Report.read(Path(folder) / "out"), ranks_in(Path(folder) / "out", graphs, protocol.sides)


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


# What is expected


def labels(protocol: Protocol) -> list[str]:
    return [*(LABELS[side] for side in protocol.sides), "both"]


def auc_figures(judged: list[Case]) -> dict[str, float | None]:
    queries = [one.query for one in judged]
    return {
        "query_auc": reference.query_auc([query.ranks for query in queries]),
        "auc": reference.auc(queries) if queries else None,
    }


def assert_equal(expected: Mapping[str, float | None], found: Mapping[str, Any], label: str) -> None:
    """Means of integers are equal; reciprocals are fixed-point numbers, rounded once per query."""
    for name, value in expected.items():
        tolerance = {"rel": 0, "abs": 0} if "mean_rank" in name or "hits" in name else {"abs": 1e-12}
        assert (None if value is None else pytest.approx(value, **tolerance)) == found[f"{label}.{name}"], name


def assert_histograms(judged: list[Case], report: Report, label: str) -> None:
    """Ranks agree query by query, whatever the order: as often as the reference finds a rank, it was found."""
    expected: Counter[tuple[str, float]] = Counter()
    for ranks in (one.query.ranks for one in judged):
        middle = float(reference.realistic(ranks.optimistic, ranks.pessimistic))
        expected.update(zip(RANK_TYPES, (ranks.optimistic, middle, ranks.pessimistic), strict=True))
    rows = [row for row in report.rows["rank_histogram"] if row["side"] == label]
    assert all(row["lower_edge"] == row["upper_edge"] for row in rows)
    assert expected == {(row["rank_type"], row["lower_edge"]): row["count"] for row in rows}


def assert_numbers_of_queries(cases: Sequence[Case], protocol: Protocol, rules: Rules, report: Report) -> None:
    """What holds whether or not scores are rounded."""
    document = report.document
    assert ("filtered" if rules.filtered else "raw", rules.filtered) == (document["filter"], "raw_metrics" in document)
    assert len(cases) == document["num_edges"] * len(protocol.sides)
    assert len(of_label(cases, "both")) == document["num_queries"]
    for label in labels(protocol):
        ranked, found = of_label(cases, label), document["diagnostics"][label]
        ranks = [case.judged(filtered=rules.filtered).query.ranks for case in ranked]
        sizes, ties = [of.num_candidates for of in ranks], [of.pessimistic - of.optimistic for of in ranks]
        mean = float(Fraction(sum(sizes), len(sizes))) if sizes else None
        expected = {
            "num_queries": len(ranked),
            "num_queries_outside": sum(case.is_outside and is_in(case.side, label) for case in cases),
            "num_known_excluded": sum(sum(case.is_known) for case in ranked),
            "num_queries_without_competitors": sizes.count(1),
            "num_candidates": {"min": min(sizes, default=None), "mean": mean, "max": max(sizes, default=None)},
        }
        if all(case.graph.is_exact for case in ranked):
            num_tied = sum(tied > 0 for tied in ties)
            share, mean = (of / len(ties) if ties else None for of in (num_tied, sum(ties)))
            expected |= {"num_tied_queries": num_tied, "tied_share": share, "mean_num_ties": mean}
        assert {name: found[name] for name in expected} == expected
    assert_edge_diagnostics([case for case in cases if case.side == protocol.sides[0]], rules, report)


def assert_edge_diagnostics(edges: Sequence[Case], rules: Rules, report: Report) -> None:
    """Repeated edges, edges that are trained on, entities that are not; a case for each evaluated edge.

    Edges at unlike times are unlike.
    """
    expected = None
    if edges:
        graph = edges[0].graph
        evaluated = [(of.bucket, of.graph.buckets[of.bucket][of.row]) for of in edges]
        named = [(edge[1], *reference.true_entities(graph, bucket, edge).values()) for bucket, edge in evaluated]
        times = [rules.times[of.path_index][of.bucket][of.row] if rules.times else 0 for of in edges]
        at_times = [(lhs, rel, rhs, time) for (rel, lhs, rhs), time in zip(named, times, strict=True)]
        trained, trained_at = set(), set()
        times_of_paths = rules.times[len(rules.times) - len(rules.train_edges) :] or [{}] * len(rules.train_edges)
        for path, times_of_path in zip(rules.train_edges, times_of_paths, strict=True):
            for bucket, of_bucket in path.items():
                for edge, time in zip(of_bucket, times_of_path.get(bucket, [0] * len(of_bucket)), strict=True):
                    [known] = reference.known_edges(graph, {bucket: [edge]})
                    trained.add(known)
                    trained_at.add((*known, time))
        types = [(relation.lhs, relation.rhs) for relation in graph.relations]
        touched = {(types[rel][at], ends[at]) for rel, *ends in named for at in (0, 1)}
        seen = {(types[rel][at], (lhs, rhs)[at]) for lhs, rel, rhs in trained for at in (0, 1)}
        with_training = bool(rules.train_edges)
        expected = {
            "num_edges": len(named),
            "num_repeated": len(named) - len(set(at_times)),
            "num_in_training": sum(edge in trained_at for edge in at_times) if with_training else None,
            "num_entities": len(touched),
            "num_entities_unseen": len(touched - seen) if with_training else None,
        }
    found = report.document["edge_diagnostics"]
    assert found == expected or (expected is None and found["num_edges"] == 0)


def assert_figures(cases: Sequence[Case], found: Mapping[str, Any], label: str, *, filtered: bool) -> None:
    judged = [case.judged(filtered=filtered) for case in of_label(cases, label)]
    assert_equal(rank_figures(judged) | auc_figures(judged), found, label)


def assert_exactly(graphs: Sequence[TinyGraph], protocol: Protocol, rules: Rules, small: bool = False) -> None:
    """Assert the counts of each query, and the figures of all, of each edge path and of each bucket."""
    assert all(graph.is_exact for graph in graphs)
    cases = expected_cases(graphs, protocol, rules)
    with evaluated(graphs, protocol, rules, small) as (report, ranks):
        expected = {
            (case.path_index, case.bucket, case.row, case.side): case.counts() for case in cases if not case.is_outside
        }
        assert ranks == expected
        assert_numbers_of_queries(cases, protocol, rules, report)
        document, filtered = report.document, rules.filtered
        assert set(labels(protocol)) == {key.partition(".")[0] for key in document["metrics"]}
        for label in labels(protocol):
            assert_figures(cases, document["metrics"], label, filtered=filtered)
            if filtered:
                assert_figures(cases, document["raw_metrics"], label, filtered=False)
            ranked = of_label(cases, label)
            if label != "both":
                assert_histograms([case.judged(filtered=filtered) for case in ranked], report, label)
            if rules.window is not None:
                judged = [case.judged(filtered=True, in_time=True) for case in ranked]
                assert_equal(rank_figures(judged, with_auc=True), document["time_filtered_metrics"], label)
            assert_equal(macro_figures(cases, label, filtered=filtered), document["macro_metrics"], label)
            of_relations = relation_macro_figures(cases, label, filtered=filtered)
            assert_equal(of_relations, document["relation_macro_metrics"], label)
            for index, of_path in enumerate(document["edge_paths"]):
                of_cases = [case for case in cases if case.path_index == index]
                assert_figures(of_cases, of_path["metrics"], label, filtered=filtered)
        rows = report.rows["buckets"]
        places = [
            (index, bucket)
            for index, graph in enumerate(graphs)
            for bucket, edges in graph.buckets.items()
            if has_file(bucket, edges)
        ]
        assert [bucket for _, bucket in places] == [(row["lhs_partition"], row["rhs_partition"]) for row in rows]
        for place, row in zip(places, rows, strict=True):
            of_cases = [case for case in cases if (case.path_index, case.bucket) == place]
            assert len(of_cases) == row["num_edges"] * len(protocol.sides)
            judged = [case.judged(filtered=filtered) for case in of_label(of_cases, "both")]
            figures = {name: value for name, value in rank_figures(judged).items() if not name.endswith("count")}
            assert_equal(figures | auc_figures(judged), row, "both")


def doubtful_pairs(judged: list[Case]) -> int:
    """Pairs of a true score and a competitor's that may change places in the pool, where all are float32."""
    every = [(one.query, *one.bounds("float32")) for one in judged]
    pool = [pair for query, _, bounds in every for pair in zip(query.competitors, bounds, strict=True)]
    return sum(abs(score - query.true_score) <= bound + of for query, bound, _ in every for score, of in pool)


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


@pytest.mark.parametrize(
    ("candidates", "rules"), crossed(POLICIES, ["filtered", "raw", "restricted", "by time"], quick=4)
)
@settings(quick, max_examples=examples(12, quick=3))
@given(st.data())
def test_where_float32_is_exact_every_count_and_figure_is_the_references(candidates, rules, data):
    """Of the operators of other systems too, and of a second path with the same edges backwards."""
    own = data.draw(st.booleans())
    graphs = [data.draw(tiny_graphs(exact=True, max_edges=among(16, 40), max_partitions=3, own=own))]
    drawn = Rules() if rules == "raw" else data.draw(all_rules(graphs[0], rules == "restricted"))
    protocol = data.draw(protocols(candidates, exact=not own, pbg=rules != "restricted"))
    if data.draw(st.booleans()):
        backwards = {bucket: edges[::-1] for bucket, edges in graphs[0].buckets.items()}
        graphs.append(dataclasses.replace(graphs[0], buckets=backwards))
    if rules == "by time":
        drawn = data.draw(timed(graphs, drawn))
    assert_exactly(graphs, protocol, drawn, small=data.draw(st.booleans()))


@pytest.mark.slow
@settings(quick, max_examples=examples(24, quick=4))
@given(st.data())
def test_draws_by_degree_are_those_of_exact_weights(data):
    graph = data.draw(tiny_graphs(exact=True, max_edges=16, max_partitions=3))
    rules, protocol = data.draw(all_rules(graph, data.draw(st.booleans()))), data.draw(protocols("sampled"))
    assert_exactly([graph], *reversed(data.draw(by_degree(graph, rules, protocol))), small=data.draw(st.booleans()))


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("candidates", "comparator"), crossed(POLICIES, [*COMPARATORS, *OWN_COMPARATORS], quick=4, thorough=2)
)
@settings(quick, max_examples=examples(8, quick=2))
@given(st.data())
def test_where_scores_are_rounded_only_near_ties_may_differ(candidates, comparator, data):
    own = comparator in OWN_COMPARATORS or data.draw(st.booleans())
    kind = data.draw(st.sampled_from(["normal", "normal", "quarters", "identical"]))
    sizes = {"max_edges": among(8, 16), "max_partitions": among(3, 4)}
    graph = data.draw(tiny_graphs(kind=kind, comparator=comparator, own=own, **sizes))
    restricted = data.draw(st.booleans())
    rules = data.draw(all_rules(graph, restricted))
    protocol = data.draw(protocols(candidates, exact=not own, pbg=not restricted))
    assert_nearly(graph, protocol, rules, small=data.draw(st.booleans()))


@pytest.mark.parametrize("candidates", ["partition", "sampled"])
@pytest.mark.parametrize("edges", [[], [(0, 0, 0)] * 3], ids=["no edge", "one entity"])
def test_what_has_no_edge_or_no_competitor_has_the_figures_of_the_reference(candidates, edges):
    relations = [Relation("follows", "user", "user", "none", {}, {})]
    graph = TinyGraph(relations, {"user": [[[1.0, 0.5]]]}, {}, {(0, 0): edges}, is_quarters=True)

    assert_exactly([graph], Protocol(candidates=candidates), Rules())


@pytest.mark.parametrize("pbg", [False, True], ids=["default", "pbg"])
@pytest.mark.parametrize("loss", ["logistic", "ranking", "softmax"])
@quick
@given(st.data())
def test_losses_are_the_references(loss, pbg, data):
    """In total and in each bucket: the mean over edges of both sides' losses, weighted by relation and by edge."""
    graph = data.draw(tiny_graphs(exact=data.draw(st.booleans()), max_edges=8, max_partitions=2))
    drawn = data.draw(protocols(data.draw(st.sampled_from(["partition", "sampled", None])), exact=False))
    sides = tuple(side for side in drawn.sides if side != "rel")
    margin = data.draw(st.sampled_from([0.0, 0.1, 1.0]))
    protocol = dataclasses.replace(drawn, pbg=pbg, sides=sides, loss=loss, margin=margin)
    source = data.draw(st.randoms(use_true_random=False))
    of_edges = data.draw(st.sampled_from([[1.0], [0.0, 0.5, 3.0]]))
    weights = {bucket: [source.choice(of_edges) for _ in edges] for bucket, edges in graph.buckets.items()}
    cases = expected_cases([graph], protocol, Rules())

    def weighted(of: Sequence[Case], value_of: Any) -> float:
        each = [value_of(case.judged(filtered=False)) * weights[case.bucket][case.row] for case in of]
        return math.fsum(each) * len(sides) / len(of)

    with evaluated([graph], protocol, Rules(), weights=weights) as (report, _):
        written = [bucket for bucket, edges in graph.buckets.items() if has_file(bucket, edges)]
        buckets = [[case for case in cases if case.bucket == bucket] for bucket in written]
        found = [report.document["metrics"]["both.loss"], *(row["both.loss"] for row in report.rows["buckets"])]
        for of, value in zip([cases, *buckets], found, strict=True):
            if not of:
                assert value is None
                continue
            error = 1e-9 if graph.is_exact else weighted(of, Case.loss_error)
            assert value == pytest.approx(weighted(of, lambda one: one.loss(protocol)), rel=1e-5, abs=error)
        if graph.is_exact:  # weights count in the loss alone
            assert_figures(cases, report.document["metrics"], "both", filtered=False)
