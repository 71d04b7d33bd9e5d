"""Prepared chunks on a CPU -> counts, by one compiled loop: a chunk's scores are multiplied, compared and forgotten.

A chunk of some hundred queries and candidates fits into a core's cache, and calls of Python for each would take
longer than its product. The fast path of `product` and `general` for sampled candidates; it multiplies by the same
routine, and a self-check and a property test hold it to the same bits and integers.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from attrs import field, frozen
from torch import Tensor

from pbgeval.jit import is_installed
from pbgeval.ranking.chunk_loops import count_prepared
from pbgeval.ranking.general import MOST_CANDIDATES
from pbgeval.scoring import blas
from pbgeval.scoring.product import BlockRule, block_rule, longest_inner, padded_chunks, product
from pbgeval.stats.ranks import QueryCounts, RankCounts

CELLS_WORTH_COMPILING = 1 << 18  # of the first block for which numba is imported
CHECKED_SHAPES = ((1, 1), (1, 40), (3, 17), (16, 107), (50, 100), (64, 129), (100, 200), (130, 300))
CHECKED_DIMENSIONS = (16, 101, 257)
Cells = tuple[Tensor, Tensor]  # (query, candidate), int64, queries ascending and numbered through all chunks


@frozen(eq=False)
class ChunkCells:
    """Cells that are more than competitors."""

    excluded: Cells  # do not compete
    known: Cells  # do not compete where known answers are left out
    picked: Cells  # are asked for by their scores

    def arrays(self) -> tuple[np.ndarray, ...]:
        """Return queries and candidates of each kind."""
        return tuple(index.contiguous().numpy() for index in (*self.excluded, *self.known, *self.picked))


@frozen(eq=False)
class ChunkCounts:
    """What was found about the queries of some chunks."""

    counts: QueryCounts
    true_Q: Tensor
    picked: Tensor  # scores of the cells that were picked, in their order


@frozen(eq=False)
class ChunkResults:
    """Where compiled loops write what they find about the queries of some chunks that hide one side."""

    num_chunks: int
    num_queries: int  # of a chunk
    num_candidates: int  # of a chunk
    cells: ChunkCells
    given_true_Q: Tensor | None = None  # None: a chunk's list begins with the true entities of its queries, in order
    _true_Q: np.ndarray = field(init=False)
    _picked: np.ndarray = field(init=False)
    _counts_6Q: np.ndarray = field(init=False)

    @_true_Q.default
    def _room_for_true(self) -> np.ndarray:
        if self.given_true_Q is not None:
            return self.given_true_Q.contiguous().numpy()
        return np.empty(self.num_chunks * self.num_queries, np.float32)

    @_picked.default
    def _room_for_picked(self) -> np.ndarray:
        return np.empty(self.cells.picked[0].numel(), np.float32)

    @_counts_6Q.default
    def _room_for_counts(self) -> np.ndarray:
        return np.empty((6, self.num_chunks * self.num_queries), np.int64)

    def arguments(self, first_chunk: int) -> tuple[object, ...]:
        """Return sizes, true scores, cells, how far these have been read, and where to write, from a chunk on."""
        sizes = (self.num_queries, self.num_candidates, self.given_true_Q is None)
        cells = self.cells.arrays()
        first_query = first_chunk * self.num_queries
        at_3 = np.array([cells[2 * kind].searchsorted(first_query) for kind in range(3)], np.int64)
        return sizes, self._true_Q, cells, at_3, self._picked, self._counts_6Q

    def found(self) -> ChunkCounts:
        """Return what was found, once all chunks have been counted."""
        found = torch.from_numpy(self._counts_6Q)
        counts = QueryCounts(RankCounts(*found[:3]), RankCounts(*found[3:]))
        return ChunkCounts(counts, torch.from_numpy(self._true_Q), torch.from_numpy(self._picked))


def serves(query_BQD: Tensor, candidate_BCD: Tensor) -> bool:
    """Tell whether the compiled loop takes some chunks: on a CPU, in float32, and worth it."""
    num_candidates = candidate_BCD.shape[1]
    num_cells = query_BQD.shape[0] * query_BQD.shape[1] * num_candidates
    if query_BQD.device.type != "cpu" or query_BQD.dtype is not torch.float32:
        return False
    if not 0 < num_candidates <= MOST_CANDIDATES or not num_cells:
        return False
    worth_it = count_prepared.is_loaded or num_cells >= CELLS_WORTH_COMPILING
    return worth_it and is_installed() and product_is_callable()


def product_is_callable() -> bool:
    """Tell whether torch's matrix product can be called from a compiled loop, with the bits of `product`."""
    rule = block_rule(torch.device("cpu"), torch.float32)
    return rule is not BlockRule.ONE_SHAPE and blas.find_sgemm() is not None and _agrees(rule)


def multiplication_of(num_rows: int, num_columns: int, dimension: int) -> tuple[blas.Gemm, tuple[object, ...]]:
    """Return the routine, and what compiled loops hand it for products of this shape; each thread needs its own."""
    routine = blas.find_sgemm()
    assert routine is not None, "the caller has asked"
    return routine, arguments_of(routine, num_rows, num_columns, dimension, longest_inner(dimension))


def arguments_of(routine: blas.Gemm, num_rows: int, num_columns: int, dimension: int, inner: int) -> tuple[object, ...]:
    """Return what compiled loops hand a routine, which adds up so many products at a time."""
    arguments = blas.arguments(num_rows, num_columns, dimension)
    return routine.address, arguments, blas.factors(), inner, routine.itemsize


@frozen(eq=False)
class PreparedChunks:
    """Chunks of prepared queries and candidates."""

    query_BRD: Tensor
    candidate_BSD: Tensor
    results: ChunkResults

    @classmethod
    def of_rows(
        cls, query_BQD: Tensor, candidate_BCD: Tensor, true_Q: Tensor | None, cells: ChunkCells
    ) -> PreparedChunks:
        """Hand over rows that `serves` takes.

        Args:
            query_BQD: prepared queries.
            candidate_BCD: prepared candidates of each chunk.
            true_Q: score of each query's true entity, by the same routine; None: the chunk's first candidates are the
                true entities in the order of its queries, and such a cell does not compete.
            cells: each named once; none of `excluded` or `known` is a query's own cell.
        """
        num_chunks, num_queries = query_BQD.shape[:2]
        results = ChunkResults(num_chunks, num_queries, candidate_BCD.shape[1], cells, true_Q)
        rows_BRD, candidate_BSD = padded_chunks(query_BQD, candidate_BCD)
        return cls(rows_BRD.contiguous(), candidate_BSD.contiguous(), results)

    def count(self, chunks: tuple[int, int]) -> bool:
        """Compare every candidate with the true entity of each query, in chunks `first` to `stop`.

        Threads may count other chunks meanwhile.

        Returns:
            Whether all scores are numbers and their sums too; if not, what was found is of no use.
        """
        rows, columns = self.query_BRD.shape[1], self.candidate_BSD.shape[1]
        routine, multiplication = multiplication_of(rows, columns, self.query_BRD.shape[2])
        with routine.one_thread():
            total = count_prepared(
                multiplication,
                self.query_BRD.numpy(),
                self.candidate_BSD.numpy(),
                chunks,
                self.results.arguments(chunks[0]),
            )
        return math.isfinite(total)


@functools.cache
def _agrees(rule: BlockRule) -> bool:
    """Tell whether the loop's products have the bits of `product` on this machine."""
    generator = torch.Generator().manual_seed(0)
    none = torch.empty(0, dtype=torch.int64)
    for num_queries, num_candidates in CHECKED_SHAPES:
        for dimension in CHECKED_DIMENSIONS:
            query_BQD = torch.randn((2, num_queries, dimension), generator=generator)
            candidate_BCD = torch.randn((2, num_candidates, dimension), generator=generator)
            query = torch.arange(2 * num_queries).repeat_interleave(num_candidates)
            candidate = torch.arange(num_candidates).repeat(2 * num_queries)
            cells = ChunkCells((none, none), (none, none), (query, candidate))
            chunks = PreparedChunks.of_rows(query_BQD, candidate_BCD, torch.zeros(2 * num_queries), cells)
            expected = product(query_BQD, candidate_BCD).flatten()
            if not chunks.count((0, 2)) or not torch.equal(chunks.results.found().picked, expected):
                return False
    return True
