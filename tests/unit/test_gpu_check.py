"""`scripts/gpu_check` where there is no GPU: the kernel is interpreted, sizes are tiny, speeds mean nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
NOT_THERE = ("rich", "typer", "numba", "submitit", "hypothesis", "pytest")  # on a bare machine with a GPU
SMOKE = ("--device", "cpu", "--smoke")

pytestmark = pytest.mark.slow  # all paths, and an interpreted kernel


def checked(folder: Path, *arguments: object, without: tuple[str, ...] = (), **environment: str) -> Any:
    """Start it where some modules are not installed."""
    for module in without:
        (folder / f"{module}.py").write_text("raise ImportError(__name__)\n", encoding="utf-8")
    environment = os.environ | {"PYTHON": sys.executable, "PYTHONPATH": str(folder), **environment}
    command = [REPOSITORY / "scripts" / "gpu_check", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=280)


def test_it_checks_every_path_with_what_a_bare_machine_has(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()

    done = checked(tmp_path, *SMOKE, "--output", "found.json", without=NOT_THERE, OUT=str(tmp_path / "out"))

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    written = [(tmp_path / name).read_text(encoding="utf-8") for name in ("found.json", "out/gpu_check.json")]
    assert [found] * 2 == [json.loads(text) for text in written]
    names, benchmarks = ([of["name"] for of in found[part]] for part in ("checks", "benchmarks"))
    assert (found["complete"], found["passed"]) == (True, True)
    assert {"sampled", "partition", "all", "tiles"} <= {name.split()[0] for name in names}
    assert {name.split()[0] for name in benchmarks} == {"tiles", "float32"}
    rows = [line.split(" | ") for line in done.stderr.splitlines() if line.startswith(("| f", "| t"))]
    assert ([row[0][2:] for row in rows], rows[0][2]) == (benchmarks, "100%")


def test_without_a_gpu_it_says_so_in_one_line(tmp_path: Path) -> None:
    done = checked(tmp_path, CUDA_VISIBLE_DEVICES="")

    said = "gpu_check: no GPU that torch can use; --device cpu interprets the kernel\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", said)


def test_a_failed_check_is_in_the_results_and_in_the_status(tmp_path: Path) -> None:
    """Without Triton there are no kernels: what needs them fails, the rest is still told."""
    done = checked(tmp_path, *SMOKE, without=("triton",))

    found = json.loads(done.stdout)
    errors = {check["name"]: check.get("error", "") for check in found["checks"]}
    names = ("self-check torch.float32", "tiles within the rounding bound")
    assert (done.returncode, found["passed"]) == (1, False)
    assert all("triton" in errors[name] for name in names)
