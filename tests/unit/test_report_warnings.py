from __future__ import annotations

import pytest

from pbgeval.report.report import warnings_of
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


@pytest.mark.parametrize(("num_edges", "complete"), [(10, True), (0, False)])
def test_no_query_and_an_unfinished_run_are_no_reasons_to_warn(num_edges, complete):
    assert warnings_of(document(None, None, mean=None) | {"num_edges": num_edges, "complete": complete}) == []


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
