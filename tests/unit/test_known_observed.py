from __future__ import annotations

import numpy as np
import pytest

from pbgeval.notation import Side
from pbgeval.ranking import keys as codes
from pbgeval.ranking.keys import EdgeColumns
from pbgeval.ranking.known_answers import ObservedEntities

NUM_ENTITIES = 5


def block_of(of: list[tuple[int, int, int]]) -> EdgeColumns:
    return EdgeColumns(*(column.copy() for column in np.array(of, np.int64).reshape(-1, 3).T))


def test_memory_follows_the_distinct_pairs(monkeypatch):
    monkeypatch.setattr(codes, "MIN_NEW_CODES", 100)
    observed = ObservedEntities(np.array([0]), NUM_ENTITIES)

    for _ in range(500):
        observed.feed(block_of([(0, 0, 1), (2, 0, 1)]))

    held = observed._seen[Side.LHS]
    assert held._num_new <= 100
    assert (observed.codes(Side.LHS).tolist(), observed.codes(Side.RHS).tolist()) == ([0, 2], [1])


def test_codes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="do not fit in int64"):
        ObservedEntities(np.array([3]), 1 << 62)
