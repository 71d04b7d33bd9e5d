"""Random words and numbers on a GPU: the generator that numpy has, Philox4x64-10, as a kernel in Triton.

Imported only where it is used: Triton decides when it sees a kernel whether it compiles or interprets it.

A counter makes four words: ten rounds of two products of 64-bit words, whose high and low halves are mixed with the key
(Salmon et al., 2011, "Parallel random numbers: as easy as 1, 2, 3"). numpy counts up first, so words 4j to 4j + 3 are
those of counter j + 1. A thread has a counter.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pbgeval.scoring.kernels import kernel

ROUNDS = tl.constexpr(10)
FACTOR_0, FACTOR_1 = tl.constexpr(0xD2E7470EE14C6C93), tl.constexpr(0xCA5A826395121157)
STEP_0, STEP_1 = tl.constexpr(0x9E3779B97F4A7C15), tl.constexpr(0xBB67AE8584CAA73B)  # what a round adds to the key


@kernel()
def write_words(
    word_ptr,
    key_0,
    key_1,
    key_2,
    key_3,
    first_low,
    first_high,
    num_counters,
    COUNTERS: tl.constexpr,
):
    """Write four words for each counter from the first; the key and the first counter come in parts of 32 bits."""
    at = tl.program_id(0) * COUNTERS + tl.arange(0, COUNTERS)
    is_here = at < num_counters
    zero = tl.zeros([COUNTERS], dtype=tl.uint64)
    x_0, x_1, x_2, x_3 = zero + joined(first_low, first_high) + at.to(tl.uint64), zero, zero, zero
    key_low, key_high = zero + joined(key_0, key_1), zero + joined(key_2, key_3)
    factor_0, factor_1 = zero + tl.full([], FACTOR_0, tl.uint64), zero + tl.full([], FACTOR_1, tl.uint64)
    for _ in tl.static_range(ROUNDS):
        high_0, low_0 = tl.umulhi(x_0, factor_0), x_0 * factor_0
        high_1, low_1 = tl.umulhi(x_2, factor_1), x_2 * factor_1
        x_0, x_1, x_2, x_3 = high_1 ^ x_1 ^ key_low, low_1, high_0 ^ x_3 ^ key_high, low_0
        key_low += tl.full([], STEP_0, tl.uint64)
        key_high += tl.full([], STEP_1, tl.uint64)
    word_ptr += at.to(tl.int64) * 4
    tl.store(word_ptr, x_0.to(tl.int64, bitcast=True), mask=is_here)
    tl.store(word_ptr + 1, x_1.to(tl.int64, bitcast=True), mask=is_here)
    tl.store(word_ptr + 2, x_2.to(tl.int64, bitcast=True), mask=is_here)
    tl.store(word_ptr + 3, x_3.to(tl.int64, bitcast=True), mask=is_here)


@kernel("word_ptr")
def scale_words(word_ptr, number_ptr, num_words, size_low, size_high, WORDS: tl.constexpr):
    """Map each word to the high half of its product with the size."""
    at = tl.program_id(0).to(tl.int64) * WORDS + tl.arange(0, WORDS)
    is_here = at < num_words
    word = tl.load(word_ptr + at, mask=is_here, other=0).to(tl.uint64, bitcast=True)
    size = tl.zeros([WORDS], dtype=tl.uint64) + joined(size_low, size_high)
    tl.store(number_ptr + at, tl.umulhi(word, size).to(tl.int64, bitcast=True), mask=is_here)


@triton.jit
def joined(low, high):
    """Return the unsigned number whose halves two signed numbers of 32 bits hold."""
    return (high.to(tl.uint32, bitcast=True).to(tl.uint64) << 32) | low.to(tl.uint32, bitcast=True).to(tl.uint64)
