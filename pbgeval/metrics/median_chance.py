"""Numbers of candidates -> expectation and variance of the median rank by chance, by dynamic programming.

The median is the one of `distribution.weighted_median`: with S(x) the weight of the queries whose rank is at most x and
h half of all weight, it is (a + b) / 2, where a is the least x with S(x) >= h and b the least with S(x) > h. So

    E[median] = sum over x >= 0 of (P(S(x) < h) + P(S(x) <= h)) / 2
    E[median^2] = (E[a^2] + E[b^2]) / 2 - E[(b - a)^2] / 4, and b - a counts the x with S(x) = h.

The distribution of S(x) is that of a sum of independent queries, added one after another. Weights must be multiples of
one unit of which there are few; what would take more than MOST_STEPS additions has no closed form here.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import gcd, lcm

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from pbgeval.metrics.distribution import CandidateGroups

Floats = NDArray[np.float64]

MOST_STEPS = 1 << 27  # additions to the distributions of S: less than a second
MOST_CELLS = 1 << 20  # of the distributions that are kept at a time
LARGEST_DENOMINATOR = 1 << 20  # of weights that are recognised as fractions, such as 1/3


@frozen(eq=False)
class _Queries:
    candidates: list[int]  # of each query
    units: list[int]  # weight of each query as a multiple of the common unit
    most_candidates: int
    total: int  # units of all queries

    @property
    def num_steps(self) -> int:
        """How many additions the distributions of S(x) take for all x."""
        return self.most_candidates * len(self.units) * (self.total // 2 + 1)


def expected_median_rank(groups: CandidateGroups) -> float | None:
    """Return the expectation of the median rank; None if it takes more than MOST_STEPS additions."""
    queries = _queries(groups)
    if queries is None or queries.num_steps > MOST_STEPS:
        return None
    return float(sum((below + at_most).sum() for _, below, at_most in _half_weights(queries)) / 2.0)


def variance_of_median_rank(groups: CandidateGroups) -> float | None:
    """Return the variance of the median rank; None if it takes more than MOST_STEPS additions.

    Where some of the queries may have exactly half the weight, pairs of ranks are needed: at most MOST_STEPS for all.
    """
    queries = _queries(groups)
    if queries is None or queries.num_steps > MOST_STEPS:
        return None
    expectation = expected_median_rank(groups)
    assert expectation is not None, "the same bound"
    variance = (
        expectation**2
    )  # from here the square of the distance to the expectation grows by 2 (x - E) + 1 at each x
    for x, below, at_most in _half_weights(queries):
        variance += float(((2.0 * (x - expectation) + 1.0) * (below + at_most)).sum() / 2.0)
    if queries.total % 2 == 0:
        gap = _mean_square_gap(queries)
        if gap is None:
            return None
        variance -= gap / 4.0
    return max(variance, 0.0)


def _queries(groups: CandidateGroups) -> _Queries | None:
    """Return the queries one by one with whole weights; None if there are too many, or their weights share no unit."""
    num_queries, most_candidates = int(groups.num_queries_G.sum()), int(groups.candidates_G.max())
    if most_candidates * num_queries * (num_queries // 2 + 1) > MOST_STEPS:  # each query weighs a unit at least
        return None
    fractions = [_fraction(weight / float(groups.weight_G.max())) for weight in groups.weight_G.tolist()]
    known = [fraction for fraction in fractions if fraction is not None]
    if len(known) < len(fractions):
        return None
    multiple = 1
    for fraction in known:
        multiple = lcm(multiple, fraction.denominator)
        if multiple > MOST_STEPS:
            return None
    units_G = [int(fraction * multiple) for fraction in known]
    divisor = gcd(*units_G)
    counts = groups.num_queries_G.tolist()
    units = [unit // divisor for unit, count in zip(units_G, counts, strict=True) for _ in range(count)]
    candidates = np.repeat(groups.candidates_G.astype(np.int64), groups.num_queries_G).tolist()
    return _Queries(candidates, units, most_candidates, sum(units))


def _fraction(weight: float) -> Fraction | None:
    fraction = Fraction(weight).limit_denominator(LARGEST_DENOMINATOR)
    return fraction if fraction and abs(float(fraction) - weight) <= 2.0**-51 * weight else None


def _half_weights(queries: _Queries) -> Iterator[tuple[Floats, Floats, Floats]]:
    """Yield ranks x = 0, 1, ... with P(S(x) < half) and P(S(x) <= half), a block at a time."""
    num_rows = max(1, MOST_CELLS // (queries.total // 2 + 1))
    for start in range(0, queries.most_candidates, num_rows):
        x = np.arange(start, min(start + num_rows, queries.most_candidates), dtype=np.float64)
        weights_XS = _distribution(queries, x, x)
        at_most = weights_XS.sum(1)
        yield x, at_most if queries.total % 2 else at_most - weights_XS[:, -1], at_most


def _distribution(queries: _Queries, x: Floats, y: Floats) -> Floats:
    """Return P(S(x) = s and no rank in x + 1..y) for s = 0..half, float64 (ranks, half + 1)."""
    half = queries.total // 2
    weights_XS = np.zeros((len(x), half + 1))
    weights_XS[:, 0] = 1.0
    for candidates, units in zip(queries.candidates, queries.units, strict=True):
        reached = np.minimum(x / candidates, 1.0)[:, None]
        beyond = np.maximum(1.0 - y / candidates, 0.0)[:, None]
        moved = weights_XS[:, : max(half + 1 - units, 0)] * reached
        weights_XS *= beyond
        weights_XS[:, units:] += moved
    return weights_XS


def _mean_square_gap(queries: _Queries) -> float | None:
    """Return E[(b - a)^2]: over pairs x, y the sum of P(S(x) = S(y) = half)."""
    if queries.num_steps * queries.most_candidates // 2 > MOST_STEPS:
        return None
    total = 0.0
    for x in range(1, queries.most_candidates):  # S(0) = 0
        y = np.arange(x, queries.most_candidates, dtype=np.float64)
        both = _distribution(queries, np.full_like(y, x), y)[:, -1]
        total += float(both[0] + 2.0 * both[1:].sum())
    return total
