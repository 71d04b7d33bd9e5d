"""Edges of a bucket -> which of them are held out of training.

The side of an edge is a hash of (seed, relation, entity types, partitions, rows) and of nothing else: the same at every
epoch, in every chunk and path, on every worker and machine, and all copies of an edge fall on one side.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from attrs import frozen

from pbgeval.errors import ConfigError, DataError

ROWS_AT_A_TIME = 1 << 15  # so that the words in hand stay in cache; changes no number
NUM_HASHES = 1 << 64


@frozen
class EndTypes:
    """What an edge's two rows mean: entity types and partitions (0 where a type has one)."""

    lhs: str
    lhs_partition: int
    rhs: str
    rhs_partition: int


def threshold_of(fraction: float) -> int:
    """Return how many of the 2^64 hashes are held out: the exact value of the fraction, rounded down.

    Raises:
        ConfigError: it is not in [0, 1): with 1 no edge would be trained on.
    """
    if not (isinstance(fraction, int | float) and 0 <= fraction < 1):
        raise ConfigError(
            f"eval_fraction: expected a number from 0 (nothing is held out) to below 1, got {fraction!r}; "
            "with 1 no edge would be left to train on"
        )
    return math.floor(Fraction(fraction) * NUM_HASHES)


def hash_edges(
    seed: int, ends_of_relation: Sequence[EndTypes], lhs_E: np.ndarray, rel_E: np.ndarray, rhs_E: np.ndarray
) -> np.ndarray:
    """Return the hash of each edge, uint64 (E,).

    Args:
        seed: another one draws other edges.
        ends_of_relation: of each relation; a single one holds for all, however many there are.
        lhs_E: row of the left entity in its partition, int64.
        rel_E: relation, int64.
        rhs_E: row of the right entity in its partition, int64.

    Raises:
        DataError: a relation out of range.
    """
    words_of = {ends: _word(f"pbgeval holdout {seed}", ends) for ends in set(ends_of_relation)}
    words_R = np.array([words_of[ends] for ends in ends_of_relation], np.uint64)
    hashes_E = np.empty(len(rel_E), np.uint64)
    for start in range(0, len(rel_E), ROWS_AT_A_TIME):
        part = slice(start, start + ROWS_AT_A_TIME)
        hashes_E[part] = _hash(words_R, lhs_E[part], rel_E[part], rhs_E[part])
    return hashes_E


def _word(prefix: str, ends: EndTypes) -> int:
    # Types are any text, so each is preceded by its length.
    name = f"{prefix} {len(ends.lhs)}:{ends.lhs} {ends.lhs_partition} {len(ends.rhs)}:{ends.rhs} {ends.rhs_partition}"
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def _hash(words_R: np.ndarray, lhs_E: np.ndarray, rel_E: np.ndarray, rhs_E: np.ndarray) -> np.ndarray:
    if len(words_R) == 1:
        state_E = np.full(len(rel_E), words_R[0])
    else:
        if len(rel_E) and not (rel_E.min() >= 0 and rel_E.max() < len(words_R)):
            at = int(np.flatnonzero((rel_E < 0) | (rel_E >= len(words_R)))[0])
            raise DataError(f"rel: expected a relation in 0..{len(words_R) - 1}, got {int(rel_E[at])}")
        state_E = words_R[rel_E]
    for column_E in (rel_E, lhs_E, rhs_E):
        state_E = mixed(state_E ^ column_E.astype(np.uint64))
    return state_E


def mixed(words: np.ndarray) -> np.ndarray:
    """Permute 64-bit words so that each bit depends on all (SplitMix64; Steele et al., 2014)."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed_words: np.ndarray = words ^ (words >> np.uint64(31))
    return mixed_words


def held_out_rows(hash_E: np.ndarray, threshold: int) -> np.ndarray:
    """Return the positions of the edges that are held out, int64, ascending."""
    return np.flatnonzero(hash_E < np.uint64(threshold))


def sample_of_rest(hash_E: np.ndarray, threshold: int, num_edges: int) -> np.ndarray:
    """Return the positions, ascending, of as many edges as asked for that are not held out: those next by hash.

    All of them where there are fewer.
    """
    rest = np.flatnonzero(hash_E >= np.uint64(threshold))
    if num_edges >= len(rest):
        return rest
    of_rest = hash_E[rest]
    last = np.partition(of_rest, num_edges)[num_edges]  # the first hash that is not needed any more
    below, ties = rest[of_rest < last], rest[of_rest == last]
    chosen: np.ndarray = np.sort(np.concatenate([below, ties[: num_edges - len(below)]]))
    return chosen
