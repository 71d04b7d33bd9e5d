"""Every path on a pretended GPU: no tensor of the host meets one of the device, and the figures are the CPU's."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pbgeval.inputs import partitions as read_ahead
from pbgeval.ranking import auc_sampling, gpu_backend
from pbgeval.scoring.block_sizes import GPU_WORKSPACE_BYTES
from pbgeval.scoring.deferred import Deferred
from pbgeval.scoring.self_check import check_kernels
from pbgeval.worker import run
from tests.kit.case import TinyCase
from tests.kit.commands import evaluated, flags, metrics_of, run_command, run_of
from tests.pretend_device import DEVICE, OnDevice, PretendDevice, compute_on_the_host

FILTERED, IN_TIME = "filter_paths=edges", "time_window=1"
PATHS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "sampled": ({}, ("compute_loss=True",)),
    "sampled_filtered": ({"max_norm": 1.0}, (FILTERED, "metrics=rank,auc,classification")),
    "sampled_cos_bias": ({"comparator": "cos", "bias": True}, ()),
    "sampled_uniform_only": ({"num_batch_negs": 0}, ("save_ranks=True",)),
    "pbg_semantics": ({"comparator": "l2", "loss_fn": "softmax"}, ("pbg_semantics=True", "compute_loss=True")),
    "dynamic": ({"dynamic": True}, ("sample_edges=40",)),
    "partition": ({}, ("candidates=partition", "compute_loss=True")),
    "partition_filtered": ({"comparator": "l2", "bias": True}, ("candidates=partition", FILTERED, "save_ranks=True")),
    "partition_restricted": ({}, ("candidates=partition", "train_paths=edges", "type_constraint=observed")),
    "sampled_exact": ({"comparator": "l2", "bias": True}, ("precision=exact", FILTERED)),
    "partition_exact": ({}, ("candidates=partition", "precision=exact", FILTERED)),
    "sampled_l1": ({"comparator": "l1", "bias": True}, (FILTERED,)),
    "partition_clamped": ({"comparator": "clamped_dot"}, ("candidates=partition", FILTERED)),
    "all_complex_l1": ({"comparator": "complex_l1"}, ("candidates=all", FILTERED, "precision=float64")),
    "all": ({"comparator": "squared_l2"}, ("candidates=all",)),
    "all_filtered": ({"dynamic": True}, ("candidates=all", FILTERED, "save_ranks=True", "save_topk=3")),
    "all_restricted": ({}, ("candidates=all", "train_paths=edges", "type_constraint=observed", "sample_edges=40")),
    "all_cos": ({"comparator": "cos", "global_emb": False}, ("candidates=all", "precision=float64")),
    "partition_relations": ({}, ("candidates=partition", FILTERED, "relation_prediction=True")),
    "all_relations": ({"dynamic": True}, ("candidates=all", FILTERED, "relation_prediction=True")),
    "all_relations_cos": ({"comparator": "cos", "dynamic": True}, ("candidates=all", "relation_prediction=True")),
    "partition_in_time": ({}, ("candidates=partition", FILTERED, IN_TIME)),
    "all_in_time_l1": ({"comparator": "l1"}, ("candidates=all", FILTERED, IN_TIME)),
    "all_in_time_clamped": ({"comparator": "clamped_dot"}, ("candidates=all", FILTERED, IN_TIME)),
    "partition_in_time_exact": ({}, ("candidates=partition", "precision=exact", FILTERED, IN_TIME)),
    "all_in_time_restricted": (
        {},
        ("candidates=all", "train_paths=edges", "type_constraint=observed", FILTERED, IN_TIME),
    ),
    "all_exact": ({"dynamic": True}, ("candidates=all", "precision=exact", FILTERED)),
    "all_exact_topk": ({"comparator": "squared_l2"}, ("candidates=all", "precision=exact", "save_topk=3")),
    "partition_exact_loss": (
        {"comparator": "l2"},
        ("candidates=partition", "precision=exact", "metrics=rank", "compute_loss=True"),
    ),
    "sampled_exact_loss": ({}, ("precision=exact", FILTERED, "metrics=rank", "compute_loss=True")),
}
IN_PARTITIONS = {"sampled", "pbg_semantics", "partition", *(name for name in PATHS if name.startswith("all"))}

PROPERTIES = SimpleNamespace(name="a pretended GPU", uuid="0", multi_processor_count=2)

pytestmark = pytest.mark.slow


def pretend(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Let every worker of this process take the pretended device, which has room for two partitions.

    Returns:
        How often each kernel was launched.
    """
    monkeypatch.setattr(run, "choose_device", lambda name, rank: DEVICE)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a pretended GPU")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (GPU_WORKSPACE_BYTES + 2 * 17 * 8 * 4, 1 << 40))
    monkeypatch.setattr(read_ahead, "pinned", torch.empty)
    monkeypatch.setattr(read_ahead, "_start_copy", lambda rows, device: lambda: rows.as_subclass(OnDevice))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: PROPERTIES)
    return compute_on_the_host(monkeypatch)


def on_the_device(case: TinyCase, *overrides: str) -> dict[str, Any]:
    """Evaluate on the pretended device."""
    with PretendDevice():
        found = evaluated(case, *overrides, output="device")
    run_json = run_of(case.root / "device")
    assert (run_json["devices"], run_json["workers"][0]["device"]) == ("1 x a pretended GPU", str(DEVICE))
    return found


@pytest.mark.parametrize(("name", "auc"), [(name, ("exact", "sampled")[at % 2]) for at, name in enumerate(PATHS)])
def test_a_device_gives_the_figures_of_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, auc: str
) -> None:
    settings, overrides = PATHS[name]
    overrides = ("precision=float32", *overrides)  # if it asks for nothing else
    sizes, num_edges = ((17, 16), 14) if name in IN_PARTITIONS else ((17,), 30)
    case = TinyCase.write(tmp_path / "case", partition_sizes=sizes, edges_per_bucket=num_edges, **settings)
    if IN_TIME in overrides:
        case.give_times()
    if auc == "sampled":
        monkeypatch.setattr(auc_sampling, "EXACT_CELLS", 0)
        monkeypatch.setattr(auc_sampling, "SAMPLED_CELLS", 300)
    expected = evaluated(case, *overrides, output="cpu")
    pretend(monkeypatch)

    found = on_the_device(case, *overrides)
    if name.endswith("exact_loss"):  # a loss is rounded
        losses = [
            both.pop("both.loss")
            for of in (found, expected)
            for both in (of["metrics"], of["edge_paths"][0]["metrics"])
        ]
        assert losses == [pytest.approx(losses[0], rel=1e-5)] * 4
    assert found == expected


def test_distances_of_numbers_too_large_to_double_are_counted_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are counted from scores, and the answers known in time beside them."""
    case = TinyCase.write(tmp_path / "case", partition_sizes=(17,), edges_per_bucket=30, comparator="l2")
    case.give_times()
    overrides = ("candidates=all", "precision=exact", FILTERED, IN_TIME)
    expected = evaluated(case, *overrides, output="cpu")
    pretend(monkeypatch)
    monkeypatch.setattr(gpu_backend, "LARGEST_DOUBLED", 0.0)

    assert on_the_device(case, *overrides) == expected


@pytest.mark.parametrize("candidates", ["all", "partition", "sampled"])
def test_kernels_of_a_gpu_score_and_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, candidates: str) -> None:
    """Scores of blocks against all entities are not needed, so none are stored; those of sampled lists are."""
    case = TinyCase.write(tmp_path / "case", partition_sizes=(17, 16), edges_per_bucket=8)
    monkeypatch.setattr(auc_sampling, "EXACT_CELLS", 0)
    monkeypatch.setattr(auc_sampling, "SAMPLED_CELLS", 300)
    overrides = (f"candidates={candidates}", FILTERED, "precision=float32")
    expected = evaluated(case, *overrides, output="cpu")
    launches = pretend(monkeypatch)
    with PretendDevice():
        check_kernels(DEVICE)  # once in a process, by launches of its own
    launches.pairs = launches.count = 0

    found = on_the_device(case, *overrides)

    assert found == expected
    assert launches.pairs > 0 or candidates == "sampled"
    assert (launches.count > 0) is (candidates != "sampled")


@pytest.mark.parametrize("is_fault", [False, True], ids=["no fault", "fault"])
@pytest.mark.parametrize("candidates", ["sampled", "partition", "all"])
def test_what_is_taken_for_granted_is_looked_at_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, candidates: str, is_fault: bool
) -> None:
    """Scores of very long vectors may overflow. Where they do, the error is the CPU's; else the figures are."""
    case = TinyCase.write(tmp_path / "case", dynamic=True, partition_sizes=(17,), scale=1e24 if is_fault else 1e18)
    arguments = ("--workers", "1", "--quiet", *flags((f"candidates={candidates}", FILTERED, "precision=float32")))

    def outcome(output: str) -> str | dict[str, Any]:
        done = run_command(case, *arguments, "--output", output)
        return done.err if done.status else metrics_of(case.root / output)

    expected = outcome("cpu")
    pretend(monkeypatch)
    times = []
    monkeypatch.setattr(
        Deferred, "deliver", lambda self, deliver=Deferred.deliver: times.append(deliver(self)) or times[-1]
    )
    with PretendDevice():
        found = outcome("device")

    assert found == expected
    assert isinstance(expected, str) is is_fault
    assert False in times or (candidates == "sampled" and not is_fault)  # whose scores tell
