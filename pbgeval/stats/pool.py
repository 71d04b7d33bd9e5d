"""Scores -> what the pooled AUC compares, as order-preserving integers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from attrs import define, field, frozen
from torch import Tensor


def order_image(scores: Tensor) -> np.ndarray:
    """Map float32 scores to int32 that compare alike; -0.0 and 0.0 become one."""
    bits = (scores + 0.0).contiguous().view(torch.int32).numpy()
    return np.where(bits >= 0, bits, np.int32(-(2**31)) - bits)


@define
class ScorePool:
    """The scores of one group of queries that its pooled AUC compares; unordered."""

    true: list[np.ndarray] = field(factory=list)  # int32 images of true scores
    competing: list[np.ndarray] = field(factory=list)  # int32 images of competitors' scores

    def __add__(self, other: ScorePool) -> ScorePool:
        return ScorePool(self.true + other.true, self.competing + other.competing)

    def sort(self) -> SortedPool:
        """Return the pool with its scores in order."""
        return SortedPool(_sorted(self.true), _sorted(self.competing))


@frozen(eq=False)
class SortedPool:
    """The scores of one group of queries, in increasing order."""

    true: np.ndarray  # int32
    competing: np.ndarray  # int32

    @classmethod
    def union(cls, pools: Sequence[SortedPool]) -> SortedPool:
        return ScorePool([pool.true for pool in pools], [pool.competing for pool in pools]).sort()


def _sorted(parts: list[np.ndarray]) -> np.ndarray:
    joined = np.concatenate(parts) if parts else np.empty(0, np.int32)
    joined.sort()
    return joined
