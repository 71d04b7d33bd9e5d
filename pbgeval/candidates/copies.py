"""True entities and lists of candidates -> the cells where a candidate is the true entity again.

Exclusion is by identity. Sorting finds the copies in time linear in the list, where comparing every candidate with
every true entity of a chunk would cost as much as the scores themselves for long lists.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def copies_of_true(true_BQ: Tensor, candidate_BC: Tensor, num_batch: int) -> tuple[Tensor, Tensor]:
    """Return (query, candidate) of every copy of a query's true entity in its chunk's list.

    Queries are numbered through all chunks (b * Q + q), candidates within their list.

    Args:
        true_BQ: the true entity of each query, a non-negative int64 identity.
        candidate_BC: the candidates of each chunk.
        num_batch: Q when the list begins with the true entities themselves (query q's own entry, candidate q,
            is then not reported), 0 when it does not hold them.
    """
    num_chunks, num_queries = true_BQ.shape
    entries_BM = (candidate_BC if num_batch else torch.cat([true_BQ, candidate_BC], dim=1)).numpy()
    num_entries = entries_BM.shape[1]
    stride = int(entries_BM.max(initial=0)) + 1
    keys_M = (entries_BM + (np.arange(num_chunks, dtype=np.int64) * stride)[:, None]).ravel()
    order_M = np.argsort(keys_M)
    sorted_M = keys_M[order_M]
    begins_M = np.flatnonzero(np.r_[True, sorted_M[1:] != sorted_M[:-1]]) if len(sorted_M) else np.empty(0, np.int64)
    lengths_M = np.diff(np.r_[begins_M, len(sorted_M)])
    repeated = lengths_M > 1
    begins_M, lengths_M = begins_M[repeated], lengths_M[repeated]

    # Every member of a run that is a query, against every other member of the run that is a candidate.
    members = order_M[_ranges(begins_M, lengths_M)]
    begin_of_member = np.repeat(begins_M, lengths_M)
    length_of_member = np.repeat(lengths_M, lengths_M)
    is_query = members % num_entries < num_queries
    members, begin_of_member = members[is_query], begin_of_member[is_query]
    length_of_member = length_of_member[is_query]
    query_entry = np.repeat(members, length_of_member)
    candidate_entry = order_M[_ranges(begin_of_member, length_of_member)]
    candidate = candidate_entry % num_entries - (0 if num_batch else num_queries)
    kept = (candidate_entry != query_entry) & (candidate >= 0)
    query_entry, candidate = query_entry[kept], candidate[kept]
    query = query_entry // num_entries * num_queries + query_entry % num_entries
    return torch.from_numpy(query), torch.from_numpy(candidate)


def _ranges(begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Concatenate range(begin, begin + length) of each pair."""
    total = int(lengths.sum())
    starts_of_runs = np.repeat(begins - np.r_[0, np.cumsum(lengths)[:-1]], lengths) if total else np.empty(0, np.int64)
    return np.arange(total, dtype=np.int64) + starts_of_runs
