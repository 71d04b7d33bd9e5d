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
    ["torchmetrics", "ogb", "ogb shared", "tgb", "tgb shared", "geometric"],
)
def test_figures_are_those_of_the_other_library(both: dict[str, dict[str, dict[str, Any]]], test: str) -> None:
    """Those of an evaluation are those of the same slow reference: tests/unit/test_topk_metrics.py."""
    theirs, ours = both[test]["theirs"], both[test]["ours"]

    assert theirs
    for name, value in theirs.items():
        assert value == pytest.approx(ours[name], rel=2e-6), name  # theirs are float32
