"""A GPU's kernels of exact ranks, interpreted: every figure is that of the CPU, to the last digit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pbgeval.ranking import auc_sampling
from pbgeval.scoring import device_exact, device_scores
from tests.kit.case import TinyCase
from tests.kit.commands import flags, metrics_of, run_command

SAMPLED = ("candidates=sampled", "num_batch_negs=4", "num_uniform_negs=5", "filter_paths=edges")
PARTITION = ("candidates=partition", "filter_paths=edges")
ALL = ("candidates=all", "filter_paths=edges")

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("overrides", "comparator", "dynamic"),
    [
        (SAMPLED, "dot", True),
        (SAMPLED, "l2", False),
        (PARTITION, "squared_l2", True),
        (PARTITION, "cos", False),
        (ALL, "dot", False),
        (ALL, "l2", True),
    ],
)
def test_kernels_give_the_figures_of_the_cpu(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kernel_device: str,
    overrides: tuple[str, ...],
    comparator: str,
    dynamic: bool,
) -> None:
    sizes: dict[str, Any] = {"partition_sizes": (17, 16), "edges_per_bucket": 12}
    case = TinyCase.write(tmp_path / "case", dynamic=dynamic, comparator=comparator, **sizes)
    monkeypatch.setattr(auc_sampling, "EXACT_CELLS", 0)  # else the scores are kept, and counted by torch
    monkeypatch.setattr(auc_sampling, "SAMPLED_CELLS", 300)
    monkeypatch.setattr(device_exact, "MIN_SCREENED_CELLS", 0)
    launched = {name: watched(monkeypatch, name) for name in ("_screened", "_decide")}

    def figures(device: str) -> dict[str, Any]:
        words = ("--workers", "1", "--device", device, "--quiet", "--output", device, "--overwrite")
        assert run_command(case, *words, *flags((*overrides, "precision=exact"))).printed == ""
        return dict(metrics_of(case.root / device)["metrics"])

    found = figures(kernel_device)
    assert launched["_decide"]
    assert bool(launched["_screened"]) is (overrides is not SAMPLED), "lists are short: they go to float64 at once"

    monkeypatch.setattr(device_scores, "DEVICE_TYPES", ("cuda",))
    assert figures("cpu") == found


def watched(patch: pytest.MonkeyPatch, name: str) -> list[None]:
    """Return a list that gets an entry for each call of a function of `device_exact`."""
    calls: list[None] = []
    function = getattr(device_exact, name)

    def noted(*arguments: Any) -> Any:
        calls.append(None)
        return function(*arguments)

    patch.setattr(device_exact, name, noted)
    return calls
