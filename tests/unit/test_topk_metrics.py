"""What the first k candidates of each query hold, all its answers together: as slow references have it."""

from __future__ import annotations

import itertools
import math
import operator
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pbgeval import Edges, Report, edge_scorer, evaluate
from pbgeval.config import config_of_keys
from pbgeval.errors import OutputError
from pbgeval.metrics.names import OF_LISTS as NAMES
from pbgeval.metrics.topk_metrics import AnswerPlaces
from pbgeval.notation import Bucket
from tests import reference
from tests.examples import among, examples
from tests.kit.graphs import Edge, Entity, Relation, TinyGraph, edge_lists, tiny_graphs
from tests.kit.held_up import write_case
from tests.kit.on_disk import write_graph
from tests.kit.refusals import fault_of
from tests.unit.test_storage_candidates import write as write_candidates

Buckets = Mapping[tuple[int, int], list[Edge]]
CUTOFFS = (1, 3, 30)


def of_order(is_hit: tuple[bool, ...], num_answers: int, k: int) -> dict[str, float]:
    """The figures of one list without ties."""
    hits, possible = sum(is_hit[:k]), min(k, num_answers)
    places = [place for place, hit in enumerate(is_hit[:k], 1) if hit]
    return {
        "recall": hits / num_answers,
        "precision": hits / k,
        "f1": 2 * hits / (k + num_answers),
        "map": sum(sum(is_hit[:place]) / place for place in places) / possible,
        "ndcg": sum(1 / math.log2(place + 1) for place in places)
        / sum(1 / math.log2(place + 1) for place in range(1, possible + 1)),
        "mrr": 1 / places[0] if places else 0.0,
        "hit_ratio": float(bool(places)),
    }


def mean_over_orders(candidates: list[tuple[int, bool]], k: int) -> dict[str, float]:
    """The mean over every order of (score, whether it is an answer) in which nobody stands behind a lower score."""
    scores = sorted((score for score, _ in candidates), reverse=True)
    orders = [
        tuple(hit for _, hit in order)
        for order in itertools.permutations(candidates)
        if [score for score, _ in order] == scores
    ]
    num_answers = sum(hit for _, hit in candidates)
    figures = [of_order(order, num_answers, k) for order in orders]
    return {name: sum(of[name] for of in figures) / len(figures) for name in NAMES}


def approximately(expected: Any) -> Any:
    if expected is None:
        return None
    return pytest.approx(expected, rel=1e-12, abs=1e-14)


def counted(candidates: list[tuple[float, bool]], query: int = 0) -> list[tuple[int, ...]]:
    """What is counted of each answer: its query, who is better and tied, and who stands before it if nobody ties."""
    counts = []
    for score in (score for score, hit in candidates if hit):
        better, tied = (
            sum(beats(s, score) for s, hit in candidates if not hit) for beats in (operator.gt, operator.eq)
        )
        counts.append((query, better, tied, 0 if tied else sum(s > score for s, _ in candidates)))
    return counts


def figures_of(candidates: list[tuple[float, bool]], k: int) -> dict[str, float]:
    """The figures of one list by the package's formula, which the next test compares with all orders."""
    places, _ = AnswerPlaces.of_counts(*np.array(sorted(counted(candidates)), np.int64).T)
    return {name: float(value_U[0]) for name, value_U in places.values(k).items()}


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=5).filter(
            lambda of: any(hit for _, hit in of)
        ),
        max_size=4,
    ),
    st.integers(1, 7),
)
@settings(max_examples=examples(120))
def test_figures_are_means_over_all_orders_of_ties(queries: list[list[tuple[int, bool]]], k: int) -> None:
    """K may be beyond the last candidate."""
    counts = [of_answer for query, of in enumerate(queries) for of_answer in counted(of, query)]
    columns = np.array(sorted(counts), np.int64).reshape(-1, 4).T

    places, run_A = AnswerPlaces.of_counts(*columns)
    found = places.values(k)

    assert len(counts) == len(run_A)
    for query, of in enumerate(queries):
        assert {name: value_U[query] for name, value_U in found.items()} == approximately(mean_over_orders(of, k))


class Asked(NamedTuple):
    """A key, and the list of its answers and other candidates."""

    relation: int
    known: Entity
    answers: dict[Entity, float]
    others: dict[Entity, float]
    num_candidates: int

    @property
    def candidates(self) -> list[tuple[float, bool]]:
        return [(score, of is self.answers) for of in (self.answers, self.others) for score in of.values()]


def asked_of(graph: TinyGraph, paths: list[Buckets], train: list[Buckets], side: str, scope: str) -> list[Asked]:
    """All keys, from the edges one by one."""
    known = {edge for buckets in [*paths, *train] for edge in reference.known_edges(graph, buckets)}
    found: dict[Any, Asked] = {}
    for bucket, edge in [(bucket, edge) for of in paths for bucket, edges in of.items() for edge in edges]:
        ends, relation = reference.true_entities(graph, bucket, edge), graph.relations[edge[1]]
        tables = graph.embeddings[relation.lhs if side == "lhs" else relation.rhs]
        parts = range(len(tables)) if scope == "all" else [ends[side][0]]
        everybody = [(part, row) for part in parts for row in range(len(tables[part]))]
        scores = dict(zip(everybody, reference.edge_scores(graph, bucket, edge, side, everybody)[1], strict=True))
        of_known = ends["rhs" if side == "lhs" else "lhs"]
        key = edge[1], of_known, None if scope == "all" else ends[side][0]
        if key not in found:
            others = {of: scores[of] for of in everybody if reference.corrupt(ends, edge[1], side, of) not in known}
            found[key] = Asked(edge[1], of_known, {}, others, len(everybody))
        found[key].answers[ends[side]] = scores[ends[side]]
    return [*found.values()]


def means(asked: list[Asked]) -> tuple[dict[str, float | None], dict[str, float | None]]:
    """Over answers, and over queries."""
    micro: dict[str, float | None] = {}
    macro: dict[str, float | None] = {}
    for k in CUTOFFS:
        figures = [(len(of.answers), figures_of(of.candidates, k)) for of in asked]
        total = sum(times for times, _ in figures)
        for name in NAMES:
            micro[f"{name}_at_{k}"] = sum(times * of[name] for times, of in figures) / total if asked else None
            macro[f"{name}_at_{k}"] = sum(of[name] for _, of in figures) / len(asked) if asked else None
    return micro, macro


def half_links(graph: TinyGraph, train: list[Buckets]) -> Counter[Any]:
    counts: Counter[Any] = Counter()
    for bucket, edge in [(bucket, edge) for of in train for bucket, edges in of.items() for edge in edges]:
        for side, entity in reference.true_entities(graph, bucket, edge).items():
            counts[side, edge[1], entity] += 1
    return counts


def stratum(count: int) -> int:
    return 10 ** (len(str(count)) - 1) if count else 0


def check_section(
    graph: TinyGraph, paths: list[Buckets], train: list[Buckets], by_training: bool, scope: str, section: Any
) -> None:
    of_side = {side: asked_of(graph, paths, train, side, scope) for side in ("lhs", "rhs")}
    labels = {"head": ["lhs"], "tail": ["rhs"], "both": ["lhs", "rhs"]}
    counts = half_links(graph, train)
    for label, sides in labels.items():
        asked = [(side, of) for side in sides for of in of_side[side]]
        assert section["num_queries"][label] == len(asked)
        assert section["num_answers"][label] == sum(len(of.answers) for _, of in asked)
        for form, expected in zip(("metrics", "macro_metrics"), means([of for _, of in asked]), strict=True):
            for name, value in expected.items():
                assert section[form][f"{label}.{name}"] == approximately(value), (form, name)
        if by_training:
            check_strata(asked, counts, label, section)
        else:
            assert "query_half_link" not in section


def check_strata(asked: list[tuple[str, Asked]], counts: Counter[Any], label: str, section: Any) -> None:
    activity, recall = defaultdict(list), defaultdict(list)
    for side, of in asked:
        other = "rhs" if side == "lhs" else "lhs"
        activity[stratum(counts[other, of.relation, of.known])].append(of)
        for answer, score in of.answers.items():
            before = sum(s > score for s in [*of.answers.values(), *of.others.values()])
            tied = sum(s == score for s in [*of.answers.values(), *of.others.values()])
            within = [Fraction(min(max(k - before, 0), tied), tied) for k in CUTOFFS]
            recall[stratum(counts[side, of.relation, answer])].append(within)
    for row in section["query_half_link"]:
        expected, members = means(activity[row["at_least"]])[1], activity[row["at_least"]]
        assert len(members) == row["num_queries"][label]
        for name, value in expected.items():
            assert row["macro_metrics"][f"{label}.{name}"] == approximately(value), name
    for row in section["answer_half_link"]:
        answers = recall[row["at_least"]]
        assert len(answers) == row["num_answers"][label]
        for at, k in enumerate(CUTOFFS):
            found = float(sum(within[at] for within in answers) / len(answers)) if answers else None
            assert row["metrics"][f"{label}.recall_at_{k}"] == approximately(found)


def check_recommended(
    graph: TinyGraph,
    paths: list[Buckets],
    train: list[Buckets],
    by_training: bool,
    length: int,
    found: Mapping[str, Any],
) -> None:
    counts, of_label = half_links(graph, train), {"head": ["lhs"], "tail": ["rhs"], "both": ["lhs", "rhs"]}
    for label, sides in of_label.items():
        asked = [(side, of) for side in sides for of in asked_of(graph, paths, train, side, "all")]
        for k in CUTOFFS:
            if k > length:
                assert f"{label}.coverage_at_{k}" not in found
                continue
            places = [
                (side, of.relation, entity)
                for side, of in asked
                for _, entity in sorted((-score, of_) for of_, score in {**of.answers, **of.others}.items())[:k]
            ]
            catalogue = {(side, of.relation): of.num_candidates for side, of in asked}
            coverage = len(set(places)) / sum(catalogue.values()) if asked else None
            assert found.get(f"{label}.coverage_at_{k}") == approximately(coverage)
            if by_training:
                popularity = sum(counts[place] for place in places) / len(places) if places else None
                assert found.get(f"{label}.average_popularity_at_{k}") == approximately(popularity)


@pytest.mark.one_case
@settings(max_examples=examples(16), suppress_health_check=list(HealthCheck))
@pytest.mark.parametrize("candidates", ["all", "partition"])
@given(
    graph=tiny_graphs(exact=True, max_edges=among(3, 8), max_partitions=2),
    key=st.sampled_from(["train_edges", "filter_edges"]),
    length=st.sampled_from([None, 1, 3, 30]),
    data=st.data(),
)
def test_the_section_of_an_evaluation_equals_the_reference(
    candidates: str,
    graph: TinyGraph,
    key: str,
    length: int | None,
    data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Edges that repeat, in one path and in two, are one answer."""
    folder = tmp_path_factory.mktemp("run")
    sizes = {name: [len(table) for table in tables] for name, tables in graph.embeddings.items()}
    more, known = (
        {bucket: data.draw(edge_lists(bucket, graph.relations, sizes, among(4, 12))) for bucket in graph.buckets}
        for _ in range(2)
    )
    length = length if candidates == "all" else None
    keys = {"candidates": candidates, "hits_at": [*CUTOFFS], "save_topk": length, "topk_metrics": True, key: [known]}
    config = write_graph(graph, folder / "data", more_edge_paths=[more], **keys)

    report = evaluate(config, output=folder / "out", workers=1, device="cpu")
    again = Report.read(folder / "out").recompute(
        edge_paths=config.edge_paths, train_paths=config.train_paths or None, topk_metrics=True
    )

    section = report.document["topk_metrics"]
    check_section(graph, [graph.buckets, more], [known], key == "train_edges", candidates, section)
    if length is None:
        assert section["recommended"] is None
    else:
        check_recommended(graph, [graph.buckets, more], [known], key == "train_edges", length, section["recommended"])
    assert {**section, "recommended": None} == again.document["topk_metrics"]
    assert section["num_queries"]["both"] == 0 or "of the first k" in repr(report)


def likes(answers: Iterable[tuple[int, int]]) -> TinyGraph:
    """Two users and four items on a line; scores are the item's number times the user's."""
    relation = Relation("likes", "user", "item", "none", {}, {})
    rows = {"user": [[[1.0, 0.0], [-1.0, 0.0]]], "item": [[[float(item), 0.0] for item in range(4)]]}
    return TinyGraph([relation], rows, {}, {(0, 0): [(user, 0, item) for user, item in answers]})


def given_lists(folder: Path, lists: list[list[int]], **more: Any) -> Report:
    graph = likes([(0, 3), (0, 1), (1, 0)])
    write_candidates(folder / "given", Bucket(0, 0), tail=lists)
    keys: dict[str, Any] = {"candidate_path": str(folder / "given"), "disable_lhs_negs": True, "hits_at": [1, 2]}
    keys |= {"filter_edges": [graph.buckets], "topk_metrics": True, **more}
    return evaluate(write_graph(graph, folder / "data", **keys), output=folder / "out", workers=1)


def test_given_lists_are_of_all_answers_of_a_query(tmp_path: Path) -> None:
    """In any order, with or without the answers."""
    section = given_lists(tmp_path, [[2, 0, 1], [0, 3, 2], [3, 1, 1]]).document["topk_metrics"]

    # User 0: 3, 2, 1, 0 with answers 3 and 1. User 1: 0, 1, 1, 3 with answer 0.
    assert (
        section["num_queries"],
        section["macro_metrics"]["tail.recall_at_2"],
        approximately(section["metrics"]["tail.precision_at_2"]),
    ) == ({"tail": 2, "both": 2}, (0.5 + 1) / 2, (2 * 0.5 + 0.5) / 3)
    folder = tmp_path / "without"
    without = given_lists(folder, [[2, 0], [0, 2], [3, 1]], topk_metrics=False)
    with pytest.raises(OutputError, match="topk_metrics needs a filtered run of all edges"):
        without.recompute(edge_paths=[folder / "data" / "edges0"], topk_metrics=True)


def test_lists_that_differ_between_the_answers_of_a_query_are_refused(tmp_path: Path) -> None:
    message = "row 1 (lhs 0, rel 0, rhs 1): topk_metrics needs one list of candidates for all answers of a tail query"
    assert message in fault_of(lambda: given_lists(tmp_path, [[2, 0], [2, 2], [3, 1]]))


def test_an_edge_that_is_there_twice_is_one_answer_though_its_lists_name_other_answers(tmp_path: Path) -> None:
    graph = likes([(0, 2), (0, 2), (0, 3)])
    write_candidates(tmp_path / "given", Bucket(0, 0), tail=[[1, 2], [1, 3], [1, 3]])
    keys: dict[str, Any] = {"disable_lhs_negs": True, "hits_at": [1, 2], "filter_edges": [graph.buckets]}
    config = write_graph(graph, tmp_path / "data", candidate_path=str(tmp_path / "given"), topk_metrics=True, **keys)

    section = evaluate(config, output=tmp_path / "out", workers=1).document["topk_metrics"]

    assert section["num_answers"]["tail"] == 2
    assert tuple(section["metrics"][f"tail.recall_at_{k}"] for k in (1, 2)) == (0.5, 1.0)


def test_lists_of_each_time_have_no_section(tmp_path: Path) -> None:
    case = write_case(tmp_path / "case")
    keys = [f"train_paths={case.root / 'edges'}", "candidates=all", "known_until=query", "save_ranks=True"]
    report = evaluate(case.config, overrides=keys, output=tmp_path / "out", workers=1)

    with pytest.raises(OutputError, match="without known_until"):
        report.recompute(edge_paths=[case.root / "edges"], topk_metrics=True)


def test_queries_whose_answers_are_all_excluded_are_not_counted(tmp_path: Path) -> None:
    graph = likes([(0, 3), (0, 1), (1, 0)])
    keys: dict[str, Any] = {"candidates": "all", "tail_candidates": ["item:0:1", "item:0:2"], "topk_metrics": True}
    config = write_graph(graph, tmp_path / "data", disable_lhs_negs=True, filter_edges=[graph.buckets], **keys)

    section = evaluate(config, output=tmp_path / "out", workers=1).document["topk_metrics"]

    assert (section["num_queries"], section["num_answers"]) == ({"tail": 1, "both": 1}, {"tail": 1, "both": 1})
    assert tuple(section["metrics"][f"tail.recall_at_{k}"] for k in (1, 3)) == (0.0, 1.0)


def test_edges_in_memory_have_the_section_too() -> None:
    scorer = edge_scorer(lambda lhs, rel, rhs: (lhs * 0 + rhs).float(), num_entities=4, num_relations=1)
    edges = Edges([[0, 0, 3], [0, 0, 1]], train=[[[0, 0, 2]]])
    keys = {"candidates": "all", "disable_lhs_negs": True, "hits_at": [1, 2], "topk_metrics": True, "save_topk": 2}

    section = evaluate(config_of_keys(keys), model=scorer, edges=edges).document["topk_metrics"]

    assert tuple(section["metrics"][f"tail.recall_at_{k}"] for k in (1, 2)) == (0.5, 1.0)  # 3, 1, 0: 2 is known
    assert tuple(section["recommended"][f"tail.coverage_at_{k}"] for k in (1, 2)) == (0.25, 0.5)
    assert section["recommended"]["tail.average_popularity_at_2"] == 0.0
