"""Student's t -> its two-sided probability, for any degrees of freedom and far into the tail."""

from __future__ import annotations

import math

_NORMAL_FROM = 1e6  # degrees of freedom from which the normal's is the same to 1e-5 of itself
_TINY = 1e-300
_MOST_TERMS = 100_000


def two_sided_probability(t: float, degrees_of_freedom: float) -> float:
    """Return the probability that Student's variable is as far from 0 as t or farther.

    It is the regularised incomplete beta function I_x(f / 2, 1 / 2), x = f / (f + t^2) (Abramowitz and Stegun 26.7.1).

    Args:
        t: may be infinite.
        degrees_of_freedom: f > 0, not necessarily whole.
    """
    if t == 0.0 or math.isinf(t):
        return 0.0 if t else 1.0
    if degrees_of_freedom >= _NORMAL_FROM:
        return math.erfc(abs(t) / math.sqrt(2.0))
    a, b = degrees_of_freedom / 2, 0.5
    x, rest = degrees_of_freedom / (degrees_of_freedom + t * t), t * t / (degrees_of_freedom + t * t)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(rest)
    front = math.exp(log_front)
    if x < (a + 1) / (a + b + 2):
        return min(1.0, front * _continued_fraction(x, a, b) / a)
    return max(0.0, 1.0 - front * _continued_fraction(rest, b, a) / b)


def _continued_fraction(x: float, a: float, b: float) -> float:
    """Return that of the incomplete beta function (Abramowitz and Stegun 26.5.8), evaluated from its front (Lentz)."""
    denominator = _away_from_zero(1.0 - (a + b) * x / (a + 1.0))
    c, d = 1.0, 1.0 / denominator
    value = d
    for m in range(1, _MOST_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        change = 1.0
        for term in (even, odd):
            d = 1.0 / _away_from_zero(1.0 + term * d)
            c = _away_from_zero(1.0 + term / c)
            change = c * d
            value *= change
        if abs(change - 1.0) < 1e-15:
            break
    return value


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
