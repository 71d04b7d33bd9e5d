"""Jobs of a real Slurm that are requeued or cancelled go on to the numbers of an undisturbed run."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from subprocess import PIPE

import pytest

from tests.clusters import Slurm
from tests.tiny_checkpoint import COMMAND, TinyCase, metrics_of, numbers_of, start_command, undisturbed_numbers

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

SECONDS = 120


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> TinyCase:
    """Sixteen buckets, each of about half a second."""
    folder = tmp_path_factory.mktemp("case")
    return TinyCase.write(
        folder,
        dynamic=True,
        partition_sizes=(8_000,) * 4,
        edges_per_bucket=14_000,
        dimension=16,
        candidates="partition",
    )


@pytest.fixture(scope="module")
def undisturbed(case: TinyCase, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return undisturbed_numbers(case, tmp_path_factory.mktemp("undisturbed") / "output")


def wait_for_an_entry(output: Path) -> None:
    until = time.monotonic() + SECONDS
    while not any((output / "journal").glob("*.unit")):
        assert time.monotonic() < until, "no unit was finished"
        time.sleep(0.05)


def events(output: Path) -> list[str]:
    return [json.loads(line)["event"] for line in (output / "units.jsonl").read_text(encoding="utf-8").splitlines()]


def test_a_submitted_job_that_is_requeued_goes_on(
    slurm: Slurm, case: TinyCase, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    submit = [COMMAND, "submit", "--nodes", "2", "--cpus-per-worker", "1", "--time", "10", "--partition", "low"]
    arguments = ["--config", case.config, "--output", "output", "--wait"]
    with subprocess.Popen(
        [*submit, *arguments], cwd=tmp_path, env=slurm.environment, stdout=PIPE, stderr=PIPE, text=True
    ) as waiting:
        assert waiting.stdout is not None
        number = waiting.stdout.readline().split()[1].rstrip(":")
        wait_for_an_entry(tmp_path / "output")
        requeued = slurm.run("scontrol", "requeue", number, cwd=tmp_path)
        assert 0 == requeued.returncode, requeued.stderr
        out, err = waiting.communicate(timeout=SECONDS)

    assert (0, "") == (waiting.returncode, err), out
    assert undisturbed == numbers_of(tmp_path / "output")
    assert "restored" in events(tmp_path / "output")


def test_a_job_that_is_cancelled_leaves_what_is_done(
    slurm: Slurm, case: TinyCase, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    command = f"{COMMAND} --config {case.config} --output output --quiet --workers 2"
    submitted = slurm.run("sbatch", "--parsable", "--output=log", f"--wrap={command}", cwd=tmp_path)
    wait_for_an_entry(tmp_path / "output")
    slurm.run("scancel", submitted.stdout.strip(), cwd=tmp_path)
    until = time.monotonic() + SECONDS
    while slurm.run("squeue", "-h", "-j", submitted.stdout.strip(), cwd=tmp_path).stdout:
        assert time.monotonic() < until, "the job did not end"
        time.sleep(0.2)

    assert not metrics_of(tmp_path / "output")["complete"]
    done = start_command(case, "--workers", "1", "--quiet", "--output", str(tmp_path / "output"))
    assert (0, "") == (done.status, done.err)
    assert undisturbed == numbers_of(tmp_path / "output")
    assert "restored" in events(tmp_path / "output")
