"""Blocks of chunks -> counts, where candidates are sampled (`candidates = "sampled"`).

Two levels: lists, copies of true entities and cells of the AUC are found for a whole block of chunks at once, because
each such step costs the same few calls however many chunks there are; rows are gathered and scored for as many chunks
at a time as stay in cache.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from attrs import evolve, frozen
from torch import Tensor

from pbgeval.notation import ENDS, Side
from pbgeval.ranking.block_threads import BlockThreads
from pbgeval.ranking.certified import CertifiedChunks
from pbgeval.ranking.chunks import ChunkBlock
from pbgeval.ranking.counting import MAX_CANDIDATES, CellIndex, are_among, count, count_cells
from pbgeval.ranking.draws import DrawStream, uniform_below
from pbgeval.ranking.gathered_chunks import OPERATORS, ChunkEnd, GatheredChunks, supports
from pbgeval.ranking.groups import Group, first_nan, first_nan_of_pairs
from pbgeval.ranking.known_answers import KnownOfEdges
from pbgeval.ranking.list_cells import copies_of_true, known_cells, num_competitors
from pbgeval.ranking.settings import PassSettings
from pbgeval.ranking.tally import DrawnFrom, LossFold, SideTally
from pbgeval.scoring.certified import CertifiedComparator
from pbgeval.stats.ranks import QueryCounts

# Blocks of chunks -> lists of sampled candidates and the cells of them that are special, for a whole block at once.

NONE = torch.empty(0, dtype=torch.int64)


def _of_queries(cells: CellIndex, start: int, stop: int) -> CellIndex:
    """Return the cells of a range of queries, numbered from its start; cells are ordered by query."""
    first, last = cells[0].numpy().searchsorted((start, stop)).tolist()
    return cells[0][first:last] - start, cells[1][first:last]


@frozen(eq=False)
class CandidateList:
    """The candidates of a block's chunks on one side, and which of their cells are special."""

    ids_BC: Tensor
    num_draws: int  # how many of a chunk's candidates are draws: the last ones
    copies: CellIndex  # cells that do not compete, because they hold the true entity again
    auc_cells: CellIndex | None  # cells whose scores are sampled for the AUC; None: all
    auc_true_Q: Tensor | None  # queries whose true score is sampled; None: all
    drawn_from: DrawnFrom | None = None  # of all queries; None: not asked for

    @property
    def length(self) -> int:
        return self.ids_BC.shape[1]


def make_list(
    group: Group,
    block: ChunkBlock,
    side: Side,
    settings: PassSettings,
    stream: DrawStream,
    auc_words_EW: np.ndarray | None,
) -> CandidateList:
    """Make the lists of a block's chunks that hide one side, and find their copies and the cells of the AUC."""
    ends = group.side(side)
    num_chunks, num_queries = block.rows_BQ.shape
    num_draws = 0 if ends.featurized else block.num_words  # features cannot be drawn
    true_BQ = ends.ids_E[block.rows_BQ]
    parts = [true_BQ] if block.num_batch else []
    if num_draws:
        words = np.concatenate([stream.words(word, chunks * num_draws) for word, chunks in block.runs])
        words_BN = words.reshape(num_chunks, num_draws)
        parts.append(torch.from_numpy(uniform_below(words_BN[:, : block.num_draws], ends.table.num_rows)))
        if block.num_degree:
            parts.append(group.degree_weights(side).draw(words_BN[:, block.num_draws :]))
    ids_BC = torch.cat(parts, dim=1)
    copies = (NONE, NONE) if settings.pbg_semantics else copies_of_true(true_BQ, ids_BC, block.num_batch)
    drawn_from = _drawn_from(group, block, side) if settings.count_competitors else None
    if auc_words_EW is None:
        return CandidateList(ids_BC, num_draws, copies, None, None, drawn_from)
    words_QW = auc_words_EW[block.rows_BQ.flatten().numpy()]
    query, candidate = settings.auc.cells(words_QW, ids_BC.shape[1])
    if settings.pbg_semantics:
        competes = (candidate != query % num_queries) | (block.num_batch == 0)
    else:
        competes = ids_BC[query // num_queries, candidate] != true_BQ.flatten()[query]
    auc_cells = query[competes], candidate[competes]
    auc_true_Q = settings.auc.true_is_kept(words_QW)
    return CandidateList(ids_BC, num_draws, copies, auc_cells, auc_true_Q, drawn_from)


def _drawn_from(group: Group, block: ChunkBlock, side: Side) -> DrawnFrom:
    all_Q, known_Q = num_competitors(group, side, block.rows_BQ.flatten())
    list_BQ = block.rows_BQ[:, :1].expand_as(block.rows_BQ)  # a chunk's number in its unit: the row of its first edge
    return DrawnFrom(list_BQ.flatten(), torch.from_numpy(all_Q), torch.from_numpy(known_Q))


def rows_of_list(group: Group, side: Side, candidates: CandidateList, start: int, stop: int) -> Tensor:
    """Return the vectors of the lists of some chunks, (chunks, candidates, D)."""
    ids_BC = candidates.ids_BC[start:stop]
    return group.side(side).rows(ids_BC.flatten()).view(*ids_BC.shape, -1)


def known_rows(group: Group, block: ChunkBlock, side: Side, rows: dict[Side, Tensor], start: int, stop: int) -> Tensor:
    """Return the vectors of the queries' known ends: the head of that side's list, if it was made."""
    if side in rows and block.num_batch:
        return rows[side][:, : block.num_batch]
    ids_BQ = group.side(side).ids_E[block.rows_BQ[start:stop]]
    return group.side(side).rows(ids_BQ.flatten()).view(*ids_BQ.shape, -1)


# Some chunks of a block -> the cells that do not compete, and those whose scores the pooled AUC compares.


@frozen(eq=False)
class PartCells:
    """Cells of consecutive chunks, whose queries are numbered from the first; each list is ordered by query."""

    rows_BQ: Tensor  # position of each query's edge in the unit
    list_length: int
    copied_query: Tensor  # the query of each copy of a true entity
    excluded: CellIndex  # do not compete in any figure: copies of the true entity, entities that may not compete
    known: CellIndex  # known answers among the rest: do not compete in filtered figures
    inside_Q: Tensor | None  # whether each query's true entity may compete; None: all may
    sampled: CellIndex | None  # competitors whose scores are sampled for the AUC; None: all
    sampled_is_known: Tensor | None  # of each of them; None: nothing is filtered, or all are sampled
    true_is_sampled_Q: Tensor  # whether each query's true score is sampled; never where it may not compete
    in_time: CellIndex | None = None  # what a time-aware filter leaves out, as `known`; None: there is none

    @property
    def num_queries(self) -> int:
        return self.rows_BQ.numel()

    @property
    def read(self) -> tuple[CellIndex, Tensor]:
        """The cells whose scores are read, by query; and where each is in `sampled` and then `in_time`."""
        assert self.sampled is not None, "the caller has asked"
        if self.in_time is None:
            return self.sampled, NONE
        cells = joined(self.sampled, self.in_time)
        order = torch.argsort(cells[0], stable=True)
        return (cells[0][order], cells[1][order]), order

    def with_own(self, block: ChunkBlock) -> CellIndex:
        """Return all cells that do not compete anywhere, each query's own among them where the list holds it."""
        if not block.num_batch:
            return self.excluded
        query = torch.arange(self.num_queries)
        return joined((query, query % block.num_batch), self.excluded)


def joined(some: CellIndex, others: CellIndex) -> CellIndex:
    """Return two lists of cells as one, not in order."""
    return torch.cat([some[0], others[0]]), torch.cat([some[1], others[1]])


def cells_of_part(
    group: Group, block: ChunkBlock, hidden: Side, candidates: CandidateList, start: int, stop: int
) -> PartCells:
    """Find the cells of chunks `start` to `stop` of a block."""
    rows_BQ = block.rows_BQ[start:stop]
    first, last = (chunk * rows_BQ.shape[1] for chunk in (start, stop))
    copies = _of_queries(candidates.copies, first, last)
    excluded, known, in_time = _special(group, hidden, rows_BQ, candidates.ids_BC[start:stop], copies)
    inside_Q = _inside(group, hidden, rows_BQ.flatten())
    if candidates.auc_cells is None or candidates.auc_true_Q is None:
        true_Q = torch.ones(rows_BQ.numel(), dtype=torch.bool) if inside_Q is None else inside_Q
        return PartCells(rows_BQ, candidates.length, copies[0], excluded, known, inside_Q, None, None, true_Q, in_time)
    query, candidate = _of_queries(candidates.auc_cells, first, last)
    true_Q = candidates.auc_true_Q[first:last]
    if inside_Q is not None:
        competes = inside_Q[query] & ~are_among(query, candidate, excluded, candidates.length)
        query, candidate = query[competes], candidate[competes]
        true_Q = true_Q & inside_Q
    is_known = are_among(query, candidate, known, candidates.length) if group.competition.filtered else None
    sampled = query, candidate
    return PartCells(
        rows_BQ, candidates.length, copies[0], excluded, known, inside_Q, sampled, is_known, true_Q, in_time
    )


def _inside(group: Group, hidden: Side, rows_Q: Tensor) -> Tensor | None:
    if group.competition.sets is None:
        return None
    may_compete = group.may_compete(hidden, group.edges.rel[rows_Q].numpy(), group.side(hidden).ids_E[rows_Q].numpy())
    return torch.from_numpy(may_compete)


def _special(
    group: Group, hidden: Side, rows_BQ: Tensor, ids_BC: Tensor, copies: CellIndex
) -> tuple[CellIndex, CellIndex, CellIndex | None]:
    """Return the cells that do not compete anywhere, and among the rest what each filter leaves out."""
    known, in_time, sets = group.competition.known, group.competition.in_time, group.competition.sets
    if known is None and sets is None:
        return copies, (NONE, NONE), None
    list_BC = ids_BC.numpy()
    excluded, excluded_QC = copies, None
    if sets is not None:
        excluded_BQC = ~group.may_compete(hidden, group.edges.rel[rows_BQ].numpy()[:, :, None], list_BC[:, None, :])
        excluded_QC = excluded_BQC.reshape(-1, list_BC.shape[1])
        query, candidate = map(torch.from_numpy, np.nonzero(excluded_QC))
        excluded = joined(copies, (query, candidate))
        order = torch.argsort(excluded[0], stable=True)
        excluded = excluded[0][order], excluded[1][order]
    true_BQ = group.side(hidden).ids_E[rows_BQ].numpy()

    def left_out(of_sides: Mapping[Side, KnownOfEdges]) -> CellIndex:
        of_side = of_sides[hidden]
        query, candidate = known_cells(of_side.key_E[rows_BQ.numpy()], true_BQ, list_BC, of_side.answers)
        if excluded_QC is not None:
            competes = ~excluded_QC[query, candidate]
            query, candidate = query[competes], candidate[competes]
        return torch.from_numpy(query), torch.from_numpy(candidate)

    return excluded, (NONE, NONE) if known is None else left_out(known), None if in_time is None else left_out(in_time)


# Prepared chunks and their cells -> counts, true scores and the scores that the pooled AUC compares.
#
# From a block of scores, or exactly, for certified ranks.


@frozen(eq=False)
class ChunkPart:
    """Queries and candidates of some of a block's chunks, ready for a product."""

    group: Group
    block: ChunkBlock
    hidden: Side
    rows_BQ: Tensor
    ids_BC: Tensor
    queries_BQD: Tensor
    candidates_BCD: Tensor

    @classmethod
    def prepare(
        cls,
        group: Group,
        block: ChunkBlock,
        hidden: Side,
        candidates: CandidateList,
        known_BQD: Tensor,
        candidate_rows_BCD: Tensor,
        first_chunk: int,
    ) -> ChunkPart:
        """Make queries and candidates of the vectors of known ends and of lists."""
        chunks = slice(first_chunk, first_chunk + known_BQD.shape[0])
        rows_BQ, ids_BC = block.rows_BQ[chunks], candidates.ids_BC[chunks]
        queries_BQD = group.queries(hidden, known_BQD, rows_BQ)
        candidates_BCD = group.candidates(hidden, candidate_rows_BCD, ids_BC)
        return cls(group, block, hidden, rows_BQ, ids_BC, queries_BQD, candidates_BCD)

    @property
    def holds_true(self) -> bool:
        """Whether lists begin with the true entities of their queries."""
        return self.block.num_batch > 0

    @property
    def own_Q(self) -> Tensor:
        """The candidate that is each query's true entity by its place in the list; -1: there is none."""
        num_chunks, num_queries = self.rows_BQ.shape
        own_Q = torch.arange(num_queries) if self.holds_true else torch.full((num_queries,), -1)
        return own_Q.repeat(num_chunks)

    def true_rows(self) -> Tensor:
        """Return the prepared rows of all queries' true entities."""
        if self.holds_true:
            return self.candidates_BCD[:, : self.block.num_batch].flatten(0, 1)
        side = self.group.side(self.hidden)
        ids_Q = side.ids_E[self.rows_BQ.flatten()]
        return self.group.candidates(self.hidden, side.rows(ids_Q), ids_Q)

    def true_scores(self) -> Tensor:
        """Return the score of each query's true entity, by the kernel of all scores.

        Raises:
            UnrankableError: one is not a number.
        """
        comparator = self.group.relation.scorer.comparator
        pairs = self.queries_BQD.flatten(0, 1), self.true_rows()
        true_Q = comparator.paired_scores(*pairs)
        bad = first_nan_of_pairs(comparator, *pairs, true_Q)
        if bad is not None:
            row = int(self.rows_BQ.flatten()[bad])
            raise self.group.nan_score(self.hidden, row, int(self.group.side(self.hidden).ids_E[row]))
        return true_Q


@frozen(eq=False)
class ChunkResult:
    """What was found about the queries of some chunks."""

    counts: QueryCounts
    true_Q: Tensor
    competing: Tensor  # scores that the pooled AUC compares with true ones
    competing_query: Tensor  # the query of each
    competing_is_known: Tensor | None  # which of them are of known answers; None: nothing is filtered
    loss_Q: Tensor | None = None  # None: not asked for


def score_chunks(part: ChunkPart, cells: PartCells, settings: PassSettings) -> ChunkResult:
    """Score every query of some chunks with its list.

    Raises:
        UnrankableError: a score is not a number.
    """
    scorer = part.group.relation.scorer
    if scorer.certified is not None:
        return _certified(scorer.certified, part, cells, settings)
    true_Q, scores_QC = _scores(part)
    counts = count(
        scores_QC, true_Q, own_Q=part.own_Q, excluded=cells.excluded, known=_to(cells.known, scores_QC.device)
    )
    if cells.in_time is not None:
        query, candidate = _to(cells.in_time, scores_QC.device)
        counts = evolve(counts, in_time=count_cells(scores_QC[query, candidate], query, true_Q, true_Q))
    loss_Q = _losses(part, cells, settings, counts, true_Q, scores_QC)
    if cells.sampled is None:
        return ChunkResult(counts, true_Q, *_all_competing(part, cells, scores_QC), loss_Q)
    query, candidate = (index.to(scores_QC.device) for index in cells.sampled)
    return ChunkResult(counts, true_Q, scores_QC[query, candidate], cells.sampled[0], cells.sampled_is_known, loss_Q)


def _to(cells: CellIndex, device: torch.device) -> CellIndex:
    return cells[0].to(device), cells[1].to(device)


def _scores(part: ChunkPart) -> tuple[Tensor, Tensor]:
    """Return the true scores (Q,) and all scores (Q, C)."""
    comparator = part.group.relation.scorer.comparator
    scores_BQC = comparator.scores(part.queries_BQD, part.candidates_BCD)
    not_a_number = first_nan(comparator, part.queries_BQD, part.candidates_BCD, scores_BQC)
    if not_a_number is not None:
        chunk, query, candidate = not_a_number
        row, entity = int(part.rows_BQ[chunk, query]), int(part.ids_BC[chunk, candidate])
        raise part.group.nan_score(part.hidden, row, entity)
    if not part.holds_true:
        return part.true_scores(), scores_BQC.flatten(0, 1)
    true_Q = scores_BQC[:, :, : part.block.num_batch].diagonal(dim1=1, dim2=2).reshape(-1)
    return true_Q, scores_BQC.flatten(0, 1)


def _certified(
    comparator: CertifiedComparator, part: ChunkPart, cells: PartCells, settings: PassSettings
) -> ChunkResult:
    values = settings.loss is not None or cells.sampled is None
    chunks = CertifiedChunks.score(comparator, part.queries_BQD, part.candidates_BCD, part.true_rows(), values=values)
    scores_QC, true_Q = chunks.fast.scores_KC, chunks.queries.true.value_Q
    counts = chunks.count(part.own_Q, cells.known, cells.excluded)
    if cells.in_time is not None:
        counts = evolve(counts, in_time=chunks.count(part.own_Q, cells.in_time, cells.excluded).known)
    loss_Q = _losses(part, cells, settings, counts, true_Q, scores_QC)
    if cells.sampled is None:
        return ChunkResult(counts, true_Q, *_all_competing(part, cells, scores_QC), loss_Q)
    query, candidate = (index.to(scores_QC.device) for index in cells.sampled)
    values_P = chunks.values_of(query, candidate)
    return ChunkResult(counts, true_Q, values_P, cells.sampled[0], cells.sampled_is_known, loss_Q)


def _all_competing(part: ChunkPart, cells: PartCells, scores_QC: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the scores of all competitors of queries that are ranked, their queries, and which are known answers."""
    competes_QC = cells.true_is_sampled_Q.unsqueeze(1).repeat(1, scores_QC.shape[1])
    competes_QC[cells.with_own(part.block)] = False
    known = None
    if part.group.competition.filtered:
        known_QC = torch.zeros_like(competes_QC)
        known_QC[cells.known] = True
        known = known_QC[competes_QC]
    return scores_QC[competes_QC.to(scores_QC.device)], competes_QC.nonzero()[:, 0], known


def _losses(
    part: ChunkPart,
    cells: PartCells,
    settings: PassSettings,
    counts: QueryCounts,
    true_Q: Tensor,
    scores_QC: Tensor,
) -> Tensor | None:
    if settings.loss is None:
        return None
    fold = LossFold(settings.loss.name, settings.loss.margin, part.group.relation.scorer.comparator, true_Q)
    fold.fold(scores_QC, joined(cells.with_own(part.block), cells.known))
    lengths_Q = counts.filtered.num_competitors_Q
    if settings.pbg_semantics:
        lengths_Q = torch.full_like(counts.raw.num_competitors_Q, cells.list_length + part.block.num_masked)
    return fold.finish(lengths_Q, part.group.weights(cells.rows_BQ.flatten()))


# A whole block of chunks -> what is found about its queries, by the loop that also gathers; where that serves.


def score_block(
    group: Group, block: ChunkBlock, lists: Mapping[Side, CandidateList], settings: PassSettings
) -> dict[Side, tuple[PartCells, ChunkResult]] | None:
    """Score every query of a block with its list, on all sides at once.

    Returns:
        What was found, by hidden side; None where the general way must tell: it takes everything, and names scores
        that are no numbers.
    """
    if not _serves(group, block, lists, settings):
        return None
    num_chunks, num_queries = block.rows_BQ.shape
    cells = {side: cells_of_part(group, block, side, candidates, 0, num_chunks) for side, candidates in lists.items()}
    ends = {side: _end(group, block, side, lists.get(side), cells.get(side)) for side in ENDS}
    chunks = GatheredChunks(ends, group.rel(block.rows_BQ), group.relation.scorer.operator, (num_chunks, num_queries))
    threads = BlockThreads.of_device(torch.device("cpu"))
    if not all(threads.map(chunks.count, threads.split(num_chunks))):
        return None
    found = {}
    for side, of_side in cells.items():
        assert of_side.sampled is not None, "`_serves` has asked"
        (counts, true_Q, score_P), (query, _), in_time = chunks.found(side), of_side.sampled, of_side.in_time
        if in_time is not None:
            in_order = torch.empty_like(score_P)
            in_order[of_side.read[1]] = score_P
            score_P, in_time_P = torch.split(in_order, [query.numel(), in_time[0].numel()])
            counts = evolve(counts, in_time=count_cells(in_time_P, in_time[0], true_Q, true_Q))
        found[side] = of_side, ChunkResult(counts, true_Q, score_P, query, of_side.sampled_is_known)
    return found


def _serves(group: Group, block: ChunkBlock, lists: Mapping[Side, CandidateList], settings: PassSettings) -> bool:
    """Tell whether prepared rows are those of the tables, and nothing is asked for but counts and a few scores."""
    scorer = group.relation.scorer
    if settings.loss is not None or not block.num_batch or group.competition.sets is not None:
        return False
    if scorer.certified is not None or scorer.operator not in OPERATORS:
        return False
    if scorer.comparator.name != "dot" or scorer.comparator.bias:
        return False
    if not scorer.dynamic and Side.LHS in scorer.parameters:  # the loop transforms one side
        return False
    if any(of.auc_cells is None or of.length > MAX_CANDIDATES for of in lists.values()):
        return False
    ends = [group.side(side) for side in ENDS]
    if any(end.featurized or end.table.max_norm is not None for end in ends):
        return False
    tensors = [end.table.embeddings_ND for end in ends]
    tensors += [end.table.global_embedding_D for end in ends if end.table.global_embedding_D is not None]
    tensors += [value for of_side in scorer.parameters.values() for value in of_side.values()]
    num_cells = block.rows_BQ.numel() * sum(candidates.length for candidates in lists.values())
    return group.relation.dtype is torch.float32 and supports(num_cells, tensors)


def _end(
    group: Group, block: ChunkBlock, side: Side, candidates: CandidateList | None, cells: PartCells | None
) -> ChunkEnd:
    end = group.side(side)
    ids_BK: Tensor = end.ids_E[block.rows_BQ] if candidates is None else candidates.ids_BC
    special = None
    if cells is not None:
        assert cells.sampled is not None, "`_serves` has asked"
        special = cells.excluded, cells.known, cells.read[0]
    parameters = group.relation.scorer.parameters.get(side, {})
    return ChunkEnd(end.table.embeddings_ND, end.table.global_embedding_D, ids_BK, parameters, special)


CELLS_AT_A_TIME = 1 << 19  # of scores, so that they stay in cache; changes no number


def count_sampled(
    group: Group,
    block: ChunkBlock,
    settings: PassSettings,
    streams: dict[Side, DrawStream],
    auc_words: dict[Side, np.ndarray | None],
    tallies: dict[Side, SideTally],
) -> None:
    """Score one block of chunks on every enabled side and tally its queries."""
    lists = {side: make_list(group, block, side, settings, streams[side], auc_words[side]) for side in settings.sides}
    of_block = score_block(group, block, lists, settings)
    if of_block is not None:
        for hidden, (cells, found) in of_block.items():
            _tally(block, lists[hidden], cells, found, 0, tallies[hidden])
        return
    num_chunks, num_queries = block.rows_BQ.shape
    step = max(1, CELLS_AT_A_TIME // (num_queries * max(candidates.length for candidates in lists.values())))
    for start in range(0, num_chunks, step):
        stop = min(start + step, num_chunks)
        rows = {side: rows_of_list(group, side, candidates, start, stop) for side, candidates in lists.items()}
        for hidden, candidates in lists.items():
            known_BQD = known_rows(group, block, hidden.other, rows, start, stop)
            part = ChunkPart.prepare(group, block, hidden, candidates, known_BQD, rows[hidden], start)
            cells = cells_of_part(group, block, hidden, candidates, start, stop)
            found = score_chunks(part, cells, settings)
            _tally(block, candidates, cells, found, start, tallies[hidden])


def _tally(
    block: ChunkBlock, candidates: CandidateList, cells: PartCells, found: ChunkResult, start: int, tally: SideTally
) -> None:
    """Hand over what was found about the queries whose true entity may compete."""
    rows_Q, inside_Q, device = cells.rows_BQ.flatten(), cells.inside_Q, found.true_Q.device
    kept: Tensor | slice = slice(None) if inside_Q is None else inside_Q
    rows_kept_Q, copied_query = rows_Q[kept], cells.copied_query
    drawn_from = None
    if candidates.drawn_from is not None:
        first = start * cells.rows_BQ.shape[1]
        drawn_from = candidates.drawn_from.of(slice(first, first + cells.num_queries)).of(kept)
    topped_up = block.num_topped_up > 0 and candidates.num_draws > 0
    tally.add_queries(
        rows_kept_Q,
        found.counts.select(kept),
        num_outside=cells.num_queries - rows_kept_Q.numel(),
        num_short_lists=rows_kept_Q.numel() if topped_up else 0,
        num_excluded=copied_query.numel() if inside_Q is None else int(inside_Q[copied_query].sum()),
        loss_Q=None if found.loss_Q is None else found.loss_Q[kept],
        drawn_from=drawn_from,
    )
    tally.add_true_scores(found.true_Q[cells.true_is_sampled_Q.to(device)], rows_Q[cells.true_is_sampled_Q])
    tally.add_scores(found.competing, rows_Q[found.competing_query], found.competing_is_known)
