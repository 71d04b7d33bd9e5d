"""Figures by how often training has seen answers and queries: as a slow reference has them, and from every way."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from fractions import Fraction
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pbgeval import Edges, Report, edge_scorer, evaluate
from pbgeval.config import config_of_keys
from pbgeval.metrics import popularity
from pbgeval.results import saved_run
from tests.examples import examples
from tests.kit import pbg_files
from tests.kit.graphs import TinyGraph, edge_lists, tiny_graphs
from tests.kit.on_disk import write_graph
from tests.kit.refusals import fault_of
from tests.unit.test_report_recompute import (
    EDGES,
    PLACES,
    QUERIES,
    RELATIONS,
    TYPES,
    Counts,
    SavedCase,
    key_of,
)

Link = tuple[Any, ...]
Buckets = dict[tuple[int, int], list[tuple[int, int, int]]]
CUTOFFS = (1, 3)


class Found(NamedTuple):
    """A ranked query of the reference."""

    side: str
    at: int
    rank: Fraction  # realistic, among what is not known


def ends_of(bucket: tuple[int, int], edge: tuple[int, int, int]) -> dict[str, Link]:
    """The entities of an edge as (type, partition, row), by the queries that hide them."""
    lhs, rel, rhs = edge
    places = zip(("head", "tail"), RELATIONS[rel], bucket, (lhs, rhs), strict=True)
    return {side: (name, partition if len(TYPES[name]) > 1 else 0, row) for side, name, partition, row in places}


def training_counts(training: list[Buckets]) -> Counter[Link]:
    """How often each entity occurs at either side, and each (side, relation, entity)."""
    counts: Counter[Link] = Counter()
    for buckets in training:
        for bucket, edges in buckets.items():
            for edge in edges:
                for side, entity in ends_of(bucket, edge).items():
                    counts[entity] += 1
                    counts[side, edge[1], entity] += 1
    return counts


def counts_of(query: Found, counts: Counter[Link]) -> dict[str, int]:
    path_index, bucket, row = PLACES[query.at]
    edge, hidden = EDGES[path_index][bucket][row], query.side
    known = "tail" if hidden == "head" else "head"
    ends = ends_of(bucket, edge)
    return {
        "answer_degree": counts[ends[hidden]],
        "query_degree": counts[ends[known]],
        "answer_half_link": counts[hidden, edge[1], ends[hidden]],
        "query_half_link": counts[known, edge[1], ends[known]],
    }


def averages(queries: list[Found], weight: Callable[[Found], Fraction | float]) -> dict[str, float | None]:
    """Means of realistic ranks; weights are added up as they are."""
    values: dict[str, Callable[[Fraction], Fraction]] = {"mean_reciprocal_rank": lambda rank: 1 / rank}
    values |= {f"hits_at_{k}": lambda rank, k=k: Fraction(rank <= k) for k in CUTOFFS}
    found = {}
    for label, (name, value) in product(("head", "tail", "both"), values.items()):
        of_label = [query for query in queries if label in ("both", query.side)]
        sums = sum(weight(query) * value(query.rank) for query in of_label)
        found[f"{label}.realistic.{name}"] = float(sums / sum(map(weight, of_label))) if of_label else None
    return found


def reciprocal(query: Found) -> Fraction:
    """As it is added up: rounded to 58 bits."""
    return Fraction(round(float(1 / query.rank) * 2**58), 2**58)


def reference(queries: list[Found], training: list[Buckets]) -> dict[str, Any]:
    counts = training_counts(training)
    of_queries = {query: counts_of(query, counts) for query in queries}
    edges = {query.at for query in queries}  # that are ranked on some side
    frequency = Counter(key_of(side, at) for side in ("head", "tail") for at in edges)
    total = sum(map(reciprocal, queries))

    def shares(some: list[Found]) -> dict[str, float]:
        return {"query_share": len(some) / len(queries), "mrr_share": float(sum(map(reciprocal, some)) / total)}

    section = {}
    for measure in popularity.MEASURES:
        count = {query: of[measure] for query, of in of_queries.items()}
        digits = {query: len(str(number)) if number else 0 for query, number in count.items()}
        strata = {size: [query for query in queries if digits[query] == size] for size in sorted(set(digits.values()))}
        rows = [
            {
                **{"at_least": 10 ** (size - 1) if size else 0, "at_most": 10**size - 1, "num_queries": len(members)},
                **shares(members),
                "metrics": averages(members, lambda _: Fraction(1)),
                "macro_metrics": averages(members, lambda q: Fraction(1, frequency[key_of(q.side, q.at)])),
            }
            for size, members in strata.items()
        ]
        popular = {least: [query for query in queries if count[query] >= least] for least in sorted(count.values())}
        halves = [least for least, some in popular.items() if 2 * sum(map(reciprocal, some)) >= total]
        weights = {
            "0.5": lambda query, count=count: (1 + count[query]) ** -0.5,
            "1": lambda query, count=count: Fraction(1, 1 + count[query]),
        }
        section[measure] = {
            "half": {"at_least": halves[-1], **shares(popular[halves[-1]])} if halves else None,
            "strata": rows,
            "stratified": {beta: averages(queries, weight) if queries else {} for beta, weight in weights.items()},
        }
    return section


def leaves(of: Any, at: tuple[object, ...] = ()) -> dict[tuple[object, ...], Any]:
    """Return all that is in dictionaries and lists, by its place; of an empty one the place alone."""
    if not isinstance(of, Mapping | list):
        return {at: of}
    inside = of.items() if isinstance(of, Mapping) else enumerate(of)
    return {at: None} | {place: leaf for key, one in inside for place, leaf in leaves(one, (*at, key)).items()}


def write_training(folder: Path, training: list[Buckets]) -> list[Path]:
    paths = [folder / str(number) for number in range(len(training))]
    for path, buckets in zip(paths, training, strict=True):
        shutil.rmtree(path, ignore_errors=True)
        for bucket, edges in buckets.items():
            lhs, rel, rhs = zip(*edges, strict=True) if edges else ([], [], [])
            pbg_files.write_edges(path, bucket, lhs, rel, rhs)
    return paths


@st.composite
def training_edges(draw: st.DrawFn) -> list[Buckets]:
    """Few entities, so that some have ten edges and more; loops and repeated edges too."""
    relations: list[Any] = [SimpleNamespace(lhs=lhs, rhs=rhs) for lhs, rhs in RELATIONS]
    buckets = list(product((0, 1), repeat=2))
    return [
        {bucket: draw(edge_lists(bucket, relations, TYPES, max_edges=24)) for bucket in buckets}
        for _ in range(draw(st.integers(1, 2)))
    ]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> SavedCase:
    return SavedCase.write(tmp_path_factory.mktemp("saved"))


@pytest.mark.slow
@settings(max_examples=examples(12), suppress_health_check=list(HealthCheck))
@given(
    queries=QUERIES,
    training=training_edges(),
    kept=st.sets(st.integers(0, len(PLACES) - 1), min_size=2),
    rows=st.sampled_from([5, 100]),
)
def test_the_section_equals_the_reference(
    saved: SavedCase,
    tmp_path_factory: pytest.TempPathFactory,
    queries: dict[tuple[str, int], Counts],
    training: list[Buckets],
    kept: set[int],
    rows: int,
) -> None:
    saved.set_counts(queries)
    paths = write_training(tmp_path_factory.getbasetemp() / "training", training)
    places = iter(PLACES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(saved_run, "TRAINING_ROWS", rows)
        report = saved.report.recompute(
            hits_at=CUTOFFS,
            edge_paths=saved.config.edge_paths,
            train_paths=paths,
            breakdowns=["popularity"],
            keep=lambda _path, _bucket, lhs, *_: np.array([PLACES.index(next(places)) in kept for _ in lhs], bool),
        )

    expected = [
        Found(side, at, 1 + of.better - of.excluded_better + Fraction(of.tied - of.excluded_tied, 2))
        for (side, at), of in queries.items()
        if at in kept and of.num_candidates
    ]
    figures, near = leaves(reference(expected, training)), {"rel": 1e-13, "abs": 1e-15}
    assert leaves(report.document["popularity"]) == {
        place: pytest.approx(of, **near) if isinstance(of, float) else of for place, of in figures.items()
    }
    assert all(table.rows for table in report.shown())
    assert bool(expected) == ("make" in repr(report))


@pytest.mark.slow
@settings(max_examples=examples(4), suppress_health_check=list(HealthCheck))
@given(graph=tiny_graphs(max_edges=12, max_partitions=5), candidates=st.sampled_from(["all", "partition", "sampled"]))
def test_an_evaluation_has_the_section_of_its_saved_ranks(
    graph: TinyGraph, candidates: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("run")
    keys: dict[str, Any] = {"train_edges": [graph.buckets], "breakdowns": ["relation", "popularity"]}
    config = write_graph(graph, folder / "data", candidates=candidates, **keys)

    report = evaluate(config, output=folder / "out", workers=1, device="cpu")
    again = Report.read(folder / "out").recompute(
        edge_paths=config.edge_paths, train_paths=config.train_paths, breakdowns=["popularity"]
    )

    assert report.document["popularity"] == again.document["popularity"]
    assert repr(Report.read(folder / "out")) == repr(report)
    for of in report.document["popularity"].values():
        assert report.document["num_queries"] == sum(row["num_queries"] for row in of["strata"])


def test_a_half_of_thirds_is_a_half() -> None:
    """Whose fixed-point sum is a unit short of it."""
    scores = lambda lhs, rel, rhs: torch.where(lhs < 3, rhs, -rhs).float()  # noqa: E731
    scorer = edge_scorer(scores, num_entities=8, num_relations=2)
    test = [[user, 0, 5] for user in range(3)] + [[4, 0, 0]]  # at rank 3, 3, 3 and 1
    edges = Edges(test, train=[[[6, 1, 5], [7, 1, 5], [3, 0, 0]]])
    keys = {"candidates": "all", "disable_lhs_negs": True, "breakdowns": ["popularity"]}

    found = evaluate(config_of_keys(keys), model=scorer, edges=edges).document["popularity"]

    half = {"at_least": 2, "query_share": 0.75, "mrr_share": pytest.approx(0.5)}
    of_links = [(row["at_least"], row["num_queries"]) for row in found["answer_half_link"]["strata"]]
    assert (found["answer_degree"]["half"], of_links) == (
        half,
        [(0, 3), (1, 1)],
    )  # 5 has edges of another relation alone


def test_training_edges_of_another_run_are_refused(tmp_path: Path) -> None:
    case = SavedCase.write(tmp_path, train_edges=[EDGES[0]])
    paths = {"edge_paths": case.config.edge_paths, "train_paths": case.config.edge_paths[1:]}

    fault = fault_of(lambda: case.report.recompute(**paths, breakdowns=["popularity"]))
    assert "expected the training edges of the run, found others" in fault


def test_strata_follow_each_other_without_gaps() -> None:
    strata = [popularity.limits_of(stratum) for stratum in range(len(popularity.LIMITS) + 1)]

    assert (strata[0]["at_least"], strata[-1]["at_most"]) == (0, None)
    assert [of["at_most"] + 1 for of in strata[:-1]] == [of["at_least"] for of in strata[1:]] == [*popularity.LIMITS]
