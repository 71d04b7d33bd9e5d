"""Known answers of queries and their lists of candidates -> the cells where a candidate is a known answer.

Either way to find them is bounded: a query with few answers looks each one up in its chunk's list, a query with more
answers than the list is long (a hub) looks the list up among its answers.
"""

from __future__ import annotations

import numpy as np

from pbgeval.ranking.chunks import concatenated_ranges
from pbgeval.ranking.constraints import is_among


def known_cells(
    key_BQ: np.ndarray, true_BQ: np.ndarray, candidate_BC: np.ndarray, key_P: np.ndarray, row_P: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return (query, candidate) of every candidate that is a known answer other than the query's true entity.

    Queries are numbered through all chunks (b * Q + q), candidates within their list; cells are ordered by query.

    Args:
        key_BQ: int64, index of each query's key.
        true_BQ: int64, the true entity of each query.
        candidate_BC: int64, the candidates of each chunk; an entity may occur again.
        key_P: int64, ascending: key of each known answer.
        row_P: int64, ascending within a key: the answer.
    """
    num_queries = key_BQ.shape[1]
    list_length = candidate_BC.shape[1]
    key_Q = key_BQ.reshape(-1)
    first_Q, stop_Q = np.searchsorted(key_P, key_Q), np.searchsorted(key_P, key_Q, "right")
    is_hub_Q = stop_Q - first_Q > list_length
    few = np.flatnonzero(~is_hub_Q)
    parts = [_by_answer(few, first_Q[few], stop_Q[few], num_queries, candidate_BC, row_P)]
    hubs = np.flatnonzero(is_hub_Q)
    if hubs.size:
        parts.append(_by_candidate(hubs, key_Q[hubs], num_queries, candidate_BC, key_P, row_P))
    query, candidate = (np.concatenate(of) for of in zip(*parts, strict=True))
    others = candidate_BC[query // num_queries, candidate] != true_BQ.reshape(-1)[query]
    query, candidate = query[others], candidate[others]
    order = np.argsort(query * list_length + candidate)
    return query[order], candidate[order]


def _by_answer(
    queries: np.ndarray,
    first: np.ndarray,
    stop: np.ndarray,
    num_queries: int,
    candidate_BC: np.ndarray,
    row_P: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Look every answer of the queries up in their chunk's list."""
    num_chunks, list_length = candidate_BC.shape
    width = max(int(candidate_BC.max(initial=0)), int(row_P.max(initial=0))) + 1
    codes = (candidate_BC + np.arange(num_chunks, dtype=np.int64)[:, None] * width).reshape(-1)
    order = np.argsort(codes)
    sorted_codes = codes[order]
    query = np.repeat(queries, stop - first)
    answer = row_P[concatenated_ranges(first, stop - first)]
    wanted = query // num_queries * width + answer
    low, high = np.searchsorted(sorted_codes, wanted), np.searchsorted(sorted_codes, wanted, "right")
    at = concatenated_ranges(low, high - low)
    return np.repeat(query, high - low), order[at] % list_length


def _by_candidate(
    queries: np.ndarray,
    key: np.ndarray,
    num_queries: int,
    candidate_BC: np.ndarray,
    key_P: np.ndarray,
    row_P: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Look every candidate of the queries up among their answers."""
    width = max(int(candidate_BC.max(initial=0)), int(row_P.max(initial=0))) + 1
    codes = key[:, None] * width + candidate_BC[queries // num_queries]
    at, candidate = np.nonzero(is_among(codes, key_P * width + row_P))
    return queries[at], candidate
