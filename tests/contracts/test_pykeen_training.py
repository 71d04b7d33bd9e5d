"""The monitor's callback and stopper in PyKEEN 1.11.1's own training loop; ranks are counted by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pbgeval.monitor.records import History, read_history

pytestmark = pytest.mark.peers

MODELS = ("transe", "complex", "inverse", "stopped")


@pytest.fixture(scope="module")
def folder(of_pykeen: Path) -> Path:
    return of_pykeen / "monitored"


def found(folder: Path, name: str) -> tuple[dict[str, Any], History]:
    return json.loads((folder / f"{name}.json").read_text()), read_history(folder / name, pytest.fail)


@pytest.mark.parametrize("name", MODELS)
def test_figures_after_each_epoch_are_those_of_pykeen_s_predictions(folder: Path, name: str) -> None:
    theirs, history = found(folder, name)

    assert len(theirs["losses"]) == len(history.passes) == len(history.visits) == len(theirs["after"])
    for expected, visit in zip(theirs["after"], history.visits, strict=True):
        ours = {
            "mrr": visit.details.after["both.realistic.mean_reciprocal_rank"],
            "pos_rank": visit.details.after["both.realistic.mean_rank"],
            "r10": visit.details.after["both.realistic.hits_at_10"],
        }
        assert expected == pytest.approx(ours, rel=1e-6)  # reciprocal ranks are rounded to 2^-28
    # An epoch begins with what the last one left.
    assert [visit.before for visit in history.visits[1:]] == [visit.after for visit in history.visits[:-1]]


@pytest.mark.parametrize("name", MODELS)
def test_no_held_out_triple_is_trained_on(folder: Path, name: str) -> None:
    theirs, history = found(folder, name)
    training, held_out = ({tuple(triple) for triple in theirs[side]} for side in ("training", "held_out"))

    assert (set(), sorted(theirs["all"])) == (training & held_out, sorted(theirs["training"] + theirs["held_out"]))
    assert 0 < len(theirs["held_out"]) == history.visits[0].after.count
    assert len(theirs["training"]) == history.visits[0].stats.count


@pytest.mark.parametrize("name", MODELS)
def test_losses_and_means_reach_the_records_and_the_result_tracker(folder: Path, name: str) -> None:
    theirs, history = found(folder, name)

    assert theirs["losses"] == [visit.stats.metrics["loss"] for visit in history.visits]
    assert theirs["told"] == [dict(summary.average.metrics) for summary in history.passes]
    assert list(range(1, len(history.passes) + 1)) == [summary.key.epoch for summary in history.passes]


def test_training_stops_after_the_patience_and_leaves_the_best_model(folder: Path) -> None:
    """A learning rate of 5 spoils the model at once."""
    theirs, _ = found(folder, "stopped")
    figures = [of["mrr"] for of in theirs["after"]]

    assert theirs["stopped"]
    assert len(figures) < 40
    assert figures.index(max(figures)) + 1 == theirs["best_epoch"] == len(figures) - 2
    assert theirs["left"] == theirs["after"][theirs["best_epoch"] - 1]


@pytest.mark.parametrize("name", MODELS[:3])
def test_a_run_to_the_end_leaves_the_best_model_too(folder: Path, name: str) -> None:
    theirs, _ = found(folder, name)
    assert theirs["left"] == theirs["after"][theirs["best_epoch"] - 1]


def test_a_stopper_that_cannot_judge_is_refused_before_training(folder: Path) -> None:
    for message, expected in zip(
        found(folder, "transe")[0]["refused"], ("mrrr", "frequency >= 1", "patience >= 1"), strict=True
    ):
        assert expected in message


def test_the_example_runs_and_its_records_can_be_drawn(folder: Path) -> None:
    assert "trained 3 epochs; the model is that of epoch " in (folder / "example.txt").read_text(encoding="utf-8")
    assert len(read_history(folder / "example", pytest.fail).passes) == 3
