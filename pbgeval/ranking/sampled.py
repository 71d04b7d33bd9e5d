"""Blocks of chunks -> counts, where candidates are sampled (`candidates = "sampled"`).

Lists and their special cells (copies of true entities, known answers, AUC cells) are made for a whole block of chunks
at once, because each step costs the same few calls for any number of chunks. Rows are gathered and scored for as many
chunks at a time as fit in cache. All of this is where the vectors are; the host looks up known answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial

import numpy as np
import torch
from attrs import evolve, frozen
from torch import Tensor

from pbgeval.notation import ENDS, Side
from pbgeval.ranking.backend import Backend, backend_for
from pbgeval.ranking.block import Block, CandidateRows, ChunkLists, Counted, ListCells, NotANumberError, QueryRows
from pbgeval.ranking.chunks import ChunkBlock
from pbgeval.ranking.counting import (
    CellIndex,
    are_among,
    competing_scores,
    count_cells,
    count_compared,
    joined,
    no_cells,
)
from pbgeval.ranking.draws import HOST, DrawStream, uniform_below
from pbgeval.ranking.exact import signs_of, with_signs
from pbgeval.ranking.groups import Group, refuse_nan_of_pairs
from pbgeval.ranking.known_answers import KnownAnswers, concatenated_ranges
from pbgeval.ranking.settings import Kept, PassSettings
from pbgeval.ranking.tally import LossFold, SideTally
from pbgeval.scoring import device_lists, device_scores
from pbgeval.scoring.block_sizes import sizes_on
from pbgeval.scoring.deferred import Deferred
from pbgeval.scoring.exact import ExactComparator
from pbgeval.scoring.true_scores import ExactTrue, TrueScores
from pbgeval.stats.keyed_sums import begins
from pbgeval.stats.ranks import MIN_REPEATED, QueryCounts, RankCounts
from pbgeval.storage.transfers import sent

# The random words of the AUC's cells of a unit's edges on a side, on a device; None: every cell is compared.
WordsOn = Callable[[Side, torch.device], Tensor | None]

# Where a loss keeps their scores, so many chunks are counted together, unless their scores or rows have more numbers.
CHUNKS_OF_LOSS, NUMBERS_OF_LOSS = 8, 1 << 24

# Queries and lists of candidates -> the special cells: known answers, copies of true entities.
#
# The cost of finding known answers is bounded. If a query has at most as many answers as its chunk's list has
# candidates, each answer is looked up in the list. Otherwise (a hub) each candidate is looked up among the answers.


def known_cells(
    key_BQ: np.ndarray, true_BQ: np.ndarray, candidate_BC: np.ndarray, known: KnownAnswers
) -> tuple[np.ndarray, np.ndarray]:
    """Return (query, candidate) of every candidate that is a known answer other than the query's true entity.

    Queries are numbered through all chunks (b * Q + q), candidates within their list; cells are ordered by query.

    Args:
        key_BQ: int64, index of each query's key.
        true_BQ: int64, the true entity of each query.
        candidate_BC: int64, the candidates of each chunk; an entity may occur more than once.
        known: the answers of all keys.
    """
    num_queries, list_length = key_BQ.shape[1], candidate_BC.shape[1]
    key_Q = key_BQ.reshape(-1)
    first_Q, length_Q = known.lists(key_Q)
    few, hubs = np.flatnonzero(length_Q <= list_length), np.flatnonzero(length_Q > list_length)
    answers = known.entity_id_P[concatenated_ranges(first_Q[few], length_Q[few])]
    query, candidate = _answers_in_lists(np.repeat(few, length_Q[few]), answers, num_queries, candidate_BC)
    if hubs.size:  # look their lists up among their answers
        hub, listed = np.nonzero(known.are_known(key_Q[hubs, None], candidate_BC[hubs // num_queries]))
        query, candidate = np.concatenate([query, hubs[hub]]), np.concatenate([candidate, listed])
    is_other = candidate_BC[query // num_queries, candidate] != true_BQ.reshape(-1)[query]
    query, candidate = query[is_other], candidate[is_other]
    order = np.argsort(query * list_length + candidate)
    return query[order], candidate[order]


def _answers_in_lists(
    query_P: np.ndarray, answer_P: np.ndarray, num_queries: int, candidate_BC: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return (query, candidate) of each answer that is in the list of its query's chunk."""
    num_chunks, list_length = candidate_BC.shape
    width = max(int(candidate_BC.max(initial=0)), int(answer_P.max(initial=0))) + 1
    codes = (candidate_BC + np.arange(num_chunks, dtype=np.int64)[:, None] * width).reshape(-1)
    order = np.argsort(codes)
    sorted_codes, code_P = codes[order], query_P // num_queries * width + answer_P
    low_P, high_P = np.searchsorted(sorted_codes, code_P), np.searchsorted(sorted_codes, code_P, "right")
    return np.repeat(query_P, high_P - low_P), order[concatenated_ranges(low_P, high_P - low_P)] % list_length


# True entities and lists of candidates -> the cells where a candidate is the true entity again.
#
# Copies are excluded by entity id. Sorting each list finds them in almost linear time. Comparing every candidate with
# every true entity of a chunk would cost as much as scoring them if lists are long.


def copies_of_true(true_BQ: Tensor, candidate_BC: Tensor, num_batch: int) -> CellIndex:
    """Return (query, candidate) of every copy of a query's true entity in its chunk's list, in that order.

    Queries are numbered through all chunks (b * Q + q), candidates within their list.

    Args:
        true_BQ: the true entity of each query, an int64 id in 0 .. 2^40.
        candidate_BC: the candidates of each chunk.
        num_batch: Q if the list begins with the true entities (query q's own entry, candidate q, is then not
            reported), else 0.
    """
    num_queries = true_BQ.shape[1]
    entries_BC = (candidate_BC if num_batch else torch.cat([true_BQ, candidate_BC], dim=1)).numpy()

    # Find the entries whose value repeats in their chunk, by chunk and value. The low bits hold an entry's position.
    position_bits = max(entries_BC.shape[1] - 1, 1).bit_length()
    packed_BC = (entries_BC << position_bits) | np.arange(entries_BC.shape[1], dtype=np.int64)
    packed_BC.sort(axis=1)
    values_BC = packed_BC >> position_bits
    equal_BC = values_BC[:, 1:] == values_BC[:, :-1]
    repeated_BC = np.zeros(entries_BC.shape, bool)
    repeated_BC[:, 1:] = equal_BC
    repeated_BC[:, :-1] |= equal_BC
    chunk, at = np.nonzero(repeated_BC)
    entry = packed_BC[chunk, at] & ((1 << position_bits) - 1)

    # In each run of equal entries of a chunk, pair every query with every other entry that is a candidate.
    run = np.cumsum(begins(chunk, values_BC[chunk, at]))
    queries = np.flatnonzero(entry < num_queries)
    first, stop = (np.searchsorted(run, run[queries], side) for side in ("left", "right"))
    query_member = np.repeat(queries, stop - first)
    candidate_member = concatenated_ranges(first, stop - first)
    candidate = entry[candidate_member] - (0 if num_batch else num_queries)
    kept = (candidate_member != query_member) & (candidate >= 0)
    query = (chunk[query_member] * num_queries + entry[query_member])[kept]
    order = np.argsort(query, kind="stable")
    return torch.from_numpy(query[order]), torch.from_numpy(candidate[kept][order])


# Blocks of chunks -> lists of sampled candidates and their special cells, for a whole block at once.


@frozen(eq=False)
class CandidateList:
    """The candidates of a block's chunks on one side."""

    ids_BC: Tensor  # rows of their table
    true_BQ: Tensor  # the true entity of each query, and that of each candidate: one that occurs again has one number
    entity_BC: Tensor
    auc_words_QD: Tensor | None  # random words of each query; None: the AUC compares all scores


def make_list(
    group: Group,
    block: ChunkBlock,
    side: Side,
    true_BQ: Tensor,
    settings: PassSettings,
    auc_words_ED: Tensor | None,
) -> CandidateList:
    """Draw the candidates of a block's chunks on one side, on the device of the true entities."""
    table = group.tables[side]
    num_chunks = block.rows_BQ.shape[0]
    num_draws = 0 if table.featurized else block.num_words  # features cannot be drawn
    parts = [true_BQ] if block.num_batch else []
    if num_draws:
        stream = DrawStream.of(settings.seed, *group.origin.place, side)
        words = [stream.words_on(true_BQ.device, word, chunks * num_draws) for word, chunks in block.runs]
        words_BN = (words[0] if len(words) == 1 else torch.cat(words)).view(num_chunks, num_draws)
        parts.append(uniform_below(words_BN[:, : block.num_draws], table.num_rows))
        if block.num_degree:
            parts.append(group.degree_weights(side).draw(words_BN[:, block.num_draws :]))
    ids_BC = torch.cat(parts, dim=1)
    words_QD = None if auc_words_ED is None else block.of_edges(auc_words_ED)
    return CandidateList(ids_BC, true_BQ, ids_BC, words_QD)


def _auc_cells(
    words_QD: Tensor, block: ChunkBlock, true_BQ: Tensor, entity_BC: Tensor, settings: PassSettings
) -> tuple[CellIndex, Tensor]:
    """Return the cells that the words of each query sample for the AUC, and whether its true score is sampled."""
    num_queries = true_BQ.shape[1]
    query, candidate = settings.auc.cells(words_QD, entity_BC.shape[1])
    competes = (
        (candidate != query % num_queries) | (block.num_batch == 0)
        if settings.lists.pbg_semantics
        else entity_BC[query // num_queries, candidate] != true_BQ.flatten()[query]
    )
    kept = competes.nonzero().squeeze(1)
    return (query[kept], candidate[kept]), settings.auc.true_is_kept(words_QD)


# Some chunks of a block -> the cells that do not compete, and the cells sampled for the pooled AUC.


@frozen(eq=False)
class ChunkPart:
    """Consecutive chunks and their cells; queries are numbered from the first, and each list is ordered by query."""

    group: Group
    block: ChunkBlock
    hidden: Side
    rows_BQ: Tensor  # position of each query's edge in the unit, on the CPU; all else is where the vectors are
    true_BQ: Tensor
    ids_BC: Tensor
    marks: device_lists.Marks | None  # what each cell is, on a GPU; None: the next three say it
    copies: CellIndex  # cells that hold the query's true entity again
    excluded: CellIndex  # cells that never compete: copies of the true entity, entities that may not compete
    left_out: Sequence[CellIndex]  # for each filter: the other cells that it removes (known answers)
    inside_Q: Tensor | None  # whether each query's true entity may compete; None: all may
    sampled: CellIndex | None  # competitors whose scores are sampled for the AUC; None: all
    sampled_mark_P: Tensor | None  # on a GPU, their marks: some of them do not compete
    # Whether each query's true score is sampled, which needs an entity that may compete; None: all are.
    true_is_sampled_Q: Tensor | None

    @property
    def known(self) -> CellIndex:
        """The cells that the filter of the filtered metrics removes."""
        return self.left_out[0] if self.left_out else no_cells(self.ids_BC.device)

    @property
    def read(self) -> tuple[CellIndex, Tensor]:
        """The cells whose scores are read, by query, and the place of each before they were ordered.

        A place counts the sampled cells first, then the cells that the time-aware filter removes.
        """
        sampled = no_cells(self.ids_BC.device) if self.sampled is None else self.sampled
        if not self.left_out[1:]:
            return sampled, sampled[0].new_empty(0)
        return _by_query(sampled, self.left_out[1])

    def split(self, read_P: Tensor, order_P: Tensor) -> tuple[Tensor, Tensor]:
        """Split the scores of the cells of `read` into those of the sampled and of the time-filtered cells."""
        if not self.left_out[1:]:
            return read_P, read_P[:0]
        in_order_P = torch.empty_like(read_P)
        in_order_P[order_P] = read_P
        num_in_time = self.left_out[1][0].numel()
        return in_order_P[: read_P.numel() - num_in_time], in_order_P[read_P.numel() - num_in_time :]

    def is_known(self, query_P: Tensor, column_P: Tensor) -> Tensor:
        """Tell of each cell whether it is a known answer, bool."""
        if self.marks is not None:
            return (self.marks.mark_QC[query_P, column_P] & device_lists.KNOWN) != 0
        return are_among(query_P, column_P, self.known, self.ids_BC.shape[1])

    @property
    def num_copies_Q(self) -> Tensor:
        """How many cells hold the true entity of each query again; none if it may not compete."""
        if self.marks is None:
            copies_Q = torch.bincount(self.copies[0], minlength=self.rows_BQ.numel())
        else:
            copies_Q = self.marks.num_copies_Q
        return copies_Q if self.inside_Q is None else copies_Q * self.inside_Q

    @property
    def without_loss(self) -> CellIndex | Tensor:
        """The cells that have no part in a filtered loss, by query and candidate or as a mask."""
        if self.marks is not None:
            return (self.marks.mark_QC & (device_lists.EXCLUDED | device_lists.KNOWN)) != 0
        return joined(self.never_competing, self.known)

    @property
    def competes_QC(self) -> Tensor:
        """Whether each cell competes in a query whose true score is sampled, bool; without marks."""
        shape = self.rows_BQ.numel(), self.ids_BC.shape[1]
        competes_QC = torch.ones(shape, dtype=torch.bool, device=self.ids_BC.device)
        competes_QC[self.never_competing] = False
        if self.true_is_sampled_Q is not None:
            competes_QC &= self.true_is_sampled_Q.unsqueeze(1)
        return competes_QC

    @cached_property
    def never_competing(self) -> CellIndex:
        """The excluded cells, and each query's own cell if the list begins with the true entities."""
        query = torch.arange(self.rows_BQ.numel() if self.block.num_batch else 0, device=self.ids_BC.device)
        return joined((query, query % self.rows_BQ.shape[1]), self.excluded)


def _by_query(some: CellIndex, others: CellIndex) -> tuple[CellIndex, Tensor]:
    """Merge two lists of cells by query; also return the place of each in their concatenation."""
    query, candidate = joined(some, others)
    order = torch.argsort(query, stable=True)
    return (query[order], candidate[order]), order


def _competing(cells: CellIndex, inside_Q: Tensor | None, excluded: CellIndex, num_columns: int) -> CellIndex:
    """Return those of the sampled cells that compete in queries whose true entity may compete."""
    if inside_Q is None:  # copies of true entities have been left out before
        return cells
    kept = (inside_Q[cells[0]] & ~are_among(*cells, excluded, num_columns)).nonzero().squeeze(1)
    return cells[0][kept], cells[1][kept]


def _outside(group: Group, hidden: Side, rows_BQ: Tensor, ids_BC: Tensor) -> np.ndarray:
    """Tell of each cell whether its candidate may not compete in the query, bool (Q, C)."""
    rel_BQ, list_BC = group.edges.rel[rows_BQ].numpy(), ids_BC.cpu().numpy()
    outside_BQC: np.ndarray = ~group.may_compete(hidden, rel_BQ[:, :, None], list_BC[:, None, :])
    return outside_BQC.reshape(-1, list_BC.shape[1])


def _marks(
    group: Group,
    block: ChunkBlock,
    hidden: Side,
    true_BQ: Tensor,
    ids_BC: Tensor,
    queries: slice,
    outside_QC: np.ndarray | None,
    settings: PassSettings,
) -> device_lists.Marks:
    """Mark the cells of some queries of a block where the lists are, on a GPU."""
    filters = []
    for known_by_side in group.competition.filters:
        key_E, key_P, entity_P = known_by_side[hidden].on_device(ids_BC.device)
        filters.append(device_lists.KnownEntities(block.of_edges(key_E)[queries], key_P, entity_P))
    return device_lists.marks(
        ids_BC,
        true_BQ,
        filters,
        None if outside_QC is None else sent(torch.from_numpy(outside_QC), ids_BC.device),
        begins_with_own=block.num_batch > 0,
        skips_copies=not settings.lists.pbg_semantics,
    )


def _special(
    group: Group, hidden: Side, rows_BQ: Tensor, ids_BC: Tensor, copies: CellIndex, outside_QC: np.ndarray | None
) -> tuple[CellIndex, list[CellIndex]]:
    """Return the cells that never compete, and the other cells that each filter removes."""
    excluded, filters, device = copies, group.competition.filters, ids_BC.device
    if outside_QC is not None:
        query, candidate = (torch.from_numpy(index).to(device) for index in np.nonzero(outside_QC))
        excluded, _ = _by_query(copies, (query, candidate))
    left_out: list[CellIndex] = []
    if not filters:
        return excluded, left_out
    list_BC = ids_BC.cpu().numpy()
    for known in [known_by_side[hidden] for known_by_side in filters]:
        key_BQ, true_BQ = known.key_E[rows_BQ.numpy()], group.ids_E[hidden][rows_BQ].numpy()
        special = known_cells(key_BQ, true_BQ, list_BC, known.answers)
        if outside_QC is not None:
            competes = ~outside_QC[special]
            special = special[0][competes], special[1][competes]
        left_out.append((torch.from_numpy(special[0]).to(device), torch.from_numpy(special[1]).to(device)))
    return excluded, left_out


# Chunks and their cells -> counts, true scores and the scores that the pooled AUC compares.


@frozen(eq=False)
class Scored:
    """The results of the queries of some chunks."""

    part: ChunkPart
    counts: QueryCounts
    true_Q: Tensor
    score_P: Tensor  # that the AUC compares: of competitors or, on a GPU, of as many cells of each query, with marks
    query_P: Tensor | None  # of each of these; None: marks and places say it
    known_P: Tensor | None  # whether each is a known answer's; None: nothing is filtered, or marks say it
    mark_P: Tensor | None
    loss_Q: Tensor | None  # None: not requested


def score_chunks(
    part: ChunkPart, query_BQD: Tensor, candidate_BCD: Tensor, settings: PassSettings, backend: Backend
) -> Scored:
    """Score every query of some chunks against its list, from prepared rows.

    Raises:
        UnrankableError: a score is not a number.
    """
    query_Q = torch.arange(part.rows_BQ.numel())
    own_Q = query_Q % part.rows_BQ.shape[1] if part.block.num_batch else torch.full_like(query_Q, -1)
    true = _true(part, query_BQD, candidate_BCD, backend)
    queries = QueryRows(query_BQD, query_Q, true, backend.exact_comparator, each_own=True)
    candidates = CandidateRows(candidate_BCD, backend.exact_comparator)
    block = Block(queries, candidates, own_Q, part.known, part.excluded, part.read[0], part.marks)
    try:
        counted = backend.count_decided(block)
    except NotANumberError as error:
        chunk, query = divmod(error.row, part.rows_BQ.shape[1])
        edge, candidate = int(part.rows_BQ[chunk, query]), int(part.ids_BC[chunk, error.column])
        raise part.group.nan_score(part.hidden, edge, candidate) from error
    in_time = None
    if backend.exact_comparator is not None:
        in_time = _exact_in_time(part, partial(signs_of, queries, candidate_BCD))
    return _scored(part, counted, settings, in_time)


def _exact_in_time(part: ChunkPart, signs: Callable[[Tensor, Tensor], Tensor]) -> RankCounts | None:
    """Count the cells that the time-aware filter removes; None: there are none, or they are counted by marks.

    Args:
        part: the chunks and their cells.
        signs: (query, column) of some cells -> whether they score higher (1), the same (0) or lower (-1) than the true
            entity of their query.
    """
    if not part.left_out[1:]:
        return None
    query_P, column_P = part.left_out[1]
    signs_P = signs(query_P, column_P)
    return count_compared(query_P, signs_P > 0, signs_P == 0, part.rows_BQ.numel())


def _signs_by_id(part: ChunkPart, exact_comparator: ExactComparator, query_P: Tensor, column_P: Tensor) -> Tensor:
    """Return the same as `signs_of` for a few cells whose rows are not prepared yet."""
    group, hidden, num_queries = part.group, part.hidden, part.rows_BQ.shape[1]
    signs = [torch.empty(0, dtype=torch.int8)]
    step = sizes_on(query_P.device).pairs
    for start in range(0, query_P.numel(), step):
        query, column = query_P[start : start + step], column_P[start : start + step]
        rows = part.rows_BQ.flatten()[query]
        known, true, candidate = (
            group.ids_E[hidden.other][rows],
            group.ids_E[hidden][rows],
            part.ids_BC[query // num_queries, column],
        )
        query_PD = group.queries(hidden, group.rows(hidden.other, known), rows)
        true_PD, candidate_PD = (group.candidates(hidden, group.rows(hidden, ids), ids) for ids in (true, candidate))
        of_true, pairs = ExactTrue.from_pairs(exact_comparator, query_PD, true_PD), torch.arange(query.numel())
        queries = QueryRows(query_PD[None], pairs, of_true, exact_comparator, each_own=True)
        signs.append(signs_of(queries, candidate_PD[None], pairs, pairs))
    return torch.cat(signs)


def _true(part: ChunkPart, query_BQD: Tensor, candidate_BCD: Tensor, backend: Backend) -> TrueScores | ExactTrue | None:
    """Return the true scores to compare with; None: the backend scores the lists' leading true entities."""
    if part.block.num_batch and backend.exact_comparator is None:
        return None
    query_QD = query_BQD.flatten(0, 1)
    ids_Q = part.true_BQ.flatten()
    if part.block.num_batch:
        true_QD = candidate_BCD[:, : part.block.num_batch].contiguous().flatten(0, 1)
    else:
        true_QD = part.group.candidates(part.hidden, part.group.rows(part.hidden, ids_Q), ids_Q)
    if backend.exact_comparator is not None:
        return ExactTrue.from_pairs(backend.exact_comparator, query_QD, true_QD)
    true_Q = backend.pairs(query_QD, true_QD)
    cells = part.rows_BQ.flatten().numpy(), ids_Q.cpu().numpy()
    refuse_nan_of_pairs(
        backend.comparator, (query_QD, true_QD), true_Q, cells, partial(part.group.nan_score, part.hidden)
    )
    return TrueScores(true_Q, true_Q, torch.zeros_like(ids_Q))


def _scored(part: ChunkPart, counted: Counted, settings: PassSettings, in_time: RankCounts | None = None) -> Scored:
    """Assemble the results of some queries; `in_time` holds the time-filtered counts if they are made already."""
    counts, true_Q, scores_QC = counted.counts, counted.true_Q, counted.scores_KC
    score_P, in_time_P = part.split(counted.read_P, part.read[1])
    if part.left_out[1:]:
        if in_time is None:
            in_time = count_cells(in_time_P, part.left_out[1][0], true_Q, true_Q)
        counts = evolve(counts, in_time=in_time)
    loss_Q = None
    if settings.loss is not None and scores_QC is not None:
        fold = LossFold(settings.loss, part.group.relation.scorer.comparator, true_Q)
        fold.fold(scores_QC, part.without_loss)
        lengths_Q = counts.filtered.num_competitors_Q
        if settings.lists.pbg_semantics:
            lengths_Q = torch.full_like(lengths_Q, part.ids_BC.shape[1] + part.block.num_masked)
        loss_Q = fold.finish(lengths_Q, part.group.weights(part.rows_BQ.flatten()))
    query_P, known_P, mark_P = None, None, part.sampled_mark_P
    if part.sampled is None:
        assert scores_QC is not None, "all scores are kept"
        if part.marks is None:
            known = part.left_out[0] if part.left_out else None
            score_P, query_P, known_P = competing_scores(scores_QC, part.competes_QC, known)
        else:
            score_P, mark_P = scores_QC.flatten(), part.marks.mark_QC.flatten()
    elif part.marks is None:
        query_P = part.sampled[0]
        known_P = part.is_known(*part.sampled) if part.group.competition.filters else None
    return Scored(part, counts, true_Q, score_P, query_P, known_P, mark_P, loss_Q)


def _marked(
    score_P: Tensor, mark_P: Tensor, inside_Q: Tensor | None, num_queries: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the scores of the cells that compete in ranked queries, the query of each, and whether each is known."""
    num_cells = mark_P.numel() // max(num_queries, 1)
    competes_QN = ((mark_P & device_lists.EXCLUDED) == 0).view(num_queries, num_cells)
    competes_QN = competes_QN if inside_Q is None else competes_QN & inside_Q.unsqueeze(1)
    kept_P = competes_QN.flatten().nonzero().squeeze(1)
    return score_P[kept_P], kept_P // max(num_cells, 1), (mark_P[kept_P] & device_lists.KNOWN) != 0


@frozen(eq=False)
class SampledBlock:
    """Some chunks of a group's edges, and the lists of candidates that they are ranked against."""

    group: Group
    block: ChunkBlock
    true: Mapping[Side, Tensor]  # int64 (B, Q): the entities of the edges, by side
    lists: Mapping[Side, CandidateList]  # by hidden side
    settings: PassSettings

    @cached_property
    def backend(self) -> Backend:
        """What counts the chunks."""
        group, device = self.group, self.group.tables[Side.LHS].device
        return backend_for(group.relation.scorer, device, group.relation.dtype, kept=self.settings.kept, num_cells=0)

    def count_by_loop(self, chunks: slice) -> list[Scored] | None:
        """Count some chunks on every enabled side by a loop that gathers the rows; None: they must be prepared."""
        parts: dict[Side, ChunkPart] = {}

        def cells_of(side: Side) -> ListCells:
            part = self._part(side, chunks)
            if self.settings.auc.exact:  # each score is read by its cell
                query_P, column_P = part.competes_QC.nonzero(as_tuple=True)
                part = evolve(part, sampled=(query_P, column_P))
            parts[side] = part
            true_is_read_Q = part.true_is_sampled_Q if self.settings.loss is None else None  # a loss reads them all
            return ListCells(part.excluded, part.known, part.read[0], true_is_read_Q)

        found = self.backend.count_lists(self._lists_of(chunks), cells_of)
        if found is None:
            return None
        scored = []
        for hidden, counted in found.items():
            part, in_time = parts[hidden], None
            if self.backend.exact_comparator is not None:
                assert counted.open is not None, "lists are short enough"
                signs = partial(_signs_by_id, part, self.backend.exact_comparator)
                in_time = _exact_in_time(part, signs)
                if counted.open[0].numel():
                    known_P = part.is_known(*counted.open)
                    counts = with_signs(counted.counts, counted.open[0], signs(*counted.open), known_P)
                    counted = evolve(counted, counts=counts)
            scored.append(_scored(part, counted, self.settings, in_time))
        return scored

    def count_prepared(self, chunks: slice) -> Iterator[Scored]:
        """Count some chunks on every enabled side from prepared rows."""
        group, num_batch = self.group, self.block.num_batch
        rows = {side: _rows(group, side, candidates.ids_BC[chunks]) for side, candidates in self.lists.items()}
        for hidden in self.lists:
            part, known = self._part(hidden, chunks), hidden.other
            known_BQD = (
                rows[known][:, :num_batch]  # that side's list begins with these rows
                if known in rows and num_batch
                else _rows(group, known, self.true[known][chunks])
            )
            query_BQD = group.queries(hidden, known_BQD, part.rows_BQ)
            candidate_BCD = group.candidates(hidden, rows[hidden], part.ids_BC)
            yield score_chunks(part, query_BQD, candidate_BCD, self.settings, self.backend)

    def _part(self, hidden: Side, chunks: slice) -> ChunkPart:
        """Take some chunks on a side, and find their cells."""
        group, block, settings, candidates = self.group, self.block, self.settings, self.lists[hidden]
        rows_BQ, true_BQ, ids_BC = block.rows_BQ[chunks], self.true[hidden][chunks], candidates.ids_BC[chunks]
        num_queries = rows_BQ.numel()
        queries = slice(chunks.start * rows_BQ.shape[1], chunks.start * rows_BQ.shape[1] + num_queries)
        inside_Q = outside_QC = marks = None
        copies = excluded = no_cells(ids_BC.device)
        left_out: list[CellIndex] = []
        if group.competition.sets is not None:
            rel_Q, true_Q = group.edges.rel[rows_BQ].flatten(), group.ids_E[hidden][rows_BQ].flatten()
            inside_Q = sent(torch.from_numpy(group.may_compete(hidden, rel_Q.numpy(), true_Q.numpy())), ids_BC.device)
            outside_QC = _outside(group, hidden, rows_BQ, ids_BC)
        if device_scores.supports(ids_BC.device):
            marks = _marks(group, block, hidden, true_BQ, ids_BC, queries, outside_QC, settings)
        else:
            entities = candidates.true_BQ[chunks], candidates.entity_BC[chunks]
            if not settings.lists.pbg_semantics:
                copies = copies_of_true(*entities, block.num_batch)
            excluded, left_out = _special(group, hidden, rows_BQ, ids_BC, copies, outside_QC)
        sampled, sampled_mark_P, true_is_sampled_Q = None, None, inside_Q
        if candidates.auc_words_QD is not None:
            words_QD = candidates.auc_words_QD[queries]
            if marks is None:
                sampled, true_is_sampled_Q = _auc_cells(words_QD, block, *entities, settings)
                sampled = _competing(sampled, inside_Q, excluded, ids_BC.shape[1])
            else:
                auc = settings.auc
                drawn = device_lists.draw(words_QD, marks, auc.competing_rate * ids_BC.shape[1], auc.true_rate)
                sampled, sampled_mark_P = (drawn.query_P, drawn.column_P), drawn.mark_P
                true_is_sampled_Q = drawn.true_is_kept_Q
            if inside_Q is not None:
                true_is_sampled_Q = true_is_sampled_Q & inside_Q
        return ChunkPart(
            group,
            block,
            hidden,
            rows_BQ,
            true_BQ,
            ids_BC,
            marks,
            copies=copies,
            excluded=excluded,
            left_out=left_out,
            inside_Q=inside_Q,
            sampled=sampled,
            sampled_mark_P=sampled_mark_P,
            true_is_sampled_Q=true_is_sampled_Q,
        )

    def _lists_of(self, chunks: slice) -> ChunkLists:
        """Return the entities of both sides of some chunks, by their rows."""
        rows_BQ, num_batch = self.block.rows_BQ[chunks], self.block.num_batch
        ids = {side: true_BQ[chunks] for side, true_BQ in self.true.items()}
        for side, candidates in self.lists.items():
            listed_BC = candidates.ids_BC[chunks]
            ids[side] = listed_BC if num_batch else torch.cat([ids[side], listed_BC], dim=1)
        return ChunkLists(
            self.group.relation.scorer,
            self.group.tables,
            ids=ids,
            hidden=tuple(self.lists),
            rel_BQ=self.group.rel(rows_BQ),
            shape=rows_BQ.shape,
            first=0 if num_batch else rows_BQ.shape[1],
            reads_all_scores=self.settings.loss is None,
        )


def count_sampled(
    group: Group,
    block: ChunkBlock,
    settings: PassSettings,
    auc_words: WordsOn,
    tallies: dict[Side, SideTally],
    deferred: Deferred,
) -> None:
    """Score one block of chunks on every enabled side and tally its queries."""
    device = group.tables[Side.LHS].device
    true = {side: sent(block.of_edges(group.ids_E[side]).view(block.rows_BQ.shape), device) for side in ENDS}
    lists = {
        side: make_list(group, block, side, true[side], settings, auc_words(side, device)) for side in settings.sides
    }
    sampled = SampledBlock(group, block, true, lists, settings)
    num_chunks, num_queries = block.rows_BQ.shape

    def add(found: Iterable[Scored]) -> None:
        for scored in found:
            _tally(scored, tallies[scored.part.hidden], deferred)

    if settings.kept is not Kept.SCORES:  # no scores are stored, so the loop takes the whole block
        found = sampled.count_by_loop(slice(0, num_chunks))
        if found is not None:
            add(found)
            return
    step = _chunks_at_a_time(
        group,
        num_queries,
        max(candidates.ids_BC.shape[1] for candidates in lists.values()),
        keeps_scores=settings.kept is Kept.SCORES,
    )
    for start in range(0, num_chunks, step):
        chunks = slice(start, min(start + step, num_chunks))
        found = sampled.count_by_loop(chunks) if settings.kept is Kept.SCORES else None
        add(sampled.count_prepared(chunks) if found is None else found)


def chunks_of_loss(num_numbers: int) -> int:
    """Return how many chunks of so many numbers a loss is folded over together."""
    return max(min(CHUNKS_OF_LOSS, NUMBERS_OF_LOSS // max(num_numbers, 1)), 1)


def _chunks_at_a_time(group: Group, num_queries: int, num_candidates: int, *, keeps_scores: bool) -> int:
    """Return how many chunks to score together, as limited by the size of their rows and scores.

    A loss's last bits depend on it, whether a loop counts or not. A loop gets a few chunks, so that threads share them.
    """
    table, num_cells = group.tables[Side.LHS], num_queries * num_candidates
    sizes, row_numbers = sizes_on(table.device), (num_queries + num_candidates) * table.embeddings_ND.shape[1]
    few = 1
    if keeps_scores and table.device == HOST:
        few = chunks_of_loss(max(num_cells, row_numbers))
    return max(1, few, min(sizes.cells // num_cells, sizes.numbers // max(row_numbers, 1)))


def _rows(group: Group, side: Side, ids_BK: Tensor) -> Tensor:
    """Return the vectors of the entities of some chunks, (B, K, D)."""
    return group.rows(side, ids_BK.flatten()).view(*ids_BK.shape, -1)


def _tally(scored: Scored, tally: SideTally, deferred: Deferred) -> None:
    """Add the results of the queries whose true entity may compete to the tally, once they are on the host."""
    part, counts = scored.part, scored.counts
    rows_Q = part.rows_BQ.flatten()
    filtered = bool(part.group.competition.filters)
    # Many counts that repeat take less room on their way as a table of those that occur.
    on_host = scored.true_Q.device.type == "cpu"
    come_alone = on_host or (not filtered and counts.raw.num_queries >= MIN_REPEATED)
    if come_alone:
        counts = counts.cpu(filtered=filtered)

    def add(
        counts_NQ: Tensor | None,
        true_Q: Tensor,
        score_P: Tensor,
        query_P: Tensor | None,
        known_P: Tensor | None,
        mark_P: Tensor | None,
        loss_Q: Tensor | None,
        inside_Q: Tensor | None,
        true_is_sampled_Q: Tensor | None,
        num_copies: Tensor,
    ) -> None:
        found = counts if counts_NQ is None else QueryCounts.of_rows(counts_NQ)
        kept_rows_Q = rows_Q if inside_Q is None else rows_Q[inside_Q]
        tops_up = part.block.num_topped_up > 0 and not part.group.tables[part.hidden].featurized
        tally.add_queries(
            kept_rows_Q,
            found if inside_Q is None else found.select(inside_Q),
            loss_Q=loss_Q if loss_Q is None or inside_Q is None else loss_Q[inside_Q],
            num_outside=rows_Q.numel() - kept_rows_Q.numel(),
            num_short_lists=kept_rows_Q.numel() if tops_up else 0,
            num_excluded=int(num_copies),
        )
        sampled: Tensor | slice = slice(None) if true_is_sampled_Q is None else true_is_sampled_Q
        tally.add_true_scores(true_Q[sampled], rows_Q[sampled] if tally.has_clusters else None)
        if mark_P is not None:
            score_P, query_P, known_P = _marked(score_P, mark_P, inside_Q, rows_Q.numel())
        rows = rows_Q[query_P] if tally.has_clusters and query_P is not None else None
        tally.add_scores(score_P, rows, known_P if filtered else None)

    deferred.add(
        add,
        None if come_alone else counts.rows(filtered=filtered),
        scored.true_Q,
        scored.score_P,
        scored.query_P if tally.has_clusters else None,
        scored.known_P,
        scored.mark_P,
        scored.loss_Q,
        part.inside_Q,
        part.true_is_sampled_Q,
        part.num_copies_Q.sum(),
    )
