"""Operators with parameters per row by compiled loops: no parameters are gathered, and each row is written once.

The fast path of `operators` where relations are dynamic, on a CPU; a property test holds the two to the same bits.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from pbgeval.jit import CompiledLoop, is_installed

VALUES_WORTH_COMPILING = 1 << 16  # of the first block for which numba is imported


def serves(x_BQD: Tensor, rel_BQ: Tensor | None) -> bool:
    """Tell whether the compiled loops take some rows: on a CPU, values next to each other, and worth it."""
    if rel_BQ is None or x_BQD.device.type != "cpu" or x_BQD.dim() != 3 or not x_BQD.numel():
        return False
    if x_BQD.stride(2) != 1 or rel_BQ.shape != x_BQD.shape[:2]:
        return False
    return (_COMPLEX.is_loaded or x_BQD.numel() >= VALUES_WORTH_COMPILING) and is_installed()


def complex_rows(x_BQD: Tensor, rel_BQ: Tensor, real_RH: Tensor, imag_RH: Tensor) -> Tensor:
    """Return each row times the complex parameters of its relation: halves of a row are real and imaginary parts."""
    product_BQD = x_BQD.new_empty(x_BQD.shape)
    rel, real, imag = (values.contiguous().numpy() for values in (rel_BQ, real_RH, imag_RH))
    _COMPLEX(_flat(x_BQD), x_BQD.stride(0), x_BQD.stride(1), rel, real, imag, product_BQD.numpy())
    return product_BQD


def _flat(x_BQD: Tensor) -> np.ndarray:
    """Return the memory of some rows from the first to the last value."""
    length = sum((size - 1) * stride for size, stride in zip(x_BQD.shape, x_BQD.stride(), strict=True)) + 1
    flat: np.ndarray = x_BQD.as_strided((length,), (1,)).numpy()
    return flat


def _complex(flat, chunk_stride, row_stride, rel_BQ, real_RH, imag_RH, product_BQD):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    half = real_RH.shape[1]
    for chunk in range(rel_BQ.shape[0]):
        for query in range(rel_BQ.shape[1]):
            start = chunk * chunk_stride + query * row_stride
            x_real_H, x_imag_H = flat[start : start + half], flat[start + half : start + 2 * half]
            real_H, imag_H = real_RH[rel_BQ[chunk, query]], imag_RH[rel_BQ[chunk, query]]
            product_D = product_BQD[chunk, query]
            for at in range(half):
                product_D[at] = x_real_H[at] * real_H[at] - x_imag_H[at] * imag_H[at]
            for at in range(half):
                product_D[half + at] = x_real_H[at] * imag_H[at] + x_imag_H[at] * real_H[at]


_COMPLEX = CompiledLoop(_complex)
