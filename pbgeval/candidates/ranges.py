"""Pairs of first and length -> the numbers of all those ranges, one after the other."""

from __future__ import annotations

import numpy as np


def concatenated_ranges(begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Concatenate range(begin, begin + length) of each pair, int64."""
    before = np.cumsum(lengths) - lengths
    shifts: np.ndarray = np.repeat(begins - before, lengths)
    return shifts + np.arange(int(lengths.sum()), dtype=np.int64)
