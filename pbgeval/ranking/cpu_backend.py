"""Blocks -> counts on a CPU, by compiled loops where they apply and are worth loading."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from attrs import field, frozen
from torch import Tensor

from pbgeval.jit import CompiledLoop
from pbgeval.notation import Side
from pbgeval.ranking import counting, cpu_counting
from pbgeval.ranking.block import Block, ChunkLists, Counted, ListCells
from pbgeval.ranking.block_threads import BlockThreads
from pbgeval.ranking.counting import CellIndex
from pbgeval.ranking.cpu_lists import OPERATORS, ExactChunks, GatheredChunks, loop_arguments, slow_exact_lists
from pbgeval.ranking.cpu_loops import (
    COLUMNS_AT_A_TIME,
    count_block,
    count_gathered,
    count_gathered_exactly,
    count_rows,
    list_between,
)
from pbgeval.ranking.exact import limits
from pbgeval.ranking.settings import Kept
from pbgeval.ranking.torch_backend import TorchBackend
from pbgeval.scoring.block_scorer import ScorerComparator
from pbgeval.scoring.fast_products import Bfloat16Use, FloatProduct, Operands, operands_of
from pbgeval.scoring.scorer import EdgeScorer
from pbgeval.scoring.true_scores import TrueScores
from pbgeval.stats.ranks import QueryCounts

# Size of the candidates that one call of the compiled loop counts: large enough to hide the cost of the Python call,
# small enough that arrays derived from the candidates need little memory.
BYTES_PER_BLOCK = 1 << 24
JIT_MIN_CELLS = 1 << 18  # cells in the smallest first block for which numba is imported
# A block of chunks costs what so many cells do, at least: the calls of torch that one of the loops stands for.
JIT_CELLS_PER_BLOCK = JIT_MIN_CELLS >> 9
# Up to so many cells, a loop makes every score of a list in less time than torch takes for the calls; beyond, torch's
# product of float64 is faster.
MAX_CELLS_READ = 1 << 14
MAX_OPEN = 1 << 18  # open cells that are listed for a block; does not change the results
# Largest share of cells that a bfloat16 product may leave open: deciding one takes as long as hundreds of products.
MAX_OPEN_SHARE = 2.0**-9


@frozen(eq=False)
class CpuBackend(TorchBackend):
    """Counts inner products in a loop that stores no scores, and other scores in a loop over their rows."""

    counts_products: bool  # whether blocks are counted by the loop that also multiplies
    bfloat16: Bfloat16Use = field(factory=Bfloat16Use, init=False)

    @classmethod
    def of_scorer(cls, scorer: EdgeScorer, dtype: torch.dtype, *, kept: Kept, num_cells: int) -> CpuBackend:
        """Return the backend of a scorer; with few cells, the loop that multiplies is not worth loading."""
        comparator, exact_comparator = scorer.comparator, scorer.exact_comparator
        is_product = comparator.is_inner_product and dtype is torch.float32
        counts_products = (
            kept is Kept.NOTHING
            and (is_product if exact_comparator is None else exact_comparator.is_clamped_product)
            and count_block.is_worth_compiling(num_cells, JIT_MIN_CELLS)
            and cpu_counting.product_is_callable()
        )
        return cls(comparator, exact_comparator, torch.device("cpu"), dtype, kept, counts_products)

    def candidates_per_block(self, num_candidates: int, num_columns: int, num_tasks: int, *, with_loss: bool) -> int:
        if with_loss or not self.counts_products or isinstance(self.comparator, ScorerComparator):
            return super().candidates_per_block(num_candidates, num_columns, num_tasks, with_loss=with_loss)
        max_steps = max(BYTES_PER_BLOCK // (4 * max(num_columns, 1) * COLUMNS_AT_A_TIME), 1)
        return min(-(-num_candidates // (num_tasks * COLUMNS_AT_A_TIME)), max_steps) * COLUMNS_AT_A_TIME

    def count(self, block: Block) -> Counted:
        counted = None
        if self.counts_products and block.is_one_grid and block.excluded is None:
            if self.exact_comparator is not None:
                counted = self._count_products_between_limits(block)
            elif not block.may_overflow:
                counted = self._count_products(block)
        return super().count(block) if counted is None else counted

    def _can_gather(self, lists: ChunkLists) -> bool:
        """Return whether a loop can gather rows from the tables, and make the scores that are kept."""
        scorer, tables = lists.scorer, lists.tables.values()
        comparator, exact, is_exact = self.comparator, self.exact_comparator, self.exact_comparator is not None
        tensors = [
            *(table.embeddings_ND for table in tables),
            *(table.global_embedding_D for table in tables if table.global_embedding_D is not None),
        ]
        parameters = [value for by_name in scorer.parameters.values() for value in by_name.values()]
        loop, num_cells = count_gathered, lists.num_cells
        can_keep = {
            Kept.NOTHING: True,
            Kept.SCORES: is_exact,
            Kept.VALUES: is_exact and lists.reads_all_scores and num_cells <= MAX_CELLS_READ,
        }
        if exact is None:
            can_score = comparator.name == "dot" and not comparator.bias and scorer.operator in OPERATORS
            can_score = can_score and lists.first == 0 and all(table.max_norm is None for table in tables)
        else:
            loop = count_gathered_exactly
            slow = slow_exact_lists(exact.name, [scorer.operator], bias=exact.bias, dynamic=scorer.dynamic)
            can_score = slow is None
        return (
            can_score
            and can_keep[self.kept]
            and (scorer.dynamic or Side.LHS not in scorer.parameters)  # the loop transforms one side
            and not any(table.featurized for table in tables)
            and all(x.dtype is torch.float32 for x in tensors)
            and all(x.dtype is self.dtype for x in parameters)
            and (is_exact or self.dtype is torch.float32)
            and all(x.device.type == "cpu" and x.is_contiguous() for x in [*tensors, *parameters])
            and num_cells > 0
            and loop.is_worth_compiling(max(num_cells, JIT_CELLS_PER_BLOCK), JIT_MIN_CELLS, adds_up=True)
            and cpu_counting.product_is_callable()
        )

    def count_lists(self, lists: ChunkLists, cells_of: Callable[[Side], ListCells]) -> dict[Side, Counted] | None:
        if not self._can_gather(lists):
            return None
        cells = {side: cells_of(side) for side in lists.hidden}
        chunks = (
            GatheredChunks(lists, loop_arguments(lists, cells, np.float32))
            if self.exact_comparator is None
            else ExactChunks(lists, loop_arguments(lists, cells, np.float64), self.exact_comparator, self.kept)
        )
        threads = BlockThreads.of_device(self.device)
        if not all(threads.map(chunks.count, threads.split(lists.num_chunks))):
            return None
        return {side: chunks.found(side) for side in lists.hidden}

    def count_scores(self, block: Block, scores_KC: Tensor, high_Q: Tensor, low_Q: Tensor) -> QueryCounts:
        if _is_by_row(block, scores_KC, count_rows):
            limits_and_own = high_Q, low_Q, block.own_Q
            return cpu_counting.count_scores(
                scores_KC, limits_and_own, block.queries.row_Q, block.excluded, block.known
            )
        return super().count_scores(block, scores_KC, high_Q, low_Q)

    def cells_between(
        self, block: Block, scores_KC: Tensor, high_Q: Tensor, low_Q: Tensor, counts: QueryCounts
    ) -> CellIndex:
        if _is_by_row(block, scores_KC, list_between):
            num_excluded = 0 if block.excluded is None else block.excluded[0].numel()
            of_queries = block.queries.row_Q, (high_Q, low_Q), counts.raw.tied_Q
            return cpu_counting.cells_between(scores_KC, *of_queries, num_excluded)
        return super().cells_between(block, scores_KC, high_Q, low_Q, counts)

    def _count_products(self, block: Block) -> Counted:
        queries, true = block.queries, block.queries.true
        assert isinstance(true, TrueScores), "ranks are not exact"
        counts, _, read_P = cpu_counting.count(
            queries.rows_KD,
            block.candidates.rows_CD,
            (true.score_Q, true.score_Q),
            (queries.row_Q, block.own_Q),
            block.known,
            block.read,
        )
        return Counted(counts + self.duplicates_tie(block, true), true.score_Q, read_P, counting.NO_CELLS, None)

    def _count_products_between_limits(self, block: Block) -> Counted | None:
        """Count the cells that error bounds decide, in bfloat16 where that is faster, else in float32."""
        queries, use = block.queries, self.bfloat16
        num_cells = queries.num_queries * block.num_columns
        if use.num_given_up <= 2 + use.num_blocks // 2 and cpu_counting.multiplies_bfloat16():
            operands = operands_of(queries.prepared, block.candidates.prepared, in_bfloat16=True)
            if operands is not None:
                max_tied = int(num_cells * MAX_OPEN_SHARE) + 1
                counted = self._count_operands(block, operands, max_tied, max_tied)
                use.num_blocks += 1
                use.num_given_up += counted.open is None
                if counted.open is not None:
                    return counted
        operands = operands_of(queries.prepared, block.candidates.prepared)
        # The list holds at least one column.
        return None if operands is None else self._count_operands(block, operands, max(MAX_OPEN, queries.num_queries))

    def _count_operands(self, block: Block, operands: Operands, max_open: int, max_tied: int = 1 << 62) -> Counted:
        kind, query_operand, candidate_operand = operands
        queries, true, comparator = block.queries, block.queries.exact_true, kind.comparator
        # No loop adds a bias to a distance in float64.
        is_left_open = comparator.adds_squares and comparator.bias
        between = cpu_counting.Between(
            queries.rows_BKD[0],
            block.candidates.rows_BCD[0],
            true.rows_QD,
            true.score_Q,
            torch.full_like(true.error_Q, torch.inf) if is_left_open else true.error_Q,
            of_squares=comparator.adds_squares,
            end=comparator.end,
            max_open=max_open,
            max_tied=max_tied,
        )
        assert isinstance(kind, FloatProduct), "the loop knows products alone"
        offset_K, error_K = (bound.flatten() for bound in kind.bounds(query_operand, candidate_operand))
        counts, cells, _ = cpu_counting.count(
            query_operand.factors_ND[0],
            candidate_operand.factors_ND[0],
            limits((offset_K, error_K), true, queries.row_Q, queries.rows_BKD.dtype, comparator.end),
            (queries.row_Q, block.own_Q),
            block.known,
            between=between,
        )
        if cells is None:  # the block is counted again
            return Counted(counts, true.value_Q, true.value_Q.new_empty(0), None, None)
        with comparator.lock:
            comparator.tally.update(in_float64=int(between.numbers[1]))
        return Counted(counts, true.value_Q, self.values(block), cells, None)


def _is_by_row(block: Block, scores_KC: Tensor, loop: CompiledLoop) -> bool:
    """Return whether a loop takes a block of scores, and is worth loading: the columns of a row must be adjacent."""
    num_cells = block.queries.num_queries * scores_KC.shape[1]
    return (scores_KC.stride(1) == 1 or scores_KC.shape[1] <= 1) and loop.is_worth_compiling(num_cells, JIT_MIN_CELLS)
