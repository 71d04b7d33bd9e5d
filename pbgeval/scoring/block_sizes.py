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
    cells: int  # scores of sampled lists, or others that are compared or searched together
    pairs: int  # scored or decided pair by pair
    related_cells: int  # scores of relations that are ranked together, at most
    prepared_rows: int  # of queries, true entities or candidates
    summed_rows: int  # whose sums are taken in order, or that are hashed
    checked_rows: int  # of a partition under inspection
    swept_rows: int  # candidates that are read from files and counted together, at most
    swept_numbers: int  # of these, at most
    range_bytes: int  # candidates of a partition that are prepared together
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
    cells=1 << 19,
    pairs=1 << 12,
    related_cells=1 << 22,
    prepared_rows=1 << 12,
    summed_rows=1 << 10,
    checked_rows=1 << 15,
    swept_rows=1 << 16,
    swept_numbers=1 << 21,  # 8 MB in float32
    range_bytes=1 << 25,
    numbers=1 << 19,
)
GPU = BlockSizes(
    queries=1 << 12,
    candidates=1 << 14,
    counted_queries=1 << 14,
    counted_candidates=1 << 20,
    screened_candidates=1 << 18,
    cells=1 << 26,  # 256 MB in float32
    pairs=1 << 20,
    related_cells=1 << 26,
    prepared_rows=1 << 16,
    summed_rows=1 << 17,
    checked_rows=1 << 20,
    swept_rows=1 << 18,  # beside them the next ones are read, into as much pinned memory
    swept_numbers=1 << 27,
    range_bytes=1 << 28,
    numbers=1 << 27,  # 512 MB in float32
)
# What blocks take of a GPU's memory beside the tables: scores, copies of them and what they are compared to; gathered
# rows, prepared, transposed.
GPU_WORKSPACE_BYTES = 4 * (3 * GPU.cells + 3 * GPU.numbers)


def sizes_on(device: torch.device) -> BlockSizes:
    """Return the sizes for a device."""
    return CPU if device.type == "cpu" else GPU
