"""Rows and columns of vectors -> all inner products, with the same last bits whatever the shape.

On a GPU, kernels of our own multiply (`device_scores`). The rest is for a CPU.

Matrix kernels take other paths for small shapes, and each thread's share of the columns counts as a shape: then
identical candidates differ in their last bits and ties are lost. They also cut long inner dimensions into blocks whose
length depends on the shape. What was found in MKL (inner dimension 4 to 800, up to 2048 x 4096, 1 to 4 threads):

- Inner dimensions up to 256 in float32 and 192 in float64 are never cut, so longer ones are cut here, always alike.
- A last cut of a single dimension is avoided: see `longest_inner`.
- With AVX-512, all float32 shapes from 16 x 16 up agree when each thread has whole products, and multiples of 16
  when there are fewer; float64 shapes agree where they are multiples of 48, and at no smaller grain that was tried.
- With AVX2, multiples of 96 or 192 agree, for one product and a power of two of threads.

So every product is padded to such a shape, here and nowhere else; `self_check` finds out which rule this machine needs.
"""

from __future__ import annotations

import functools
import itertools
from enum import Enum

import torch
import torch.nn.functional as F
from torch import Tensor

from pbgeval.scoring import device_scores

INNER = {torch.float64: 192}  # longest inner dimension that kernels add up in one go, whatever the shape
FLOAT32_INNER = 256


class BlockRule(Enum):
    """The shapes for which this machine's kernels agree, from the cheapest rule on.

    The value names it in reports.
    """

    FINE = "fine"  # GRAIN, or FLOAT64_GRAIN
    COARSE = "multiples of 96"
    COARSER = "multiples of 192"
    ONE_SHAPE = "tiles of one shape"  # TILE x TILE, for one thread: slow, and right on any kernel


GRAIN = 16  # FINE: rows and columns are padded to at least this, or to a multiple of it
FLOAT64_GRAIN = 48  # FINE: float64 products are padded to a multiple of this, however many there are
TILE = 192
MULTIPLES = {BlockRule.COARSE: 96, BlockRule.COARSER: 192, BlockRule.ONE_SHAPE: TILE}


@functools.cache
def _rules_of_process() -> dict[torch.dtype, BlockRule]:
    """Return the rules that the self-check has found, by type of number.

    Each process has one set, as it has one number of threads for torch. Products are computed in threads, by operators
    and comparators that know of no run, so a rule cannot be handed to them.
    """
    return {}


def use_block_rule(rule: BlockRule, dtype: torch.dtype) -> None:
    """Compute every product of this process by a rule; `self_check` calls it with the cheapest one that holds."""
    _rules_of_process()[dtype] = rule


def block_rule(dtype: torch.dtype) -> BlockRule:
    """Return the rule that products follow."""
    return _rules_of_process().get(dtype, BlockRule.FINE)


def padded_size(size: int, num_products: int, dtype: torch.dtype = torch.float32) -> int:
    """Return the number of rows (or columns) that a product of this size is padded to."""
    multiple = MULTIPLES.get(block_rule(dtype))
    if multiple is None:
        if dtype is not torch.float64 and num_products >= _products_for_all_threads():
            return max(size, GRAIN)
        multiple = FLOAT64_GRAIN if dtype is torch.float64 else GRAIN
    return max(-(-size // multiple), 1) * multiple


def _products_for_all_threads() -> int:
    """Return from how many products at once on each thread has whole ones: then their shape is not cut."""
    return 2 * max(torch.get_num_threads(), 1)


def _pad_rows(x_ND: Tensor, num_rows: int) -> Tensor:
    missing = num_rows - x_ND.shape[-2]
    return F.pad(x_ND, (0, 0, 0, missing)) if missing else x_ND


def padded_rows(x_ND: Tensor) -> Tensor:
    """Pad rows with zeros as a single `product` would: then it need not copy them."""
    return _pad_rows(x_ND, padded_size(x_ND.shape[0], 1, x_ND.dtype))


def size_in_chunks(size: int, like: Tensor) -> int:
    """Return the rows (or columns) that a `product` of many chunks pads each to."""
    return padded_size(size, _products_for_all_threads(), like.dtype)


def padded_in_chunks(x_ND: Tensor) -> Tensor:
    """Return rows and as many of zeros below them as a `product` of many chunks would add to each."""
    return _pad_rows(x_ND, size_in_chunks(x_ND.shape[0], x_ND))


def product(query_BQD: Tensor, candidate_BCD: Tensor) -> Tensor:
    """Return the inner products (B, Q, C) of B batches of queries and candidates.

    The value of a cell depends on its two vectors alone: not on B, Q, C, the offset or the number of threads.
    """
    if device_scores.supports(query_BQD.device):
        return device_scores.scores(query_BQD, candidate_BCD)
    num_products, num_queries = query_BQD.shape[:2]
    num_candidates = candidate_BCD.shape[1]
    if num_products == 0 or num_queries == 0 or num_candidates == 0:
        return query_BQD.new_zeros((num_products, num_queries, num_candidates))
    dtype = query_BQD.dtype
    padded_query_BQD = _pad_rows(query_BQD, padded_size(num_queries, num_products, dtype))
    padded_candidate_BCD = _pad_rows(candidate_BCD, padded_size(num_candidates, num_products, dtype))
    rule = block_rule(dtype)
    if rule is BlockRule.ONE_SHAPE:
        scores_BQC = _tiled(padded_query_BQD, padded_candidate_BCD)
    elif rule is BlockRule.FINE or num_products == 1 or num_products >= _products_for_all_threads():
        scores_BQC = _multiplied(padded_query_BQD, padded_candidate_BCD)
    else:
        pairs = zip(torch.split(padded_query_BQD, 1), torch.split(padded_candidate_BCD, 1), strict=True)
        scores_BQC = torch.cat([_multiplied(query_1QD, candidate_1CD) for query_1QD, candidate_1CD in pairs])
    return scores_BQC[:, :num_queries, :num_candidates]


def longest_inner(dimension: int, dtype: torch.dtype = torch.float32) -> int:
    """Return the length of the cuts in which products of an inner dimension are added up.

    No cut has length 1 unless the dimension has: small blocks of such are multiplied by other loops than large ones (in
    float32 by torch's own), which round otherwise when they add to the cuts before.
    """
    longest = INNER.get(dtype, FLOAT32_INNER)
    return next(inner for inner in range(longest, 0, -1) if dimension % inner != 1 or dimension == 1)


def _multiplied(query_BQD: Tensor, candidate_BCD: Tensor) -> Tensor:
    """Add up the inner dimension in cuts of one length: kernels would choose another for each shape."""
    inner = longest_inner(query_BQD.shape[2], query_BQD.dtype)
    scores_BQC = torch.bmm(query_BQD[..., :inner], candidate_BCD[..., :inner].transpose(1, 2))
    for start in range(inner, query_BQD.shape[2], inner):
        cut = slice(start, start + inner)
        scores_BQC.baddbmm_(query_BQD[..., cut], candidate_BCD[..., cut].transpose(1, 2))
    return scores_BQC


def _tiled(query_BQD: Tensor, candidate_BCD: Tensor) -> Tensor:
    """Return the products of rows that fill tiles, one tile at a time."""
    scores_BQC = query_BQD.new_empty((*query_BQD.shape[:2], candidate_BCD.shape[1]))
    starts = (range(scores_BQC.shape[0]), *(range(0, size, TILE) for size in scores_BQC.shape[1:]))
    for batch, row, column in itertools.product(*starts):
        one, rows, columns = slice(batch, batch + 1), slice(row, row + TILE), slice(column, column + TILE)
        tiles = query_BQD[one, rows].contiguous(), candidate_BCD[one, columns].contiguous()
        scores_BQC[one, rows, columns] = _multiplied(*tiles)
    return scores_BQC


def paired_product(query_QD: Tensor, candidate_QD: Tensor) -> Tensor:
    """Return the inner product (Q,) of each query with its own candidate, with the bits that `product` gives.

    On a CPU the pairs are the diagonals of small products: an elementwise sum would round differently.
    """
    num_queries, dimension = query_QD.shape
    if device_scores.supports(query_QD.device):
        every_Q = torch.arange(num_queries, device=query_QD.device)
        return device_scores.pairs(query_QD, every_Q, candidate_QD, every_Q)
    grain = padded_size(1, 2, query_QD.dtype)
    num_products = max(-(-num_queries // grain), 1)
    query_BGD, candidate_BGD = (
        _pad_rows(x_QD, num_products * grain).view(num_products, grain, dimension) for x_QD in (query_QD, candidate_QD)
    )
    return product(query_BGD, candidate_BGD).diagonal(dim1=1, dim2=2).reshape(-1)[:num_queries]


def transform(x_ED: Tensor, matrix_DD: Tensor) -> Tensor:
    """Return `matrix @ x` for each row x, shape (E, D), with the same bits for any number of rows."""
    return product(x_ED.unsqueeze(0), matrix_DD.unsqueeze(0))[0]
