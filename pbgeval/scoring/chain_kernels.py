"""The kernels of `device_scores`, in Triton. Each computes a score as one chain of terms, in one order of columns.

Imported only where they are used: Triton decides when it sees a kernel whether it compiles or interprets it.

    score_tiles    a tile of scores -> memory
    count_tiles    a tile of scores -> how many are better than each row's true score, and how many tie with it
    score_pairs    a thread per pair of rows -> its score
    compare_pairs  the same -> whether it is above the true score of a query, equal or below

What a column adds is TERM: `dot` and `fma` the product, fused with the sum, by Triton's dot or spelled out; `absolute`
|x - y|; `modulus` |x - y| of complex numbers, whose imaginary parts are in the second half of a row. Of the last two a
score is minus the sum. They are compiled without fusion: each difference, square, root and sum is rounded by itself.

Letters: M rows and N columns of a tile, K a step through the columns of the vectors, P pairs. What is handed in:

    query (.., D)                 rows next to each other, D = num_steps * TILE_DEPTH columns, zeros behind the vectors
    candidate (.., D, L)          transposed, L = num_aligned * 16 candidates: a tile's columns lie together, so that
                                  neither loads nor shared memory are read in pieces
    num_rows, num_columns         of the block; what lies beyond is read as something, and not used
    num_terms                     of a score that is no product

A program computes one tile. Whatever it needs beside the products is loaded after them: registers are short until then.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pbgeval.scoring.kernels import kernel

ALIGNMENT = tl.constexpr(16)  # candidates are padded to a multiple, so that loads are aligned
HALF = tl.constexpr(16)  # bits of an int32 that hold the number that tie
LOW_BITS = tl.constexpr((1 << 16) - 1)
NOWHERE = tl.constexpr(-1)  # of a true entity that is none of the candidates


@kernel()
def score_tiles(
    query_ptr,
    candidate_ptr,
    score_ptr,
    num_rows,
    num_columns,
    num_steps,
    num_aligned,
    num_terms,
    TERM: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
    TILE_DEPTH: tl.constexpr,
):
    """Write the scores (B, rows, columns) of B blocks, whose tiles follow each other along the grid."""
    row_tiles, column_tiles = tl.cdiv(num_rows, TILE_ROWS), tl.cdiv(num_columns, TILE_COLUMNS)
    block = (tl.program_id(0) // (row_tiles * column_tiles)).to(tl.int64)
    tile = tl.program_id(0) % (row_tiles * column_tiles)
    row_M = tile % row_tiles * TILE_ROWS + tl.arange(0, TILE_ROWS)
    first_column = tile // row_tiles * TILE_COLUMNS
    query_ptr += block * num_rows * (num_steps * TILE_DEPTH)
    candidate_ptr += block * (num_steps * TILE_DEPTH) * (num_aligned * ALIGNMENT)
    score_MN = _chains(
        query_ptr,
        tl.minimum(row_M, num_rows - 1),
        candidate_ptr,
        first_column,
        num_steps,
        num_aligned,
        num_terms,
        TERM,
        TILE_COLUMNS,
        TILE_DEPTH,
    )
    column_N = first_column + tl.arange(0, TILE_COLUMNS)
    at_MN = (block * num_rows + row_M)[:, None] * num_columns + column_N[None, :]
    tl.store(score_ptr + at_MN, score_MN, mask=(row_M < num_rows)[:, None] & (column_N < num_columns)[None, :])


@kernel("better_ptr", "tied_ptr")
def count_tiles(
    query_ptr,
    row_ptr,
    true_ptr,
    kernel_ptr,
    hash_ptr,
    own_ptr,
    candidate_ptr,
    candidate_hash_ptr,
    better_ptr,
    tied_ptr,
    num_rows,
    num_columns,
    num_steps,
    num_aligned,
    num_terms,
    TERM: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
    TILE_DEPTH: tl.constexpr,
):
    """Add what a tile finds to the counts (rows) of better and tied candidates, int32.

    Of each row: which of `query` it is, the score that counts of its true entity, that entity's score by these kernels,
    the hash of its vector, and its column. A candidate with that score and that hash is a duplicate and ties; the true
    entity itself does not compete.
    """
    row_tiles = tl.cdiv(num_rows, TILE_ROWS)
    at_M = tl.program_id(0) % row_tiles * TILE_ROWS + tl.arange(0, TILE_ROWS)
    first_column = tl.program_id(0) // row_tiles * TILE_COLUMNS
    is_row_M = at_M < num_rows
    score_MN = _chains(
        query_ptr,
        tl.load(row_ptr + at_M, mask=is_row_M, other=0),
        candidate_ptr,
        first_column,
        num_steps,
        num_aligned,
        num_terms,
        TERM,
        TILE_COLUMNS,
        TILE_DEPTH,
    )
    column_N = first_column + tl.arange(0, TILE_COLUMNS)
    is_column_N = column_N < num_columns
    true_M = tl.load(true_ptr + at_M, mask=is_row_M, other=0.0)
    kernel_M = tl.load(kernel_ptr + at_M, mask=is_row_M, other=0.0)
    hash_M = tl.load(hash_ptr + at_M, mask=is_row_M, other=0)
    own_M = tl.load(own_ptr + at_M, mask=is_row_M, other=NOWHERE)
    hash_N = tl.load(candidate_hash_ptr + column_N, mask=is_column_N, other=0)
    duplicate_MN = (score_MN == kernel_M[:, None]) & (hash_N[None, :] == hash_M[:, None])
    better_MN = (score_MN > true_M[:, None]) & ~duplicate_MN
    tied_MN = (score_MN == true_M[:, None]) | duplicate_MN
    competes_MN = is_column_N[None, :] & (column_N[None, :] != own_M[:, None])
    both_MN = better_MN.to(tl.int32) | (tied_MN.to(tl.int32) << HALF)
    both_M = tl.sum(tl.where(competes_MN, both_MN, 0), 1)
    tl.atomic_add(better_ptr + at_M, both_M & LOW_BITS, mask=is_row_M)
    tl.atomic_add(tied_ptr + at_M, both_M >> HALF, mask=is_row_M)


@triton.jit
def _chains(
    query_ptr,
    row_M,
    candidate_ptr,
    first_column,
    num_steps,
    num_aligned,
    num_terms,
    TERM: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
    TILE_DEPTH: tl.constexpr,
):
    """Return the scores of some rows with a tile's columns.

    Triton's dot of float32 is the same chain, with its operands in shared memory; whether it is so here, a self-check
    finds out. Where it is not, and in float64, whose dot would take tensor cores, the chain is spelled out.
    """
    width, length = num_steps * TILE_DEPTH, num_aligned.to(tl.int64) * ALIGNMENT
    query_M = query_ptr + row_M.to(tl.int64) * width  # beyond 2^31 numbers
    column_N = first_column + tl.arange(0, TILE_COLUMNS)
    is_column_N = column_N < length
    score_MN = tl.zeros((row_M.shape[0], TILE_COLUMNS), query_ptr.dtype.element_ty)
    if TERM == "dot":
        for step in range(num_steps):
            k_K = step * TILE_DEPTH + tl.arange(0, TILE_DEPTH)
            query_MK = tl.load(query_M[:, None] + k_K[None, :])
            candidate_KN = tl.load(
                candidate_ptr + k_K[:, None] * length + column_N[None, :], mask=is_column_N[None, :], other=0.0
            )
            score_MN = tl.dot(query_MK, candidate_KN, score_MN, input_precision="ieee")
    elif TERM == "fma":
        for k in range(width):
            candidate_N = tl.load(candidate_ptr + k * length + column_N, mask=is_column_N, other=0.0)
            query_MN, candidate_MN = tl.broadcast(tl.load(query_M + k)[:, None], candidate_N[None, :])
            score_MN = tl.fma(query_MN, candidate_MN, score_MN)
    else:
        candidate_ptr += column_N
        for k in range(num_terms):
            candidate_N = tl.load(candidate_ptr + k * length, mask=is_column_N, other=0.0)
            gap_MN = tl.load(query_M + k)[:, None] - candidate_N[None, :]
            if TERM == "modulus":
                candidate_N = tl.load(candidate_ptr + (num_terms + k) * length, mask=is_column_N, other=0.0)
                score_MN += _modulus(gap_MN, tl.load(query_M + num_terms + k)[:, None] - candidate_N[None, :])
            else:
                score_MN += tl.abs(gap_MN)
        score_MN *= -1.0
    return score_MN


@triton.jit
def _modulus(real, imag):
    square = real * real + imag * imag
    return tl.sqrt_rn(square) if square.dtype == tl.float32 else tl.sqrt(square)


@kernel("query_ptr", "row_ptr", "candidate_ptr", "column_ptr", "score_ptr")
def score_pairs(
    query_ptr,
    row_ptr,
    candidate_ptr,
    column_ptr,
    score_ptr,
    num_pairs,
    dimension,
    num_steps,
    TERM: tl.constexpr,
    PAIRS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Write the score of each pair (row of `query`, row of `candidate`); rows have `dimension`, as they come."""
    at_P = tl.program_id(0).to(tl.int64) * PAIRS + tl.arange(0, PAIRS)
    is_pair_P = at_P < num_pairs
    row_P = tl.load(row_ptr + at_P, mask=is_pair_P, other=0)
    column_P = tl.load(column_ptr + at_P, mask=is_pair_P, other=0)
    score_P = _pairs(query_ptr, row_P, candidate_ptr, column_P, is_pair_P, dimension, num_steps, TERM, DEPTH)
    tl.store(score_ptr + at_P, score_P, mask=is_pair_P)


@kernel("row_ptr", "true_ptr", "kernel_ptr", "hash_ptr", "at_ptr", "column_ptr")
def compare_pairs(
    query_ptr,
    row_ptr,
    true_ptr,
    kernel_ptr,
    hash_ptr,
    candidate_ptr,
    candidate_hash_ptr,
    at_ptr,
    column_ptr,
    sign_ptr,
    num_pairs,
    dimension,
    num_steps,
    TERM: tl.constexpr,
    PAIRS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Write int8 of each pair (query, candidate): 1 if it is better than the query's true score, 0 if it ties, else -1.

    What is known of each query is that of `count_tiles`.
    """
    place_P = tl.program_id(0).to(tl.int64) * PAIRS + tl.arange(0, PAIRS)
    is_pair_P = place_P < num_pairs
    at_P = tl.load(at_ptr + place_P, mask=is_pair_P, other=0)
    column_P = tl.load(column_ptr + place_P, mask=is_pair_P, other=0)
    row_P = tl.load(row_ptr + at_P, mask=is_pair_P, other=0)
    score_P = _pairs(query_ptr, row_P, candidate_ptr, column_P, is_pair_P, dimension, num_steps, TERM, DEPTH)
    true_P = tl.load(true_ptr + at_P, mask=is_pair_P, other=0.0)
    duplicate_P = score_P == tl.load(kernel_ptr + at_P, mask=is_pair_P, other=0.0)
    hash_P = tl.load(candidate_hash_ptr + column_P, mask=is_pair_P, other=0)
    duplicate_P &= hash_P == tl.load(hash_ptr + at_P, mask=is_pair_P, other=0)
    sign_P = (score_P > true_P).to(tl.int8) - (score_P < true_P).to(tl.int8)
    tl.store(sign_ptr + place_P, tl.where(duplicate_P, 0, sign_P).to(tl.int8), mask=is_pair_P)


@triton.jit
def _pairs(
    query_ptr,
    row_P,
    candidate_ptr,
    column_P,
    is_pair_P,
    dimension,
    num_steps,
    TERM: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Return the score of each pair of rows."""
    query_P = query_ptr + row_P.to(tl.int64) * dimension
    candidate_P = candidate_ptr + column_P.to(tl.int64) * dimension
    num_terms = dimension // 2 if TERM == "modulus" else dimension
    score_P = tl.zeros((row_P.shape[0],), query_ptr.dtype.element_ty)
    for step in range(num_steps):
        for at in tl.static_range(DEPTH):
            k = step * DEPTH + at
            is_number_P = is_pair_P & (k < num_terms)  # as zeros behind the vectors would be
            x_P = tl.load(query_P + k, mask=is_number_P, other=0.0)
            y_P = tl.load(candidate_P + k, mask=is_number_P, other=0.0)
            if TERM == "fma":
                score_P = tl.fma(x_P, y_P, score_P)
            elif TERM == "modulus":
                u_P = tl.load(query_P + num_terms + k, mask=is_number_P, other=0.0)
                v_P = tl.load(candidate_P + num_terms + k, mask=is_number_P, other=0.0)
                score_P += _modulus(x_P - y_P, u_P - v_P)
            else:
                score_P += tl.abs(x_P - y_P)
    return score_P if TERM == "fma" else score_P * -1.0
