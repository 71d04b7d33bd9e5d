"""Blocks of pages that need Slurm, pasted on a real cluster; but for the one that names a partition and an account."""

from __future__ import annotations

from pathlib import Path

import pytest
from attrs import evolve

from tests.clusters import Slurm, wait_until
from tests.kit.case import TinyCase
from tests.kit.commands import COMMAND, metrics_of, run_of
from tests.pages import REPOSITORY, blocks_of

pytestmark = pytest.mark.slurm


def paste(slurm: Slurm, first_word: str, folder: Path) -> str:
    """Paste the only block of docs/cluster.md that needs Slurm and begins so; return what it prints."""
    needing = [block for block in blocks_of("docs/cluster.md") if block.needs == "Slurm"]
    (block,) = [block for block in needing if block.text.startswith(f"{first_word} ")]
    path = f"{COMMAND.parent}:{slurm.environment['PATH']}"
    on_the_cluster = evolve(slurm, environment={**slurm.environment, "PATH": path})
    done = on_the_cluster.run("bash", "-c", f"set -eu\n{block.text}", cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_srun_of_the_page_about_clusters(roomy_slurm: Slurm, tmp_path: Path) -> None:
    paste(roomy_slurm, "srun", TinyCase.write(tmp_path).root)

    result = metrics_of(tmp_path / "results" / "mine")
    assert (result["complete"], run_of(tmp_path / "results" / "mine")["num_workers"]) == (True, 4)


def test_sbatch_of_the_page_about_clusters(slurm: Slurm, tmp_path: Path) -> None:
    case = TinyCase.write(tmp_path)
    (tmp_path / "slurm.sbatch").write_bytes((REPOSITORY / "scripts" / "slurm.sbatch").read_bytes())

    number = paste(slurm, "sbatch", case.root).split()[-1]

    ends = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
    wait_until(lambda: slurm.job(number)["JobState"] in ends, "the job did not end")
    assert slurm.job(number)["JobState"] == "COMPLETED"
    assert metrics_of(tmp_path / "results" / "mine")["complete"]
