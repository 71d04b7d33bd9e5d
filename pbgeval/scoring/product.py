"""Rows and columns of vectors -> all inner products, with the same last bits whatever the shape.

Matrix kernels take other paths for small shapes, and each thread's share of the columns counts as a shape: then
identical candidates differ in their last bits and ties are lost. In MKL (inner dimension 4 to 401, rows and columns
1 to 130, 1 to 4 threads) all float32 shapes from 16 x 16 up agree when several products are batched, and all multiples
of 16 when there is one; float64 shapes agree where they are multiples of 48, and at no smaller grain that was tried.
So every product is padded to such a shape, here and nowhere else.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

GRAIN = 16  # rows and columns are padded to at least this, or to a multiple of it
FLOAT64_GRAIN = 48  # float64 products are padded to a multiple of this, however many there are
TILE = 192  # rows and columns of the one block shape, where the self-check failed
_one_block_shape = False


def use_one_block_shape() -> None:
    """Compute every product of this process in tiles of one shape: slow, and right on any kernel.

    For one thread; `self_check` calls it where shapes disagree.
    """
    global _one_block_shape
    _one_block_shape = True


def padded_size(size: int, num_products: int, dtype: torch.dtype = torch.float32) -> int:
    """Return the number of rows (or columns) that a product of this size is padded to."""
    if dtype is torch.float64:
        return max(-(-size // FLOAT64_GRAIN), 1) * FLOAT64_GRAIN
    if num_products > 1:
        return max(size, GRAIN)
    return max(-(-size // GRAIN), 1) * GRAIN


def _pad_rows(x_BND: Tensor, num_rows: int) -> Tensor:
    missing = num_rows - x_BND.shape[1]
    return F.pad(x_BND, (0, 0, 0, missing)) if missing else x_BND


def padded_rows(x_ND: Tensor) -> Tensor:
    """Return rows and as many of zeros below them as a single `product` would add: then it need not copy them."""
    return _pad_rows(x_ND.unsqueeze(0), padded_size(x_ND.shape[0], 1, x_ND.dtype))[0]


def product(query_BQD: Tensor, candidate_BCD: Tensor) -> Tensor:
    """Return the inner products (B, Q, C) of B batches of queries and candidates.

    The value of a cell depends on its two vectors alone: not on B, Q, C, the offset or the number of threads.
    """
    num_products, num_queries = query_BQD.shape[:2]
    num_candidates = candidate_BCD.shape[1]
    if num_products == 0 or num_queries == 0 or num_candidates == 0:
        return query_BQD.new_zeros((num_products, num_queries, num_candidates))
    if _one_block_shape:
        return _tiled_product(query_BQD, candidate_BCD)
    rows = padded_size(num_queries, num_products, query_BQD.dtype)
    columns = padded_size(num_candidates, num_products, query_BQD.dtype)
    scores_BQC = torch.bmm(_pad_rows(query_BQD, rows), _pad_rows(candidate_BCD, columns).transpose(1, 2))
    return scores_BQC[:, :num_queries, :num_candidates]


def _tiled_product(query_BQD: Tensor, candidate_BCD: Tensor) -> Tensor:
    num_products, num_queries = query_BQD.shape[:2]
    num_candidates = candidate_BCD.shape[1]
    scores_BQC = query_BQD.new_empty((num_products, num_queries, num_candidates))
    for batch in range(num_products):
        for row in range(0, num_queries, TILE):
            query_QD = query_BQD[batch, row : row + TILE]
            for column in range(0, num_candidates, TILE):
                candidate_CD = candidate_BCD[batch, column : column + TILE]
                tile_QC = torch.mm(
                    F.pad(query_QD, (0, 0, 0, TILE - query_QD.shape[0])),
                    F.pad(candidate_CD, (0, 0, 0, TILE - candidate_CD.shape[0])).t(),
                )
                scores_BQC[batch, row : row + TILE, column : column + TILE] = tile_QC[
                    : query_QD.shape[0], : candidate_CD.shape[0]
                ]
    return scores_BQC


def paired_product(query_QD: Tensor, candidate_QD: Tensor) -> Tensor:
    """Return the inner product (Q,) of each query with its own candidate, with the bits that `product` gives.

    The pairs are the diagonals of 16 x 16 products: an elementwise sum would round differently.
    """
    num_queries, dimension = query_QD.shape
    num_products = max(-(-num_queries // GRAIN), 1)
    missing = num_products * GRAIN - num_queries
    query_BGD, candidate_BGD = (
        F.pad(x_QD, (0, 0, 0, missing)).view(num_products, GRAIN, dimension) for x_QD in (query_QD, candidate_QD)
    )
    scores_BGG = product(query_BGD, candidate_BGD)
    return scores_BGG.diagonal(dim1=1, dim2=2).reshape(-1)[:num_queries]


def transform(x_ED: Tensor, matrix_FD: Tensor) -> Tensor:
    """Return `matrix @ x` for each row x, shape (E, F), with the same bits for any number of rows."""
    return product(x_ED.unsqueeze(0), matrix_FD.unsqueeze(0))[0]
