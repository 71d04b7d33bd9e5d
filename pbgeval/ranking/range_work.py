"""A range of candidates in runs, and the blocks of queries that meet them: what a backend is asked to count."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from pbgeval.ranking.block import Block, CandidateRows, QueryRows
from pbgeval.ranking.counting import CellIndex
from pbgeval.ranking.known_answers import KnownAnswers, known_by_run, positions
from pbgeval.ranking.query_edges import QueryBlock
from pbgeval.ranking.query_group_state import CellSample, QueryGroupState


@frozen(eq=False)
class RangeWork:
    """The candidates of a range that compete in some blocks' queries, in runs of a width, and what those share."""

    state: QueryGroupState
    queries: list[QueryBlock]
    entity_ids_C: np.ndarray
    width: int
    known: KnownAnswers | None  # in this range; None: nothing is filtered
    in_time_of: Sequence[KnownAnswers] | None  # what a time-aware filter leaves out in each run, by columns
    runs: Sequence[CandidateRows]
    known_of: Sequence[KnownAnswers] | None  # in each run, by columns
    cells: CellSample  # whose scores are read from blocks, by query; some may not compete here

    @classmethod
    def cut(
        cls,
        state: QueryGroupState,
        queries: list[QueryBlock],
        entity_ids_C: np.ndarray,
        candidates: CandidateRows,
        width: int,
        cells: CellSample,
        *,
        known: KnownAnswers | None,
        in_time: KnownAnswers | None,
    ) -> RangeWork:
        """Cut candidates in runs, and find their known answers."""
        runs = [candidates.between(start, start + width) for start in range(0, len(entity_ids_C), width)]
        of_keys = None if known is None else known.of_keys(queries[0].first_key, queries[-1].stop_key)
        known_of = None if of_keys is None else known_by_run(of_keys, entity_ids_C, width)
        in_time_of = None if in_time is None else known_by_run(in_time, entity_ids_C, width)
        return cls(state, queries, entity_ids_C, width, known, in_time_of, runs, known_of, cells)

    def entity_ids(self, run: int) -> np.ndarray:
        """Return the entity ids of a run's candidates."""
        return self.entity_ids_C[run * self.width : (run + 1) * self.width]

    def block(self, queries: QueryRows, block: QueryBlock, own_Q: Tensor, run: int, read: CellIndex | None) -> Block:
        """Return the block of some queries and a run of candidates; `own_Q` are columns of the range."""
        in_time, own_Q = None, own_Q - run * self.width
        if self.in_time_of is not None and self.state.in_time_Q is not None:
            answers, key_Q = self.in_time_of[run], self.state.in_time_Q[block.first : block.stop]
            key_P, column_P = torch.from_numpy(answers.key_P), torch.from_numpy(answers.entity_id_P)
            in_time = key_P, column_P, torch.from_numpy(key_Q)
        return Block(queries, self.runs[run], own_Q, self.known_in(run, block), read=read, in_time=in_time)

    def known_in(self, run: int, block: QueryBlock) -> CellIndex | None:
        """Return (row, column) of the known answers of a block's keys in a run of columns; None: no filter."""
        if self.known_of is None:
            return None
        known = self.known_of[run].of_keys(block.first_key, block.stop_key)
        return torch.from_numpy(known.key_P - block.first_key), torch.from_numpy(known.entity_id_P)

    def sampled_in(self, run: int, block: QueryBlock) -> tuple[np.ndarray, np.ndarray, CellIndex]:
        """Return the sampled cells of a block in a run of columns: query, is known, and (row, column), which ascend.

        No cell is of a true entity.
        """
        queries = self.state.queries
        query, entity_id = self.cells.of_queries(block.first, block.stop)
        row, column = queries.key_Q[query] - block.first_key, positions(self.entity_ids(run), entity_id)
        order = np.argsort(row * self.width + column)
        order = order[((column >= 0) & (entity_id != queries.true_Q[query]))[order]]
        query, entity_id = query[order], entity_id[order]
        known = self.known and self.known.of_keys(block.first_key, block.stop_key)
        cells = torch.from_numpy(row[order]), torch.from_numpy(column[order])
        return query, are_known(self.state, known, query, entity_id), cells

    def tasks(self, num_parts: int) -> list[tuple[QueryBlock, range]]:
        """Cut the work so that each block of queries meets the runs in so many parts, or in as many as there are."""
        num_runs = len(self.runs)
        length = -(-num_runs // min(num_runs, num_parts))
        parts = [range(at, min(at + length, num_runs)) for at in range(0, num_runs, length)]
        return [(block, runs) for block in self.queries for runs in parts]


def are_known(
    state: QueryGroupState, known: KnownAnswers | None, query: np.ndarray, entity_id: np.ndarray
) -> np.ndarray:
    """Tell of cells (query, entity id) whether they are known answers, bool (n,); none where nothing is filtered."""
    return np.zeros(query.shape, bool) if known is None else known.are_known(state.queries.key_Q[query], entity_id)
