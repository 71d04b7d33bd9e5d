from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pbgeval.ranking.cells import CellSample

cells = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=15)


def as_pairs(query: np.ndarray, number: np.ndarray) -> list[tuple[int, int]]:
    return list(zip(query.tolist(), number.tolist(), strict=True))


@given(cells, st.sets(st.integers(0, 9), min_size=1), st.integers(0, 6), st.integers(0, 6))
def test_the_cells_of_a_range_of_candidates_and_of_queries_are_found(pairs, numbers, first, stop):
    """`numbers` may have gaps: the cells in them lie in other queries, and are left to the caller."""
    query, number = np.array(pairs, np.int64).reshape(-1, 2).T
    within = CellSample.by_number(query, number).within(np.array(sorted(numbers)))

    in_range = [pair for pair in pairs if min(numbers) <= pair[1] <= max(numbers)]
    assert sorted(in_range) == sorted(as_pairs(within.query_P, within.number_P))
    expected = [pair for pair in in_range if first <= pair[0] < stop]
    assert sorted(expected) == sorted(as_pairs(*within.of_queries(first, max(first, stop))))
