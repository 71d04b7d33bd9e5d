"""The time-aware filter against TGB's negatives for temporal knowledge graphs and its evaluator."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pbgeval import edge_scorer, evaluate_triples
from tests.kit.commands import run_program

pytestmark = pytest.mark.peers

PROGRAM = Path(__file__).with_name("times_of_tgb.py")


@pytest.fixture(scope="module")
def graphs(peer: Callable[[str], Path]) -> list[dict[str, Any]]:
    return json.loads(run_program(peer("metrics") / "python", PROGRAM).splitlines()[-1])


def our_figures(graph: dict[str, Any]) -> dict[str, Any]:
    """Figures of tails, among those that TGB ranks, with the evaluated edges alone as known ones."""
    scores, edges = torch.tensor(graph["scores"]), np.array(graph["edges"])
    scorer = edge_scorer(
        lambda lhs, rel, rhs: scores[lhs, rel, rhs], num_entities=len(scores), num_relations=scores.shape[1]
    )
    tails = [f"all:0:{row}" for row in graph["tails"]]
    report = evaluate_triples(scorer, edges, known=[edges], time_window=0, tail_candidates=tails)
    figures = report.document["time_filtered_metrics"]
    return {"mrr": figures["tail.realistic.mean_reciprocal_rank"], "hits@10": figures["tail.realistic.hits_at_10"]}


def test_figures_are_those_of_tgb(graphs: list[dict[str, Any]]) -> None:
    assert graphs[0]["num_known"] == 0
    assert graphs[0]["figures"] == pytest.approx(our_figures(graphs[0]), rel=2e-6)  # theirs are float32


def test_tgb_leaves_out_the_wrong_destinations_where_they_do_not_begin_at_0(graphs: list[dict[str, Any]]) -> None:
    """It deletes by position, as if the first one were entity 0, so known answers of the same time compete."""
    assert graphs[1]["num_known"]
    assert graphs[1]["figures"] != pytest.approx(our_figures(graphs[1]), rel=1e-3)
