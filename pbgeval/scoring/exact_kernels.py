"""The kernels of `device_exact`, in Triton: counts of exact arithmetic, as far as error bounds decide.

Imported only where they are used: Triton decides when it sees a kernel whether it compiles or interprets it.

    round_rows      rows -> rows of float16 in two parts, and what rounding takes away
    write_screen_limits    what decides in float64 -> what decides after products in float16
    screen_tiles    products in float16, fast -> clear segments are counted, all others are marked
    list_marked     marked segments -> tiles of queries and segments
    write_limits    true scores and lengths of rows -> what decides in float64, and counts before any candidate
    decide_tiles    products in float64 -> candidates are counted, and the few cells that stay open are listed

Letters: M rows and N columns of a tile, K columns of the vectors, S segments of a tile. A score is a sum of products;
under a distance, the squared length of the candidate's vector is taken away.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pbgeval.scoring.kernels import kernel

ALIGNMENT = tl.constexpr(16)  # candidates are padded to a multiple, so that loads are aligned
HALF = tl.constexpr(16)  # bits of an int32 that hold the number that tie
LOW_BITS = tl.constexpr((1 << 16) - 1)
SIGNIFICAND, ONE = tl.constexpr(52), tl.constexpr(1023)  # bits of a float64, and the exponent of 1.0
HALF_EXPONENT = tl.constexpr(15)  # scaled rows are below 2^15, so that no float16 overflows
UNIT_OF_FLOAT32, SMALLEST_FLOAT32 = tl.constexpr(2.0**-22), tl.constexpr(2.0**-149)
MAX_SCREENED = tl.constexpr(2.0**120)  # scaled scores are cut at it, so that differences are finite in float32
NO_SCORE_IS_SO_FAR = tl.constexpr(2.0**127)  # scaled scores and true scores are below 2^121
SLACK = tl.constexpr(1.0 + 1e-9)  # covers roundings of the bounds, which are computed in float64
UNIT_OF_FLOAT64 = tl.constexpr(2.0**-52)
UNIT_OF_MIDDLE = tl.constexpr(2.0**-50)
SMALLEST = tl.constexpr(2.0**-1074)
EXCLUDED = tl.constexpr(1)  # bits of a mark (`list_kernels`); those of groups follow


@kernel("row_ptr")
def round_rows(
    row_ptr,
    largest_norm_ptr,
    norm_ptr,
    half_ptr,
    scale_ptr,
    length_ptr,
    num_rows,
    num_stored,
    stride,
    num_columns,
    width,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write rows times a power of two in float16, in two parts next to each other: `width` columns of each, from 0 on.

    The power, `scale`, takes the largest norm into [2^14, 2^15). A second part is what the first has not. Lengths,
    float64 (3, rows), are at least those of scaled rows, of their second parts, and of what no part has. Rows and
    columns beyond those that there are become zeros.
    """
    largest = tl.load(largest_norm_ptr)
    exponent = (largest.to(tl.int64, bitcast=True) >> SIGNIFICAND) - (ONE - 1)
    exponent = tl.where(largest > 0, -exponent + ONE, ONE) + HALF_EXPONENT
    scale = (exponent << SIGNIFICAND).to(tl.float64, bitcast=True)
    tl.store(scale_ptr, scale, mask=tl.program_id(0) == 0)
    at_M = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row_M = at_M < num_rows
    row_M, half_M = row_ptr + at_M.to(tl.int64) * stride, half_ptr + at_M.to(tl.int64) * (2 * width)
    low_M = tl.zeros((ROWS,), tl.float64)
    lost_M = tl.zeros((ROWS,), tl.float64)
    for start in range(0, width, COLUMNS):
        column_N = start + tl.arange(0, COLUMNS)
        is_number_MN = is_row_M[:, None] & (column_N < num_columns)[None, :]
        x_MN = tl.load(row_M[:, None] + column_N[None, :], mask=is_number_MN, other=0.0).to(tl.float64) * scale
        high_MN = x_MN.to(tl.float32).to(tl.float16)
        rest_MN = x_MN - high_MN.to(tl.float64)
        part_MN = rest_MN.to(tl.float32).to(tl.float16)
        rest_MN -= part_MN.to(tl.float64)
        low_M += tl.sum(part_MN.to(tl.float64) * part_MN.to(tl.float64), 1)
        lost_M += tl.sum(rest_MN * rest_MN, 1)
        is_stored_MN = (at_M < num_stored)[:, None] & (column_N < width)[None, :]
        at_MN = half_M[:, None] + column_N[None, :]
        tl.store(at_MN, high_MN, mask=is_stored_MN)
        tl.store(at_MN + width, part_MN, mask=is_stored_MN)
    length_M, rows = length_ptr + at_M.to(tl.int64), num_rows.to(tl.int64)
    slack = tl.full([], SLACK, tl.float64)
    tl.store(length_M, tl.load(norm_ptr + at_M, mask=is_row_M, other=0.0) * scale, mask=is_row_M)
    tl.store(length_M + rows, tl.sqrt(low_M) * slack, mask=is_row_M)
    tl.store(length_M + 2 * rows, tl.sqrt(lost_M) * slack, mask=is_row_M)


@kernel()
def write_screen_limits(
    limit_ptr,
    length_ptr,
    largest_ptr,
    largest_square_ptr,
    square_ptr,
    query_scale_ptr,
    candidate_scale_ptr,
    true_ptr,
    error_ptr,
    screened_square_ptr,
    num_rows,
    num_columns,
    num_stored,
    width,
    IS_DISTANCE: tl.constexpr,
    UNIT: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Write the score with which the screen compares each query, float32, and how far from it scores do not decide.

    The latter, float32 (2, rows), for products of first parts, and for three products of both. Under a distance, write
    squared lengths as the screen takes them away, float32, and zeros up to `num_stored` candidates.
    """
    at_M = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row_M, rows = at_M < num_rows, num_rows.to(tl.int64)
    scale = tl.load(query_scale_ptr) * tl.load(candidate_scale_ptr)
    slack, unit = tl.full([], SLACK, tl.float64), tl.full([], UNIT, tl.float64)
    middle_M = tl.load(limit_ptr + at_M, mask=is_row_M, other=0.0) * scale
    width_M = tl.load(limit_ptr + at_M + rows, mask=is_row_M, other=0.0) * scale
    norm_M = tl.load(length_ptr + at_M, mask=is_row_M, other=0.0)
    low_M = tl.load(length_ptr + at_M + rows, mask=is_row_M, other=0.0)
    lost_M = tl.load(length_ptr + at_M + 2 * rows, mask=is_row_M, other=0.0)
    norm, low, lost = tl.load(largest_ptr), tl.load(largest_ptr + 1), tl.load(largest_ptr + 2)
    highest = tl.full([], MAX_SCREENED, tl.float64)
    true_M = tl.minimum(tl.maximum(middle_M, -highest), highest).to(tl.float32)
    tl.store(true_ptr + at_M, true_M, mask=is_row_M)
    if IS_DISTANCE:
        square_M = tl.load(square_ptr + at_M, mask=at_M < num_columns, other=0.0) * scale
        square_M = tl.minimum(square_M, highest).to(tl.float32)
        tl.store(screened_square_ptr + at_M, square_M, mask=at_M < num_stored)
    for part in tl.static_range(2):
        if part == 0:  # a second part is lost
            error_M = (low_M + lost_M) * (norm + low + lost) + norm_M * (low + lost)  # of rows in float16
            num_terms = width
        else:
            error_M = lost_M * (norm + lost) + norm_M * lost + low_M * low
            num_terms = 3 * width
        magnitude_M = (norm_M + 2 * low_M + 2 * lost_M) * (norm + 2 * low + 2 * lost)
        error_M += magnitude_M * ((num_terms + ALIGNMENT).to(tl.float64) * unit)
        if IS_DISTANCE:  # a square is rounded and cut, and two subtractions are rounded
            largest = tl.load(largest_square_ptr) * scale
            error_M += (magnitude_M + largest + tl.abs(middle_M)) * unit
            error_M += tl.maximum(largest - highest, 0.0)
        apart_M = (error_M + width_M) * slack + tl.abs(true_M.to(tl.float64) - middle_M)
        apart_M = apart_M + apart_M * UNIT_OF_FLOAT32 + tl.full([], SMALLEST_FLOAT32, tl.float64)  # rounded upwards
        apart_M = tl.minimum(apart_M, tl.full([], NO_SCORE_IS_SO_FAR, tl.float64))
        tl.store(error_ptr + at_M + part * rows, apart_M.to(tl.float32), mask=is_row_M)


@kernel()
def list_marked(
    mark_ptr,
    row_ptr,
    tile_ptr,
    number_ptr,
    num_queries,
    num_columns,
    most_listed,
    SEGMENT: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    QUERIES: tl.constexpr,
):
    """Write the marked queries of each segment next to each other, and the tiles of at most `TILE_ROWS` of them.

    A program takes a segment. Which place it has among `tile` and `row` (see `decide_tiles`), two numbers say that
    begin with zeros, int64. A third is the number of marks for which `row` has no room.
    """
    segment = tl.program_id(0)
    mark_ptr += segment.to(tl.int64) * num_queries
    number = 0
    for start in range(0, num_queries, QUERIES):
        query_Q = start + tl.arange(0, QUERIES)
        number += tl.sum(tl.load(mark_ptr + query_Q, mask=query_Q < num_queries, other=0).to(tl.int32))
    if number == 0:
        return
    first = tl.atomic_add(number_ptr + 1, number).to(tl.int32)  # there are less than 2^31 marks
    if first + number > most_listed:
        tl.atomic_add(number_ptr + 2, number)
        return
    num_tiles = tl.cdiv(number, TILE_ROWS)
    tile = tl.atomic_add(number_ptr, num_tiles).to(tl.int32)
    place = first
    for start in range(0, num_queries, QUERIES):
        query_Q = start + tl.arange(0, QUERIES)
        is_marked_Q = tl.load(mark_ptr + query_Q, mask=query_Q < num_queries, other=0).to(tl.int32)
        place_Q = place + tl.cumsum(is_marked_Q, 0) - 1
        tl.store(row_ptr + place_Q, query_Q, mask=is_marked_Q != 0)
        place += tl.sum(is_marked_Q)
    column = segment * SEGMENT
    for at in range(num_tiles):
        of_tile = tile_ptr + (tile + at) * 4
        tl.store(of_tile, first + at * TILE_ROWS)
        tl.store(of_tile + 1, tl.minimum(number - at * TILE_ROWS, TILE_ROWS))
        tl.store(of_tile + 2, column)
        tl.store(of_tile + 3, tl.minimum(column + SEGMENT, num_columns))


@kernel()
def screen_tiles(
    query_ptr,
    candidate_ptr,
    square_ptr,
    true_ptr,
    error_ptr,
    better_ptr,
    mark_ptr,
    num_marked_ptr,
    num_queries,
    num_columns,
    tiles_per_program,
    num_steps,
    most_marked,
    PARTS: tl.constexpr,
    STAYS: tl.constexpr,
    IS_DISTANCE: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
    TILE_DEPTH: tl.constexpr,
    SEGMENT: tl.constexpr,
):
    """Count the better candidates of clear segments, and mark all segments with a score near its true score.

    A program takes some queries and a run of tiles of candidates. A segment is clear for a query if every score in it
    differs from `true` by more than `error`; its better candidates are added to `better`, int32 (queries). All others
    are marked in `mark`, int8 (segments, queries). A part of a row of float16 has `num_steps * TILE_DEPTH` columns. If
    `STAYS`, that is one step, and queries stay where they are for all tiles. In two parts, three of the four products
    of the parts are added up.

    Nothing is done in one part if a probe has marked more than `most_marked`, and in two parts if it has not.
    """
    num_marked = tl.load(num_marked_ptr)
    if PARTS == 1:
        if num_marked > most_marked:
            return
    elif num_marked <= most_marked:
        return
    row_tiles = tl.cdiv(num_queries, TILE_ROWS)
    row_M = tl.program_id(0) % row_tiles * TILE_ROWS + tl.arange(0, TILE_ROWS)
    is_row_M = row_M < num_queries
    k_K = tl.arange(0, TILE_DEPTH)
    width = num_steps * TILE_DEPTH
    query_M = query_ptr + tl.minimum(row_M, num_queries - 1).to(tl.int64) * (2 * width)
    if STAYS:
        query_MK = tl.load(query_M[:, None] + k_K[None, :])
    true_M = tl.load(true_ptr + row_M, mask=is_row_M, other=float("inf"))
    error_M = tl.load(error_ptr + row_M, mask=is_row_M, other=0.0)
    better_M = tl.zeros((TILE_ROWS,), tl.float32)
    SEGMENTS: tl.constexpr = TILE_COLUMNS // SEGMENT
    first = tl.program_id(0) // row_tiles * tiles_per_program
    last = tl.minimum(first + tiles_per_program, tl.cdiv(num_columns, TILE_COLUMNS))
    for tile in range(first, last):
        column_N = tile * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)
        candidate_N = candidate_ptr + column_N.to(tl.int64) * (2 * width)  # rows are padded to whole tiles
        if STAYS:
            gap_MN = tl.dot(query_MK, tl.load(candidate_N[None, :] + k_K[:, None])) - true_M[:, None]
        else:
            gap_MN = tl.zeros((TILE_ROWS, TILE_COLUMNS), tl.float32)
            for step in range(num_steps if PARTS == 1 else 3 * num_steps):
                of_query_K, of_candidate_K = step * TILE_DEPTH + k_K, step * TILE_DEPTH + k_K
                if PARTS == 2:  # high . high, low . high, high . low
                    of_query_K -= (step >= 2 * num_steps).to(tl.int32) * (2 * width)
                    of_candidate_K -= (step >= num_steps).to(tl.int32) * width
                step_MK = tl.load(query_M[:, None] + of_query_K[None, :])
                gap_MN = tl.dot(step_MK, tl.load(candidate_N[None, :] + of_candidate_K[:, None]), gap_MN)
            gap_MN -= true_M[:, None]
        if IS_DISTANCE:
            gap_MN -= tl.load(square_ptr + column_N)[None, :]
        segment_S = tile * SEGMENTS + tl.arange(0, SEGMENTS)
        gap_MSN = tl.reshape(gap_MN, (TILE_ROWS, SEGMENTS, SEGMENT))
        is_near_MS = tl.min(tl.abs(gap_MSN), 2) <= error_M[:, None]
        is_near_MS |= ((segment_S + 1) * SEGMENT > num_columns)[None, :]  # not all of its columns are candidates
        better_MS = tl.sum((gap_MSN > 0).to(tl.float32), 2)  # as floats: half the instructions of integers
        better_M += tl.sum(tl.where(is_near_MS, 0.0, better_MS), 1)
        mark_MS = mark_ptr + segment_S.to(tl.int64)[None, :] * num_queries + row_M[:, None]
        tl.store(mark_MS, is_near_MS.to(tl.int8), mask=is_row_M[:, None])
    tl.atomic_add(better_ptr + row_M, better_M.to(tl.int32), mask=is_row_M)


@kernel()
def decide_tiles(
    query_ptr,
    candidate_ptr,
    square_ptr,
    high_ptr,
    low_ptr,
    hash_ptr,
    own_ptr,
    candidate_hash_ptr,
    mark_ptr,
    count_ptr,
    open_query_ptr,
    open_column_ptr,
    num_open_ptr,
    row_ptr,
    tile_ptr,
    num_tiles_ptr,
    most_open,
    rows_per_grid,
    num_listed,
    list_length,
    num_steps,
    num_aligned,
    num_queries,
    IS_DISTANCE: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    EVERY: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
    TILE_DEPTH: tl.constexpr,
):
    """Compare the candidates of tiles with the limits of queries, in float64.

    A program takes a tile: every one of the grids, whose candidates are `num_listed`, padded to `list_length`; or one
    that `tile` names by int32 of its first place in `row` (the queries that are asked), how many queries, the first
    column and the end of its candidates. There are `num_tiles` of these, int64.

    A score above `high` is better; from `low` up to it the cell is open. An open candidate with the hash of the true
    entity's vector ties, and so does each where `low` is `high`. All others are listed in any order, (query, column
    within the grid), `most_open` at most; their number is added to `num_open`, int64. What is better and what ties is
    added to the first two rows of `count`, int32 (.., queries).

    With no groups, column `own` of the grid does not compete. Else `mark` tells of each cell whether it competes and
    of which further groups it is; each group has three rows of `count`.
    """
    if not EVERY:  # noqa: SIM102 - a constant
        if tl.program_id(0) >= tl.load(num_tiles_ptr):
            return
    grid, first, num_rows, first_column, end_column = _tile(
        tile_ptr, rows_per_grid, num_listed, EVERY, TILE_ROWS, TILE_COLUMNS
    )
    at_M = tl.arange(0, TILE_ROWS)
    is_row_M = at_M < num_rows
    row_M = first + tl.where(is_row_M, at_M, 0)
    if not EVERY:
        row_M = tl.load(row_ptr + first + at_M, mask=is_row_M, other=0)
    width, length = num_steps * TILE_DEPTH, num_aligned.to(tl.int64) * ALIGNMENT
    query_M = query_ptr + row_M.to(tl.int64) * width
    stored_N = tl.multiple_of(grid * list_length + first_column, ALIGNMENT) + tl.arange(0, TILE_COLUMNS)
    is_stored_N = stored_N < length  # what lies beyond a grid's candidates is read, and not used
    score_MN = tl.zeros((TILE_ROWS, TILE_COLUMNS), tl.float64)
    for step in range(num_steps):
        k_K = step * TILE_DEPTH + tl.arange(0, TILE_DEPTH)
        query_MK = tl.load(query_M[:, None] + k_K[None, :])
        candidate_KN = tl.load(
            candidate_ptr + k_K[:, None] * length + stored_N[None, :], mask=is_stored_N[None, :], other=0.0
        )
        score_MN = tl.dot(query_MK.to(tl.float64), candidate_KN.to(tl.float64), score_MN, out_dtype=tl.float64)
    column_N = first_column + tl.arange(0, TILE_COLUMNS)
    is_column_N = column_N < end_column
    if IS_DISTANCE:
        score_MN -= tl.load(square_ptr + grid * num_listed + column_N, mask=is_column_N, other=0.0)[None, :]
    high_M = tl.load(high_ptr + row_M)
    low_M = tl.load(low_ptr + row_M)
    competes_MN = is_row_M[:, None] & is_column_N[None, :]
    if NUM_GROUPS == 0:
        own_M = tl.load(own_ptr + row_M)
        own_M = tl.where(own_M < end_column, tl.maximum(own_M, -1), -1).to(tl.int32)  # -1: it is no candidate here
        competes_MN &= column_N[None, :] != own_M[:, None]
    else:
        at_MN = row_M.to(tl.int64)[:, None] * num_listed + column_N[None, :]
        mark_MN = tl.load(mark_ptr + at_MN, mask=competes_MN, other=EXCLUDED)
        competes_MN &= (mark_MN & EXCLUDED) == 0
    better_MN = (score_MN > high_M[:, None]) & competes_MN
    open_MN = (score_MN <= high_M[:, None]) & (score_MN >= low_M[:, None]) & competes_MN
    same_MN = (
        tl.load(candidate_hash_ptr + grid * num_listed + column_N, mask=is_column_N, other=0)[None, :]
        == tl.load(hash_ptr + row_M)[:, None]
    )
    tied_MN = open_MN & (same_MN | (high_M == low_M)[:, None])
    both_MN = better_MN.to(tl.int32) | (tied_MN.to(tl.int32) << HALF)
    count_M = count_ptr + row_M.to(tl.int64)
    _add_both(count_M, tl.sum(both_MN, 1), is_row_M, num_queries)
    for group in tl.static_range(1, NUM_GROUPS):
        of_group_M = tl.sum(tl.where((mark_MN & (EXCLUDED << group)) != 0, both_MN, 0), 1)
        _add_both(count_M + 3 * group * num_queries.to(tl.int64), of_group_M, is_row_M, num_queries)
    is_left_MN = (open_MN & ~tied_MN).to(tl.int32)
    left_M = tl.sum(is_left_MN, 1)
    num_left = tl.sum(left_M, 0)
    if num_left > 0:
        place = tl.minimum(tl.atomic_add(num_open_ptr, num_left.to(tl.int64)), most_open).to(tl.int32)
        word_M = tl.sum(is_left_MN.to(tl.int64) << tl.arange(0, TILE_COLUMNS)[None, :], 1)  # a bit for each column
        place_M = place + tl.cumsum(left_M, 0) - left_M
        _list_cells(row_M, word_M, first_column, place_M, open_query_ptr, open_column_ptr, most_open, TILE_COLUMNS)


@triton.jit
def _tile(
    tile_ptr, rows_per_grid, num_listed, EVERY: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_COLUMNS: tl.constexpr
):
    """Return a program's grid, its first query and how many, its first column, and the end of its candidates."""
    tile = tl.program_id(0)
    if EVERY:
        row_tiles, column_tiles = tl.cdiv(rows_per_grid, TILE_ROWS), tl.cdiv(num_listed, TILE_COLUMNS)
        grid = tile // (row_tiles * column_tiles)
        row = tile % row_tiles * TILE_ROWS
        first_column = tile // row_tiles % column_tiles * TILE_COLUMNS
        return grid, grid * rows_per_grid + row, tl.minimum(rows_per_grid - row, TILE_ROWS), first_column, num_listed
    else:  # noqa: RET505 - Triton compiles one of two
        tile_ptr += tile * 4
        return 0, tl.load(tile_ptr), tl.load(tile_ptr + 1), tl.load(tile_ptr + 2), tl.load(tile_ptr + 3)


@triton.jit
def _list_cells(
    row_M, word_M, first_column, place_M, open_query_ptr, open_column_ptr, most_open, TILE_COLUMNS: tl.constexpr
):
    """Write the cells of the columns that bits of words name, those of each row from a place on."""
    for column in range(TILE_COLUMNS):
        is_set_M = ((word_M >> column) & 1).to(tl.int32)
        is_listed_M = (is_set_M != 0) & (place_M < most_open)
        tl.store(open_query_ptr + place_M, row_M.to(tl.int64), mask=is_listed_M)
        tl.store(open_column_ptr + place_M, first_column + column, mask=is_listed_M)
        place_M += is_set_M


@kernel("score_ptr", "error_ptr")
def write_limits(
    score_ptr,
    error_ptr,
    norm_ptr,
    square_ptr,
    largest_norm_ptr,
    largest_square_ptr,
    own_ptr,
    number_ptr,
    limit_ptr,
    count_ptr,
    num_rows,
    rows_per_grid,
    num_columns,
    num_terms,
    num_groups,
    has_marks,
    IS_DISTANCE: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Write four numbers of each query, float64 (4, rows), and `count` before any candidate, int32 (3 * groups, rows).

    The score that decides, how far from it scores do not decide, and the higher and the lower limit. Under a distance,
    scores are above the comparator's by the query's squared length, and squared lengths have errors of their own.
    Counts begin with zeros, but for how many compete: with marks `number`, a row for each group, else all columns but
    `own`.
    """
    at_M = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row_M = at_M < num_rows
    grid_M = at_M // rows_per_grid
    slack = tl.full([], SLACK, tl.float64)
    share = num_terms.to(tl.float64) * UNIT_OF_FLOAT64
    norm_M = tl.load(norm_ptr + at_M, mask=is_row_M, other=0.0)
    magnitude_M = norm_M * tl.load(largest_norm_ptr + grid_M, mask=is_row_M, other=0.0)
    middle_M = tl.load(score_ptr + at_M, mask=is_row_M, other=0.0)
    width_M = tl.load(error_ptr + at_M, mask=is_row_M, other=0.0)
    if IS_DISTANCE:
        square_M = tl.load(square_ptr + at_M, mask=is_row_M, other=0.0)
        squares_M = square_M + tl.load(largest_square_ptr + grid_M, mask=is_row_M, other=0.0)
        middle_M += square_M
        magnitude_M += squares_M
        width_M += squares_M * share
    # The last term covers the rounding of the middle.
    width_M = (width_M + magnitude_M * share) * slack + tl.abs(middle_M) * UNIT_OF_MIDDLE
    has_width_M = width_M != 0
    high_M, low_M = middle_M + width_M, middle_M - width_M  # rounded, so moved away from the middle
    smallest = tl.full([], SMALLEST, tl.float64)
    high_M = tl.where(has_width_M, high_M + (tl.abs(high_M) * UNIT_OF_FLOAT64 + smallest), middle_M)
    low_M = tl.where(has_width_M, low_M - (tl.abs(low_M) * UNIT_OF_FLOAT64 + smallest), middle_M)
    limit_M, rows = limit_ptr + at_M.to(tl.int64), num_rows.to(tl.int64)
    tl.store(limit_M, middle_M, mask=is_row_M)
    tl.store(limit_M + rows, width_M, mask=is_row_M)
    tl.store(limit_M + 2 * rows, high_M, mask=is_row_M)
    tl.store(limit_M + 3 * rows, low_M, mask=is_row_M)
    own_M = tl.load(own_ptr + at_M, mask=is_row_M & (has_marks == 0), other=0)
    compete_M = num_columns - ((own_M >= 0) & (own_M < num_columns)).to(tl.int32)
    for group in range(num_groups):
        count_M = count_ptr + at_M + 3 * group * rows
        marked_M = tl.load(number_ptr + at_M + group * rows, mask=is_row_M & (has_marks != 0), other=0)
        tl.store(count_M, tl.zeros((ROWS,), tl.int32), mask=is_row_M)
        tl.store(count_M + rows, tl.zeros((ROWS,), tl.int32), mask=is_row_M)
        tl.store(
            count_M + 2 * rows, tl.where(has_marks != 0, marked_M, tl.where(group == 0, compete_M, 0)), mask=is_row_M
        )


@triton.jit
def _add_both(count_M, both_M, is_row_M, num_queries):
    """Add what is better to a row of counts, and what ties to the next."""
    tl.atomic_add(count_M, both_M & LOW_BITS, mask=is_row_M & (both_M != 0))
    tl.atomic_add(count_M + num_queries, both_M >> HALF, mask=is_row_M & (both_M != 0))
