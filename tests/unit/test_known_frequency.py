from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pbgeval.notation import Side
from pbgeval.ranking.keys import EdgeColumns
from pbgeval.ranking.known_answers import KeyFrequency

NUM_ENTITIES = 5
edges = st.lists(st.tuples(st.integers(0, NUM_ENTITIES - 1), st.integers(0, 2), st.integers(0, NUM_ENTITIES - 1)))


def blocks_of(of: list[tuple[int, int, int]], size: int) -> list[EdgeColumns]:
    columns = np.array(of, np.int64).reshape(-1, 3).T
    return [EdgeColumns(*columns[:, start : start + size].copy()) for start in range(0, max(len(of), 1), size)]


@given(edges, st.integers(1, 9), st.sampled_from(Side))
def test_frequencies_equal_a_counter_whatever_the_blocks(evaluated, block_size, hidden):
    counter = Counter((rel, hidden.other.pick(lhs, rhs)) for lhs, rel, rhs in evaluated)
    frequency = KeyFrequency.of_blocks(hidden, blocks_of(evaluated, block_size), NUM_ENTITIES)
    whole = blocks_of(evaluated, len(evaluated) + 1)[0]

    found = frequency.of(whole.rel_n, whole.entity(hidden.other))
    assert [counter[rel, hidden.other.pick(lhs, rhs)] for lhs, rel, rhs in evaluated] == found.tolist()
    repeated = sorted((rel * NUM_ENTITIES + entity, count) for (rel, entity), count in counter.items() if count > 1)
    assert repeated == list(zip(frequency.codes_K.tolist(), frequency.counts_K.tolist(), strict=True))


def test_codes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="do not fit in int64"):
        KeyFrequency.of_blocks(Side.LHS, blocks_of([(0, 2, 0)], 1), 1 << 62)
