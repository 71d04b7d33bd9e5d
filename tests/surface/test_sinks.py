"""`sinks`: the figures of a finished run in JSON lines and TensorBoard; what is missing or fails, and what it costs."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from pbgeval import EvalConfig, Report
from pbgeval.errors import OutputError
from pbgeval.results.output import result_line
from pbgeval.sinks import LoggedRun, library_faults, open_tensorboard
from tests.kit.case import TinyCase
from tests.kit.commands import Done, evaluated, flags, lacking, metrics_of, run_command
from tests.kit.reports import scalars_in


class OfLibraryError(Exception):
    """An exception that only a library has."""


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> TinyCase:
    return TinyCase.write(tmp_path_factory.mktemp("case"), partition_sizes=(9, 8), edges_per_bucket=11)


def run(case: TinyCase, output: str, *overrides: str) -> Done:
    return run_command(case, "--workers", "1", "--output", output, *flags(overrides))


def line_in(output: Path) -> dict[str, Any]:
    (line,) = (output / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return json.loads(line)


def test_json_lines_are_always_written_and_hold_the_headline_figures(case: TinyCase) -> None:
    document = evaluated(case, "filter_paths=edges", "candidates=all", output="lines")

    line = line_in(case.root / "lines")

    of_line, metrics = line["values"], document["metrics"]
    shown = {key: metrics[key] for key in ("both.realistic.mean_reciprocal_rank", "head.query_auc")}
    shown["raw.tail.realistic.hits_at_10"] = document["raw_metrics"]["tail.realistic.hits_at_10"]
    assert ("lines", 3, shown) == (line["run"], line["step"], {key: of_line[key] for key in shown})
    assert not [key for key in of_line if "optimistic" in key]
    assert {"digest": document["provenance"]["digest"], "filter": "filtered"}.items() <= line["settings"].items()
    assert not (case.root / "lines" / "sinks").exists()


def test_tensorboard_holds_the_same_and_no_number_changes(case: TinyCase) -> None:
    plain = evaluated(case, "candidates=partition", "sample_edges=30", output="plain")
    done = run(case, "events", "candidates=partition", "sample_edges=30", "sinks=tensorboard")
    assert (done.status, lacking(done.out, "metrics.jsonl", "sinks")) == (0, [])
    assert plain == metrics_of(case.root / "events")
    line = line_in(case.root / "events")
    assert line["values"]["both.realistic.mean_rank.standard_error"] > 0
    expected = {key: {3: pytest.approx(value, rel=1e-6)} for key, value in line["values"].items()}  # float32
    assert scalars_in(case.root / "events" / "sinks" / "tensorboard") == expected


def test_another_run_in_the_directory_replaces_what_sinks_hold(case: TinyCase) -> None:
    events = []
    for seed in (2, 3):
        arguments = ("--quiet", "--output", "again", "--overwrite", *flags([f"seed={seed}", "sinks=tensorboard"]))
        assert run_command(case, "--workers", "1", *arguments).printed == ""
        events += (case.root / "again" / "sinks" / "tensorboard").iterdir()
    assert len(set(events)) == 2
    assert run_command(case, "--workers", "1", "--output", "again", "--overwrite", "-p", "seed=4").status == 0
    assert not (case.root / "again" / "sinks").exists()


def threads_of_sinks() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if type(thread).__module__.startswith("tensorboard")]


def test_a_sink_that_fails_costs_a_warning_and_not_the_result(case: TinyCase) -> None:
    before = threads_of_sinks()
    with mock.patch("torch.utils.tensorboard.SummaryWriter.add_scalar", side_effect=RuntimeError("a\nbroken disk")):
        done = run(case, "failing", "candidates=partition", "sinks=tensorboard")

    assert done.status == 0
    assert metrics_of(case.root / "failing")["complete"]
    assert line_in(case.root / "failing")["values"]
    assert len([line for line in done.faults if "sink" in line]) == 1
    assert "cannot write an event file of TensorBoard: RuntimeError: a broken disk; the result" in done.err
    assert before == threads_of_sinks()


@pytest.mark.parametrize("broken", [["add_text"], ["add_scalar"], ["add_scalar", "close"]])
def test_a_sink_of_a_training_that_fails_leaves_no_thread_and_tells_the_fault_that_came_first(
    broken: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = threads_of_sinks()
    for name in broken:
        fail = mock.Mock(side_effect=OSError(28, f"no room to {name}"))
        monkeypatch.setattr(f"torch.utils.tensorboard.SummaryWriter.{name}", fail)

    with (
        pytest.raises(OutputError, match=f"no room to {broken[0]}"),
        open_tensorboard(tmp_path / "events", LoggedRun("mine", {"seed": 4})) as log,
    ):
        log(1, {"mrr": 0.5})

    assert "close" in broken or before == threads_of_sinks()


def test_events_stay_in_their_folder_when_the_directory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with open_tensorboard(Path("events"), LoggedRun("mine")) as log:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        log(1, {"mrr": 0.5})

    assert scalars_in(tmp_path / "events") == {"mrr": {1: 0.5}}


def test_an_unknown_sink_is_refused(case: TinyCase) -> None:
    assert not lacking(run(case, "unknown", "sinks=tensorbord").fault, "sinks[0]: expected", "tensorboard")


def test_what_is_in_memory_needs_a_place_for_its_sinks() -> None:
    from pbgeval import edge_scorer, evaluate

    scorer = edge_scorer(lambda lhs, rel, rhs: lhs + 0.0 * rhs, num_entities=4, num_relations=1)

    with pytest.raises(Exception, match=r"sinks: give output="):
        evaluate(EvalConfig(candidates="all", sinks=["tensorboard"]), model=scorer, edges=[[0, 0, 1], [1, 0, 2]])


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (OSError(28, "a full disk"), pytest.raises(OutputError, match=r"cannot write it: a full disk$")),
        (OfLibraryError("a\nfull disk"), pytest.raises(OutputError, match=r"it: OfLibraryError: a full disk$")),
        (KeyError("x"), pytest.raises(KeyError)),  # anything else is a bug
    ],
)
def test_what_a_library_says_is_a_fault_of_one_line(error: Exception, raised: Any, tmp_path: Path) -> None:
    with raised, library_faults("tests", "it", tmp_path):
        raise error


def test_what_is_undefined_is_in_no_line() -> None:
    document = {
        "provenance": {"digest": "0123456789", "checkpoint_version": None},
        "filter": "raw",
        "headline": "pessimistic",
        "num_edges": 0,
        "metrics": {"both.pessimistic.mean_rank": None, "both.auc": 0.25, "both.realistic.mean_rank": 2.0},
        "intervals": {
            "both.auc": {"standard_error": 0.1, "low": 0.0, "high": 1.0},
            "tail.auc": {"low": 0.0, "high": 1.0},
        },
        "sample": {"num_units": 1, "population": 2},
    }

    run, step, values = result_line(Report(document), "name")

    assert (run.name, step, values) == ("name", 0, {"both.auc": 0.25, "both.auc.standard_error": 0.1})
