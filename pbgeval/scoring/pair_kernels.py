"""The kernels of `device_pairs`, in Triton: rows and pairs of rows in float64, for exact ranks.

Imported only where they are used: Triton decides when it sees a kernel whether it compiles or interprets it.

    describe_rows   rows -> hashes, lengths, squared lengths
    score_exactly   pairs of prepared rows -> values on grids, scores with bounds, or their order beside a true score

Letters: M rows and N columns of a program, P pairs, of which each thread has one.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pbgeval.scoring.kernels import kernel

HALF_WORD = tl.constexpr(32)
LOW_WORD = tl.constexpr((1 << 32) - 1)
SIGNIFICAND = tl.constexpr(52)  # bits of a float64
ONE = tl.constexpr(1023)  # the exponent of 1.0
ROUNDS = tl.constexpr(1.5 * 2.0**52)  # added and taken away, it rounds to an integer, to the even one of two
LENGTH_SLACK = tl.constexpr(1.0 + 1e-9)  # covers roundings of a length
BOUND_SLACK = tl.constexpr(1.0 + 2.0**-40)  # and of a bound
OPEN = tl.constexpr(2)  # the sign of a pair that is left open


@kernel("row_ptr")
def describe_rows(
    row_ptr,
    factor_ptr,
    hash_ptr,
    norm_ptr,
    square_ptr,
    num_rows,
    stride,
    num_columns,
    num_squared,
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
):
    """Write of each row of float32 its hash, at least its length, and the squared length of its first columns.

    A hash is an inner product of words of two numbers each with `factor`, modulo 2^64, in which 0.0 and -0.0 are equal.
    """
    at_M = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row_M = at_M < num_rows
    row_M = row_ptr + at_M.to(tl.int64) * stride
    hash_M = tl.zeros((ROWS,), tl.int64)
    norm_M = tl.zeros((ROWS,), tl.float64)
    square_M = tl.zeros((ROWS,), tl.float64)
    for start in range(0, num_columns, 2 * WORDS):
        column_N = start + 2 * tl.arange(0, WORDS)
        is_first_MN = is_row_M[:, None] & (column_N < num_columns)[None, :]
        is_second_MN = is_row_M[:, None] & (column_N + 1 < num_columns)[None, :]
        first_MN = tl.load(row_M[:, None] + column_N[None, :], mask=is_first_MN, other=0.0)
        second_MN = tl.load(row_M[:, None] + (column_N + 1)[None, :], mask=is_second_MN, other=0.0)
        first_MN, second_MN = tl.where(first_MN == 0, 0.0, first_MN), tl.where(second_MN == 0, 0.0, second_MN)
        low_MN = first_MN.to(tl.int32, bitcast=True).to(tl.int64) & LOW_WORD
        word_MN = (second_MN.to(tl.int32, bitcast=True).to(tl.int64) << HALF_WORD) | low_MN
        word_MN = word_MN ^ (word_MN >> 32)
        word_MN = word_MN ^ (word_MN >> 16)
        factor_N = tl.load(factor_ptr + start // 2 + tl.arange(0, WORDS), mask=column_N < num_columns, other=0)
        hash_M += tl.sum(word_MN * factor_N[None, :], 1)
        first_MN, second_MN = first_MN.to(tl.float64), second_MN.to(tl.float64)
        norm_M += tl.sum(first_MN * first_MN + second_MN * second_MN, 1)
        first_MN = tl.where((column_N < num_squared)[None, :], first_MN, 0.0)
        second_MN = tl.where((column_N + 1 < num_squared)[None, :], second_MN, 0.0)
        square_M += tl.sum(first_MN * first_MN + second_MN * second_MN, 1)
    tl.store(hash_ptr + at_M, hash_M, mask=is_row_M)
    tl.store(norm_ptr + at_M, tl.sqrt(norm_M) * tl.full([ROWS], LENGTH_SLACK, tl.float64), mask=is_row_M)
    tl.store(square_ptr + at_M, square_M, mask=is_row_M)


@kernel("query_ptr", "row_ptr", "candidate_ptr", "column_ptr", "true_ptr", "true_error_ptr", "true_row_ptr")
def score_exactly(
    query_ptr,
    row_ptr,
    candidate_ptr,
    column_ptr,
    true_ptr,
    true_error_ptr,
    true_row_ptr,
    value_ptr,
    score_ptr,
    error_ptr,
    sign_ptr,
    num_open_ptr,
    number_ptr,
    num_pairs,
    query_stride,
    candidate_stride,
    true_stride,
    rows_per_grid,
    num_listed,
    num_columns,
    bits,
    INDEXED: tl.constexpr,
    KIND: tl.constexpr,
    IS_DISTANCE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    UNIT: tl.constexpr,
    PAIRS: tl.constexpr,
):
    """Score each pair of prepared rows: row `row` of queries with row `column` of its grid's candidates.

    There are `num_pairs`, or fewer if a `number` says so. Where they are not indexed, rows are those at their place. A
    query has `num_columns` factors and a constant. What is written:

        values   to `value`: the product of rows on grids of `bits` bits, which has the same bits on any hardware
        true     the same, for candidates at their place; and to `score` and `error`: the score in float64, without the
                 constant, and how far at most it is off
        signs    to `sign`: whether that is above the true score of query `row` (1), equal (0) or below (-1), or `OPEN`;
                 a candidate with the row of the true entity is equal. The number of the last is added to `num_open`.
    """
    place_P = tl.program_id(0).to(tl.int64) * PAIRS + tl.arange(0, PAIRS)
    is_pair_P = place_P < num_pairs
    if number_ptr is not None:
        if tl.program_id(0).to(tl.int64) * PAIRS >= tl.load(number_ptr):
            return
        is_pair_P &= place_P < tl.load(number_ptr)
    row_P, column_P = place_P, place_P
    if INDEXED:
        row_P = tl.load(row_ptr + place_P, mask=is_pair_P, other=0)
        if KIND != "true":
            column_P = tl.load(column_ptr + place_P, mask=is_pair_P, other=0)
            column_P += row_P // rows_per_grid * num_listed
    query_P, candidate_P = query_ptr + row_P * query_stride, candidate_ptr + column_P * candidate_stride
    size = num_columns - 1 if IS_DISTANCE and HAS_BIAS else num_columns
    added_P = tl.zeros((PAIRS,), tl.float64)
    if IS_DISTANCE and HAS_BIAS:
        weight_P = tl.load(query_P + size, mask=is_pair_P, other=0.0).to(tl.float64)
        added_P = weight_P * tl.load(candidate_P + size, mask=is_pair_P, other=0.0).to(tl.float64)
    if KIND != "signs":
        value_P = _value(query_P, candidate_P, is_pair_P, size, bits, IS_DISTANCE, PAIRS) + added_P
        value_P += tl.load(query_P + num_columns, mask=is_pair_P, other=0.0).to(tl.float64)
        tl.store(value_ptr + place_P, value_P, mask=is_pair_P)
    if KIND != "values":
        sum_P = tl.zeros((PAIRS,), tl.float64)
        magnitude_P = tl.zeros((PAIRS,), tl.float64)
        for k in range(size):
            x_P = tl.load(query_P + k, mask=is_pair_P, other=0.0).to(tl.float64)
            y_P = tl.load(candidate_P + k, mask=is_pair_P, other=0.0).to(tl.float64)
            term_P = (x_P - y_P) * (x_P - y_P) if IS_DISTANCE else x_P * y_P
            sum_P += term_P
            magnitude_P += tl.abs(term_P)
        score_P = added_P - sum_P if IS_DISTANCE else sum_P
        share = (num_columns + 8).to(tl.float64) * tl.full([], UNIT, tl.float64)
        error_P = share * (magnitude_P + tl.abs(added_P))
        if KIND == "true":
            tl.store(score_ptr + place_P, score_P, mask=is_pair_P)
            tl.store(error_ptr + place_P, error_P, mask=is_pair_P)
        else:
            gap_P = score_P - tl.load(true_ptr + row_P, mask=is_pair_P, other=0.0)
            bound_P = error_P + tl.load(true_error_ptr + row_P, mask=is_pair_P, other=0.0)
            bound_P = bound_P * tl.full([], BOUND_SLACK, tl.float64)
            sign_P = (gap_P > 0).to(tl.int8) - (gap_P < 0).to(tl.int8)
            # If neither score has an error, equal numbers are equal scores.
            is_open_P = is_pair_P & (tl.abs(gap_P) <= bound_P) & (bound_P > 0)
            if tl.max(is_open_P.to(tl.int32)) > 0:
                true_P, is_equal_P = true_row_ptr + row_P * true_stride, is_open_P
                for k in range(num_columns):
                    x_P = tl.load(true_P + k, mask=is_open_P, other=0.0)
                    is_equal_P &= x_P == tl.load(candidate_P + k, mask=is_open_P, other=0.0)
                sign_P = tl.where(is_open_P, tl.where(is_equal_P, 0, OPEN), sign_P).to(tl.int8)
                tl.atomic_add(num_open_ptr, tl.sum((is_open_P & ~is_equal_P).to(tl.int32)))
            tl.store(sign_ptr + place_P, sign_P, mask=is_pair_P)


@triton.jit
def _value(query_P, candidate_P, is_pair_P, size, bits, IS_DISTANCE: tl.constexpr, PAIRS: tl.constexpr):
    """Return the product of the rows of pairs on their grids, under a distance less the squares: sums without error."""
    largest_x_P = tl.zeros((PAIRS,), tl.float32)
    largest_y_P = tl.zeros((PAIRS,), tl.float32)
    for k in range(size):
        largest_x_P = tl.maximum(largest_x_P, tl.abs(tl.load(query_P + k, mask=is_pair_P, other=0.0)))
        largest_y_P = tl.maximum(largest_y_P, tl.abs(tl.load(candidate_P + k, mask=is_pair_P, other=0.0)))
    step_x_P, inverse_x_P = _step(largest_x_P, bits)
    step_y_P, inverse_y_P = _step(largest_y_P, bits)
    rounds_P = tl.full([PAIRS], ROUNDS, tl.float64)
    product_P = tl.zeros((PAIRS,), tl.float64)
    square_x_P = tl.zeros((PAIRS,), tl.float64)
    square_y_P = tl.zeros((PAIRS,), tl.float64)
    for k in range(size):
        x_P = tl.load(query_P + k, mask=is_pair_P, other=0.0).to(tl.float64) * inverse_x_P
        y_P = tl.load(candidate_P + k, mask=is_pair_P, other=0.0).to(tl.float64) * inverse_y_P
        x_P = ((x_P + rounds_P) - rounds_P) * step_x_P
        y_P = ((y_P + rounds_P) - rounds_P) * step_y_P
        product_P += x_P * y_P
        square_x_P += x_P * x_P
        square_y_P += y_P * y_P
    if IS_DISTANCE:
        product_P = product_P * 2 - square_y_P - square_x_P
    return product_P


@triton.jit
def _step(largest_P, bits):
    """Return the step of a row's grid, a power of two, and its inverse, by their exponents."""
    exponent_P = (largest_P.to(tl.float64).to(tl.int64, bitcast=True) >> SIGNIFICAND) + 1
    exponent_P = tl.where(largest_P > 0, exponent_P, ONE) - bits
    step_P = (exponent_P << SIGNIFICAND).to(tl.float64, bitcast=True)
    inverse_P = ((-exponent_P + 2 * ONE) << SIGNIFICAND).to(tl.float64, bitcast=True)
    return step_P, inverse_P
