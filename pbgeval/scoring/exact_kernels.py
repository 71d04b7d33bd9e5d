"""The kernels of `device_exact`, in Triton: counts of exact arithmetic, as far as error bounds decide.

Imported only where they are used: Triton decides when it sees a kernel whether it compiles or interprets it.

    screen_tiles    products in float16, fast -> clear segments are counted, all others are marked
    decide_tiles    products in float64 -> candidates are counted, but for the few cells that stay open

Letters: M rows and N columns of a tile, K columns of the vectors, S segments of a tile. A score is a sum of products
and a constant of its candidate (under a distance, minus its squared length).
"""

from __future__ import annotations

import triton
import triton.language as tl

# Not specialized: else kernels are compiled again for numbers that 16 divides, and for 1.
OF_SCREEN = ["num_queries", "num_columns", "tiles_per_program", "num_steps"]
OF_TILES = ["num_steps", "num_sixteens", "num_queries", "num_listed", "list_length"]
SIXTEEN = tl.constexpr(16)  # candidates are padded to a multiple, so that loads are aligned
BITS = tl.constexpr(32)  # of a word
HALF = tl.constexpr(16)  # bits of an int32 that hold the number that tie
LOW_BITS = tl.constexpr((1 << 16) - 1)
EXCLUDED = tl.constexpr(1)  # bits of a mark (`list_kernels`); those of groups follow


@triton.jit(do_not_specialize=OF_SCREEN)
def screen_tiles(
    query_ptr,
    candidate_ptr,
    constant_ptr,
    true_ptr,
    error_ptr,
    better_ptr,
    mark_ptr,
    num_queries,
    num_columns,
    tiles_per_program,
    num_steps,
    STAYS: tl.constexpr,
    HAS_CONSTANT: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
    TILE_DEPTH: tl.constexpr,
    SEGMENT: tl.constexpr,
):
    """Count the better candidates of clear segments, and mark all segments with a score near its true score.

    A program takes some queries and a run of tiles of candidates. A segment is clear for a query if every score in it
    differs from `true` by more than `error`; its better candidates are added to `better`, int32 (queries). All others
    are marked in `mark`, int8 (segments, queries). Rows of float16 have `num_steps * TILE_DEPTH` columns. If `STAYS`,
    that is one step, and queries stay where they are for all tiles.
    """
    row_tiles = tl.cdiv(num_queries, TILE_ROWS)
    row_M = tl.program_id(0) % row_tiles * TILE_ROWS + tl.arange(0, TILE_ROWS)
    is_row_M = row_M < num_queries
    k_K = tl.arange(0, TILE_DEPTH)
    width = num_steps * TILE_DEPTH
    query_M = query_ptr + tl.minimum(row_M, num_queries - 1).to(tl.int64) * width
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
        candidate_N = candidate_ptr + column_N.to(tl.int64) * width  # rows are padded to whole tiles
        if STAYS:
            gap_MN = tl.dot(query_MK, tl.load(candidate_N[None, :] + k_K[:, None])) - true_M[:, None]
        else:
            gap_MN = tl.zeros((TILE_ROWS, TILE_COLUMNS), tl.float32)
            for step in range(num_steps):
                at_K = step * TILE_DEPTH + k_K
                step_MK = tl.load(query_M[:, None] + at_K[None, :])
                gap_MN = tl.dot(step_MK, tl.load(candidate_N[None, :] + at_K[:, None]), gap_MN)
            gap_MN -= true_M[:, None]
        if HAS_CONSTANT:
            gap_MN += tl.load(constant_ptr + column_N)[None, :]
        segment_S = tile * SEGMENTS + tl.arange(0, SEGMENTS)
        gap_MSN = tl.reshape(gap_MN, (TILE_ROWS, SEGMENTS, SEGMENT))
        is_near_MS = tl.min(tl.abs(gap_MSN), 2) <= error_M[:, None]
        is_near_MS |= ((segment_S + 1) * SEGMENT > num_columns)[None, :]  # not all of its columns are candidates
        better_MS = tl.sum((gap_MSN > 0).to(tl.float32), 2)  # as floats: half the instructions of integers
        better_M += tl.sum(tl.where(is_near_MS, 0.0, better_MS), 1)
        mark_MS = mark_ptr + segment_S.to(tl.int64)[None, :] * num_queries + row_M[:, None]
        tl.store(mark_MS, is_near_MS.to(tl.int8), mask=is_row_M[:, None])
    tl.atomic_add(better_ptr + row_M, better_M.to(tl.int32), mask=is_row_M)


@triton.jit(do_not_specialize=OF_TILES)
def decide_tiles(
    query_ptr,
    candidate_ptr,
    constant_ptr,
    row_ptr,
    tile_ptr,
    high_ptr,
    low_ptr,
    hash_ptr,
    own_ptr,
    candidate_hash_ptr,
    mark_ptr,
    count_ptr,
    open_ptr,
    num_steps,
    num_sixteens,
    num_queries,
    num_listed,
    list_length,
    HAS_CONSTANT: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
    TILE_DEPTH: tl.constexpr,
):
    """Compare the candidates of tiles with the limits of queries, in float64.

    A program takes a tile: int32 of its first place in `row` (the queries that are asked), how many queries, the first
    column and the end of its candidates. A score above `high` is better; from `low` up to it the cell is open. An open
    candidate with the hash of the true entity's vector ties, and so does each where `low` is `high`. All others are
    bits of `open`, int32 (tiles, rows, words of 32 columns), which begins with zeros. What is better and what ties is
    added to the first two rows of `count`, int32 (.., queries).

    With no groups, column `own` does not compete. Else the candidates are lists of `num_listed`, each padded to
    `list_length`, and `mark` tells of each cell whether it competes and of which further groups it is; each group has
    three rows of `count`.
    """
    tile = tile_ptr + tl.program_id(0) * 4
    first, num_rows = tl.load(tile), tl.load(tile + 1)
    if num_rows == 0:
        return
    first_column, end_column = tl.multiple_of(tl.load(tile + 2), SIXTEEN), tl.load(tile + 3)
    at_M = tl.arange(0, TILE_ROWS)
    is_row_M = at_M < num_rows
    row_M = tl.load(row_ptr + first + at_M, mask=is_row_M, other=0)
    width, length = num_steps * TILE_DEPTH, num_sixteens.to(tl.int64) * SIXTEEN
    query_M = query_ptr + row_M.to(tl.int64) * width
    column_N = first_column + tl.arange(0, TILE_COLUMNS)
    is_column_N = column_N < end_column
    is_stored_N = column_N < length  # what lies beyond a grid's candidates is read, and not used
    score_MN = tl.zeros((TILE_ROWS, TILE_COLUMNS), tl.float64)
    for step in range(num_steps):
        k_K = step * TILE_DEPTH + tl.arange(0, TILE_DEPTH)
        query_MK = tl.load(query_M[:, None] + k_K[None, :])
        candidate_KN = tl.load(
            candidate_ptr + k_K[:, None] * length + column_N[None, :], mask=is_stored_N[None, :], other=0.0
        )
        score_MN = tl.dot(query_MK.to(tl.float64), candidate_KN.to(tl.float64), score_MN, out_dtype=tl.float64)
    if HAS_CONSTANT:
        score_MN += tl.load(constant_ptr + column_N, mask=is_column_N, other=0.0)[None, :]
    high_M = tl.load(high_ptr + row_M)
    low_M = tl.load(low_ptr + row_M)
    competes_MN = is_row_M[:, None] & is_column_N[None, :]
    if NUM_GROUPS == 0:
        competes_MN &= column_N[None, :] != tl.load(own_ptr + row_M)[:, None]
    else:
        at_MN = row_M.to(tl.int64)[:, None] * num_listed + (column_N % list_length)[None, :]
        mark_MN = tl.load(mark_ptr + at_MN, mask=competes_MN, other=EXCLUDED)
        competes_MN &= (mark_MN & EXCLUDED) == 0
    better_MN = (score_MN > high_M[:, None]) & competes_MN
    open_MN = (score_MN <= high_M[:, None]) & (score_MN >= low_M[:, None]) & competes_MN
    same_MN = (
        tl.load(candidate_hash_ptr + column_N, mask=is_column_N, other=0)[None, :] == tl.load(hash_ptr + row_M)[:, None]
    )
    tied_MN = open_MN & (same_MN | (high_M == low_M)[:, None])
    both_MN = better_MN.to(tl.int32) | (tied_MN.to(tl.int32) << HALF)
    count_M = count_ptr + row_M.to(tl.int64)
    _add_both(count_M, tl.sum(both_MN, 1), is_row_M, num_queries)
    for group in tl.static_range(1, NUM_GROUPS):
        of_group_M = tl.sum(tl.where((mark_MN & (EXCLUDED << group)) != 0, both_MN, 0), 1)
        _add_both(count_M + 3 * group * num_queries.to(tl.int64), of_group_M, is_row_M, num_queries)
    WORDS: tl.constexpr = TILE_COLUMNS // BITS
    bit_N = (tl.arange(0, TILE_COLUMNS) % BITS)[None, :]
    word_MWN = tl.reshape((open_MN & ~tied_MN).to(tl.int32) << bit_N, (TILE_ROWS, WORDS, BITS))
    word_MW = tl.sum(word_MWN, 2)
    at_MW = (tl.program_id(0).to(tl.int64) * TILE_ROWS + at_M)[:, None] * WORDS + tl.arange(0, WORDS)[None, :]
    tl.store(open_ptr + at_MW, word_MW)


@triton.jit
def _add_both(count_M, both_M, is_row_M, num_queries):
    """Add what is better to a row of counts, and what ties to the next."""
    tl.atomic_add(count_M, both_M & LOW_BITS, mask=is_row_M & (both_M != 0))
    tl.atomic_add(count_M + num_queries, both_M >> HALF, mask=is_row_M & (both_M != 0))
