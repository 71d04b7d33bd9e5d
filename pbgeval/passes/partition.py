"""Queries of one relation -> counts against every entity of the bucket's partition (`candidates = "partition"`)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from pbgeval.candidates.chunks import RelationGroup, group_by_relation
from pbgeval.counting import fused
from pbgeval.counting.general import BlockCounter
from pbgeval.counting.known import count_cells, ties_of_twins
from pbgeval.notation import Side
from pbgeval.passes.certified import CertifiedQueries, count_certified
from pbgeval.passes.fused_block import BlockCells, count_fused
from pbgeval.passes.groups import Group
from pbgeval.passes.nan import first_nan, largest, overflow_is_impossible
from pbgeval.passes.partition_cells import (
    PartitionCandidates,
    PartitionQueries,
    are_among,
    known_answers,
    known_in_block,
    own_in_block,
    sampled_in_block,
    twins_in_block,
)
from pbgeval.passes.settings import PassSettings
from pbgeval.passes.tally import LossFold, SideTally
from pbgeval.ranking import QueryCounts, RankCounts
from pbgeval.scoring.fast_products import PreparedRows, fast_scores, values_of_cells
from pbgeval.scoring.true_scores import CertifiedTrue, TrueScores
from pbgeval.scoring.twins import Twins

QUERIES_PER_BLOCK = 1024
FUSED_CANDIDATES_PER_BLOCK = 1 << 16  # where scores stay in no memory
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
            _count_rows(group, hidden, part, settings, auc_words[hidden], tallies[hidden], counter)


def _count_rows(
    group: Group,
    hidden: Side,
    part: RelationGroup,
    settings: PassSettings,
    auc_words_EW: np.ndarray | None,
    tally: SideTally,
    counter: BlockCounter,
) -> None:
    allowed = group.allowed_rows(hidden, part.relation)
    candidates = PartitionCandidates(allowed, group.side(hidden).table.num_rows if allowed is None else len(allowed))
    own_E = candidates.positions(group.side(hidden).ids_E[part.rows_E].numpy())
    inside_E = torch.from_numpy(own_E >= 0)
    tally.add_outside(int((~inside_E).sum()))
    blocks = [
        _start(group, hidden, rows_Q, own_Q, candidates, settings, auc_words_EW)
        for rows_Q, own_Q in zip(
            torch.split(part.rows_E[inside_E], QUERIES_PER_BLOCK),
            torch.split(torch.from_numpy(own_E)[inside_E], QUERIES_PER_BLOCK),
            strict=True,
        )
        if rows_Q.numel()
    ]
    is_fused = _is_fused(group, hidden, settings)
    width = FUSED_CANDIDATES_PER_BLOCK if is_fused else CANDIDATES_PER_BLOCK
    for start in range(0, candidates.num_candidates if blocks else 0, width):
        stop = min(start + width, candidates.num_candidates)
        vectors_CD = candidates.vectors(group, hidden, start, stop)
        prepared_CD = group.candidates(hidden, vectors_CD, candidates.ids(start, stop))
        certified = group.relation.scorer.certified
        if certified is not None:
            of_block = PreparedRows(certified, prepared_CD, of_queries=False)
            for queries in blocks:
                _count_certified_block(group, hidden, queries, of_block, start, settings, tally, counter)
            continue
        twins = Twins.of_rows(prepared_CD)
        for queries in blocks:
            if is_fused:
                _count_block_fused(group, hidden, queries, candidates, prepared_CD, twins, start, tally)
                continue
            _count_block(group, hidden, queries, candidates, prepared_CD, twins, start, settings, tally, counter)
    for queries in blocks:
        _finish(group, queries, settings, candidates.num_candidates, auc_words_EW, tally)


def _is_fused(group: Group, hidden: Side, settings: PassSettings) -> bool:
    """Whether one kernel on a GPU counts: nobody asks for the scores that it forgets.

    Never for certified ranks: their vectors are in float64 until they are prepared, and it has float32 alone.
    """
    serves = fused.serves(group.relation.scorer.comparator, group.side(hidden).table.device, group.relation.dtype)
    return serves and settings.loss is None and not settings.auc.exact


def _start(
    group: Group,
    hidden: Side,
    rows_Q: Tensor,
    own_Q: Tensor,
    candidates: PartitionCandidates,
    settings: PassSettings,
    auc_words_EW: np.ndarray | None,
) -> PartitionQueries:
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
        paired = fused.paired_scores if _is_fused(group, hidden, settings) else None
        true = TrueScores.of_pairs(comparator, prepared_QD, true_rows_QD, paired)
        if bool(torch.isnan(true.score_Q).any()):
            bad = int(torch.isnan(true.score_Q).nonzero()[0])
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
    if auc_words_EW is not None:
        query, candidate = settings.auc.cells(auc_words_EW[rows_Q.numpy()], candidates.num_candidates)
        kept = candidate != own_Q[query]
        queries.auc_query, queries.auc_candidate = query[kept], candidate[kept]
    if group.competition.known is not None:
        queries.known = known_answers(group.competition.known[hidden], rows_Q, own_Q, candidates)
    return queries


def _count_block(
    group: Group,
    hidden: Side,
    queries: PartitionQueries,
    candidates: PartitionCandidates,
    candidates_CD: Tensor,
    twins: Twins,
    start: int,
    settings: PassSettings,
    tally: SideTally,
    counter: BlockCounter,
) -> None:
    comparator = group.relation.scorer.comparator
    scores_BQC = comparator.scores(queries.prepared_QD.unsqueeze(0), candidates_CD.unsqueeze(0))
    not_a_number = first_nan(queries.prepared_QD, candidates_CD, scores_BQC)
    if not_a_number is not None:
        _, bad, candidate = not_a_number
        raise group.nan_score(hidden, int(queries.rows_Q[bad]), int(candidates.ids(start, start + candidate + 1)[-1]))
    scores_QC = scores_BQC[0]
    excluded = own_in_block(queries, start, scores_QC.shape[1])
    known = known_in_block(group, hidden, queries, start, scores_QC.shape[1])
    true = queries.true
    assert isinstance(true, TrueScores), "certified ranks are counted elsewhere"
    raw = counter.count(scores_QC, true.score_Q, excluded)
    counts = QueryCounts.unfiltered(raw)
    if known is not None:
        counts = QueryCounts(raw, count_cells(scores_QC, true.score_Q, known))
    queries.counts = queries.counts + counts
    query, column = twins_in_block(queries, true, twins, start, scores_QC.shape[1])
    if query.numel():
        is_known = are_among(query, column, known, scores_QC.shape[1])
        queries.counts = queries.counts + ties_of_twins(
            scores_QC[query.to(scores_QC.device), column.to(scores_QC.device)],
            true.score_Q,
            true.kernel_Q,
            query,
            is_known,
        )
    _hand_over(
        queries, scores_QC, lambda query, column: scores_QC[query, column], start, excluded, known, settings, tally
    )


def _count_certified_block(
    group: Group,
    hidden: Side,
    queries: PartitionQueries,
    candidates: PreparedRows,
    start: int,
    settings: PassSettings,
    tally: SideTally,
    counter: BlockCounter,
) -> None:
    """Do the same in exact arithmetic: scores are fast ones, or values where all of them are handed over."""
    exact = queries.certified
    assert exact is not None, "the caller has asked"
    fast = fast_scores(exact.prepared, candidates, values=queries.fold is not None or settings.auc.exact)
    num_columns = candidates.rows_NL.shape[0]
    excluded = own_in_block(queries, start, num_columns)
    known = known_in_block(group, hidden, queries, start, num_columns)
    device = candidates.rows_NL.device
    on_device = None if known is None else (known[0].to(device), known[1].to(device))
    queries.counts = queries.counts + count_certified(
        exact, candidates.rows_NL, 0, fast, counter, (excluded[0].to(device), excluded[1].to(device)), on_device
    )

    def values(query: Tensor, column: Tensor) -> Tensor:
        return values_of_cells(exact.prepared, query, candidates, column)

    _hand_over(queries, fast.scores_KC, values, start, excluded, known, settings, tally)


def _hand_over(
    queries: PartitionQueries,
    scores_QC: Tensor,
    scores_of: Callable[[Tensor, Tensor], Tensor],
    start: int,
    excluded: tuple[Tensor, Tensor],
    known: tuple[Tensor, Tensor] | None,
    settings: PassSettings,
    tally: SideTally,
) -> None:
    """Give the loss and the pooled AUC what they ask for: all scores, or those of some (query, column)."""
    if queries.fold is not None:
        barred = excluded if known is None else tuple(map(torch.cat, zip(excluded, known, strict=True)))
        queries.fold.fold(scores_QC, (barred[0], barred[1]))
    _pool_block(queries, scores_QC, scores_of, start, excluded, known, settings, tally)


def _count_block_fused(
    group: Group,
    hidden: Side,
    queries: PartitionQueries,
    candidates: PartitionCandidates,
    candidates_CD: Tensor,
    twins: Twins,
    start: int,
    tally: SideTally,
) -> None:
    """Do what `_count_block` does without a block of scores in memory."""
    true = queries.true
    assert isinstance(true, TrueScores), "certified ranks are counted elsewhere"
    num_columns, dimension = candidates_CD.shape
    known = known_in_block(group, hidden, queries, start, num_columns)
    twin_cells = twins_in_block(queries, true, twins, start, num_columns)
    sampled = sampled_in_block(queries, start, num_columns)
    found = count_fused(
        queries.prepared_QD,
        candidates_CD,
        true,
        torch.arange(queries.rows_Q.numel(), device=candidates_CD.device),
        BlockCells(
            own=own_in_block(queries, start, num_columns),
            known=known,
            twins=twin_cells,
            twin_is_known=are_among(*twin_cells, known, num_columns),
            sampled=sampled,
        ),
        check_nan=not overflow_is_impossible(largest(queries.prepared_QD), largest(candidates_CD), dimension),
    )
    if found.nan is not None:
        bad, candidate = found.nan
        raise group.nan_score(hidden, int(queries.rows_Q[bad]), int(candidates.ids(start, start + candidate + 1)[-1]))
    queries.counts = queries.counts + found.counts
    tally.add_scores(found.sampled_score_P, None if known is None else are_among(*sampled, known, num_columns))


def _pool_block(
    queries: PartitionQueries,
    scores_QC: Tensor,
    scores_of: Callable[[Tensor, Tensor], Tensor],
    start: int,
    excluded: tuple[Tensor, Tensor],
    known: tuple[Tensor, Tensor] | None,
    settings: PassSettings,
    tally: SideTally,
) -> None:
    """Hand the pooled AUC the scores of a block's competitors."""
    device = scores_QC.device
    known_QC = None
    if known is not None:
        known_QC = torch.zeros(scores_QC.shape, dtype=torch.bool)
        known_QC[known] = True
    if settings.auc.exact:
        competes_QC = torch.ones(scores_QC.shape, dtype=torch.bool)
        competes_QC[excluded] = False
        tally.add_scores(scores_QC[competes_QC.to(device)], None if known_QC is None else known_QC[competes_QC])
        return
    query, column = sampled_in_block(queries, start, scores_QC.shape[1])
    scores = scores_of(query.to(device), column.to(device))
    tally.add_scores(scores, None if known_QC is None else known_QC[query, column])


def _finish(
    group: Group,
    queries: PartitionQueries,
    settings: PassSettings,
    num_candidates: int,
    auc_words_EW: np.ndarray | None,
    tally: SideTally,
) -> None:
    tally.add_queries(queries.rows_Q, queries.counts)
    if queries.fold is not None:
        lengths_Q = torch.full_like(queries.counts.raw.competing_Q, num_candidates)
        if not settings.pbg_semantics:
            lengths_Q = queries.counts.filtered.competing_Q
        tally.add_losses(queries.fold.finish(lengths_Q, group.weights(queries.rows_Q)))
    true = queries.true
    true_Q = true.value_Q if isinstance(true, CertifiedTrue) else true.kernel_Q  # as competitors' scores are made
    if auc_words_EW is not None:
        true_Q = true_Q[settings.auc.true_is_kept(auc_words_EW[queries.rows_Q.numpy()]).to(true_Q.device)]
    tally.add_true_scores(true_Q)
