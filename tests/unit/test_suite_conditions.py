"""Results of one graph in a suite: compared only under the same conditions; time-aware where a time window is set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from attrs import evolve
from torch import Tensor

from pbgeval import Report, edge_scorer, evaluate_triples
from pbgeval.config import EvalConfig
from pbgeval.report.suite_tables import SuiteResults, SuiteRow, comparability_warning
from pbgeval.suite import wrong_names

NUM_ENTITIES = 9
EDGES = np.random.default_rng(0).integers((NUM_ENTITIES, 2, NUM_ENTITIES), size=(20, 3))
KNOWN = np.random.default_rng(1).integers((NUM_ENTITIES, 2, NUM_ENTITIES), size=(15, 3))
OTHER_NUMBERS = np.random.default_rng(2).permutation(NUM_ENTITIES)


def evaluated(edges: np.ndarray = EDGES, known: np.ndarray = KNOWN, **settings: Any) -> Report:
    """Evaluate a model of nine entities."""

    def score(lhs: Tensor, rel: Tensor, rhs: Tensor) -> Tensor:
        return -((lhs + rel - rhs).abs() % 7).float()

    size = settings.pop("num_entities", NUM_ENTITIES)
    return evaluate_triples(edge_scorer(score, num_entities=size, num_relations=2), edges, known=[known], **settings)


def renumbered(edges: np.ndarray) -> np.ndarray:
    """Return the same edges under other numbers of entities."""
    return np.stack([OTHER_NUMBERS[edges[:, 0]], edges[:, 1], OTHER_NUMBERS[edges[:, 2]]], axis=1)


@pytest.fixture(scope="module")
def first() -> tuple[str, Report]:
    return "first", evaluated()


def test_models_that_number_entities_alike_or_not_are_comparable(first: tuple[str, Report]) -> None:
    others = evaluated(renumbered(EDGES), renumbered(KNOWN))
    digests = [of.document["provenance"]["evaluated"]["edges"] for of in (first[1], others)]
    assert digests[0] != digests[1]
    backwards = evaluated(EDGES[::-1].copy())
    assert [comparability_warning(first, of) for of in (first[1], evaluated(hits_at=[7]), others, backwards)] == [
        ""
    ] * 4
    assert comparability_warning(None, first[1]) == ""


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (lambda: evaluated(num_entities=NUM_ENTITIES + 1), "): 20 edges, filtered, 6 to 10 candidates per query, "),
        (lambda: evaluated(EDGES[1:]), "): 19 edges, filtered, "),
        (lambda: evaluated(known=renumbered(KNOWN)), "): 20 edges, filtered, "),
        (lambda: evaluated(disable_lhs_negs=True), "): 20 edges, filtered, "),
    ],
)
def test_other_candidates_edges_and_known_answers_are_told(
    other: Callable[[], Report], told: str, first: tuple[str, Report]
) -> None:
    found = comparability_warning(first, other())
    assert found.startswith("not comparable with first (")
    assert told in found


def test_other_known_answers_are_told_where_they_are_as_many() -> None:
    one, other = (evaluated(EDGES[:1], EDGES[:1] + np.array([0, 0, more])) for more in (1, 2))
    assert one.document["diagnostics"] == other.document["diagnostics"]
    told = "not comparable with one: the same queries have different known answers"
    assert comparability_warning(("one", one), other) == told


def test_models_with_one_relation_or_several_are_comparable(first: tuple[str, Report]) -> None:
    provenance = first[1].document["provenance"]
    settings = {
        **provenance["settings"],
        "dynamic_relations": True,
        "relations": provenance["settings"]["relations"][:1],
    }
    other = evolve(first[1], document={**first[1].document, "provenance": {**provenance, "settings": settings}})
    assert comparability_warning(first, other) == ""


def test_edges_left_out_of_both_may_be_others(first: tuple[str, Report]) -> None:
    other = evaluated(renumbered(EDGES), renumbered(KNOWN))
    data = {**other.document["provenance"]["data"], "left_out": {"edge_paths": [2]}}
    lacking = evolve(other, document={**other.document, "provenance": {**other.document["provenance"], "data": data}})
    assert comparability_warning(first, lacking) == (
        "not comparable with first (A; this model is B): imports left out 0 evaluated edges of A and 2 of B, as their "
        "names are unknown"
    )


@pytest.fixture(scope="module")
def in_time() -> dict[str, Report]:
    """Two models: `past` ranks answers of other times first, `now` does not, and errs elsewhere."""
    tables = {
        "past": {(0, 2): 3.0, (0, 3): 2.0, (0, 1): 1.0, (4, 5): 1.0},
        "now": {(0, 1): 1.0, (4, 2): 2.0, (4, 5): 1.0},
    }
    found = {}
    for name, scores in tables.items():
        table = torch.zeros(6, 6)
        for place, score in scores.items():
            table[place] = score
        scorer = edge_scorer(lambda lhs, rel, rhs, of=table: of[lhs, rhs] + 0 * rel, num_entities=6, num_relations=1)
        edges = {"test": [(0, 0, 1, 7), (4, 0, 5, 7)], "known": [[(0, 0, 2, 3), (0, 0, 3, 4)]]}
        found[name] = evaluate_triples(scorer, **edges, time_window=0, disable_lhs_negs=True)
    return found


def test_the_figures_and_the_best_model_are_those_of_the_time_aware_filter(in_time: dict[str, Report]) -> None:
    past, now = in_time.values()
    assert (past["mrr"], now["mrr"]) == (1.0, 0.75)
    assert (past.time_filtered["mrr"], now.time_filtered["mrr"]) == ((1 / 3 + 1) / 2, 0.75)

    names = ["mrr", "hits@1", "auc"]
    found = SuiteResults("many", tuple(SuiteRow.from_report("g", *of, names) for of in in_time.items()))
    key = "both.realistic.mean_reciprocal_rank"
    assert found.metrics == [f"time_filtered.{key}", "time_filtered.both.realistic.hits_at_1", "both.auc"]
    assert found.average("past", f"time_filtered.{key}") == past.time_filtered["mrr"]
    assert found.rows[1].metrics["both.auc"] == now["auc"]
    assert found.sentence() == "now has the best average time-aware MRR (0.7500) and is best on 1 of 1 graph."
    table = found.table()
    assert table.columns[2:5] == ("past, time-aware MRR", "past, time-aware hits@1", "past, auc")
    assert table.note.startswith("Time-aware filter, window 0; realistic ranks. Every graph")
    told = "Figures called time-aware are of this filter; every result also has those of the static filter."
    assert told in table.note
    assert found.to_dict()["results"][0]["time_window"] == 0
    page = found.page().render()
    assert told in page
    assert "average time-aware MRR" in page


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"hits_at": [2], "disable_rhs_negs": True},
        {"metrics": ["rank", "mrr@3", "pooled_hits@7"]},
        {"metrics": ["mrr", "tail.worst.hits@3", "expected.mrr"]},
        {"preset": "dglke", "rank_type": "pessimistic"},
    ],
)
def test_names_are_refused_before_a_run_where_its_result_lacks_them(settings: dict[str, Any]) -> None:
    every = {"metrics": ["rank", "auc", "average_precision", "classification", "mrr@3", "mrr@10", "pooled_hits@7"]}
    names = evaluated(**every).document["metrics"].keys()
    found = evaluated(**settings).document["metrics"].keys()
    assert list(wrong_names(found, EvalConfig(**settings))) == []
    wrong = [name for name in names if list(wrong_names([name], EvalConfig(**settings)))]
    assert wrong == [name for name in names if name not in found]
