"""Rows -> sums whose every bit is the same on any hardware, for any number of rows or threads.

Elementwise products and sums of IEEE arithmetic leave no choice but the order, which is fixed here; a product and the
sum it goes into are separate operations, since a fused one rounds differently. Slower than a kernel that may choose.
"""

from __future__ import annotations

from torch import Tensor

from pbgeval.scoring.block_sizes import sizes_on


def sum_in_order(x_ND: Tensor) -> Tensor:
    """Return the sums of the last axis: the second half is added to the first, until one number is left."""
    width = x_ND.shape[-1]
    if width == 0:
        return x_ND.new_zeros(x_ND.shape[:-1])
    while width > 1:
        half = (width + 1) // 2
        folded_ND = x_ND[..., :half].clone()
        folded_ND[..., : width - half] += x_ND[..., half:width]
        x_ND, width = folded_ND, half
    return x_ND[..., 0]


def norms_in_order(x_ND: Tensor) -> Tensor:
    """Return the Euclidean norms of the last axis."""
    return sum_in_order(x_ND.square()).sqrt()


def transform_in_order(x_ED: Tensor, matrix_DD: Tensor) -> Tensor:
    """Return `matrix @ x` for each row x, shape (E, D), its terms added from the first column to the last."""
    transformed_ED = x_ED.new_zeros((x_ED.shape[0], matrix_DD.shape[0]))
    columns_DD = matrix_DD.t().contiguous()
    step = sizes_on(x_ED.device).ordered_rows
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
