"""The request to a backend, prepared queries and their candidates, and its result.

A block is B grids of queries and candidates. If all queries share their candidates, B is 1; if candidates are sampled,
each chunk is a grid. The host decides here which cells are special. The backend alone decides how scores are made and
compared (`backend`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import torch
from attrs import define, evolve, frozen
from torch import Tensor

from pbgeval.notation import Side
from pbgeval.ranking.counting import NO_CELLS, CellIndex
from pbgeval.ranking.groups import Ends, no_overflow
from pbgeval.scoring import device_exact, device_lists, device_scores
from pbgeval.scoring.entities import EntityTable
from pbgeval.scoring.exact import ExactComparator
from pbgeval.scoring.fast_products import PreparedRows
from pbgeval.scoring.scorer import EdgeScorer
from pbgeval.scoring.true_scores import ExactTrue, TrueScores, row_hashes
from pbgeval.stats.ranks import QueryCounts
from pbgeval.storage.transfers import sent, sent_together


@define
class NotANumberError(Exception):
    """A score is not a number; the caller translates `row` and `column` into a query and a candidate."""

    row: int
    column: int


@frozen(eq=False)
class QueryRows:
    """Some queries and the prepared rows that they share."""

    rows_BKD: Tensor
    row_Q: Tensor  # int64, on the CPU, ascending: each query's row among all B * K
    # True scores to compare candidates with, of all queries; None: read each query's own cell in the block.
    true: TrueScores | ExactTrue | None
    exact_comparator: ExactComparator | None = None
    each_own: bool = False  # whether each query has a row of its own, in order
    sent_row_Q: Tensor | None = None  # `row_Q`, if it is on the device already

    @property
    def num_queries(self) -> int:
        return self.row_Q.numel()

    @property
    def rows_KD(self) -> Tensor:
        """The rows of all grids, one after the other."""
        return self.rows_BKD.flatten(0, 1)

    @property
    def exact_true(self) -> ExactTrue:
        """The true scores, where ranks are exact."""
        assert isinstance(self.true, ExactTrue), "ranks are exact"
        return self.true

    @cached_property
    def own_rows_BQD(self) -> Tensor:
        """The row of each query, in order."""
        return self.rows_BKD if self.each_own else self.rows_KD[self.row_on_device_Q][None]

    @cached_property
    def exact(self) -> device_exact.ExactRows:
        """The row of each query as a GPU's kernels of exact ranks read it."""
        assert self.exact_comparator is not None, "the caller has checked"
        return device_exact.ExactRows.from_prepared(self.exact_comparator, self.own_rows_BQD, of_queries=True)

    @cached_property
    def row_on_device_Q(self) -> Tensor:
        device = self.rows_BKD.device
        if self.sent_row_Q is not None:
            return self.sent_row_Q
        return torch.arange(self.num_queries, device=device) if self.each_own else sent(self.row_Q, device)

    @cached_property
    def ends(self) -> Ends:
        """The lowest and the highest number."""
        return torch.aminmax(self.rows_BKD)

    @cached_property
    def prepared(self) -> PreparedRows:
        """The rows in the form that fast products use; only for exact ranks."""
        assert self.exact_comparator is not None, "the caller has checked"
        return PreparedRows(self.exact_comparator, self.rows_BKD, of_queries=True)


@frozen(eq=False)
class CandidateRows:
    """Prepared rows of candidates; values derived from them are cached for all blocks that share them."""

    rows_BCD: Tensor
    exact_comparator: ExactComparator | None = None

    @property
    def num_columns(self) -> int:
        return self.rows_BCD.shape[1]

    @property
    def rows_CD(self) -> Tensor:
        """The rows of all grids, one after the other."""
        return self.rows_BCD.flatten(0, 1)

    @cached_property
    def ends(self) -> Ends:
        """The lowest and the highest number."""
        return torch.aminmax(self.rows_BCD)

    @cached_property
    def prepared(self) -> PreparedRows:
        """The rows in the form that fast products use; only for exact ranks."""
        assert self.exact_comparator is not None, "the caller has checked"
        return PreparedRows(self.exact_comparator, self.rows_BCD, of_queries=False)

    @cached_property
    def exact(self) -> device_exact.ExactRows:
        """The rows as a GPU's kernels of exact ranks read them."""
        assert self.exact_comparator is not None, "the caller has checked"
        return device_exact.ExactRows.from_prepared(self.exact_comparator, self.rows_BCD, of_queries=False)

    @cached_property
    def columns(self) -> device_scores.Columns:
        """The rows of one grid as a GPU's kernels read them."""
        return device_scores.Columns.from_rows(self.rows_BCD[0], self.hash_C)

    @cached_property
    def hash_C(self) -> Tensor:
        """The hash of each row of one grid."""
        return row_hashes(self.rows_BCD[0])

    def between(self, start: int, stop: int) -> CandidateRows:
        """Return the columns from `start` up to `stop`."""
        if start <= 0 and stop >= self.num_columns:
            return self
        return CandidateRows(self.rows_BCD[:, start:stop], self.exact_comparator)


@frozen(eq=False)
class Block:
    """The queries and candidates to count. Columns are numbered within a grid.

    Cells are on the CPU; those of sampled lists are on the device.
    """

    queries: QueryRows
    candidates: CandidateRows
    own_Q: Tensor  # column of each query's true entity, which does not compete; out of range if it is no candidate
    known: CellIndex | None  # (row, column) of known answers, each once, by row; None: nothing is filtered
    excluded: CellIndex | None = None  # (query, column) of other noncompeting cells, each once, none known
    read: CellIndex | None = None  # (row, column), by row, of the cells whose scores are requested; None: no cells
    # What every cell is, in place of `own_Q`, `known` and `excluded`: sampled lists on a GPU. None: these say it.
    marks: device_lists.Marks | None = None
    # (key, column), by key, of what a time-aware filter leaves out; and each query's key, -1: none. None: no filter.
    in_time: tuple[Tensor, Tensor, Tensor] | None = None

    @property
    def device(self) -> torch.device:
        return self.queries.rows_BKD.device

    @cached_property
    def own_on_device_Q(self) -> Tensor:
        return sent(self.own_Q, self.device)

    @cached_property
    def known_on_device(self) -> CellIndex | None:
        return self.known and moved(self.known, self.device)

    @cached_property
    def excluded_on_device(self) -> CellIndex | None:
        return self.excluded and moved(self.excluded, self.device)

    @property
    def num_groups(self) -> int:
        """Groups of cells that are counted, where no marks are: all that compete, and what each filter removes."""
        assert self.in_time is None or self.known is not None, "there is a filter that does not go by time"
        return 1 + (self.known is not None) + (self.in_time is not None)

    @property
    def is_one_grid(self) -> bool:
        return self.queries.rows_BKD.shape[0] == 1

    @property
    def num_columns(self) -> int:
        return self.candidates.num_columns

    @property
    def may_overflow(self) -> bool:
        """Whether overflow might make a score not a number."""
        width = self.queries.rows_BKD.shape[2]
        return not no_overflow(self.queries.ends, self.candidates.ends, width)

    def between(self, start: int, stop: int) -> Block:
        """Return the columns from `start` up to `stop` of each grid, without cells to read."""
        known, excluded = (_columns_between(cells, start, stop) for cells in (self.known, self.excluded))
        in_time = self.in_time and _columns_between(self.in_time[:2], start, stop)
        return evolve(
            self,
            candidates=self.candidates.between(start, stop),
            own_Q=self.own_Q - start,
            known=known,
            excluded=excluded,
            read=None,
            in_time=self.in_time and in_time and (*in_time, self.in_time[2]),
            marks=self.marks and self.marks.between(start, stop),
        )


def _columns_between(cells: CellIndex | None, start: int, stop: int) -> CellIndex | None:
    """Return the cells of some columns, numbered from the first of these."""
    if cells is None:
        return None
    here = (cells[1] >= start) & (cells[1] < stop)
    return cells[0][here], cells[1][here] - start


@frozen(eq=False)
class Counted:
    """The result of counting a block."""

    counts: QueryCounts
    true_Q: Tensor  # the score of each query's true entity, as it was compared or as it is reported
    read_P: Tensor  # scores of the requested cells
    # (query, column) of cells that count as tied until they are decided, if ranks are exact; None: too many to list
    open: CellIndex | None
    scores_KC: Tensor | None  # all scores, if the backend keeps them


@frozen(eq=False)
class ChunkLists:
    """Chunks of edges and their shared lists of candidates, as ids, for a backend that gathers rows itself."""

    scorer: EdgeScorer
    tables: Mapping[Side, EntityTable]
    ids: Mapping[Side, Tensor]  # (B, K): the chunks' own entities, and on a hidden side behind them the candidates
    hidden: tuple[Side, ...]  # the sides that queries hide
    rel_BQ: Tensor | None  # None: relations are not dynamic
    shape: torch.Size  # (chunks, queries per chunk)
    first: int  # where candidates begin in `ids`: 0 if the chunk's own entities are among them
    reads_all_scores: bool  # whether the cells to read hold all scores that are asked for

    @property
    def num_chunks(self) -> int:
        return self.shape[0]

    @property
    def num_queries(self) -> int:
        return self.shape.numel()

    @property
    def num_cells(self) -> int:
        return self.num_queries * sum(self.num_candidates(side) for side in self.hidden)

    def num_candidates(self, hidden: Side) -> int:
        """Return how many candidates a query has that hides a side; 0 if none does."""
        return self.ids[hidden].shape[1] - self.first if hidden in self.hidden else 0


@frozen(eq=False)
class ListCells:
    """The special cells of lists, (query, column), by query; and which true scores are read."""

    excluded: CellIndex  # cells that do not compete
    known: CellIndex  # known answers, none of them excluded
    read: CellIndex  # cells whose scores are requested
    true_is_read_Q: Tensor | None  # None: all


NO_LIST_CELLS = ListCells(NO_CELLS, NO_CELLS, NO_CELLS, None)


def moved(cells: CellIndex, device: torch.device) -> CellIndex:
    """Move cells to a device."""
    row_P, column_P = sent_together(device, *cells)
    return row_P, column_P
