"""Queries of one relation -> counts against every entity of the bucket's partition (`candidates = "partition"`)."""

from __future__ import annotations

import numpy as np
import torch
from attrs import define, field
from torch import Tensor

from pbgeval.counting.general import BlockCounter
from pbgeval.notation import Side
from pbgeval.passes.groups import Group
from pbgeval.passes.nan import first_nan
from pbgeval.passes.settings import PassSettings
from pbgeval.passes.tally import LossFold, SideTally
from pbgeval.ranking import RankCounts

CELLS_AT_A_TIME = 1 << 16
QUERIES_PER_BLOCK = 1024
CANDIDATES_PER_BLOCK = 1024  # block shapes change no number but the last bits of a loss, so they are fixed


@define
class _Queries:
    """Queries of one block, while candidates stream past."""

    rows_Q: Tensor
    true_ids_Q: Tensor
    prepared_QD: Tensor
    true_rows_QD: Tensor
    kernel_true_Q: Tensor  # scores of the true entities from the kernel that scores candidates
    true_Q: Tensor  # what candidates are compared with: the same, but under pbg_semantics
    counts: RankCounts
    fold: LossFold | None
    auc_query: Tensor = field(factory=lambda: torch.empty(0, dtype=torch.int64))
    auc_candidate: Tensor = field(factory=lambda: torch.empty(0, dtype=torch.int64))


def count_against_partition(
    group: Group,
    rows_E: Tensor,
    settings: PassSettings,
    auc_words: dict[Side, np.ndarray | None],
    tallies: dict[Side, SideTally],
    counter: BlockCounter,
) -> None:
    """Rank the edges of a group against all entities of each side's partition."""
    for hidden in settings.sides:
        blocks = [
            _start(group, hidden, rows_Q, settings, auc_words[hidden])
            for rows_Q in torch.split(rows_E, QUERIES_PER_BLOCK)
        ]
        table = group.side(hidden).table
        for start in range(0, table.num_rows, CANDIDATES_PER_BLOCK):
            stop = min(start + CANDIDATES_PER_BLOCK, table.num_rows)
            ids_C = torch.arange(start, stop)
            candidates_CD = group.candidates(hidden, table.range_of_rows(start, stop, group.relation.dtype), ids_C)
            for queries in blocks:
                _count_block(group, hidden, queries, candidates_CD, start, settings, tallies[hidden], counter)
        for queries in blocks:
            _finish(group, queries, settings, table.num_rows, auc_words[hidden], tallies[hidden])


def _start(
    group: Group, hidden: Side, rows_Q: Tensor, settings: PassSettings, auc_words_EW: np.ndarray | None
) -> _Queries:
    known = group.side(hidden.other)
    true_ids_Q = group.side(hidden).ids_E[rows_Q]
    prepared_QD = group.queries(hidden, known.rows(known.ids_E[rows_Q]), rows_Q)
    true_rows_QD = group.candidates(hidden, group.side(hidden).rows(true_ids_Q), true_ids_Q)
    comparator = group.relation.scorer.comparator
    kernel_true_Q = comparator.paired_scores(prepared_QD, true_rows_QD)
    # PBG sums its true scores elementwise, which rounds less: near-ties fall as they do there.
    true_Q = comparator.pbg_true_scores(prepared_QD, true_rows_QD) if settings.pbg_semantics else kernel_true_Q
    if bool(torch.isnan(true_Q).any()):
        bad = int(torch.isnan(true_Q).nonzero()[0])
        raise group.nan_score(hidden, int(rows_Q[bad]), int(true_ids_Q[bad]))
    fold = None
    if settings.loss is not None:
        fold = LossFold(settings.loss.name, settings.loss.margin, comparator, true_Q)
    queries = _Queries(
        rows_Q,
        true_ids_Q,
        prepared_QD,
        true_rows_QD,
        kernel_true_Q,
        true_Q,
        RankCounts.zero(rows_Q.numel(), true_Q.device),
        fold,
    )
    if auc_words_EW is not None:
        list_length = group.side(hidden).table.num_rows
        query, candidate = settings.auc.cells(auc_words_EW[rows_Q.numpy()], list_length)
        kept = candidate != true_ids_Q[query]
        queries.auc_query, queries.auc_candidate = query[kept], candidate[kept]
    return queries


def _count_block(
    group: Group,
    hidden: Side,
    queries: _Queries,
    candidates_CD: Tensor,
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
        raise group.nan_score(hidden, int(queries.rows_Q[bad]), start + candidate)
    scores_QC = scores_BQC[0]
    own_C = queries.true_ids_Q - start
    query = ((own_C >= 0) & (own_C < scores_QC.shape[1])).nonzero().squeeze(1)
    excluded = (query, own_C[query])
    queries.counts = queries.counts + counter.count(scores_QC, queries.true_Q, excluded)
    if settings.pbg_semantics:
        queries.counts = queries.counts + _identical_ties(queries, candidates_CD, scores_QC, own_C)
    if queries.fold is not None:
        queries.fold.fold(scores_QC, excluded)
    if settings.auc.exact:
        competes_QC = torch.ones(scores_QC.shape, dtype=torch.bool)
        competes_QC[excluded] = False
        tally.add_scores(None, scores_QC[competes_QC.to(scores_QC.device)])
        return
    here = (queries.auc_candidate >= start) & (queries.auc_candidate < start + scores_QC.shape[1])
    device = scores_QC.device
    cells = (queries.auc_query[here].to(device), (queries.auc_candidate[here] - start).to(device))
    tally.add_scores(None, scores_QC[cells])


def _identical_ties(queries: _Queries, candidates_CD: Tensor, scores_QC: Tensor, own_C: Tensor) -> RankCounts:
    """Return the correction that makes candidates with the true entity's very vector tie with it (law 2).

    Only under pbg_semantics, where they are compared with a score from another kernel.
    """
    correction = RankCounts.zero(scores_QC.shape[0], scores_QC.device)
    cells = (scores_QC == queries.kernel_true_Q.unsqueeze(1)).nonzero()
    cells = cells[own_C.to(cells.device)[cells[:, 0]] != cells[:, 1]]
    for part in torch.split(cells, CELLS_AT_A_TIME):
        query, candidate = part.unbind(1)
        identical = (queries.true_rows_QD[query] == candidates_CD[candidate]).all(1)
        query, candidate = query[identical], candidate[identical]
        scores, true = scores_QC[query, candidate], queries.true_Q[query]
        correction.better_Q.index_add_(0, query, (scores > true).long(), alpha=-1)
        correction.tied_Q.index_add_(0, query, (scores != true).long())
    return correction


def _finish(
    group: Group,
    queries: _Queries,
    settings: PassSettings,
    num_candidates: int,
    auc_words_EW: np.ndarray | None,
    tally: SideTally,
) -> None:
    tally.add_queries(queries.counts)
    if queries.fold is not None:
        lengths_Q = torch.full_like(queries.counts.competing_Q, num_candidates)
        if not settings.pbg_semantics:
            lengths_Q = queries.counts.competing_Q
        tally.add_losses(queries.fold.finish(lengths_Q, group.weights(queries.rows_Q)))
    true_Q = queries.true_Q
    if auc_words_EW is not None:
        true_Q = true_Q[settings.auc.true_is_kept(auc_words_EW[queries.rows_Q.numpy()]).to(true_Q.device)]
    tally.add_scores(true_Q, None)
