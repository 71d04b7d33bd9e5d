from __future__ import annotations

from typing import Any

import pytest

from pbgeval.report.conditions import warnings_of
from pbgeval.report.notes import NO_HIT, notes_of
from tests.kit.commands import lacking

SOUND = {"num_edges": 10, "num_repeated": 0, "num_in_training": 0, "num_entities": 7, "num_entities_unseen": 0}


def document(mean_num_ties: float | None, edges: dict[str, int | None] | None, mean: float | None = 101.0) -> dict:
    metrics = {f"both.{of}.mean_reciprocal_rank": value for of, value in (("optimistic", 0.9), ("pessimistic", 0.1))}
    both = {"mean_num_ties": mean_num_ties, "num_candidates": {"mean": mean}}
    counts = {"complete": True, "num_edges": 10}
    return {**counts, "diagnostics": {"both": both}, "metrics": metrics, "edge_diagnostics": edges}


@pytest.mark.parametrize("edges", [None, SOUND, {**SOUND, "num_in_training": None, "num_entities_unseen": None}])
@pytest.mark.parametrize("ties", [0.0, 1.0])
def test_a_sound_evaluation_has_no_warning(ties, edges):
    assert (warnings_of(document(ties, edges)), warnings_of(document(ties, {**SOUND, "num_repeated": 1}))) == ([], [])


def test_no_edge_is_said():
    (warning,) = warnings_of(document(None, None, mean=None) | {"num_edges": 0})

    assert "no edges to evaluate" in warning


def test_many_ties_are_said_with_what_they_do_to_mrr_and_where_they_come_from():
    (warning,) = warnings_of(document(1.01, SOUND))

    moved = "tie-breaking alone moves MRR from 0.1000 (pessimistic) to 0.9000 (optimistic)"
    assert not lacking(warning, "1.01 of 101 candidates", moved, "untrained entities")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("num_in_training", "3 of 10 evaluated edges are also in train_paths"),
        ("num_repeated", "3 of 10 evaluated edges repeat another one"),
        ("num_entities_unseen", "3 of 7 evaluated entities never occur in train_paths, so their vectors are untrained"),
    ],
)
def test_what_edges_share_is_said_in_a_line(name, words):
    (warning,) = warnings_of(document(0.0, {**SOUND, name: 3}))

    assert words in warning
    assert "\n" not in warning


def as_pbg(candidates: str = "sampled", **more: Any) -> dict[str, Any]:
    found = document(0.5, SOUND)
    found["diagnostics"]["both"]["tied_share"] = 0.21
    relations = [{"candidates": candidates}, {"candidates": "partition"}]
    settings = {"pbg_semantics": True, "relations": relations, "num_uniform_negs": 0}
    return found | {"filter": "raw", "provenance": {"settings": settings}} | more


@pytest.mark.parametrize(
    ("found", "is_named"),
    [(as_pbg(), True), (as_pbg("partition"), False), (document(1.5, SOUND), False)],
    ids=["drawn lists of PBG", "whole partitions", "not PBG's"],
)
def test_ties_in_drawn_lists_of_pbg_are_told_to_come_from_copies_first(found: dict[str, Any], *, is_named: bool):
    found["diagnostics"]["both"]["mean_num_ties"] = 1.5
    (warning,) = warnings_of(found)

    copies = "Usual causes are copies of the true entity, which pbg_semantics lets compete, untrained entities"
    assert (copies in warning, "copies" in warning) == (is_named, is_named)


WHY = "torchbiggraph_eval lets rounding decide ties with copies of the true entity"
RANGE = "MRR should lie between 0.1000 and 0.9000"


def test_where_pbg_lets_rounding_decide_the_range_of_its_figure_is_said():
    raw = {f"both.{of}.mean_reciprocal_rank": value for of, value in (("optimistic", 0.6), ("pessimistic", 0.2))}
    drawn = as_pbg()
    drawn["provenance"]["settings"]["num_uniform_negs"] = 5

    assert notes_of(as_pbg()) == [f"{WHY} (21% of queries have ties): its {RANGE}."]
    assert notes_of(drawn) == [f"{WHY} (21% of queries have ties): its {RANGE}, but for its own random draws."]
    filtered = as_pbg(filter="filtered", raw_metrics=raw)
    assert notes_of(filtered) == [f"{WHY}: its unfiltered MRR should lie between 0.2000 and 0.6000."]
    unnamed = "its figures should lie between the pessimistic and the optimistic ones"
    assert notes_of(as_pbg(metrics={})) == [f"{WHY} (21% of queries have ties): {unnamed}."]
    rare = as_pbg()
    rare["diagnostics"]["both"]["tied_share"] = 0.001
    assert notes_of(rare) == [f"{WHY} (less than 1% of queries have ties): its {RANGE}."]
    of_vectors = f"torchbiggraph_eval lets rounding decide ties (21% of queries have ties): its {RANGE}."
    assert notes_of(as_pbg("partition")) == [of_vectors]


@pytest.mark.parametrize("share", [0.0, None])
def test_where_nothing_ties_no_range_is_said(share):
    untied, whole, ours = as_pbg(), as_pbg("partition"), as_pbg()
    untied["diagnostics"]["both"]["tied_share"] = whole["diagnostics"]["both"]["tied_share"] = share
    ours["provenance"]["settings"]["pbg_semantics"] = False

    assert [notes_of(of) for of in (untied, whole, ours, {}, document(1.0, SOUND))] == [[]] * 5


def test_the_error_of_a_sample_without_hits_is_explained():
    key, error = "both.realistic.hits_at_10", {"standard_error": 0.0005, "low": 0.0, "high": 0.001}
    sample = {"num_units": 10, "population": 100, "unit": "edge"}
    hit_by_none = document(0.5, SOUND) | {"sample": sample, "headline": "realistic", "intervals": {key: error}}

    assert NO_HIT in notes_of(hit_by_none | {"metrics": {key: 0.0}})
    assert NO_HIT not in notes_of(hit_by_none | {"metrics": {key: 0.1}})
    assert NO_HIT not in notes_of(hit_by_none | {"metrics": {key: 0.0}, "sample": None})
