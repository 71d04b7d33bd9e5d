from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pbgeval.ranking import counting
from pbgeval.ranking.counting import count, count_known, expand_by_row
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


def slow_counts(true: float, scores: list[float]) -> tuple[int, int, int]:
    return sum(score > true for score in scores), sum(score == true for score in scores), len(scores)


def as_tuples(counts: RankCounts) -> list[tuple[int, ...]]:
    assert counts.better_Q.dtype == counts.tied_Q.dtype == counts.num_competitors_Q.dtype == torch.int64
    columns = (counts.better_Q, counts.tied_Q, counts.num_competitors_Q)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def indices(values: list[tuple[int, ...]], width: int = 2) -> tuple[torch.Tensor, ...]:
    return torch.tensor(values, dtype=torch.int64).reshape(-1, width).unbind(1)


@given(blocks(), st.sampled_from([torch.float32, torch.float64]))
def test_candidates_and_known_answers_of_a_row_count_for_each_of_its_queries_but_as_its_own(block, dtype):
    """Beside columns that do not belong to the block."""
    scores, queries, cells = block
    wider = torch.full((len(scores), len(scores[0]) + 3), 9.0, dtype=dtype)
    wider[:, 1:-2] = torch.tensor(scores, dtype=dtype)
    row_Q, own_Q = indices([(row, own) for row, _, own in queries])
    true_Q = torch.tensor([true for _, true, _ in queries], dtype=dtype)

    found = count(wider[:, 1:-2], true_Q, row_Q=row_Q, own_Q=own_Q, known=indices(cells))

    every = [(row, column) for row, of in enumerate(scores) for column in range(len(of))]
    for counts, among in ((found.raw, every), (found.known, cells)):
        assert as_tuples(counts) == [
            slow_counts(true, [scores[row][column] for of, column in among if of == row and column != own])
            for row, true, own in queries
        ]


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


def test_scores_that_differ_only_in_float64_are_told_apart():
    close = [1.0, 1.0 + 2**-40, 1.0 - 2**-40, -0.0, 0.0]
    row_Q, own_Q = torch.zeros(3, dtype=torch.int64), torch.tensor([-1, 0, -(1 << 62)])
    true_Q = torch.tensor([1.0, 1.0 - 2**-40, 0.0], dtype=torch.float64)
    known = torch.zeros(5, dtype=torch.int64), torch.arange(5)

    found = count(torch.tensor([close], dtype=torch.float64), true_Q, row_Q=row_Q, own_Q=own_Q, known=known).known

    assert as_tuples(found) == [(1, 1, 5), (1, 1, 4), (3, 2, 5)]


def test_hubs_are_counted_a_few_queries_at_a_time(monkeypatch):
    """Many queries of one key with many answers."""
    score_P, known = torch.arange(50.0), (torch.zeros(50, dtype=torch.int64), torch.arange(50))
    row_Q, own_Q = torch.zeros(40, dtype=torch.int64), torch.arange(40)
    whole = count_known(score_P, known, row_Q, own_Q, own_Q.float(), own_Q.float())
    monkeypatch.setattr(counting, "CELLS_OF_GPU_AT_A_TIME", 8 * 50 * 3)

    assert as_tuples(whole) == as_tuples(count_known(score_P, known, row_Q, own_Q, own_Q.float(), own_Q.float()))
    assert [(49 - own, 0, 49) for own in range(40)] == as_tuples(whole)


@given(st.lists(st.integers(0, 4), max_size=8), st.lists(st.integers(0, 4), max_size=8))
def test_queries_are_paired_with_every_entry_of_their_row(rows, entries):
    entries.sort()
    expected = [(query, at) for query, row in enumerate(rows) for at, of in enumerate(entries) if of == row]

    found = expand_by_row(torch.tensor(rows, dtype=torch.int64), torch.tensor(entries, dtype=torch.int64))

    assert list(zip(*(index.tolist() for index in found), strict=True)) == expected
