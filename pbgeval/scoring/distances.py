"""Pairs of rows -> minus the sum over columns of how far apart they are: distances that no inner product gives.

    absolute   |x - y|                        per column               (comparator l1)
    modulus    sqrt((a - c)^2 + (b - d)^2)    per complex column       (comparator complex_l1)

Columns are added one after the other, each difference, square, root and sum being rounded by itself as IEEE says. So a
score has the same bits whatever the shape of its block, the number of threads or the device, and nothing is padded.
On a CPU compiled loops do the same where that is worth it; on a GPU kernels do (`device_scores`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from pbgeval.jit import CompiledLoop
from pbgeval.scoring import device_scores
from pbgeval.scoring.fixed_order import JIT_MIN_NUMBERS

JIT_MIN_TERMS = 1 << 22  # of the first block for which numba is imported
CELLS_AT_A_TIME = 1 << 16  # sums that stay in cache; changes no number


@frozen(eq=False)
class ColumnDistance:
    """A distance that is a sum of terms, each of a column or of a pair of them; its negative is the score."""

    name: device_scores.Term
    term: Callable[[list[Tensor]], Tensor]  # differences in the columns of a term, which it may overwrite -> the term
    columns_per_term: int  # a term's columns lie in as many parts of a row, of equal lengths
    loop: CompiledLoop  # the same by arrays: queries, candidates by column, sums

    def __call__(self, query_BQD: Tensor, candidate_BCD: Tensor) -> Tensor:
        """Return minus the sums, (B, Q, C)."""
        if device_scores.supports(query_BQD.device):
            return device_scores.scores(query_BQD, candidate_BCD, self.name)
        num_products, num_queries, dimension = query_BQD.shape
        num_candidates = candidate_BCD.shape[1]
        sums_BQC = query_BQD.new_zeros((num_products, num_queries, num_candidates))
        if not sums_BQC.numel() or not dimension:
            return sums_BQC
        is_worth_it = self.loop.is_worth_compiling(query_BQD.numel() * num_candidates, JIT_MIN_TERMS)
        if is_worth_it and query_BQD.dtype in (torch.float32, torch.float64):
            of_column_BDC = candidate_BCD.transpose(1, 2).contiguous()  # a column's candidates next to each other
            self.loop(query_BQD.contiguous().numpy(), of_column_BDC.numpy(), sums_BQC.numpy())
            return sums_BQC.neg_()
        batches, rows = (max(1, CELLS_AT_A_TIME // size) for size in (num_queries * num_candidates, num_candidates))
        for batch, row in itertools.product(range(0, num_products, batches), range(0, num_queries, rows)):
            part = slice(batch, batch + batches), slice(row, row + rows)
            query_BQ1D, candidate_B1CD = query_BQD[part].unsqueeze(2), candidate_BCD[part[0]].unsqueeze(1)
            num_terms = dimension // self.columns_per_term
            sums_bqC = sums_BQC[part]
            for at in range(num_terms):
                columns = range(at, num_terms * self.columns_per_term, num_terms)
                sums_bqC += self.term([query_BQ1D[..., column] - candidate_B1CD[..., column] for column in columns])
        return sums_BQC.neg_()

    def paired(self, query_QD: Tensor, candidate_QD: Tensor) -> Tensor:
        """Return the same of each query with its own candidate, (Q,)."""
        if device_scores.supports(query_QD.device):
            every_Q = torch.arange(len(query_QD), device=query_QD.device)
            return device_scores.pairs(query_QD, every_Q, candidate_QD, every_Q, self.name)
        return self(query_QD.unsqueeze(1), candidate_QD.unsqueeze(1)).flatten()


def _modulus_of(parts: list[Tensor]) -> Tensor:
    real, imag = parts
    square = real.mul_(real).add_(imag.mul_(imag))
    # numpy's roots are as IEEE says, which torch's are not (MKL's are 1 ulp off)
    return torch.from_numpy(np.sqrt(square.numpy()))


@CompiledLoop
def _absolute(query_BQD, candidate_BDC, sums_BQC):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    num_candidates = candidate_BDC.shape[2]
    for batch in range(query_BQD.shape[0]):
        for start in range(0, num_candidates, 1024):  # sums of so many candidates stay in the fastest cache
            stop = min(start + 1024, num_candidates)
            for query in range(query_BQD.shape[1]):
                sum_C = sums_BQC[batch, query, start:stop]
                for column in range(query_BQD.shape[2]):
                    x = query_BQD[batch, query, column]
                    y_C = candidate_BDC[batch, column, start:stop]
                    for at in range(stop - start):
                        sum_C[at] += abs(x - y_C[at])


@CompiledLoop
def _modulus(query_BQD, candidate_BDC, sums_BQC):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    num_candidates, half = candidate_BDC.shape[2], query_BQD.shape[2] // 2
    for batch in range(query_BQD.shape[0]):
        for start in range(0, num_candidates, 1024):
            stop = min(start + 1024, num_candidates)
            for query in range(query_BQD.shape[1]):
                sum_C = sums_BQC[batch, query, start:stop]
                for column in range(half):
                    a, b = query_BQD[batch, query, column], query_BQD[batch, query, half + column]
                    c_C, d_C = candidate_BDC[batch, column, start:stop], candidate_BDC[batch, half + column, start:stop]
                    for at in range(stop - start):
                        real, imag = a - c_C[at], b - d_C[at]
                        sum_C[at] += np.sqrt(real * real + imag * imag)


@CompiledLoop
def _absolute_of_pairs(x_ND, row_P, y_ND, other_P, sums_P):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    for pair in range(row_P.size):
        x_D, y_D = x_ND[row_P[pair]], y_ND[other_P[pair]]
        total = np.float64(0)
        for at in range(y_D.size):
            total += abs(np.float64(x_D[at]) - np.float64(y_D[at]))
        sums_P[pair] = -total


def absolute_of_pairs(queries: tuple[Tensor, Tensor], candidates: tuple[Tensor, Tensor]) -> Tensor:
    """Return what `ABSOLUTE` returns of pairs in float64, (P,): rows of float32, and the one of each pair."""
    (x_ND, row_P), (y_ND, other_P) = queries, candidates
    is_worth_it = _absolute_of_pairs.is_worth_compiling(row_P.numel() * y_ND.shape[1], JIT_MIN_NUMBERS)
    if is_worth_it and x_ND.device.type == "cpu":
        sums_P = np.empty(row_P.numel(), np.float64)
        _absolute_of_pairs(*(of.numpy() for of in (x_ND, row_P, y_ND, other_P)), sums_P)
        return torch.from_numpy(sums_P)
    return ABSOLUTE.paired(x_ND[row_P].double(), y_ND[other_P].double())


ABSOLUTE = ColumnDistance("absolute", lambda parts: parts[0].abs_(), 1, _absolute)
MODULUS = ColumnDistance("modulus", _modulus_of, 2, _modulus)
