"""Small exact graphs with no fast path, each of them alone, and all: every count of a query is the reference's.

Needs no reference data. Here whole evaluations with ties, duplicates and known answers take every path; what else each
path must withstand has its own law.
"""

from __future__ import annotations

import importlib
import random
import re
from pathlib import Path
from typing import NamedTuple

import pytest

import pbgeval
from pbgeval import evaluate
from pbgeval.jit import CompiledLoop
from tests.fast_paths import OF_A_CPU, PATHS, switch, with_needs
from tests.kit.graphs import OPERATORS, Edge, RowSource, TinyGraph, user_relations
from tests.kit.on_disk import write_graph
from tests.laws.competition import Rules, expected_cases, rank_figures
from tests.laws.expected import Protocol
from tests.laws.test_evaluation_equals_reference import assert_equal, ranks_in

DIMENSION = 6
SIZES = (31, 30)  # of the partitions


class Job(NamedTuple):
    """An evaluation, and the paths that it takes, each where it alone is on."""

    paths: tuple[str, ...]
    candidates: str
    operators: tuple[str, ...]
    dynamic: bool = False
    comparator: str = "dot"
    precision: str = "float32"

    def graph(self) -> TinyGraph:
        """Rows of multiples of 1/4, so that scores are exact and tie; some rows and edges are copies of others."""
        draw_row = RowSource(1, is_quarters=True)
        source = draw_row.random
        tables = [[draw_row(DIMENSION) for _ in range(size)] for size in SIZES]
        for table in tables:
            table[7] = list(table[3])
        relations = user_relations(self.operators, DIMENSION, draw_row, dynamic=self.dynamic)
        buckets = {
            (lhs, rhs): edges_among(source, SIZES[lhs], len(relations), SIZES[rhs]) for lhs in (0, 1) for rhs in (0, 1)
        }
        return TinyGraph(
            relations,
            {"user": tables},
            {},
            buckets,
            dynamic=self.dynamic,
            comparator=self.comparator,
            is_quarters=True,
        )


def edges_among(source: random.Random, num_lhs: int, num_relations: int, num_rhs: int) -> list[Edge]:
    """Few entities have most of the edges, so that queries share keys and known answers."""
    edges = [(source.randrange(4), source.randrange(num_relations), source.randrange(num_rhs)) for _ in range(12)]
    return [*edges, *edges[:3], (num_lhs - 1, 0, 3), (7, 0, num_rhs - 1)]


JOBS = {
    "all": Job(("compiled", "blocks", "semi_join", "moved_operators", "repeated_counts", "tiles"), "all", OPERATORS),
    "partition": Job(("compiled", "blocks", "tiles"), "partition", OPERATORS[:3], comparator="squared_l2"),
    "sampled": Job(
        ("compiled", "lists", "semi_join", "clusters"),
        "sampled",
        ("complex_diagonal",) * 3,
        dynamic=True,
    ),
    "exact": Job(
        ("compiled", "blocks", "bfloat16", "float32", "pairs", "values"),
        "all",
        ("translation", "none"),
        comparator="squared_l2",
        precision="exact",
    ),
    "exact lists": Job(
        ("compiled", "exact_lists"), "sampled", ("complex_diagonal",) * 3, dynamic=True, precision="exact"
    ),
    "sums": Job(
        ("compiled", "open_cells", "distances", "pairs"),
        "all",
        ("diagonal", "none"),
        comparator="l1",
        precision="exact",
    ),
}
EACH_ALONE = [(name, path) for name, job in JOBS.items() for path in job.paths]


def assert_counts_are_the_references(job: Job, folder: Path) -> None:
    """Of every query, without and with known answers; and the figures made of them."""
    graph = job.graph()
    assert graph.is_exact
    protocol = Protocol(job.candidates, num_negs=(5, 6), precision=job.precision)
    rules = Rules(filter_edges=[edges_of_others(graph)])
    cases = expected_cases([graph], protocol, rules)
    expected = {(case.path_index, case.bucket, case.row, case.side): case.counts() for case in cases}
    assert {counts["excluded_tied"] > 0 for counts in expected.values()} == {True, False}
    keys = protocol.settings() | rules.settings(graph, protocol.sides)
    # The AUC of so few scores would want all of them.
    config = write_graph(graph, folder / "data", save_ranks=True, metrics=["rank"], **keys)

    report = evaluate(config, output=folder / "out", workers=1)

    assert ranks_in(folder / "out", [graph], protocol.sides) == expected
    for key, filtered in (("metrics", True), ("raw_metrics", False)):
        assert_equal(rank_figures([case.judged(filtered=filtered) for case in cases]), report.document[key], "both")


def edges_of_others(graph: TinyGraph) -> dict[tuple[int, int], list[Edge]]:
    """Known edges beside those that are evaluated: many answers of the same keys."""
    return {
        bucket: [(lhs, rel, at) for lhs, rel, _ in edges[:6] for at in range(0, 30, 2)]
        for bucket, edges in graph.buckets.items()
    }


@pytest.mark.parametrize("name", JOBS)
def test_without_any_fast_path_counts_are_the_references(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = switch(monkeypatch)

    assert_counts_are_the_references(JOBS[name], tmp_path)

    assert taken == set()


@pytest.mark.one_case
@pytest.mark.parametrize(("name", "path"), EACH_ALONE)
def test_with_each_fast_path_alone_counts_are_the_references(
    name: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if path == "tiles":
        request.getfixturevalue("kernel_device")
    taken = switch(monkeypatch, path)

    assert_counts_are_the_references(JOBS[name], tmp_path)

    assert with_needs(path) == taken


@pytest.mark.one_case
@pytest.mark.parametrize("name", JOBS)
def test_with_all_fast_paths_of_a_cpu_counts_are_the_references(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = switch(monkeypatch, *OF_A_CPU)

    assert_counts_are_the_references(JOBS[name], tmp_path)

    assert taken
    assert taken <= set(OF_A_CPU)


def test_every_fast_path_is_taken_by_a_job() -> None:
    assert set(PATHS) == {path for job in JOBS.values() for path in job.paths}


def test_every_compiled_loop_belongs_to_a_fast_path() -> None:
    root = Path(pbgeval.__file__).parent
    loops = [
        loop
        for path in sorted(root.rglob("*.py"))
        if re.search(r"^@.*CompiledLoop", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        for loop in vars(
            importlib.import_module(".".join(("pbgeval", *path.relative_to(root).with_suffix("").parts)))
        ).values()
        if isinstance(loop, CompiledLoop)
    ]

    assert len(loops) > 5
    assert {id(loop) for loop in loops} == {id(loop) for path in PATHS.values() for loop in path.loops}
