"""Rows -> sums whose every bit is the same on any hardware, for any number of rows or threads.

Elementwise products and sums of IEEE arithmetic leave no choice but the order, which is fixed here; a product and the
sum it goes into are separate operations, since a fused one rounds differently. Slower than a kernel that may choose.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from pbgeval.jit import CompiledLoop, inner_loop
from pbgeval.scoring.block_sizes import sizes_on

JIT_MIN_NUMBERS = 1 << 16  # of the first rows or pairs for which numba is imported
SIGNIFICAND = 53  # bits of a float64


def grid_bits(num_columns: int) -> int:
    """Return how many bits of its largest number a row keeps, so that sums of products are exact."""
    return (SIGNIFICAND - (num_columns - 1).bit_length()) // 2


def sum_in_order(x_ND: Tensor) -> Tensor:
    """Return the sums of the last axis: the second half is added to the first, until one number is left."""
    width = x_ND.shape[-1]
    if width == 0:
        return x_ND.new_zeros(x_ND.shape[:-1])
    while width > 1:
        half, rest = (width + 1) // 2, width // 2
        folded_ND = x_ND[..., :rest] + x_ND[..., half:width]
        if rest < half:
            folded_ND = torch.cat([folded_ND, x_ND[..., rest:half]], dim=-1)
        x_ND, width = folded_ND, half
    return x_ND[..., 0]


@inner_loop()
def _square(x_D, folded_D):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    """Do what `sum_in_order` does with the squares of a row in float64, which has columns."""
    width = x_D.size
    for at in range(width):
        folded_D[at] = np.float64(x_D[at]) * np.float64(x_D[at])
    while width > 1:
        half = (width + 1) // 2
        for at in range(width - half):
            folded_D[at] += folded_D[half + at]
        width = half
    return folded_D[0]


def norms_in_order(x_ND: Tensor) -> Tensor:
    """Return the Euclidean norms of the last axis."""
    return sum_in_order(x_ND.square()).sqrt()


def are_for_loops(x_ND: Tensor) -> bool:
    """Tell whether compiled loops take rows: these have columns, next to each other, on a CPU."""
    return x_ND.device.type == "cpu" and x_ND.shape[-1] > 0 and x_ND.stride(-1) == 1


def squares_in_order(x_ND: Tensor) -> Tensor:
    """Return the square of each row's length, float64."""
    if not (are_for_loops(x_ND) and _squares.is_worth_compiling(x_ND.numel(), JIT_MIN_NUMBERS)):
        return sum_in_order(x_ND.double().square())
    rows_ND = x_ND.flatten(0, -2)
    square_N = torch.empty(rows_ND.shape[0], dtype=torch.float64)
    _squares(rows_ND.numpy(), np.empty(rows_ND.shape[1], np.float64), square_N.numpy())
    return square_N.view(x_ND.shape[:-1])


@CompiledLoop
def _squares(x_ND, folded_D, square_N):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    for row in range(x_ND.shape[0]):
        square_N[row] = _square(x_ND[row], folded_D)


def directions_in_order(x_ND: Tensor) -> Tensor | None:
    """Return each row divided by its norm, float32, by a compiled loop.

    Returns:
        None where the loop does not take rows, is not worth loading, or meets a row whose norm is zero.
    """
    if not (are_for_loops(x_ND) and _directions.is_worth_compiling(x_ND.numel(), JIT_MIN_NUMBERS)):
        return None
    rows_ND = x_ND.flatten(0, -2)
    directions_ND = torch.empty(rows_ND.shape, dtype=torch.float32)
    has_all = _directions(rows_ND.numpy(), np.empty(rows_ND.shape[1], np.float64), directions_ND.numpy())
    return directions_ND.view(x_ND.shape) if has_all else None


@CompiledLoop
def _directions(x_ND, folded_D, directions_ND):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    """Do what `x_ND / norms_in_order(x_ND)` does, and round; return whether all norms are positive."""
    for row in range(x_ND.shape[0]):
        x_D, direction_D = x_ND[row], directions_ND[row]
        norm = math.sqrt(_square(x_D, folded_D))
        if not norm > 0:
            return False
        for at in range(x_D.size):
            direction_D[at] = np.float32(np.float64(x_D[at]) / norm)
    return True


def transform_in_order(x_ED: Tensor, matrix_DD: Tensor) -> Tensor:
    """Return `matrix @ x` for each row x, shape (E, D), its terms added from the first column to the last."""
    transformed_ED = x_ED.new_zeros((x_ED.shape[0], matrix_DD.shape[0]))
    columns_DD = matrix_DD.t().contiguous()
    step = sizes_on(x_ED.device).summed_rows
    for start in range(0, x_ED.shape[0], step):
        of_rows_ED = transformed_ED[start : start + step]
        for x_E, column_D in zip(x_ED[start : start + step].t().contiguous(), columns_DD, strict=True):
            of_rows_ED += x_E.unsqueeze(1) * column_D
    return transformed_ED


def means_in_order(x_ND: Tensor, offsets_E: Tensor) -> Tensor:
    """Return the mean of each run of rows, the first rows of all runs first: run i is rows offsets[i]:offsets[i + 1].

    Every run has a row.
    """
    first_E, lengths_E = offsets_E[:-1], offsets_E.diff()
    sums_ED = x_ND[first_E]
    for place in range(1, int(lengths_E.max()) if lengths_E.numel() else 0):
        longer = (lengths_E > place).nonzero().squeeze(1)
        sums_ED[longer] += x_ND[first_E[longer] + place]
    return sums_ED / lengths_E.unsqueeze(1).to(x_ND.dtype)
