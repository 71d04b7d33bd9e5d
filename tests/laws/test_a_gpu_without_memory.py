"""A GPU that has no memory for a range of candidates gets halves: figures stay, or one line says it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from pbgeval.errors import INCOMPLETE_STATUS
from pbgeval.ranking import auc_sampling, ranking_pass
from pbgeval.ranking.query_group_state import QueryGroupState
from pbgeval.scoring.entities import EntityTable
from tests.kit.case import TinyCase
from tests.kit.commands import evaluated, flags, run_command
from tests.laws.test_every_path_runs_on_a_device import PATHS, on_the_device, pretend
from tests.pretend_device import PretendDevice

FULL = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.20 GiB is free"
)
MOST_ROWS = 5  # for which there is memory

pytestmark = pytest.mark.slow


def fill(monkeypatch: pytest.MonkeyPatch, fewest: int) -> list[int]:
    """Let the pretended device have memory for few rows, which it finds out at the end; return what was counted."""
    rank_range, sizes = ranking_pass._rank_range, []

    def full(state: QueryGroupState, table: EntityTable, *arguments: Any) -> None:
        rank_range(state, table, *arguments)
        if table.num_rows > MOST_ROWS and table.device.type == "cuda":
            raise torch.cuda.OutOfMemoryError(f"{FULL}. Including non-PyTorch memory ...")
        sizes.append(table.num_rows)

    monkeypatch.setattr(ranking_pass, "_rank_range", full)
    monkeypatch.setattr(ranking_pass, "MIN_ROWS_TO_HALVE", fewest)
    return sizes


@pytest.mark.parametrize("auc", ["exact", "sampled"])
@pytest.mark.parametrize("name", ["partition_filtered", "all", "all_filtered", "all_restricted", "all_exact_topk"])
def test_halves_give_the_figures_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, auc: str
) -> None:
    settings, overrides = PATHS[name]
    case = TinyCase.write(tmp_path / "case", partition_sizes=(17, 16), edges_per_bucket=14, **settings)
    if auc == "sampled":
        monkeypatch.setattr(auc_sampling, "EXACT_CELLS", 0)
        monkeypatch.setattr(auc_sampling, "SAMPLED_CELLS", 300)
    expected = evaluated(case, *overrides, output="cpu")
    pretend(monkeypatch)
    sizes = fill(monkeypatch, 2)

    assert on_the_device(case, *overrides) == expected
    assert max(sizes) <= MOST_ROWS < sum(sizes)


def test_a_gpu_without_memory_for_few_rows_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = TinyCase.write(tmp_path / "case", partition_sizes=(17,), edges_per_bucket=14)
    pretend(monkeypatch)
    fill(monkeypatch, 8)
    with PretendDevice():
        done = run_command(case, "--workers", "1", "--quiet", *flags(["candidates=all"]))
    assert done.status == INCOMPLETE_STATUS
    assert re.search(f"^worker 0: expected enough memory on its GPU .*, got: {FULL}$", done.err, re.MULTILINE)
