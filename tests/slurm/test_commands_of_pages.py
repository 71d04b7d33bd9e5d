"""Blocks of pages that need Slurm, pasted on a real cluster, give the numbers of one worker.

But for the one that names a partition and an account.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from attrs import evolve

from tests.clusters import CaseAndResult, Slurm
from tests.kit.commands import COMMAND, numbers_of, run_of
from tests.pages import blocks_of

pytestmark = pytest.mark.slurm


def paste(slurm: Slurm, first_word: str, folder: Path) -> str:
    """Paste the only block of docs/cluster.md that needs Slurm and has a line that begins so; return what it prints."""
    needing = [block for block in blocks_of("docs/cluster.md") if block.needs == "Slurm"]
    (block,) = [block for block in needing if re.search(rf"^{first_word} ", block.text, re.MULTILINE)]
    path = f"{COMMAND.parent}:{slurm.environment['PATH']}"
    on_the_cluster = evolve(slurm, environment={**slurm.environment, "PATH": path})
    done = on_the_cluster.run("bash", "-c", f"set -eu\n{block.text}", cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_srun_of_the_page_about_clusters(roomy_slurm: Slurm, evaluated: CaseAndResult, tmp_path: Path) -> None:
    case = shutil.copytree(evaluated.case.root, tmp_path / "case")

    paste(roomy_slurm, "srun", case)

    assert run_of(case / "results" / "mine")["num_workers"] == 4
    assert numbers_of(evaluated.alone) == numbers_of(case / "results" / "mine")


def test_sbatch_of_the_page_about_clusters(slurm: Slurm, evaluated: CaseAndResult, tmp_path: Path) -> None:
    case = shutil.copytree(evaluated.case.root, tmp_path / "case")

    assert slurm.end_of(paste(slurm, "sbatch", case).split()[-1]) == "COMPLETED 0:0"
    assert run_of(case / "results" / "mine")["num_workers"] == 2
    assert numbers_of(evaluated.alone) == numbers_of(case / "results" / "mine")
