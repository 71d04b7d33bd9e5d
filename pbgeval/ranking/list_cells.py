"""Queries and their lists of candidates -> the cells that are special: known answers, copies of true entities.

Either way to find known answers is bounded: a query with few answers looks each one up in its chunk's list, a query
with more answers than the list is long (a hub) looks the list up among its answers.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pbgeval.notation import Side
from pbgeval.ranking.chunks import concatenated_ranges
from pbgeval.ranking.groups import Group
from pbgeval.ranking.known_answers import KnownAnswers


def known_cells(
    key_BQ: np.ndarray, true_BQ: np.ndarray, candidate_BC: np.ndarray, known: KnownAnswers
) -> tuple[np.ndarray, np.ndarray]:
    """Return (query, candidate) of every candidate that is a known answer other than the query's true entity.

    Queries are numbered through all chunks (b * Q + q), candidates within their list; cells are ordered by query.

    Args:
        key_BQ: int64, index of each query's key.
        true_BQ: int64, the true entity of each query.
        candidate_BC: int64, the candidates of each chunk; an entity may occur again.
        known: the answers of all keys.
    """
    num_queries, list_length = key_BQ.shape[1], candidate_BC.shape[1]
    key_Q = key_BQ.reshape(-1)
    first_Q, length_Q = known.lists(key_Q)
    few, hubs = np.flatnonzero(length_Q <= list_length), np.flatnonzero(length_Q > list_length)
    answers = known.number_P[concatenated_ranges(first_Q[few], length_Q[few])]
    query, candidate = _listed(np.repeat(few, length_Q[few]), answers, num_queries, candidate_BC)
    if hubs.size:  # their lists are looked up among the answers
        of_hub, listed = np.nonzero(known.are_known(key_Q[hubs, None], candidate_BC[hubs // num_queries]))
        query, candidate = np.concatenate([query, hubs[of_hub]]), np.concatenate([candidate, listed])
    others = candidate_BC[query // num_queries, candidate] != true_BQ.reshape(-1)[query]
    query, candidate = query[others], candidate[others]
    order = np.argsort(query * list_length + candidate)
    return query[order], candidate[order]


def _listed(
    query_P: np.ndarray, answer_P: np.ndarray, num_queries: int, candidate_BC: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Look answers up in the lists of their queries' chunks: return (query, candidate) of each that is there."""
    num_chunks, list_length = candidate_BC.shape
    width = max(int(candidate_BC.max(initial=0)), int(answer_P.max(initial=0))) + 1
    codes = (candidate_BC + np.arange(num_chunks, dtype=np.int64)[:, None] * width).reshape(-1)
    order = np.argsort(codes)
    sorted_codes, code_P = codes[order], query_P // num_queries * width + answer_P
    low_P, high_P = np.searchsorted(sorted_codes, code_P), np.searchsorted(sorted_codes, code_P, "right")
    at = concatenated_ranges(low_P, high_P - low_P)
    return np.repeat(query_P, high_P - low_P), order[at] % list_length


# True entities and lists of candidates -> the cells where a candidate is the true entity again.
#
# Exclusion is by identity. Sorting each list finds the copies in time almost linear in the list, where comparing every
# candidate with every true entity of a chunk would cost as much as the scores themselves for long lists.


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


# Queries -> how many entities of the bucket's partition might compete in them, of which sampled lists draw some.


def num_competitors(group: Group, hidden: Side, rows_Q: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Count the entities of its partition that might compete in each query of some edges, the true one not among them.

    Only meaningful where the true entity itself may compete.

    Returns:
        How many there are, as `candidates = "partition"` would have them, int64; and how many known answers are among
        them, each once; 0 where nothing is filtered.
    """
    sets, known = group.competition.sets, group.competition.known
    rel_Q, true_Q = group.edges.rel[rows_Q].numpy(), group.side(hidden).ids_E[rows_Q].numpy()
    num_rows = group.side(hidden).table.num_rows
    by_relation = sets is not None and sets.by_relation
    relations, relation_of_Q = np.unique(rel_Q if by_relation else np.full_like(rel_Q, -1), return_inverse=True)
    allowed = [group.allowed_rows(hidden, relation) for relation in relations.tolist()]
    num_allowed = np.array([num_rows if rows is None else len(rows) for rows in allowed], np.int64)
    all_Q = num_allowed[relation_of_Q] - 1
    if known is None:
        return all_Q, np.zeros_like(all_Q)
    # Each key's answers are counted once, however many queries it has; then a query's own is taken off.
    key_Q = known[hidden].key_E[rows_Q.numpy()]
    keys, first_Q, key_of_Q = np.unique(key_Q, return_index=True, return_inverse=True)
    answers = known[hidden].answers.select(keys)
    competes_P = group.may_compete(hidden, rel_Q[first_Q][answers.key_P], answers.number_P)
    num_answers = np.bincount(answers.key_P[competes_P], minlength=len(keys))
    return all_Q, num_answers[key_of_Q] - answers.are_known(key_of_Q, true_Q)
