"""Queries -> how many entities of the bucket's partition might compete in them, of which sampled lists draw some."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from pbgeval.notation import Side
from pbgeval.ranking.chunks import concatenated_ranges
from pbgeval.ranking.constraints import is_among
from pbgeval.ranking.groups import Group
from pbgeval.ranking.settings import KnownInUnit


def num_competitors(group: Group, hidden: Side, rows_Q: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Count the entities of its partition that might compete in each query of some edges, the true one not among them.

    Only meaningful where the true entity itself may compete.

    Returns:
        How many there are, as `candidates = "partition"` would have them, int64; and how many known answers are among
        them, each once; 0 where nothing is filtered.
    """
    all_Q = _num_allowed(group, hidden, rows_Q) - 1
    known = group.competition.known
    if known is None:
        return all_Q, np.zeros_like(all_Q)
    return all_Q, _num_known(group, hidden, rows_Q, known[hidden])


def _num_allowed(group: Group, hidden: Side, rows_Q: Tensor) -> np.ndarray:
    sets, rel_Q = group.competition.sets, group.edges.rel[rows_Q].numpy()
    if sets is None or not sets.by_relation:
        allowed = group.allowed_rows(hidden, -1)
        return np.full(len(rel_Q), group.side(hidden).table.num_rows if allowed is None else len(allowed), np.int64)
    relations, relation_of_Q = np.unique(rel_Q, return_inverse=True)
    rows = [group.allowed_rows(hidden, relation) for relation in relations.tolist()]
    num_allowed = np.array([group.side(hidden).table.num_rows if of is None else len(of) for of in rows], np.int64)
    return num_allowed[relation_of_Q]


def _num_known(group: Group, hidden: Side, rows_Q: Tensor, known: KnownInUnit) -> np.ndarray:
    """Count each key's answers once, however many queries it has, then take off a query's own."""
    rel_Q, true_Q = group.edges.rel[rows_Q].numpy(), group.side(hidden).ids_E[rows_Q].numpy()
    keys, first_Q, key_of_Q = np.unique(known.key_E[rows_Q.numpy()], return_index=True, return_inverse=True)
    low, high = np.searchsorted(known.key_P, keys), np.searchsorted(known.key_P, keys, "right")
    row_P = known.row_P[concatenated_ranges(low, high - low)]
    key_P = np.repeat(np.arange(len(keys)), high - low)
    competes_P = group.may_compete(hidden, rel_Q[first_Q][key_P], row_P)
    num_answers = np.bincount(key_P[competes_P], minlength=len(keys))
    num_rows = group.side(hidden).table.num_rows
    is_answer_Q = is_among(key_of_Q * num_rows + true_Q, key_P * num_rows + row_P)
    num_known_Q: np.ndarray = num_answers[key_of_Q] - is_answer_Q
    return num_known_Q
