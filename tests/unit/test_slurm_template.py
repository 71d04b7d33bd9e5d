"""The template for sbatch, without Slurm: where it looks for the result that decides whether the job is complete."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pbgeval

TEMPLATE = Path(pbgeval.__file__).parent / "examples" / "cluster_jobs" / "slurm.sbatch"


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["--output", "mine"], 0),
        (["--output=mine"], 0),
        (["-o", "mine"], 0),
        (["-omine"], 0),
        (["--output", "other"], 1),  # nothing was begun there
        ([], 1),
        (["--output"], 1),
        (["-o", "s3://bucket/mine"], 1),
    ],
)
def test_the_output_is_found_in_every_form(arguments: list[str], status: int, tmp_path: Path) -> None:
    for name in ("srun", "scontrol"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 0\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "metrics.json").write_text('{"complete": true}')
    slurm = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "a", "SLURM_CPUS_PER_TASK": "2", "MASTER_ADDR": "a"}
    environment = {**os.environ, **slurm, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHON": sys.executable}

    command = ["bash", str(TEMPLATE), "--config", "eval.py", *arguments]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == status, done.stderr
    assert ("found a URL; copy the result there afterwards" in done.stderr) == ("s3://bucket/mine" in arguments)
    needs_output = arguments in ([], ["--output"])
    assert ("slurm.sbatch: --output: expected a directory, found none" in done.stderr) == needs_output
