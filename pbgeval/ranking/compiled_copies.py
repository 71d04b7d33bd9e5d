"""Copies of true entities by a compiled loop: each list becomes a hash table, in which each true entity is looked up.

The fast path of `copies`; a property test holds the two to the same cells in the same order.
"""

from __future__ import annotations

import numpy as np

from pbgeval.jit import CompiledLoop, is_installed

ENTRIES_WORTH_COMPILING = 1 << 17  # of the first block for which numba is imported
_SPARE = 1 << 10  # cells for which there is room before any are known


def serves(num_entries: int) -> bool:
    """Tell whether the compiled loop takes lists of so many entries in all: if it is worth it."""
    return (_FIND.is_loaded or num_entries >= ENTRIES_WORTH_COMPILING) and is_installed()


def find_copies(true_BQ: np.ndarray, list_BC: np.ndarray, num_batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Do what `copies.copies_of_true` does, on arrays of int64; candidates of a query are in increasing order."""
    num_entries = list_BC.shape[1]
    bits = max(2 * num_entries, 2).bit_length()
    head, following = np.empty(1 << bits, np.int64), np.empty(max(num_entries, 1), np.int64)
    room = _SPARE
    while True:
        query, candidate = np.empty(room, np.int64), np.empty(room, np.int64)
        found = _FIND(true_BQ, list_BC, num_batch, 64 - bits, head, following, query, candidate)
        if found <= room:
            return query[:found].copy(), candidate[:found].copy()
        room = found


def _find(true_BQ, list_BC, num_batch, shift, head, following, query_P, candidate_P):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    """Write the cells for which there is room; return how many there are."""
    spread = np.uint64(0x9E3779B97F4A7C15)  # an odd multiple of 2^64 over the golden ratio: high bits depend on all
    found = 0
    for chunk in range(true_BQ.shape[0]):
        head[:] = -1
        for entry in range(list_BC.shape[1] - 1, -1, -1):  # backwards, so that chains run forwards
            slot = np.int64((np.uint64(list_BC[chunk, entry]) * spread) >> np.uint64(shift))
            following[entry] = head[slot]
            head[slot] = entry
        for query in range(true_BQ.shape[1]):
            true = true_BQ[chunk, query]
            entry = head[np.int64((np.uint64(true) * spread) >> np.uint64(shift))]
            while entry >= 0:
                if list_BC[chunk, entry] == true and (num_batch == 0 or entry != query):
                    if found < query_P.size:
                        query_P[found] = chunk * true_BQ.shape[1] + query
                        candidate_P[found] = entry
                    found += 1
                entry = following[entry]
    return found


_FIND = CompiledLoop(_find)
