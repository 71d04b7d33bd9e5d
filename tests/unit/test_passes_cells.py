from __future__ import annotations

from collections import Counter

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from pbgeval.ranking.cells import CellSample, ScoreCollector
from pbgeval.stats.groups import order_image
from tests.kit.graphs import score_values

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


@st.composite
def blocks(draw: st.DrawFn):
    num_rows, num_queries, num_columns = (draw(st.integers(1, 4)) for _ in range(3))
    row = st.lists(score_values(), min_size=num_columns, max_size=num_columns)
    queries = st.lists(
        st.tuples(st.integers(0, num_rows - 1), st.integers(-3, num_columns + 2), row),
        min_size=num_queries,
        max_size=num_queries,
    )
    known = st.sets(st.tuples(st.integers(0, num_rows - 1), st.integers(0, num_columns - 1)))
    return draw(st.integers(0, 9)), draw(queries), draw(st.none() | known)


@given(st.lists(blocks(), max_size=3))
def test_every_cell_but_the_true_entities_is_collected(added):
    collector = ScoreCollector()
    expected: Counter[tuple[int, int, bool]] = Counter()
    for first, queries, known in added:
        scores = torch.tensor([row for _, _, row in queries])
        row_Q, own_Q = (torch.tensor([query[at] for query in queries]) for at in (0, 1))
        indices = torch.tensor(sorted(known or ()), dtype=torch.int64).reshape(-1, 2).unbind(1)
        collector.add_block(first, scores, own_Q, row_Q, None if known is None else indices)
        images = order_image(scores.flatten()).reshape(scores.shape).tolist()
        for at, (row, own, values) in enumerate(queries):
            for column in range(len(values)):
                if column != own:
                    expected[first + at, images[at][column], known is not None and (row, column) in known] += 1

    query, image, is_known = collector.images()

    assert (np.int64, np.int32, np.bool_) == (query.dtype, image.dtype, is_known.dtype)
    assert expected == Counter(zip(query.tolist(), image.tolist(), is_known.tolist(), strict=True))
