"""Pairs of rows -> minus the sum over columns of how far apart they are: distances that no inner product gives.

    absolute   |x - y|                        per column               (comparator l1)
    modulus    sqrt((a - c)^2 + (b - d)^2)    per complex column       (comparator complex_l1)

Columns are added one after the other, each difference, square, root and sum being rounded by itself as IEEE says. So a
score has the same bits whatever the shape of its block, the number of threads or the device, and nothing is padded.
On a CPU compiled loops do the same where that is worth it (`compiled_distances`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from pbgeval.scoring import compiled_distances

CELLS_AT_A_TIME = 1 << 16  # so that differences and sums stay in cache; changes no number

Columns = tuple[Tensor, ...]  # buffers of one shape
AddTerm = Callable[[Tensor, Tensor, int, Columns], None]


def absolute_sums(query_BQD: Tensor, candidate_BCD: Tensor) -> Tensor:
    """Return -sum |x - y|, (B, Q, C)."""
    if compiled_distances.serves(query_BQD, candidate_BCD):
        return compiled_distances.absolute_sums(query_BQD, candidate_BCD)
    return _sums(query_BQD, candidate_BCD, query_BQD.shape[-1], 1, _add_absolute)


def modulus_sums(query_BQD: Tensor, candidate_BCD: Tensor) -> Tensor:
    """Return -sum |x - y| of complex numbers, (B, Q, C); halves of a row are real and imaginary parts."""
    if compiled_distances.serves(query_BQD, candidate_BCD):
        return compiled_distances.modulus_sums(query_BQD, candidate_BCD)
    return _sums(query_BQD, candidate_BCD, query_BQD.shape[-1] // 2, 2, _add_modulus)


def _add_absolute(query_BQD: Tensor, candidate_BCD: Tensor, column: int, buffers: Columns) -> None:
    sum_BQC, term_BQC = buffers
    torch.sub(query_BQD[:, :, column].unsqueeze(2), candidate_BCD[:, :, column].unsqueeze(1), out=term_BQC)
    sum_BQC.add_(term_BQC.abs_())


def _add_modulus(query_BQD: Tensor, candidate_BCD: Tensor, column: int, buffers: Columns) -> None:
    sum_BQC, real_BQC, imag_BQC = buffers
    half = query_BQD.shape[-1] // 2
    for at, out in ((column, real_BQC), (half + column, imag_BQC)):
        torch.sub(query_BQD[:, :, at].unsqueeze(2), candidate_BCD[:, :, at].unsqueeze(1), out=out)
        out.mul_(out)
    sum_BQC.add_(_root(real_BQC.add_(imag_BQC)))


def _root(square_BQC: Tensor) -> Tensor:
    """Take the roots in place, rounded as IEEE says, which those of torch on a CPU are not (MKL's are 1 ulp off)."""
    if square_BQC.device.type != "cpu":
        return square_BQC.sqrt_()
    np.sqrt(square_BQC.numpy(), out=square_BQC.numpy())
    return square_BQC


def _sums(query_BQD: Tensor, candidate_BCD: Tensor, num_terms: int, num_buffers: int, add: AddTerm) -> Tensor:
    """Add up the terms of all cells, some batches or some queries of one batch at a time."""
    num_products, num_queries = query_BQD.shape[:2]
    num_candidates = candidate_BCD.shape[1]
    scores_BQC = query_BQD.new_zeros((num_products, num_queries, num_candidates))
    if not scores_BQC.numel():
        return scores_BQC
    batches = max(1, CELLS_AT_A_TIME // (num_queries * num_candidates))
    rows = max(1, CELLS_AT_A_TIME // num_candidates)
    for batch in range(0, num_products, batches):
        for row in range(0, num_queries, rows):
            sum_BQC = scores_BQC[batch : batch + batches, row : row + rows]
            buffers = (sum_BQC, *(torch.empty_like(sum_BQC) for _ in range(num_buffers)))
            queries = query_BQD[batch : batch + batches, row : row + rows]
            candidates = candidate_BCD[batch : batch + batches]
            for column in range(num_terms):
                add(queries, candidates, column, buffers)
    return scores_BQC.neg_()
