"""Two distances and what is added to each -> which score is higher, exactly, where no square decides.

Only l2 with a bias needs it, for the pairs that float64 leaves open: exact fractions, one pair after the other.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np


def root_signs(
    query_PN: np.ndarray, candidate_PN: np.ndarray, added_P: np.ndarray, true_PN: np.ndarray, true_added_P: np.ndarray
) -> np.ndarray:
    """Return the sign of (added - |query - candidate|) - (true_added - |query - true|), int8 (P,).

    Args:
        query_PN: float64, as all others: each holds numbers of float32, or products of two.
        candidate_PN: vectors of candidates.
        added_P: what is added to a candidate's distance.
        true_PN: vectors of true entities.
        true_added_P: what is added to theirs.
    """
    signs = [
        _sign(_square(query, true), _square(query, candidate), Fraction(added) - Fraction(true_added))
        for query, candidate, added, true, true_added in zip(
            query_PN.tolist(),
            candidate_PN.tolist(),
            added_P.tolist(),
            true_PN.tolist(),
            true_added_P.tolist(),
            strict=True,
        )
    ]
    return np.array(signs, np.int8)


def _square(x: list[float], y: list[float]) -> Fraction:
    return sum(((Fraction(a) - Fraction(b)) ** 2 for a, b in zip(x, y, strict=True)), Fraction(0))


def _sign(first: Fraction, second: Fraction, shift: Fraction) -> int:
    """Return the sign of sqrt(first) + shift - sqrt(second)."""
    if shift < 0:
        return -_sign(second, first, -shift)
    # Both sides of sqrt(first) + shift ? sqrt(second) are squared: 2 shift sqrt(first) ? rest.
    rest = second - first - shift * shift
    if rest < 0:
        return 1
    left, right = 4 * shift * shift * first, rest * rest
    return (left > right) - (left < right)
