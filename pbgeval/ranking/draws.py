"""(seed, edge path, bucket, side, word address) -> random words and offsets, the same on every machine.

Raw 64-bit words of the counter-based Philox generator are mapped to a range by a multiply-shift of our own, so no
change in a library's distributions moves a number. A word is addressed, not consumed: who draws it, when, and in
blocks of which size makes no difference.
"""

from __future__ import annotations

import hashlib
from decimal import Decimal, localcontext

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from pbgeval.errors import DataError
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
        return cls.named(f"{purpose} {seed} {path_index} {bucket.lhs} {bucket.rhs} {side.name}")

    @classmethod
    def named(cls, name: str) -> DrawStream:
        """Return the stream of one purpose, which its name is for."""
        name = f"pbgeval {name}"
        return cls(int.from_bytes(hashlib.blake2b(name.encode(), digest_size=16).digest(), "little"))

    def words(self, address: int, count: int) -> np.ndarray:
        """Return the uint64 words at address, address + 1, ... (count,)."""
        counter, skipped = divmod(address, WORDS_PER_COUNTER)
        return np.asarray(np.random.Philox(key=self.key, counter=counter).random_raw(skipped + count)[skipped:])


def uniform_below(words: np.ndarray, size: int) -> np.ndarray:
    """Map uniform words to range(size): the high half of the 128-bit product word * size, int64.

    The bias towards some values is below size / 2^64. Exact for size below 2^63.
    """
    high, low = words >> _SHIFT_32, words & _LOW_32
    size_high, size_low = np.uint64(size >> 32), np.uint64(size & 0xFFFFFFFF)
    middle = high * size_low + (low * size_low >> _SHIFT_32)
    product: np.ndarray = middle >> _SHIFT_32
    if size_high:
        product += high * size_high + ((low * size_high + (middle & _LOW_32)) >> _SHIFT_32)
    return product.astype(np.int64)


FRACTION = 1 << 24  # of weights that are no integers
MAX_WEIGHT = 1 << 62  # of a partition


@frozen(eq=False)
class DegreeWeights:
    """The entities of a partition that training edges touch, each to be drawn in proportion to its weight."""

    rows_P: np.ndarray  # int64, increasing
    cumulative_P: np.ndarray  # int64: the sum of the weights up to this entity, itself included

    @classmethod
    def of_degrees(cls, rows_P: np.ndarray, degree_P: np.ndarray, power: float, label: str) -> DegreeWeights:
        """Weigh each entity by its degree to a power, in integers that are the same on every machine.

        Args:
            rows_P: int64, increasing.
            degree_P: how many training edges touch each, int64, positive.
            power: positive.
            label: of the partition, for errors.

        Raises:
            DataError: there is nothing to draw, or the weights do not fit.
        """
        if not len(rows_P):
            raise DataError(f"{label}: no edge of train_paths touches it, so num_degree_negs has nothing to draw")
        degrees, place_P, num_G = np.unique(degree_P, return_inverse=True, return_counts=True)
        if power == int(power):
            weights = [int(degree ** int(power)) for degree in degrees.tolist()]
        else:
            with localcontext(prec=50):  # decimal arithmetic is software: no two machines round it unlike
                exponent = Decimal(repr(power))
                weights = [round(Decimal(degree) ** exponent * FRACTION) for degree in degrees.tolist()]
        if sum(weight * number for weight, number in zip(weights, num_G.tolist(), strict=True)) >= MAX_WEIGHT:
            raise DataError(f"{label}: degree_power = {power} overflows: degrees reach {degrees[-1]}; make it smaller")
        return cls(rows_P, np.cumsum(np.array(weights, np.int64)[place_P]))

    def draw(self, words: np.ndarray) -> Tensor:
        """Return a row for each word, int64."""
        place = uniform_below(words, int(self.cumulative_P[-1]))
        return torch.from_numpy(self.rows_P[np.searchsorted(self.cumulative_P, place, "right")])


def fractions(words: np.ndarray) -> np.ndarray:
    """Map words to float64 in [0, 1): the top 53 bits."""
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
