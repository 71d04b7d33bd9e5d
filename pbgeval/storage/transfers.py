"""Tensors of the host -> tensors of a GPU, without a wait for the copy."""

from __future__ import annotations

import torch
from torch import Tensor


def sent(values: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device.

    A GPU copies it from pinned memory, after what it was asked for before, and the host goes on. From other memory the
    host would wait for all of it. Torch makes few pieces of pinned memory, which it gives out again and again.
    """
    goes_to_gpu = values.device.type == "cpu" and device.type == "cuda"
    return values.pin_memory().to(device, non_blocking=True) if goes_to_gpu else values.to(device)
