"""Blocks of chunks -> lists of sampled candidates and the cells of them that are special, for a whole block at once."""

from __future__ import annotations

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from pbgeval.candidates.chunks import ChunkBlock
from pbgeval.candidates.copies import copies_of_true
from pbgeval.candidates.draws import DrawStream
from pbgeval.notation import Side
from pbgeval.passes.competitors import num_competitors
from pbgeval.passes.groups import Group
from pbgeval.passes.settings import PassSettings
from pbgeval.passes.tally import DrawnFrom

NONE = torch.empty(0, dtype=torch.int64)


@frozen(eq=False)
class Cells:
    """Cells of a block of chunks, ordered by query: queries are numbered through all chunks."""

    query: Tensor
    candidate: Tensor

    def of_queries(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Return the cells of a range of queries, numbered from its start."""
        first, last = self.query.numpy().searchsorted((start, stop)).tolist()
        return self.query[first:last] - start, self.candidate[first:last]


@frozen(eq=False)
class CandidateList:
    """The candidates of a block's chunks on one side, and which of their cells are special."""

    ids_BC: Tensor
    num_draws: int  # how many of a chunk's candidates are draws: the last ones
    copies: Cells  # cells that do not compete, because they hold the true entity again
    auc_cells: Cells | None  # cells whose scores are sampled for the AUC; None: all
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
    num_draws = 0 if ends.featurized else block.num_draws  # features cannot be drawn
    true_BQ = ends.ids_E[block.rows_BQ]
    parts = [true_BQ] if block.num_batch else []
    if num_draws:
        draws = [stream.offsets(word, chunks * num_draws, ends.table.num_rows) for word, chunks in block.runs]
        parts.append(torch.cat(draws).view(num_chunks, num_draws))
    ids_BC = torch.cat(parts, dim=1)
    copies = (NONE, NONE) if settings.pbg_semantics else copies_of_true(true_BQ, ids_BC, block.num_batch)
    drawn_from = _drawn_from(group, block, side) if settings.count_competitors else None
    if auc_words_EW is None:
        return CandidateList(ids_BC, num_draws, Cells(*copies), None, None, drawn_from)
    words_QW = auc_words_EW[block.rows_BQ.flatten().numpy()]
    query, candidate = settings.auc.cells(words_QW, ids_BC.shape[1])
    if settings.pbg_semantics:
        competes = (candidate != query % num_queries) | (block.num_batch == 0)
    else:
        competes = ids_BC[query // num_queries, candidate] != true_BQ.flatten()[query]
    auc_cells = Cells(query[competes], candidate[competes])
    auc_true_Q = settings.auc.true_is_kept(words_QW)
    return CandidateList(ids_BC, num_draws, Cells(*copies), auc_cells, auc_true_Q, drawn_from)


def _drawn_from(group: Group, block: ChunkBlock, side: Side) -> DrawnFrom:
    competitors = num_competitors(group, side, block.rows_BQ.flatten())
    list_BQ = block.rows_BQ[:, :1].expand_as(block.rows_BQ)  # a chunk's number in its unit: the row of its first edge
    return DrawnFrom(list_BQ.flatten(), torch.from_numpy(competitors.all_Q), torch.from_numpy(competitors.known_Q))


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
