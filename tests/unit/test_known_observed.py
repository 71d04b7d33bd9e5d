from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pbgeval.notation import ENDS, Side
from pbgeval.ranking import keys as codes
from pbgeval.ranking.keys import EdgeColumns
from pbgeval.ranking.known_answers import ObservedEntities

NUM_ENTITIES = 5
edges = st.lists(st.tuples(st.integers(0, NUM_ENTITIES - 1), st.integers(0, 4), st.integers(0, NUM_ENTITIES - 1)))


def block_of(of: list[tuple[int, int, int]]) -> EdgeColumns:
    return EdgeColumns(*(column.copy() for column in np.array(of, np.int64).reshape(-1, 3).T))


@given(edges, st.sets(st.integers(0, 6)), st.integers(1, 7), st.integers(1, 5))
def test_what_is_seen_equals_a_set_whatever_the_blocks_and_workers(known, relations, block_size, fewest_new):
    wanted = np.array(sorted(relations), np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codes, "MIN_NEW_CODES", fewest_new)
        workers = [ObservedEntities(wanted, NUM_ENTITIES) for _ in range(2)]
        for i, start in enumerate(range(0, len(known), block_size)):
            workers[i % 2].feed(block_of(known[start : start + block_size]))
    for side in ENDS:
        together = np.union1d(*(worker.codes(side) for worker in workers))
        seen = {(rel, side.pick(lhs, rhs)) for lhs, rel, rhs in known if rel in relations}
        assert [rel * NUM_ENTITIES + entity for rel, entity in sorted(seen)] == together.tolist()


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
