"""Distances of pairs of rows by compiled loops: the fast path of `distances` on a CPU, with the same bits."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pbgeval.jit import CompiledLoop, is_installed

TERMS_WORTH_COMPILING = 1 << 22  # of the first block for which numba is imported


def serves(query_BQD: Tensor, candidate_BCD: Tensor) -> bool:
    """Tell whether the compiled loops take some rows: on a CPU, and worth it."""
    if query_BQD.device.type != "cpu" or query_BQD.dtype not in (torch.float32, torch.float64):
        return False
    num_terms = query_BQD.numel() * candidate_BCD.shape[1]
    return bool(num_terms) and (_ABSOLUTE.is_loaded or num_terms >= TERMS_WORTH_COMPILING) and is_installed()


def absolute_sums(query_BQD: Tensor, candidate_BCD: Tensor) -> Tensor:
    """Return -sum |x - y|, (B, Q, C)."""
    return _sums(_ABSOLUTE, query_BQD, candidate_BCD)


def modulus_sums(query_BQD: Tensor, candidate_BCD: Tensor) -> Tensor:
    """Return -sum |x - y| of complex numbers, (B, Q, C)."""
    return _sums(_MODULUS, query_BQD, candidate_BCD)


def _sums(loop: CompiledLoop, query_BQD: Tensor, candidate_BCD: Tensor) -> Tensor:
    scores_BQC = query_BQD.new_zeros((*query_BQD.shape[:2], candidate_BCD.shape[1]))
    of_column_BDC = candidate_BCD.transpose(1, 2).contiguous()  # so that a column's candidates are next to each other
    loop(query_BQD.contiguous().numpy(), of_column_BDC.numpy(), scores_BQC.numpy())
    return scores_BQC.neg_()


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


_ABSOLUTE = CompiledLoop(_absolute)
_MODULUS = CompiledLoop(_modulus)
