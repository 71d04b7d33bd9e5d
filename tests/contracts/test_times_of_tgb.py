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
def graph(peer: Callable[[str], Path]) -> dict[str, Any]:
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


def test_figures_are_those_of_tgb(graph: dict[str, Any]) -> None:
    """Where tails do not begin at entity 0, TGB deletes by wrong positions (docs/metrics.md): here they do."""
    assert graph["num_known"] == 0
    assert graph["figures"] == pytest.approx(our_figures(graph), rel=2e-6)  # theirs are float32
