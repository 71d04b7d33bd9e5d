"""The kernel of `fused`, in Triton: it multiplies, compares and counts a tile of scores, and forgets it.

Imported only where it is used: Triton decides when it sees the kernel whether it compiles or interprets it.

A program counts a block of rows (grid axis 0) against a run of candidates (axis 1), tile after tile. Letters: M rows
and N columns of a tile, K a step through the D columns of the vectors, S slots of a row. What is handed in:

    query (R, D), candidate (C, D)    rows next to each other, D a multiple of TILE_DEPTH
    true (R, S)                       what a row's scores are compared with; NaN: nothing
    bounds (blocks, runs, 2)          first candidate of each run and one past its last
    first_cell (R, runs + 1)          where the cells of a row begin in each run
    cell_column (P)                   columns of the cells, ascending within a row
    cell_score (P)                    out: their scores
    counts (2, runs, R, S)            out: better and tied, every entry

What is read off a cell is the accumulator that was counted. A score's bits depend on its two vectors alone: every
accumulator adds up its D products in one order, whatever tile it is in.
"""

from __future__ import annotations

import triton
import triton.language as tl

NO_COLUMN = tl.constexpr(2**31 - 1)  # beyond every column


@triton.jit(do_not_specialize=["num_rows"])  # else it is compiled again for numbers that 16 divides
def count_tiles(
    query_ptr,
    candidate_ptr,
    true_ptr,
    bounds_ptr,
    first_cell_ptr,
    cell_column_ptr,
    cell_score_ptr,
    counts_ptr,
    num_rows,
    D: tl.constexpr,
    SLOTS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
    TILE_DEPTH: tl.constexpr,
):
    """Count; the head of this file says what from and where to."""
    block, run, num_runs = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    row_M = block * TILE_ROWS + tl.arange(0, TILE_ROWS)
    is_row_M = row_M < num_rows
    slot_S = tl.arange(0, SLOTS)
    first = tl.load(bounds_ptr + (block * num_runs + run) * 2)
    stop = tl.load(bounds_ptr + (block * num_runs + run) * 2 + 1)
    better_MS = tl.zeros((TILE_ROWS, SLOTS), tl.int32)
    tied_MS = tl.zeros((TILE_ROWS, SLOTS), tl.int32)
    # Each row has a cursor in its list of cells, which are met in the order of their columns.
    cell_M = tl.load(first_cell_ptr + row_M * (num_runs + 1) + run, mask=is_row_M, other=0)
    last_cell_M = tl.load(first_cell_ptr + row_M * (num_runs + 1) + run + 1, mask=is_row_M, other=0)
    cell_column_M = tl.load(cell_column_ptr + cell_M, mask=cell_M < last_cell_M, other=NO_COLUMN)
    for start in range(first, stop, TILE_COLUMNS):
        column_N = start + tl.arange(0, TILE_COLUMNS)
        is_column_N = column_N < stop
        score_MN = _scores(query_ptr, candidate_ptr, row_M, is_row_M, column_N, is_column_N, D, TILE_DEPTH)
        # Columns beyond the end are NaN from here on: that is neither more than a true score nor equal to it.
        score_MN = tl.where(is_column_N[None, :], score_MN, float("nan"))
        for slot in range(SLOTS):  # no static_range: with all of them at once registers run out
            true_M = tl.load(true_ptr + row_M * SLOTS + slot, mask=is_row_M, other=float("nan"))
            is_slot_S = (slot_S == slot).to(tl.int32)
            better_MS += tl.sum((score_MN > true_M[:, None]).to(tl.int32), 1)[:, None] * is_slot_S[None, :]
            tied_MS += tl.sum((score_MN == true_M[:, None]).to(tl.int32), 1)[:, None] * is_slot_S[None, :]
        while tl.min(cell_column_M) < start + TILE_COLUMNS:  # one cell of every row that has one here
            is_here_M = cell_column_M < start + TILE_COLUMNS
            cell_score_M = tl.sum(tl.where(column_N[None, :] == cell_column_M[:, None], score_MN, 0.0), 1)
            tl.store(cell_score_ptr + cell_M, cell_score_M, mask=is_here_M)
            cell_M += is_here_M.to(tl.int64)
            cell_column_M = tl.load(cell_column_ptr + cell_M, mask=cell_M < last_cell_M, other=NO_COLUMN)
    out_MS = (run * num_rows + row_M[:, None]) * SLOTS + slot_S[None, :]
    tl.store(counts_ptr + out_MS, better_MS, mask=is_row_M[:, None])
    tl.store(counts_ptr + num_runs * num_rows * SLOTS + out_MS, tied_MS, mask=is_row_M[:, None])


@triton.jit
def _scores(
    query_ptr, candidate_ptr, row_M, is_row_M, column_N, is_column_N, D: tl.constexpr, TILE_DEPTH: tl.constexpr
):
    """Return the inner products of a tile, in float32 and not in TF32."""
    query_row_M, candidate_row_N = row_M.to(tl.int64) * D, column_N.to(tl.int64) * D  # beyond 2^31 floats
    score_MN = tl.zeros((row_M.shape[0], column_N.shape[0]), tl.float32)
    for k in range(0, D, TILE_DEPTH):
        at_K = k + tl.arange(0, TILE_DEPTH)
        query_MK = tl.load(query_ptr + query_row_M[:, None] + at_K[None, :], mask=is_row_M[:, None], other=0.0)
        candidate_KN = tl.load(
            candidate_ptr + candidate_row_N[None, :] + at_K[:, None], mask=is_column_N[None, :], other=0.0
        )
        score_MN = tl.dot(query_MK, candidate_KN, score_MN, input_precision="ieee")
    return score_MN
