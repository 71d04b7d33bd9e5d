"""Queries for types of a hierarchy: NDCG by a slow sort, ties by their mean; the same bits for any layout of work."""

from __future__ import annotations

import json
import random
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pbgeval.report.report import Report
from tests import reference
from tests.kit.graphs import Relation, TinyGraph
from tests.kit.on_disk import write_graph
from tests.laws.test_order_does_not_matter import SMALL_BLOCKS, comparable, result_in, with_constants
from tests.unit.test_gain_levels import slow_dcg
from tests.unit.test_metrics_type_ndcg import slow_gain
from tests.unit.test_taxonomy import DATA

HITS_AT = [1, 3, 7]
KINDS = [
    ["person", "performer", "thing", "statesman", "figure", "club"],
    ["being", "nonsense", "horse", "jumper", "guild"],
]
VARIANTS = {
    "ndcg_jk": (False, True),
    "ndcg_standard": (False, False),
    "exponential_ndcg_jk": (True, True),
    "exponential_ndcg_standard": (True, False),
}
IS_A, MADE_OF = 1, 2


def row(source: random.Random) -> list[float]:
    return [source.choice([-0.5, 0.25, 0.25, 1.0]) for _ in range(2)]


def typed_graph(*, dynamic: bool, seed: int = 5) -> tuple[TinyGraph, dict[tuple[int, int], list]]:
    """Two relations to types among three, few distinct vectors so that scores tie; and known edges besides."""
    source = random.Random(seed)
    kind = "user" if dynamic else "kind"
    sizes = {"user": [6, 5], "kind": [6, 5]}
    embeddings = {
        name: [[row(source) for _ in range(size)] for size in sizes[name]] for name in dict.fromkeys(["user", kind])
    }
    params = ({"translation": [0.25, -0.5]}, {"translation": [0.0, 0.25]})
    relations = [
        Relation(name, "user", target, "translation", params[0], params[1] if dynamic else {})
        for name, target in (("likes", "user"), ("is_a", kind), ("made_of", kind))
    ]

    def edges(count: int) -> dict[tuple[int, int], list]:
        return {
            (lhs, rhs): [
                (source.randrange(3), source.randrange(3), source.randrange(sizes["kind"][rhs])) for _ in range(count)
            ]
            for lhs in range(2)
            for rhs in range(2)
        }

    evaluated = edges(9)
    evaluated[0, 0].append((3, IS_A, 2))  # the root, and so no true type
    evaluated[0, 1].append((4, IS_A, 1))  # no type of the hierarchy
    return TinyGraph(relations, embeddings, {}, evaluated, dynamic=dynamic), edges(5)


def configured(folder: Path, graph: TinyGraph, known: dict, **settings: Any) -> Any:
    keys = {"candidates": "all", "hits_at": HITS_AT, "type_relations": ["is_a", "made_of"], **settings}
    if graph.dynamic:
        keys["type_relations"] = [str(IS_A), str(MADE_OF)]
    keys["taxonomy_path"] = str(DATA / "taxonomy.tsv")
    config = write_graph(graph, folder, filter_edges=[known] if known else [], **keys)
    kind = "user" if graph.dynamic else "kind"
    for partition, names in enumerate(KINDS):
        (folder / "entity" / f"entity_names_{kind}_{partition}.json").write_text(json.dumps(names))
    return config


def slow_ndcg(listed: list[tuple[float, float]], k: int, is_jk: bool) -> float | None:
    """Of (score, gain) pairs: the mean over all orders of ties, which is the mean gain of the tied at each position."""
    discount = "jk" if is_jk else "standard"
    best = slow_dcg(sorted((gain for _, gain in listed), reverse=True), k, discount)
    if best == 0:
        return None
    means = []
    for score, _ in sorted(listed, reverse=True):
        tied = [gain for other, gain in listed if other == score]
        means.append(sum(tied) / len(tied))
    return slow_dcg(means, k, discount) / best


def expected(graph: TinyGraph, known: set, allowed: set | None = None) -> dict[int, list[dict[str, float | None]]]:
    """The values of every key of each relation to types."""
    queries: dict[tuple, set] = {}
    for bucket, edges in graph.buckets.items():
        for edge in edges:
            if edge[1] in (IS_A, MADE_OF):
                ends = reference.true_entities(graph, bucket, edge)
                if allowed is None or ends["rhs"] in allowed:
                    queries.setdefault((edge[1], ends["lhs"]), set()).add(ends["rhs"])
    entities = [(part, row_) for part, names in enumerate(KINDS) for row_ in range(len(names))]
    found: dict[int, list[dict[str, float | None]]] = {IS_A: [], MADE_OF: []}
    for (rel, lhs), true in queries.items():
        others = [
            one
            for one in entities
            if (allowed is None or one in allowed) and (one in true or (lhs, rel, one) not in known)
        ]
        edge = (lhs[1], rel, others[0][1])
        _, scores = reference.edge_scores(graph, (lhs[0], others[0][0]), edge, "rhs", others)
        names = [KINDS[part][row_] for part, row_ in true]
        values: dict[str, float | None] = {}
        for name, (is_exponential, is_jk) in VARIANTS.items():
            gains = [slow_gain(KINDS[part][row_], names, is_exponential, 2.0) for part, row_ in others]
            for k in HITS_AT:
                values[f"{name}_at_{k}"] = slow_ndcg(list(zip(scores, gains, strict=True)), k, is_jk)
        found[rel].append(values)
    return found


def mean(values: list[dict[str, float | None]], key: str) -> float | None:
    defined = [of_query[key] for of_query in values if of_query[key] is not None]
    return sum(defined) / len(defined) if defined else None


def assert_figures(report: Report, key: str, values: dict[int, list[dict[str, float | None]]]) -> None:
    both = [*values[IS_A], *values[MADE_OF]]
    assert [
        (name, label)
        for name in both[0]
        for label in ("tail", "both")
        if pytest.approx(mean(both, name), abs=1e-11) != report.document[key][f"{label}.{name}"]
    ] == []
    assert not any(name.startswith("head.") and "ndcg" in name for name in report.document[key])


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("precision", ["float32", "certified"])
def test_ndcg_is_that_of_a_sort_filtered_and_raw_in_every_relation(
    dynamic: bool, precision: str, tmp_path: Path
) -> None:
    graph, known = typed_graph(dynamic=dynamic)
    report = result_in(configured(tmp_path, graph, known, precision=precision), 1, tmp_path)

    filtered = expected(graph, reference.known_edges(graph, known))
    assert_figures(report, "metrics", filtered)
    assert_figures(report, "raw_metrics", expected(graph, set()))
    both = [*filtered[IS_A], *filtered[MADE_OF]]
    undefined = sum(values["ndcg_jk_at_3"] is None for values in both)
    section, rows = report.document["types"], {row_["relation_id"]: row_ for row_ in report.rows["relations"]}
    assert 0 < undefined < len(both)
    assert (len(both) - undefined, undefined) == (section["num_queries"], section["num_undefined"])
    assert report["ndcg@3"] == report["tail.ndcg_jk_at_3"] == section["metrics"]["tail.ndcg_jk_at_3"]
    assert [
        (relation, values, name)
        for relation, values in filtered.items()
        for name in both[0]
        if pytest.approx(mean(values, name), abs=1e-11) != rows[relation][f"tail.{name}"]
    ] == []
    assert rows[0]["tail.ndcg_jk_at_3"] is None
    mrr = section["metrics"]["tail.realistic.mean_reciprocal_rank"]
    sizes = [sum(edge[1] == rel for edges in graph.buckets.values() for edge in edges) for rel in (IS_A, MADE_OF)]
    of_rows = [rows[relation]["tail.realistic.mean_reciprocal_rank"] for relation in (IS_A, MADE_OF)]
    assert mrr == pytest.approx(sum(n * x for n, x in zip(sizes, of_rows, strict=True)) / sum(sizes))


@pytest.mark.one_case
@pytest.mark.parametrize("dynamic", [False, True])
def test_any_number_of_workers_and_any_blocks_give_the_same_bytes(dynamic: bool, tmp_path: Path) -> None:
    graph, known = typed_graph(dynamic=dynamic)
    config = configured(tmp_path, graph, known)
    whole = comparable(result_in(config, 1, tmp_path / "1"))

    assert '"types"' in whole
    for team_size in (1, 2, 3):
        with ExitStack() as stack:
            with_constants(stack, {**SMALL_BLOCKS, "worker.finish.KEYS_AT_A_TIME": 2})
            assert whole == comparable(result_in(config, team_size, tmp_path / f"small{team_size}"))
    assert whole == comparable(result_in(config, 3, tmp_path / "3"))


def test_who_may_not_compete_is_in_no_list_and_no_ideal(tmp_path: Path) -> None:
    graph, known = typed_graph(dynamic=False)
    allowed = [(0, 0), (0, 1), (0, 3), (1, 0), (1, 3)]
    names = [f"kind:{part}:{row_}" for part, row_ in allowed]
    report = result_in(configured(tmp_path, graph, known, tail_candidates=names), 2, tmp_path)

    assert_figures(report, "metrics", expected(graph, reference.known_edges(graph, known), set(allowed)))
    assert_figures(report, "raw_metrics", expected(graph, set(), set(allowed)))


def test_the_other_figures_do_not_change(tmp_path: Path) -> None:
    graph, known = typed_graph(dynamic=False)
    with_types = result_in(configured(tmp_path / "a", graph, known), 1, tmp_path).to_dict()
    plain = write_graph(graph, tmp_path / "b", filter_edges=[known], candidates="all", hits_at=HITS_AT)
    without = result_in(plain, 1, tmp_path).to_dict()

    assert [
        key
        for key in ("metrics", "raw_metrics")
        if without[key] != {name: value for name, value in with_types[key].items() if "ndcg" not in name}
    ] == []
    assert set(without) == set(with_types) - {"types"}
