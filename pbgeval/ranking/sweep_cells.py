"""Known answers and sampled cells of one contest in a range of candidates -> those of each block of scores."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from pbgeval.notation import Side, distinct
from pbgeval.ranking.auc_sampling import AucSampling
from pbgeval.ranking.cells import CellSample
from pbgeval.ranking.constraints import CandidateSets, is_among
from pbgeval.ranking.draws import DrawStream
from pbgeval.ranking.query_edges import ContestQueries, EdgeSegment, QueryBlock, QueryEdges
from pbgeval.ranking.sweep_pass import SweepState
from pbgeval.scoring.fast_products import PreparedRows, values_of_cells


@frozen(eq=False)
class KnownAnswers:
    """The known answers of one contest's keys within one range of candidates."""

    key_P: np.ndarray  # int64, ascending: index among the contest's keys
    number_P: np.ndarray  # int64, ascending within a key: number of the answer

    def of_keys(self, first: int, stop: int) -> KnownAnswers:
        """Return those of consecutive keys, as views."""
        part = slice(*np.searchsorted(self.key_P, [first, stop]))
        return KnownAnswers(self.key_P[part], self.number_P[part])

    def are_known(self, key: np.ndarray, number: np.ndarray) -> np.ndarray:
        """Tell of each (key, entity) whether it is a known answer, bool."""
        if not self.number_P.size or not number.size:
            return np.zeros(number.shape, bool)
        low = min(int(self.number_P.min()), int(number.min()))
        width = max(int(self.number_P.max()), int(number.max())) - low + 1
        return is_among(key * width + number - low, self.key_P * width + self.number_P - low)


def positions(sorted_numbers: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return where each number is in a sorted array; far below zero where it is not."""
    first, last = int(sorted_numbers[0]), int(sorted_numbers[-1])
    if last - first + 1 == sorted_numbers.size:  # none is left out, so nothing need be searched for
        return np.where((wanted >= first) & (wanted <= last), wanted - first, np.int64(-(1 << 62)))
    at = np.searchsorted(sorted_numbers, wanted)
    found = sorted_numbers[np.minimum(at, sorted_numbers.size - 1)] == wanted
    return np.where(found, at, np.int64(-(1 << 62)))


@frozen(eq=False)
class KnownByBlock:
    """Known answers as cells, those of one block of scores next to each other."""

    code_P: np.ndarray  # ascending: run of columns, then key
    key_P: np.ndarray
    column_P: np.ndarray  # within its run
    num_keys: int

    @classmethod
    def arrange(cls, known: KnownAnswers, numbers_C: np.ndarray, width: int) -> KnownByBlock:
        """Arrange them for blocks of `width` columns."""
        column_P = positions(numbers_C, known.number_P)
        competes_P = column_P >= 0
        key_P, column_P = known.key_P[competes_P], column_P[competes_P]
        num_keys = int(key_P.max()) + 1 if key_P.size else 1
        if width >= numbers_C.size:  # one run, and keys are in order
            return cls(key_P, key_P, column_P, num_keys)
        code_P = column_P // width * num_keys + key_P
        order = np.argsort(code_P, kind="stable")
        return cls(code_P[order], key_P[order], column_P[order] % width, num_keys)

    def in_block(self, part: int, block: QueryBlock, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return (row, column) of the known answers of a block's keys in a run of columns, rows ascending."""
        keys = np.minimum([block.first_key, block.stop_key], self.num_keys)
        first, stop = np.searchsorted(self.code_P, part * self.num_keys + keys)
        row_P = torch.from_numpy(self.key_P[first:stop] - block.first_key)
        return row_P.to(device), torch.from_numpy(self.column_P[first:stop]).to(device)


@frozen(eq=False)
class CellsByBlock:
    """Cells that the pooled AUC samples, those of one block of scores next to each other."""

    code_P: np.ndarray  # ascending: run of columns, then query
    query_P: np.ndarray
    key_P: np.ndarray
    column_P: np.ndarray  # within its run
    known_P: np.ndarray | None  # bool
    score_P: np.ndarray  # float32, once read: one array, for many small ones between blocks of scores scatter the heap
    num_queries: int

    @classmethod
    def arrange(
        cls,
        sample: CellSample,
        numbers_C: np.ndarray,
        state: SweepState,
        blocks: list[QueryBlock],
        known: KnownAnswers | None,
        width: int,
    ) -> CellsByBlock:
        """Arrange the cells of some blocks' queries in a range, for blocks of `width` columns; no true entities."""
        queries = state.queries
        query_P, number_P = sample.between(int(numbers_C[0]), int(numbers_C[-1]) + 1)
        kept = (query_P >= blocks[0].first) & (query_P < blocks[-1].stop)
        kept &= number_P != queries.true_Q[query_P]
        query_P, number_P = query_P[kept], number_P[kept]
        column_P = positions(numbers_C, number_P)
        run_P = column_P // width
        # Sorted as one number each: several times as fast as an order that three columns then follow.
        packed_P = (run_P * queries.num_queries + query_P) * width + (column_P - run_P * width)
        packed_P.sort()
        code_P = packed_P // width  # dividing by one number is fast, `divmod` is not
        column_P = packed_P - code_P * width
        run_P = code_P // queries.num_queries
        query_P = code_P - run_P * queries.num_queries
        key_P = queries.key_Q[query_P]
        known_P = None
        if known is not None:
            known_P = known.are_known(key_P, numbers_C[run_P * width + column_P])
        score_P = np.empty(len(query_P), np.float32)
        return cls(code_P, query_P, key_P, column_P, known_P, score_P, queries.num_queries)

    def read(self, part: int, block: QueryBlock, scores_KC: Tensor) -> None:
        """Keep the scores of a block's cells in a run of columns."""
        self.keep(part, block, scores_KC[self.in_block(part, block, scores_KC.device)])

    def read_values(self, part: int, block: QueryBlock, queries: PreparedRows, candidates: PreparedRows) -> None:
        """Keep the values of these cells, if ranks are certified."""
        row, column = self.in_block(part, block, candidates.rows_NL.device)
        if row.numel():
            self.keep(part, block, values_of_cells(queries, row, candidates, column).float())

    def in_block(self, part: int, block: QueryBlock, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return (row, column) of a block's cells in a run of columns."""
        here = self._of_block(part, block)
        row, column = self.key_P[here] - block.first_key, self.column_P[here]
        return torch.from_numpy(row).to(device), torch.from_numpy(column).to(device)

    def of_queries_in_block(self, part: int, block: QueryBlock) -> tuple[Tensor, Tensor]:
        """Return (query of the block, column) of these cells, queries ascending and columns within a query."""
        here = self._of_block(part, block)
        return torch.from_numpy(self.query_P[here] - block.first), torch.from_numpy(self.column_P[here])

    def keep(self, part: int, block: QueryBlock, score_P: Tensor) -> None:
        """Keep the scores of the cells that `in_block` names."""
        self.score_P[self._of_block(part, block)] = score_P.cpu().numpy()

    def _of_block(self, part: int, block: QueryBlock) -> slice:
        at = part * self.num_queries
        return slice(*np.searchsorted(self.code_P, [at + block.first, at + block.stop]))


# Queries of a contest -> the cells that the pooled AUC samples, and whose true scores; and the pools in the end.

ROWS_AT_A_TIME = 1 << 14  # of a bucket's file, whose words are drawn together; changes no number


@frozen(eq=False)
class SampledCells:
    """What of one contest the AUC samples."""

    cells: CellSample  # arranged by candidate
    true_kept_Q: np.ndarray  # bool: whose true score enters


def sample_cells(
    edges: QueryEdges, queries: ContestQueries, sets: CandidateSets, auc: AucSampling, seed: int
) -> SampledCells | None:
    """Draw the cells of a contest by (seed, row of the edge, candidate); None where every cell is kept.

    A draw names a position among those who may compete, in the order of their numbers, so it does not depend on
    which worker meets them when.
    """
    if auc.exact:
        return None
    position_E = np.full(edges.num_edges, -1, np.int64)
    position_E[queries.edge_Q] = np.arange(queries.num_queries)
    candidates = _CandidatesOfRelations(edges, queries, sets)
    true_kept_Q = np.zeros(queries.num_queries, bool)
    query_parts, number_parts = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for segment in edges.segments:
        for edge, words_QW in _words(edges, segment, queries.contest.hidden, auc, seed):
            ranked = position_E[edge] >= 0
            edge, words_QW = edge[ranked], words_QW[ranked]
            true_kept_Q[position_E[edge]] = auc.true_is_kept(words_QW).numpy()
            for relation, of_relation in candidates.split(edges.rel_E[edge]):
                query, place = auc.cells(words_QW[of_relation], candidates.size(relation))
                query_parts.append(position_E[edge[of_relation]][query.numpy()])
                number_parts.append(candidates.number(relation, place.numpy()))
    return SampledCells(CellSample.by_number(np.concatenate(query_parts), np.concatenate(number_parts)), true_kept_Q)


def _words(
    edges: QueryEdges, segment: EdgeSegment, hidden: Side, auc: AucSampling, seed: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (edges, words of their rows) of a segment, for rows that lie near each other in the file."""
    origin = segment.origin
    stream = DrawStream.of(seed, origin.path_index, origin.bucket, hidden, "auc")
    rows = edges.row_E[segment.start : segment.stop]
    window = rows // ROWS_AT_A_TIME
    borders = [0, *(np.flatnonzero(np.diff(window)) + 1).tolist(), len(rows)] if len(rows) else []
    for first, stop in pairwise(borders):
        of_window = rows[first:stop]
        words = auc.words(stream, int(of_window[0]), int(of_window[-1] - of_window[0]) + 1)
        assert words is not None, "an exact AUC draws nothing"
        yield np.arange(segment.start + first, segment.start + stop), words[of_window - of_window[0]]


class _CandidatesOfRelations:
    """Who may compete in a contest, by position."""

    def __init__(self, edges: QueryEdges, queries: ContestQueries, sets: CandidateSets) -> None:
        self._range = edges.numbering.range_of_type(queries.contest.candidate_type)
        self._sets = sets
        self._hidden = queries.contest.hidden
        self._numbers: dict[int, np.ndarray | None] = {}

    def split(self, rel_Q: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (relation, queries) for each set of candidates; relation -1 where all have the same."""
        if not self._sets.by_relation:
            yield -1, np.arange(len(rel_Q))
            return
        for relation in distinct(rel_Q).tolist():
            yield relation, np.flatnonzero(rel_Q == relation)

    def size(self, relation: int) -> int:
        numbers = self._of(relation)
        return self._range[1] - self._range[0] if numbers is None else len(numbers)

    def number(self, relation: int, place: np.ndarray) -> np.ndarray:
        numbers = self._of(relation)
        return place + self._range[0] if numbers is None else numbers[place]

    def _of(self, relation: int) -> np.ndarray | None:
        if relation not in self._numbers:
            numbers = self._sets.of(self._hidden, relation)
            if numbers is not None:
                numbers = numbers[slice(*np.searchsorted(numbers, self._range))]
            self._numbers[relation] = numbers
        return self._numbers[relation]
