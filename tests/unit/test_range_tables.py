"""Ranges of candidate rows for the two sweeps: a GPU reads each once where it has room, and figures do not change."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pbgeval.inputs import partitions
from pbgeval.scoring.block_sizes import GPU_WORKSPACE_BYTES
from pbgeval.worker import range_tables
from tests.kit.case import TinyCase
from tests.kit.commands import evaluated
from tests.laws.test_every_path_runs_on_a_device import on_the_device, pretend

SIZES, DIMENSION = (17, 16, 15), 8  # the case has another type of 6 entities
GATHERED = 6 + sum(SIZES)  # vectors of the edges' entities, which are kept there too


@pytest.mark.parametrize(("num_rows", "num_reads"), [(0, 4 + 4), (GATHERED + 6 + 17, 4 + 2), (2 * GATHERED, 4)])
def test_a_gpu_reads_a_range_once_if_it_can_keep_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_rows: int, num_reads: int
) -> None:
    case = TinyCase.write(tmp_path / "case", partition_sizes=SIZES, dimension=DIMENSION, edges_per_bucket=60)
    expected = evaluated(case, "candidates=all", output="cpu")
    pretend(monkeypatch)
    free = int((GPU_WORKSPACE_BYTES + num_rows * DIMENSION * 4) / range_tables.SHARE_OF_GPU) + 1
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 1 << 40))
    reads = []
    read_rows = partitions.read_rows

    def counted(*arguments: object) -> torch.Tensor:
        reads.append(arguments[1:3])
        return read_rows(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(range_tables, "read_rows", counted)

    assert on_the_device(case, "candidates=all") == expected
    assert len(reads) == num_reads
