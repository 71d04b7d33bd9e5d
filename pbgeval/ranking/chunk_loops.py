"""Loops over chunks that are compiled: multiply, compare, forget; or gather the rows as well.

A chunk of some hundred queries and candidates fits into a core's cache, and calls of Python for each would take
longer than its product. `chunks`, `gathered_chunks` and `blocks` call them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pbgeval.jit import CompiledLoop, compiled_call, compiled_prefetch, inner_loop
from pbgeval.scoring.blas import (
    COLUMN_STRIDE,
    COLUMNS,
    INNER,
    NUM_ARGUMENTS,
    ONE,
    PLAIN,
    ROW_STRIDE,
    ROWS,
    SCORE_STRIDE,
    TRANSPOSED,
    ZERO,
)

IDENTITY, DIAGONAL, TRANSLATION, COMPLEX = range(4)  # operators that `gathered_chunks` knows
CACHE_LINE = 64
# Of a large block, what is multiplied and compared at a time, so that its scores stay in a core's cache. Multiples of
# what `product` pads to by any rule; they change no number.
ROWS_AT_A_TIME, COLUMNS_AT_A_TIME = 192, 576

# Names that the loops alone have, once they are compiled: see `_of_product` and `_of_gathering`.
call: Any
prefetch: Any
product_of_chunk: Any
count_scores: Any
transform_rows: Any
gather: Any
count_side: Any
compare_row: Any
compare_known: Any
pick: Any
list_open: Any


def _product_of_chunk(multiplication, queries, candidates, dimension, scores):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    """Multiply in cuts of one length, as `product` does; queries, candidates and scores are addresses."""
    routine, arguments, factors, longest_inner, itemsize = multiplication
    at = arguments.ctypes.data
    for start in range(0, dimension, longest_inner):
        arguments[INNER] = min(longest_inner, dimension - start)
        before = ONE if start else ZERO
        call(  # noqa: F821
            routine,
            at + 8 * TRANSPOSED, at + 8 * PLAIN, at + 8 * COLUMNS, at + 8 * ROWS, at + 8 * INNER,
            factors.ctypes.data + 4 * ONE, candidates + itemsize * start, at + 8 * COLUMN_STRIDE,
            queries + itemsize * start, at + 8 * ROW_STRIDE,
            factors.ctypes.data + 4 * before, scores, at + 8 * SCORE_STRIDE,
        )  # fmt: skip


def _count_scores(scores_RS, chunk, sizes, true_Q, cells_6P, at_3, picked_score_P, counts_6Q):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    """Compare the scores of a chunk; return their sum. `at_3` is how far the cells of each kind have been read."""
    num_queries, num_candidates, holds_true = sizes
    excluded_query_P, excluded_P, known_query_P, known_P, picked_query_P, picked_P = cells_6P
    one, zero = np.float32(1), np.float32(0)
    excluded, known, picked, total = at_3[0], at_3[1], at_3[2], np.float64(0)
    own = 1 if holds_true else 0
    for row in range(num_queries):
        query = chunk * num_queries + row
        scores_C = scores_RS[row, :num_candidates]
        if holds_true:
            true_Q[query] = scores_C[row]
        true = true_Q[query]
        better, at_least, sum_of_scores = zero, zero, zero
        for column in range(num_candidates):
            score = scores_C[column]
            better += one if score > true else zero
            at_least += one if score >= true else zero
            sum_of_scores += score
        total += sum_of_scores
        num_better, num_tied = np.int64(better), np.int64(at_least - better) - own
        num_competing = num_candidates - own
        while excluded < excluded_query_P.size and excluded_query_P[excluded] == query:
            score = scores_C[excluded_P[excluded]]
            num_better -= 1 if score > true else 0
            num_tied -= 1 if score == true else 0
            num_competing -= 1
            excluded += 1
        counts_6Q[0, query], counts_6Q[1, query], counts_6Q[2, query] = num_better, num_tied, num_competing
        num_better, num_tied, first = np.int64(0), np.int64(0), known
        while known < known_query_P.size and known_query_P[known] == query:
            score = scores_C[known_P[known]]
            num_better += 1 if score > true else 0
            num_tied += 1 if score == true else 0
            known += 1
        counts_6Q[3, query], counts_6Q[4, query], counts_6Q[5, query] = num_better, num_tied, known - first
        while picked < picked_query_P.size and picked_query_P[picked] == query:
            picked_score_P[picked] = scores_C[picked_P[picked]]
            picked += 1
    at_3[0], at_3[1], at_3[2] = excluded, known, picked
    return total


def _count_prepared(multiplication, query_BRD, candidate_BSD, chunks, side):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    """Return a sum of all scores of some chunks, which is a finite number only where all scores are."""
    sizes, true_Q, cells_6P, at_3, picked_score_P, counts_6Q = side
    scores_RS = np.empty((query_BRD.shape[1], candidate_BSD.shape[1]), np.float32)
    total = np.float64(0)
    for chunk in range(chunks[0], chunks[1]):
        queries, candidates = query_BRD[chunk].ctypes.data, candidate_BSD[chunk].ctypes.data
        product_of_chunk(multiplication, queries, candidates, query_BRD.shape[2], scores_RS.ctypes.data)  # noqa: F821
        total += count_scores(scores_RS, chunk, sizes, true_Q, cells_6P, at_3, picked_score_P, counts_6Q)  # noqa: F821
    return total


def _transform_rows(operator, x_KD, num_rows, rel_K, parameters, transformed_KD):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    """Do what `operators` does, in the same order; without relations of rows, all are of the first."""
    first_RX, second_RX = parameters
    dimension = x_KD.shape[1]
    half = dimension // 2
    for row in range(num_rows):
        rel = rel_K[row] if rel_K.size else 0
        x_D, transformed_D, first_X = x_KD[row], transformed_KD[row], first_RX[rel]
        if operator == DIAGONAL:
            for at in range(dimension):
                transformed_D[at] = first_X[at] * x_D[at]
        elif operator == TRANSLATION:
            for at in range(dimension):
                transformed_D[at] = x_D[at] + first_X[at]
        else:
            x_real_H, x_imag_H, imag_H = x_D[:half], x_D[half:], second_RX[rel]
            for at in range(half):
                transformed_D[at] = x_real_H[at] * first_X[at] - x_imag_H[at] * imag_H[at]
            for at in range(half):
                transformed_D[half + at] = x_real_H[at] * imag_H[at] + x_imag_H[at] * first_X[at]


def _gather(table_ND, global_D, ids_K, following_K, rows_KD):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    """Copy rows of a table, and have the cache fetch those of the next chunk."""
    dimension = table_ND.shape[1]
    for at in range(ids_K.size):
        row_D, copied_D = table_ND[ids_K[at]], rows_KD[at]
        if at < following_K.size:
            address = table_ND.ctypes.data + 4 * dimension * following_K[at]
            for line in range(0, 4 * dimension, CACHE_LINE):
                prefetch(address + line)  # noqa: F821
        if global_D.size:
            for column in range(dimension):
                copied_D[column] = row_D[column] + global_D[column]
        else:
            for column in range(dimension):
                copied_D[column] = row_D[column]


def _count_side(multiplication, operator, known_KD, candidate_KD, rel_Q, parameters, query_RD, scores_RS, chunk, side):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    """Make a chunk's queries of the rows of their known ends, multiply and compare; return the sum of the scores."""
    sizes, true_Q, cells_6P, at_3, picked_score_P, counts_6Q = side
    queries = known_KD.ctypes.data
    if operator != IDENTITY:
        transform_rows(operator, known_KD, sizes[0], rel_Q, parameters, query_RD)  # noqa: F821
        queries = query_RD.ctypes.data
    scores = scores_RS.ctypes.data
    product_of_chunk(multiplication, queries, candidate_KD.ctypes.data, known_KD.shape[1], scores)  # noqa: F821
    return count_scores(scores_RS, chunk, sizes, true_Q, cells_6P, at_3, picked_score_P, counts_6Q)  # noqa: F821


def _count_gathered(multiplications, tables, global_embeddings, ids, relation, parameters, chunks, sides):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    """Return a sum of all scores of some chunks; pairs are (lhs, rhs), those of `sides` by the side that is hidden."""
    operator, is_dynamic, rel_BQ = relation
    of_lhs, of_rhs = multiplications[0][1], multiplications[1][1]
    lhs_BK, rhs_BK = ids
    dimension = tables[0].shape[1]
    # Rows beyond the lists pad products.
    lhs_KD = np.zeros((max(of_lhs[COLUMNS], of_rhs[ROWS], lhs_BK.shape[1]), dimension), np.float32)
    rhs_KD = np.zeros((max(of_rhs[COLUMNS], of_lhs[ROWS], rhs_BK.shape[1]), dimension), np.float32)
    query_RD = np.zeros((of_lhs[ROWS], dimension), np.float32)
    lhs_scores_RS = np.empty((of_lhs[ROWS], of_lhs[SCORE_STRIDE]), np.float32)
    rhs_scores_RS = np.empty((of_rhs[ROWS], of_rhs[SCORE_STRIDE]), np.float32)
    of_queries = operator if is_dynamic else IDENTITY
    gathered_KD = rhs_KD if operator == of_queries else np.zeros_like(rhs_KD)
    total = np.float64(0)
    for chunk in range(chunks[0], chunks[1]):
        following = chunk + 1 if chunk + 1 < chunks[1] else chunk
        gather(tables[0], global_embeddings[0], lhs_BK[chunk], lhs_BK[following], lhs_KD)  # noqa: F821
        gather(tables[1], global_embeddings[1], rhs_BK[chunk], rhs_BK[following], gathered_KD)  # noqa: F821
        if operator != of_queries:  # a relation's one operator acts on the right side, candidates or not
            transform_rows(operator, gathered_KD, rhs_BK.shape[1], rel_BQ[chunk, :0], parameters[1], rhs_KD)  # noqa: F821
        if sides[0][0][1]:
            total += count_side(  # noqa: F821
                multiplications[0], of_queries, rhs_KD, lhs_KD, rel_BQ[chunk], parameters[1], query_RD, lhs_scores_RS,
                chunk, sides[0],
            )  # fmt: skip
        if sides[1][0][1]:
            total += count_side(  # noqa: F821
                multiplications[1], of_queries, lhs_KD, rhs_KD, rel_BQ[chunk], parameters[0], query_RD, rhs_scores_RS,
                chunk, sides[1],
            )  # fmt: skip
    return total


def _compare_row(scores_C, high, low):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    """Return how many scores are higher, and how many lie between."""
    better, at_least = np.float32(0), np.float32(0)
    for column in range(scores_C.size):
        score = scores_C[column]
        better += np.float32(1) if score > high else np.float32(0)
        at_least += np.float32(1) if score >= low else np.float32(0)
    return np.int64(better), np.int64(at_least - better)


def _compare_known(score_K, column_K, high, low, own):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    """Return of the known answers but the true entity: how many are better, how many tie, and how many they are."""
    better, tied, competing = 0, 0, 0
    for entry in range(score_K.size):
        is_other = column_K[entry] != own
        better += is_other and score_K[entry] > high
        tied += is_other and low <= score_K[entry] <= high
        competing += is_other
    return better, tied, competing


def _pick(scores_C, start, columns_P, at, stop_at, picked_P):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    """Copy the scores of some columns, ascending, from a place on; return the place of the next that is not here."""
    while at < stop_at and columns_P[at] < start + scores_C.size:
        picked_P[at] = scores_C[columns_P[at] - start]
        at += 1
    return at


def _list_open(scores_C, start, query, limits, own, open_query_P, open_column_P, at):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    """Write down the cells of a query between its limits, as far as there is room; return how many there are so far."""
    for column in range(scores_C.size):
        if limits[1] <= scores_C[column] <= limits[0] and column != own:
            if at < open_query_P.size:
                open_query_P[at], open_column_P[at] = query, start + column
            at += 1
    return at


def _count_block(multiplication, query_RD, candidate_CD, tail_SD, first_R, queries, known, wanted, listed, counts_6Q):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    """Count all candidates for all queries; return how many cells are open. `blocks.count` says what the arrays are."""
    high_Q, low_Q, own_Q = queries
    known_start_R, known_column_P, known_score_P = known
    wanted_start_Q, wanted_column_P, wanted_score_P = wanted
    lists_open, open_query_P, open_column_P = listed
    arguments, num_candidates, num_open = multiplication[1], candidate_CD.shape[0], 0
    known_at_R, wanted_at_Q = known_start_R.copy(), wanted_start_Q.copy()
    scores = np.empty(ROWS_AT_A_TIME * max(COLUMNS_AT_A_TIME, tail_SD.shape[0]), np.float32)
    for start in range(0, num_candidates, COLUMNS_AT_A_TIME):
        num_columns = min(COLUMNS_AT_A_TIME, num_candidates - start)
        candidates, stride = candidate_CD[start:].ctypes.data, COLUMNS_AT_A_TIME
        if num_columns < COLUMNS_AT_A_TIME:
            candidates, stride = tail_SD.ctypes.data, tail_SD.shape[0]
        arguments[COLUMNS], arguments[SCORE_STRIDE] = stride, stride
        for first_row in range(0, query_RD.shape[0], ROWS_AT_A_TIME):
            arguments[ROWS] = min(ROWS_AT_A_TIME, query_RD.shape[0] - first_row)
            last_row = min(first_row + ROWS_AT_A_TIME, first_R.size - 1)
            rows = query_RD[first_row:].ctypes.data
            product_of_chunk(multiplication, rows, candidates, query_RD.shape[1], scores.ctypes.data)  # noqa: F821
            for row in range(first_row, last_row):
                scores_C = scores[(row - first_row) * stride : (row - first_row) * stride + num_columns]
                known_at_R[row] = pick(  # noqa: F821
                    scores_C, start, known_column_P, known_at_R[row], known_start_R[row + 1], known_score_P
                )
                for query in range(first_R[row], first_R[row + 1]):
                    high, low, own = high_Q[query], low_Q[query], own_Q[query] - start
                    better, tied = compare_row(scores_C, high, low)  # noqa: F821
                    is_here = 0 <= own < num_columns
                    if is_here:
                        better -= 1 if scores_C[own] > high else 0
                        tied -= 1 if low <= scores_C[own] <= high else 0
                    counts_6Q[0, query] += better
                    counts_6Q[1, query] += tied
                    counts_6Q[2, query] += num_columns - (1 if is_here else 0)
                    wanted_at_Q[query] = pick(  # noqa: F821
                        scores_C, start, wanted_column_P, wanted_at_Q[query], wanted_start_Q[query + 1], wanted_score_P
                    )
                    if lists_open and tied:
                        num_open = list_open(  # noqa: F821
                            scores_C, start, query, (high, low), own, open_query_P, open_column_P, num_open
                        )
    for row in range(first_R.size - 1):
        of_row = slice(known_start_R[row], known_start_R[row + 1])
        for query in range(first_R[row], first_R[row + 1]):
            counts_6Q[3, query], counts_6Q[4, query], counts_6Q[5, query] = compare_known(  # noqa: F821
                known_score_P[of_row], known_column_P[of_row], high_Q[query], low_Q[query], own_Q[query]
            )
    return num_open


def _of_product() -> dict[str, Any]:
    return {
        "product_of_chunk": inner_loop(_product_of_chunk, {"call": compiled_call(NUM_ARGUMENTS)}),
        "count_scores": inner_loop(_count_scores, may_reorder=True),  # sums of ones, and of what may be rounded
    }


def _of_blocks() -> dict[str, Any]:
    names = {"product_of_chunk": inner_loop(_product_of_chunk, {"call": compiled_call(NUM_ARGUMENTS)})}
    names["compare_row"] = inner_loop(_compare_row, may_reorder=True)  # sums of ones
    names["compare_known"] = inner_loop(_compare_known)
    names["pick"] = inner_loop(_pick)
    names["list_open"] = inner_loop(_list_open)
    return names


def _of_gathering() -> dict[str, Any]:
    names = _of_product()
    names["transform_rows"] = inner_loop(_transform_rows)
    names["gather"] = inner_loop(_gather, {"prefetch": compiled_prefetch()})
    names["count_side"] = inner_loop(_count_side, dict(names))
    return names


count_prepared = CompiledLoop(_count_prepared, calls=_of_product)
count_gathered = CompiledLoop(_count_gathered, calls=_of_gathering)
count_block = CompiledLoop(_count_block, calls=_of_blocks)
