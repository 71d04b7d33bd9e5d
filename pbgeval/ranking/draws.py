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
from attrs import field, frozen
from torch import Tensor

from pbgeval.errors import DataError
from pbgeval.notation import Bucket, Side
from pbgeval.scoring import device_scores
from pbgeval.scoring.device_lists import halves
from pbgeval.storage.transfers import sent

WORDS_PER_COUNTER = 4  # Philox 4x64
COUNTERS_PER_PROGRAM, WORDS_PER_PROGRAM = 256, 1024  # of a GPU
_LOW_32 = 0xFFFFFFFF
HOST = torch.device("cpu")


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

    def words_on(self, device: torch.device, address: int, count: int) -> Tensor:
        """Return the same words on a device, as int64 of the same bits: torch has few functions of uint64."""
        if not device_scores.supports(device):
            return sent(torch.from_numpy(self.words(address, count).view(np.int64)), device)
        return words_by_kernel(self.key, address, count, device)


def words_by_kernel(key: int, address: int, count: int, device: torch.device) -> Tensor:
    """Do as `DrawStream.words_on`, on a GPU."""
    from pbgeval.scoring import draw_kernels  # importing Triton takes a while

    counter, skipped = divmod(address, WORDS_PER_COUNTER)
    num_counters = -(-(skipped + count) // WORDS_PER_COUNTER)
    words = torch.empty(num_counters * WORDS_PER_COUNTER, dtype=torch.int64, device=device)
    device_scores.launch(
        draw_kernels.write_words,
        -(-num_counters // COUNTERS_PER_PROGRAM),
        words,
        *halves(key, 4),
        *halves(counter + 1, 2),
        num_counters,
        COUNTERS=COUNTERS_PER_PROGRAM,
    )
    return words[skipped : skipped + count]


def scaled_by_kernel(words: Tensor, size: int) -> Tensor:
    """Do as `uniform_below`, on a GPU."""
    from pbgeval.scoring import draw_kernels

    number = torch.empty(words.shape, dtype=torch.int64, device=words.device)
    device_scores.launch(
        draw_kernels.scale_words,
        -(-number.numel() // WORDS_PER_PROGRAM),
        words.contiguous(),
        number,
        number.numel(),
        *halves(size, 2),
        WORDS=WORDS_PER_PROGRAM,
    )
    return number


def uniform_below(words: Tensor, size: int) -> Tensor:
    """Map uniform words to range(size): the high half of the 128-bit product word * size, int64.

    The bias towards some values is below size / 2^64. Exact for size below 2^63. Products and sums are those of uint64,
    whose bits are the same.
    """
    if device_scores.supports(words.device):
        return scaled_by_kernel(words, size)
    high, low = _high_half(words), words & _LOW_32
    size_high, size_low = size >> 32, size & _LOW_32
    middle = high * size_low
    middle += _high_half(low * size_low)
    product = _high_half(middle)
    if size_high:
        product += high * size_high + _high_half(low * size_high + (middle & _LOW_32))
    return product


def _high_half(words: Tensor) -> Tensor:
    """Return the upper 32 bits of words, in a tensor of its own."""
    high = words >> 32
    high &= _LOW_32
    return high


FRACTION = 1 << 24  # of weights that are no integers
MAX_WEIGHT = 1 << 62  # of a partition


@frozen(eq=False)
class DegreeWeights:
    """The entities of a partition that training edges touch, each to be drawn in proportion to its weight."""

    rows_P: Tensor  # int64, increasing
    cumulative_P: Tensor  # int64: the sum of the weights up to this entity, itself included
    _on_devices: dict[torch.device, tuple[Tensor, Tensor]] = field(factory=dict, init=False)

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
        cumulative_P = np.cumsum(np.array(weights, np.int64)[place_P])
        return cls(torch.from_numpy(rows_P), torch.from_numpy(cumulative_P))

    def draw(self, words: Tensor) -> Tensor:
        """Return a row for each word, int64, on the words' device."""
        if words.device not in self._on_devices:
            self._on_devices[words.device] = sent(self.rows_P, words.device), sent(self.cumulative_P, words.device)
        rows_P, cumulative_P = self._on_devices[words.device]
        place = uniform_below(words, int(self.cumulative_P[-1]))
        return rows_P[torch.searchsorted(cumulative_P, place, right=True)]


def fractions(words: Tensor) -> Tensor:
    """Map words to float64 in [0, 1): the top 53 bits."""
    return (words >> 11).bitwise_and_((1 << 53) - 1).double() * 2.0**-53
