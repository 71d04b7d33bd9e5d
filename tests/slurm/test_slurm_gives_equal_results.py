"""On a real Slurm cluster: srun, the template for sbatch and `kgeval-dist submit` give the numbers of one worker."""

from __future__ import annotations

import subprocess
from pathlib import Path
from subprocess import PIPE

import pytest

from tests.clusters import EVERY_POLICY, CaseAndResult, Slurm
from tests.kit.commands import COMMAND, numbers_of, run_of
from tests.patience import PATIENCE

pytestmark = pytest.mark.slurm

TEMPLATE = Path(__file__).resolve().parents[2] / "scripts" / "slurm.sbatch"


def assert_equal_numbers(evaluated: CaseAndResult, output: Path, num_workers: int) -> None:
    assert (num_workers, numbers_of(evaluated.alone)) == (run_of(output)["num_workers"], numbers_of(output))


@EVERY_POLICY
def test_tasks_of_srun_on_two_nodes(slurm: Slurm, evaluated: CaseAndResult, tmp_path: Path) -> None:
    srun = ["srun", "--nodes=2", "--ntasks=2", "--kill-on-bad-exit=1"]

    done = slurm.run(
        *srun, COMMAND, "--config", evaluated.case.config, "--output", tmp_path / "output", "--quiet", cwd=tmp_path
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert_equal_numbers(evaluated, tmp_path / "output", 2)


def test_a_script_of_sbatch_without_srun_is_alone(slurm: Slurm, evaluated: CaseAndResult, tmp_path: Path) -> None:
    command = f"{COMMAND} --config {evaluated.case.config} --output output --quiet --workers 1"

    assert slurm.run_batch("--nodes=2", f"--wrap={command}", cwd=tmp_path) == ("COMPLETED 0:0", "")
    assert_equal_numbers(evaluated, tmp_path / "output", 1)


def test_the_template_for_sbatch(slurm: Slurm, evaluated: CaseAndResult, tmp_path: Path) -> None:
    arguments = ["--config", evaluated.case.config, "--output", "output", "--quiet"]

    end, log = slurm.run_batch(TEMPLATE, *arguments, cwd=tmp_path)

    assert end == "COMPLETED 0:0", log
    assert_equal_numbers(evaluated, tmp_path / "output", 2)


@EVERY_POLICY
def test_a_submitted_job(slurm: Slurm, evaluated: CaseAndResult, tmp_path: Path) -> None:
    submit = [COMMAND, "submit", "--nodes", "2", "--cpus-per-worker", "1", "--time", "10", "--slurm", "comment=tests"]

    done = slurm.run(*submit, evaluated.case.config, "--output", "output", "--wait", cwd=tmp_path, timeout=PATIENCE)

    assert (done.returncode, done.stderr) == (0, "")
    job, output, logs, end = done.stdout.splitlines()
    number = job.split()[1].rstrip(":")
    assert (f"job {number}: 2 workers, slurm", f"output: {tmp_path}/output") == (job, output)
    assert (f"logs: {tmp_path}/output.logs/{number}_*_log.err", f"job {number}: complete") == (logs, end)
    assert_equal_numbers(evaluated, tmp_path / "output", 2)
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
