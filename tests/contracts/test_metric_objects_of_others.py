"""Metric objects against the metrics that they stand in for: torchmetrics, PyTorch Geometric, OGB, TGB."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit.commands import run_program

pytestmark = pytest.mark.peers

PROGRAM = Path(__file__).with_name("metrics_of_others.py")


@pytest.fixture(scope="module")
def both(peer: Callable[[str], Path]) -> dict[str, dict[str, dict[str, Any]]]:
    return json.loads(run_program(peer("metrics") / "python", PROGRAM))


@pytest.mark.parametrize(
    "test",
    [
        *("torchmetrics", "ogb", "ogb shared", "tgb", "tgb shared", "geometric"),
        *("geometric of an evaluation", "torchmetrics of an evaluation"),
    ],
)
def test_figures_are_those_of_the_other_library(both: dict[str, dict[str, dict[str, Any]]], test: str) -> None:
    theirs, ours = both[test]["theirs"], both[test]["ours"]

    assert theirs
    for name, value in theirs.items():
        assert value == pytest.approx(ours[name], rel=2e-6), name  # theirs are float32


def test_torchmetrics_decides_ties_by_the_order_of_its_sort(both: dict[str, dict[str, dict[str, Any]]]) -> None:
    """So its figures lie between those of both orders, and say nothing of ties."""
    theirs, ours = both["torchmetrics with ties"]["theirs"], both["torchmetrics with ties"]["ours"]

    for name, value in theirs.items():
        assert ours[f"pessimistic.{name}"] <= value <= ours[f"optimistic.{name}"]
        assert ours[f"pessimistic.{name}"] < ours[f"optimistic.{name}"]


def test_ogb_and_tgb_take_ties_for_knowledge_and_nan_for_the_best_score(
    both: dict[str, dict[str, dict[str, Any]]],
) -> None:
    """The true one of 19 equal candidates is among the first ten in 10 of 19 orders; its middle rank, 10, is a hit."""
    theirs, ours = both["all tied"]["theirs"], both["all tied"]["ours"]

    assert {theirs[f"{name} tied hits@10"] for name in ("ogb", "tgb")} == {1.0}
    assert {theirs[f"{name} nan mrr"] for name in ("ogb", "tgb")} == {1.0}
    assert ours["expected.hits@10"] == pytest.approx(10 / 19)
    assert ours["expected.mrr"] == pytest.approx(sum(1 / rank for rank in range(1, 20)) / 19)
    assert theirs["tgb tied mrr"] == pytest.approx(1 / 10) != pytest.approx(ours["expected.mrr"])
    assert ours["nan"] == "eval: y_pred_pos: a score is NaN, which cannot be ranked"
