"""On a real Slurm cluster: `kgeval-dist submit` and a plain script of sbatch give the numbers of one worker.

srun and the template for sbatch: test_commands_of_pages.py.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from subprocess import PIPE

import pytest

from tests.clusters import CaseAndResult, Slurm
from tests.kit.commands import COMMAND, numbers_of, run_of
from tests.patience import PATIENCE

pytestmark = pytest.mark.slurm


def assert_equal_numbers(evaluated: CaseAndResult, output: Path, num_workers: int) -> None:
    assert (num_workers, numbers_of(evaluated.alone)) == (run_of(output)["num_workers"], numbers_of(output))


def test_a_script_of_sbatch_without_srun_is_alone(slurm: Slurm, evaluated: CaseAndResult, tmp_path: Path) -> None:
    command = f"{COMMAND} --config {evaluated.case.config} --output output --quiet --workers 1"

    submitted = slurm.run("sbatch", "--parsable", "--output=log", "--nodes=2", f"--wrap={command}", cwd=tmp_path)
    assert (slurm.end_of(submitted.stdout.strip()), (tmp_path / "log").read_text()) == ("COMPLETED 0:0", "")
    assert_equal_numbers(evaluated, tmp_path / "output", 1)


def test_a_submitted_job(slurm: Slurm, evaluated: CaseAndResult, tmp_path: Path) -> None:
    submit = [COMMAND, "submit", "--nodes", "2", "--cpus-per-worker", "1", "--time", "10", "--slurm", "comment=tests"]

    done = slurm.run(*submit, evaluated.case.config, "--output", "output", "--wait", cwd=tmp_path, timeout=PATIENCE)

    assert (done.returncode, done.stderr) == (0, "")
    job, output, logs, end = done.stdout.splitlines()
    number = job.split()[1].rstrip(":")
    assert (f"job {number}: 2 workers, slurm", f"output: {tmp_path}/output") == (job, output)
    assert (f"logs: {tmp_path}/output.logs/{number}_*_log.err", f"job {number}: complete") == (logs, end)
    assert_equal_numbers(evaluated, tmp_path / "output", 2)
    assert slurm.job(number)["Requeue"] == "1", "Slurm starts it again when it is preempted"
    assert "metrics.json, run.json" in (tmp_path / "output.logs" / f"{number}_0_log.out").read_text()


def test_a_job_that_slurm_refuses_is_one_line(slurm: Slurm, evaluated: CaseAndResult, tmp_path: Path) -> None:
    submit = [COMMAND, "submit", "--partition", "nowhere", evaluated.case.config, "--output", "output"]

    done = slurm.run(*submit, cwd=tmp_path)

    assert (done.returncode, done.stdout) == (1, "")
    assert (done.stderr.splitlines()) == [
        "sbatch rejected the job: Batch job submission failed: Invalid partition name specified"
    ]


def test_a_job_that_is_cancelled_is_incomplete(slurm: Slurm, evaluated: CaseAndResult, tmp_path: Path) -> None:
    submit = [COMMAND, "submit", "--slurm", "begin=now+1hour", evaluated.case.config, "--output", "output"]
    with subprocess.Popen(
        [*submit, "--wait"], cwd=tmp_path, env=slurm.environment, stdout=PIPE, stderr=PIPE, text=True
    ) as waiting:
        assert waiting.stdout is not None
        number = waiting.stdout.readline().split()[1].rstrip(":")
        slurm.run("scancel", number, cwd=tmp_path)
        _, err = waiting.communicate(timeout=PATIENCE)

    assert (75, [f"job {number} ended before the run was complete; submit it again to resume"]) == (
        waiting.returncode,
        err.splitlines(),
    )
    assert not (tmp_path / "output").exists()
