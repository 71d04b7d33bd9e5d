"""How many workers a run starts on GPUs, what it says about its devices, and how workers share a GPU's memory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from attrs import define, field

from pbgeval import evaluation
from pbgeval.cluster import resources
from pbgeval.cluster.resources import WorkerDevice, describe_devices, num_sharing_gpu
from pbgeval.evaluation import evaluate
from pbgeval.progress import Observer
from pbgeval.worker import run
from tests.kit.case import TinyCase
from tests.kit.commands import run_of

CORES = frozenset({0, 1})


class StartedError(Exception):
    """Instead of workers."""


@define
class Lines(Observer):
    """Keeps what it is told, in order."""

    said: list[str] = field(factory=list)

    def note(self, message: str) -> None:
        self.said.append(message)

    def warn(self, message: str) -> None:
        self.said.append(f"warning: {message}")


def pretend_gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


def gpu(host: str, uuid: str, name: str = "NVIDIA H200") -> WorkerDevice:
    return WorkerDevice(host, uuid, name, CORES)


def cpu(host: str, *cores: int) -> WorkerDevice:
    return WorkerDevice(host, None, "CPU", frozenset(cores))


def workers_started(monkeypatch: pytest.MonkeyPatch, case: TinyCase, *overrides: str, **options: Any) -> int:
    """How many workers a command starts; 1: this process does the work itself."""
    started: list[int] = []

    def start(function: object, arguments: object, num_workers: int, say: object, server: object = None) -> None:
        started.append(num_workers)
        raise StartedError

    def work(*arguments: object) -> None:
        start(None, None, 1, None)

    monkeypatch.setattr(evaluation, "start_local_workers", start)
    monkeypatch.setattr(evaluation, "do_work", work)
    with pytest.raises(StartedError):
        evaluate(str(case.config), overrides=overrides, output=case.root / "out", overwrite=True, **options)
    return started[0]


@pytest.mark.parametrize("candidates", ["sampled", "partition", "all"])
@pytest.mark.parametrize("num_gpus", [1, 3, 8])
def test_a_run_starts_a_worker_for_each_gpu_and_never_one_for_each_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, candidates: str, num_gpus: int
) -> None:
    case = TinyCase.write(tmp_path, partition_sizes=(9, 8))
    monkeypatch.setattr(evaluation, "num_cores", lambda: 16)
    pretend_gpus(monkeypatch, num_gpus)

    for device in ("auto", "cuda"):
        assert workers_started(monkeypatch, case, f"candidates={candidates}", device=device) == num_gpus
    assert workers_started(monkeypatch, case, f"candidates={candidates}", device="auto", workers=2) == 2


def test_without_a_gpu_a_run_starts_as_many_workers_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = TinyCase.write(tmp_path, partition_sizes=(9, 8))
    monkeypatch.setattr(evaluation, "num_cores", lambda: 16)
    pretend_gpus(monkeypatch, 0)
    from_work = workers_started(monkeypatch, case, "candidates=sampled")
    pretend_gpus(monkeypatch, 2)

    assert from_work == 2  # units
    assert workers_started(monkeypatch, case, "candidates=sampled", device="cpu") == 2
    assert workers_started(monkeypatch, case, "candidates=sampled", "workers=1", device="cpu") == 1


def test_the_launcher_counts_gpus_and_starts_no_context(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpus(monkeypatch, 5)
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: pytest.fail("a CUDA context was started"))

    assert [resources.num_gpus(device) for device in ("auto", "cuda", "cpu")] == [5, 5, 0]


@pytest.mark.parametrize(
    ("devices", "asked_for", "line"),
    [
        ([gpu("a", "1")], "auto", "1 x NVIDIA H200"),
        ([gpu("a", "1"), gpu("a", "1")], "cuda", "1 x NVIDIA H200"),
        ([gpu("a", "1"), gpu("a", "2")], "cuda", "2 x NVIDIA H200"),
        ([gpu("a", "1"), gpu("b", "1")], "cuda", "2 x NVIDIA H200 on 2 hosts"),
        ([gpu("a", "1"), gpu("a", "2", "NVIDIA L4"), gpu("a", "3")], "auto", "2 x NVIDIA H200, 1 x NVIDIA L4"),
        ([gpu("a", "1"), cpu("b", 0, 1)], "auto", "1 x NVIDIA H200, CPU, 2 cores on 2 hosts"),
        ([cpu("a", 0)], "cpu", "CPU, 1 core"),
        ([cpu("a", 0, 1)], "auto", "CPU, 2 cores: no GPU found by torch"),
        ([cpu("a", 0), cpu("a", 1)], "auto", "CPU, 2 cores: no GPU found by torch"),
        ([cpu("a", 0, 1), cpu("b", 0, 1)], "cpu", "CPU, 4 cores on 2 hosts"),
    ],
)
def test_devices_are_named_in_a_line(
    monkeypatch: pytest.MonkeyPatch, devices: Sequence[WorkerDevice], asked_for: str, line: str
) -> None:
    pretend_gpus(monkeypatch, 0)

    assert describe_devices(devices, asked_for) == line


def test_a_model_on_the_cpu_beside_a_gpu_is_not_blamed_on_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpus(monkeypatch, 1)

    assert describe_devices([cpu("a", 0, 1)], "auto") == "CPU, 2 cores"


def test_workers_of_one_gpu_share_it_under_whatever_index_they_see_it(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = {0: SimpleNamespace(name="NVIDIA H200", uuid="u0"), 1: SimpleNamespace(name="NVIDIA H200", uuid="u1")}
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties[device.index])
    first, second = (WorkerDevice.from_device(torch.device("cuda", index)) for index in (0, 1))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties[1])
    other_process = WorkerDevice.from_device(torch.device("cuda", 0))
    devices = [first, second, other_process]

    assert [num_sharing_gpu(devices, device) for device in devices] == [1, 2, 2]
    assert num_sharing_gpu([cpu("a", 0), cpu("a", 0)], cpu("a", 0)) == 1


def test_a_run_names_its_device_first_and_in_run_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = TinyCase.write(tmp_path, partition_sizes=(9, 8))
    pretend_gpus(monkeypatch, 0)
    monkeypatch.setattr(resources, "cores", lambda: {0, 1})
    lines = Lines()

    evaluate(str(case.config), output=case.root / "out", workers=1, observer=lines)

    expected = "CPU, 2 cores: no GPU found by torch"
    line = next(line for line in lines.said if not line.startswith("warning: "))
    assert re.fullmatch(
        rf"{expected}; precision exact; \d+ edges, up to \d+ candidates per query.*; .* per worker; .*", line
    )
    assert run_of(case.root / "out")["devices"] == expected


def test_more_workers_than_gpus_are_warned_of_and_share_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = TinyCase.write(tmp_path, partition_sizes=(9, 8))
    lines, contexts = Lines(), []
    of_workers = [gpu("a", "1"), gpu("a", "1"), gpu("a", "2")]
    monkeypatch.setattr(WorkerDevice, "from_device", classmethod(lambda cls, device: of_workers[0]))
    gather = run.Team.gather_objects
    monkeypatch.setattr(
        run.Team,
        "gather_objects",
        lambda team, value: of_workers if isinstance(value, WorkerDevice) else gather(team, value),
    )
    plan = run.Rounds.plan
    monkeypatch.setattr(run.Rounds, "plan", lambda context, record: contexts.append(context) or plan(context, record))

    evaluate(str(case.config), output=case.root / "out", workers=1, device="cpu", observer=lines)

    assert lines.said[0].startswith("2 x NVIDIA H200; ")
    warning = "warning: 3 workers on 2 GPUs: workers that share a GPU take turns and divide its memory"
    assert [line for line in lines.said if line.startswith(warning)]
    assert [context.num_sharing_gpu for context in contexts] == [2]
