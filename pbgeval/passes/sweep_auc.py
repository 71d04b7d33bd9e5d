"""Queries of a contest -> the cells that the pooled AUC samples, and whose true scores; and the pools in the end."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from attrs import frozen

from pbgeval.candidates.constraints import CandidateSets
from pbgeval.candidates.draws import DrawStream
from pbgeval.distinct import distinct
from pbgeval.notation import Side
from pbgeval.passes.auc_sampling import AucSampling
from pbgeval.passes.cells import CellSample
from pbgeval.passes.query_edges import ContestQueries, EdgeSegment, QueryEdges

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
