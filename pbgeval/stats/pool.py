"""Scores -> what the pooled AUC compares, as order-preserving integers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from attrs import define, field, frozen
from torch import Tensor

_CLUSTER_BITS = 32


def order_image(scores: Tensor) -> np.ndarray:
    """Map float32 scores to int32 that compare alike; -0.0 and 0.0 become one."""
    bits = (scores + 0.0).contiguous().view(torch.int32).numpy()
    return np.where(bits >= 0, bits, np.int32(-(2**31)) - bits)


def with_clusters(image_P: np.ndarray, cluster_P: np.ndarray) -> np.ndarray:
    """Return codes (int64) that compare as order images do and hold the cluster of each score's query."""
    codes: np.ndarray = (image_P.astype(np.int64) << _CLUSTER_BITS) + cluster_P
    return codes


@define
class ScorePool:
    """The scores of one group of queries that its pooled AUC compares; unordered.

    They are order images (int32); of a sample of edges, codes `with_clusters` (int64).
    """

    true: list[np.ndarray] = field(factory=list)
    competing: list[np.ndarray] = field(factory=list)

    def __add__(self, other: ScorePool) -> ScorePool:
        return ScorePool(self.true + other.true, self.competing + other.competing)

    def sort(self) -> SortedPool:
        """Return the pool with its scores in order."""
        return SortedPool(*_sorted(self.true), *_sorted(self.competing))


@frozen(eq=False)
class SortedPool:
    """The scores of one group of queries, in increasing order, and their clusters if edges are sampled."""

    true: np.ndarray  # int32
    true_cluster: np.ndarray | None  # int64
    competing: np.ndarray  # int32
    competing_cluster: np.ndarray | None

    @classmethod
    def union(cls, pools: Sequence[SortedPool]) -> SortedPool:
        true = [_coded(pool.true, pool.true_cluster) for pool in pools]
        return ScorePool(true, [_coded(pool.competing, pool.competing_cluster) for pool in pools]).sort()


def _sorted(parts: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray | None]:
    joined = np.concatenate([part for part in parts if len(part)] or [np.empty(0, np.int32)])
    joined.sort()
    if joined.dtype == np.int32:
        return joined, None
    return (joined >> _CLUSTER_BITS).astype(np.int32), joined & ((1 << _CLUSTER_BITS) - 1)


def _coded(image_P: np.ndarray, cluster_P: np.ndarray | None) -> np.ndarray:
    return image_P if cluster_P is None else with_clusters(image_P, cluster_P)
