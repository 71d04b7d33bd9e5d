"""Sizes of blocks that differ between CPU and GPU. They change no number.

On a CPU what is computed together stays in cache. A GPU is given much at a time: each call costs it some microseconds,
and each answer that the host waits for stops it.
"""

from __future__ import annotations

import torch
from attrs import define


@define
class BlockSizes:
    """Sizes for one kind of device."""

    queries: int  # of a block of scores
    candidates: int
    counted_queries: int  # of a block that a GPU's kernel counts
    counted_candidates: int
    screened_candidates: int  # of such a block for exact ranks
    list_cells: int  # scores of sampled lists
    compared_cells: int  # scores that are compared with true scores
    pairs: int  # scored pair by pair
    compared_pairs: int  # where pairs come again
    decided_pairs: int  # for exact ranks
    related_edges: int  # whose relations are ranked together
    related_cells: int  # of their scores, at most
    keys: int  # prepared together
    true_scores: int
    prepared_rows: int  # candidates, for exact ranks, in float64
    ordered_rows: int  # of a matrix product whose sums are taken in order
    hashed_rows: int
    checked_rows: int  # of a partition under inspection
    swept_rows: int  # candidates that are read from files and counted together, at most
    swept_numbers: int  # of these, at most
    range_bytes: int  # candidates of a partition that are prepared together
    searched_numbers: int  # in float64, where overflow is searched for
    numbers: int  # of rows that are gathered, at most

    def rows(self, most: int, num_columns: int) -> int:
        """Return how many rows are gathered: so many, but no more numbers than there is room for."""
        return max(min(most, self.numbers // max(num_columns, 1)), 1)


CPU = BlockSizes(
    queries=1024,
    candidates=2048,
    counted_queries=1024,
    counted_candidates=2048,
    screened_candidates=2048,
    list_cells=1 << 19,
    compared_cells=1 << 18,
    pairs=1 << 11,
    compared_pairs=1 << 14,
    decided_pairs=1 << 12,
    related_edges=1 << 11,
    related_cells=1 << 22,
    keys=4096,
    true_scores=8192,
    prepared_rows=2048,
    ordered_rows=1 << 10,
    hashed_rows=256,
    checked_rows=1 << 15,
    swept_rows=1 << 16,
    swept_numbers=1 << 21,  # 8 MB in float32
    range_bytes=1 << 25,
    searched_numbers=1 << 22,
    numbers=1 << 19,
)
GPU = BlockSizes(
    queries=1 << 12,
    candidates=1 << 14,
    counted_queries=1 << 14,
    counted_candidates=1 << 20,
    screened_candidates=1 << 18,
    list_cells=1 << 26,  # 256 MB in float32
    compared_cells=1 << 26,
    pairs=1 << 20,
    compared_pairs=1 << 20,
    decided_pairs=1 << 20,
    related_edges=1 << 16,
    related_cells=1 << 26,
    keys=1 << 16,
    true_scores=1 << 16,
    prepared_rows=1 << 16,
    ordered_rows=1 << 17,
    hashed_rows=1 << 18,
    checked_rows=1 << 20,
    swept_rows=1 << 18,  # beside them the next ones are read, into as much pinned memory
    swept_numbers=1 << 27,
    range_bytes=1 << 28,
    searched_numbers=1 << 26,
    numbers=1 << 27,  # 512 MB in float32
)
# What blocks take of a GPU's memory beside the tables: scores, copies of them and what they are compared to; gathered
# rows, prepared, transposed.
GPU_WORKSPACE_BYTES = 4 * (3 * GPU.list_cells + 3 * GPU.numbers)


def sizes_on(device: torch.device) -> BlockSizes:
    """Return the sizes for a device."""
    return CPU if device.type == "cpu" else GPU
