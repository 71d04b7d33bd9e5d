"""Queries and lists -> the cells whose scores enter the pooled AUC.

All of them when the whole evaluation has at most EXACT_CELLS; else a sample drawn by (seed, row of the edge,
candidate), never by block, so it is the same for any number of workers: each row owns `words_per_row` words.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from attrs import evolve, frozen
from torch import Tensor

from pbgeval.notation import Bucket, Side
from pbgeval.ranking.draws import HOST, DrawStream, fractions, uniform_below
from pbgeval.storage.transfers import sent

EXACT_CELLS = 1 << 24
# Expected sizes of the samples. Competitors are many to each true score, so that their errors are small long before.
SAMPLED_CELLS = 1 << 18
SAMPLED_TRUE = 1 << 20
ROUNDS_SCORES = 1 << 22  # of a sample that grows round by round; beyond, its pools are a share of its scores
ROWS_APART = 1024  # beyond, words of rows in between are not made
TRUE_WORD, COUNT_WORD, FIRST_POSITION_WORD = 0, 1, 2  # what a row's words decide


@frozen
class AucSampling:
    """How many of the scores are kept."""

    competing_rate: float  # expected number of draws per cell; 1 or more: every cell, no draw
    true_rate: float  # probability that a true score is kept
    words_per_row: int
    longest_list: int = 0  # upper bound
    counts: bool = False  # every score besides, against all true scores, which are kept

    @classmethod
    def of_size(cls, num_cells: int, num_queries: int, longest_list: int, *, counts: bool = False) -> AucSampling:
        """Decide from upper bounds of the evaluation's cells and queries and of the length of a list.

        `counts` tells whether all scores are counted where they are too many to keep.
        """
        if num_cells + num_queries <= EXACT_CELLS:
            return cls(1.0, 1.0, 0, longest_list)
        true_rate = 1.0 if counts else min(1.0, SAMPLED_TRUE / num_queries)
        return cls(0.5, true_rate, 0, counts=counts).of_cells(num_cells, longest_list)

    def of_cells(self, num_cells: int, longest_list: int) -> AucSampling:
        """Return what keeps as much of other lists: every cell, about SAMPLED_CELLS of so many, or nothing.

        Nothing, too, where every cell is kept of all but these, which are too many.
        """
        if self.exact and num_cells > EXACT_CELLS:
            return self.of_nothing()
        if self.exact or not self.competing_rate:
            return self
        competing_rate = min(SAMPLED_CELLS / num_cells, 0.5)
        return evolve(
            self,
            competing_rate=competing_rate,
            words_per_row=FIRST_POSITION_WORD + math.floor(competing_rate * longest_list) + 1,  # at most so many draws
            longest_list=longest_list,
        )

    @classmethod
    def of_nothing(cls) -> AucSampling:
        """Keep no score: no metric of scores is asked for."""
        return cls(0.0, 0.0, FIRST_POSITION_WORD)

    @property
    def exact(self) -> bool:
        return self.competing_rate >= 1.0

    @property
    def takes_all(self) -> bool:
        """Whether every score is kept or counted."""
        return self.exact or self.counts

    def of_relations(self, num_cells: int, num_relations: int) -> AucSampling:
        """Return what keeps as much of hidden relations; where others are counted, every cell if there is room."""
        if self.counts and num_cells <= EXACT_CELLS:
            return AucSampling(1.0, 1.0, 0, num_relations)
        return self.of_cells(num_cells, num_relations)

    def num_scores(self, num_queries: int) -> int:
        """Return about how many scores of some queries are kept."""
        return math.ceil(num_queries * (min(self.competing_rate, 1.0) * self.longest_list + self.true_rate))

    def share_of_round(self, num_queries: int) -> float:
        """Return the share of the scores of so many queries that pools have room for, where rounds add to them."""
        return min(1.0, ROUNDS_SCORES / max(self.num_scores(num_queries), 1))

    def words(
        self, seed: int, place: tuple[int, Bucket], hidden: Side, row_E: np.ndarray, device: torch.device = HOST
    ) -> Tensor | None:
        """Return the words (E, words_per_row) of ascending rows of a bucket, None when every cell is kept.

        Args:
            seed: the evaluation's.
            place: edge path and bucket.
            hidden: the side that is asked for.
            row_E: rows, which need not be consecutive.
            device: where the words are wanted.
        """
        if self.exact:
            return None
        stream = DrawStream.of(seed, *place, hidden, "auc")
        parts = []
        for rows in np.split(row_E, np.flatnonzero(np.diff(row_E) > ROWS_APART) + 1):
            first, num_rows = (int(rows[0]), int(rows[-1] - rows[0]) + 1) if rows.size else (0, 0)
            words_ED = stream.words_on(device, first * self.words_per_row, num_rows * self.words_per_row)
            words_ED = words_ED.view(num_rows, self.words_per_row)
            is_whole = num_rows == rows.size
            parts.append(words_ED if is_whole else words_ED[sent(torch.from_numpy(rows - first), words_ED.device)])
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def true_is_kept(self, words_QD: Tensor) -> Tensor:
        """Return which queries' true scores enter the sample, bool (Q,)."""
        return fractions(words_QD[:, TRUE_WORD]) < self.true_rate

    def cells(self, words_QD: Tensor, list_length: int) -> tuple[Tensor, Tensor]:
        """Return (query, candidate) of the cells drawn, with replacement within a query.

        Every cell of every list is drawn equally often in expectation, whatever the lengths of the lists.
        """
        num_draws_Q = torch.floor(fractions(words_QD[:, COUNT_WORD]) + self.competing_rate * list_length)
        draw = torch.arange(words_QD.shape[1] - FIRST_POSITION_WORD, device=words_QD.device)
        query, draw = (draw < num_draws_Q[:, None]).nonzero(as_tuple=True)
        return query, uniform_below(words_QD[query, FIRST_POSITION_WORD + draw], list_length)
