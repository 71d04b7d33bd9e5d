"""The fused kernel within whole evaluations: the figures of the general path, whatever is asked of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pbgeval.ranking import auc_sampling, fused, kernels, ranking_pass
from tests.kit.case import TinyCase
from tests.kit.commands import evaluated

FILTERED = ("filter_paths=edges",)  # known answers do not compete


@pytest.mark.slow
@pytest.mark.parametrize(
    ("candidates", "settings"),
    [("all", ()), ("all", FILTERED), ("partition", FILTERED), ("partition", ("comparator=squared_l2",))],
)
def test_the_fused_kernel_gives_the_figures_of_the_general_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fused_device: str, candidates: str, settings: tuple[str, ...]
) -> None:
    """Sampled cells of the AUC, known answers and twins are read off its accumulators."""
    sizes, num_edges = ((33, 30), 8) if candidates == "all" else ((43,), 24)  # in several blocks
    case = TinyCase.write(tmp_path / "case", partition_sizes=sizes, edges_per_bucket=num_edges)
    case.spoil_embeddings("user", 0, slice(3, 30), 0.25)  # twins
    monkeypatch.setattr(auc_sampling, "EXACT_CELLS", 0)  # else its scores are all wanted
    monkeypatch.setattr(auc_sampling, "SAMPLED_CELLS", 400)
    monkeypatch.setattr(kernels, "FUSED_CANDIDATES_PER_BLOCK", 20)
    monkeypatch.setattr(kernels, "FUSED_QUERIES_PER_BLOCK", 30)
    overrides = (f"candidates={candidates}", *settings)
    launches = []
    launch = fused._launch
    monkeypatch.setattr(fused, "_launch", lambda *args, **kwargs: launches.append(1) or launch(*args, **kwargs))

    found = evaluated(case, *overrides, output="fused")

    assert launches
    launches.clear()
    monkeypatch.setattr(fused, "DEVICE_TYPES", ())
    expected = evaluated(case, *overrides, output="general")
    assert not launches
    assert without_pooled_auc(expected) == without_pooled_auc(found)
    assert found["metrics"]["both.auc"] == pytest.approx(expected["metrics"]["both.auc"], abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("candidates", ["all", "partition"])
def test_certified_ranks_are_not_left_to_the_fused_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, candidates: str
) -> None:
    """It serves float32 alone, whatever else would let it count."""
    case = TinyCase.write(tmp_path / "case", partition_sizes=(17, 16), edges_per_bucket=12)
    monkeypatch.setattr(auc_sampling, "EXACT_CELLS", 0)
    monkeypatch.setattr(auc_sampling, "SAMPLED_CELLS", 300)
    overrides = (f"candidates={candidates}", "precision=certified", *FILTERED)
    expected = evaluated(case, *overrides, output="general")
    monkeypatch.setattr(fused, "has_kernel", lambda device: True)
    monkeypatch.setattr(fused, "self_check", lambda device: None)
    monkeypatch.setattr(ranking_pass, "_count_fused", None)  # a call of it is a fault

    assert evaluated(case, *overrides, output="fused") == expected


def without_pooled_auc(document: Any) -> Any:
    """Leave out the only figures that compare scores of different queries, whose near-ties fall by the last bit."""
    if isinstance(document, dict):
        return {key: without_pooled_auc(of) for key, of in document.items() if key.rpartition(".")[2] != "auc"}
    return [without_pooled_auc(of) for of in document] if isinstance(document, list) else document
