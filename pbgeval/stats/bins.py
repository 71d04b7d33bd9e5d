"""The bins of histograms of ranks, plain or doubled.

Ranks below EXACT_BINS have a bin of their own; beyond, 2^10 bins to the octave, a relative width of 2^-10.
"""

from __future__ import annotations

import numpy as np

EXACT_BINS = 1 << 21
BINS_PER_OCTAVE_BITS = 10


def bin_edges(bin_index: int) -> tuple[int, int]:
    """Return the lowest and the highest rank of a bin."""
    if bin_index < EXACT_BINS:
        return bin_index, bin_index
    octave, within = divmod(bin_index - EXACT_BINS, 1 << BINS_PER_OCTAVE_BITS)
    shift = EXACT_BINS.bit_length() - 1 + octave - BINS_PER_OCTAVE_BITS
    low = ((1 << BINS_PER_OCTAVE_BITS) + within) << shift
    return low, low + (1 << shift) - 1


def bin_middles(bins_B: np.ndarray) -> np.ndarray:
    """Return the middle of each of some increasing bins, float64 (B,): the rank itself where a bin holds one."""
    middles = bins_B.astype(np.float64)
    for wide in range(int(np.searchsorted(bins_B, EXACT_BINS)), len(bins_B)):  # at most 2^10 to the octave
        middles[wide] = sum(bin_edges(int(bins_B[wide]))) / 2.0
    return middles
