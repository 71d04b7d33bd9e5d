"""Our evaluator where PyKEEN 1.11.1 takes one: its pipeline, its early stopper, its evaluation loop."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.test_pykeen_trained import WRONG_IN_MACRO

pytestmark = pytest.mark.peers

OF_EACH_CUTOFF = re.compile(r"(?:adjusted|z)_hits_at_\d+")  # PyKEEN has one key for all


@pytest.fixture(scope="module")
def found(of_pykeen: Path) -> dict[str, Any]:
    folder = of_pykeen / "pipeline"
    of_jobs: dict[str, Any] = json.loads((folder / "found.json").read_text())
    of_jobs["saved"] = json.loads((folder / "saved" / "results.json").read_text())["metrics"]
    return of_jobs


def test_results_print_as_their_usual_figures(found: dict[str, Any]) -> None:
    figures = (
        r"RankBasedMetricResults\(inverse_harmonic_mean_rank=0\.\d{4}, (hits_at_\d+=[01]\.\d{4}, )+\d+ figures in all\)"
    )

    assert re.fullmatch(figures, found["printed"])


@pytest.mark.parametrize("job", ["pipeline", "black box", "macro", "loop"])
def test_metrics_are_those_of_pykeen_where_it_is_right(found: dict[str, Any], job: str) -> None:
    theirs, ours = found[job]["theirs"], found[job]["ours"]

    more = {key for key in ours if OF_EACH_CUTOFF.fullmatch(key.rpartition(".")[2])}
    assert (len(more), set(theirs)) == (9 * 2 * 4, set(ours) - more)
    for key, value in theirs.items():
        if job == "macro" and key.endswith((*WRONG_IN_MACRO, "inverse_median_rank")):
            continue
        # Its ranks are float32, and its scores of a triple differ from ours in the last bits.
        assert ours[key] == pytest.approx(value, rel=5e-6, abs=1e-6, nan_ok=True), key


def test_results_have_every_shape_of_pykeen_s(found: dict[str, Any]) -> None:
    assert found["frames"] == found["dicts"]
    assert found["mrr"] == [of["both.realistic.inverse_harmonic_mean_rank"] for of in found["dicts"]]
    assert found["report"] == found["saved"]["both"]["realistic"]["inverse_harmonic_mean_rank"]


def test_what_cannot_be_ranked_is_refused_by_name(found: dict[str, Any]) -> None:
    assert "row 0: the score of candidate 0 is NaN" in found["NaN"]
    assert "expected the target head or tail, got relation" in found["target"]


def test_early_stopping_is_told_the_same_figures(found: dict[str, Any]) -> None:
    assert found["stopper"]["theirs"]
    assert found["stopper"]["theirs"] == pytest.approx(found["stopper"]["ours"], rel=1e-6)
    assert len(found["stopper"]["ours"]) > 1
    assert len(set(found["kept"])) == 1  # the folder has the last evaluation, not one of the stopper's


def test_results_hold_our_report_and_the_resolver_knows_the_name(found: dict[str, Any]) -> None:
    assert found["resolved"] is True
    assert found["pipeline"]["ours"]["both.realistic.inverse_harmonic_mean_rank"] == found["report"]


def test_the_training_factory_brings_the_names_of_relations(found: dict[str, Any]) -> None:
    assert {"accusation", "blockpositionindex"} < set(found["named"])
