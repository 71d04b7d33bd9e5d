"""Rows of a work unit -> relation groups -> blocks of chunks: who shares a list of sampled candidates.

A chunk holds consecutive edges of a group; its candidates are the chunk's own entities of the hidden side (batch
negatives), then uniform draws, then draws by degree. Two layouts:

    ours            a group is a relation within a window of WINDOW_ROWS rows (the whole window when relations are
                    dynamic); a short chunk is topped up with draws, so every list has the same length
    pbg_semantics   a group is a relation within one of the protocol's slices of a bucket; batches of `batch_size`,
                    chunks within a batch, short chunks stay short

Draws are addressed (see `draws`): the words of a window begin at first row x (chunk size + negatives drawn), so
windows never overlap, and within a window the chunks' words follow each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from attrs import evolve, frozen
from torch import Tensor

from pbgeval.notation import values_between
from pbgeval.ranking.sampled_lists import SampledLists
from pbgeval.storage.transfers import sent

ENTRIES_PER_BLOCK = 1 << 20  # candidates of a block of chunks, all lists together; changes no number


@frozen(eq=False)
class ChunkBlock:
    """Chunks of one shape whose lists are made together."""

    rows_BQ: Tensor  # position of each edge in the unit's edges, on the CPU, ascending
    num_batch: int  # candidates that are the chunk's own entities: Q of them or none
    num_draws: int  # candidates that are uniform draws, where entities can be drawn
    num_topped_up: int  # how many of the draws stand in for missing edges of a short chunk
    num_masked: int  # cells that PBG masks but counts in a list's length, as a short chunk's padding
    num_degree: int  # candidates that are drawn by degree, after the uniform ones
    runs: tuple[tuple[int, int], ...]  # (address of draws, chunks that they are of), in the order of the chunks

    @property
    def num_words(self) -> int:
        """How many draws a chunk has."""
        return self.num_draws + self.num_degree

    @cached_property
    def place(self) -> slice | Tensor:
        """The positions of all edges, one after the other; a slice where no other edge is between them."""
        first, last = int(self.rows_BQ[0, 0]), int(self.rows_BQ[-1, -1])
        return slice(first, last + 1) if last - first + 1 == self.rows_BQ.numel() else self.rows_BQ.flatten()

    def of_edges(self, values_E: Tensor) -> Tensor:
        """Return the values of the block's edges, one after the other, from those of the unit's edges."""
        return values_E[self.place if isinstance(self.place, slice) else sent(self.place, values_E.device)]


def group_by_relation(rel_E: Tensor, rows_E: Tensor) -> dict[int, Tensor]:
    """Group the rows named by relation, in increasing order; in file order within each, in which chunks are cut."""
    order_E = rows_E[torch.argsort(rel_E[rows_E], stable=True)]
    relations, counts = torch.unique_consecutive(rel_E[order_E], return_counts=True)
    return dict(zip(relations.tolist(), torch.split(order_E, counts.tolist()), strict=True))


def chunk_blocks(
    groups: Mapping[int, Tensor],
    lists: SampledLists,
    first_row: int,
    chosen: Mapping[int, np.ndarray] | None = None,
) -> Iterator[tuple[int, ChunkBlock]]:
    """Cut the groups of one window (or slice) into blocks of chunks.

    Args:
        groups: all groups of the window whose candidates are sampled, in their order.
        lists: how lists are made.
        first_row: the window's first row in its file; it addresses the draws.
        chosen: the only chunks that are wanted, by relation, numbered within it, int64 ascending; None: all. They
            have the draws that they have among all.
    """
    word = first_row * lists.words_per_row
    for relation, rows_E in groups.items():
        for start, stop, longest_chunk in _chunk_runs(rows_E.shape[0], lists):
            block = chunks_of_rows(rows_E[start:stop], lists, word, longest_chunk)
            if chosen is None:
                yield relation, block
            else:
                chunks = chosen[relation] - start // lists.chunk_size  # numbered from the block's first
                here = values_between(chunks, 0, block.rows_BQ.shape[0])
                if here.size:
                    runs = np.split(here, np.flatnonzero(np.diff(here) > 1) + 1)
                    words = tuple((word + int(run[0]) * block.num_words, len(run)) for run in runs)
                    yield relation, evolve(block, rows_BQ=block.rows_BQ[torch.from_numpy(here)], runs=words)
            word += block.rows_BQ.shape[0] * block.num_words


def _chunk_runs(num_rows: int, lists: SampledLists) -> Iterator[tuple[int, int, int]]:
    """Yield (start, stop, longest chunk of the batch) of runs of rows: several whole chunks, or one short chunk."""
    chunk_size = lists.chunk_size
    batch_rows = lists.batch_size if lists.pbg_semantics else max(num_rows, 1)
    whole_chunks = max(1, ENTRIES_PER_BLOCK // lists.longest_list)
    for batch_start in range(0, num_rows, batch_rows):
        batch_stop = min(batch_start + batch_rows, num_rows)
        # PBG masks the padding of a last partial chunk but counts it among the N of the logistic loss.
        longest_chunk = min(chunk_size, batch_stop - batch_start)
        whole_stop = batch_start + (batch_stop - batch_start) // chunk_size * chunk_size
        borders = [*range(batch_start, whole_stop, whole_chunks * chunk_size), whole_stop, batch_stop]
        yield from ((start, stop, longest_chunk) for start, stop in pairwise(borders) if start < stop)


def chunks_of_rows(rows_E: Tensor, lists: SampledLists, word: int, longest_chunk: int) -> ChunkBlock:
    """Return whole chunks of rows, or one short chunk; their draws begin at a word."""
    rows_BQ = rows_E.view(-1, min(lists.chunk_size, rows_E.shape[0]))
    chunk_size = rows_BQ.shape[1]
    num_batch = chunk_size if lists.num_batch_negs else 0
    num_topped_up = lists.chunk_size - chunk_size if num_batch and not lists.pbg_semantics else 0
    return ChunkBlock(
        rows_BQ=rows_BQ,
        num_batch=num_batch,
        num_draws=lists.num_uniform_negs + num_topped_up,
        num_topped_up=num_topped_up,
        num_masked=longest_chunk - chunk_size if num_batch and lists.pbg_semantics else 0,
        num_degree=lists.num_degree_negs,
        runs=((word, rows_BQ.shape[0]),),
    )
