"""A run that fails at any write, or for want of memory, goes on to the same bytes, or refuses in a line."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import pytest
from attrs import evolve

from pbgeval.notation import ENDS
from pbgeval.ranking import unit_passes
from pbgeval.storage import writing as files
from pbgeval.storage.row_files import find_ranks
from pbgeval.worker import buckets as so_far
from pbgeval.worker import rounds, run, sweep
from tests.kit.case import TinyCase
from tests.kit.commands import Done, flags, journaled_units, lacking, metrics_of, numbers_of, run_command
from tests.kit.held_up import (
    CANDIDATES,
    SHARES,
    SteppingSystem,
    entries_after_each_unit,
    evaluate,
    full_disk,
    share_of,
    short_of_memory,
    steps_of_each_kind,
    write_case,
)
from tests.saved_ranks import counts_of, read_ranks


@pytest.fixture(autouse=True)
def _entries_often() -> Iterator[None]:
    with entries_after_each_unit():
        yield


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> TinyCase:
    return write_case(tmp_path_factory.mktemp("case"))


def results_of(output: Path) -> dict[str, Any]:
    """The numbers, and the counts of each query."""
    return numbers_of(output) | counts_of(output)


@pytest.fixture(scope="module", params=CANDIDATES)
def undisturbed(
    request: pytest.FixtureRequest, case: TinyCase, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, dict[str, Any], list[str]]:
    """The numbers of a run, and the kinds of the steps by which it writes them."""
    output = tmp_path_factory.mktemp("undisturbed") / "output"
    counting = SteppingSystem()
    with pytest.MonkeyPatch.context() as patch, entries_after_each_unit():
        patch.setattr(files, "system", counting)
        assert evaluate(case, output, request.param).status == 0
    return request.param, results_of(output), counting.kinds


@pytest.mark.one_case
@SHARES
def test_it_goes_on_after_a_write_has_failed(
    case: TinyCase, undisturbed: tuple[str, dict[str, Any], list[str]], tmp_path: Path, share: str
) -> None:
    candidates, numbers, kinds = undisturbed
    assert len(kinds) > 60
    for k in share_of(steps_of_each_kind(kinds), share, candidates):
        output = tmp_path / "output"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(files, "system", SteppingSystem(k, full_disk))
            first = evaluate(case, output, candidates)
        assert first.status == 0 or (first.status in (1, 75) and "No space left on device" in first.err), (k, first)
        assert evaluate(case, output, candidates).printed == "", k
        assert numbers == results_of(output), k
        assert {"journal", "owner.json"}.isdisjoint(path.name for path in output.iterdir()), k
        shutil.rmtree(output)


@pytest.mark.one_case
@pytest.mark.parametrize("k", [1, 3])
def test_it_goes_on_after_memory_was_short(
    k: int, case: TinyCase, undisturbed: tuple[str, dict[str, Any], list[str]], tmp_path: Path
) -> None:
    candidates, numbers, _ = undisturbed
    module, name = (sweep, "rank") if candidates == "all" else (unit_passes, "bucket_pass")
    with short_of_memory(module, name, k):
        first = evaluate(case, tmp_path / "output", candidates)
    advice = "set max_memory, or use fewer --workers (in Python: workers)"
    message = f"worker 0: expected enough memory ({advice}), got: MemoryError"
    left = "output: nothing was finished yet; the same command begins again."
    left = left if k == 1 else "Run the same command again to resume."
    assert (first.status, lacking(first.err, message, left)) == (75, [])
    assert evaluate(case, tmp_path / "output", candidates).printed == ""
    assert numbers == results_of(tmp_path / "output")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("seconds", [5.0, 0.0], ids=["brief ranges", "long ranges"])
def test_a_sweep_that_a_signal_ends_saves_ranges_that_are_finished(
    number: signal.Signals,
    seconds: float,
    case: TinyCase,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """The range in hand is finished where that takes a moment; of a long one nothing may be written."""
    before = signal.signal(number, signal.default_int_handler)  # what a shell starts in the background ignores Ctrl-C
    request.addfinalizer(lambda: signal.signal(number, before))
    output, calls, rank = tmp_path / "output", [], sweep.rank

    def ended(*arguments: Any, **others: Any) -> None:
        calls.append(number)
        if len(calls) == 3:
            os.kill(os.getpid(), number)
        rank(*arguments, **others)

    with monkeypatch.context() as patch:
        patch.setattr("pbgeval.worker.journal.MAX_SECONDS_TO_WAIT", seconds)
        patch.setattr("pbgeval.worker.journal.MIN_SECONDS", 1e9)  # no entry until then
        patch.setattr(sweep, "rank", ended)
        done = evaluate(case, output, "all")

    assert (done.status, lacking(done.err, "% is saved: all queries are scored against")) == (
        75,
        [] if seconds else ["% is saved: all queries are scored against"],
    )
    lines = [
        line for log in (output / "journal").glob("log-*") for line in map(json.loads, log.read_text().splitlines())
    ]
    finished = {line["unit"] for line in lines if line["event"] == "finish"}
    assert (len(finished) >= 2, journaled_units(output)) == (True, finished) if seconds else (False, set())
    assert evaluate(case, output, "all").printed == ""
    assert evaluate(case, tmp_path / "whole", "all").printed == ""
    assert results_of(output) == results_of(tmp_path / "whole")


def test_a_small_share_that_is_saved_is_not_called_nothing(tmp_path: Path) -> None:
    case = TinyCase.write(tmp_path, dynamic=True, partition_sizes=(1, 199))
    with short_of_memory(sweep, "rank", 3):  # after both sides of the first partition
        done = run_command(case, "--workers", "1", "--output", str(tmp_path / "output"), *flags(["candidates=all"]))

    told = "(less than 1% is saved: all queries are scored against 1 of 200 entities; the rest is repeated)"
    assert (done.status, lacking(done.err, told)) == (75, [])


def test_rounds_of_a_sweep_are_not_added_up_to_more_than_all_entities(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = TinyCase.write(tmp_path, dynamic=True, partition_sizes=(9, 9))
    monkeypatch.setattr(rounds, "FIRST_ROUND_EDGES", 20)
    with short_of_memory(sweep, "rank", 7):  # after the first round, and one partition of the second
        keys = flags(["candidates=all", "target_error=0.0001"])
        done = run_command(case, "--workers", "1", "--output", str(tmp_path / "output"), *keys)

    assert (done.status, lacking(done.err, "(3 units of the sample saved; the rest is repeated)")) == (75, [])


@pytest.mark.parametrize("first", [[], ["save_topk=2"]], ids=["no list", "short lists"])
def test_lists_of_another_length_are_not_gone_on_with(first: list[str], case: TinyCase, tmp_path: Path) -> None:
    def run(output: str, keys: list[str], *more: str) -> Done:
        words = ("--workers", "1", "--output", str(tmp_path / output), *more)
        return run_command(case, *words, *flags(["candidates=all", "save_ranks=False", *keys]))

    with short_of_memory(sweep, "rank", 3):
        assert run("output", first).status == 75
    refusal = run("output", ["save_topk=3"]).refusal
    assert "expected results of this run with the same save_topk and program version" in refusal
    shutil.copytree(tmp_path / "output", tmp_path / "kept")
    ranges = []
    for output in ("kept", "undisturbed"):
        with short_of_memory(sweep, "rank", 0) as counted:
            done = run(output, first)
        assert (done.status, "% is saved: all queries are scored against" in done.err) == (0, output == "kept")
        ranges.append(counted.call_count)
    assert ranges[0] == ranges[1] - 2  # nothing that was done is lost
    assert (run("output", ["save_topk=3"], "--overwrite").status, run("whole", ["save_topk=3"]).status) == (0, 0)
    texts = [
        {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / output / "topk").rglob("*.tsv")}
        for output in ("output", "whole")
    ]
    assert {} != texts[0] == texts[1]


def units_until(case: TinyCase, output: Path, stop: int, *overrides: str) -> tuple[int, int]:
    """Evaluate, and run out of memory at some unit; return the status, and how many units have begun."""
    with short_of_memory(unit_passes, "bucket_pass", stop) as counted:
        return evaluate(case, output, "partition", *overrides).status, counted.call_count


def of_another_run(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file.attrs["digest"] = "0" * 32


@pytest.mark.slow
@pytest.mark.parametrize(("damage", "num_units"), [(Path.exists, 2), (Path.unlink, 4), (of_another_run, 4)])
def test_only_where_files_of_ranks_are_not_as_they_were_all_units_are_computed_again(
    damage: Callable[[Path], object], num_units: int, case: TinyCase, tmp_path: Path
) -> None:
    output = tmp_path / "output"
    assert units_until(case, tmp_path / "whole", 0) == (0, 4)
    assert units_until(case, output, 3) == (75, 3)
    damage(output / "ranks" / "0" / "ranks_1_1.h5")
    assert (0, num_units) == units_until(case, output, 0)
    assert results_of(tmp_path / "whole") == results_of(output)


TOLD = "of the earlier run had scores of other kernels"


@pytest.mark.parametrize("precision", ["float32", "exact"])
@pytest.mark.parametrize("candidates", ["partition", "all"])
def test_units_that_other_kernels_have_scored_count_only_where_ranks_are_exact(
    candidates: str, precision: str, case: TinyCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last bits of their scores may differ; and ranks of edges are those of the latest run, units of none other."""
    settings = f"precision={precision}", "relation_prediction=False"
    whole, output, check = tmp_path / "whole", tmp_path / "output", run.check_kernels
    module, name = (sweep, "rank") if candidates == "all" else (unit_passes, "bucket_pass")
    assert evaluate(case, whole, candidates, *settings).printed == ""

    def elsewhere(*arguments: Any, **others: Any) -> Any:
        report = check(*arguments, **others)
        return evolve(report, fingerprint=report.fingerprint | {"device": "another"})

    saved = []
    last = 2 if (candidates, precision) == ("partition", "exact") else 3  # two of four units are left
    for of_kernels, stop in ((check, 3), (elsewhere, last)):
        with monkeypatch.context() as patch, short_of_memory(module, name, stop):
            patch.setattr(run, "check_kernels", of_kernels)
            done = evaluate(case, output, candidates, *settings, is_quiet=False)
        assert (done.status, TOLD in done.err) == (75, precision == "float32" and bool(saved))
        saved.append(journaled_units(output))
    assert saved[0]
    assert saved[0] < saved[1] if precision == "exact" else saved[1] and saved[0].isdisjoint(saved[1])
    done = evaluate(case, output, candidates, *settings, is_quiet=False)
    assert (done.status, TOLD in done.err) == (0, precision == "float32")
    assert results_of(whole) == results_of(output)


def test_a_run_that_passes_its_limit_of_memory_goes_on_with_more(
    case: TinyCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, held = tmp_path / "output", iter([0, 0, 31 * 10**9])
    assert units_until(case, tmp_path / "whole", 0) == (0, 4)
    with monkeypatch.context() as patch:
        patch.setattr(so_far, "anonymous_bytes", lambda: next(held))
        done = evaluate(case, output, "partition", "max_memory=30GB")
    assert (
        done.status,
        "a worker holds 31000MB, got 30000MB; raise it, and run the same command again to resume" in done.err,
    ) == (1, True)

    num_saved = len(journaled_units(output))
    assert num_saved > 0
    assert units_until(case, output, 0, "max_memory=40GB") == (0, 4 - num_saved)
    assert results_of(tmp_path / "whole") == results_of(output)


def test_an_unfinished_run_has_the_metrics_of_what_is_done(
    case: TinyCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(so_far, "MIN_SECONDS", 0.0)
    monkeypatch.setattr("pbgeval.worker.journal.SECONDS_PER_SECOND", 0.0)
    output = tmp_path / "output"
    assert units_until(case, output, 3) == (75, 3)

    document = metrics_of(output)
    reciprocal_ranks: list[float] = []
    for place in find_ranks(output):
        columns_of = read_ranks(output, *place).columns
        for columns in (columns_of[side] for side in ENDS):
            better, tied = (columns[name] - columns[f"excluded_{name}"] for name in ("better", "tied"))
            reciprocal_ranks += (1 / (1 + better + tied / 2))[columns["num_candidates"] > 0].tolist()
    assert (document["complete"], document["progress"]) == (False, {"units": 4, "units_done": 2})
    assert len(reciprocal_ranks) == document["num_queries"] == 2 * document["num_edges"] > 0
    assert math.fsum(reciprocal_ranks) / len(reciprocal_ranks) == pytest.approx(
        document["metrics"]["both.realistic.mean_reciprocal_rank"], rel=1e-12
    )
    assert evaluate(case, output, "partition").status == 0
    assert metrics_of(output)["complete"]
