"""Queries of one relation -> counts against every entity of the bucket's partition (`candidates = "partition"`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from pbgeval.candidates.chunks import RelationGroup, group_by_relation
from pbgeval.counting import blocks, fused
from pbgeval.counting.chunk_loops import ROWS_AT_A_TIME
from pbgeval.counting.general import BlockCounter
from pbgeval.notation import Side
from pbgeval.passes.block_threads import MOST_THREADS, BlockThreads
from pbgeval.passes.certified import CertifiedQueries
from pbgeval.passes.compiled_block import candidates_per_block
from pbgeval.passes.groups import Group
from pbgeval.passes.nan import first_nan_of_pairs
from pbgeval.passes.partition_blocks import (
    PartitionWork,
    Way,
    count_block,
    count_block_forgetting,
    count_certified_block,
)
from pbgeval.passes.partition_cells import PartitionCandidates, PartitionQueries, known_answers
from pbgeval.passes.settings import PassSettings
from pbgeval.passes.tally import LossFold, SideTally
from pbgeval.ranking import QueryCounts, RankCounts
from pbgeval.scoring.block_scorer import ScorerRelation
from pbgeval.scoring.fast_products import PreparedRows
from pbgeval.scoring.true_scores import CertifiedTrue, TrueScores
from pbgeval.scoring.twins import Twins

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
