"""Blocks of chunks -> counts, where candidates are sampled (`candidates = "sampled"`).

Two levels: lists, copies of true entities and cells of the AUC are found for a whole block of chunks at once, because
each such step costs the same few calls however many chunks there are; rows are gathered and scored for as many chunks
at a time as stay in cache.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pbgeval.candidates.chunks import ChunkBlock
from pbgeval.candidates.draws import DrawStream
from pbgeval.counting.general import BlockCounter
from pbgeval.notation import Side
from pbgeval.passes.groups import Group
from pbgeval.passes.sampled_block import score_block
from pbgeval.passes.sampled_cells import PartCells, cells_of_part
from pbgeval.passes.sampled_lists import CandidateList, known_rows, make_list, rows_of_list
from pbgeval.passes.sampled_scores import ChunkPart, Found, score_chunks
from pbgeval.passes.settings import PassSettings
from pbgeval.passes.tally import SideTally

CELLS_AT_A_TIME = 1 << 19  # of scores, so that they stay in cache; changes no number


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
    lists = {side: make_list(group, block, side, settings, streams[side], auc_words[side]) for side in settings.sides}
    of_block = score_block(group, block, lists, settings)
    if of_block is not None:
        for hidden, (cells, found) in of_block.items():
            _tally(block, lists[hidden], cells, found, 0, tallies[hidden])
        return
    longest = max(candidates.length for candidates in lists.values())
    for start, stop in _chunks_at_a_time(block, longest):
        rows = {side: rows_of_list(group, side, candidates, start, stop) for side, candidates in lists.items()}
        for hidden, candidates in lists.items():
            known_BQD = known_rows(group, block, hidden.other, rows, start, stop)
            part = ChunkPart.prepare(group, block, hidden, candidates, known_BQD, rows[hidden], start)
            cells = cells_of_part(group, block, hidden, candidates, start, stop)
            found = score_chunks(part, cells, settings, counter)
            _tally(block, candidates, cells, found, start, tallies[hidden])


def _chunks_at_a_time(block: ChunkBlock, longest: int) -> Iterator[tuple[int, int]]:
    num_chunks, num_queries = block.rows_BQ.shape
    step = max(1, CELLS_AT_A_TIME // (num_queries * longest))
    for start in range(0, num_chunks, step):
        yield start, min(start + step, num_chunks)


def _tally(
    block: ChunkBlock, candidates: CandidateList, cells: PartCells, found: Found, start: int, tally: SideTally
) -> None:
    """Hand over what was found about the queries whose true entity may compete."""
    rows_Q, inside_Q, copies = cells.rows_BQ.flatten(), cells.inside_Q, cells.copied_query
    num_kept = cells.num_queries if inside_Q is None else int(inside_Q.sum())
    topped_up = block.num_topped_up > 0 and candidates.num_draws > 0
    device = found.true_Q.device
    tally.add_outside(cells.num_queries - num_kept)
    tally.add_queries(
        rows_Q if inside_Q is None else rows_Q[inside_Q],
        found.counts if inside_Q is None else found.counts.of(inside_Q.to(device)),
        num_short_lists=num_kept if topped_up else 0,
        num_excluded=copies.numel() if inside_Q is None else int(inside_Q[copies].sum()),
    )
    if candidates.drawn_from is not None:
        first = start * cells.rows_BQ.shape[1]
        drawn_from = candidates.drawn_from.of(slice(first, first + cells.num_queries))
        tally.add_drawn_from(drawn_from if inside_Q is None else drawn_from.of(inside_Q))
    if found.loss_Q is not None:
        tally.add_losses(found.loss_Q if inside_Q is None else found.loss_Q[inside_Q.to(device)])
    tally.add_true_scores(found.true_Q[cells.true_is_picked_Q.to(device)], rows_Q[cells.true_is_picked_Q])
    tally.add_scores(found.competing, rows_Q[found.competing_query], found.competing_is_known)
