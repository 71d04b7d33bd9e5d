"""True entities and lists of candidates -> the cells where a candidate is the true entity again.

Exclusion is by identity. Sorting each list finds the copies in time almost linear in the list, where comparing every
candidate with every true entity of a chunk would cost as much as the scores themselves for long lists.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pbgeval.ranking.chunks import concatenated_ranges


def copies_of_true(true_BQ: Tensor, candidate_BC: Tensor, num_batch: int) -> tuple[Tensor, Tensor]:
    """Return (query, candidate) of every copy of a query's true entity in its chunk's list, in that order.

    Queries are numbered through all chunks (b * Q + q), candidates within their list.

    Args:
        true_BQ: the true entity of each query, an int64 identity in 0 .. 2^40.
        candidate_BC: the candidates of each chunk.
        num_batch: Q when the list begins with the true entities themselves (query q's own entry, candidate q,
            is then not reported), 0 when it does not hold them.
    """
    num_queries = true_BQ.shape[1]
    entries_BM = (candidate_BC if num_batch else torch.cat([true_BQ, candidate_BC], dim=1)).numpy()
    chunk, identity, entry = _repeated_entries(entries_BM)

    # Runs of equal entries of one chunk: every query of a run against every other member that is a candidate.
    begins = np.flatnonzero(np.r_[True, (chunk[1:] != chunk[:-1]) | (identity[1:] != identity[:-1])][: len(chunk)])
    lengths = np.diff(np.r_[begins, len(chunk)])
    begin_of, length_of = np.repeat(begins, lengths), np.repeat(lengths, lengths)
    queries = np.flatnonzero(entry < num_queries)
    begin_of, length_of = begin_of[queries], length_of[queries]
    query_member = np.repeat(queries, length_of)
    candidate_member = concatenated_ranges(begin_of, length_of)
    candidate = entry[candidate_member] - (0 if num_batch else num_queries)
    kept = (candidate_member != query_member) & (candidate >= 0)
    query = (chunk[query_member] * num_queries + entry[query_member])[kept]
    order = np.argsort(query, kind="stable")
    return torch.from_numpy(query[order]), torch.from_numpy(candidate[kept][order])


def _repeated_entries(entries_BM: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (row, value, position) of the entries whose value occurs again in their row, ordered by row and value."""
    num_entries = entries_BM.shape[1]
    position_bits = max(num_entries - 1, 1).bit_length()
    packed_BM = (entries_BM << position_bits) | np.arange(num_entries, dtype=np.int64)
    packed_BM.sort(axis=1)
    values_BM = packed_BM >> position_bits
    equal_BM = values_BM[:, 1:] == values_BM[:, :-1]
    repeated_BM = np.zeros(entries_BM.shape, bool)
    repeated_BM[:, 1:] = equal_BM
    repeated_BM[:, :-1] |= equal_BM
    row, at = np.nonzero(repeated_BM)
    return row, values_BM[row, at], packed_BM[row, at] & ((1 << position_bits) - 1)
