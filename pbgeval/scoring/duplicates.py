"""Prepared rows -> hashes of their values, and the candidates that are the very vector of a query's true entity.

A true score that is summed elementwise rounds less than a matrix kernel, and near-ties fall as they do in PBG; but
then a candidate with the true entity's own vector need not have the same last bits. Such twins are found by hash and
tie by definition (law 2).
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

ROWS_AT_A_TIME = 256  # of a CPU, so that their products stay in cache; changes no number


def row_hashes(prepared_ND: Tensor) -> Tensor:
    """Return a 64-bit hash of each row's values, int64 (N,); equal rows have equal hashes, 0.0 and -0.0 being equal.

    It is an inner product of the bits of numbers with random integers, where numbers above 2^64 go round.
    """
    of_bits, half = (torch.int32, 16) if prepared_ND.dtype is torch.float32 else (torch.int64, 32)
    multiplier_D = _multipliers(prepared_ND.shape[1]).to(prepared_ND.device)
    hash_N = torch.empty(prepared_ND.shape[0], dtype=torch.int64, device=prepared_ND.device)
    step = max(len(hash_N), 1) if prepared_ND.is_cuda else ROWS_AT_A_TIME
    for start in range(0, len(hash_N), step):
        bits_ND = (prepared_ND[start : start + step] + 0.0).view(of_bits)
        mixed_ND = bits_ND ^ (bits_ND >> half)  # of small numbers the lower half is zeros
        hash_N[start : start + step] = (mixed_ND.long() * multiplier_D).sum(1)
    return hash_N


@functools.cache
def _multipliers(dimension: int) -> Tensor:
    """Return random odd numbers, int64 (D,)."""
    words_D = np.random.Philox(key=0).random_raw(dimension) | np.uint64(1)
    return torch.from_numpy(words_D.view(np.int64))


@frozen(eq=False)
class Twins:
    """Candidates, to be asked which of them have a given vector."""

    hash_C: np.ndarray  # int64, ascending
    column_C: np.ndarray  # the candidate of each
    end_C: np.ndarray  # where the run of equal hashes ends

    @classmethod
    def of_rows(cls, prepared_CD: Tensor) -> Twins:
        hash_C = row_hashes(prepared_CD).cpu().numpy()
        order = np.argsort(hash_C, kind="stable")
        hash_C = hash_C[order]
        starts = np.flatnonzero(np.diff(hash_C, prepend=hash_C[:1] - 1))
        ends = np.append(starts[1:], hash_C.size)
        return cls(hash_C, order, np.repeat(ends, ends - starts) if hash_C.size else ends)

    def of_queries(self, hash_Q: np.ndarray, own_Q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (query, candidate) of the candidates with a query's true vector that are not its true entity.

        Args:
            hash_Q: of the true entities' prepared rows.
            own_Q: candidate that is the true entity itself, negative where it is none of these.
        """
        low_Q = np.searchsorted(self.hash_C, hash_Q)
        at_Q = np.minimum(low_Q, self.hash_C.size - 1)
        high_Q = np.where(self.hash_C[at_Q] == hash_Q, self.end_C[at_Q], low_Q)
        with_twin = np.flatnonzero(high_Q - low_Q > (own_Q >= 0))
        if not with_twin.size:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        lengths = high_Q[with_twin] - low_Q[with_twin]
        query = np.repeat(with_twin, lengths)
        begins = np.repeat(low_Q[with_twin] - (np.cumsum(lengths) - lengths), lengths)
        column = self.column_C[begins + np.arange(query.size)]
        others = column != own_Q[query]
        return query[others], column[others]
