"""Compiled loops that count: blocks that are multiplied, and chunks whose rows are gathered and transformed as well.

A part of a block, or a chunk of some hundred queries and candidates, fits into a core's cache, and calls of Python for
each would take longer than its product. All count by `count_row`. `cpu_counting` and `cpu_lists` call them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pbgeval.jit import CompiledLoop, InnerLoop, compiled_call, compiled_prefetch, inner_loop
from pbgeval.scoring.blas import (
    COLUMN_STRIDE,
    COLUMNS,
    FLOATS_PER_LINE,
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
from pbgeval.scoring.entities import NORM_MARGIN

IDENTITY, DIAGONAL, TRANSLATION, COMPLEX = range(4)  # operators that `count_gathered` knows
DOT, COS, DISTANCE = range(3)  # what exact scores of prepared rows are
# Of a large block, what is multiplied and compared at a time, so that its scores stay in a core's cache. Multiples of
# what `product` pads to by any rule; they change no number.
ROWS_AT_A_TIME, COLUMNS_AT_A_TIME = 192, 576
# Beyond it, lists are left to torch, which then may have to multiply in float64 (`fast_products.LARGEST_SAFE_SCORE`).
LARGEST_MAGNITUDE = 1e36
COLUMNS_LOOKED_AT = 64  # at a time, for those that are open

call = InnerLoop(lambda: compiled_call(NUM_ARGUMENTS))
prefetch = InnerLoop(compiled_prefetch)
Compiled = Any  # numba infers the types of loops: arrays, numbers, tuples of them


@inner_loop()
def product_of_chunk(
    multiplication: Compiled, queries: Compiled, candidates: Compiled, dimension: Compiled, scores: Compiled
) -> None:
    """Multiply in cuts of one length, as `product` does; queries, candidates and scores are addresses."""
    routine, arguments, factors, longest_inner, itemsize = multiplication
    at = arguments.ctypes.data
    for start in range(0, dimension, longest_inner):
        arguments[INNER] = min(longest_inner, dimension - start)
        before = ONE if start else ZERO
        call(
            routine,
            at + 8 * TRANSPOSED, at + 8 * PLAIN, at + 8 * COLUMNS, at + 8 * ROWS, at + 8 * INNER,
            factors.ctypes.data + 4 * ONE, candidates + itemsize * start, at + 8 * COLUMN_STRIDE,
            queries + itemsize * start, at + 8 * ROW_STRIDE,
            factors.ctypes.data + 4 * before, scores, at + 8 * SCORE_STRIDE,
        )  # fmt: skip


@inner_loop(may_reorder=True)  # sums of ones, and of what may be rounded
def compare(scores_C: Compiled, high: Compiled, low: Compiled) -> Compiled:
    """Return how many scores are higher, how many lie between, and their sum."""
    better, at_least, total = np.int32(0), np.int32(0), scores_C.dtype.type(0)
    for column in range(scores_C.size):  # an iterator over the scores is not vectorised
        score = scores_C[column]
        better = np.int32(better + np.int32(score > high))  # int64, as a sum is, would take twice the registers
        at_least = np.int32(at_least + np.int32(score >= low))
        total += score
    return np.int64(better), np.int64(at_least - better), total


@inner_loop()
def gather_scores(scores_C: Compiled, start: Compiled, column_P: Compiled, score_P: Compiled) -> None:
    """Copy the scores of some columns, which are numbered from `start` on."""
    for at in range(column_P.size):
        score_P[at] = scores_C[column_P[at] - start]


@inner_loop()
def count_row(
    scores_C: Compiled,
    start: Compiled,
    query: Compiled,
    limits: Compiled,
    own: Compiled,
    excluded_P: Compiled,
    known_P: Compiled,
    known_score_P: Compiled,
    counts_6Q: Compiled,
) -> Compiled:
    """Add a query's candidates, then its known answers, to its counts; return how many tie, and the sum of scores.

    Args:
        scores_C: of its candidates, which are numbered from `start` on.
        start: see above.
        query: whose counts they are.
        limits: a score above the first is better; one from the second up to the first ties.
        own: its true entity, which does not compete; any other number where it is not here.
        excluded_P: candidates that do not compete either, each once, none known.
        known_P: its known answers here, ascending; the true entity may be among them.
        known_score_P: their scores.
        counts_6Q: what is added to: better, tied, competing; of candidates, of known answers.
    """
    high, low = limits
    better, tied, total = compare(scores_C, high, low)
    competing, place = scores_C.size - excluded_P.size, own - start
    for at in range(excluded_P.size):
        score = scores_C[excluded_P[at] - start]
        better -= np.int64(score > high)
        tied -= np.int64(low <= score <= high)
    is_here = 0 <= place < scores_C.size
    if is_here:
        better -= np.int64(scores_C[place] > high)
        tied -= np.int64(low <= scores_C[place] <= high)
        competing -= 1
    counts_6Q[0, query] += better
    counts_6Q[1, query] += tied
    counts_6Q[2, query] += competing
    if known_P.size:
        known_better, known_tied, _ = compare(known_score_P, high, low)
        competing = known_P.size
        for at in range(known_P.size if is_here else 0):  # a search would be a quarter of a second to compile
            if known_P[at] == own:
                known_better -= np.int64(scores_C[place] > high)
                known_tied -= np.int64(low <= scores_C[place] <= high)
                competing -= 1
        counts_6Q[3, query] += known_better
        counts_6Q[4, query] += known_tied
        counts_6Q[5, query] += competing
    return tied, total


# Rows of scores -> counts.


@CompiledLoop
def count_rows(
    flat: Compiled,
    stride: Compiled,
    num_columns: Compiled,
    row_Q: Compiled,
    queries: Compiled,
    excluded: Compiled,
    known: Compiled,
    counts_6Q: Compiled,
) -> None:
    """Count all candidates for all queries; `cpu_counting.count_scores` says what the arrays are."""
    high_Q, low_Q, own_Q = queries
    excluded_start_Q, excluded_P = excluded
    known_start_K, known_P, known_score_P = known
    for row in range(known_start_K.size - 1):
        scores_C = flat[row * stride : row * stride + num_columns]
        first, stop = known_start_K[row], known_start_K[row + 1]
        gather_scores(scores_C, 0, known_P[first:stop], known_score_P[first:stop])
    for query in range(row_Q.size):
        row = row_Q[query]
        scores_C = flat[row * stride : row * stride + num_columns]
        first, stop = known_start_K[row], known_start_K[row + 1]
        count_row(
            scores_C, 0, query, (high_Q[query], low_Q[query]), own_Q[query],
            excluded_P[excluded_start_Q[query] : excluded_start_Q[query + 1]],
            known_P[first:stop], known_score_P[first:stop], counts_6Q,
        )  # fmt: skip


@CompiledLoop
def list_between(
    flat: Compiled,
    stride: Compiled,
    num_columns: Compiled,
    row_Q: Compiled,
    limits: Compiled,
    tied_Q: Compiled,
    query_P: Compiled,
    column_P: Compiled,
) -> Compiled:
    """List the scores between the limits of their query, and return how many there are.

    `tied_Q` is zero for queries that have none; `cpu_counting.cells_between` says what the other arrays are.
    """
    high_Q, low_Q = limits
    number = 0
    for query in range(row_Q.size):
        high, low = high_Q[query], low_Q[query]
        scores_C = flat[row_Q[query] * stride : row_Q[query] * stride + num_columns]
        for first in range(0, num_columns if tied_Q[query] else 0, COLUMNS_LOOKED_AT):
            few_C = scores_C[first : first + COLUMNS_LOOKED_AT]
            if compare(few_C, high, low)[1]:
                for at in range(few_C.size):
                    if low <= few_C[at] <= high:
                        query_P[number], column_P[number] = query, first + at
                        number += 1
    return number


# Blocks of queries and candidates -> counts.


@inner_loop()
def read_cells(scores_C: Compiled, start: Compiled, row: Compiled, cells: Compiled) -> Compiled:
    """Copy the scores of those cells of a row that are in these columns; return the range of them."""
    at_K, start_K, column_P, score_P = cells
    first = at_K[row]
    while at_K[row] < start_K[row + 1] and column_P[at_K[row]] < start + scores_C.size:
        at_K[row] += 1
    gather_scores(scores_C, start, column_P[first : at_K[row]], score_P[first : at_K[row]])
    return first, at_K[row]


@inner_loop(may_reorder=True)  # a bound allows for any order
def dot_product(x_D: Compiled, y_D: Compiled, width: Compiled) -> Compiled:
    """Return the sum of the products of the first columns in float64, and that of their magnitudes."""
    total, magnitude = np.float64(0), np.float64(0)
    for at in range(width):
        term = np.float64(x_D[at]) * np.float64(y_D[at])
        total += term
        magnitude += abs(term)
    return total, magnitude


@inner_loop(may_reorder=True)
def squared_distance(x_D: Compiled, y_D: Compiled, width: Compiled) -> Compiled:
    """Return the sum of the squares of the differences of the first columns in float64."""
    total = np.float64(0)
    for at in range(width):
        difference = np.float64(x_D[at]) - np.float64(y_D[at])
        total += difference * difference
    return total


@inner_loop()
def score_of_pair(x_D: Compiled, y_D: Compiled, kind: Compiled) -> Compiled:
    """Return a score in float64 of two rows, and how far it may be off.

    Args:
        x_D: prepared query.
        y_D: prepared candidate.
        kind: whether scores are squared distances; of how many columns; the share of the terms' magnitudes that a score
            may be off; and the end at which scores are clamped, or infinity.
    """
    of_squares, width, share, end = kind
    if of_squares:
        square = squared_distance(x_D, y_D, width)
        return -square, share * square
    score, magnitude = dot_product(x_D, y_D, width)
    error = share * magnitude
    if abs(score) - error > end * (1 + 2.0**-40):  # as `exact` clamps
        error = 0.0
    return clamped(score, end), error


@inner_loop()
def clamped(score: Compiled, end: Compiled) -> Compiled:
    """Return a score, or the end that it is beyond."""
    return min(max(score, -end), end)


@inner_loop()
def is_listed(column: Compiled, column_P: Compiled) -> Compiled:
    """Tell whether a column is among some."""
    for at in range(column_P.size):  # noqa: SIM110 - numba knows no generators
        if column_P[at] == column:
            return True
    return False


@inner_loop()
def is_same_row(x_D: Compiled, y_D: Compiled) -> Compiled:
    """Tell whether two rows are equal."""
    for at in range(x_D.size):  # noqa: SIM110
        if x_D[at] != y_D[at]:
            return False
    return True


@inner_loop()
def decide_row(
    rows: Compiled,
    true: Compiled,
    scores_C: Compiled,
    start: Compiled,
    query: Compiled,
    limits: Compiled,
    own: Compiled,
    excluded_P: Compiled,
    known_P: Compiled,
    num_tied: Compiled,
    kind: Compiled,
    counts_6Q: Compiled,
    open_cells: Compiled,
) -> None:
    """Compare in float64 what a query's limits leave open, and correct its counts, in which that ties.

    Args:
        rows: its prepared row, and prepared candidates.
        true: the prepared row of its true entity, its score in float64, and how far that may be off.
        scores_C: fast scores of the candidates, which are numbered from `start` on.
        start: see above.
        query: whose counts they are.
        limits: candidates with scores from the second up to the first are open.
        own: the true entity's number.
        excluded_P: candidates that do not compete.
        known_P: its known answers.
        num_tied: how many are open.
        kind: see `score_of_pair`.
        counts_6Q: see `count_row`.
        open_cells: room for (query, column) of what stays open, and ties until it is decided; and three numbers: how
            many stay open, of which no more than there is room for are written, how many were decided, and how many
            may be open before.
    """
    query_D, candidate_KD = rows
    true_D, true_score, true_error = true
    open_query_P, open_column_P, numbers = open_cells
    high, low = limits
    end = kind[3]
    if true_error == 0 and abs(true_score) == end:  # so the true score is beyond: whatever surely is as well ties
        if true_score > 0:
            high = np.float32((2 * end - low) * (1 + 2.0**-22))
        else:
            low = np.float32((-2 * end - high) * (1 + 2.0**-22))
        num_tied = compare(scores_C, high, low)[1]
    column = 0
    while num_tied > 0 and column < scores_C.size:
        few_C = scores_C[column : column + COLUMNS_LOOKED_AT]
        if column % COLUMNS_LOOKED_AT == 0 and not compare(few_C, high, low)[1]:
            column += COLUMNS_LOOKED_AT
            continue
        number = start + column
        if low <= scores_C[column] <= high and number != own and not is_listed(number, excluded_P):
            num_tied -= 1
            candidate_D = candidate_KD[number]
            score, error = score_of_pair(query_D, candidate_D, kind)
            bound = (error + true_error) * (1 + 1e-9)
            is_better, is_worse = score - true_score > bound, true_score - score > bound
            if is_better or is_worse:
                is_known = np.int64(is_listed(number, known_P))
                counts_6Q[0, query] += np.int64(is_better)
                counts_6Q[1, query] -= 1
                counts_6Q[3, query] += np.int64(is_better) * is_known
                counts_6Q[4, query] -= is_known
                numbers[1] += 1
            elif bound == 0 or is_same_row(candidate_D, true_D):
                numbers[1] += 1
            else:
                if numbers[0] < open_query_P.size:
                    open_query_P[numbers[0]], open_column_P[numbers[0]] = query, number
                numbers[0] += 1
        column += 1


@CompiledLoop
def count_block(
    multiplication: Compiled,
    query_KD: Compiled,
    candidate_CD: Compiled,
    tail_CD: Compiled,
    first_K: Compiled,
    queries: Compiled,
    known: Compiled,
    sampled: Compiled,
    between: Compiled,
    scores: Compiled,
    counts_6Q: Compiled,
) -> None:
    """Count all candidates for all queries. Arrays: see `cpu_counting.count`."""
    high_Q, low_Q, own_Q = queries
    _, _, known_P, known_score_P = known
    prepared_KD, prepared_CD, true, kind, open_cells = between
    true_QD, true_score_Q, true_error_Q = true
    numbers, arguments, num_candidates = open_cells[2], multiplication[1], candidate_CD.shape[0]
    for start in range(0, num_candidates, COLUMNS_AT_A_TIME):
        num_columns = min(COLUMNS_AT_A_TIME, num_candidates - start)
        candidates, stride = candidate_CD[start:].ctypes.data, COLUMNS_AT_A_TIME
        if num_columns < COLUMNS_AT_A_TIME:
            candidates, stride = tail_CD.ctypes.data, tail_CD.shape[0]
        arguments[COLUMNS], arguments[SCORE_STRIDE] = stride, stride
        for first_row in range(0, query_KD.shape[0], ROWS_AT_A_TIME):
            arguments[ROWS] = min(ROWS_AT_A_TIME, query_KD.shape[0] - first_row)
            rows = query_KD[first_row:].ctypes.data
            product_of_chunk(multiplication, rows, candidates, query_KD.shape[1], scores.ctypes.data)
            for row in range(first_row, min(first_row + ROWS_AT_A_TIME, first_K.size - 1)):
                scores_C = scores[(row - first_row) * stride : (row - first_row) * stride + num_columns]
                read_cells(scores_C, start, row, sampled)
                here = read_cells(scores_C, start, row, known)
                known_here_P, known_score_here_P = known_P[here[0] : here[1]], known_score_P[here[0] : here[1]]
                for query in range(first_K[row], first_K[row + 1]):
                    limits, own = (high_Q[query], low_Q[query]), own_Q[query]
                    tied, _ = count_row(
                        scores_C, start, query, limits, own, known_P[:0],  # no other is excluded
                        known_here_P, known_score_here_P, counts_6Q,
                    )  # fmt: skip
                    if tied and open_cells[0].size:
                        decide_row(
                            (prepared_KD[row], prepared_CD), (true_QD[query], true_score_Q[query], true_error_Q[query]),
                            scores_C, start, query, limits, own, known_P[:0], known_here_P, tied, kind, counts_6Q,
                            open_cells,
                        )  # fmt: skip
            if numbers[0] + numbers[1] > numbers[2]:
                return


# Chunks of edges that share lists -> counts.


@inner_loop()
def transform_rows(
    operator: Compiled,
    x_KD: Compiled,
    num_rows: Compiled,
    width: Compiled,
    rel_K: Compiled,
    parameters: Compiled,
    transformed_KD: Compiled,
) -> None:
    """Do what `operators` does with the first columns; without relations of rows, all are of the first."""
    first_RD, second_RD = parameters
    for row in range(num_rows):
        rel = rel_K[row] if rel_K.size else 0
        first_D = first_RD[rel]
        second_D = second_RD[rel] if operator == COMPLEX else first_D
        apply(operator, first_D, second_D, x_KD[row][:width], transformed_KD[row][:width])


@inner_loop()
def apply(operator: Compiled, first_D: Compiled, second_D: Compiled, x_D: Compiled, y_D: Compiled) -> None:
    """Apply an operator to a row; its parameters are of one relation."""
    if operator == IDENTITY:
        for at in range(x_D.size):
            y_D[at] = x_D[at]
    elif operator == DIAGONAL:
        for at in range(x_D.size):
            y_D[at] = first_D[at] * x_D[at]
    elif operator == TRANSLATION:
        for at in range(x_D.size):
            y_D[at] = x_D[at] + first_D[at]
    else:
        half = x_D.size // 2
        real_D, imag_D, y_imag_D = x_D[:half], x_D[half:], y_D[half:]
        for at in range(half):
            y_D[at] = real_D[at] * first_D[at] - imag_D[at] * second_D[at]
        for at in range(half):
            y_imag_D[at] = real_D[at] * second_D[at] + imag_D[at] * first_D[at]


@inner_loop()
def fetch_row(table_ND: Compiled, row: Compiled) -> None:
    """Have the cache fetch a row."""
    length = 4 * table_ND.shape[1]
    for line in range(0, length, 4 * FLOATS_PER_LINE):
        prefetch(table_ND.ctypes.data + length * row + line)


@inner_loop()
def gather_rows(table: Compiled, ids_K: Compiled, following_K: Compiled, rows_KD: Compiled) -> None:
    """Copy rows of a table whose norms have no limit, and have the cache fetch those of the next chunk."""
    table_ND, global_D, _ = table
    dimension = table_ND.shape[1]
    for at in range(ids_K.size):
        row_D, copied_D = table_ND[ids_K[at]], rows_KD[at]
        if at < following_K.size:
            fetch_row(table_ND, following_K[at])
        if global_D.size:
            for column in range(dimension):
                copied_D[column] = row_D[column] + global_D[column]
        else:
            for column in range(dimension):
                copied_D[column] = row_D[column]


@inner_loop()
def count_side(
    multiplication: Compiled,
    operator: Compiled,
    known_KD: Compiled,
    candidate_KD: Compiled,
    rel_Q: Compiled,
    parameters: Compiled,
    query_KD: Compiled,
    scores_P: Compiled,
    chunk: Compiled,
    side: Compiled,
) -> Compiled:
    """Make a chunk's queries of the rows of their known ends, multiply and compare; return the sum of the scores."""
    stride = multiplication[1][SCORE_STRIDE]  # from row to row
    sizes, (_, true_Q), excluded, known, sampled, counts_6Q = side
    num_queries, num_candidates = sizes
    excluded_start_Q, excluded_P = excluded
    known_start_Q, known_P, known_score_P = known
    sampled_start_Q, sampled_P, sampled_score_P = sampled
    queries = known_KD.ctypes.data
    if operator != IDENTITY:
        transform_rows(operator, known_KD, num_queries, known_KD.shape[1], rel_Q, parameters, query_KD)
        queries = query_KD.ctypes.data
    product_of_chunk(multiplication, queries, candidate_KD.ctypes.data, known_KD.shape[1], scores_P.ctypes.data)
    total = np.float64(0)
    for row in range(num_queries):
        query, scores_C = chunk * num_queries + row, scores_P[row * stride :][:num_candidates]
        true_Q[query] = scores_C[row]  # lists begin with the true entities of their queries
        first, stop = sampled_start_Q[query], sampled_start_Q[query + 1]
        gather_scores(scores_C, 0, sampled_P[first:stop], sampled_score_P[first:stop])
        first, stop = known_start_Q[query], known_start_Q[query + 1]
        gather_scores(scores_C, 0, known_P[first:stop], known_score_P[first:stop])
        total += count_row(
            scores_C, 0, query, (true_Q[query], true_Q[query]), row,
            excluded_P[excluded_start_Q[query] : excluded_start_Q[query + 1]],
            known_P[first:stop], known_score_P[first:stop], counts_6Q,
        )[1]  # fmt: skip
    return total


@CompiledLoop
def count_gathered(
    multiplications: Compiled,
    tables: Compiled,
    ids: Compiled,
    relation: Compiled,
    parameters: Compiled,
    chunks: Compiled,
    sides: Compiled,
    room: Compiled,
) -> Compiled:
    """Return a sum of all scores of some chunks; pairs are (lhs, rhs), those of `sides` by the side that is hidden."""
    operator, is_dynamic, rel_BQ = relation
    rows, raw_rhs_KD, query_KD, scores_P = room
    query_operator = operator if is_dynamic else IDENTITY
    gathered = rows[0], rows[1] if operator == query_operator else raw_rhs_KD
    total = np.float64(0)
    for chunk in range(chunks[0], chunks[1]):
        following = chunk + 1 if chunk + 1 < chunks[1] else chunk
        for side in range(2):
            gather_rows(tables[side], ids[side][chunk], ids[side][following], gathered[side])
        if operator != query_operator:  # a relation's one operator acts on the right side, candidates or not
            num_rows, width = ids[1].shape[1], raw_rhs_KD.shape[1]
            transform_rows(operator, raw_rhs_KD, num_rows, width, rel_BQ[chunk, :0], parameters[1], rows[1])
        for side in range(2):
            if sides[side][0][1]:
                total += count_side(
                    multiplications[side], query_operator, rows[1 - side], rows[side], rel_BQ[chunk],
                    parameters[1 - side], query_KD, scores_P, chunk, sides[side],
                )  # fmt: skip
    return total


# Chunks of edges that share lists -> counts of exact arithmetic.
#
# Products in float32 decide all candidates but those within their bound of the true score. These few are compared in
# float64 while their rows are in cache; what that leaves open is listed, for exact arithmetic.


@inner_loop(may_reorder=True)
def squared_length(x_D: Compiled, width: Compiled) -> Compiled:
    """Return at least the square of the length of a row's first columns.

    The sum is one of float32: it rounds, and small squares underflow.
    """
    total = np.float32(0)
    for at in range(width):
        total += x_D[at] * x_D[at]
    return np.float64(total) * (1 + (width + 2) * 2.0**-22) + width * 2.0**-120


@inner_loop()
def grid_shift(x_D: Compiled, width: Compiled, shifts: Compiled) -> Compiled:
    """Return what `rounded` needs to put a row's first columns on their grid: 1.5 * 2^52 steps of that, exactly.

    As integers, numbers without their signs have the same order; as floating-point numbers they are not vectorised.
    """
    largest = np.int32(0)
    for at in range(width):
        largest = np.int32(max(largest, np.int32(np.float32(x_D[at]).view(np.int32) & 0x7FFFFFFF)))
    number = np.float64(np.int32(largest).view(np.float32)).view(np.int64)
    return np.int64(number & 0x7FF0000000000000).view(np.float64) * shifts  # by the power of two that is not above it


@inner_loop()
def rounded(x: Compiled, shift: Compiled) -> Compiled:
    """Return the nearest number on a grid, of two the even one; in half of the time of `rint`."""
    return (x + shift) - shift


@inner_loop()
def put_on_grid(x_D: Compiled, width: Compiled, shifts: Compiled, grid_D: Compiled) -> None:
    """Write a row's first columns, rounded to their grid."""
    shift = grid_shift(x_D, width, shifts)
    for at in range(width):
        grid_D[at] = rounded(np.float64(x_D[at]), shift)


@inner_loop(may_reorder=True)  # no sum is rounded
def value_on_grids(
    query_grid_D: Compiled,
    candidate_D: Compiled,
    width: Compiled,
    shifts: Compiled,
    of_squares: Compiled,
) -> Compiled:
    """Return what `fast_products.GridProduct` makes of two rows, without the query's constant.

    Args:
        query_grid_D: the query's row, by `put_on_grid`.
        candidate_D: the candidate's row.
        width: how many columns vectors have.
        shifts: see `grid_shift`.
        of_squares: whether it is a distance's value.
    """
    shift = grid_shift(candidate_D, width, shifts)
    products, square_q, square_c = np.float64(0), np.float64(0), np.float64(0)
    for at in range(width):
        products += query_grid_D[at] * rounded(np.float64(candidate_D[at]), shift)
    if not of_squares:
        return products
    for at in range(width):
        c = rounded(np.float64(candidate_D[at]), shift)
        square_q += query_grid_D[at] * query_grid_D[at]
        square_c += c * c
    return minus_squares(2 * products, square_q, square_c)


@inner_loop()
def minus_squares(products: Compiled, square_q: Compiled, square_c: Compiled) -> Compiled:
    """Return the value of a distance; each operation rounds, in the order of `GridProduct`."""
    return ((products - square_c) - square_q) + 0.0


@inner_loop()
def sum_of_products(x_D: Compiled, y_D: Compiled, folded_D: Compiled) -> Compiled:
    """Do what `fixed_order.sum_in_order` does with the products of two rows in float64, which have columns."""
    width = x_D.size
    for at in range(width):
        folded_D[at] = np.float64(x_D[at]) * np.float64(y_D[at])
    while width > 1:
        half = (width + 1) // 2
        for at in range(width - half):
            folded_D[at] += folded_D[half + at]
        width = half
    return folded_D[0]


@inner_loop()
def divide_by_norm(x_D: Compiled, folded_D: Compiled, direction_D: Compiled) -> None:
    """Do what `fixed_order.directions_in_order` does; a row without a direction becomes NaN."""
    norm = math.sqrt(sum_of_products(x_D, x_D, folded_D))
    if not norm > 0:
        direction_D[:] = np.float32(np.nan)
        return
    for at in range(x_D.size):
        direction_D[at] = np.float32(x_D[at] / norm)


@inner_loop()
def gather_candidates(
    form: Compiled,
    has_bias: Compiled,
    table: Compiled,
    ids_K: Compiled,
    following_K: Compiled,
    room: Compiled,
    rows_KD: Compiled,
) -> None:
    """Prepare rows of a table as candidates, and have the cache fetch those of the next chunk.

    Under a distance a row ends with half of its square, negative: a product with a query that ends with 1 is half of
    the square of the distance, but for a constant of the query. A bias stays in its column, the first: queries have 1
    there.
    """
    x_D, _, folded_D = room
    table_ND, _, max_norm = table
    dimension = table_ND.shape[1]
    in_float64 = form == COS or max_norm < np.inf
    if not in_float64:
        gather_rows(table, ids_K, following_K, rows_KD)
    for at in range(ids_K.size if in_float64 or form == DISTANCE else 0):
        prepared_D = rows_KD[at]
        if in_float64:
            if at < following_K.size:
                fetch_row(table_ND, following_K[at])
            load_row(table, ids_K[at], folded_D, x_D)
            round_row(form, has_bias, x_D, folded_D, prepared_D)
        if form == DISTANCE:
            prepared_D[dimension] = np.float32(
                -0.5 * sum_of_products(prepared_D[:dimension], prepared_D[:dimension], folded_D)
            )


@inner_loop()
def round_row(form: Compiled, has_bias: Compiled, x_D: Compiled, folded_D: Compiled, prepared_D: Compiled) -> None:
    """Prepare a row of float64: round once, under cos its direction."""
    num_kept = x_D.size
    if form == COS:
        num_kept = np.int64(has_bias)
        divide_by_norm(x_D[num_kept:], folded_D, prepared_D[num_kept:])
    for at in range(num_kept):
        prepared_D[at] = np.float32(x_D[at])


@inner_loop()
def load_row(table: Compiled, row: Compiled, folded_D: Compiled, x_D: Compiled) -> None:
    """Do what `EntityTable.rows` does in float64."""
    table_ND, global_D, max_norm = table
    row_D = table_ND[row]
    for at in range(row_D.size):
        x_D[at] = np.float64(row_D[at])
    if max_norm < np.inf:
        norm = math.sqrt(sum_of_products(x_D, x_D, folded_D))
        scale = max_norm / (norm + NORM_MARGIN) if norm > max_norm else 1.0
        for at in range(row_D.size):
            x_D[at] *= scale
    for at in range(global_D.size):
        x_D[at] += np.float64(global_D[at])


@inner_loop()
def transform_exactly(
    form: Compiled,
    has_bias: Compiled,
    operator: Compiled,
    table: Compiled,
    ids_Q: Compiled,
    rel_Q: Compiled,
    room: Compiled,
    query_KD: Compiled,
    constant_Q: Compiled,
) -> None:
    """Do what `operators` does in float64, in the same order, and prepare the queries: round once.

    Args:
        form: of the scores.
        has_bias: whether the first column is added to the scores.
        operator: its code; whether it has moved from the candidates; its parameters by relation, float64.
        table: embeddings, what is added to rows (empty: nothing), and their largest norm.
        ids_Q: the row of each query.
        rel_Q: the relation of each query; empty: all are of the first.
        room: for three rows in float64.
        query_KD: the output.
        constant_Q: what is added to all scores of a query, an output.
    """
    code, is_moved, (first_RD, second_RD) = operator
    x_D, y_D, folded_D = room
    adds_constant = code == TRANSLATION and is_moved and form == DOT  # the same to all candidates' scores
    if adds_constant:
        code = IDENTITY
    for query in range(ids_Q.size):
        rel = rel_Q[query] if rel_Q.size else 0
        query_D, first_D = query_KD[query], first_RD[rel]
        load_row(table, ids_Q[query], folded_D, x_D)
        constant = np.float64(0)
        if has_bias and is_moved:
            constant, x_D[0] = x_D[0], 1.0
        if adds_constant:
            constant += sum_of_products(x_D, first_D, folded_D)
        apply(code, first_D, second_RD[rel] if code == COMPLEX else first_D, x_D, y_D)
        if has_bias and not is_moved:
            constant, y_D[0] = y_D[0], 1.0
        constant_Q[query] = np.float32(constant)
        round_row(form, has_bias, y_D, folded_D, query_D)
        if form == DISTANCE:
            query_D[y_D.size] = 1


@inner_loop()
def exact_queries(
    form: Compiled,
    has_bias: Compiled,
    operator: Compiled,
    known_KD: Compiled,
    table: Compiled,
    ids_Q: Compiled,
    rel_Q: Compiled,
    room: Compiled,
    query_KD: Compiled,
    constant_Q: Compiled,
) -> Compiled:
    """Return the prepared queries of gathered rows: the rows themselves, or the output of an operator on them.

    `known_KD` has the gathered rows; `transform_exactly` explains the rest. Where these are the vectors as they are in
    the table, and no constant is added, they need not be read again, and each number is rounded once as it is written.
    """
    code, is_moved, parameters = operator
    table_ND, global_D, max_norm = table
    if code == IDENTITY and form != DISTANCE and not has_bias:
        constant_Q[:] = 0
        return known_KD
    adds_constant = has_bias or (code == TRANSLATION and is_moved and form == DOT)
    if form == COS or adds_constant or global_D.size or max_norm < np.inf:
        transform_exactly(form, has_bias, operator, table, ids_Q, rel_Q, room, query_KD, constant_Q)
        return query_KD
    constant_Q[:] = 0
    width = table_ND.shape[1]
    transform_rows(code, known_KD, ids_Q.size, width, rel_Q, parameters, query_KD)
    query_KD[: ids_Q.size, width:] = 1  # under a distance, the last column
    return query_KD


@inner_loop()
def keep_scores(scores_C: Compiled, factor: Compiled, end: Compiled, added: Compiled, kept_C: Compiled) -> None:
    """Write the scores of a query in float32.

    The bits are those of `FloatProduct` and `TorchBackend`, unless a distance's products are subnormal: halving rounds
    those.
    """
    added = np.float32(added)
    for at in range(kept_C.size):
        kept_C[at] = np.float32(clamped(np.float32(factor) * scores_C[at], end)) + added


@inner_loop()
def count_side_exactly(
    multiplication: Compiled,
    query_KD: Compiled,
    constant_Q: Compiled,
    prepared_KD: Compiled,
    first: Compiled,
    bounds: Compiled,
    scores_P: Compiled,
    grid_D: Compiled,
    chunk: Compiled,
    side: Compiled,
) -> Compiled:
    """Multiply a chunk's prepared queries and candidates, and compare; return the sum of the scores.

    Args:
        multiplication: see `product_of_chunk`.
        query_KD: prepared queries.
        constant_Q: what is added to the values of each.
        prepared_KD: prepared rows, those of the queries' true entities first.
        first: where candidates begin among these.
        bounds: the form of the scores, how many columns vectors have, how far a product in float32 may be off
            (`fast_products.product_error`), the share and the end of `score_of_pair`, and the
            factor of `grid_shift`.
        scores_P: room for the scores of a chunk.
        grid_D: room for a row in float64.
        chunk: its number.
        side: of the queries, as `cpu_lists.ExactChunks` lays it out.
    """
    stride = multiplication[1][SCORE_STRIDE]  # from row to row
    sizes, values, excluded, known, sampled, counts_6Q, open_cells, kept_QC = side
    num_queries, num_candidates = sizes
    true_is_read_Q, true_Q = values
    excluded_start_Q, excluded_P = excluded
    known_start_Q, known_P, known_score_P = known
    sampled_start_Q, sampled_P, sampled_value_P = sampled
    form, width, relative, flushed, share, end, shifts = bounds
    of_squares = form == DISTANCE
    kind = of_squares, width, share, end
    dimension, candidate_KD = query_KD.shape[1], prepared_KD[first:]
    product_of_chunk(multiplication, query_KD.ctypes.data, candidate_KD.ctypes.data, dimension, scores_P.ctypes.data)
    largest_square, total = np.float64(0), np.float64(0)
    for row in range(first + num_candidates):
        largest_square = max(largest_square, squared_length(prepared_KD[row], width))
    longest = math.sqrt(largest_square)
    for row in range(num_queries):
        query, scores_C, query_D = chunk * num_queries + row, scores_P[row * stride :][:num_candidates], query_KD[row]
        true_D, own, length = prepared_KD[row], row - first, math.sqrt(squared_length(query_D, width))
        middle = dot_product(query_D, true_D, dimension)[0] if first else np.float64(scores_C[row])
        total += middle + constant_Q[row]
        middle = clamped(middle, end)  # which brings it no farther from the true score
        # Half of a candidate's square is added under a distance, and was rounded before; the other half allows for it.
        magnitude = length * longest + (largest_square if of_squares else 0.0)
        if magnitude > LARGEST_MAGNITUDE:
            total += np.inf
        # Neither the true score nor a candidate's is off by more; the rest allows for rounding the limits.
        gap = 2 * (magnitude * relative + flushed * (1 + length + longest)) + abs(middle) * 2.0**-22
        high, low = middle + gap * (1 + 2.0**-20), middle - gap * (1 + 2.0**-20)
        limits = np.float32(high if high < end else np.inf), np.float32(low if low > -end else -np.inf)
        if kept_QC.shape[1]:
            square = sum_of_products(query_D[:width], query_D[:width], grid_D) if of_squares else 0.0
            keep_scores(scores_C, 2 if of_squares else 1, end, constant_Q[row] - square, kept_QC[query])
        excluded_here_P = excluded_P[excluded_start_Q[query] : excluded_start_Q[query + 1]]
        known_here_P = known_P[known_start_Q[query] : known_start_Q[query + 1]]
        known_score_here_P = known_score_P[known_start_Q[query] : known_start_Q[query + 1]]
        gather_scores(scores_C, 0, known_here_P, known_score_here_P)
        tied, sum_of_scores = count_row(
            scores_C, 0, query, limits, own, excluded_here_P, known_here_P, known_score_here_P, counts_6Q,
        )  # fmt: skip
        total += sum_of_scores
        if tied:
            true_score, true_error = score_of_pair(query_D, true_D, kind)
            decide_row(
                (query_D, candidate_KD), (true_D, true_score, true_error), scores_C, 0, query, limits, own,
                excluded_here_P, known_here_P, tied, kind, counts_6Q, open_cells,
            )  # fmt: skip
        first_sampled, stop_sampled = sampled_start_Q[query], sampled_start_Q[query + 1]
        if true_is_read_Q[query] or first_sampled < stop_sampled:
            put_on_grid(query_D, width, shifts, grid_D)
        if true_is_read_Q[query]:
            value = clamped(value_on_grids(grid_D, true_D, width, shifts, of_squares), end)
            true_Q[query] = value + constant_Q[row]
        for at in range(first_sampled, stop_sampled):
            candidate_D = candidate_KD[sampled_P[at]]
            value = clamped(value_on_grids(grid_D, candidate_D, width, shifts, of_squares), end)
            sampled_value_P[at] = value + constant_Q[row]
    return total


@CompiledLoop
def count_gathered_exactly(
    multiplications: Compiled,
    tables: Compiled,
    has_bias: Compiled,
    ids: Compiled,
    first: Compiled,
    rel_BQ: Compiled,
    operators: Compiled,
    chunks: Compiled,
    sides: Compiled,
    bounds: Compiled,
    room: Compiled,
) -> Compiled:
    """Return a sum of all scores of some chunks; pairs are (lhs, rhs), those of `sides` by the side that is hidden.

    Candidates are rows of tables, rounded once. They begin at `first` of `ids`, which begin with the queries' entities.
    `operators` has the operator on the queries that hide a side; `transform_exactly` says what these and `tables` are.
    """
    rows, query_KD, constant_Q, in_float64, scores_P = room
    form = bounds[0]
    total = np.float64(0)
    for chunk in range(chunks[0], chunks[1]):
        following = chunk + 1 if chunk + 1 < chunks[1] else chunk
        for side in range(2):
            gather_candidates(
                form, has_bias, tables[side], ids[side][chunk], ids[side][following], in_float64, rows[side]
            )
        for side in range(2):
            num_queries, num_candidates = sides[side][0]
            if num_candidates:
                known = 1 - side
                queries_KD = exact_queries(
                    form, has_bias, operators[side], rows[known], tables[known], ids[known][chunk, :num_queries],
                    rel_BQ[chunk], in_float64, query_KD, constant_Q,
                )  # fmt: skip
                total += count_side_exactly(
                    multiplications[side], queries_KD, constant_Q, rows[side], first, bounds, scores_P, in_float64[0],
                    chunk, sides[side],
                )  # fmt: skip
    return total


@CompiledLoop
def multiply(
    multiplication: Compiled, query_KD: Compiled, candidate_CD: Compiled, dimension: Compiled, scores_KC: Compiled
) -> None:
    """Multiply alone, for self-checks."""
    product_of_chunk(multiplication, query_KD.ctypes.data, candidate_CD.ctypes.data, dimension, scores_KC.ctypes.data)
