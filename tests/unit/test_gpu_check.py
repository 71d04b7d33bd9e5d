"""`scripts/gpu_check` where there is no GPU: the kernel is interpreted, sizes are tiny, speeds mean nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
NOT_THERE = ("rich", "typer", "numba", "submitit", "hypothesis", "pytest")  # on a bare machine with a GPU

pytestmark = pytest.mark.slow  # all paths, and an interpreted kernel


def test_it_checks_every_path_with_what_a_bare_machine_has(tmp_path: Path) -> None:
    for module in NOT_THERE:
        (tmp_path / f"{module}.py").write_text("raise ImportError(__name__)\n", encoding="utf-8")
    (tmp_path / "out").mkdir()
    environment = os.environ | {"PYTHON": sys.executable, "PYTHONPATH": str(tmp_path), "OUT": str(tmp_path / "out")}

    done = subprocess.run(
        [REPOSITORY / "scripts" / "gpu_check", "--device", "cpu", "--smoke", "--output", tmp_path / "found.json"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    written = [(tmp_path / name).read_text(encoding="utf-8") for name in ("found.json", "out/gpu_check.json")]
    assert [found] * 2 == [json.loads(text) for text in written]
    assert (found["complete"], found["passed"]) == (True, True)
    names = [check["name"] for check in found["checks"]]
    assert {"sampled", "partition", "all", "fused"} <= {name.split()[0] for name in names}
    assert {benchmark["name"].split()[0] for benchmark in found["benchmarks"]} == {"fused", "float32"}
    rows = [line.split(" | ") for line in done.stderr.splitlines() if line.startswith("| f")]
    assert [row[0][2:] for row in rows] == [benchmark["name"] for benchmark in found["benchmarks"]]
    assert rows[0][2] == "100%"


def test_without_a_gpu_it_says_so_in_one_line() -> None:
    environment = os.environ | {"PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""}

    done = subprocess.run(
        [REPOSITORY / "scripts" / "gpu_check"], env=environment, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "gpu_check: no GPU that torch can use; --device cpu interprets the kernel\n"


def test_a_failed_check_is_in_the_results_and_in_the_status(tmp_path: Path) -> None:
    """Without Triton nothing is fused: what needs it fails, the rest is still told."""
    (tmp_path / "triton.py").write_text("raise ImportError(__name__)\n", encoding="utf-8")
    program = [REPOSITORY / "scripts" / "gpu_check", "--device", "cpu", "--smoke"]
    environment = os.environ | {"PYTHON": sys.executable, "PYTHONPATH": str(tmp_path)}

    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False, timeout=280)

    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert not found["passed"]
    errors = {check["name"]: check.get("error", "") for check in found["checks"]}
    assert "ImportError" in errors["fused within the rounding bound"]
    assert not errors["self-check torch.float32"]
