"""Cells (query, candidate) of one contest -> the scores that its pooled AUC compares."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import torch
from attrs import define, field, frozen
from torch import Tensor

from pbgeval.notation import Side
from pbgeval.ranking.auc_sampling import AucSampling
from pbgeval.ranking.draws import DrawStream
from pbgeval.ranking.query_edges import CompetingEntities, ContestQueries, EdgeSegment, QueryEdges
from pbgeval.stats.groups import sortable_int32


@frozen(eq=False)
class CellSample:
    """Some cells, in the order of queries or of candidates as needed."""

    query_P: np.ndarray  # int64: position among the contest's queries
    number_P: np.ndarray  # int64: number of the candidate

    @classmethod
    def by_number(cls, query_P: np.ndarray, number_P: np.ndarray) -> CellSample:
        """Arrange cells so that `within` finds those of a range of candidates."""
        order = np.argsort(number_P)
        return cls(query_P[order], number_P[order])

    def within(self, numbers_C: np.ndarray) -> CellSample:
        """Return the cells of a range of candidates (sorted numbers), arranged by query."""
        query, number = self.between(int(numbers_C[0]), int(numbers_C[-1]) + 1)
        order = np.argsort(query)
        return CellSample(query[order], number[order])

    def between(self, first: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (query, number) of the cells of consecutive candidates, in no order."""
        low, high = np.searchsorted(self.number_P, [first, stop])
        return self.query_P[low:high], self.number_P[low:high]

    def of_queries(self, first: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (query, number) of the cells of consecutive queries, once arranged by query."""
        low, high = np.searchsorted(self.query_P, [first, stop])
        return self.query_P[low:high], self.number_P[low:high]


@define
class ScoreCollector:
    """Scores of competitors, with the query that each belongs to."""

    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = field(factory=list)  # query, float32 score, is known

    def add(self, query_P: np.ndarray, score_P: Tensor, known_P: np.ndarray | None) -> None:
        """Add scores of competitors; `known_P` tells which of them are known answers (None: nothing is filtered)."""
        known_P = np.zeros(query_P.shape, bool) if known_P is None else known_P
        self.parts.append((query_P, score_P.float().cpu().numpy(), known_P))

    def pack(self) -> list[np.ndarray]:
        """Return (query, bits of the score, known) of all scores added, for `add_packed`."""
        query, score, known = self._joined()
        return [query, score.view(np.int32), known]

    def add_packed(self, query: np.ndarray, bits: np.ndarray, known: np.ndarray) -> None:
        """Add what another one packed, as integers of any type."""
        self.parts.append((query.astype(np.int64), bits.astype(np.int32).view(np.float32), known.astype(bool)))

    def images(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (query, order image, known) of all scores added, int64, int32 and bool."""
        query, score, known = self._joined()
        return query, sortable_int32(torch.from_numpy(score)), known

    def _joined(self) -> list[np.ndarray]:
        nothing = np.empty(0, np.int64), np.empty(0, np.float32), np.empty(0, bool)
        return [np.concatenate(column) for column in zip(nothing, *self.parts, strict=True)]


@frozen(eq=False)
class SampledCells:
    """What the pooled AUC samples of one contest."""

    cells: CellSample  # arranged by candidate
    true_kept_Q: np.ndarray  # bool: whose true score enters


ROWS_AT_A_TIME = 1 << 14  # of a bucket's file, whose words are drawn together; changes no number


def sample_cells(
    edges: QueryEdges, queries: ContestQueries, competing: CompetingEntities, auc: AucSampling, seed: int
) -> SampledCells | None:
    """Draw the cells of a contest by (seed, row of the edge, candidate); None where every cell is kept.

    A draw names a position among those who may compete, in the order of their numbers, so it does not depend on
    which worker meets them when.
    """
    if auc.exact:
        return None
    position_E = np.full(edges.num_edges, -1, np.int64)
    position_E[queries.edge_Q] = np.arange(queries.num_queries)
    true_kept_Q = np.zeros(queries.num_queries, bool)
    parts = [np.empty((2, 0), np.int64)]
    for segment in edges.segments:
        for edge, words_QW in _words(edges, segment, queries.contest.hidden, auc, seed):
            ranked = position_E[edge] >= 0
            edge, words_QW = edge[ranked], words_QW[ranked]
            true_kept_Q[position_E[edge]] = auc.true_is_kept(words_QW).numpy()
            parts.append(drawn_cells(position_E[edge], edges.rel_E[edge], words_QW, competing, auc))
    return SampledCells(CellSample.by_number(*np.concatenate(parts, axis=1)), true_kept_Q)


def drawn_cells(
    query_Q: np.ndarray, rel_Q: np.ndarray, words_QW: np.ndarray, competing: CompetingEntities, auc: AucSampling
) -> np.ndarray:
    """Return (query, candidate) of the cells that some queries' words draw, int64 (2, n)."""
    parts = [np.empty((2, 0), np.int64)]
    for relation, of_relation in competing.split(rel_Q):
        query, place = auc.cells(words_QW[of_relation], competing.size(relation))
        number_P = competing.number(relation, place.numpy())
        parts.append(np.stack([query_Q[of_relation][query.numpy()], number_P]))
    return np.concatenate(parts, axis=1)


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
