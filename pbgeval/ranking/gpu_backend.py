"""Blocks -> counts on a GPU, by a kernel that multiplies, compares and forgets the scores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from attrs import frozen

from pbgeval.ranking.block import Block, CandidateRows, Counted, NotANumberError, moved
from pbgeval.ranking.counting import NO_CELLS, count_compared
from pbgeval.ranking.known_answers import positions_of_lists
from pbgeval.ranking.torch_backend import TorchBackend
from pbgeval.scoring import device_scores
from pbgeval.scoring.true_scores import TrueScores
from pbgeval.stats.ranks import QueryCounts, RankCounts


@frozen(eq=False)
class GpuBackend(TorchBackend):
    """Counts inner products by tiles; known answers and the cells that are read are scored pair by pair."""

    @property
    def counts_by_tiles(self) -> bool:
        """Whether blocks are counted by the kernel that forgets their scores."""
        return self.comparator.is_inner_product and self.certified is None and not self.keeps_scores

    @property
    def queries_per_block(self) -> int:
        return self.sizes.counted_queries if self.counts_by_tiles else super().queries_per_block

    def candidates_per_block(self, num_candidates: int, num_columns: int, num_tasks: int, *, with_loss: bool) -> int:
        if self.counts_by_tiles and not with_loss:
            return self.sizes.counted_candidates
        return super().candidates_per_block(num_candidates, num_columns, num_tasks, with_loss=with_loss)

    def prepare(self, runs: Sequence[CandidateRows]) -> None:
        if not self.counts_by_tiles:
            return super().prepare(runs)
        for run in runs:
            _ = run.largest, run.columns
        return None

    def count(self, block: Block) -> Counted:
        true = block.queries.true
        if not (self.counts_by_tiles and block.is_one_grid and block.excluded is None and true is not None):
            return super().count(block)
        assert isinstance(true, TrueScores), "ranks are not certified"
        if block.may_overflow:
            self._refuse_nan(block)
        query_KD, candidate_CD, columns = (
            block.queries.rows_BKD[0],
            block.candidates.rows_BCD[0],
            block.candidates.columns,
        )
        own_Q = block.own_Q.where((block.own_Q >= 0) & (block.own_Q < block.num_columns), -1).to(self.device)
        row_Q = block.queries.row_on_device_Q
        targets = device_scores.Targets(row_Q, true.score_Q, true.kernel_Q, true.hash_Q, own_Q)
        better_Q, tied_Q = device_scores.count(query_KD, columns, targets)
        raw = RankCounts(better_Q.long(), tied_Q.long(), block.num_columns - (own_Q >= 0).long())
        read_P = query_KD.new_empty(0)
        if block.read is not None and block.read[0].numel():
            row_P, column_P = moved(block.read, self.device)
            read_P = device_scores.pairs(query_KD, row_P, candidate_CD, column_P)
        return Counted(QueryCounts(raw, self._count_known(block, true)), true.score_Q, read_P, NO_CELLS, None)

    def _refuse_nan(self, block: Block) -> None:
        """Score a block, a part at a time: an error names what is no number."""
        step = max(self.sizes.list_cells // max(block.queries.rows_BKD.shape[1], 1), 1)
        for start in range(0, block.num_columns, step):
            try:
                self._scores(block.between(start, min(start + step, block.num_columns)))
            except NotANumberError as error:
                raise NotANumberError(error.row, start + error.column) from None

    def _count_known(self, block: Block, true: TrueScores) -> RankCounts:
        """Count the known answers of each query."""
        queries, candidates = block.queries, block.candidates
        total = RankCounts.zero(queries.num_queries, self.device)
        if block.known is None:
            return total
        row_P, column_P = (of.numpy() for of in block.known)
        first_Q, stop_Q = (np.searchsorted(row_P, queries.row_Q.numpy(), side) for side in ("left", "right"))
        for query, at in positions_of_lists(first_Q, stop_Q - first_Q, self.sizes.pairs):
            others = column_P[at] != block.own_Q.numpy()[query]
            query_P, column = torch.from_numpy(np.stack([query[others], column_P[at[others]]])).to(self.device)
            row = queries.row_on_device_Q[query_P]
            score_P = device_scores.pairs(queries.rows_BKD[0], row, candidates.rows_BCD[0], column)
            is_duplicate_P = score_P == true.kernel_Q[query_P]
            is_duplicate_P &= candidates.columns.hash_C[column] == true.hash_Q[query_P]
            compared = true.compare(query_P, score_P, is_duplicate_P)
            total = total + count_compared(query_P, *compared, queries.num_queries)
        return total
