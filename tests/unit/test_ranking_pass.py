"""One pass over a range of candidates: its kernel, duplicates of a true entity, and rows that are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from pbgeval.ranking import cpu_counting, sampled_lists
from pbgeval.ranking.backend import backend_for
from pbgeval.ranking.cpu_backend import CpuBackend
from pbgeval.ranking.gpu_backend import GpuBackend
from pbgeval.ranking.settings import Kept
from pbgeval.scoring.comparators import Comparator
from pbgeval.scoring.scorer import RelationScorer
from tests.kit.case import TinyCase
from tests.kit.commands import flags, run_command
from tests.kit.loops import use_loops


def way(
    name: str = "dot", device: str = "cpu", dtype: torch.dtype = torch.float32, kept: Kept = Kept.NOTHING, **more: Any
) -> str:
    """How inner products are counted."""
    scorer = RelationScorer("likes", "none", {}, Comparator(name, **more), False, "user", "user")
    backend = backend_for(scorer, torch.device(device), dtype, kept=kept, num_cells=1)
    if isinstance(backend, GpuBackend):
        return "tiles" if backend.counts_by_tiles else "scores"
    return "loop" if isinstance(backend, CpuBackend) and backend.counts_products else "scores"


def test_a_cpu_counts_float32_products_that_it_forgets_and_a_gpu_all_sums_over_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_loops(monkeypatch, True)
    for device, forgetting in (("cpu", "loop"), ("cuda", "tiles"), ("meta", "scores")):
        others = way("dot", device, torch.float64), way("l1", device), way("dot", device, kept=Kept.VALUES)
        assert {*others} == {"tiles" if device == "cuda" else "scores"}
        assert way("l2", device, bias=True) == "scores"
        assert [forgetting] * 3 == [way(name, device) for name in ("dot", "cos", "l2")]
    monkeypatch.setattr(cpu_counting.blas, "find_sgemm", lambda: None)
    assert way() == "scores"


@pytest.mark.parametrize("candidates", ["sampled", "partition"])
def test_the_edge_of_a_vector_without_a_direction_is_named_by_its_row_of_the_file(
    candidates: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = TinyCase.write(tmp_path, partition_sizes=(9,), comparator="cos", global_emb=False, seed=6)
    with h5py.File(case.model, "r+") as file, h5py.File(case.edges(0, 0)) as edges:
        for name in ("real", "imag"):
            file[f"model/relations/3/operator/rhs/{name}"][:] = 0.0
        row_E, rhs_E = np.flatnonzero(edges["rel"][:] == 3), edges["rhs"][:]
    monkeypatch.setattr(sampled_lists, "WINDOW_ROWS", 3)
    assert row_E.min() > 3

    done = run_command(case, "--workers", "1", *flags([f"candidates={candidates}", "batch_size=3"]))

    assert any(
        f"for entity {rhs_E[row]} after operator 'complex_diagonal' of relation 'marks', used by row {row} of "
        in done.err
        for row in row_E
    )
