"""Values -> how often each occurs: histograms that add."""

from __future__ import annotations

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

# Values are counted in a dense table first if it has at most so many places, and so many for each value.
MOST_DENSE_VALUES = 1 << 21
MOST_PLACES_PER_VALUE = 2


@frozen(eq=False)
class SparseCounts:
    """Counts of the keys that occur; keys increase."""

    keys: np.ndarray  # int64
    counts: np.ndarray  # int64, positive

    @classmethod
    def zero(cls) -> SparseCounts:
        return cls(np.empty(0, np.int64), np.empty(0, np.int64))

    @classmethod
    def of_values(cls, values: Tensor, times: np.ndarray | None = None) -> SparseCounts:
        """Count non-negative int64 values, each as often as `times` (int64) says."""
        if not values.numel():
            return cls.zero()
        if times is not None:
            return cls._added_up(values.numpy(), times)
        if int(values.max()) < min(MOST_DENSE_VALUES, MOST_PLACES_PER_VALUE * values.numel()):
            dense = torch.bincount(values)
            keys = dense.nonzero().squeeze(1)
            return cls(keys.numpy(), dense[keys].numpy())
        return cls(*np.unique(values.numpy(), return_counts=True))

    @classmethod
    def sum(cls, parts: list[SparseCounts]) -> SparseCounts:
        """Add any number of counts."""
        return cls._added_up(
            np.concatenate([part.keys for part in parts]), np.concatenate([part.counts for part in parts])
        )

    @classmethod
    def _added_up(cls, keys: np.ndarray, counts: np.ndarray) -> SparseCounts:
        """Add the counts of equal keys, which are in any order and not negative."""
        order = np.argsort(keys, kind="stable")  # merges what is in order already, which parts of a sum are
        in_order = keys[order]
        starts = np.flatnonzero(np.diff(in_order, prepend=-1))
        return cls(in_order[starts], np.add.reduceat(counts[order], starts))

    def __add__(self, other: SparseCounts) -> SparseCounts:
        return SparseCounts.sum([self, other])
