"""Blocks of scores on a GPU -> the k best candidates of each key, kept there until a host asks for all of them.

The same candidates as those of `TopCandidates` on a CPU: of equal scores, the lower entity id comes first. Nothing is
answered to the host for a block, so it never waits.
"""

from __future__ import annotations

import numpy as np
import torch
from attrs import define
from torch import Tensor

from pbgeval.storage.transfers import sent

NOBODY = torch.iinfo(torch.int64).max  # the entity id of a place without a candidate: after all others


@define(eq=False)
class BestOnDevice:
    """The best candidates of some keys so far, in order."""

    score_Kk: Tensor  # float64; -inf where there is none
    entity_id_Kk: Tensor  # int64; `NOBODY` where there is none
    known_Kk: Tensor  # bool

    @classmethod
    def zero(cls, shape: tuple[int, ...], device: torch.device) -> BestOnDevice:
        """Return empty lists of shape (keys, candidates to keep)."""
        return cls(
            torch.full(shape, -torch.inf, dtype=torch.float64, device=device),
            torch.full(shape, NOBODY, device=device),
            torch.zeros(shape, dtype=torch.bool, device=device),
        )

    def add(
        self,
        first_key: int,
        scores_KC: Tensor,
        entity_ids_C: np.ndarray,
        known: tuple[np.ndarray, np.ndarray],
        is_out_P: np.ndarray,
    ) -> None:
        """Merge the candidates of a block, as `TopCandidates.add` does; some of the known answers are left out."""
        num_keys, num_columns = scores_KC.shape
        known_code = known[0] * num_columns + known[1]  # ascend
        parts = entity_ids_C, known_code, known_code[is_out_P]
        moved = sent(torch.from_numpy(np.concatenate(parts)), scores_KC.device)  # one copy
        id_C, known_code_P, out_code_P = torch.split(moved, [len(of) for of in parts])
        column_Kk, is_absent_Kk = _best_columns(scores_KC, self.score_Kk.shape[1], out_code_P)
        is_known_Kk = _are_among(column_Kk, num_columns, known_code_P)
        keys = slice(first_key, first_key + num_keys)
        score_Kn = torch.cat(
            [self.score_Kk[keys], scores_KC.gather(1, column_Kk).double().masked_fill_(is_absent_Kk, -torch.inf)], dim=1
        )
        id_Kn = torch.cat([self.entity_id_Kk[keys], id_C[column_Kk].masked_fill_(is_absent_Kk, NOBODY)], dim=1)
        known_Kn = torch.cat([self.known_Kk[keys], is_known_Kk], dim=1)
        by_id_Kn = id_Kn.argsort(dim=1)
        sorted_Kn = score_Kn.gather(1, by_id_Kn) + 0.0  # 0.0 and -0.0 tie
        order_Kn = by_id_Kn.gather(1, sorted_Kn.argsort(dim=1, descending=True, stable=True))
        order_Kk = order_Kn[:, : self.score_Kk.shape[1]]
        for table_Kk, of_Kn in ((self.score_Kk, score_Kn), (self.entity_id_Kk, id_Kn), (self.known_Kk, known_Kn)):
            table_Kk[keys] = of_Kn.gather(1, order_Kk)

    def copy(self) -> BestOnDevice:
        """Return lists that stay as these are now."""
        return BestOnDevice(self.score_Kk.clone(), self.entity_id_Kk.clone(), self.known_Kk.clone())

    @property
    def tables(self) -> tuple[Tensor, Tensor, Tensor]:
        """What `listed` is given on the host."""
        return self.score_Kk, self.entity_id_Kk, self.known_Kk


def listed(*tables: Tensor) -> list[np.ndarray]:
    """Return (key, score, entity id, is known) of all candidates in lists that have come home."""
    score_Kk, entity_id_Kk, known_Kk = (of.numpy() for of in tables)
    key, place = np.nonzero(entity_id_Kk != NOBODY)
    return [key, *(of[key, place] for of in (score_Kk, entity_id_Kk, known_Kk))]


def _are_among(column_Kk: Tensor, num_columns: int, code_P: Tensor) -> Tensor:
    """Tell of some columns of each row whether they are among cells, given by row * C + column, which ascend."""
    if not code_P.numel():
        return torch.zeros_like(column_Kk, dtype=torch.bool)
    code_Kk = column_Kk + torch.arange(len(column_Kk), device=code_P.device).unsqueeze(1) * num_columns
    place_Kk = torch.searchsorted(code_P, code_Kk).clamp_(max=code_P.numel() - 1)
    return code_P[place_Kk] == code_Kk


def _best_columns(scores_KC: Tensor, k: int, out_code_P: Tensor) -> tuple[Tensor, Tensor]:
    """Return the columns of the k best scores of each row (fewer if there are no more columns), and which are left out.

    Of equal scores the lower columns are taken, which `topk` does not promise: it is asked for the k-th best score, and
    then for the lowest columns of those above it and, after them, of those that have it.

    Args:
        scores_KC: of a block.
        k: at least 1.
        out_code_P: row * C + column of cells that are left out; they fill what no other candidate does.
    """
    num_columns = scores_KC.shape[1]
    k = min(k, num_columns)
    if out_code_P.numel():
        scores_KC = scores_KC.clone()
        scores_KC.view(-1)[out_code_P] = -torch.inf
    limit_K1 = scores_KC.topk(k, dim=1).values[:, -1:]
    order_KC = (scores_KC > limit_K1).int()
    order_KC += scores_KC >= limit_K1
    order_KC *= num_columns
    order_KC -= torch.arange(num_columns, dtype=torch.int32, device=scores_KC.device)
    order_KC.view(-1)[out_code_P] = -num_columns
    chosen = order_KC.topk(k, dim=1)
    return chosen.indices, chosen.values == -num_columns
