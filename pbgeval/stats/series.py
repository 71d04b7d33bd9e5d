"""Numbers of candidates -> sums of powers of 1..C, which chance levels of rank metrics need; any C, without tables.

The first terms are added one by one and the rest by the Euler-Maclaurin formula (Abramowitz and Stegun, Handbook of
Mathematical Functions, 23.1.30), so an array of numbers up to 1e10 costs as much as one of small numbers.
Relative errors are about 1e-15. Logarithms of means keep them for powers near 0: the mean of many queries has such.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from math import comb, pi

import numpy as np
from numpy.typing import NDArray

from pbgeval.notation import Floats

NUM_DIRECT = 20  # terms that are added one by one; what the formulas leave out beyond them is below 1e-15
EULER_GAMMA = 0.5772156649015329
BERNOULLI_FACTORS = (1 / 12, -1 / 720, 1 / 30240, -1 / 1209600)  # B_2k / (2k)!


def harmonic(num_G: NDArray[np.generic]) -> Floats:
    """Return H_1(c) = sum of 1 / j over j = 1..c for each c >= 0, float64 (G,)."""
    num = np.asarray(num_G, np.float64)
    large = np.maximum(num, NUM_DIRECT)
    return _with_table(num, _direct_sums(1), np.log(large) + EULER_GAMMA + 0.5 / large - _harmonic_tail(1.0 / large**2))


def harmonic_squares(num_G: NDArray[np.generic]) -> Floats:
    """Return H_2(c) = sum of 1 / j^2 over j = 1..c for each c >= 0, float64 (G,)."""
    num = np.asarray(num_G, np.float64)
    x = 1.0 / np.maximum(num, NUM_DIRECT)
    y = x * x
    beyond = pi**2 / 6 - (x - 0.5 * y + x * y * (1 / 6 - y * (1 / 30 - y * (1 / 42 - y / 30))))
    return _with_table(num, _direct_sums(2), beyond)


def mean_reciprocal(first_Q: NDArray[np.generic], last_Q: NDArray[np.generic]) -> Floats:
    """Return the mean of 1 / j over j = first..last, 1 <= first <= last, float64 (Q,).

    A difference of two `harmonic` would lose all digits of a few terms far out.
    """
    first, last = np.asarray(first_Q, np.float64), np.asarray(last_Q, np.float64)
    total = np.zeros(np.broadcast(first, last).shape)
    for term in range(1, NUM_DIRECT + 1):
        total += np.where((first <= term) & (term <= last), 1.0 / term, 0.0)
    before = np.maximum(first - 1.0, NUM_DIRECT)
    last_far = np.maximum(last, before)  # where nothing is left, the sum from before + 1 to before: 0
    num_far = last_far - before
    total += np.log1p(num_far / before) - 0.5 * num_far / last_far / before
    total -= _harmonic_tail(1.0 / last_far**2) - _harmonic_tail(1.0 / before**2)
    return np.asarray(total / (last - first + 1.0))


def log_power_moments(num_G: NDArray[np.generic], power_G: NDArray[np.generic]) -> tuple[Floats, Floats]:
    """Return L(a) and L(2a) - 2 L(a), each float64 (G,), where L(a) = ln of the mean of j^a over j = 1..c.

    The second is ln(1 + variance / mean^2) of j^a, about a^2 times the variance of ln j where a is small, and never
    negative: the difference of the two logarithms would have no digit of it.

    Args:
        num_G: c >= 1.
        power_G: 0 <= a <= 2.
    """
    num, power = np.asarray(num_G, np.float64), np.asarray(power_G, np.float64)
    mean, mean_square = _scaled_moments(num, power)
    spread = np.log1p(np.maximum(mean_square - mean**2, 0.0) / (1.0 + mean) ** 2)
    return np.asarray(power * np.log(num) + np.log1p(mean)), np.asarray(spread)


def _scaled_moments(num: Floats, power: Floats) -> tuple[Floats, Floats]:
    """Return the means of f and f^2 over j = 1..c, where f(j) = (j / c)^a - 1."""
    num, power = np.broadcast_arrays(num, power)
    total, total_square = np.zeros(num.shape), np.zeros(num.shape)
    for term in range(1, NUM_DIRECT):
        f = np.expm1(power * np.log(np.minimum(term / num, 1.0)))  # beyond c: f(c) = 0
        total += f
        total_square += f * f
    far = np.flatnonzero(num >= NUM_DIRECT)
    tail, tail_square = _tail_moments(num[far], power[far])
    total[far] += tail
    total_square[far] += tail_square
    return total / num, total_square / num


def _tail_moments(num: Floats, power: Floats) -> tuple[Floats, Floats]:
    """Return the sums of f and f^2 over j = NUM_DIRECT..c by the Euler-Maclaurin formula."""
    start = NUM_DIRECT / num
    at_start = np.expm1(power * np.log(start))
    # The integrals, sorted by powers of f at the start, so that nothing of size 1 cancels where the power is small
    integral = num * (-power * (1.0 - start) - start * at_start) / (1.0 + power)
    squares = 2.0 * power**2 * (1.0 - start) + start * at_start * (2.0 * power - (1.0 + power) * at_start)
    integral_square = num * squares / ((1.0 + 2.0 * power) * (1.0 + power))
    total, total_square = integral + at_start / 2.0, integral_square + at_start**2 / 2.0  # f(c) = 0
    first = _derivatives(np.full_like(num, NUM_DIRECT), at_start, power)
    last = _derivatives(num, np.zeros_like(num), power)
    for k, factor in enumerate(BERNOULLI_FACTORS):
        order = 2 * k + 1
        total += factor * (last[order] - first[order])
        total_square += factor * (_derivative_of_square(last, order) - _derivative_of_square(first, order))
    return total, total_square


def _derivatives(at: Floats, value: Floats, power: Floats) -> list[Floats]:
    """Return f and its derivatives at a place, as many as the formula needs."""
    derivatives = [value]
    derivative = 1.0 + value
    for order in range(2 * len(BERNOULLI_FACTORS) - 1):
        derivative = derivative * (power - order) / at
        derivatives.append(derivative)
    return derivatives


def _derivative_of_square(derivatives: list[Floats], order: int) -> Floats:
    """Return a derivative of f^2 from those of f (Leibniz)."""
    terms = (comb(order, k) * derivatives[k] * derivatives[order - k] for k in range(order + 1))
    return sum(terms, np.zeros_like(derivatives[0]))


def _harmonic_tail(y: Floats) -> Floats:
    """Return ln c + gamma + 1 / 2c - H_1(c), where y = 1 / c^2."""
    return y * (1 / 12 - y * (1 / 120 - y * (1 / 252 - y * (1 / 240 - y / 132))))


@cache
def _direct_sums(power: int) -> Floats:
    """Return the sums of 1 / j^power over j = 1..c for c = 0..NUM_DIRECT, each rounded once."""
    terms = [Fraction(1, j**power) for j in range(1, NUM_DIRECT + 1)]
    return np.array([float(sum(terms[:num], Fraction(0))) for num in range(NUM_DIRECT + 1)])


def _with_table(num: Floats, table: Floats, beyond: Floats) -> Floats:
    return np.where(num <= NUM_DIRECT, table[np.minimum(num, NUM_DIRECT).astype(np.int64)], beyond)
