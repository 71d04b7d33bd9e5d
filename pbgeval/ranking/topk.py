"""Blocks of scores -> the k best candidates of each key, the same for any order of blocks.

Ties are broken by the entity's number, so that the list does not depend on how candidates were cut into blocks.
Known answers and the true entity stay in the list; known ones are marked. Recommendations leave out known ones.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from attrs import define, field
from torch import Tensor

from pbgeval.notation import distinct

MAX_PASSING = 2  # times k: of a block's candidates for a key; where more beat the list so far, its k best are found


@define
class TopCandidates:
    """The best candidates of the keys of one contest so far."""

    num_keys: int
    k: int
    # (keys, numbers) -> which are evaluated answers, so that other known ones are left out; None: nobody is
    is_answer: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None
    score_Kk: np.ndarray = field(init=False)  # float64, descending; -inf where there is none
    number_Kk: np.ndarray = field(init=False)  # int64; -1 where there is none
    known_Kk: np.ndarray = field(init=False)  # bool

    def __attrs_post_init__(self) -> None:
        self.score_Kk = np.full((self.num_keys, self.k), -np.inf)
        self.number_Kk = np.full((self.num_keys, self.k), -1, np.int64)
        self.known_Kk = np.zeros((self.num_keys, self.k), bool)

    def add(
        self, first_key: int, scores_KC: Tensor, numbers_C: np.ndarray, known: tuple[Tensor, Tensor] | None
    ) -> None:
        """Let candidates compete for the lists of consecutive keys.

        Args:
            first_key: the first of the block's keys.
            scores_KC: what they are ranked by.
            numbers_C: ascending.
            known: (row, column) of the known answers.
        """
        num_keys, num_columns = scores_KC.shape
        known_cells = np.empty(0, np.int64) if known is None else (known[0] * num_columns + known[1]).cpu().numpy()
        left_out = known_cells[:0]
        if self.is_answer is not None:
            row, column = known_cells // num_columns, known_cells % num_columns
            left_out = known_cells[~self.is_answer(first_key + row, numbers_C[column])]
            scores_KC = scores_KC.clone()
            cells = torch.from_numpy(left_out).to(scores_KC.device)
            scores_KC[cells // num_columns, cells % num_columns] = -torch.inf
        keys = slice(first_key, first_key + num_keys)
        # Whoever is below the k-th of the list so far, or of this block, is not among the best of both.
        floor_K1 = torch.from_numpy(self.score_Kk[keys, -1:]).to(scores_KC.device, scores_KC.dtype)
        found = (scores_KC >= floor_K1).nonzero(as_tuple=True)
        if num_columns >= self.k and len(found[0]) > MAX_PASSING * self.k * num_keys:
            best_Kk = torch.topk(scores_KC, self.k, dim=1).values
            found = (scores_KC >= torch.maximum(floor_K1, best_Kk[:, -1:])).nonzero(as_tuple=True)
        row, column = (index.cpu().numpy() for index in found)
        if left_out.size:
            competes = ~np.isin(row * num_columns + column, left_out)
            row, column = row[competes], column[competes]
        if not row.size:
            return
        scores = scores_KC.cpu().numpy()[row, column].astype(np.float64)
        is_known = np.isin(row * num_columns + column, known_cells)
        self.merge(row + first_key, scores, numbers_C[column], is_known)

    def merge(self, key: np.ndarray, score: np.ndarray, number: np.ndarray, known: np.ndarray) -> None:
        """Let further candidates compete, given one by one."""
        keys = distinct(key)
        listed = self.number_Kk[keys] >= 0
        key = np.concatenate([np.repeat(keys, listed.sum(1)), key])
        score = np.concatenate([self.score_Kk[keys][listed], score])
        number = np.concatenate([self.number_Kk[keys][listed], number])
        known = np.concatenate([self.known_Kk[keys][listed], known])
        order = np.lexsort((number, -score, key))
        key, score, number, known = key[order], score[order], number[order], known[order]
        first = np.searchsorted(key, key)
        place = np.arange(key.size) - first
        kept = place < self.k
        at = (key[kept], place[kept])
        self.score_Kk[at], self.number_Kk[at], self.known_Kk[at] = score[kept], number[kept], known[kept]

    def of_keys(self, key_Q: np.ndarray) -> TopCandidates:
        """Return the lists of some keys, which may repeat."""
        some = TopCandidates(len(key_Q), self.k)
        some.score_Kk, some.number_Kk, some.known_Kk = (
            lists[key_Q] for lists in (self.score_Kk, self.number_Kk, self.known_Kk)
        )
        return some

    def packed(self) -> np.ndarray:
        """Return the lists as one int64 array (n,), for `merge_packed` of another worker."""
        key, place = np.nonzero(self.number_Kk >= 0)
        columns = [key, self.score_Kk.view(np.int64)[key, place], self.number_Kk[key, place], self.known_Kk[key, place]]
        return np.stack(columns, axis=1).astype(np.int64).reshape(-1)

    def merge_packed(self, packed: np.ndarray) -> None:
        """Let the candidates of other workers' lists compete, given as `packed` made them, one after the other."""
        key, score, number, known = np.ascontiguousarray(packed.reshape(-1, 4).T)
        if key.size:
            self.merge(key, score.view(np.float64), number, known.astype(bool))
