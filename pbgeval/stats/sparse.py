"""Values -> how often each occurs: histograms that add."""

from __future__ import annotations

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

MOST_DENSE_VALUES = 1 << 21  # values below this are counted in a dense table first


@frozen(eq=False)
class SparseCounts:
    """Counts of the keys that occur; keys increase."""

    keys: np.ndarray  # int64
    counts: np.ndarray  # int64, positive

    @classmethod
    def zero(cls) -> SparseCounts:
        return cls(np.empty(0, np.int64), np.empty(0, np.int64))

    @classmethod
    def of_values(cls, values: Tensor) -> SparseCounts:
        """Count non-negative int64 values."""
        if not values.numel():
            return cls.zero()
        if int(values.max()) < MOST_DENSE_VALUES:
            dense = torch.bincount(values)
            keys = dense.nonzero().squeeze(1)
            return cls(keys.numpy(), dense[keys].numpy())
        return cls(*np.unique(values.numpy(), return_counts=True))

    @classmethod
    def sum(cls, parts: list[SparseCounts]) -> SparseCounts:
        """Add any number of counts."""
        keys, where = np.unique(np.concatenate([part.keys for part in parts]), return_inverse=True)
        counts = np.zeros(len(keys), np.int64)
        np.add.at(counts, where, np.concatenate([part.counts for part in parts]))
        return cls(keys, counts)

    def __add__(self, other: SparseCounts) -> SparseCounts:
        return SparseCounts.sum([self, other])
