from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pbgeval.ranking import counting
from pbgeval.ranking.counting import count, count_known
from pbgeval.stats.ranks import RankCounts
from tests.kit.graphs import score_values

pytestmark = pytest.mark.usefixtures("counting_path")


@st.composite
def blocks(draw: st.DrawFn):
    """Rows of scores, queries that share them, each with a true score and at times its true entity in the block."""
    num_rows, num_columns = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    row = st.lists(score_values(), min_size=num_columns, max_size=num_columns)
    scores = draw(st.lists(row, min_size=num_rows, max_size=num_rows))
    query = st.tuples(st.integers(0, num_rows - 1), score_values(), st.integers(-1, num_columns - 1))
    cell = st.tuples(st.integers(0, num_rows - 1), st.integers(0, num_columns - 1))
    return scores, draw(st.lists(query, max_size=6)), sorted(draw(st.sets(cell)))


def as_tuples(counts: RankCounts) -> list[tuple[int, ...]]:
    assert counts.better_Q.dtype == counts.tied_Q.dtype == counts.num_competitors_Q.dtype == torch.int64
    columns = (counts.better_Q, counts.tied_Q, counts.num_competitors_Q)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def indices(values: list[tuple[int, ...]], width: int = 2) -> tuple[torch.Tensor, ...]:
    return torch.tensor(values, dtype=torch.int64).reshape(-1, width).unbind(1)


@pytest.mark.parametrize(
    ("scores_C", "true", "expected"),
    [
        (torch.tensor([1.0, 2.0, 3.0, 2.0]), 2.0, (1, 2, 4)),
        (torch.arange(1 << 20, dtype=torch.float32), 0.0, ((1 << 20) - 1, 1, 1 << 20)),
        (torch.tensor([1.0, 1.0 + 2**-40, 1.0 - 2**-40, -0.0], dtype=torch.float64), 1.0, (1, 1, 4)),
        (torch.empty(0), 0.0, (0, 0, 0)),
    ],
    ids=["ties", "a million", "differences of float64", "nobody"],
)
def test_counts_by_hand(scores_C, true, expected):
    every, of_query = indices([(0, at) for at in range(len(scores_C))]), indices([(0, -(1 << 62))])
    true_1 = torch.tensor([true], dtype=scores_C.dtype)

    found = count(scores_C[None], true_1, row_Q=of_query[0], own_Q=of_query[1], known=every)

    assert as_tuples(found.raw) == as_tuples(found.known) == [expected]


@given(blocks(), st.lists(score_values(), min_size=6, max_size=6))
def test_an_interval_of_scores_ties_where_one_is_given(block, others):
    """Both borders belong to it."""
    scores, queries, cells = block
    borders = [sorted((true, other)) for (_, true, _), other in zip(queries, others, strict=False)]
    expected = []
    for (row, _, own), (low, high) in zip(queries, borders, strict=True):
        known = [scores[row][column] for of, column in cells if of == row and column != own]
        expected.append((sum(x > high for x in known), sum(low <= x <= high for x in known), len(known)))
    row_Q, own_Q = indices([(row, own) for row, _, own in queries])
    low_Q, high_Q = torch.tensor(borders).reshape(-1, 2).unbind(1)

    assert (
        as_tuples(count(torch.tensor(scores), high_Q, low_Q, row_Q=row_Q, own_Q=own_Q, known=indices(cells)).known)
        == expected
    )


def test_hubs_are_counted_a_few_queries_at_a_time(monkeypatch):
    """Many queries of one key with many answers."""
    score_P, known = torch.arange(50.0), (torch.zeros(50, dtype=torch.int64), torch.arange(50))
    row_Q, own_Q = torch.zeros(40, dtype=torch.int64), torch.arange(40)
    whole = count_known(score_P, known, row_Q, own_Q, own_Q.float(), own_Q.float())
    monkeypatch.setattr(counting, "EXPANDED_AT_A_TIME", 50 * 3)

    assert as_tuples(whole) == as_tuples(count_known(score_P, known, row_Q, own_Q, own_Q.float(), own_Q.float()))
    assert [(49 - own, 0, 49) for own in range(40)] == as_tuples(whole)
