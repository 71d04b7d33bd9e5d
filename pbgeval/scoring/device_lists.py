"""Lists of sampled candidates on a GPU -> a mark for each of their cells, and counts of scores by these marks.

A CPU has lists of the cells that are special, which are few. A GPU has a byte for each cell: it is made by one kernel
that looks every candidate up among the known answers of its query, and read by those that count.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from types import ModuleType

import torch
from attrs import frozen
from torch import Tensor

from pbgeval.scoring.device_scores import launch

ROWS, COLUMNS = 16, 32  # of a program, of either kernel
CELLS = 256  # of a program that adds cells
ORDERED = 1024  # columns of a program
PLACES = 32  # of lists that are compared at a time
EXCLUDED, KNOWN, IN_TIME = 1, 2, 4  # bits of a mark
_LOW_32 = 0xFFFFFFFF
ALL = 1  # beside KNOWN, a group of cells: bits of groups are those of marks, but for the first


@functools.cache
def _kernels() -> ModuleType:
    from pbgeval.scoring import list_kernels

    return list_kernels


@frozen(eq=False)
class KnownEntities:
    """Pairs (key, entity), in order; a query has the answers of its key."""

    key_Q: Tensor  # int64; -1: it has none
    key_P: Tensor  # int64
    entity_P: Tensor  # int64


@frozen(eq=False)
class Marks:
    """What the cells of some lists are."""

    mark_QC: Tensor  # int8
    number_4Q: Tensor  # int32: competing, known, known in time, copies of the true entity
    num_filters: int

    @property
    def num_copies_Q(self) -> Tensor:
        return self.number_4Q[3]

    @property
    def num_groups(self) -> int:
        """All that compete, and what each filter removes."""
        return 1 + self.num_filters

    @property
    def competes_QC(self) -> Tensor:
        """Whether each cell competes, bool."""
        return (self.mark_QC & EXCLUDED) == 0

    def between(self, start: int, stop: int) -> Marks:
        """Return those of the columns from `start` up to `stop`."""
        mark_QC = self.mark_QC[:, start:stop].contiguous()
        counted = (mark_QC & EXCLUDED) == 0, (mark_QC & KNOWN) != 0, (mark_QC & IN_TIME) != 0
        number_3Q = torch.stack([of.sum(1) for of in counted]).int()
        return Marks(mark_QC, torch.cat([number_3Q, self.number_4Q[3:]]), self.num_filters)


def marks(
    entity_BC: Tensor,
    true_BQ: Tensor,
    filters: Sequence[KnownEntities],
    outside_QC: Tensor | None,
    *,
    begins_with_own: bool,
    skips_copies: bool,
) -> Marks:
    """Mark the cells of lists of candidates.

    Args:
        entity_BC: int64, the candidates of each list.
        true_BQ: int64, the true entity of each of a list's queries.
        filters: the answers that each filter knows, at most two: the second goes by time.
        outside_QC: bool, further cells that do not compete; None: there are none.
        begins_with_own: whether a list begins with the true entities of its queries.
        skips_copies: whether a copy of a query's true entity elsewhere in the list does not compete.
    """
    (num_queries, num_columns), num_rows = (true_BQ.shape[1], entity_BC.shape[1]), true_BQ.numel()
    mark_QC = torch.empty((num_rows, num_columns), dtype=torch.int8, device=entity_BC.device)
    number_4Q = torch.empty((4, num_rows), dtype=torch.int32, device=entity_BC.device)
    nothing = mark_QC if outside_QC is None else outside_QC.view(torch.int8)
    known, in_time = ((*filters, *[None] * 2)[at] for at in range(2))
    true_Q = true_BQ.flatten()
    launch(
        _kernels().mark_cells,
        -(-num_rows // ROWS),
        entity_BC.contiguous(),
        true_Q,
        nothing,
        *_arguments(known, true_Q),
        *_arguments(in_time, true_Q),
        mark_QC,
        number_4Q,
        num_rows,
        num_queries,
        num_columns,
        int(begins_with_own),
        int(skips_copies),
        int(outside_QC is not None),
        ROWS=ROWS,
        COLUMNS=COLUMNS,
    )
    return Marks(mark_QC, number_4Q, len(filters))


def _arguments(known: KnownEntities | None, unread: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
    if known is None:
        return unread, unread, unread, 0
    return known.key_Q.contiguous(), known.key_P, known.entity_P, known.key_P.numel()


@frozen(eq=False)
class CountedScores:
    """What `count` finds."""

    count_NQ: Tensor  # int64: better, tied and competing of all that compete, and of what each filter removes
    true_Q: Tensor  # the true scores: the higher limits
    overflow: Tensor  # int32: 1 if a score is no finite number


def count(
    scores_QC: Tensor, marks: Marks, limits: tuple[Tensor, Tensor] | None, queries_per_list: int
) -> CountedScores:
    """Count scores: above the higher limit is better, from the lower one up to it ties.

    Args:
        scores_QC: of all cells.
        marks: of all cells.
        limits: of each query, (high, low); None: both are the query's own score, with which its list begins.
        queries_per_list: so many queries share a list.
    """
    num_rows, num_columns = scores_QC.shape
    count_NQ = torch.empty((3 * marks.num_groups, num_rows), dtype=torch.int64, device=scores_QC.device)
    true_Q = scores_QC.new_empty(num_rows)
    overflow = torch.zeros(1, dtype=torch.int32, device=scores_QC.device)
    high_Q, low_Q = (scores_QC, scores_QC) if limits is None else (of.contiguous() for of in limits)
    launch(
        _kernels().count_stored,
        -(-num_rows // ROWS),
        scores_QC,
        marks.mark_QC,
        high_Q,
        low_Q,
        marks.number_4Q,
        count_NQ,
        true_Q,
        overflow,
        num_rows,
        queries_per_list,
        num_columns,
        marks.num_groups,
        int(limits is None),
        ROWS=ROWS,
        COLUMNS=COLUMNS,
    )
    return CountedScores(count_NQ, true_Q if limits is None else limits[0], overflow)


@frozen(eq=False)
class DrawnCells:
    """The cells whose scores the AUC compares, as many of each query, and which true scores it does."""

    query_P: Tensor  # int64
    column_P: Tensor  # int64
    mark_P: Tensor  # int8; those that were not drawn do not compete
    true_is_kept_Q: Tensor  # bool


def draw(words_QD: Tensor, marks: Marks, rate: float, true_rate: float) -> DrawnCells:
    """Draw cells by the words of their queries: one for the true score, one for the number of cells, then columns.

    Args:
        words_QD: int64, random bits.
        marks: of all cells.
        rate: how many cells a query has, in expectation.
        true_rate: the probability that a true score is kept.
    """
    (num_queries, num_words), device = words_QD.shape, words_QD.device
    num_cells = num_queries * (num_words - 2)
    query_P, column_P = (torch.empty(num_cells, dtype=torch.int64, device=device) for _ in range(2))
    mark_P = torch.empty(num_cells, dtype=torch.int8, device=device)
    is_kept_Q = torch.empty(num_queries if num_cells else 0, dtype=torch.int8, device=device)
    if not num_cells:  # nothing is compared
        return DrawnCells(query_P, column_P, mark_P, torch.zeros(num_queries, dtype=torch.bool, device=device))
    launch(
        _kernels().draw_cells,
        -(-num_cells // CELLS),
        words_QD.contiguous(),
        marks.mark_QC,
        query_P,
        column_P,
        mark_P,
        is_kept_Q,
        num_cells,
        num_words - 2,
        marks.mark_QC.shape[1],
        *halves(_bits(rate), 2),
        *halves(_bits(true_rate * 2.0**53), 2),
        CELLS=CELLS,
    )
    return DrawnCells(query_P, column_P, mark_P, is_kept_Q.view(torch.bool))


def _bits(number: float) -> int:
    return int.from_bytes(struct.pack("<d", number), "little")


def halves(number: int, count: int) -> list[int]:
    """Return a number as signed numbers of 32 bits, the lowest first: a kernel takes all of them as of one type."""
    return [((number >> 32 * at & _LOW_32) ^ 1 << 31) - (1 << 31) for at in range(count)]


@frozen(eq=False)
class KnownOfQueries:
    """Known answers of many queries: runs of columns, one of each query, or of all queries one and then another."""

    num_queries: int
    first_n: Tensor  # int64: where a run begins among all columns
    end_n: Tensor  # int64: how many answers the runs up to this one have
    column_P: Tensor  # int64

    def cells(self, start: int, number: int) -> tuple[Tensor, Tensor]:
        """Return (query, column) of so many answers of all queries' from a place."""
        query_P, column_P = (torch.empty(number, dtype=torch.int64, device=self.end_n.device) for _ in range(2))
        launch(
            _kernels().expand_known,
            -(-number // CELLS),
            self.first_n,
            self.end_n,
            self.column_P,
            query_P,
            column_P,
            self.end_n.numel(),
            self.num_queries,
            start,
            number,
            CELLS=CELLS,
        )
        return query_P, column_P


def add_signs(
    count_NQ: Tensor,
    cells: tuple[Tensor, Tensor],
    sign_P: Tensor,
    of: Marks | int,
    *,
    number: Tensor | None = None,
    num_first: int | None = None,
    amount: int = 1,
    competing: int = 0,
    but_own_Q: Tensor | None = None,
) -> None:
    """Add cells that are better (1), tie (0) or are worse (-1) to counts.

    Args:
        count_NQ: int32: better, tied and competing of each group of cells.
        cells: the query and the column of each.
        sign_P: int8.
        of: the marks of all cells, or `ALL` or `KNOWN`: the group that all of these are of.
        number: on the device, how many cells there are; None: all.
        num_first: how many are of that group, the others being of the next one; None: all.
        amount: what each adds to better or tied; -1 takes it back.
        competing: what each adds to those that compete.
        but_own_Q: of each query a column that is left out.
    """
    num_cells = sign_P.numel()
    if not num_cells:
        return
    query_P, column_P = (of_cells.contiguous() for of_cells in cells)
    mark_QC = of.mark_QC if isinstance(of, Marks) else sign_P[None]  # not read
    own_Q = query_P if but_own_Q is None else but_own_Q.contiguous()
    launch(
        _kernels().count_signs,
        -(-num_cells // CELLS),
        query_P,
        sign_P,
        mark_QC,
        column_P,
        own_Q,
        number,
        count_NQ,
        num_cells,
        num_cells if num_first is None else num_first,
        count_NQ.shape[1],
        mark_QC.shape[1],
        0 if isinstance(of, Marks) else of,
        int(isinstance(of, Marks)),
        int(but_own_Q is not None),
        amount,
        competing,
        CELLS=CELLS,
    )


def order_columns(scores_KC: Tensor, best_Kk: Tensor) -> Tensor:
    """Return a number of each score, int32: the k highest are those of the k best of a row.

    Of equal scores, lower columns come first.

    Args:
        scores_KC: of a block.
        best_Kk: the k best of each row, in descending order.
    """
    num_rows, num_columns = scores_KC.shape
    order_KC = torch.empty((num_rows, num_columns), dtype=torch.int32, device=scores_KC.device)
    launch(
        _kernels().order_columns,
        num_rows * -(-num_columns // ORDERED),
        scores_KC,
        best_Kk,
        order_KC,
        num_columns,
        best_Kk.shape[1],
        COLUMNS=ORDERED,
    )
    return order_KC


def merge_best(
    lists_3Kk: Tensor,
    first_key: int,
    chosen: tuple[Tensor, Tensor],
    scores_KC: Tensor,
    entity_id_C: Tensor,
    known_P: Tensor,
) -> Tensor:
    """Return the lists of the keys of a block, with the best of its columns, int64 (3, K, k).

    Args:
        lists_3Kk: of all keys: bits of scores of float64, entity ids plus one (0: none), whether it is a known answer.
        first_key: of the block.
        chosen: numbers of `order_columns` of the best columns, and the columns; minus C: it is left out.
        scores_KC: of the block.
        entity_id_C: int64.
        known_P: int64: the known answers, row * C + column, which ascend.
    """
    num_rows, num_columns = scores_KC.shape
    _, num_keys, num_kept = lists_3Kk.shape
    merged_3Kk = lists_3Kk.new_empty((3, num_rows, num_kept))
    launch(
        _kernels().merge_best,
        num_rows,
        lists_3Kk,
        chosen[1],
        chosen[0],
        scores_KC,
        entity_id_C,
        known_P,
        merged_3Kk,
        first_key,
        num_keys,
        num_kept,
        chosen[1].shape[1],
        num_columns,
        known_P.numel(),
        PLACES=PLACES,
    )
    return merged_3Kk
