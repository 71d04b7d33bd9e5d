"""Arrays of numpy or torch -> torch tensors to compute with, and back to the library they came in."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def as_tensor(values: Tensor | np.ndarray) -> Tensor:
    """Return the values as a tensor on the device where they are; a numpy array is copied, so it may be read-only."""
    return values.detach() if isinstance(values, Tensor) else torch.from_numpy(np.array(values, order="C"))
