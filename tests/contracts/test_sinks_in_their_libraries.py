"""Figures in Weights & Biases (offline) and MLflow (file store), read back by their own code; no network."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.case import TinyCase
from tests.kit.commands import run_program

pytestmark = pytest.mark.peers

PROGRAM = Path(__file__).with_name("sinks_program.py")


def test_both_hold_the_figures_of_an_evaluation_and_of_a_training(peer: Callable[[str], Path], tmp_path: Path) -> None:
    TinyCase.write(tmp_path / "case", partition_sizes=(9,), edges_per_bucket=20)
    run_program(peer("sinks") / "python", PROGRAM, tmp_path, cwd=tmp_path / "case")
    result = json.loads((tmp_path / "found.json").read_text())
    line = json.loads((tmp_path / "output" / "metrics.jsonl").read_text())
    values = line["values"]

    assert [warning for warning in result["warnings"] if "sink" in warning] == []
    evaluation, training = result["found"]["output/sinks"], result["found"]["training"]
    wandb, mlflow = evaluation["wandb"], evaluation["mlflow"]
    assert "output" == wandb["name"] == mlflow["name"]
    assert len(values) > 50
    assert [[line["step"], values]] == wandb["steps"]
    assert {key: [[line["step"], value]] for key, value in values.items()} == mlflow["values"]
    assert line["settings"]["digest"] == wandb["settings"]["digest"] == mlflow["settings"]["digest"]
    assert mlflow["status"] == "FINISHED"
    expected = [[0, 0.25], [1, 0.5]]
    names = ("visit/mrr/after", "bucket_0_1/mrr/after")
    assert dict.fromkeys(names, expected) == training["mlflow"]["values"]
    assert [[step, dict.fromkeys(names, mrr)] for step, mrr in expected] == training["wandb"]["steps"]
    assert "mine" == training["wandb"]["name"] == training["mlflow"]["name"]
    assert result["told"] is False  # what MLflow was told of its environment is taken back
