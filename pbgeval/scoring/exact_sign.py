"""Terms in float64 -> the sign of their exact sum.

A row's terms are cut at a power of two so high that the parts above the cut add up without a rounding, in any order
(Rump, Ogita and Oishi, "Accurate floating-point summation", 2008). What lies below waits until the part above has
cancelled; each cut takes some 40 bits, and the exponents of float64 end.
"""

from __future__ import annotations

import numpy as np

BITS = 53  # of float64's significand
ROWS_AT_A_TIME = 1 << 10  # so that their terms stay in cache; changes no number


def exact_signs(terms_PN: np.ndarray) -> np.ndarray:
    """Return the sign (-1, 0 or 1) of the exact sum of each row, int8 (P,).

    Args:
        terms_PN: float64, finite, of magnitudes from 2^-900 to 2^900 or zero; at most 2^20 in a row.
    """
    parts = [_signs(terms_PN[start : start + ROWS_AT_A_TIME]) for start in range(0, terms_PN.shape[0], ROWS_AT_A_TIME)]
    return np.concatenate([np.empty(0, np.int8), *parts])


def _signs(terms_PN: np.ndarray) -> np.ndarray:
    num_rows, num_terms = terms_PN.shape
    signs_P = np.zeros(num_rows, np.int8)
    row_R = np.arange(num_rows)  # the rows that are not decided
    rest_RN = np.concatenate([terms_PN, np.zeros((num_rows, 1))], axis=1)  # the last: what parts above the cuts left
    num_terms += 1
    room = (num_terms + 2).bit_length()  # so that all parts above a cut together stay below the power of two
    while row_R.size:
        largest_R = np.abs(rest_RN).max(axis=1)
        kept = largest_R > 0  # else the sum is zero
        row_R, rest_RN, largest_R = row_R[kept], rest_RN[kept], largest_R[kept]
        cut_R1 = np.ldexp(1.0, np.frexp(largest_R)[1] + room)[:, None]
        above_RN = (rest_RN + cut_R1) - cut_R1
        rest_RN = rest_RN - above_RN
        sum_R = above_RN.sum(axis=1)
        at_most_R = cut_R1[:, 0] * (num_terms * 2.0**-BITS)  # what lies below, all together
        decided = np.abs(sum_R) > at_most_R
        signs_P[row_R[decided]] = np.sign(sum_R[decided])
        row_R, rest_RN = row_R[~decided], rest_RN[~decided]
        rest_RN[:, -1] = sum_R[~decided]  # the last sum was wholly above this cut: of it nothing is left
    return signs_P
