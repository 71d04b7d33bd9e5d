"""A range of candidates in runs, and the blocks of queries that meet them: what a kernel that counts is given."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from pbgeval.ranking.certified import decide
from pbgeval.ranking.contest_state import CellSample, ContestState
from pbgeval.ranking.counting import CellIndex
from pbgeval.ranking.groups import first_nan, largest
from pbgeval.ranking.kernels import Kernel
from pbgeval.ranking.known_answers import KnownAnswers, known_by_run, positions
from pbgeval.ranking.query_edges import QueryBlock
from pbgeval.scoring import device_scores
from pbgeval.scoring.fast_products import PreparedRows
from pbgeval.scoring.true_scores import CertifiedTrue, DuplicateRows, TrueScores, row_hashes

TASKS_PER_THREAD = 4  # so that none waits long for the last


@frozen(eq=False)
class RangeWork:
    """The candidates of a range that compete in some blocks' queries, in runs of a width, and what those share."""

    state: ContestState
    queries: list[QueryBlock]
    numbers_C: np.ndarray
    prepared_CD: Tensor
    width: int
    known: KnownAnswers | None  # in this range; None: nothing is filtered
    in_time: KnownAnswers | None  # what a time-aware filter leaves out, if it is read from blocks
    runs: Sequence[Tensor]  # prepared rows of each
    largest: tuple[float, ...]  # magnitude in each run; empty: ranks are certified
    certified: tuple[PreparedRows, ...]  # the runs, if ranks are certified
    duplicates: DuplicateRows | None  # None: ranks are certified, or a GPU counts
    columns: tuple[device_scores.Columns, ...]  # the runs, if a GPU counts
    known_of: Sequence[KnownAnswers] | None  # in each run, by columns
    cells: CellSample  # whose scores are read from blocks, by query; some may not compete here

    @classmethod
    def cut(
        cls,
        state: ContestState,
        queries: list[QueryBlock],
        numbers_C: np.ndarray,
        prepared_CD: Tensor,
        width: int,
        known: KnownAnswers | None,
        in_time: KnownAnswers | None,
        cells: CellSample,
    ) -> RangeWork:
        """Cut candidates in runs, and make what blocks share while the candidates are in cache."""
        comparator, runs, on_gpu = state.certified, torch.split(prepared_CD, width), state.kernel is Kernel.DEVICE
        of_keys = None if known is None else known.of_keys(queries[0].first_key, queries[-1].stop_key)
        return cls(
            state,
            queries,
            numbers_C,
            prepared_CD,
            width,
            known,
            in_time,
            runs,
            largest=tuple(map(largest, runs)) if comparator is None else (),
            certified=()
            if comparator is None
            else tuple(PreparedRows(comparator, run, of_queries=False) for run in runs),
            duplicates=DuplicateRows.from_rows(prepared_CD) if comparator is None and not on_gpu else None,
            columns=tuple(device_scores.Columns.from_rows(run, row_hashes(run)) for run in runs) if on_gpu else (),
            known_of=None if of_keys is None else known_by_run(of_keys, numbers_C, width),
            cells=cells,
        )

    @property
    def device(self) -> torch.device:
        return self.prepared_CD.device

    def known_in(self, run: int, block: QueryBlock) -> CellIndex | None:
        """Return (row, column) of the known answers of a block's keys in a run of columns; None: no filter."""
        if self.known_of is None:
            return None
        known = self.known_of[run].of_keys(block.first_key, block.stop_key)
        row_P, column_P = torch.from_numpy(known.key_P - block.first_key), torch.from_numpy(known.number_P)
        return row_P.to(self.device), column_P.to(self.device)

    def sampled_in(self, run: int, block: QueryBlock) -> tuple[np.ndarray, np.ndarray, CellIndex]:
        """Return the sampled cells of a block in a run of columns: query, is known, and (row, column), which ascend.

        No cell is of a true entity.
        """
        queries, numbers_C = self.state.queries, self.numbers_C[run * self.width : (run + 1) * self.width]
        query, number = self.cells.of_queries(block.first, block.stop)
        row, column = queries.key_Q[query] - block.first_key, positions(numbers_C, number)
        order = np.argsort(row * self.width + column)
        order = order[((column >= 0) & (number != queries.true_Q[query]))[order]]
        query, number = query[order], number[order]
        row_P, column_P = (torch.from_numpy(index[order]).to(self.device) for index in (row, column))
        known = self.known and self.known.of_keys(block.first_key, block.stop_key)
        return query, are_known(self.state, known, query, number), (row_P, column_P)

    def tasks(self, num_threads: int) -> list[tuple[QueryBlock, range]]:
        """Cut the work so that every thread has some: few blocks of queries meet the candidates in several tasks."""
        num_runs, num_blocks = len(self.runs), len(self.queries)
        tasks_per_block = min(num_runs, -(-TASKS_PER_THREAD * num_threads // num_blocks)) if num_threads > 1 else 1
        length = -(-num_runs // tasks_per_block)
        parts = [range(at, min(at + length, num_runs)) for at in range(0, num_runs, length)]
        return [(block, runs) for block in self.queries for runs in parts]


@frozen(eq=False)
class BlockQueries:
    """What a block of queries brings."""

    state: ContestState
    block: QueryBlock
    query_KD: Tensor  # prepared
    row_Q: Tensor  # row of each query's key
    true: TrueScores | CertifiedTrue

    @classmethod
    def read(cls, state: ContestState, block: QueryBlock, device: torch.device) -> BlockQueries:
        query_KD = state.prepared_queries(block, device)
        row_Q = torch.from_numpy(state.queries.key_Q[block.first : block.stop] - block.first_key).to(device)
        if state.certified is None:
            return cls(state, block, query_KD, row_Q, state.true(block.first, block.stop))
        return cls(state, block, query_KD, row_Q, state.certified_true(block, query_KD[row_Q]))

    def compare(
        self, query_P: Tensor, row_P: Tensor, pairs: tuple[Tensor, Tensor], at_P: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Tell whether candidates are better than true entities, and whether they tie, bool (P,) each.

        Args:
            query_P: query in the block.
            row_P: row of its key.
            pairs: prepared candidates, and their scores.
            at_P: which of these is meant.
        """
        candidate_UD, score_U = pairs
        true = self.true
        if isinstance(true, CertifiedTrue):
            assert self.state.certified is not None, "ranks are certified"
            signs_P = decide(self.state.certified, (self.query_KD, row_P), (candidate_UD, at_P), true, query_P)
            return signs_P > 0, signs_P == 0
        score_P = score_U[at_P]
        is_twin = score_P == true.kernel_Q[query_P]
        of_equal = is_twin.nonzero().squeeze(1)  # few: hashes take longer than scores
        is_twin[of_equal] = row_hashes(candidate_UD[at_P[of_equal]]) == true.hash_Q[query_P[of_equal]]
        return true.compare(query_P, score_P, is_twin)


def scores_of_run(
    work: RangeWork, rows: BlockQueries, run: int, *, may_overflow: bool, first: int = 0, stop: int | None = None
) -> Tensor:
    """Return the scores (K, C) of a run of candidates, or of some of them, none of them NaN."""
    state, candidates_CD = work.state, work.runs[run][first:stop]
    scores_KC = state.comparator.scores(rows.query_KD[None], candidates_CD[None])[0]
    if may_overflow:
        found = first_nan(state.comparator, rows.query_KD[None], candidates_CD[None], scores_KC[None])
        if found is not None:
            query = int(np.searchsorted(state.queries.key_Q, rows.block.first_key + found[1]))
            raise state.nan_score(query, int(work.numbers_C[run * work.width + first + found[2]]))
    return scores_KC


def are_known(state: ContestState, known: KnownAnswers | None, query: np.ndarray, number: np.ndarray) -> np.ndarray:
    """Tell of cells (query, number) whether they are known answers, bool (n,); none where nothing is filtered."""
    return np.zeros(query.shape, bool) if known is None else known.are_known(state.queries.key_Q[query], number)
