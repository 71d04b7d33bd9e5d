"""Jobs of a real Slurm that are preempted or out of time, and so requeued, go on to an undisturbed run's numbers.

Where a job must not come to its end before Slurm ends it, its tasks are stopped meanwhile: no test depends on how fast
the machine is.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE

import pytest

from pbgeval.examples.files import TEMPLATES
from tests.clusters import NUM_UNITS, Slurm, stop, stop_until_ended, wait_until, wait_until_begun, writers
from tests.kit.case import TinyCase
from tests.kit.commands import COMMAND, journaled_units, metrics_of, numbers_of, unit_log
from tests.patience import PATIENCE

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

# By its looks at jobs now and then, Slurm's warning comes up to half a minute early.
SECONDS_EARLY = 40
TEMPLATE = TEMPLATES["slurm"].path


@contextmanager
def submitted(slurm: Slurm, case: TinyCase, folder: Path, *flags: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Submit the case to two nodes; yield the job's number and the command, which waits for the end."""
    submit = [COMMAND, "submit", "--nodes", "2", "--cpus-per-worker", "1", "--partition", "low", *flags]
    arguments = [case.config, "--output", "output", "--wait"]
    with subprocess.Popen(
        [*submit, *arguments], cwd=folder, env=slurm.environment, stdout=PIPE, stderr=PIPE, text=True
    ) as waiting:
        assert waiting.stdout is not None
        number = waiting.stdout.readline().split()[1].rstrip(":")
        try:
            yield number, waiting
        finally:
            waiting.kill()
            slurm.run("scancel", number, cwd=folder)


@contextmanager
def something_more_important(slurm: Slurm, folder: Path) -> Iterator[str]:
    """Submit a job that wants both nodes to itself, and keeps them until there is a file `seen`; yield its number."""
    wait = "until test -e seen; do sleep 0.2; done"
    job = ["--partition=high", "--nodes=2", "--exclusive", "--output=high", f"--wrap={wait}"]
    number = slurm.run("sbatch", "--parsable", *job, cwd=folder).stdout.strip()
    try:
        yield number
    finally:
        slurm.run("scancel", number, cwd=folder)


def assert_went_on(output: Path, undisturbed: dict[str, str], kept: set[str], first: set[str]) -> None:
    """Assert that the numbers are right, and that nothing which the journal held was begun again by others."""
    assert undisturbed == numbers_of(output)
    lines = unit_log(output)
    assert "restored" in [line["event"] for line in lines]
    begun = {line["unit"] for line in lines if line["event"] == "start" and line["writer"] not in first}
    assert kept.isdisjoint(begun)
    assert len(kept | begun) == NUM_UNITS


def test_a_submitted_job_that_is_preempted_goes_on(
    slurm: Slurm, long_case: TinyCase, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    output = tmp_path / "output"
    with submitted(slurm, long_case, tmp_path, "--time", "10") as (number, waiting):
        wait_until_begun(output)
        first = writers(output)
        stop(first.values())  # until they are told: with the signal comes SIGCONT
        with something_more_important(slurm, tmp_path) as more_important:
            logs = [tmp_path / "output.logs" / f"{number}_{task}_log.err" for task in range(2)]
            # They are told when the grace begins, and go on: Slurm requeues a job only if it has not ended by itself.
            told = "Bypassing signal SIGTERM"
            wait_until(lambda: all(told in log.read_text() for log in logs), "no task was told")
            stop_until_ended(first.values())
            wait_until(lambda: slurm.job(more_important)["JobState"] == "RUNNING", "it was not preempted")
            assert (slurm.job(number)["JobState"], slurm.job(number)["Restarts"]) == ("PENDING", "1")
            kept = journaled_units(output)
            assert 0 < len(kept) < NUM_UNITS
            assert not metrics_of(output)["complete"]
            assert waiting.poll() is None
            (tmp_path / "seen").touch()
            out, err = waiting.communicate(timeout=PATIENCE)

    assert (waiting.returncode, err) == (0, ""), out
    assert slurm.ends_of(number) == ["PREEMPTED", "COMPLETED"]
    assert_went_on(output, undisturbed, kept, set(first))


def test_the_template_goes_on_when_it_is_preempted(
    slurm: Slurm, long_case: TinyCase, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    """Its workers end when they are told; then it has to requeue itself, although it ran for less than a minute."""
    output = tmp_path / "output"
    arguments = [TEMPLATE, "--config", long_case.config, "--output", "output", "--quiet"]
    job = slurm.run("sbatch", "--parsable", "--output=log", "--partition=low", *arguments, cwd=tmp_path)
    number = job.stdout.strip()
    wait_until_begun(output)
    first = writers(output)
    stop(first.values())
    with something_more_important(slurm, tmp_path) as more_important:
        wait_until(lambda: slurm.job(more_important)["JobState"] == "RUNNING", "it was not preempted")
        kept = journaled_units(output)
        assert 0 < len(kept) < NUM_UNITS
        (tmp_path / "seen").touch()
        wait_until(lambda: slurm.job(number)["JobState"] == "COMPLETED", "it did not go on")

    assert slurm.job(number)["Restarts"] == "1"
    assert_went_on(output, undisturbed, kept, set(first))


def test_a_submitted_job_that_runs_out_of_time_goes_on(
    slurm: Slurm, long_case: TinyCase, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    output = tmp_path / "output"
    # Slurm's least limit, put off until both tasks have begun, however long that takes on a slow machine.
    with submitted(slurm, long_case, tmp_path, "--time", "1", "--slurm", "signal=USR2@5") as (number, waiting):
        slurm.set_minutes(number, 10)
        wait_until_begun(output)
        first = writers(output)
        with slurm.starting_nothing("low", tmp_path):
            stop(first.values())  # until Slurm warns them: with the signal comes SIGCONT
            slurm.set_minutes(number, 1 + (slurm.seconds_of(number) + SECONDS_EARLY) // 60)
            wait_until(lambda: slurm.job(number)["JobState"] == "PENDING", "it was not requeued")
            kept = journaled_units(output)
            assert 0 < len(kept) < NUM_UNITS
            assert not metrics_of(output)["complete"]
            assert waiting.poll() is None
            assert not list((tmp_path / "output.logs").glob("*_0_result.pkl"))
            slurm.set_minutes(number, 10)  # enough for the rest
        out, err = waiting.communicate(timeout=PATIENCE)

    assert (waiting.returncode, err) == (0, ""), out
    before, last = slurm.ends_of(number)
    assert last == "COMPLETED"
    assert before in ("PENDING", "REQUEUED")  # as versions of Slurm call it
    assert_went_on(output, undisturbed, kept, set(first))
