"""Tensors of the host -> a GPU, without a wait for the copy; and tensors of a GPU -> the host, by one copy."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def sent(values: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device.

    A GPU copies it from pinned memory, after what it was asked for before, and the host goes on. From other memory the
    host would wait for all of it. Torch makes few pieces of pinned memory, which it gives out again and again.
    """
    goes_to_gpu = values.device.type == "cpu" and device.type == "cuda"
    return values.pin_memory().to(device, non_blocking=True) if goes_to_gpu else values.to(device)


def sent_together(device: torch.device, *values: Tensor) -> Sequence[Tensor]:
    """Return tensors of one type on a device, by one copy to a GPU."""
    if not values or device.type != "cuda" or values[0].device.type == "cuda":
        return [value.to(device) for value in values]
    packed = sent(torch.cat([value.flatten() for value in values]), device)
    parts = torch.split(packed, [value.numel() for value in values])
    return [part.view(value.shape) for part, value in zip(parts, values, strict=True)]


def on_the_host(values: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors on the host: from a GPU by one copy, into pinned memory."""
    if not values or values[0].device.type == "cpu":
        return [*values]
    widest_first = sorted(range(len(values)), key=lambda at: -values[at].element_size())  # each is aligned
    packed = torch.cat(
        [values[at].contiguous().flatten().unsqueeze(-1).view(torch.uint8).flatten() for at in widest_first]
    )
    on_host = torch.empty(packed.shape, dtype=torch.uint8, pin_memory=True)
    on_host.copy_(packed)
    found, place = [*values], 0
    for at in widest_first:
        part = on_host[place : place + values[at].nbytes]
        found[at], place = part.view(values[at].dtype).view(values[at].shape), place + values[at].nbytes
    return found
