"""Student's distribution: the quantiles of intervals, and two-sided probabilities far into the tail."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

ERROR_RATE = 0.05  # of an interval; of all rounds of a sample together
LEVEL = 1.0 - ERROR_RATE  # of intervals; a higher one is corrected for repeated looks


@lru_cache(maxsize=1024)
def student_quantile(level: float, degrees_of_freedom: int) -> float:
    """Return t such that Student's variable lies within -t..t with probability `level`.

    Up to 200 degrees of freedom from the finite sums of Abramowitz and Stegun 26.7.3 and 26.7.4, by bisection; beyond,
    from the expansion 26.7.5, whose error is then below 1e-7.
    """
    normal = NormalDist().inv_cdf((1.0 + level) / 2)
    if degrees_of_freedom > 200:
        terms = (
            (normal**3 + normal) / 4,
            (5 * normal**5 + 16 * normal**3 + 3 * normal) / 96,
            (3 * normal**7 + 19 * normal**5 + 17 * normal**3 - 15 * normal) / 384,
        )
        return normal + sum(term / float(degrees_of_freedom) ** power for power, term in enumerate(terms, start=1))
    low = high = normal
    while _student_probability(high, degrees_of_freedom) < level:
        high *= 2
    for _ in range(64):
        middle = (low + high) / 2
        low, high = (middle, high) if _student_probability(middle, degrees_of_freedom) < level else (low, middle)
    return high


def _student_probability(t: float, degrees_of_freedom: int) -> float:
    """Return the probability that Student's variable lies within -t..t."""
    angle = math.atan(t / math.sqrt(degrees_of_freedom))
    cosine = math.cos(angle)
    odd = degrees_of_freedom % 2
    term, total = (cosine if odd else 1.0), 0.0
    for power in range(3 if odd else 2, degrees_of_freedom + 1, 2):
        total += term
        term *= cosine**2 * (power - 1) / power
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total


# Student's t -> its two-sided probability, for any degrees of freedom and far into the tail.

_NORMAL_FROM = 1e6  # degrees of freedom from which the normal's is the same to 1e-5 of itself
_TINY = 1e-300
_MAX_TERMS = 100_000


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
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(rest))
    if x < (a + 1) / (a + b + 2):
        return min(1.0, front * _continued_fraction(x, a, b) / a)
    return max(0.0, 1.0 - front * _continued_fraction(rest, b, a) / b)


def _continued_fraction(x: float, a: float, b: float) -> float:
    """Evaluate the incomplete beta function's continued fraction by Lentz's method."""
    c, d = 1.0, 1.0 / _away_from_zero(1.0 - (a + b) * x / (a + 1.0))
    value = d
    for m in range(1, _MAX_TERMS):
        change = 1.0
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 / _away_from_zero(1.0 + term * d)
            c = _away_from_zero(1.0 + term / c)
            change = c * d
            value *= change
        if abs(change - 1.0) < 1e-15:
            break
    return value


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
