"""Cells (query, candidate) of one contest -> the scores that its pooled AUC compares."""

from __future__ import annotations

import numpy as np
import torch
from attrs import define, field, frozen
from torch import Tensor

from pbgeval.ranking.known_counts import expand_by_row, own_cells
from pbgeval.stats.groups import order_image


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

    _query: list[np.ndarray] = field(factory=list)
    _score: list[np.ndarray] = field(factory=list)
    _known: list[np.ndarray] = field(factory=list)

    def add(self, query_P: np.ndarray, score_P: Tensor, known_P: np.ndarray | None) -> None:
        """Add scores of competitors; `known_P` tells which of them are known answers (None: nothing is filtered)."""
        self._query.append(query_P)
        self._score.append(score_P.float().cpu().numpy())
        self._known.append(np.zeros(query_P.shape, bool) if known_P is None else known_P)

    def add_block(
        self, first_query: int, scores_QC: Tensor, own_Q: Tensor, row_Q: Tensor, known: tuple[Tensor, Tensor] | None
    ) -> None:
        """Add every cell of a block but the true entities'.

        Args:
            first_query: position of the block's first query.
            scores_QC: its scores.
            own_Q: column of each true entity, out of range where it is elsewhere.
            row_Q: row of each query's key in `known`.
            known: (row, column) of the known answers, rows ascending.
        """
        num_queries, num_columns = scores_QC.shape
        competes_QC = torch.ones((num_queries, num_columns), dtype=torch.bool)
        competes_QC[own_cells(own_Q, num_columns)] = False
        known_QC = torch.zeros((num_queries, num_columns), dtype=torch.bool)
        if known is not None:
            row_P, column_P = known[0].cpu(), known[1].cpu()
            of_query, entry = expand_by_row(row_Q, row_P, int(row_Q.max()) + 1)
            known_QC[of_query, column_P[entry]] = True
        query_of_cell = torch.arange(first_query, first_query + num_queries).unsqueeze(1).expand_as(competes_QC)
        self.add(
            query_of_cell[competes_QC].numpy(),
            scores_QC[competes_QC.to(scores_QC.device)],
            known_QC[competes_QC].numpy(),
        )

    def extend(self, other: ScoreCollector) -> None:
        """Add what another one has collected."""
        self._query += other._query
        self._score += other._score
        self._known += other._known

    def pack(self) -> list[np.ndarray]:
        """Return (query, bits of the score, known) of all scores added, for `add_packed`."""
        bits = [score.view(np.int32) for score in self._score]
        parts = ((self._query, np.int64), (bits, np.int32), (self._known, bool))
        return [np.concatenate([np.empty(0, dtype), *of_part]) for of_part, dtype in parts]

    def add_packed(self, query: np.ndarray, bits: np.ndarray, known: np.ndarray) -> None:
        """Add what another one packed, as integers of any type."""
        self._query.append(query.astype(np.int64))
        self._score.append(bits.astype(np.int32).view(np.float32))
        self._known.append(known.astype(bool))

    def images(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (query, order image, known) of all scores added, int64, int32 and bool."""
        query = np.concatenate([np.empty(0, np.int64), *self._query])
        score = np.concatenate([np.empty(0, np.float32), *self._score])
        return query, order_image(torch.from_numpy(score)), np.concatenate([np.empty(0, bool), *self._known])
