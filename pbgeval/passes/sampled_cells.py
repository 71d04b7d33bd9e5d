"""Some chunks of a block -> the cells that do not compete, and those whose scores the pooled AUC compares."""

from __future__ import annotations

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from pbgeval.candidates.chunks import ChunkBlock
from pbgeval.candidates.known_cells import known_cells
from pbgeval.counting.known import are_among
from pbgeval.notation import Side
from pbgeval.passes.groups import Group
from pbgeval.passes.sampled_lists import NONE, CandidateList

Pairs = tuple[Tensor, Tensor]  # (query, candidate), int64


@frozen(eq=False)
class PartCells:
    """Cells of consecutive chunks, whose queries are numbered from the first; each list is ordered by query."""

    rows_BQ: Tensor  # position of each query's edge in the unit
    list_length: int
    copied_query: Tensor  # the query of each copy of a true entity
    everywhere: Pairs  # do not compete in any figure: copies of the true entity, entities that may not compete
    known: Pairs  # known answers among the rest: do not compete in filtered figures
    inside_Q: Tensor | None  # whether each query's true entity may compete; None: all may
    picked: Pairs | None  # competitors whose scores are sampled for the AUC; None: all
    picked_is_known: Tensor | None  # of each of them; None: nothing is filtered, or all are picked
    true_is_picked_Q: Tensor  # whether each query's true score is sampled; never where it may not compete

    @property
    def num_queries(self) -> int:
        return self.rows_BQ.numel()

    def with_own(self, block: ChunkBlock) -> Pairs:
        """Return all cells that do not compete anywhere, each query's own among them where the list holds it."""
        if not block.num_batch:
            return self.everywhere
        query = torch.arange(self.num_queries)
        return joined((query, query % block.num_batch), self.everywhere)


def joined(some: Pairs, others: Pairs) -> Pairs:
    """Return two lists of cells as one, not in order."""
    return torch.cat([some[0], others[0]]), torch.cat([some[1], others[1]])


def cells_of_part(
    group: Group, block: ChunkBlock, hidden: Side, candidates: CandidateList, start: int, stop: int
) -> PartCells:
    """Find the cells of chunks `start` to `stop` of a block."""
    rows_BQ = block.rows_BQ[start:stop]
    first, last = (chunk * rows_BQ.shape[1] for chunk in (start, stop))
    copies = candidates.copies.of_queries(first, last)
    everywhere, known = _barred(group, hidden, rows_BQ, candidates.ids_BC[start:stop], copies)
    inside_Q = _inside(group, hidden, rows_BQ.flatten())
    if candidates.auc_cells is None or candidates.auc_true_Q is None:
        true_Q = torch.ones(rows_BQ.numel(), dtype=torch.bool) if inside_Q is None else inside_Q
        return PartCells(rows_BQ, candidates.length, copies[0], everywhere, known, inside_Q, None, None, true_Q)
    query, candidate = candidates.auc_cells.of_queries(first, last)
    true_Q = candidates.auc_true_Q[first:last]
    if inside_Q is not None:
        competes = inside_Q[query] & ~are_among(query, candidate, everywhere, candidates.length)
        query, candidate = query[competes], candidate[competes]
        true_Q = true_Q & inside_Q
    is_known = are_among(query, candidate, known, candidates.length) if group.competition.filtered else None
    return PartCells(
        rows_BQ, candidates.length, copies[0], everywhere, known, inside_Q, (query, candidate), is_known, true_Q
    )


def _inside(group: Group, hidden: Side, rows_Q: Tensor) -> Tensor | None:
    if group.competition.sets is None:
        return None
    may_compete = group.may_compete(hidden, group.edges.rel[rows_Q].numpy(), group.side(hidden).ids_E[rows_Q].numpy())
    return torch.from_numpy(may_compete)


def _barred(group: Group, hidden: Side, rows_BQ: Tensor, ids_BC: Tensor, copies: Pairs) -> tuple[Pairs, Pairs]:
    """Return the cells that do not compete anywhere, and the known answers among the rest."""
    known, sets = group.competition.known, group.competition.sets
    if known is None and sets is None:
        return copies, (NONE, NONE)
    list_BC = ids_BC.numpy()
    everywhere, barred_QC = copies, None
    if sets is not None:
        barred_BQC = ~group.may_compete(hidden, group.edges.rel[rows_BQ].numpy()[:, :, None], list_BC[:, None, :])
        barred_QC = barred_BQC.reshape(-1, list_BC.shape[1])
        query, candidate = map(torch.from_numpy, np.nonzero(barred_QC))
        everywhere = joined(copies, (query, candidate))
        order = torch.argsort(everywhere[0], stable=True)
        everywhere = everywhere[0][order], everywhere[1][order]
    if known is None:
        return everywhere, (NONE, NONE)
    of_side = known[hidden]
    known_query, known_candidate = known_cells(
        of_side.key_E[rows_BQ.numpy()],
        group.side(hidden).ids_E[rows_BQ].numpy(),
        list_BC,
        of_side.key_P,
        of_side.row_P,
    )
    if barred_QC is not None:
        competes = ~barred_QC[known_query, known_candidate]
        known_query, known_candidate = known_query[competes], known_candidate[competes]
    return everywhere, (torch.from_numpy(known_query), torch.from_numpy(known_candidate))
