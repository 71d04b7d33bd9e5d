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


def test_a_full_gpu_is_named_with_the_bytes_needed_and_free() -> None:
    fault = (
        "worker 0: expected enough memory on its GPU (stop other programs that use the GPU, use "
        "fewer --workers (in Python: workers), or use device cpu), got: CUDA out of memory. "
        "Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB "
        "of which 1.20 GiB is free"
    )
    error = torch.OutOfMemoryError(f"{fault.partition('got: ')[2]}. Including non-PyTorch memory, this process has ...")
    with pytest.raises(IncompleteError) as raised, collectively(Team()):
        raise error
    assert raised.value.faults == (fault,)


def test_another_exception_stays_what_it_is() -> None:
    with pytest.raises(RuntimeError, match=r"^the shapes do not fit$"), collectively(Team()):
        raise RuntimeError("the shapes do not fit")
