"""Several GPUs, each with a worker of its own, give every number that one gives, byte by byte; so does a CPU.

The GPUs are pretended: a worker raises where it mixes tensors of its GPU and the host, or asks for another GPU.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pbgeval import evaluate, load_config
from pbgeval.cluster import resources
from pbgeval.worker import run
from tests import pretend_device
from tests.kit.case import TinyCase
from tests.kit.commands import evaluated, numbers_of, run_of
from tests.kit.groups import join, start_workers
from tests.laws.test_every_path_runs_on_a_device import pretend
from tests.saved_ranks import counts_of

SETTINGS = {
    "sampled": ["candidates=sampled", "precision=float32", "compute_loss=True"],
    "partition": ["candidates=partition", "precision=exact"],
    "all": ["candidates=all", "precision=exact", "save_topk=3"],
}


def evaluate_on_pretended_gpus(config: Path, overrides: list[str], output: Path, num_gpus: int) -> None:
    """Be a worker of a group, on a host with a GPU for each; it has the one that its place in the group gives it."""
    patch = pytest.MonkeyPatch()
    pretend(patch)
    patch.setattr(run, "choose_device", resources.choose_device)
    patch.setattr(torch.cuda, "is_available", lambda: True)
    patch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    patch.setattr(torch.cuda, "get_device_properties", properties)
    patch.setattr(pretend_device, "DEVICE", torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))))
    os.chdir(config.parent)
    with pretend_device.PretendDevice():
        evaluate(load_config(config, overrides), output=output, workers=num_gpus, device="cuda")


def properties(device: torch.device) -> SimpleNamespace:
    return SimpleNamespace(name="a pretended GPU", uuid=str(device.index), multi_processor_count=2)


def results(output: Path) -> dict[str, Any]:
    return numbers_of(output) | counts_of(output)


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
def test_gpus_change_no_number_and_no_rank(setting: str, tmp_path: Path) -> None:
    case = TinyCase.write(tmp_path / "case", partition_sizes=(17, 16, 12), edges_per_bucket=14, dynamic=True)
    overrides = [*SETTINGS[setting], "filter_paths=edges", "save_ranks=True"]
    evaluated(case, *overrides, output=tmp_path / "cpu")

    for num_gpus in (1, 2, 3):
        output = tmp_path / f"{num_gpus}"
        join(start_workers(num_gpus, 1, evaluate_on_pretended_gpus, case.config, overrides, output, num_gpus))

        document = run_of(output)
        assert document["devices"] == f"{num_gpus} x a pretended GPU"
        assert [of["device"] for of in document["workers"]] == [f"cuda:{at}" for at in range(num_gpus)]
        assert results(output) == results(tmp_path / "cpu")
