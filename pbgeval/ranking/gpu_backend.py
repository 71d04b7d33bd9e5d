"""Blocks -> counts on a GPU, by kernels that multiply, compare and forget the scores."""

from __future__ import annotations

import operator

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from pbgeval.ranking.block import Block, Counted, NotANumberError, QueryRows, moved
from pbgeval.ranking.counting import NO_CELLS
from pbgeval.ranking.exact import signs_of
from pbgeval.ranking.groups import magnitude
from pbgeval.ranking.torch_backend import TorchBackend
from pbgeval.scoring import device_exact, device_lists, device_scores
from pbgeval.scoring.deferred import holds
from pbgeval.scoring.true_scores import ExactTrue, TrueScores, row_hashes
from pbgeval.stats.ranks import QueryCounts
from pbgeval.storage.transfers import sent, sent_together

LARGEST_DOUBLED = 2.0**126  # a query of a distance is doubled


@frozen(eq=False)
class _Known:
    """The column of each query's true entity, on the device, and the queries' known answers."""

    own_Q: Tensor
    runs: tuple[Tensor, ...] = ()  # of `KnownOfQueries`
    total: int = 0
    num_first: int = 0  # how many are not those known in time


@frozen(eq=False)
class GpuBackend(TorchBackend):
    """Counts sums over columns by tiles; known answers and the cells that are read are scored pair by pair.

    Float32 scores have one definition (`device_scores`). Exact ranks need none (`device_exact`).
    """

    @property
    def counts_by_tiles(self) -> bool:
        """Whether scores are counted by the kernel that forgets them; if they are kept, another one stores them."""
        return self.comparator.term is not None and self.exact_comparator is None

    @property
    def counts_exactly(self) -> bool:
        """Whether ranks are exact and counted by kernels."""
        return self.exact_comparator is not None and self.exact_comparator.is_product and not self.keeps_scores

    @property
    def queries_per_block(self) -> int:
        stores_none = (self.counts_by_tiles or self.counts_exactly) and not self.keeps_scores
        return self.sizes.counted_queries if stores_none else super().queries_per_block

    def candidates_per_block(self, num_candidates: int, num_columns: int, num_tasks: int, *, with_loss: bool) -> int:
        if self.counts_by_tiles and not self.keeps_scores:
            return self.sizes.counted_candidates
        if self.counts_exactly:
            return self.sizes.screened_candidates
        return super().candidates_per_block(num_candidates, num_columns, num_tasks, with_loss=with_loss)

    def count(self, block: Block) -> Counted:
        true = block.queries.true
        if self.counts_exactly:
            adds_squares = self.exact_comparator is not None and self.exact_comparator.adds_squares
            if not adds_squares or holds(_can_be_doubled, *block.queries.ends):
                return self._count_exactly(block)
        if block.marks is not None and self.exact_comparator is None:
            return self._count_listed(block)
        if not (self.counts_by_tiles and block.is_one_grid and block.excluded is None and true is not None):
            return super().count(block)
        assert isinstance(true, TrueScores), "ranks are not exact"
        assert self.comparator.term is not None, "counted by tiles"
        scores_KC = self._scores(block) if self.keeps_scores else None
        if scores_KC is None and self.comparator.multiplies and block.may_overflow:
            self._refuse_nan(block)
        query_KD, candidate_CD = block.queries.rows_BKD[0], block.candidates.rows_BCD[0]
        known = self._known(block)
        targets, count_NQ = _targets(block.queries, true, known.own_Q), _before_candidates(block)
        device_scores.count(query_KD, block.candidates.columns, targets, self.comparator.term, count_NQ)
        self._add_answers(count_NQ, block, known)
        read_P = query_KD.new_empty(0)
        if block.read is not None and block.read[0].numel():
            row_P, column_P = moved(block.read, self.device)
            read_P = device_scores.pairs(query_KD, row_P, candidate_CD, column_P, self.comparator.term)
        return Counted(QueryCounts.of_rows(count_NQ), true.score_Q, read_P, NO_CELLS, scores_KC)

    def _add_answers(self, count_NQ: Tensor, block: Block, known: _Known) -> None:
        """Add known answers, and those known in time, to the counts of their groups."""
        own_Q, queries, candidates = known.own_Q, block.queries, block.candidates
        for start in range(0, known.total, self.sizes.pairs):
            runs = device_lists.KnownOfQueries(queries.num_queries, *known.runs)
            cells = runs.cells(start, min(self.sizes.pairs, known.total - start))
            if isinstance(queries.true, TrueScores):
                assert self.comparator.term is not None, "counted by tiles"
                targets, hash_C = _targets(queries, queries.true, own_Q), candidates.hash_C
                rows_KD, rows_CD, term = queries.rows_KD, candidates.rows_CD, self.comparator.term
                signs_P = device_scores.compare(rows_KD, targets, rows_CD, hash_C, *cells, term)
            else:
                signs_P = signs_of(queries, candidates.rows_BCD, *cells)
            num_first = known.num_first - start
            group = device_lists.KNOWN
            device_lists.add_signs(count_NQ, cells, signs_P, group, num_first=num_first, competing=1, but_own_Q=own_Q)

    def _count_listed(self, block: Block) -> Counted:
        """Count sampled lists from all of their scores."""
        scores_BKC, true = self.comparator.scores(block.queries.rows_BKD, block.candidates.rows_BCD), block.queries.true
        assert block.marks is not None, "the caller has checked"
        assert not isinstance(true, ExactTrue), "ranks are not exact"
        scores_KC, limits = scores_BKC.flatten(0, 1), None if true is None else (true.score_Q, true.score_Q)
        found = device_lists.count(scores_KC, block.marks, limits, scores_BKC.shape[1])
        hides_overflow = self.comparator.multiplies and not self.comparator.is_inner_product
        if hides_overflow or not holds(operator.not_, found.overflow):
            self.refuse_nan(block, scores_BKC)
        return self._counted(block, QueryCounts.of_rows(found.count_NQ), found.true_Q, scores_KC)

    def count_scores(self, block: Block, scores_KC: Tensor, high_Q: Tensor, low_Q: Tensor) -> QueryCounts:
        if block.marks is None:
            return super().count_scores(block, scores_KC, high_Q, low_Q)
        found = device_lists.count(scores_KC, block.marks, (high_Q, low_Q), block.queries.rows_BKD.shape[1])
        return QueryCounts.of_rows(found.count_NQ)

    def _refuse_nan(self, block: Block) -> None:
        """Score a block, a part at a time: an error names what is no number."""
        step = max(self.sizes.cells // max(block.queries.rows_BKD.shape[1], 1), 1)
        for start in range(0, block.num_columns, step):
            try:
                self._scores(block.between(start, min(start + step, block.num_columns)))
            except NotANumberError as error:
                raise NotANumberError(error.row, start + error.column) from None

    def _known(self, block: Block) -> _Known:
        """Find the known answers of each query's key, and send them together with the column of its true entity."""
        own_Q = block.own_Q.where(_has_own(block), -1)
        answers = [] if block.known is None else [(*block.known, block.queries.row_Q)]
        answers += [] if block.in_time is None else [block.in_time]
        first, length, before = [], [], 0
        for key_P, column_P, key_Q in answers:
            first_Q, stop_Q = (np.searchsorted(key_P.numpy(), key_Q.numpy(), side) for side in ("left", "right"))
            first.append(first_Q + before)
            length.append(stop_Q - first_Q)
            before += len(column_P)
        if not sum(int(of.sum()) for of in length):
            return _Known(sent(own_Q, self.device))
        first_n, end_n = torch.from_numpy(np.concatenate(first)), torch.from_numpy(np.cumsum(np.concatenate(length)))
        runs = first_n, end_n, torch.cat([column_P for _, column_P, _ in answers])
        own_Q, *on_device = sent_together(self.device, own_Q, *runs)
        return _Known(own_Q, tuple(on_device), int(end_n[-1]), int(length[0].sum()))

    # Exact ranks.

    def _count_exactly(self, block: Block) -> Counted:
        """Count a block and decide all of its cells, if not too many stay open."""
        queries, candidates, marks, true = block.queries, block.candidates, block.marks, block.queries.exact_true
        hash_Q = row_hashes(true.rows_QD)
        known = _Known(hash_Q) if marks is not None else self._known(block)
        own_Q = known.own_Q  # not read where there are marks
        target = device_exact.Target(true.score_Q, true.error_Q, hash_Q, own_Q, marks)
        num_groups = block.num_groups if marks is None else marks.num_groups
        found = device_exact.count(queries.exact, candidates.exact, target, num_groups)
        if not holds(device_exact.are_listed, found.num_open[:1]):
            return Counted(QueryCounts.of_rows(found.count_NQ), true.value_Q, true.value_Q.new_empty(0), None, None)
        count_NQ, group = found.count_NQ, device_lists.ALL
        if found.open[0].numel():
            signs_P = signs_of(queries, candidates.rows_BCD, *found.open, found.num_open)
            device_lists.add_signs(count_NQ, found.open, signs_P, marks or group, number=found.num_open)
        if marks is None and block.excluded_on_device is not None:
            excluded = block.excluded_on_device
            signs_P = signs_of(queries, candidates.rows_BCD, *excluded)
            device_lists.add_signs(count_NQ, excluded, signs_P, group, amount=-1, competing=-1)
        self._add_answers(count_NQ, block, known)
        return Counted(QueryCounts.of_rows(count_NQ), true.value_Q, self.values(block), NO_CELLS, None)


def _can_be_doubled(low: float, high: float) -> bool:
    return magnitude(low, high) < LARGEST_DOUBLED


def _targets(queries: QueryRows, true: TrueScores, own_Q: Tensor) -> device_scores.Targets:
    return device_scores.Targets(queries.row_on_device_Q, true.score_Q, true.kernel_Q, true.hash_Q, own_Q)


def _before_candidates(block: Block) -> Tensor:
    """Return counts of all groups of cells on the device, int32: zeros, but all compete but true entities."""
    count_NQ = torch.zeros((3 * block.num_groups, block.own_Q.numel()), dtype=torch.int32)
    count_NQ[2] = block.num_columns - _has_own(block).int()
    return sent(count_NQ, block.device)


def _has_own(block: Block) -> Tensor:
    return (block.own_Q >= 0) & (block.own_Q < block.num_columns)
