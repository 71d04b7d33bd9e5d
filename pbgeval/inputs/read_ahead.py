"""Ranges of rows, one after the other -> their tensors; on a GPU, the next is read and copied while one is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def rows_ahead(parts: Sequence[T], read: Callable[[T], Tensor], device: torch.device) -> Iterator[Tensor]:
    """Yield the rows of each part, on the device; what reading a part raises is raised where its rows are asked for.

    Args:
        parts: in the order in which they are needed.
        read: returns rows of the CPU.
        device: a GPU has two parts in its memory at a time; on a CPU nothing is read before it is needed.
    """
    if device.type == "cpu":
        yield from map(read, parts)
        return
    with ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as pool:
        coming = None
        for part in parts:
            ready, coming = coming, pool.submit(lambda part: _start_copy(read(part), device), part)
            if ready is not None:
                yield ready.result()()
        if coming is not None:
            yield coming.result()()


def _start_copy(rows: Tensor, device: torch.device) -> Callable[[], Tensor]:
    """Start copying rows to a GPU beside what it computes; what is returned waits for them on the GPU, not here."""
    pinned = rows.pin_memory()  # else the copy is none that goes on by itself
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        copy = pinned.to(device, non_blocking=True)

    def arrived() -> Tensor:
        torch.cuda.current_stream(device).wait_stream(stream)
        copy.record_stream(torch.cuda.current_stream(device))
        return copy

    return arrived
