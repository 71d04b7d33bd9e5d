"""`scripts/gpu_check` where there is no GPU: the kernel is interpreted, sizes are tiny, speeds mean nothing."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.laws.test_every_path_runs_on_a_device import pretend
from tests.pretend_device import PretendDevice

REPOSITORY = Path(__file__).resolve().parents[2]
NOT_THERE = ("rich", "typer", "numba", "submitit", "hypothesis", "pytest")  # on a bare machine with a GPU
SMOKE = ("--device", "cpu", "--smoke")


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a test import what stands beside the script."""
    monkeypatch.syspath_prepend(str(REPOSITORY / "scripts"))


def checked(folder: Path, *arguments: object, without: tuple[str, ...] = (), **environment: str) -> Any:
    """Start it where some modules are not installed."""
    for module in without:
        (folder / f"{module}.py").write_text("raise ImportError(__name__)\n", encoding="utf-8")
    environment = os.environ | {"PYTHON": sys.executable, "PYTHONPATH": str(folder), **environment}
    command = [REPOSITORY / "scripts" / "gpu_check", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=280)


class Event:
    """A moment, as a GPU would note it."""

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self._at = time.perf_counter()

    def synchronize(self) -> None: ...

    def elapsed_time(self, later: Event) -> float:
        return 1000 * (later._at - self._at)


@pytest.mark.slow
def test_on_a_device_it_mixes_no_tensors_of_device_and_host(
    scripts: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that it does on a GPU, on a pretended one; nothing is launched, so there is nothing to trace."""
    import gpu_check

    launches = pretend(monkeypatch)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    for name in ("synchronize", "empty_cache", "reset_peak_memory_stats", "set_sync_debug_mode"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: None)
    for name in ("get_sync_debug_mode", "max_memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: 0)
    monkeypatch.setattr(gc, "collect", lambda: 0)  # before each evaluation, of all that other tests have left
    monkeypatch.setattr(sys, "argv", ["gpu_check", "--smoke", "--output", str(tmp_path / "found.json")])
    monkeypatch.delenv("OUT", raising=False)

    with PretendDevice():
        status = gpu_check.main()

    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    steps = [step for part in ("checks", "benchmarks", "runs") for step in found[part]]
    assert [step for step in steps if not step["passed"]] == []
    assert (status, found["complete"]) == (0, True)
    assert min(launches.scores, launches.pairs, launches.count) > 0
    names, benchmarks, runs = ({of["name"] for of in found[part]} for part in ("checks", "benchmarks", "runs"))
    assert {"self-check", "sampled", "partition", "all", "tiles"} <= {name.split()[0] for name in names}
    assert {name.split()[0] for name in benchmarks} == {"tiles", "float32", "exact,"}
    assert {"sampled", "partition", "all", "all, exact"} <= runs
    traced = [step["busy"] for step in found["runs"] if "traced" in step["name"]]
    assert traced == [0.0] * 5
    [of_all] = (step for step in found["runs"] if step["name"] == "all")
    assert {"read", "count"} <= of_all["second"]["seconds_by_stage"].keys() | of_all["second"]["seconds_beside"].keys()


@pytest.mark.slow
def test_a_failed_check_is_in_the_results_and_in_the_status(tmp_path: Path) -> None:
    """With what a bare machine has, and without Triton: what needs kernels fails, the rest is still told."""
    (tmp_path / "out").mkdir()

    done = checked(
        tmp_path, *SMOKE, "--output", "found.json", without=("triton", *NOT_THERE), OUT=str(tmp_path / "out")
    )

    found = json.loads(done.stdout)
    written = [(tmp_path / name).read_text(encoding="utf-8") for name in ("found.json", "out/gpu_check.json")]
    assert [found] * 2 == [json.loads(text) for text in written]
    errors = {check["name"]: check.get("error", "") for check in found["checks"]}
    names = ("self-check torch.float32", "tiles within the rounding bound")
    assert (done.returncode, found["passed"]) == (1, False)
    assert all("triton" in errors[name] for name in names)


def test_each_function_of_a_stage_is_there(scripts: None) -> None:
    import gpu_stages

    assert gpu_stages.missing() == []


def test_a_kernel_belongs_to_the_innermost_stage_that_launched_it(scripts: None) -> None:
    import gpu_stages

    def stage(name: str, start: float, stop: float) -> dict[str, Any]:
        return {"cat": "user_annotation", "name": f"stage: {name}", "ts": start, "dur": stop - start}

    def launch(number: int, at: float, start: float, stop: float, category: str = "kernel") -> list[dict[str, Any]]:
        of = {"correlation": number}
        return [
            {"cat": "cuda_driver", "ts": at, "dur": 1, "args": of, "name": "cuLaunchKernel"},
            {"cat": category, "ts": start, "dur": stop - start, "args": of, "name": "count_tiles"},
        ]

    events = [
        stage("count", 0, 100),
        stage("pairs", 20, 40),
        {"cat": "user_annotation", "name": "something else", "ts": 0, "dur": 50},
        {"ph": "M", "name": "process_name"},
        *launch(1, 10, 50, 70),  # runs after `pairs` has begun, but `count` launched it
        *launch(2, 30, 60, 90),  # within `pairs`; overlaps the first for 10
        *launch(3, 60, 150, 160, "gpu_memcpy"),
        *launch(4, 200, 300, 310),  # no stage is open
    ]

    found = gpu_stages._by_stage(events)

    assert found["launches"] == 4
    assert found["launches_by_kind"] == {"kernel": 3, "gpu_memcpy": 1}
    assert found["launches_by_stage"] == {"count": 2, "pairs": 1, "other": 1}
    assert found["device_seconds_by_stage"] == pytest.approx({"count": 30e-6, "pairs": 30e-6, "other": 10e-6})
    assert gpu_stages._busy_seconds(events) == pytest.approx(60e-6)
