"""Scores -> what the pooled AUC compares, as order-preserving integers."""

from __future__ import annotations

import numpy as np
import torch
from attrs import define, field
from torch import Tensor


def order_image(scores: Tensor) -> np.ndarray:
    """Map float32 scores to int32 that compare alike; -0.0 and 0.0 become one."""
    bits = (scores + 0.0).cpu().contiguous().view(torch.int32).numpy()
    return np.where(bits >= 0, bits, np.int32(-(2**31)) - bits)


@define
class ScorePool:
    """The scores of one group of queries that its pooled AUC compares; unordered."""

    true: list[np.ndarray] = field(factory=list)  # int32 images of true scores
    competing: list[np.ndarray] = field(factory=list)  # int32 images of competitors' scores

    def __add__(self, other: ScorePool) -> ScorePool:
        return ScorePool(self.true + other.true, self.competing + other.competing)

    def sorted_true(self) -> np.ndarray:
        return _sorted(self.true)

    def sorted_competing(self) -> np.ndarray:
        return _sorted(self.competing)


def _sorted(parts: list[np.ndarray]) -> np.ndarray:
    joined = np.concatenate(parts) if parts else np.empty(0, np.int32)
    joined.sort()
    return joined
