"""Queries of one relation -> counts against every entity of the bucket's partition (`candidates = "partition"`)."""

from __future__ import annotations

import numpy as np
import torch
from attrs import define, field, frozen
from torch import Tensor

from pbgeval.candidates.chunks import RelationGroup, group_by_relation
from pbgeval.candidates.ranges import concatenated_ranges
from pbgeval.counting import fused
from pbgeval.counting.general import BlockCounter
from pbgeval.counting.known import count_cells, expand_by_row, ties_of_twins
from pbgeval.notation import Side
from pbgeval.passes.fused_block import BlockCells, count_fused
from pbgeval.passes.groups import Group
from pbgeval.passes.nan import first_nan, largest, overflow_is_impossible
from pbgeval.passes.settings import KnownInUnit, PassSettings
from pbgeval.passes.tally import LossFold, SideTally
from pbgeval.ranking import QueryCounts, RankCounts
from pbgeval.scoring.true_scores import TrueScores
from pbgeval.scoring.twins import Twins

QUERIES_PER_BLOCK = 1024
FUSED_CANDIDATES_PER_BLOCK = 1 << 16  # where scores stay in no memory
CANDIDATES_PER_BLOCK = 1024  # block shapes change no number but the last bits of a loss, so they are fixed


@define
class _Queries:
    """Queries of one block, while candidates stream past."""

    rows_Q: Tensor
    prepared_QD: Tensor
    true: TrueScores
    own_C: Tensor  # position of each true entity among the candidates
    counts: QueryCounts
    fold: LossFold | None
    auc_query: Tensor = field(factory=lambda: torch.empty(0, dtype=torch.int64))
    auc_candidate: Tensor = field(factory=lambda: torch.empty(0, dtype=torch.int64))
    known: tuple[Tensor, Tensor] | None = None  # (query, position of candidate) of known answers; None: no filter


@frozen(eq=False)
class _Candidates:
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
    candidates = _Candidates(allowed, group.side(hidden).table.num_rows if allowed is None else len(allowed))
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
        twins = Twins.of_rows(prepared_CD)
        for queries in blocks:
            if is_fused:
                _count_block_fused(group, hidden, queries, candidates, prepared_CD, twins, start, tally)
                continue
            _count_block(group, hidden, queries, candidates, prepared_CD, twins, start, settings, tally, counter)
    for queries in blocks:
        _finish(group, queries, settings, candidates.num_candidates, auc_words_EW, tally)


def _is_fused(group: Group, hidden: Side, settings: PassSettings) -> bool:
    """Whether one kernel on a GPU counts: nobody asks for the scores that it forgets."""
    serves = fused.serves(group.relation.scorer.comparator, group.side(hidden).table.device, group.relation.dtype)
    return serves and settings.loss is None and not settings.auc.exact


def _start(
    group: Group,
    hidden: Side,
    rows_Q: Tensor,
    own_Q: Tensor,
    candidates: _Candidates,
    settings: PassSettings,
    auc_words_EW: np.ndarray | None,
) -> _Queries:
    known = group.side(hidden.other)
    true_ids_Q = group.side(hidden).ids_E[rows_Q]
    prepared_QD = group.queries(hidden, known.rows(known.ids_E[rows_Q]), rows_Q)
    true_rows_QD = group.candidates(hidden, group.side(hidden).rows(true_ids_Q), true_ids_Q)
    comparator = group.relation.scorer.comparator
    paired = fused.paired_scores if _is_fused(group, hidden, settings) else None
    true = TrueScores.of_pairs(comparator, prepared_QD, true_rows_QD, paired)
    if bool(torch.isnan(true.score_Q).any()):
        bad = int(torch.isnan(true.score_Q).nonzero()[0])
        raise group.nan_score(hidden, int(rows_Q[bad]), int(true_ids_Q[bad]))
    fold = None
    if settings.loss is not None:
        fold = LossFold(settings.loss.name, settings.loss.margin, comparator, true.score_Q)
    queries = _Queries(
        rows_Q,
        prepared_QD,
        true,
        own_Q,
        QueryCounts.unfiltered(RankCounts.zero(rows_Q.numel(), prepared_QD.device)),
        fold,
    )
    if auc_words_EW is not None:
        query, candidate = settings.auc.cells(auc_words_EW[rows_Q.numpy()], candidates.num_candidates)
        kept = candidate != own_Q[query]
        queries.auc_query, queries.auc_candidate = query[kept], candidate[kept]
    if group.competition.known is not None:
        queries.known = _known_answers(group.competition.known[hidden], rows_Q, own_Q, candidates)
    return queries


def _known_answers(known: KnownInUnit, rows_Q: Tensor, own_Q: Tensor, candidates: _Candidates) -> tuple[Tensor, Tensor]:
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


def _count_block(
    group: Group,
    hidden: Side,
    queries: _Queries,
    candidates: _Candidates,
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
    excluded = _own_in_block(queries, start, scores_QC.shape[1])
    known = _known_in_block(group, hidden, queries, start, scores_QC.shape[1])
    true = queries.true
    raw = counter.count(scores_QC, true.score_Q, excluded)
    counts = QueryCounts.unfiltered(raw)
    if known is not None:
        counts = QueryCounts(raw, count_cells(scores_QC, true.score_Q, known))
    queries.counts = queries.counts + counts
    query, column = _twins_in_block(queries, twins, start, scores_QC.shape[1])
    if query.numel():
        is_known = _are_among(query, column, known, scores_QC.shape[1])
        queries.counts = queries.counts + ties_of_twins(
            scores_QC[query.to(scores_QC.device), column.to(scores_QC.device)],
            true.score_Q,
            true.kernel_Q,
            query,
            is_known,
        )
    if queries.fold is not None:
        barred = excluded if known is None else tuple(map(torch.cat, zip(excluded, known, strict=True)))
        queries.fold.fold(scores_QC, (barred[0], barred[1]))
    _pool_block(queries, scores_QC, start, excluded, known, settings, tally)


def _count_block_fused(
    group: Group,
    hidden: Side,
    queries: _Queries,
    candidates: _Candidates,
    candidates_CD: Tensor,
    twins: Twins,
    start: int,
    tally: SideTally,
) -> None:
    """Do what `_count_block` does without a block of scores in memory."""
    num_columns, dimension = candidates_CD.shape
    known = _known_in_block(group, hidden, queries, start, num_columns)
    twin_cells = _twins_in_block(queries, twins, start, num_columns)
    sampled = _sampled_in_block(queries, start, num_columns)
    found = count_fused(
        queries.prepared_QD,
        candidates_CD,
        queries.true,
        torch.arange(queries.rows_Q.numel(), device=candidates_CD.device),
        BlockCells(
            own=_own_in_block(queries, start, num_columns),
            known=known,
            twins=twin_cells,
            twin_is_known=_are_among(*twin_cells, known, num_columns),
            sampled=sampled,
        ),
        check_nan=not overflow_is_impossible(largest(queries.prepared_QD), largest(candidates_CD), dimension),
    )
    if found.nan is not None:
        bad, candidate = found.nan
        raise group.nan_score(hidden, int(queries.rows_Q[bad]), int(candidates.ids(start, start + candidate + 1)[-1]))
    queries.counts = queries.counts + found.counts
    tally.add_scores(found.sampled_score_P, None if known is None else _are_among(*sampled, known, num_columns))


def _own_in_block(queries: _Queries, start: int, num_columns: int) -> tuple[Tensor, Tensor]:
    """Return (query, column) of the true entities that are in a block."""
    own_C = queries.own_C - start
    query = ((own_C >= 0) & (own_C < num_columns)).nonzero().squeeze(1)
    return query, own_C[query]


def _twins_in_block(queries: _Queries, twins: Twins, start: int, num_columns: int) -> tuple[Tensor, Tensor]:
    """Return (query, column) of the candidates with a query's true vector."""
    own_C = queries.own_C - start
    own_here_C = torch.where(own_C < num_columns, own_C, -1)
    query, column = twins.of_queries(queries.true.hash_Q.cpu().numpy(), own_here_C.numpy())
    return torch.from_numpy(query), torch.from_numpy(column)


def _sampled_in_block(queries: _Queries, start: int, num_columns: int) -> tuple[Tensor, Tensor]:
    """Return (query, column) of the cells that the pooled AUC samples."""
    here = (queries.auc_candidate >= start) & (queries.auc_candidate < start + num_columns)
    return queries.auc_query[here], queries.auc_candidate[here] - start


def _known_in_block(
    group: Group, hidden: Side, queries: _Queries, start: int, num_columns: int
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
    others = column != (queries.own_C - start)[query]
    return query[others], column[others]


def _pool_block(
    queries: _Queries,
    scores_QC: Tensor,
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
    query, column = _sampled_in_block(queries, start, scores_QC.shape[1])
    scores = scores_QC[query.to(device), column.to(device)]
    tally.add_scores(scores, None if known_QC is None else known_QC[query, column])


def _are_among(query: Tensor, column: Tensor, cells: tuple[Tensor, Tensor] | None, num_columns: int) -> Tensor:
    """Tell of each cell whether it is among others, bool."""
    if cells is None:
        return torch.zeros(query.shape, dtype=torch.bool)
    return torch.isin(query * num_columns + column, cells[0] * num_columns + cells[1])


def _finish(
    group: Group,
    queries: _Queries,
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
    true_Q = queries.true.kernel_Q  # as competitors' scores are made
    if auc_words_EW is not None:
        true_Q = true_Q[settings.auc.true_is_kept(auc_words_EW[queries.rows_Q.numpy()]).to(true_Q.device)]
    tally.add_true_scores(true_Q)
