"""The kernels of `device_lists`, in Triton: which cells of sampled lists compete, how many are better, which are best.

Imported only where they are used: Triton decides when it sees a kernel whether it compiles or interprets it.

    mark_cells      lists of entities, true entities and known answers -> a byte for each cell
    count_stored    scores and these bytes -> counts
    draw_cells      random words -> the cells whose scores the AUC compares, and their bytes
    expand_known    where the known answers of queries begin and end -> (query, column) of each
    count_signs     cells that are decided one by one, added to counts
    order_columns   scores, and the best of each row -> numbers, the highest of which are those of the best columns
    merge_best      the best columns of a block -> lists of the best candidates

A cell is a query and a candidate of its list. Bits of its byte: 1, it does not compete; 2, a known answer; 4, an answer
that is known at the query's time. Letters: M queries and N candidates of a program, P cells.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pbgeval.scoring.draw_kernels import joined
from pbgeval.scoring.kernels import kernel

EXCLUDED, KNOWN, IN_TIME = tl.constexpr(1), tl.constexpr(2), tl.constexpr(4)
NOWHERE = tl.constexpr(-1)  # the column of a true entity that is none of the candidates
GROUPS = tl.constexpr(3)  # of cells that are counted: all that compete, known answers, answers known in time
HALF = tl.constexpr(32)  # bits of an int64 that hold the number that tie
LOW_BITS = tl.constexpr((1 << 32) - 1)
ULP = tl.constexpr(2.0**-53)  # of a fraction

# Tensors of lists and known answers, which may begin anywhere in memory.
ANYWHERE = ["entity_ptr", "true_ptr", "outside_ptr", "key_ptr", "known_key_ptr", "known_ptr"]
ANYWHERE += ["timed_key_ptr", "in_time_key_ptr", "in_time_ptr"]


@kernel(*ANYWHERE)
def mark_cells(
    entity_ptr,
    true_ptr,
    outside_ptr,
    key_ptr,
    known_key_ptr,
    known_ptr,
    num_known,
    timed_key_ptr,
    in_time_key_ptr,
    in_time_ptr,
    num_in_time,
    mark_ptr,
    number_ptr,
    num_rows,
    rows_per_list,
    num_columns,
    begins_with_own,
    skips_copies,
    has_outside,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write the mark of each cell, and of each query how many cells compete, are known, known in time, and copies.

    Consecutive `rows_per_list` queries share a list of `entity`. If lists begin with the true entities of their
    queries, each query's own cell does not compete. Nor does a copy of the true entity elsewhere, if copies are
    skipped, nor what is in `outside`. Known answers are pairs (key, entity), in order; a query has those of its key.
    """
    row_M = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row_M = row_M < num_rows
    true_M = tl.load(true_ptr + row_M, mask=is_row_M, other=0)
    first_M, stop_M = _answers(key_ptr + row_M, is_row_M & (num_known > 0), known_key_ptr, num_known)
    timed_first_M, timed_stop_M = _answers(
        timed_key_ptr + row_M, is_row_M & (num_in_time > 0), in_time_key_ptr, num_in_time
    )
    list_M = entity_ptr + (row_M // rows_per_list).to(tl.int64) * num_columns
    own_M = tl.where(begins_with_own != 0, row_M % rows_per_list, NOWHERE)
    competing_M = tl.zeros((ROWS,), tl.int32)
    known_M = tl.zeros((ROWS,), tl.int32)
    in_time_M = tl.zeros((ROWS,), tl.int32)
    copies_M = tl.zeros((ROWS,), tl.int32)
    for start in range(0, num_columns, COLUMNS):
        column_N = start + tl.arange(0, COLUMNS)
        is_cell_MN = is_row_M[:, None] & (column_N < num_columns)[None, :]
        at_MN = row_M.to(tl.int64)[:, None] * num_columns + column_N[None, :]
        entity_MN = tl.load(list_M[:, None] + column_N[None, :], mask=is_cell_MN, other=0)
        is_true_MN = is_cell_MN & (entity_MN == true_M[:, None])
        is_own_MN = is_cell_MN & (column_N[None, :] == own_M[:, None])
        is_copy_MN = is_true_MN & ~is_own_MN & (skips_copies != 0)
        is_outside_MN = tl.load(outside_ptr + at_MN, mask=is_cell_MN & (has_outside != 0), other=0) != 0
        competes_MN = is_cell_MN & ~(is_own_MN | is_copy_MN | is_outside_MN)
        is_other_MN = competes_MN & ~is_true_MN
        is_known_MN = is_other_MN & _are_among(known_ptr, first_M, stop_M, entity_MN)
        is_in_time_MN = is_other_MN & _are_among(in_time_ptr, timed_first_M, timed_stop_M, entity_MN)
        mark_MN = (
            tl.where(competes_MN, 0, EXCLUDED) + tl.where(is_known_MN, KNOWN, 0) + tl.where(is_in_time_MN, IN_TIME, 0)
        )
        tl.store(mark_ptr + at_MN, mark_MN.to(tl.int8), mask=is_cell_MN)
        competing_M += tl.sum(competes_MN.to(tl.int32), 1)
        known_M += tl.sum(is_known_MN.to(tl.int32), 1)
        in_time_M += tl.sum(is_in_time_MN.to(tl.int32), 1)
        copies_M += tl.sum(is_copy_MN.to(tl.int32), 1)
    number_M = number_ptr + row_M
    rows = tl.zeros((ROWS,), tl.int64) + num_rows
    tl.store(number_M, competing_M, mask=is_row_M)
    tl.store(number_M + rows, known_M, mask=is_row_M)
    tl.store(number_M + 2 * rows, in_time_M, mask=is_row_M)
    tl.store(number_M + 3 * rows, copies_M, mask=is_row_M)


@triton.jit
def _answers(key_M, is_row_M, known_key_ptr, num_known):
    """Return where the answers of each query's key begin and end."""
    wanted_M = tl.load(key_M, mask=is_row_M, other=-1)
    none_M = tl.zeros_like(wanted_M)
    end_M = none_M + num_known
    return (
        _lower_bound(known_key_ptr, none_M, end_M, wanted_M),
        _lower_bound(known_key_ptr, none_M, end_M, wanted_M + 1),
    )


@triton.jit
def _are_among(known_ptr, first_M, stop_M, entity_MN):
    """Tell of each entity whether it is one of the answers of its query."""
    none_MN = tl.zeros_like(entity_MN)
    stop_MN = stop_M[:, None] + none_MN
    at_MN = _lower_bound(known_ptr, first_M[:, None] + none_MN, stop_MN, entity_MN)
    return (at_MN < stop_MN) & (tl.load(known_ptr + at_MN, mask=at_MN < stop_MN, other=-1) == entity_MN)


@triton.jit
def _lower_bound(values_ptr, low, high, wanted):
    """Return the first place from `low` up to `high` whose value is not below the wanted one; values ascend."""
    left = tl.max(high - low)
    while left > 0:
        middle = (low + high) // 2
        is_open = low < high
        is_below = tl.load(values_ptr + middle, mask=is_open, other=0) < wanted
        low = tl.where(is_open & is_below, middle + 1, low)
        high = tl.where(is_open & ~is_below, middle, high)
        left = left // 2
    return low


@kernel()
def count_stored(
    score_ptr,
    mark_ptr,
    high_ptr,
    low_ptr,
    number_ptr,
    count_ptr,
    true_ptr,
    overflow_ptr,
    num_rows,
    rows_per_list,
    num_columns,
    num_groups,
    reads_own,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write the counts of each query: better, tied and competing, for each group of cells, int64 (3 * groups, rows).

    The groups are all cells that compete, known answers, and answers known in time. Scores above `high` are better,
    those from `low` up to it tie. If `reads_own`, both are the query's own score in its list, which is written to
    `true`. Where a score is no finite number, `overflow` becomes 1.
    """
    row_M = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row_M = row_M < num_rows
    place_M = row_M.to(tl.int64) * num_columns
    own_M = tl.load(score_ptr + place_M + row_M % rows_per_list, mask=is_row_M & (reads_own != 0), other=0.0)
    limit_M = is_row_M & (reads_own == 0)
    high_M = tl.where(reads_own != 0, own_M, tl.load(high_ptr + row_M, mask=limit_M, other=0.0))
    low_M = tl.where(reads_own != 0, own_M, tl.load(low_ptr + row_M, mask=limit_M, other=0.0))
    tl.store(true_ptr + row_M, own_M, mask=is_row_M & (reads_own != 0))
    infinite_M = tl.zeros((ROWS,), tl.int32)
    of_all_M = tl.zeros((ROWS,), tl.int64)
    of_known_M = tl.zeros((ROWS,), tl.int64)
    of_in_time_M = tl.zeros((ROWS,), tl.int64)
    for start in range(0, num_columns, COLUMNS):
        column_N = start + tl.arange(0, COLUMNS)
        is_cell_MN = is_row_M[:, None] & (column_N < num_columns)[None, :]
        at_MN = place_M[:, None] + column_N[None, :]
        score_MN = tl.load(score_ptr + at_MN, mask=is_cell_MN, other=0.0)
        mark_MN = tl.load(mark_ptr + at_MN, mask=is_cell_MN, other=EXCLUDED)
        better_MN = score_MN > high_M[:, None]
        tied_MN = (score_MN >= low_M[:, None]) & ~better_MN
        both_MN = better_MN.to(tl.int64) + (tied_MN.to(tl.int64) << HALF)
        of_all_M += tl.sum(tl.where((mark_MN & EXCLUDED) == 0, both_MN, 0), 1)
        of_known_M += tl.sum(tl.where((mark_MN & KNOWN) != 0, both_MN, 0), 1)
        of_in_time_M += tl.sum(tl.where((mark_MN & IN_TIME) != 0, both_MN, 0), 1)
        is_finite_MN = tl.abs(score_MN) < float("inf")
        infinite_M += tl.sum((~is_finite_MN).to(tl.int32), 1)
    tl.atomic_max(overflow_ptr + row_M * 0, 1, mask=infinite_M > 0)
    _write_group(number_ptr, count_ptr, of_all_M, row_M, is_row_M, num_rows, 0)
    _write_group(number_ptr, count_ptr, of_known_M, row_M, is_row_M & (num_groups > 1), num_rows, 1)
    _write_group(number_ptr, count_ptr, of_in_time_M, row_M, is_row_M & (num_groups > 2), num_rows, 2)


@triton.jit
def _write_group(number_ptr, count_ptr, both_M, row_M, is_row_M, num_rows, GROUP: tl.constexpr):
    """Write what is better, what ties, and how many cells a group has."""
    place_M = row_M.to(tl.int64)
    rows = tl.zeros_like(place_M) + num_rows
    count_M = count_ptr + place_M + 3 * GROUP * rows
    tl.store(count_M, both_M & LOW_BITS, mask=is_row_M)
    tl.store(count_M + rows, both_M >> HALF, mask=is_row_M)
    number_M = tl.load(number_ptr + place_M + GROUP * rows, mask=is_row_M, other=0)
    tl.store(count_M + 2 * rows, number_M.to(tl.int64), mask=is_row_M)


@kernel("word_ptr")
def draw_cells(
    word_ptr,
    mark_ptr,
    query_ptr,
    column_ptr,
    drawn_ptr,
    kept_ptr,
    num_cells,
    num_draws,
    num_columns,
    rate_low,
    rate_high,
    true_rate_low,
    true_rate_high,
    CELLS: tl.constexpr,
):
    """Write what the words of queries decide (`AucSampling`): cells and their bytes, and which true scores are kept.

    A query has a word for its true score, one for its number of cells, and so many for their columns. There is a cell
    for each of these; those beyond the number do not compete. Rates are the bits of numbers of float64.
    """
    at_P = tl.program_id(0).to(tl.int64) * CELLS + tl.arange(0, CELLS)
    is_cell_P = at_P < num_cells
    query_P, draw_P = at_P // num_draws, at_P % num_draws
    word_P = word_ptr + query_P * (num_draws + 2)
    true_word_P, number_word_P, word_P = (
        tl.load(word_P, mask=is_cell_P, other=0),
        tl.load(word_P + 1, mask=is_cell_P, other=0),
        tl.load(word_P + 2 + draw_P, mask=is_cell_P, other=0).to(tl.uint64, bitcast=True),
    )
    rate, true_rate = (
        joined(rate_low, rate_high).to(tl.float64, bitcast=True),
        joined(true_rate_low, true_rate_high).to(tl.float64, bitcast=True),
    )
    size_P = tl.zeros([CELLS], dtype=tl.uint64) + num_columns.to(tl.uint64)
    column_P = tl.umulhi(word_P, size_P).to(tl.int64, bitcast=True)
    is_drawn_P = draw_P < (_top_bits(number_word_P) * ULP + rate).to(tl.int64)
    mark_P = tl.load(mark_ptr + query_P * num_columns + column_P, mask=is_cell_P, other=0)
    tl.store(query_ptr + at_P, query_P, mask=is_cell_P)
    tl.store(column_ptr + at_P, column_P, mask=is_cell_P)
    tl.store(drawn_ptr + at_P, tl.where(is_drawn_P, mark_P, EXCLUDED).to(tl.int8), mask=is_cell_P)
    is_kept_P = _top_bits(true_word_P) < true_rate  # which is as many times as large
    tl.store(kept_ptr + query_P, is_kept_P.to(tl.int8), mask=is_cell_P & (draw_P == 0))


@triton.jit
def _top_bits(word):
    """Return the top 53 bits of words as numbers of float64."""
    return (word.to(tl.uint64, bitcast=True) >> 11).to(tl.int64, bitcast=True).to(tl.float64)


@kernel("first_ptr", "end_ptr", "known_ptr")
def expand_known(
    first_ptr,
    end_ptr,
    known_ptr,
    query_ptr,
    column_ptr,
    num_runs,
    num_queries,
    start,
    num_cells,
    CELLS: tl.constexpr,
):
    """Write (query, column) of consecutive known answers, of all queries' from place `start`.

    The answers of a query are a run of `known`, which begins at `first`; `end` is the number of answers up to a query.
    There may be two runs of each: of all queries the first, then of all the second.
    """
    at_P = tl.program_id(0).to(tl.int64) * CELLS + tl.arange(0, CELLS)
    is_cell_P = at_P < num_cells
    place_P = tl.where(is_cell_P, at_P + start, 0)
    none_P = tl.zeros_like(place_P)
    run_P = _lower_bound(end_ptr, none_P, none_P + num_runs, place_P + 1)
    before_P = tl.load(end_ptr + run_P - 1, mask=is_cell_P & (run_P > 0), other=0)
    known_P = tl.load(first_ptr + run_P, mask=is_cell_P, other=0) + place_P - before_P
    tl.store(query_ptr + at_P, tl.where(run_P < num_queries, run_P, run_P - num_queries), mask=is_cell_P)
    tl.store(column_ptr + at_P, tl.load(known_ptr + known_P, mask=is_cell_P, other=0), mask=is_cell_P)


@kernel("query_ptr", "sign_ptr", "mark_ptr", "column_ptr")
def count_signs(
    query_ptr,
    sign_ptr,
    mark_ptr,
    column_ptr,
    own_ptr,
    number_ptr,
    count_ptr,
    num_cells,
    num_first,
    num_rows,
    num_columns,
    groups,
    has_marks,
    has_own,
    amount,
    competing,
    CELLS: tl.constexpr,
):
    """Add cells to the counts of their queries, int32 (3 * groups, rows): better, tied and competing of each group.

    There are `num_cells`, or fewer if a `number` says so. Each adds `amount`, and `competing` to what competes. The
    bits of `groups` say of which groups the first `num_first` cells are, and the others of the next group; with marks
    of all cells, these say it. A cell in the column `own` of its query is not counted, where there are such columns.
    """
    at_P = tl.program_id(0).to(tl.int64) * CELLS + tl.arange(0, CELLS)
    is_cell_P = at_P < num_cells
    if number_ptr is not None:
        if tl.program_id(0).to(tl.int64) * CELLS >= tl.load(number_ptr):
            return
        is_cell_P &= at_P < tl.load(number_ptr)
    query_P = tl.load(query_ptr + at_P, mask=is_cell_P, other=0)
    sign_P = tl.load(sign_ptr + at_P, mask=is_cell_P, other=0)
    column_P = tl.load(column_ptr + at_P, mask=is_cell_P, other=0)
    own_P = tl.load(own_ptr + query_P, mask=is_cell_P & (has_own != 0), other=NOWHERE)
    is_cell_P &= (has_own == 0) | (column_P != own_P)
    mark_P = tl.load(mark_ptr + query_P * num_columns + column_P, mask=is_cell_P & (has_marks != 0), other=0)
    groups_P = tl.where(at_P < num_first, groups, groups * 2)
    groups_P = tl.where(has_marks != 0, mark_P.to(tl.int32) ^ EXCLUDED, groups_P)
    for group in tl.static_range(GROUPS):
        count_P = count_ptr + 3 * group * num_rows.to(tl.int64) + query_P
        is_here_P = is_cell_P & (((groups_P >> group) & 1) != 0)
        tl.atomic_add(count_P, amount, mask=is_here_P & (sign_P > 0))
        tl.atomic_add(count_P + num_rows, amount, mask=is_here_P & (sign_P == 0))
        tl.atomic_add(count_P + 2 * num_rows.to(tl.int64), competing, mask=is_here_P & (competing != 0))


@kernel("score_ptr")
def order_columns(score_ptr, best_ptr, order_ptr, num_columns, num_best, COLUMNS: tl.constexpr):
    """Write a number of each score, int32, which is higher for what comes before in a list of as many as `best`.

    Above the last of its row's `best` scores come lower columns first, then those that have this score.
    """
    tiles = tl.cdiv(num_columns, COLUMNS)
    row = (tl.program_id(0) // tiles).to(tl.int64)
    column_N = tl.program_id(0) % tiles * COLUMNS + tl.arange(0, COLUMNS)
    score_N = tl.load(score_ptr + row * num_columns + column_N, mask=column_N < num_columns, other=0.0)
    limit = tl.load(best_ptr + (row + 1) * num_best - 1)
    order_N = ((score_N > limit).to(tl.int32) + (score_N >= limit).to(tl.int32)) * num_columns - column_N
    tl.store(order_ptr + row * num_columns + column_N, order_N, mask=column_N < num_columns)


@kernel("score_ptr", "known_ptr")
def merge_best(
    list_ptr,
    column_ptr,
    order_ptr,
    score_ptr,
    entity_ptr,
    known_ptr,
    merged_ptr,
    first_key,
    num_keys,
    num_kept,
    num_new,
    num_columns,
    num_known,
    PLACES: tl.constexpr,
):
    """Write the best of a list and of a block's best columns, int64 (3, rows of the block, kept); a program has a key.

    A list is (3, keys, kept): the bits of scores of float64, in descending order; the number of each entity plus one, 0
    where there is none; and whether it is a known answer. Of equal scores the lower number comes first. A column whose
    `order` is minus their number is left out. Known answers are cells, row * columns + column, which ascend.
    """
    row, size = tl.program_id(0).to(tl.int64), num_keys.to(tl.int64) * num_kept
    list_ptr += (row + first_key) * num_kept
    column_ptr += row * num_new
    order_ptr += row * num_new
    score_ptr += row * num_columns
    merged_ptr += row * num_kept
    merged_size = tl.num_programs(0).to(tl.int64) * num_kept
    total = num_kept + num_new
    for start in range(0, total, PLACES):
        at_M = start + tl.arange(0, PLACES)
        score_M, number_M, column_M = _candidates(
            list_ptr, column_ptr, order_ptr, score_ptr, entity_ptr, at_M, size, num_kept, num_new, num_columns
        )
        place_M = tl.zeros((PLACES,), tl.int32)
        for first in range(0, total, PLACES):
            at_N = first + tl.arange(0, PLACES)
            score_N, number_N, _ = _candidates(
                list_ptr, column_ptr, order_ptr, score_ptr, entity_ptr, at_N, size, num_kept, num_new, num_columns
            )
            # The number of none, as unsigned minus one, comes after all others.
            before_MN = (number_N - 1).to(tl.uint64, bitcast=True)[None, :]
            after_MN = (number_M - 1).to(tl.uint64, bitcast=True)[:, None]
            is_before_MN = (before_MN < after_MN) | ((before_MN == after_MN) & (at_N[None, :] < at_M[:, None]))
            is_before_MN = (score_N[None, :] > score_M[:, None]) | (
                (score_N[None, :] == score_M[:, None]) & is_before_MN
            )
            place_M += tl.sum((is_before_MN & (at_N < total)[None, :]).to(tl.int32), 1)
        is_new_M = (at_M >= num_kept) & (number_M > 0)
        was_known_M = tl.load(list_ptr + 2 * size + at_M, mask=at_M < num_kept, other=0)
        cell_M, none_M = row * num_columns + column_M, tl.zeros_like(column_M)
        cell_at_M = _lower_bound(known_ptr, none_M, none_M + tl.where(is_new_M, num_known, 0), cell_M)
        found_M = tl.load(known_ptr + cell_at_M, mask=is_new_M & (cell_at_M < num_known), other=-1)
        known_M = tl.where(at_M < num_kept, was_known_M, (is_new_M & (found_M == cell_M)).to(tl.int64))
        is_kept_M = (at_M < total) & (place_M < num_kept)
        tl.store(merged_ptr + place_M, score_M.to(tl.int64, bitcast=True), mask=is_kept_M)
        tl.store(merged_ptr + merged_size + place_M, number_M, mask=is_kept_M)
        tl.store(merged_ptr + 2 * merged_size + place_M, known_M, mask=is_kept_M)


@triton.jit
def _candidates(list_ptr, column_ptr, order_ptr, score_ptr, entity_ptr, at_N, size, num_kept, num_new, num_columns):
    """Return scores, numbers plus one (0: none) and columns of those that are listed, then of new ones."""
    is_listed_N, new_N = at_N < num_kept, at_N - num_kept
    is_new_N = (new_N >= 0) & (new_N < num_new)
    column_N = tl.load(column_ptr + new_N, mask=is_new_N, other=0)
    is_new_N &= tl.load(order_ptr + new_N, mask=is_new_N, other=0) != -num_columns
    listed_N = tl.load(list_ptr + at_N, mask=is_listed_N, other=0).to(tl.float64, bitcast=True)
    score_N = tl.load(score_ptr + column_N, mask=is_new_N, other=0.0).to(tl.float64)
    number_N = tl.load(list_ptr + size + at_N, mask=is_listed_N, other=0)
    number_N = tl.where(is_new_N, tl.load(entity_ptr + column_N, mask=is_new_N, other=0) + 1, number_N)
    score_N = tl.where(number_N > 0, tl.where(is_new_N, score_N, listed_N), float("-inf"))
    return score_N, number_N, column_N
