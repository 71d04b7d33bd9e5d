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
from tests.kit.close import close_to
from tests.kit.graphs import Edge, Entity, Relation, TinyGraph, edge_lists, tiny_graphs
from tests.kit.held_up import write_case
from tests.kit.on_disk import write_graph
from tests.kit.refusals import fault_of
from tests.unit.test_storage_candidates import write as write_candidates

Buckets = Mapping[tuple[int, int], list[Edge]]
CUTOFFS = (1, 3, 30)
LABELS = {"head": ["lhs"], "tail": ["rhs"], "both": ["lhs", "rhs"]}


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
    """The mean over every order of (score, whether it is an answer) in which none stands behind a lower score."""
    scores = sorted((score for score, _ in candidates), reverse=True)
    orders = [
        tuple(hit for _, hit in order)
        for order in itertools.permutations(candidates)
        if [score for score, _ in order] == scores
    ]
    num_answers = sum(hit for _, hit in candidates)
    figures = [of_order(order, num_answers, k) for order in orders]
    return {name: sum(of[name] for of in figures) / len(figures) for name in NAMES}


NEAR = {"rel": 1e-12, "abs": 1e-14}


def counted(candidates: list[tuple[float, bool]], query: int = 0) -> list[tuple[int, ...]]:
    """For each answer: its query, how many are better and tied, and how many stand before it if none ties."""
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
        assert {name: value_U[query] for name, value_U in found.items()} == close_to(mean_over_orders(of, k), **NEAR)


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
    figures = [
        {f"{name}_at_{k}": value for k in CUTOFFS for name, value in figures_of(of.candidates, k).items()}
        for of in asked
    ]

    def mean(weights: list[int]) -> dict[str, float | None]:
        every = [(n / sum(weights), of) for n, of in zip(weights, figures, strict=True)]
        names = [f"{name}_at_{k}" for k in CUTOFFS for name in NAMES]
        return {name: sum(share * of[name] for share, of in every) if every else None for name in names}

    return mean([len(of.answers) for of in asked]), mean([1] * len(asked))


def half_links(graph: TinyGraph, train: list[Buckets]) -> Counter[Any]:
    counts: Counter[Any] = Counter()
    for bucket, edge in [(bucket, edge) for of in train for bucket, edges in of.items() for edge in edges]:
        for side, entity in reference.true_entities(graph, bucket, edge).items():
            counts[side, edge[1], entity] += 1
    return counts


def stratum(count: int) -> int:
    return 10 ** (len(str(count)) - 1) if count else 0


def of_label(figures: Mapping[str, Any], label: str) -> dict[str, Any]:
    prefix = f"{label}."
    return {name.removeprefix(prefix): value for name, value in figures.items() if name.startswith(prefix)}


def check_section(
    graph: TinyGraph, paths: list[Buckets], train: list[Buckets], by_training: bool, scope: str, section: Any
) -> None:
    of_side = {side: asked_of(graph, paths, train, side, scope) for side in ("lhs", "rhs")}
    counts = half_links(graph, train)
    for label, sides in LABELS.items():
        asked = [(side, of) for side in sides for of in of_side[side]]
        num_answers = sum(len(of.answers) for _, of in asked)
        assert (section["num_queries"][label], section["num_answers"][label]) == (len(asked), num_answers)
        for form, expected in zip(("metrics", "macro_metrics"), means([of for _, of in asked]), strict=True):
            assert of_label(section[form], label) == close_to(expected, **NEAR)
        assert by_training == ("query_half_link" in section)
        if by_training:
            check_strata(asked, counts, label, section)


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
        members = activity[row["at_least"]]
        assert len(members) == row["num_queries"][label]
        assert of_label(row["macro_metrics"], label) == close_to(means(members)[1], **NEAR)
    for row in section["answer_half_link"]:
        answers = recall[row["at_least"]]
        assert len(answers) == row["num_answers"][label]
        of_cutoff = zip(CUTOFFS, zip(*answers, strict=True) if answers else CUTOFFS, strict=True)
        recalls = {f"recall_at_{k}": float(sum(of) / len(answers)) if answers else None for k, of in of_cutoff}
        assert of_label(row["metrics"], label) == close_to(recalls, **NEAR)


def check_recommended(
    graph: TinyGraph,
    paths: list[Buckets],
    train: list[Buckets],
    by_training: bool,
    length: int,
    found: Mapping[str, Any],
) -> None:
    counts, cutoffs = half_links(graph, train), [k for k in CUTOFFS if k <= length]
    expected: dict[str, float | None] = {}
    for label, sides in LABELS.items():
        asked = [(side, of) for side in sides for of in asked_of(graph, paths, train, side, "all")]
        catalogue = {(side, of.relation): of.num_candidates for side, of in asked}
        for k in cutoffs:
            places = [
                (side, of.relation, entity)
                for side, of in asked
                for _, entity in sorted((-score, of_) for of_, score in {**of.answers, **of.others}.items())[:k]
            ]
            coverage = len(set(places)) / sum(catalogue.values()) if asked else None
            expected[f"{label}.coverage_at_{k}"] = coverage
            popularity = sum(counts[place] for place in places) / len(places) if places else None
            expected[f"{label}.average_popularity_at_{k}"] = popularity if by_training else None
    assert {name: found.get(name) for name in expected} == close_to(expected, **NEAR)
    of_cutoffs = {int(name.rpartition("_")[2]) for name in found if "coverage" in name}
    assert of_cutoffs == {*cutoffs} or not found  # nothing is reported that was not asked for


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


def report_of(folder: Path, answers: list[tuple[int, int]], lists: list[list[int]] | None, **more: Any) -> Report:
    """Evaluate tail queries among all items, or among lists of theirs."""
    graph, given = likes(answers), {}
    if lists is not None:
        write_candidates(folder / "given", Bucket(0, 0), tail=lists)
        given["candidate_path"] = str(folder / "given")
    keys: dict[str, Any] = {"disable_lhs_negs": True, "hits_at": [1, 2, 3], "topk_metrics": True, **given, **more}
    config = write_graph(graph, folder / "data", filter_edges=[graph.buckets], **keys)
    return evaluate(config, output=folder / "out", workers=1)


ANSWERS = [(0, 3), (0, 1), (1, 0)]
TWO_ITEMS = {"candidates": "all", "tail_candidates": ["item:0:1", "item:0:2"]}


@pytest.mark.parametrize(
    ("answers", "lists", "more", "figures"),
    [
        # In any order, with or without the answers. User 0: 3, 2, 1, 0 with answers 3 and 1. User 1: 0, 1, 1, 3 with 0.
        (ANSWERS, [[2, 0, 1], [0, 3, 2], [3, 1, 1]], {}, (2, 3, (2 / 3, 2 / 3, 1.0), (0.75, 0.75, 1.0))),
        # Its lists name other answers.
        ([(0, 2), (0, 2), (0, 3)], [[1, 2], [1, 3], [1, 3]], {}, (1, 2, (0.5, 1.0, 1.0), (0.5, 1.0, 1.0))),
        # Two answers are excluded, all of a query.
        (ANSWERS, None, TWO_ITEMS, (1, 1, (0.0, 1.0, 1.0), (0.0, 1.0, 1.0))),
    ],
    ids=["lists", "an edge twice", "excluded"],
)
def test_lists_and_queries_are_judged_by_all_answers_of_a_query(
    answers: list[tuple[int, int]], lists: list[list[int]] | None, more: Any, figures: Any, tmp_path: Path
) -> None:
    section = report_of(tmp_path, answers, lists, **more).document["topk_metrics"]

    num_queries, num_answers, micro, macro = figures
    recalls = [[section[of][f"tail.recall_at_{k}"] for k in (1, 2, 3)] for of in ("metrics", "macro_metrics")]
    assert recalls == [pytest.approx([*micro]), pytest.approx([*macro])]
    assert (section["num_queries"]["both"], section["num_answers"]["tail"]) == (num_queries, num_answers)


def test_lists_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    without = report_of(tmp_path, ANSWERS, [[2, 0], [0, 2], [3, 1]], topk_metrics=False)
    with pytest.raises(OutputError, match="topk_metrics needs a filtered run of all edges"):
        without.recompute(edge_paths=[tmp_path / "data" / "edges0"], topk_metrics=True)
    message = "row 1 (lhs 0, rel 0, rhs 1): topk_metrics needs one list of candidates for all answers of a tail query"
    assert message in fault_of(lambda: report_of(tmp_path / "unlike", ANSWERS, [[2, 0], [2, 2], [3, 1]]))


def test_what_is_known_at_each_time_has_no_section(tmp_path: Path) -> None:
    case = write_case(tmp_path / "case")
    keys = [f"train_paths={case.root / 'edges'}", "candidates=all", "known_until=query", "save_ranks=True"]
    report = evaluate(case.config, overrides=keys, output=tmp_path / "out", workers=1)

    with pytest.raises(OutputError, match="without known_until"):
        report.recompute(edge_paths=[case.root / "edges"], topk_metrics=True)
    paths = {"edge_paths": [case.root / "edges"], "train_paths": [case.root / "edges"]}
    with pytest.raises(OutputError, match="'popularity' counts training edges of all times, but this run has known_un"):
        report.recompute(**paths, breakdowns=["popularity"])


def test_edges_in_memory_have_the_section_too() -> None:
    scorer = edge_scorer(lambda lhs, rel, rhs: (lhs * 0 + rhs).float(), num_entities=4, num_relations=1)
    edges = Edges([[0, 0, 3], [0, 0, 1]], train=[[[0, 0, 2]]])
    keys = {"candidates": "all", "disable_lhs_negs": True, "hits_at": [1, 2], "topk_metrics": True, "save_topk": 2}

    section = evaluate(config_of_keys(keys), model=scorer, edges=edges).document["topk_metrics"]

    recommended = section["recommended"]
    assert [section["metrics"][f"tail.recall_at_{k}"] for k in (1, 2)] == [0.5, 1.0]  # 3, 1, 0: 2 is known
    assert [recommended[f"tail.coverage_at_{k}"] for k in (1, 2)] == [0.25, 0.5]
    assert recommended["tail.average_popularity_at_2"] == 0.0
