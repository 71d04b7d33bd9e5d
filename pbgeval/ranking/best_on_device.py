"""Blocks of scores on a GPU -> the k best candidates of each key, kept there until they are delivered.

The same candidates as those of `TopCandidates` on a CPU: of equal scores, the lower entity id comes first. Nothing is
answered to the host for a block, so it never waits.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pbgeval.scoring import device_lists
from pbgeval.storage.transfers import sent


def empty_lists(shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Return lists (see `device_lists.merge_best`) of shape (keys, candidates to keep)."""
    return torch.zeros((3, *shape), dtype=torch.int64, device=device)


def add_best(
    lists_3Kk: Tensor,
    first_key: int,
    scores_KC: Tensor,
    entity_ids_C: np.ndarray,
    known: tuple[np.ndarray, np.ndarray],
    is_out_P: np.ndarray,
) -> None:
    """Merge the candidates of a block into lists, as `TopCandidates.add` does; some of the known answers are left out.

    `topk` does not promise to take the lower columns of equal scores: it is asked for the k-th best score, and then
    for the lowest columns of those above it and, after them, of those that have it.
    """
    scores_KC = scores_KC.contiguous()  # as the kernels read them
    num_keys, num_columns = scores_KC.shape
    k = min(lists_3Kk.shape[2], num_columns)
    known_code = known[0] * num_columns + known[1]  # ascend
    parts = entity_ids_C, known_code, known_code[is_out_P]
    moved = sent(torch.from_numpy(np.concatenate(parts)), scores_KC.device)  # one copy
    id_C, known_code_P, out_code_P = torch.split(moved, [len(of) for of in parts])
    if out_code_P.numel():
        scores_KC = scores_KC.clone()
        scores_KC.view(-1)[out_code_P] = -torch.inf
    order_KC = device_lists.order_columns(scores_KC, scores_KC.topk(k, dim=1).values)
    if out_code_P.numel():  # they fill what no other candidate does
        order_KC.view(-1)[out_code_P] = -num_columns
    merged_3Kk = device_lists.merge_best(lists_3Kk, first_key, order_KC.topk(k, dim=1), scores_KC, id_C, known_code_P)
    lists_3Kk[:, first_key : first_key + num_keys] = merged_3Kk


def listed(lists_3Kk: Tensor) -> list[np.ndarray]:
    """Return (key, score, entity id, is known) of all candidates in lists that were delivered."""
    bits_Kk, number_Kk, known_Kk = lists_3Kk.numpy()
    at = np.nonzero(number_Kk)
    return [at[0], bits_Kk.view(np.float64)[at], number_Kk[at] - 1, known_Kk[at] != 0]
