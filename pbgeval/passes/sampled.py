"""Blocks of chunks -> counts, where candidates are sampled (`candidates = "sampled"`).

Two levels: lists, copies of true entities and cells of the AUC are found for a whole block of chunks at once, because
each such step costs the same few calls however many chunks there are; rows are gathered and scored for as many chunks
at a time as stay in cache.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from pbgeval.candidates.chunks import ChunkBlock
from pbgeval.candidates.copies import copies_of_true
from pbgeval.candidates.draws import DrawStream
from pbgeval.candidates.known_cells import known_cells
from pbgeval.counting.general import BlockCounter
from pbgeval.counting.known import count_cells
from pbgeval.notation import Side
from pbgeval.passes.certified import CertifiedChunks
from pbgeval.passes.competitors import num_competitors
from pbgeval.passes.groups import Group
from pbgeval.passes.nan import first_nan
from pbgeval.passes.settings import PassSettings
from pbgeval.passes.tally import DrawnFrom, LossFold, SideTally
from pbgeval.ranking import QueryCounts

CELLS_AT_A_TIME = 1 << 19  # of scores, so that they stay in cache; changes no number


@frozen(eq=False)
class _Cells:
    """Cells of a block of chunks, ordered by query: queries are numbered through all chunks."""

    query: Tensor
    candidate: Tensor

    def of_queries(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Return the cells of a range of queries, numbered from its start."""
        first, last = self.query.numpy().searchsorted((start, stop)).tolist()
        return self.query[first:last] - start, self.candidate[first:last]


@frozen(eq=False)
class _List:
    """The candidates of a block's chunks on one side, and which of their cells are special."""

    ids_BC: Tensor
    num_draws: int  # how many of a chunk's candidates are draws: the last ones
    copies: _Cells  # cells that do not compete, because they hold the true entity again
    auc_cells: _Cells | None  # cells whose scores are sampled for the AUC; None: all
    auc_true_Q: Tensor | None  # queries whose true score is sampled; None: all
    drawn_from: DrawnFrom | None = None  # of all queries; None: not asked for

    @property
    def length(self) -> int:
        return self.ids_BC.shape[1]


def count_sampled(
    group: Group,
    block: ChunkBlock,
    settings: PassSettings,
    streams: dict[Side, DrawStream],
    auc_words: dict[Side, np.ndarray | None],
    tallies: dict[Side, SideTally],
    counter: BlockCounter,
) -> None:
    """Score one block of chunks on every enabled side and tally its queries."""
    lists = {side: _make_list(group, block, side, settings, streams[side], auc_words[side]) for side in settings.sides}
    longest = max(candidates.length for candidates in lists.values())
    for start, stop in _chunks_at_a_time(block, longest):
        rows = {side: _rows_of_list(group, side, candidates, start, stop) for side, candidates in lists.items()}
        for hidden, candidates in lists.items():
            known_BQD = _known_rows(group, block, hidden.other, rows, start, stop)
            prepared = _Prepared.of_rows(group, block, hidden, candidates, known_BQD, rows[hidden], start)
            if group.relation.scorer.certified is None:
                part = _score(group, block, hidden, prepared)
            else:
                values = settings.loss is not None or candidates.auc_cells is None
                part = _score_certified(group, block, hidden, prepared, values=values)
            _tally(group, block, settings, hidden, candidates, part, tallies[hidden], counter)


def _chunks_at_a_time(block: ChunkBlock, longest: int) -> Iterator[tuple[int, int]]:
    num_chunks, num_queries = block.rows_BQ.shape
    step = max(1, CELLS_AT_A_TIME // (num_queries * longest))
    for start in range(0, num_chunks, step):
        yield start, min(start + step, num_chunks)


def _make_list(
    group: Group,
    block: ChunkBlock,
    side: Side,
    settings: PassSettings,
    stream: DrawStream,
    auc_words_EW: np.ndarray | None,
) -> _List:
    ends = group.side(side)
    num_chunks, num_queries = block.rows_BQ.shape
    num_draws = 0 if ends.featurized else block.num_draws  # features cannot be drawn
    true_BQ = ends.ids_E[block.rows_BQ]
    parts = [true_BQ] if block.num_batch else []
    if num_draws:
        draws = stream.offsets(block.first_word, num_chunks * num_draws, ends.table.num_rows)
        parts.append(draws.view(num_chunks, num_draws))
    ids_BC = torch.cat(parts, dim=1)
    none = torch.empty(0, dtype=torch.int64)
    copies = (none, none) if settings.pbg_semantics else copies_of_true(true_BQ, ids_BC, block.num_batch)
    drawn_from = _drawn_from(group, block, side) if settings.count_competitors else None
    if auc_words_EW is None:
        return _List(ids_BC, num_draws, _Cells(*copies), None, None, drawn_from)
    words_QW = auc_words_EW[block.rows_BQ.flatten().numpy()]
    query, candidate = settings.auc.cells(words_QW, ids_BC.shape[1])
    if settings.pbg_semantics:
        competes = (candidate != query % num_queries) | (block.num_batch == 0)
    else:
        competes = ids_BC[query // num_queries, candidate] != true_BQ.flatten()[query]
    auc_cells = _Cells(query[competes], candidate[competes])
    auc_true_Q = settings.auc.true_is_kept(words_QW)
    return _List(ids_BC, num_draws, _Cells(*copies), auc_cells, auc_true_Q, drawn_from)


def _drawn_from(group: Group, block: ChunkBlock, side: Side) -> DrawnFrom:
    competitors = num_competitors(group, side, block.rows_BQ.flatten())
    list_BQ = block.rows_BQ[:, :1].expand_as(block.rows_BQ)  # a chunk's number in its unit: the row of its first edge
    return DrawnFrom(list_BQ.flatten(), torch.from_numpy(competitors.all_Q), torch.from_numpy(competitors.known_Q))


def _rows_of_list(group: Group, side: Side, candidates: _List, start: int, stop: int) -> Tensor:
    ids_BC = candidates.ids_BC[start:stop]
    return group.side(side).rows(ids_BC.flatten()).view(*ids_BC.shape, -1)


def _known_rows(group: Group, block: ChunkBlock, side: Side, rows: dict[Side, Tensor], start: int, stop: int) -> Tensor:
    """Return the vectors of the queries' known ends: the head of that side's list, if it was made."""
    if side in rows and block.num_batch:
        return rows[side][:, : block.num_batch]
    ids_BQ = group.side(side).ids_E[block.rows_BQ[start:stop]]
    return group.side(side).rows(ids_BQ.flatten()).view(*ids_BQ.shape, -1)


@frozen(eq=False)
class _Scored:
    """Scores of some of a block's chunks."""

    start: int  # number of the first query in the block
    rows_Q: Tensor  # position of each query's edge in the unit
    scores_QC: Tensor
    true_Q: Tensor
    certified: CertifiedChunks | None = None  # the same, if ranks are certified

    def scores_of(self, query: Tensor, candidate: Tensor) -> Tensor:
        """Return the scores of cells, as the pooled AUC compares them."""
        if self.certified is None:
            return self.scores_QC[query, candidate]
        return self.certified.values_of(query, candidate)


@frozen(eq=False)
class _Prepared:
    """Queries and candidates of some of a block's chunks, ready for a product."""

    start: int  # number of the first query in the block
    rows_BQ: Tensor
    ids_BC: Tensor
    queries_BQD: Tensor
    candidates_BCD: Tensor

    @classmethod
    def of_rows(
        cls,
        group: Group,
        block: ChunkBlock,
        hidden: Side,
        candidates: _List,
        known_BQD: Tensor,
        candidate_rows_BCD: Tensor,
        first_chunk: int,
    ) -> _Prepared:
        chunks = slice(first_chunk, first_chunk + known_BQD.shape[0])
        rows_BQ, ids_BC = block.rows_BQ[chunks], candidates.ids_BC[chunks]
        return cls(
            first_chunk * rows_BQ.shape[1],
            rows_BQ,
            ids_BC,
            group.queries(hidden, known_BQD, rows_BQ),
            group.candidates(hidden, candidate_rows_BCD, ids_BC),
        )

    def true_rows(self, group: Group, block: ChunkBlock, hidden: Side) -> Tensor:
        """Return the prepared rows of all queries' true entities: the head of the list, where it holds them."""
        if block.num_batch:
            return self.candidates_BCD[:, : block.num_batch].flatten(0, 1)
        ids_Q = group.side(hidden).ids_E[self.rows_BQ.flatten()]
        return group.candidates(hidden, group.side(hidden).rows(ids_Q), ids_Q)


def _score(group: Group, block: ChunkBlock, hidden: Side, prepared: _Prepared) -> _Scored:
    comparator, rows_Q = group.relation.scorer.comparator, prepared.rows_BQ.flatten()
    scores_BQC = comparator.scores(prepared.queries_BQD, prepared.candidates_BCD)
    not_a_number = first_nan(prepared.queries_BQD, prepared.candidates_BCD, scores_BQC)
    if not_a_number is not None:
        chunk, query, candidate = not_a_number
        raise group.nan_score(hidden, int(prepared.rows_BQ[chunk, query]), int(prepared.ids_BC[chunk, candidate]))
    if block.num_batch:
        true_Q = scores_BQC[:, :, : block.num_batch].diagonal(dim1=1, dim2=2).reshape(-1)
    else:
        true_QD = prepared.true_rows(group, block, hidden)
        true_Q = comparator.paired_scores(prepared.queries_BQD.flatten(0, 1), true_QD)
        if bool(torch.isnan(true_Q).any()):
            row = int(rows_Q[int(torch.isnan(true_Q).nonzero()[0])])
            raise group.nan_score(hidden, row, int(group.side(hidden).ids_E[row]))
    return _Scored(prepared.start, rows_Q, scores_BQC.flatten(0, 1), true_Q)


def _score_certified(group: Group, block: ChunkBlock, hidden: Side, prepared: _Prepared, *, values: bool) -> _Scored:
    exact = group.relation.scorer.certified
    assert exact is not None, "the caller has asked"
    true_QL = prepared.true_rows(group, block, hidden)
    certified = CertifiedChunks.score(exact, prepared.queries_BQD, prepared.candidates_BCD, true_QL, values=values)
    true_Q = certified.queries.true.value_Q
    return _Scored(prepared.start, prepared.rows_BQ.flatten(), certified.fast.scores_KC, true_Q, certified)


@frozen(eq=False)
class _Barred:
    """Cells of some chunks that do not compete: in any figure, and in filtered ones besides."""

    everywhere: tuple[Tensor, Tensor]  # (query, candidate): copies of the true entity, entities that may not compete
    known: tuple[Tensor, Tensor]  # known answers among the rest


def _tally(
    group: Group,
    block: ChunkBlock,
    settings: PassSettings,
    hidden: Side,
    candidates: _List,
    part: _Scored,
    tally: SideTally,
    counter: BlockCounter,
) -> None:
    num_queries = part.rows_Q.numel()
    copies = candidates.copies.of_queries(part.start, part.start + num_queries)
    barred = _barred_cells(group, block, hidden, candidates, part, copies)
    counts = _counts(block, part, barred, counter)
    raw = counts.raw
    kept_Q = _inside(group, hidden, part.rows_Q)
    num_kept = num_queries if kept_Q is None else int(kept_Q.sum())
    topped_up = block.num_topped_up > 0 and candidates.num_draws > 0
    tally.add_outside(num_queries - num_kept)
    tally.add_queries(
        part.rows_Q if kept_Q is None else part.rows_Q[kept_Q],
        counts if kept_Q is None else counts.of(kept_Q.to(raw.better_Q.device)),
        num_short_lists=num_kept if topped_up else 0,
        num_excluded=copies[0].numel() if kept_Q is None else int(kept_Q[copies[0]].sum()),
    )
    if candidates.drawn_from is not None:
        drawn_from = candidates.drawn_from.of(slice(part.start, part.start + num_queries))
        tally.add_drawn_from(drawn_from if kept_Q is None else drawn_from.of(kept_Q))
    if settings.loss is not None:
        fold = LossFold(settings.loss.name, settings.loss.margin, group.relation.scorer.comparator, part.true_Q)
        fold.fold(part.scores_QC, _join(_with_own(block, barred.everywhere, num_queries), barred.known))
        lengths_Q = torch.full_like(raw.competing_Q, candidates.length + block.num_masked)
        if not settings.pbg_semantics:
            lengths_Q = counts.filtered.competing_Q
        losses_Q = fold.finish(lengths_Q, group.weights(part.rows_Q))
        tally.add_losses(losses_Q if kept_Q is None else losses_Q[kept_Q.to(losses_Q.device)])
    _pool(group, block, candidates, part, barred, kept_Q, tally)


def _counts(block: ChunkBlock, part: _Scored, barred: _Barred, counter: BlockCounter) -> QueryCounts:
    if part.certified is not None:
        return part.certified.count(counter, _with_own(block, barred.everywhere, part.rows_Q.numel()), barred.known)
    raw = counter.count(part.scores_QC, part.true_Q, barred.everywhere, holds_true=block.num_batch > 0)
    return QueryCounts(raw, count_cells(part.scores_QC, part.true_Q, barred.known))


def _inside(group: Group, hidden: Side, rows_Q: Tensor) -> Tensor | None:
    """Tell of each query whether its true entity may compete, bool (Q,); None: all may."""
    if group.competition.sets is None:
        return None
    may_compete = group.may_compete(hidden, group.edges.rel[rows_Q].numpy(), group.side(hidden).ids_E[rows_Q].numpy())
    return torch.from_numpy(may_compete)


def _barred_cells(
    group: Group, block: ChunkBlock, hidden: Side, candidates: _List, part: _Scored, copies: tuple[Tensor, Tensor]
) -> _Barred:
    none = torch.empty(0, dtype=torch.int64)
    known = group.competition.known
    if known is None and group.competition.sets is None:
        return _Barred(copies, (none, none))
    chunk_size = block.rows_BQ.shape[1]
    first = part.start // chunk_size
    rows_BQ = part.rows_Q.view(-1, chunk_size)
    ids_BC = candidates.ids_BC[first : first + rows_BQ.shape[0]].numpy()
    barred_BQC = np.zeros((*rows_BQ.shape, ids_BC.shape[1]), bool)
    if group.competition.sets is not None:
        rel_BQ1 = group.edges.rel[rows_BQ].numpy()[:, :, None]
        barred_BQC = ~group.may_compete(hidden, rel_BQ1, ids_BC[:, None, :])
    barred_QC = barred_BQC.reshape(-1, ids_BC.shape[1])
    everywhere = _join(copies, tuple(map(torch.from_numpy, np.nonzero(barred_QC))))
    if known is None:
        return _Barred(everywhere, (none, none))
    of_side = known[hidden]
    query, candidate = known_cells(
        of_side.key_E[rows_BQ.numpy()],
        group.side(hidden).ids_E[rows_BQ].numpy(),
        ids_BC,
        of_side.key_P,
        of_side.row_P,
    )
    competes = ~barred_QC[query, candidate]
    return _Barred(everywhere, (torch.from_numpy(query[competes]), torch.from_numpy(candidate[competes])))


def _join(some: tuple[Tensor, ...], others: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    return torch.cat([some[0], others[0]]), torch.cat([some[1], others[1]])


def _pool(
    group: Group,
    block: ChunkBlock,
    candidates: _List,
    part: _Scored,
    barred: _Barred,
    kept_Q: Tensor | None,
    tally: SideTally,
) -> None:
    """Hand the pooled AUC the scores that it compares."""
    device = part.scores_QC.device
    filtered = group.competition.filtered
    num_queries = part.rows_Q.numel()
    if candidates.auc_cells is None or candidates.auc_true_Q is None:
        all_Q = torch.ones(num_queries, dtype=torch.bool) if kept_Q is None else kept_Q
        competes_QC = all_Q.unsqueeze(1).repeat(1, part.scores_QC.shape[1])
        competes_QC[_with_own(block, barred.everywhere, num_queries)] = False
        known = _mask(part, barred.known)[competes_QC] if filtered else None
        tally.add_true_scores(part.true_Q[all_Q.to(device)])
        tally.add_scores(part.scores_QC[competes_QC.to(device)], known)
        return
    query, candidate = candidates.auc_cells.of_queries(part.start, part.start + num_queries)
    true_kept_Q = candidates.auc_true_Q[part.start : part.start + num_queries]
    if kept_Q is not None:
        competes = kept_Q[query] & ~_mask(part, barred.everywhere)[query, candidate]
        query, candidate = query[competes], candidate[competes]
        true_kept_Q = true_kept_Q & kept_Q
    known = _mask(part, barred.known)[query, candidate] if filtered else None
    tally.add_true_scores(part.true_Q[true_kept_Q.to(device)])
    tally.add_scores(part.scores_of(query.to(device), candidate.to(device)), known)


def _mask(part: _Scored, cells: tuple[Tensor, Tensor]) -> Tensor:
    mask_QC = torch.zeros(part.scores_QC.shape, dtype=torch.bool)
    mask_QC[cells] = True
    return mask_QC


def _with_own(block: ChunkBlock, copies: tuple[Tensor, Tensor], num_queries: int) -> tuple[Tensor, Tensor]:
    """Add each query's own cell to the copies, where the list holds the true entities."""
    if not block.num_batch:
        return copies
    query = torch.arange(num_queries)
    return torch.cat([query, copies[0]]), torch.cat([query % block.num_batch, copies[1]])
