"""Prepared chunks and their cells -> counts, true scores and the scores that the pooled AUC compares.

Three ways: chunk by chunk in a compiled loop, from which no score comes out but those asked for; from a block of
scores; or exactly, for certified ranks.
"""

from __future__ import annotations

import torch
from attrs import frozen
from torch import Tensor

from pbgeval.candidates.chunks import ChunkBlock
from pbgeval.counting import chunks as compiled_chunks
from pbgeval.counting.chunks import ChunkCells, ChunkCounts, PreparedChunks
from pbgeval.counting.general import BlockCounter
from pbgeval.counting.known import count_cells
from pbgeval.notation import Side
from pbgeval.passes.block_threads import MOST_THREADS, BlockThreads
from pbgeval.passes.certified import CertifiedChunks
from pbgeval.passes.groups import Group
from pbgeval.passes.nan import first_nan, first_nan_of_pairs
from pbgeval.passes.sampled_cells import Pairs, PartCells, joined
from pbgeval.passes.sampled_lists import CandidateList
from pbgeval.passes.settings import PassSettings
from pbgeval.passes.tally import LossFold
from pbgeval.ranking import QueryCounts
from pbgeval.scoring.certified import CertifiedComparator


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

    def true_rows(self) -> Tensor:
        """Return the prepared rows of all queries' true entities."""
        if self.holds_true:
            return self.candidates_BCD[:, : self.block.num_batch].flatten(0, 1)
        side = self.group.side(self.hidden)
        ids_Q = side.ids_E[self.rows_BQ.flatten()]
        return self.group.candidates(self.hidden, side.rows(ids_Q), ids_Q)

    def true_scores(self) -> Tensor:
        """Return the score of each query's true entity, by the kernel of all scores."""
        return self.group.relation.scorer.comparator.paired_scores(self.queries_BQD.flatten(0, 1), self.true_rows())

    def checked_true_scores(self) -> Tensor:
        """Return the same.

        Raises:
            UnrankableError: one is not a number.
        """
        true_Q = self.true_scores()
        comparator = self.group.relation.scorer.comparator
        bad = first_nan_of_pairs(comparator, self.queries_BQD.flatten(0, 1), self.true_rows(), true_Q)
        if bad is not None:
            row = int(self.rows_BQ.flatten()[bad])
            raise self.group.nan_score(self.hidden, row, int(self.group.side(self.hidden).ids_E[row]))
        return true_Q


@frozen(eq=False)
class Found:
    """What was found about the queries of some chunks."""

    counts: QueryCounts
    true_Q: Tensor
    competing: Tensor  # scores that the pooled AUC compares with true ones
    competing_query: Tensor  # the query of each
    competing_is_known: Tensor | None  # which of them are of known answers; None: nothing is filtered
    loss_Q: Tensor | None = None  # None: not asked for

    @classmethod
    def of_picked(cls, found: ChunkCounts, cells: PartCells) -> Found:
        """Return what a compiled loop found, which was asked for some competitors' scores."""
        assert cells.picked is not None, "the caller has asked"
        return cls(found.counts, found.true_Q, found.picked, cells.picked[0], cells.picked_is_known)


def score_chunks(part: ChunkPart, cells: PartCells, settings: PassSettings, counter: BlockCounter) -> Found:
    """Score every query of some chunks with its list.

    Raises:
        UnrankableError: a score is not a number.
    """
    scorer = part.group.relation.scorer
    if scorer.certified is not None:
        return _certified(scorer.certified, part, cells, settings, counter)
    if settings.loss is None and cells.picked is not None and scorer.comparator.is_inner_product:
        found = _compiled(part, cells, cells.picked)
        if found is not None:
            return found
    true_Q, scores_QC = _scores(part)
    raw = counter.count(scores_QC, true_Q, cells.everywhere, holds_true=part.holds_true)
    counts = QueryCounts(raw, count_cells(scores_QC, true_Q, cells.known))
    loss_Q = _losses(part, cells, settings, counts, true_Q, scores_QC)
    if cells.picked is None:
        return Found(counts, true_Q, *_all_competing(part, cells, scores_QC), loss_Q)
    query, candidate = (index.to(scores_QC.device) for index in cells.picked)
    return Found(counts, true_Q, scores_QC[query, candidate], cells.picked[0], cells.picked_is_known, loss_Q)


def _compiled(part: ChunkPart, cells: PartCells, picked: Pairs) -> Found | None:
    """Return what was found chunk by chunk; None where that way does not serve."""
    if not compiled_chunks.serves(part.queries_BQD, part.candidates_BCD):
        return None
    special = ChunkCells(cells.everywhere, cells.known, picked)
    true_Q = None if part.holds_true else part.true_scores()
    if true_Q is not None and not bool(torch.isfinite(true_Q).all()):
        return None
    chunks = PreparedChunks.of_rows(part.queries_BQD, part.candidates_BCD, true_Q, special)
    threads = BlockThreads.of_device(part.queries_BQD.device, MOST_THREADS)
    if not all(threads.map(chunks.count, threads.split(part.rows_BQ.shape[0]))):
        return None
    return Found.of_picked(chunks.results.found(), cells)


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
        return part.checked_true_scores(), scores_BQC.flatten(0, 1)
    true_Q = scores_BQC[:, :, : part.block.num_batch].diagonal(dim1=1, dim2=2).reshape(-1)
    return true_Q, scores_BQC.flatten(0, 1)


def _certified(
    comparator: CertifiedComparator, part: ChunkPart, cells: PartCells, settings: PassSettings, counter: BlockCounter
) -> Found:
    values = settings.loss is not None or cells.picked is None
    chunks = CertifiedChunks.score(comparator, part.queries_BQD, part.candidates_BCD, part.true_rows(), values=values)
    scores_QC, true_Q = chunks.fast.scores_KC, chunks.queries.true.value_Q
    counts = chunks.count(counter, cells.with_own(part.block), cells.known)
    loss_Q = _losses(part, cells, settings, counts, true_Q, scores_QC)
    if cells.picked is None:
        return Found(counts, true_Q, *_all_competing(part, cells, scores_QC), loss_Q)
    query, candidate = (index.to(scores_QC.device) for index in cells.picked)
    values_P = chunks.values_of(query, candidate)
    return Found(counts, true_Q, values_P, cells.picked[0], cells.picked_is_known, loss_Q)


def _all_competing(part: ChunkPart, cells: PartCells, scores_QC: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the scores of all competitors of queries that are ranked, their queries, and which are known answers."""
    competes_QC = cells.true_is_picked_Q.unsqueeze(1).repeat(1, scores_QC.shape[1])
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
    lengths_Q = counts.filtered.competing_Q
    if settings.pbg_semantics:
        lengths_Q = torch.full_like(counts.raw.competing_Q, cells.list_length + part.block.num_masked)
    return fold.finish(lengths_Q, part.group.weights(cells.rows_BQ.flatten()))
