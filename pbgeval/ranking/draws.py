"""(seed, edge path, bucket, side, word address) -> random words and offsets, the same on every machine.

Raw 64-bit words of the counter-based Philox generator are mapped to a range by a multiply-shift of our own, so no
change in a library's distributions moves a number. A word is addressed, not consumed: who draws it, when, and in
blocks of which size makes no difference.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from pbgeval.notation import Bucket, Side

WORDS_PER_COUNTER = 4  # Philox 4x64
_LOW_32 = np.uint64(0xFFFFFFFF)
_SHIFT_32 = np.uint64(32)


@frozen
class DrawStream:
    """An endless, addressable sequence of uniform 64-bit words."""

    key: int  # 128 bits

    @classmethod
    def of(cls, seed: int, path_index: int, bucket: Bucket, side: Side, purpose: str = "negatives") -> DrawStream:
        """Return the stream of one side of one bucket; each purpose has a stream of its own."""
        name = f"pbgeval {purpose} {seed} {path_index} {bucket.lhs} {bucket.rhs} {side.name}"
        return cls(int.from_bytes(hashlib.blake2b(name.encode(), digest_size=16).digest(), "little"))

    def words(self, address: int, count: int) -> np.ndarray:
        """Return the uint64 words at address, address + 1, ... (count,)."""
        counter, skipped = divmod(address, WORDS_PER_COUNTER)
        generator = np.random.Philox(key=self.key, counter=counter)
        return np.asarray(generator.random_raw(skipped + count)[skipped:])

    def offsets(self, address: int, count: int, size: int) -> Tensor:
        """Return uniform draws with replacement from range(size), int64 (count,), one word each."""
        return torch.from_numpy(uniform_below(self.words(address, count), size))


def uniform_below(words: np.ndarray, size: int) -> np.ndarray:
    """Map uniform words to range(size): the high half of the 128-bit product word * size, int64.

    The bias towards some values is below size / 2^64. Exact for size up to 2^32.
    """
    size_word = np.uint64(size)
    high = (words >> _SHIFT_32) * size_word
    low = ((words & _LOW_32) * size_word) >> _SHIFT_32
    return ((high + low) >> _SHIFT_32).astype(np.int64)


def fractions(words: np.ndarray) -> np.ndarray:
    """Map words to float64 in [0, 1): the top 53 bits."""
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
