"""Blocks -> counts: torch makes a block of scores and compares them. The general way, on any device.

Other backends count the blocks that they support faster, and leave the others to this one. Counts are the same.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from attrs import evolve, frozen
from torch import Tensor

from pbgeval.notation import Side
from pbgeval.ranking import counting
from pbgeval.ranking.block import (
    Block,
    ChunkLists,
    Counted,
    ListCells,
    NotANumberError,
    QueryRows,
    moved,
)
from pbgeval.ranking.counting import CellIndex
from pbgeval.ranking.exact import competing_cells, decided, limits, signs_of
from pbgeval.ranking.groups import first_nan
from pbgeval.ranking.known_answers import positions_of_lists
from pbgeval.ranking.settings import Kept
from pbgeval.scoring.block_scorer import RowComparator, ScorerComparator
from pbgeval.scoring.block_sizes import BlockSizes, sizes_on
from pbgeval.scoring.exact import ExactComparator
from pbgeval.scoring.fast_products import fast_scores, values_of_cells, values_of_pairs
from pbgeval.scoring.true_scores import ExactTrue, TrueScores, row_hashes
from pbgeval.stats.ranks import QueryCounts, RankCounts

SCORER_CANDIDATES_PER_BLOCK = 1 << 13  # a model may score all entities for each block; changes no number
LOSS_CANDIDATES_PER_BLOCK = 1024  # changes the last bits of a loss, so it is fixed


@frozen(eq=False)
class TorchBackend:
    """Makes scores and counts them; the base of all backends.

    Another backend overrides `count` for the blocks that it counts faster, or `count_scores` if it only compares
    faster, and calls the base for all others. A backend that also gathers rows overrides `count_lists`.
    """

    comparator: RowComparator
    exact_comparator: ExactComparator | None  # None: ranks are not exact
    device: torch.device
    dtype: torch.dtype  # of vectors
    kept: Kept  # of the scores of a block, in `Counted`

    @property
    def sizes(self) -> BlockSizes:
        return sizes_on(self.device)

    @property
    def keeps_scores(self) -> bool:
        """Whether `Counted` has every score of a block."""
        return self.kept is not Kept.NOTHING

    @property
    def queries_per_block(self) -> int:
        """How many queries are counted together; a model that keeps their scores sets its own number."""
        if isinstance(self.comparator, ScorerComparator) and self.comparator.by_rows is not None:
            return self.comparator.by_rows.queries_per_block
        return self.sizes.queries

    def candidates_per_block(self, num_candidates: int, num_columns: int, num_tasks: int, *, with_loss: bool) -> int:
        """Return how many candidates are counted together.

        Args:
            num_candidates: the size of the range that is divided.
            num_columns: the number of columns of their prepared rows.
            num_tasks: how many parts keep all threads busy.
            with_loss: whether a loss is folded over the parts.
        """
        if isinstance(self.comparator, ScorerComparator):
            return SCORER_CANDIDATES_PER_BLOCK
        return LOSS_CANDIDATES_PER_BLOCK if with_loss else self.sizes.candidates

    def pairs(self, query_PD: Tensor, candidate_PD: Tensor) -> Tensor:
        """Return the score (P,) of each prepared query with its own candidate: the bits of `Counted.read_P`."""
        if self.exact_comparator is not None:
            return values_of_pairs(self.exact_comparator, query_PD, candidate_PD)
        return self.comparator.paired_scores(query_PD, candidate_PD)

    def values(self, block: Block) -> Tensor:
        """Return the values of the cells that are requested of a block of exact ranks, float64."""
        assert self.exact_comparator is not None, "ranks are exact"
        if block.read is None or not block.read[0].numel():
            return torch.empty(0, dtype=torch.float64, device=self.device)
        rows = block.queries.rows_BKD, block.candidates.rows_BCD
        return values_of_cells(self.exact_comparator, *rows, moved(block.read, self.device))

    def count(self, block: Block) -> Counted:
        """Count every candidate of a block for every query.

        Unless ranks are exact, a score is compared with the query's `score_Q`. But a candidate whose score is
        `kernel_Q` and whose row has the hash `hash_Q` has the true entity's vector: it ties and is never better
        (`TrueScores.compare`, `duplicates_tie`).

        Raises:
            NotANumberError: a score is not a number.
        """
        if self.exact_comparator is not None:
            return self._count_between_limits(block)
        scores_KC = self._scores(block)
        true = block.queries.true
        if true is None:  # lists begin with the true entities of their queries
            true_Q = scores_KC[block.queries.row_on_device_Q, block.own_on_device_Q]
            return self._counted(block, self.count_scores(block, scores_KC, true_Q, true_Q), true_Q, scores_KC)
        assert isinstance(true, TrueScores), "ranks are not exact"
        counts = self.count_scores(block, scores_KC, true.score_Q, true.score_Q)
        return self._counted(block, counts + self.duplicates_tie(block, true), true.score_Q, scores_KC)

    def count_decided(self, block: Block) -> Counted:
        """Count a block and decide its open cells; do so with its halves if these are too many to list."""
        counted = self.count(block)
        if counted.open is not None:
            counts = decided(block, counted.counts, counted.open)
            if block.in_time is not None and counts.in_time is None:
                counts = QueryCounts(counts.raw, counts.known, self._in_time(block))
            return evolve(counted, counts=counts)
        middle = block.num_columns // 2
        halves = ((0, middle), (middle, block.num_columns))
        low, high = (self.count_decided(block.between(*columns)) for columns in halves)
        return evolve(low, counts=low.counts + high.counts, read_P=self.values(block))

    def count_lists(self, lists: ChunkLists, cells_of: Callable[[Side], ListCells]) -> dict[Side, Counted] | None:
        """Count lists that name their candidates by id, on all sides at once, where that is faster.

        Args:
            lists: the lists of some chunks.
            cells_of: finds the special cells of a side's lists; called only if this backend counts the lists.

        Returns:
            The counts, by hidden side. None: the caller must prepare the rows and call `count`, because this backend
            does not gather them, or because a score is not a number and `count` names it.
        """
        return None

    def count_scores(self, block: Block, scores_KC: Tensor, high_Q: Tensor, low_Q: Tensor) -> QueryCounts:
        """Count a block from all its scores: above `high_Q` is better, from `low_Q` to `high_Q` ties."""
        return counting.count(
            scores_KC,
            high_Q,
            low_Q,
            row_Q=block.queries.row_on_device_Q,
            own_Q=block.own_on_device_Q,
            excluded=block.excluded_on_device,
            known=block.known_on_device,
        )

    def cells_between(
        self, block: Block, scores_KC: Tensor, high_Q: Tensor, low_Q: Tensor, counts: QueryCounts
    ) -> CellIndex:
        """Return (query, column), in order, of the cells from `low_Q` to `high_Q`, some of which do not compete.

        `counts` is what `count_scores` returns.
        """
        queries = block.queries
        # Check all queries on a GPU, but only those with ties on a CPU.
        open_Q = torch.arange(queries.num_queries, device=self.device)
        if self.device.type == "cpu":
            open_Q = counts.raw.tied_Q.nonzero().squeeze(1)
        scores_QC = scores_KC[queries.row_on_device_Q[open_Q]]
        high_Q1, low_Q1 = (values_Q[open_Q].unsqueeze(1) for values_Q in (high_Q, low_Q))
        at, column_P = ((scores_QC <= high_Q1) & (scores_QC >= low_Q1)).nonzero(as_tuple=True)
        return open_Q[at], column_P

    def compare(
        self, queries: QueryRows, query_P: Tensor, pairs: tuple[Tensor, Tensor], at_P: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Tell whether candidates are better than true entities, and whether they tie, bool (P,) each.

        Args:
            queries: the queries whose true entities are compared.
            query_P: the query of each comparison.
            pairs: prepared candidates, and their scores with the rows of their queries.
            at_P: the index in `pairs` of each comparison.
        """
        candidate_ND, score_N = pairs
        true = queries.true
        if isinstance(true, ExactTrue):
            signs_P = signs_of(queries, candidate_ND[None], query_P, at_P)
            return signs_P > 0, signs_P == 0
        assert true is not None, "true scores are known"
        score_P = score_N[at_P]
        is_duplicate = score_P == true.kernel_Q[query_P]
        equal = is_duplicate.nonzero().squeeze(1)  # few: hashes take longer than scores
        is_duplicate[equal] = row_hashes(candidate_ND[at_P[equal]]) == true.hash_Q[query_P[equal]]
        return true.compare(query_P, score_P, is_duplicate)

    def _scores(self, block: Block) -> Tensor:
        """Return the scores of a block, rows of all grids one after the other, none of them NaN."""
        query_BKD, candidate_BCD = block.queries.rows_BKD, block.candidates.rows_BCD
        scores_BKC = self.comparator.scores(query_BKD, candidate_BCD)
        if not block.is_one_grid or block.may_overflow:  # for several grids, a sum of the scores may already tell
            self.refuse_nan(block, scores_BKC)
        return scores_BKC.flatten(0, 1)

    def refuse_nan(self, block: Block, scores_BKC: Tensor) -> None:
        """Look for a score that is not a number.

        Raises:
            NotANumberError: there is one.
        """
        query_BKD = block.queries.rows_BKD
        found = first_nan(self.comparator, query_BKD, block.candidates.rows_BCD, scores_BKC)
        if found is not None:
            grid, row, column = found
            raise NotANumberError(grid * query_BKD.shape[1] + row, column)

    def _counted(
        self,
        block: Block,
        counts: QueryCounts,
        true_Q: Tensor,
        scores_KC: Tensor,
        open_cells: CellIndex = counting.NO_CELLS,
    ) -> Counted:
        if block.in_time is not None:
            counts = QueryCounts(counts.raw, counts.known, self._in_time(block, scores_KC))
        read_P = scores_KC.new_empty(0)
        if block.read is not None and block.read[0].numel():
            read_P = scores_KC[moved(block.read, self.device)]
        return Counted(counts, true_Q, read_P, open_cells, scores_KC if self.keeps_scores else None)

    def _in_time(self, block: Block, scores_KC: Tensor | None = None) -> RankCounts:
        """Count what a time-aware filter leaves out, some pairs at a time; if there are no scores, score them."""
        assert block.in_time is not None, "there is such a filter"
        key_P, column_P, key_Q, own_Q = (of.numpy() for of in (*block.in_time, block.own_Q))
        first_Q, stop_Q = (np.searchsorted(key_P, key_Q, side) for side in ("left", "right"))
        queries, total = block.queries, RankCounts.zero(block.queries.num_queries, self.device)
        at_a_time = self.sizes.rows(self.sizes.pairs, queries.rows_KD.shape[1])
        for query, at in positions_of_lists(first_Q, stop_Q - first_Q, at_a_time):
            others = column_P[at] != own_Q[query]
            cells = torch.from_numpy(query[others]), torch.from_numpy(column_P[at][others])
            query_n, column_n = moved(cells, self.device)
            if self.exact_comparator is not None:
                signs_n = signs_of(queries, block.candidates.rows_BCD, query_n, column_n)
                better_n, tied_n = signs_n > 0, signs_n == 0
            else:
                row_n, candidate_ND = queries.row_on_device_Q[query_n], block.candidates.rows_CD[column_n]
                if scores_KC is None:
                    score_n = self.pairs(queries.rows_KD[row_n], candidate_ND)
                else:
                    score_n = scores_KC[row_n, column_n]
                every_n = torch.arange(len(query_n), device=self.device)
                better_n, tied_n = self.compare(queries, query_n, (candidate_ND, score_n), every_n)
            total = total + counting.count_compared(query_n, better_n, tied_n, queries.num_queries)
        return total

    def duplicates_tie(self, block: Block, true: TrueScores) -> QueryCounts:
        """Return the correction that makes candidates with a true entity's very vector tie with it.

        Products give them the bits that they give the true entity, but the score that counts may be another sum. A
        vector that only shares the hash has another score, so one of each query's duplicates is scored.
        """
        kernel_Q, true_Q, num_queries = true.kernel_Q, true.score_Q, block.queries.num_queries
        none = QueryCounts.unfiltered(RankCounts.zero(num_queries, self.device))
        differs_Q = kernel_Q != true_Q
        if not bool(differs_Q.any()):  # as on most machines: there is nothing to correct
            return none
        hash_C = block.candidates.hash_C
        column_N = torch.isin(hash_C, true.hash_Q[differs_Q]).nonzero().squeeze(1)
        is_duplicate_QN = true.hash_Q.unsqueeze(1) == hash_C[column_N]
        is_duplicate_QN &= differs_Q.unsqueeze(1) & (block.own_on_device_Q.unsqueeze(1) != column_N)
        query_P, at_P = is_duplicate_QN.nonzero(as_tuple=True)
        column_P = column_N[at_P]
        if not query_P.numel():
            return none
        is_first_P = query_P.diff(prepend=query_P[:1] - 1) != 0  # the first duplicate of each query
        scored_query_P, scored_column_P = query_P[is_first_P], column_P[is_first_P]
        row_Q = block.queries.row_on_device_Q
        rows = block.queries.rows_KD[row_Q[scored_query_P]], block.candidates.rows_CD[scored_column_P]
        is_duplicate_Q = torch.zeros_like(true_Q, dtype=torch.bool)
        is_duplicate_Q[scored_query_P] = self.pairs(*rows) == kernel_Q[scored_query_P]

        def correction(query_P: Tensor) -> RankCounts:
            tied_Q = torch.bincount(query_P, minlength=num_queries) * is_duplicate_Q
            return RankCounts(-tied_Q * (kernel_Q > true_Q), tied_Q, torch.zeros_like(tied_Q))

        is_known_P = counting.are_among(row_Q[query_P], column_P, block.known_on_device, block.num_columns)
        return QueryCounts(correction(query_P), correction(query_P[is_known_P]))

    def _count_between_limits(self, block: Block) -> Counted:
        """Count what the bounds of fast scores decide."""
        queries, true = block.queries, block.queries.exact_true
        fast = fast_scores(queries.prepared, block.candidates.prepared, values=self.kept is Kept.VALUES)
        scores_KC = fast.scores_KC.flatten(0, 1)
        bounds_K = fast.offset_K.flatten(), fast.error_K.flatten()
        high_Q, low_Q = limits(bounds_K, true, queries.row_on_device_Q, scores_KC.dtype)
        counts = self.count_scores(block, scores_KC, high_Q, low_Q)
        cells = competing_cells(block, self.cells_between(block, scores_KC, high_Q, low_Q, counts))
        if self.kept is Kept.VALUES:
            return self._counted(block, counts, true.value_Q, scores_KC, cells)
        if self.keeps_scores:
            scores_KC += (queries.rows_KD[:, -1] - fast.offset_K.flatten()).to(scores_KC.dtype).unsqueeze(1)
        return Counted(counts, true.value_Q, self.values(block), cells, scores_KC if self.keeps_scores else None)
