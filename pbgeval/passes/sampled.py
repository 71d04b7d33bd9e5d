"""Blocks of chunks -> counts, where candidates are sampled (`candidates = "sampled"`)."""

from __future__ import annotations

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from pbgeval.candidates.chunks import ChunkBlock
from pbgeval.candidates.copies import copies_of_true
from pbgeval.candidates.draws import DrawStream
from pbgeval.counting.general import BlockCounter
from pbgeval.notation import Side
from pbgeval.passes.groups import Group
from pbgeval.passes.nan import first_nan
from pbgeval.passes.settings import PassSettings
from pbgeval.passes.tally import LossFold, SideTally


@frozen(eq=False)
class _List:
    """The candidates of a block's chunks on one side."""

    ids_BC: Tensor
    rows_BCD: Tensor  # vectors as operators see them
    num_draws: int  # how many of a chunk's candidates are draws: the last ones

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
    lists = {side: _make_list(group, block, side, streams[side]) for side in settings.sides}
    for hidden in settings.sides:
        known_BQD = _known_rows(group, block, hidden.other, lists.get(hidden.other))
        scored = _score(group, block, hidden, known_BQD, lists[hidden])
        _tally(group, block, hidden, settings, scored, lists[hidden], auc_words[hidden], tallies[hidden], counter)


def _make_list(group: Group, block: ChunkBlock, side: Side, stream: DrawStream) -> _List:
    ends = group.side(side)
    num_chunks = block.rows_BQ.shape[0]
    num_draws = 0 if ends.featurized else block.num_draws  # features cannot be drawn
    parts = []
    if block.num_batch:
        parts.append(ends.ids_E[block.rows_BQ])
    if num_draws:
        draws = stream.offsets(block.first_word, num_chunks * num_draws, ends.table.num_rows)
        parts.append(draws.view(num_chunks, num_draws))
    ids_BC = torch.cat(parts, dim=1)
    return _List(ids_BC, ends.rows(ids_BC.flatten()).view(*ids_BC.shape, -1), num_draws)


def _known_rows(group: Group, block: ChunkBlock, side: Side, known_list: _List | None) -> Tensor:
    """Return the vectors of the queries' known ends: the head of that side's list, if it was made."""
    if known_list is not None and block.num_batch:
        return known_list.rows_BCD[:, : block.num_batch]
    ids_BQ = group.side(side).ids_E[block.rows_BQ]
    return group.side(side).rows(ids_BQ.flatten()).view(*ids_BQ.shape, -1)


@frozen(eq=False)
class _Scored:
    scores_QC: Tensor  # queries of all chunks in one dimension
    true_Q: Tensor


def _score(group: Group, block: ChunkBlock, hidden: Side, known_BQD: Tensor, candidates: _List) -> _Scored:
    comparator = group.relation.scorer.comparator
    num_chunks, num_queries = block.rows_BQ.shape
    rows_Q = block.rows_BQ.flatten()
    queries_BQD = group.queries(hidden, known_BQD.flatten(0, 1), rows_Q).view(num_chunks, num_queries, -1)
    candidates_BCD = group.candidates(hidden, candidates.rows_BCD.flatten(0, 1), candidates.ids_BC).view(
        num_chunks, candidates.length, -1
    )
    scores_BQC = comparator.scores(queries_BQD, candidates_BCD)
    not_a_number = first_nan(queries_BQD, candidates_BCD, scores_BQC)
    if not_a_number is not None:
        chunk, query, candidate = not_a_number
        raise group.nan_score(hidden, int(block.rows_BQ[chunk, query]), int(candidates.ids_BC[chunk, candidate]))
    if block.num_batch:
        true_BQ = scores_BQC[:, :, :num_queries].diagonal(dim1=1, dim2=2)
    else:
        true_BQ = _true_scores(group, hidden, rows_Q, queries_BQD.flatten(0, 1)).view(num_chunks, num_queries)
    return _Scored(scores_BQC.reshape(num_chunks * num_queries, -1), true_BQ.reshape(-1))


def _true_scores(group: Group, hidden: Side, rows_Q: Tensor, queries_QD: Tensor) -> Tensor:
    ids_Q = group.side(hidden).ids_E[rows_Q]
    candidates_QD = group.candidates(hidden, group.side(hidden).rows(ids_Q), ids_Q)
    true_Q = group.relation.scorer.comparator.paired_scores(queries_QD, candidates_QD)
    if bool(torch.isnan(true_Q).any()):
        query = int(torch.isnan(true_Q).nonzero()[0])
        raise group.nan_score(hidden, int(rows_Q[query]), int(ids_Q[query]))
    return true_Q


def _not_competing(
    group: Group, block: ChunkBlock, hidden: Side, pbg_semantics: bool, ids_BC: Tensor
) -> tuple[Tensor, Tensor, int]:
    """Return (query, candidate) of the cells that do not compete, and how many of them are further copies."""
    num_chunks, num_queries = block.rows_BQ.shape
    parts = []
    num_copies = 0
    if block.num_batch:
        own = torch.arange(num_queries)
        parts.append((torch.arange(num_chunks * num_queries), own.repeat(num_chunks)))
    if not pbg_semantics:
        copies = copies_of_true(group.side(hidden).ids_E[block.rows_BQ], ids_BC, block.num_batch)
        num_copies = copies[0].numel()
        parts.append(copies)
    if not parts:
        return torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64), 0
    query, candidate = (torch.cat(indices) for indices in zip(*parts, strict=True))
    return query, candidate, num_copies


def _tally(
    group: Group,
    block: ChunkBlock,
    hidden: Side,
    settings: PassSettings,
    scored: _Scored,
    candidates: _List,
    auc_words_EW: np.ndarray | None,
    tally: SideTally,
    counter: BlockCounter,
) -> None:
    rows_Q = block.rows_BQ.flatten()
    query, candidate, num_copies = _not_competing(group, block, hidden, settings.pbg_semantics, candidates.ids_BC)
    counts = counter.count(scored.scores_QC, scored.true_Q, (query, candidate))
    topped_up = block.num_topped_up > 0 and candidates.num_draws > 0
    tally.add_queries(counts, num_short_lists=rows_Q.numel() if topped_up else 0, num_excluded=num_copies)
    if settings.loss is not None:
        fold = LossFold(settings.loss.name, settings.loss.margin, group.relation.scorer.comparator, scored.true_Q)
        fold.fold(scored.scores_QC, (query, candidate))
        lengths_Q = torch.full_like(counts.competing_Q, candidates.length + block.num_masked)
        if not settings.pbg_semantics:
            lengths_Q = counts.competing_Q
        tally.add_losses(fold.finish(lengths_Q, group.weights(rows_Q)))
    if auc_words_EW is None:
        competes_QC = torch.ones(scored.scores_QC.shape, dtype=torch.bool)
        competes_QC[query, candidate] = False
        tally.add_scores(scored.true_Q, scored.scores_QC[competes_QC.to(scored.scores_QC.device)])
    else:
        _sample_scores(group, block, hidden, settings, scored, candidates, auc_words_EW[rows_Q.numpy()], tally)


def _sample_scores(
    group: Group,
    block: ChunkBlock,
    hidden: Side,
    settings: PassSettings,
    scored: _Scored,
    candidates: _List,
    words_QW: np.ndarray,
    tally: SideTally,
) -> None:
    """Hand the tally a sample of the scores that the pooled AUC compares."""
    query, candidate = settings.auc.cells(words_QW, candidates.length)
    num_queries = block.rows_BQ.shape[1]
    if settings.pbg_semantics:
        kept = (candidate != query % num_queries) | (block.num_batch == 0)
    else:
        true_ids_Q = group.side(hidden).ids_E[block.rows_BQ].flatten()
        kept = candidates.ids_BC[query // num_queries, candidate] != true_ids_Q[query]
    query, candidate = query[kept], candidate[kept]
    device = scored.scores_QC.device
    tally.add_scores(
        scored.true_Q[settings.auc.true_is_kept(words_QW).to(device)],
        scored.scores_QC[query.to(device), candidate.to(device)],
    )
