"""The whole evaluation, from files to the report, equals the slow reference.

Where float32 is exact every rank agrees as an integer. Elsewhere ranks may differ by the candidates whose scores lie
within the rounding bound of the true score, and by no other; copies of the true entity's row tie always.
"""

from __future__ import annotations

import csv
import dataclasses
import math
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pbgeval import Report, evaluate
from pbgeval.stats.query_metrics import query_metrics
from tests import reference
from tests.examples import among, examples
from tests.kit.graphs import TinyGraph, tiny_graphs
from tests.kit.on_disk import write_graph
from tests.laws.expected import LABELS, Judged, Protocol, each_bucket, expected_queries

HITS_AT = (1, 3, 5, 10)
NEGATIVES = {"both": ((2, 3), (3, 2), (5, 1)), "batch only": ((1, 0), (3, 0), (7, 0)), "uniform only": ((0, 1), (0, 4))}
PROTOCOLS = [("partition", "both"), *(("sampled", kind) for kind in NEGATIVES), (None, "both")]
RANK_TYPES = ("optimistic", "realistic", "pessimistic")

Row = Mapping[str, str]

quick = settings(max_examples=examples(8), suppress_health_check=list(HealthCheck))


@st.composite
def protocols(draw: st.DrawFn, candidates: str | None, kind: str, pbg: bool, loss: str | None = None) -> Protocol:
    return Protocol(
        candidates=candidates,
        num_negs=draw(st.sampled_from(NEGATIVES[kind])),
        pbg=pbg,
        slices=draw(st.integers(1, 5)),
        batches_of=draw(st.integers(1, 3)),
        seed=draw(st.integers(0, 3)),
        sides=draw(st.sampled_from([("lhs", "rhs"), ("lhs", "rhs"), ("lhs",), ("rhs",)])),
        loss=loss,
        margin=draw(st.sampled_from([0.0, 0.1, 1.0])),
        precision=draw(st.sampled_from(["float32", "float64"])),
    )


@contextmanager
def evaluated(graph: TinyGraph, protocol: Protocol, **more: Any) -> Iterator[tuple[Report, list[Row]]]:
    """Evaluate a graph from files with one worker; yields the report and the rows of buckets.csv."""
    with tempfile.TemporaryDirectory() as folder:
        config = write_graph(graph, Path(folder) / "data", **protocol.settings(), **more)
        report = evaluate(config, output=Path(folder) / "out", workers=1, device="cpu")
        with (Path(folder) / "out" / "buckets.csv").open(newline="") as file:
            yield report, list(csv.DictReader(file))


def by_label(judged: list[Judged], protocol: Protocol) -> dict[str, list[Judged]]:
    sides = {LABELS[side]: [one for one in judged if one.query.side == side] for side in protocol.sides}
    return {**sides, "both": judged}


# Exact figures


def rank_figures(judged: list[Judged]) -> dict[str, float | None]:
    """`<rank type>.<metric>` of some queries; None where there are none."""
    if not judged:
        names = [metric.name for metric in query_metrics(HITS_AT)]
        return {f"{kind}.{name}": None for kind in RANK_TYPES for name in names} | {
            f"{kind}.count": 0 for kind in RANK_TYPES
        }
    metrics = reference.rank_metrics([one.query.ranks for one in judged], HITS_AT)
    return {f"{kind}.{name}": value for kind, of_kind in metrics.items() for name, value in of_kind.items()}


def auc_figures(judged: list[Judged]) -> dict[str, float | None]:
    queries = [one.query for one in judged]
    pooled = reference.auc(queries) if queries else None
    return {"query_auc": reference.query_auc(query.ranks for query in queries), "auc": pooled}


def assert_equal(expected: Mapping[str, float | None], found: Mapping[str, Any], label: str) -> None:
    """Means of integers are equal; reciprocals are fixed-point numbers, rounded once per query."""
    for name, value in expected.items():
        tolerance = {"rel": 0, "abs": 0} if "mean_rank" in name or "hits" in name else {"abs": 1e-12}
        assert (None if value is None else pytest.approx(value, **tolerance)) == found[f"{label}.{name}"], name


def as_numbers(row: Row) -> dict[str, float | None]:
    return {key: float(value) if value else None for key, value in row.items() if key != "edge_path"}


def assert_histograms(judged: list[Judged], report: Report, label: str) -> None:
    """Ranks agree query by query, whatever the order: as often as the reference finds a rank, it was found."""
    ranks = [one.query.ranks for one in judged]
    expected = {
        "optimistic": Counter(float(r.optimistic) for r in ranks),
        "realistic": Counter(float(reference.realistic(r.optimistic, r.pessimistic)) for r in ranks),
        "pessimistic": Counter(float(r.pessimistic) for r in ranks),
    }
    assert [kind for kind in RANK_TYPES if expected[kind] != found_ranks(report, label, kind)] == []


def found_ranks(report: Report, label: str, kind: str) -> Counter[float]:
    rows = [row for row in report.rows["rank_histogram"] if row["side"] == label and row["rank_type"] == kind]
    assert all(row["lower_edge"] == row["upper_edge"] for row in rows)
    return Counter({row["lower_edge"]: row["count"] for row in rows})


def assert_diagnostics(judged: list[Judged], found: Mapping[str, Any]) -> None:
    ranks = [one.query.ranks for one in judged]
    sizes = [of.num_candidates for of in ranks]
    assert {
        "min": min(sizes, default=None),
        "mean": float(Fraction(sum(sizes), len(sizes))) if sizes else None,
        "max": max(sizes, default=None),
    } == found["num_candidates"]
    assert len(ranks) == found["num_queries"]
    assert sum(of.pessimistic > of.optimistic for of in ranks) == found["num_tied_queries"]
    assert sizes.count(1) == found["num_queries_without_competitors"]


def assert_exactly_the_reference(graph: TinyGraph, protocol: Protocol) -> None:
    assert graph.is_exact
    buckets = dict(each_bucket(graph, protocol))
    with evaluated(graph, protocol) as (report, rows):
        in_total = by_label([one for of_bucket in buckets.values() for one in of_bucket], protocol)
        metrics = report.document["metrics"]
        for label, judged in in_total.items():
            assert_equal(rank_figures(judged) | auc_figures(judged), metrics, label)
            assert_diagnostics(judged, report.document["diagnostics"][label])
            if label != "both":
                assert_histograms(judged, report, label)
        assert set(in_total) == {key.partition(".")[0] for key in metrics}
        assert graph.num_edges == report.document["num_edges"]
        assert list(buckets) == [(int(row["lhs_partition"]), int(row["rhs_partition"])) for row in rows]
        for judged, row in zip(buckets.values(), rows, strict=True):
            figures = {name: value for name, value in rank_figures(judged).items() if not name.endswith("count")}
            assert_equal(figures | auc_figures(judged), as_numbers(row), "both")
            assert len(judged) == int(row["num_edges"]) * len(protocol.sides)


@pytest.mark.one_case
@pytest.mark.parametrize("pbg", [False, True], ids=["default", "pbg"])
@pytest.mark.parametrize(("candidates", "kind"), PROTOCOLS)
@settings(quick, max_examples=examples(15, quick=2))
@given(st.data())
def test_where_float32_is_exact_every_figure_is_the_references(candidates, kind, pbg, data):
    graph = data.draw(tiny_graphs(exact=True, max_edges=among(16, 60)))
    assert_exactly_the_reference(graph, data.draw(protocols(candidates, kind, pbg)))


def test_without_any_edge_every_figure_is_undefined():
    graph = TinyGraph(
        relations=[],
        embeddings={"user": [[[1.0, 0.5]]]},
        global_embeddings={},
        buckets={(0, 0): []},
        is_quarters=True,
    )
    graph.relations.append(one_relation("user", "user"))

    assert_exactly_the_reference(graph, Protocol())


def one_relation(lhs: str, rhs: str, **more: Any) -> Any:
    from tests.kit.graphs import Relation

    return Relation("follows", lhs, rhs, "none", {}, {}, **more)


@pytest.mark.parametrize("candidates", ["partition", "sampled"])
def test_one_entity_has_no_competitor_and_ranks_first(candidates):
    graph = TinyGraph(
        relations=[one_relation("user", "user")],
        embeddings={"user": [[[1.0, 0.5]]]},
        global_embeddings={},
        buckets={(0, 0): [(0, 0, 0)] * 3},
        is_quarters=True,
    )
    protocol = Protocol(candidates=candidates)

    assert_exactly_the_reference(graph, protocol)
    with evaluated(graph, protocol) as (report, _):
        assert tuple(report[name] for name in ("mean_rank", "mrr", "auc", "query_auc")) == (1.0, 1.0, None, None)


@quick
@given(tiny_graphs(exact=True, max_partitions=2, max_edges=8), protocols("sampled", "both", pbg=False))
def test_every_edge_path_has_its_own_draws_and_its_own_figures(graph, protocol):
    """A second path with the same edges backwards: its figures, and those of both paths together."""
    backwards = dataclasses.replace(graph, buckets={bucket: edges[::-1] for bucket, edges in graph.buckets.items()})
    first, second = (
        [one for _, of in each_bucket(of_path, protocol, index) for one in of]
        for index, of_path in enumerate((graph, backwards))
    )

    with evaluated(graph, protocol, more_edge_paths=[backwards.buckets]) as (report, rows):
        figures = [of_path["metrics"] for of_path in report.document["edge_paths"]]
        for label in by_label(first, protocol):
            for of_path, found in zip((first, second), figures, strict=True):
                judged = by_label(of_path, protocol)[label]
                assert_equal(rank_figures(judged) | auc_figures(judged), found, label)
            both = by_label(first + second, protocol)[label]
            assert_equal(rank_figures(both) | auc_figures(both), report.document["metrics"], label)
        assert 2 * len(graph.buckets) == len(rows)


# Losses


@pytest.mark.parametrize("pbg", [False, True], ids=["default", "pbg"])
@pytest.mark.parametrize("loss", ["logistic", "ranking", "softmax"])
@quick
@given(st.data())
def test_losses_are_the_references(loss, pbg, data):
    """In total and in each bucket: the mean over edges of both sides' weighted losses."""
    graph = data.draw(tiny_graphs(exact=data.draw(st.booleans()), max_edges=8, max_partitions=2))
    candidates, kind = data.draw(st.sampled_from(PROTOCOLS))
    protocol = data.draw(protocols(candidates, kind, pbg, loss))
    buckets = [judged for _, judged in each_bucket(graph, protocol)]

    with evaluated(graph, protocol) as (report, rows):
        every = [one for judged in buckets for one in judged]
        found = [report.document["metrics"]["both.loss"], *(as_numbers(row)["both.loss"] for row in rows)]
        for judged, value in zip([every, *buckets], found, strict=True):
            num_edges = len(judged) // len(protocol.sides)
            if not num_edges:
                assert value is None
                continue
            expected = math.fsum(one.loss(protocol) for one in judged) / num_edges
            error = 1e-9 if graph.is_exact else math.fsum(one.loss_error() for one in judged) / num_edges
            assert value == pytest.approx(expected, rel=1e-5, abs=error)


@quick
@given(tiny_graphs(exact=True, max_edges=6, max_partitions=2), st.booleans(), st.randoms(use_true_random=False))
def test_weights_of_edges_count_in_the_loss_alone(graph, pbg, random):
    protocol = Protocol(pbg=pbg, loss="ranking", candidates=None)
    weights = {bucket: [random.choice([0.0, 0.5, 3.0]) for _ in edges] for bucket, edges in graph.buckets.items()}
    every = [one for _, judged in each_bucket(graph, protocol) for one in judged]

    with evaluated(graph, protocol, weights=weights) as (report, _):
        assert_equal(rank_figures(every), report.document["metrics"], "both")
        if every:
            loss = math.fsum(one.loss(protocol) * weights[one.bucket][one.query.row] for one in every)
            assert report["loss"] == pytest.approx(loss / (len(every) / 2), rel=1e-5, abs=1e-9)


# Rounded scores


def doubtful_pairs(judged: list[Judged]) -> int:
    """Pairs of a true score and a competitor's that may change places in the pool, where all are float32."""
    every = [(one.query, *one.bounds("float32")) for one in judged]
    pool = [pair for query, _, bounds in every for pair in zip(query.competitors, bounds, strict=True)]
    return sum(abs(score - query.true_score) <= bound + of for query, bound, _ in every for score, of in pool)


def test_the_rounding_bound_decides_nearly_every_pair_of_normal_scores():
    """A bound that is too wide would let anything pass: of normal embeddings one pair in a hundred is in doubt."""
    strategy = tiny_graphs(kind="normal", comparator="dot", max_edges=20)
    doubtful = pairs = 0

    @settings(max_examples=20, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(strategy)
    def look(graph: TinyGraph) -> None:
        nonlocal doubtful, pairs
        for bucket in graph.buckets:
            for one in expected_queries(graph, Protocol(candidates="partition"), bucket):
                (low, high), _ = one.rank_ranges()
                doubtful, pairs = doubtful + high - low, pairs + len(one.others)

    look()

    assert doubtful <= pairs / 100
