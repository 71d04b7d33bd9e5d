"""Who competes with the true entity, and how long lists of sampled candidates are; `chunks` makes them."""

from __future__ import annotations

from enum import Enum

import numpy as np
from attrs import frozen

WINDOW_ROWS = 1 << 17  # part of the protocol: changing it changes the chunks of relations that are not dynamic


class CandidatePolicy(Enum):
    """Who competes with the true entity of a query."""

    SAMPLED = "sampled"  # the entities of the query's chunk and uniform draws from the bucket's partition
    PARTITION = "partition"  # every entity of the type in the bucket's partition (PBG's all_negs)
    ALL = "all"  # every entity of the type in every partition


@frozen
class SampledLists:
    """How lists of sampled candidates are made."""

    num_batch_negs: int
    num_uniform_negs: int
    pbg_semantics: bool = False
    batch_size: int = 0  # under pbg_semantics only
    num_degree_negs: int = 0

    @property
    def chunk_size(self) -> int:
        """Edges that share a list. Without batch negatives PBG takes the number of uniform ones."""
        return self.num_batch_negs or self.num_uniform_negs or self.num_degree_negs or 1  # 1 where nothing is sampled

    @property
    def longest_list(self) -> int:
        return self.num_batch_negs + self.num_uniform_negs + self.num_degree_negs

    @property
    def words_per_row(self) -> int:
        """Upper bound of the draws that the chunks of a row range need, per row."""
        return self.chunk_size + self.num_uniform_negs + self.num_degree_negs

    def window_rows(self) -> int:
        """Rows of a window: a multiple of the chunk, so only the last chunk of a dynamic bucket is short."""
        return -(-WINDOW_ROWS // self.chunk_size) * self.chunk_size

    def unit_rows(self, num_edges: int, num_slices: int) -> int:
        """Return the rows of a bucket's work units: a window, or a slice as PBG hands it to one of its workers."""
        return max(-(-num_edges // num_slices), 1) if self.pbg_semantics else self.window_rows()


def number_chunks(rel_E: np.ndarray, lists: SampledLists) -> np.ndarray:
    """Return which chunk each edge of a window (or slice) is in, int64 (E,), chunks of all groups numbered through.

    Args:
        rel_E: group of each evaluated edge, int64; zeros where relations are dynamic. Where only some chunks were
            evaluated, edges of those alone.
        lists: how lists are made.
    """
    order = np.argsort(rel_E, kind="stable")
    is_first = np.diff(rel_E[order], prepend=-1) != 0
    position = np.arange(len(order))
    position -= np.maximum.accumulate(np.where(is_first, position, 0))  # within its group
    place = position % lists.batch_size if lists.pbg_semantics else position
    is_first |= place % lists.chunk_size == 0
    chunk_E = np.empty(len(order), np.int64)
    chunk_E[order] = np.cumsum(is_first) - 1
    return chunk_E
