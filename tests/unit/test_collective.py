"""What of an exception passes with more memory, and what is a bug of ours."""

from __future__ import annotations

import pytest
import torch

from pbgeval.cluster.team import Team
from pbgeval.errors import IncompleteError
from pbgeval.worker.collective import collectively


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        torch.OutOfMemoryError("of another device"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_a_lack_of_memory_leaves_the_run_incomplete(error: Exception) -> None:
    with (
        pytest.raises(IncompleteError, match=r"worker 0: expected enough memory \(set max_memory, .*got: ."),
        collectively(Team()),
    ):
        raise error


def test_another_exception_stays_what_it_is() -> None:
    with pytest.raises(RuntimeError, match=r"^the shapes do not fit$"), collectively(Team()):
        raise RuntimeError("the shapes do not fit")
