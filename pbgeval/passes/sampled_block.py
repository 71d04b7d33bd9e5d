"""A whole block of chunks -> what is found about its queries, by the loop that also gathers; where that serves."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from pbgeval.candidates.chunks import ChunkBlock
from pbgeval.counting.chunks import ChunkCells
from pbgeval.counting.gathered_chunks import OPERATORS, ChunkEnd, GatheredChunks, serves
from pbgeval.counting.general import MOST_CANDIDATES
from pbgeval.notation import Side
from pbgeval.passes.block_threads import MOST_THREADS, BlockThreads
from pbgeval.passes.groups import Group
from pbgeval.passes.sampled_cells import PartCells, cells_of_part
from pbgeval.passes.sampled_lists import CandidateList
from pbgeval.passes.sampled_scores import Found
from pbgeval.passes.settings import PassSettings


def score_block(
    group: Group, block: ChunkBlock, lists: Mapping[Side, CandidateList], settings: PassSettings
) -> dict[Side, tuple[PartCells, Found]] | None:
    """Score every query of a block with its list, on all sides at once.

    Returns:
        What was found, by hidden side; None where the general way must tell: it takes everything, and names scores
        that are no numbers.
    """
    if not _serves(group, block, lists, settings):
        return None
    num_chunks, num_queries = block.rows_BQ.shape
    cells = {side: cells_of_part(group, block, side, candidates, 0, num_chunks) for side, candidates in lists.items()}
    ends = {side: _end(group, block, side, lists.get(side), cells.get(side)) for side in Side}
    chunks = GatheredChunks(ends, group.rel(block.rows_BQ), group.relation.scorer.operator, (num_chunks, num_queries))
    threads = BlockThreads.of_device(torch.device("cpu"), MOST_THREADS)
    if not all(threads.map(chunks.count, threads.split(num_chunks))):
        return None
    found = {side: chunks.results[side].found() for side in lists}
    return {side: (cells[side], Found.of_picked(of, cells[side])) for side, of in found.items()}


def _serves(group: Group, block: ChunkBlock, lists: Mapping[Side, CandidateList], settings: PassSettings) -> bool:
    """Tell whether prepared rows are those of the tables, and nothing is asked for but counts and a few scores."""
    scorer = group.relation.scorer
    if settings.loss is not None or not block.num_batch or group.competition.sets is not None:
        return False
    if scorer.certified is not None or scorer.operator not in OPERATORS:
        return False
    if scorer.comparator.name != "dot" or scorer.comparator.bias:
        return False
    if any(of.auc_cells is None or of.length > MOST_CANDIDATES for of in lists.values()):
        return False
    ends = [group.side(side) for side in Side]
    if any(end.featurized or end.table.max_norm is not None for end in ends):
        return False
    tensors = [end.table.embeddings_ND for end in ends]
    tensors += [end.table.global_embedding_D for end in ends if end.table.global_embedding_D is not None]
    tensors += [value for of_side in scorer.parameters.values() for value in of_side.values()]
    num_cells = block.rows_BQ.numel() * sum(candidates.length for candidates in lists.values())
    return group.relation.dtype is torch.float32 and serves(num_cells, tensors)


def _end(
    group: Group, block: ChunkBlock, side: Side, candidates: CandidateList | None, cells: PartCells | None
) -> ChunkEnd:
    end = group.side(side)
    ids_BK: Tensor = end.ids_E[block.rows_BQ] if candidates is None else candidates.ids_BC
    special = None
    if cells is not None:
        assert cells.picked is not None, "`_serves` has asked"
        special = ChunkCells(cells.everywhere, cells.known, cells.picked)
    parameters = group.relation.scorer.parameters.get(side, {})
    return ChunkEnd(end.table.embeddings_ND, end.table.global_embedding_D, ids_BK, parameters, special)
