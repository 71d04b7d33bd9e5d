"""A block of queries and a run of a partition's candidates -> counts: by scores, exactly, or without keeping scores."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

import numpy as np
import torch
from attrs import field, frozen
from torch import Tensor

from pbgeval.counting.general import BlockCounter
from pbgeval.counting.known import are_among, count_cells, own_cells, ties_of_twins
from pbgeval.errors import DataError
from pbgeval.notation import Side
from pbgeval.passes.certified import Bfloat16Use, count_certified, count_certified_compiled
from pbgeval.passes.compiled_block import count_compiled
from pbgeval.passes.fused_block import BlockCells, Cells, count_fused
from pbgeval.passes.groups import Group
from pbgeval.passes.nan import first_nan, largest, overflow_is_impossible
from pbgeval.passes.partition_cells import (
    PartitionCandidates,
    PartitionQueries,
    known_in_block,
    sampled_in_block,
    twins_in_block,
)
from pbgeval.passes.settings import PassSettings
from pbgeval.passes.tally import SideTally
from pbgeval.ranking import QueryCounts
from pbgeval.scoring.fast_products import PreparedRows, fast_scores, values_of_cells
from pbgeval.scoring.twins import Twins


class Way(Enum):
    """How candidates are counted."""

    SCORES = "by blocks of scores"
    COMPILED = "by a loop on a CPU that forgets scores"
    FUSED = "by a kernel on a GPU that forgets them"


@frozen(eq=False)
class PartitionWork:
    """What all queries of some edges that hide one side have in common."""

    group: Group
    hidden: Side
    candidates: PartitionCandidates
    settings: PassSettings
    auc_words_EW: np.ndarray | None
    tally: SideTally
    counter: BlockCounter
    bfloat16: Bfloat16Use = field(factory=Bfloat16Use, init=False)  # if ranks are certified

    def nan_score(self, queries: PartitionQueries, query: int, position: int) -> DataError:
        """Return the error that names a query and the candidate at a position."""
        entity = int(self.candidates.ids(position, position + 1)[0])
        return self.group.nan_score(self.hidden, int(queries.rows_Q[query]), entity)

    def cells(self, queries: PartitionQueries, start: int, num_columns: int) -> tuple[Cells, Cells | None]:
        """Return (query, column) of the true entities in a block, and of the known answers; None: no filter."""
        excluded = own_cells(queries.own_Q - start, num_columns)
        return excluded, known_in_block(self.group, self.hidden, queries, start, num_columns)


def count_block(
    work: PartitionWork, queries: PartitionQueries, candidates_CD: Tensor, twins: Twins, start: int
) -> None:
    """Count candidates by their scores; `start` is the position of the first."""
    scores_QC, true = _scores(work, queries, candidates_CD, start), queries.float_true
    num_columns = scores_QC.shape[1]
    excluded, known = work.cells(queries, start, num_columns)
    raw = work.counter.count(scores_QC, true.score_Q, excluded)
    counts = QueryCounts.unfiltered(raw)
    if known is not None:
        counts = QueryCounts(raw, count_cells(scores_QC, true.score_Q, known))
    queries.counts = queries.counts + counts
    query, column = twins_in_block(queries, twins, start, num_columns)
    if query.numel():
        is_known = are_among(query, column, known, num_columns)
        twin_scores = scores_QC[query.to(scores_QC.device), column.to(scores_QC.device)]
        queries.counts = queries.counts + ties_of_twins(twin_scores, true.score_Q, true.kernel_Q, query, is_known)
    _hand_over(work, queries, scores_QC, lambda query, column: scores_QC[query, column], start, excluded, known)


def _scores(work: PartitionWork, queries: PartitionQueries, candidates_CD: Tensor, start: int) -> Tensor:
    """Return the scores (Q, C) of a run of candidates, none of them NaN."""
    comparator = work.group.relation.scorer.comparator
    rows = queries.prepared_QD.unsqueeze(0), candidates_CD.unsqueeze(0)
    scores_BQC = comparator.scores(*rows)
    not_a_number = first_nan(comparator, *rows, scores_BQC)
    if not_a_number is not None:
        raise work.nan_score(queries, not_a_number[1], start + not_a_number[2])
    return scores_BQC[0]


def count_certified_block(work: PartitionWork, queries: PartitionQueries, candidates: PreparedRows, start: int) -> None:
    """Do the same in exact arithmetic: scores are fast ones, or values where all of them are handed over."""
    exact = queries.certified
    assert exact is not None, "the caller has asked"
    wants_values = queries.fold is not None or work.settings.auc.exact
    num_columns, device = candidates.rows_NL.shape[0], candidates.rows_NL.device
    excluded, known = work.cells(queries, start, num_columns)
    found = None
    if not wants_values:
        found = count_certified_compiled(exact, candidates, queries.own_Q - start, known, work.bfloat16)
    if found is not None:
        queries.counts = queries.counts + found
        query, column = sampled_in_block(queries, start, num_columns)
        scores_P = values_of_cells(exact.prepared, query, candidates, column)
        is_known = None if known is None else are_among(query, column, known, num_columns)
        work.tally.add_scores(scores_P, queries.rows_Q[query], is_known)
        return
    fast = fast_scores(exact.prepared, candidates, values=wants_values)
    queries.counts = queries.counts + count_certified(
        exact, candidates.rows_NL, 0, fast, work.counter, _to(excluded, device), known and _to(known, device)
    )

    def values(query: Tensor, column: Tensor) -> Tensor:
        return values_of_cells(exact.prepared, query, candidates, column)

    _hand_over(work, queries, fast.scores_KC, values, start, excluded, known)


def count_block_forgetting(
    work: PartitionWork, queries: PartitionQueries, candidates_CD: Tensor, twins: Twins, start: int, way: Way
) -> None:
    """Do what `count_block` does without a block of scores in memory: in a kernel on a GPU, or in a compiled loop."""
    num_columns, dimension = candidates_CD.shape
    may_overflow = not overflow_is_impossible(largest(queries.prepared_QD), largest(candidates_CD), dimension)
    if may_overflow and way is Way.COMPILED:
        count_block(work, queries, candidates_CD, twins, start)
        return
    if may_overflow:
        _scores(work, queries, candidates_CD, start)  # refuses NaN; the kernel has bits of its own, so it counts
    own, known = work.cells(queries, start, num_columns)
    twin_cells = twins_in_block(queries, twins, start, num_columns)
    sampled = sampled_in_block(queries, start, num_columns)
    cells = BlockCells(
        own=own,
        known=known,
        twins=twin_cells,
        twin_is_known=are_among(*twin_cells, known, num_columns),
        sampled=sampled,
    )
    row_Q = torch.arange(queries.rows_Q.numel(), device=candidates_CD.device)
    true = queries.float_true
    if way is Way.COMPILED:
        found = count_compiled(queries.prepared_QD, candidates_CD, true, row_Q, cells)
    else:
        found = count_fused(queries.prepared_QD, candidates_CD, true, row_Q, cells)
    queries.counts = queries.counts + found.counts
    is_known = None if known is None else are_among(*sampled, known, num_columns)
    work.tally.add_scores(found.sampled_score_P, queries.rows_Q[sampled[0]], is_known)


def _hand_over(
    work: PartitionWork,
    queries: PartitionQueries,
    scores_QC: Tensor,
    scores_of: Callable[[Tensor, Tensor], Tensor],
    start: int,
    excluded: Cells,
    known: Cells | None,
) -> None:
    """Give the loss and the pooled AUC what they ask for: all scores, or those of some (query, column)."""
    if queries.fold is not None:
        barred = excluded if known is None else tuple(map(torch.cat, zip(excluded, known, strict=True)))
        queries.fold.fold(scores_QC, (barred[0], barred[1]))
    device = scores_QC.device
    known_QC = None
    if known is not None:
        known_QC = torch.zeros(scores_QC.shape, dtype=torch.bool)
        known_QC[known] = True
    if work.settings.auc.exact:
        competes_QC = torch.ones(scores_QC.shape, dtype=torch.bool)
        competes_QC[excluded] = False
        is_known = None if known_QC is None else known_QC[competes_QC]
        rows_QC = queries.rows_Q.unsqueeze(1).expand_as(competes_QC)
        work.tally.add_scores(scores_QC[competes_QC.to(device)], rows_QC[competes_QC], is_known)
        return
    query, column = sampled_in_block(queries, start, scores_QC.shape[1])
    scores = scores_of(query.to(device), column.to(device))
    work.tally.add_scores(scores, queries.rows_Q[query], None if known_QC is None else known_QC[query, column])


def _to(cells: Cells, device: torch.device) -> Cells:
    return cells[0].to(device), cells[1].to(device)
