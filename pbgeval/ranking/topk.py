"""Blocks of scores -> the k best candidates of each key, the same for any order of blocks.

Ties are broken by the entity's number, so that the list does not depend on how candidates were cut into blocks.
Known answers and the true entity stay in the list; known ones are marked.
"""

from __future__ import annotations

import numpy as np
import torch
from attrs import define, field
from torch import Tensor

from pbgeval.notation import distinct


@define
class TopCandidates:
    """The best candidates of the keys of one contest so far."""

    num_keys: int
    k: int
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
        keys = slice(first_key, first_key + num_keys)
        # Whoever is below the k-th of this block, or of the list so far, is not among the best of both.
        best_Kk = torch.topk(scores_KC, min(self.k, num_columns), dim=1).values
        enough = num_columns >= self.k
        floor_K = best_Kk[:, -1].double().cpu().numpy() if enough else np.full(num_keys, -np.inf)
        has_all_K = self.number_Kk[keys, -1] >= 0
        floor_K = np.where(has_all_K, np.maximum(floor_K, self.score_Kk[keys, -1]), floor_K)
        floor = torch.from_numpy(floor_K).to(scores_KC.device, scores_KC.dtype)
        row, column = (index.cpu().numpy() for index in (scores_KC >= floor.unsqueeze(1)).nonzero(as_tuple=True))
        if not row.size:
            return
        scores = scores_KC.cpu().numpy()[row, column].astype(np.float64)
        is_known = np.zeros(row.shape, bool)
        if known is not None:
            cells = (known[0] * num_columns + known[1]).cpu().numpy()
            is_known = np.isin(row * num_columns + column, cells)
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
