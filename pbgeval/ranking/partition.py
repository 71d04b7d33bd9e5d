"""Queries of one relation -> counts against every entity of the bucket's partition (`candidates = "partition"`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial

import numpy as np
import torch
from attrs import define, field, frozen
from torch import Tensor

from pbgeval.errors import DataError
from pbgeval.notation import Side
from pbgeval.ranking import blocks, fused
from pbgeval.ranking.block_threads import MOST_THREADS, BlockThreads
from pbgeval.ranking.certified import Bfloat16Use, CertifiedQueries, count_certified, count_certified_compiled
from pbgeval.ranking.chunk_loops import ROWS_AT_A_TIME
from pbgeval.ranking.chunks import RelationGroup, concatenated_ranges, group_by_relation
from pbgeval.ranking.compiled_block import BlockCells, Cells, candidates_per_block, count_compiled, count_fused
from pbgeval.ranking.general import BlockCounter
from pbgeval.ranking.groups import Group, first_nan, first_nan_of_pairs, largest, overflow_is_impossible
from pbgeval.ranking.known_counts import are_among, count_cells, expand_by_row, own_cells, ties_of_twins
from pbgeval.ranking.settings import KnownInUnit, PassSettings
from pbgeval.ranking.tally import LossFold, SideTally
from pbgeval.scoring.block_scorer import ScorerRelation
from pbgeval.scoring.duplicates import Twins
from pbgeval.scoring.fast_products import PreparedRows, fast_scores, values_of_cells
from pbgeval.scoring.true_scores import CertifiedTrue, TrueScores
from pbgeval.stats.ranks import QueryCounts, RankCounts

# Queries of one block and the candidates of a partition -> the cells of a block of scores that are not like others.


@define
class PartitionQueries:
    """Queries of one block, while candidates stream past."""

    rows_Q: Tensor
    prepared_QD: Tensor
    true: TrueScores | CertifiedTrue
    own_Q: Tensor  # position of each true entity among the candidates
    counts: QueryCounts
    fold: LossFold | None
    auc_query: Tensor = field(factory=lambda: torch.empty(0, dtype=torch.int64))
    auc_candidate: Tensor = field(factory=lambda: torch.empty(0, dtype=torch.int64))
    known: tuple[Tensor, Tensor] | None = None  # (query, position of candidate) of known answers; None: no filter
    certified: CertifiedQueries | None = None  # the same queries, if ranks are certified

    @property
    def float_true(self) -> TrueScores:
        """True scores to compare with, where ranks are not certified."""
        assert isinstance(self.true, TrueScores), "certified ranks are counted elsewhere"
        return self.true


@frozen(eq=False)
class PartitionCandidates:
    """Who competes: rows of the partition."""

    rows_C: np.ndarray | None  # int64, sorted; None: all
    num_candidates: int

    def ids(self, start: int, stop: int) -> Tensor:
        return torch.arange(start, stop) if self.rows_C is None else torch.from_numpy(self.rows_C[start:stop])

    def vectors(self, group: Group, hidden: Side, start: int, stop: int) -> Tensor:
        table = group.side(hidden).table
        if self.rows_C is None:
            return table.range_of_rows(start, stop, group.relation.dtype)
        return table.rows(self.ids(start, stop), group.relation.dtype)

    def positions(self, rows: np.ndarray) -> np.ndarray:
        """Return where rows of the partition are among the candidates; -1 where they are not."""
        if self.rows_C is None:
            return rows
        if not self.rows_C.size:
            return np.full(rows.shape, -1, np.int64)
        at = np.minimum(np.searchsorted(self.rows_C, rows), self.rows_C.size - 1)
        return np.where(self.rows_C[at] == rows, at, -1)


def known_answers(
    known: KnownInUnit, rows_Q: Tensor, own_Q: Tensor, candidates: PartitionCandidates
) -> tuple[Tensor, Tensor]:
    """Return (query, position) of the known answers of a block's keys, by position, its own left in.

    Queries with one key share them: they are listed for the first of its queries in the block.
    """
    key_Q = known.key_E[rows_Q.numpy()]
    keys, first_Q = np.unique(key_Q, return_index=True)
    low, high = np.searchsorted(known.key_P, keys), np.searchsorted(known.key_P, keys, "right")
    position = candidates.positions(known.row_P[concatenated_ranges(low, high - low)])
    query = np.repeat(first_Q, high - low)
    order = np.argsort(position, kind="stable")
    order = order[np.searchsorted(position[order], 0) :]  # those that are candidates
    return torch.from_numpy(query[order]), torch.from_numpy(position[order])


def twins_in_block(queries: PartitionQueries, twins: Twins, start: int, num_columns: int) -> tuple[Tensor, Tensor]:
    """Return (query, column) of the candidates with a query's true vector."""
    own_Q = queries.own_Q - start
    own_here_Q = torch.where(own_Q < num_columns, own_Q, -1)
    query, column = twins.of_queries(queries.float_true.hash_Q.cpu().numpy(), own_here_Q.numpy())
    return torch.from_numpy(query), torch.from_numpy(column)


def sampled_in_block(queries: PartitionQueries, start: int, num_columns: int) -> tuple[Tensor, Tensor]:
    """Return (query, column) of the cells that the pooled AUC samples."""
    here = (queries.auc_candidate >= start) & (queries.auc_candidate < start + num_columns)
    return queries.auc_query[here], queries.auc_candidate[here] - start


def known_in_block(
    group: Group, hidden: Side, queries: PartitionQueries, start: int, num_columns: int
) -> tuple[Tensor, Tensor] | None:
    """Return (query, column) of the known answers of every query within a block of candidates, its own left out."""
    if queries.known is None or group.competition.known is None:
        return None
    first, stop = np.searchsorted(queries.known[1].numpy(), [start, start + num_columns])
    key_Q = torch.from_numpy(group.competition.known[hidden].key_E[queries.rows_Q.numpy()])
    keys, row_Q = torch.unique(key_Q, return_inverse=True)
    row_P = row_Q[queries.known[0][first:stop]]
    order = torch.argsort(row_P)
    column_P = queries.known[1][first:stop][order] - start
    query, entry = expand_by_row(row_Q, row_P[order], keys.numel())
    column = column_P[entry]
    others = column != (queries.own_Q - start)[query]
    return query[others], column[others]


# A block of queries and a run of a partition's candidates -> counts: by scores, exactly, or without keeping scores.


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


QUERIES_PER_BLOCK = 1024
FUSED_CANDIDATES_PER_BLOCK = 1 << 16  # where scores stay in no memory
SCORER_CANDIDATES_PER_BLOCK = 1 << 13  # a model may score all entities for each block
# Ranges of candidates that are prepared together, and that a thread takes a block of queries through; for any number of
# threads, so that of several errors the same is raised.
RANGES_PER_TURN = {Way.SCORES: 8, Way.COMPILED: 2, Way.FUSED: 1}
CANDIDATES_PER_BLOCK = 1024  # block shapes change no number but the last bits of a loss, so they are fixed


def count_against_partition(
    group: Group,
    rows_E: Tensor,
    settings: PassSettings,
    auc_words: dict[Side, np.ndarray | None],
    tallies: dict[Side, SideTally],
    counter: BlockCounter,
) -> None:
    """Rank the edges of a group against all entities of each side's partition that may compete."""
    sets = group.competition.sets
    by_relation = sets is not None and sets.by_relation
    parts = group_by_relation(group.edges.rel, rows_E) if by_relation else [RelationGroup(-1, rows_E)]
    for hidden in settings.sides:
        for part in parts:
            allowed = group.allowed_rows(hidden, part.relation)
            num_candidates = group.side(hidden).table.num_rows if allowed is None else len(allowed)
            candidates = PartitionCandidates(allowed, num_candidates)
            work = PartitionWork(group, hidden, candidates, settings, auc_words[hidden], tallies[hidden], counter)
            way = _way(work, part.rows_E)
            for rows_E in _rows_together(group, part.rows_E):
                _count_rows(work, rows_E, way)


def _rows_together(group: Group, rows_E: Tensor) -> Sequence[Tensor]:
    """Return all rows; of a model that scores all entities at once as many as it keeps the scores of."""
    scorer = group.relation.scorer
    if isinstance(scorer, ScorerRelation) and scorer.comparator.by_rows is not None:
        return torch.split(rows_E, scorer.comparator.by_rows.queries_per_block)
    return [rows_E]


def _way(work: PartitionWork, rows_E: Tensor) -> Way:
    """Choose a way that leaves the scores that somebody asks for.

    Certified ranks are not left to the fast ways: their vectors are in float64 until they are prepared.
    """
    scorer, settings = work.group.relation.scorer, work.settings
    if settings.loss is not None or settings.auc.exact or scorer.certified is not None:
        return Way.SCORES
    device, dtype = work.group.side(work.hidden).table.device, work.group.relation.dtype
    if fused.serves(scorer.comparator, device, dtype):
        return Way.FUSED
    num_cells = rows_E.numel() * work.candidates.num_candidates
    return Way.COMPILED if blocks.serves(scorer.comparator, device, dtype, num_cells) else Way.SCORES


def _count_rows(work: PartitionWork, rows_E: Tensor, way: Way) -> None:
    group, hidden, candidates = work.group, work.hidden, work.candidates
    own_E = candidates.positions(group.side(hidden).ids_E[rows_E].numpy())
    inside_E = torch.from_numpy(own_E >= 0)
    work.tally.add_outside(int((~inside_E).sum()))
    threads = BlockThreads.of_device(group.side(hidden).table.device, MOST_THREADS)
    if isinstance(group.relation.scorer, ScorerRelation):  # a user's function need not bear several threads
        threads = BlockThreads(1)
    queries_per_block = QUERIES_PER_BLOCK
    if way is Way.COMPILED:  # each block is one thread's, and none shall be idle
        of_thread = -(-rows_E.numel() // threads.num_threads)
        queries_per_block = min(-(-of_thread // ROWS_AT_A_TIME) * ROWS_AT_A_TIME, QUERIES_PER_BLOCK)
    query_blocks = [
        _start(work, rows_Q, own_Q, way)
        for rows_Q, own_Q in zip(
            torch.split(rows_E[inside_E], queries_per_block),
            torch.split(torch.from_numpy(own_E)[inside_E], queries_per_block),
            strict=True,
        )
        if rows_Q.numel()
    ]
    width = _width(work, way, query_blocks)
    starts = range(0, candidates.num_candidates if query_blocks else 0, width)
    for first in range(0, len(starts), RANGES_PER_TURN[way]):
        turn = starts[first : first + RANGES_PER_TURN[way]]
        counts = threads.map(partial(_count_range, work, width, way), turn)
        threads.map(partial(_count_all, counts), query_blocks)
    for queries in query_blocks:
        _finish(work, queries)


def _width(work: PartitionWork, way: Way, query_blocks: list[PartitionQueries]) -> int:
    """Return how many candidates are prepared at a time."""
    if isinstance(work.group.relation.scorer, ScorerRelation):
        return SCORER_CANDIDATES_PER_BLOCK
    if way is Way.COMPILED and query_blocks:
        return candidates_per_block(query_blocks[0].prepared_QD.shape[1])
    return FUSED_CANDIDATES_PER_BLOCK if way is Way.FUSED else CANDIDATES_PER_BLOCK


def _count_range(work: PartitionWork, width: int, way: Way, start: int) -> Callable[[PartitionQueries], None]:
    """Prepare a range of candidates; return what counts them for a block of queries."""
    group, hidden, candidates = work.group, work.hidden, work.candidates
    stop = min(start + width, candidates.num_candidates)
    vectors_CD = candidates.vectors(group, hidden, start, stop)
    prepared_CD = group.candidates(hidden, vectors_CD, candidates.ids(start, stop))
    certified = group.relation.scorer.certified
    if certified is not None:
        of_range = PreparedRows(certified, prepared_CD, of_queries=False)
        return lambda queries: count_certified_block(work, queries, of_range, start)
    twins = Twins.of_rows(prepared_CD)
    if way is Way.SCORES:
        return lambda queries: count_block(work, queries, prepared_CD, twins, start)
    return lambda queries: count_block_forgetting(work, queries, prepared_CD, twins, start, way)


def _count_all(counts: Sequence[Callable[[PartitionQueries], None]], queries: PartitionQueries) -> None:
    for count in counts:
        count(queries)


def _start(work: PartitionWork, rows_Q: Tensor, own_Q: Tensor, way: Way) -> PartitionQueries:
    group, hidden, settings = work.group, work.hidden, work.settings
    known = group.side(hidden.other)
    true_ids_Q = group.side(hidden).ids_E[rows_Q]
    prepared_QD = group.queries(hidden, known.rows(known.ids_E[rows_Q]), rows_Q)
    true_rows_QD = group.candidates(hidden, group.side(hidden).rows(true_ids_Q), true_ids_Q)
    comparator, exact = group.relation.scorer.comparator, group.relation.scorer.certified
    true: TrueScores | CertifiedTrue
    certified = None
    if exact is not None:
        true = CertifiedTrue.of_pairs(exact, prepared_QD, true_rows_QD)
        certified = CertifiedQueries(exact, PreparedRows(exact, prepared_QD, of_queries=True), None, true)
    else:
        true = TrueScores.of_pairs(
            comparator, prepared_QD, true_rows_QD, fused.paired_scores if way is Way.FUSED else None
        )
        bad = first_nan_of_pairs(comparator, prepared_QD, true_rows_QD, true.score_Q)
        if bad is not None:
            raise group.nan_score(hidden, int(rows_Q[bad]), int(true_ids_Q[bad]))
    fold = None
    if settings.loss is not None:
        true_Q = true.value_Q if isinstance(true, CertifiedTrue) else true.score_Q
        fold = LossFold(settings.loss.name, settings.loss.margin, comparator, true_Q)
    queries = PartitionQueries(
        rows_Q,
        prepared_QD,
        true,
        own_Q,
        QueryCounts.unfiltered(RankCounts.zero(rows_Q.numel(), prepared_QD.device)),
        fold,
        certified=certified,
    )
    if work.auc_words_EW is not None:
        query, candidate = settings.auc.cells(work.auc_words_EW[rows_Q.numpy()], work.candidates.num_candidates)
        kept = candidate != own_Q[query]
        queries.auc_query, queries.auc_candidate = query[kept], candidate[kept]
    if group.competition.known is not None:
        queries.known = known_answers(group.competition.known[hidden], rows_Q, own_Q, work.candidates)
    return queries


def _finish(work: PartitionWork, queries: PartitionQueries) -> None:
    work.tally.add_queries(queries.rows_Q, queries.counts)
    if queries.fold is not None:
        lengths_Q = torch.full_like(queries.counts.raw.competing_Q, work.candidates.num_candidates)
        if not work.settings.pbg_semantics:
            lengths_Q = queries.counts.filtered.competing_Q
        work.tally.add_losses(queries.fold.finish(lengths_Q, work.group.weights(queries.rows_Q)))
    true = queries.true
    true_Q = true.value_Q if isinstance(true, CertifiedTrue) else true.kernel_Q  # as competitors' scores are made
    rows_Q = queries.rows_Q
    if work.auc_words_EW is not None:
        kept_Q = work.settings.auc.true_is_kept(work.auc_words_EW[rows_Q.numpy()])
        true_Q, rows_Q = true_Q[kept_Q.to(true_Q.device)], rows_Q[kept_Q]
    work.tally.add_true_scores(true_Q, rows_Q)
