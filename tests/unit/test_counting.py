from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pbgeval.ranking import counting
from pbgeval.ranking.counting import count
from tests import reference
from tests.kit.graphs import score_grids

pytestmark = pytest.mark.usefixtures("counting_path")


@st.composite
def blocks(draw):
    """True scores, scores and a mask of what does not compete, at times all of a row."""
    true_Q, scores_QC = draw(score_grids())
    cells = [(query, at) for query, row in enumerate(scores_QC) for at in range(len(row))]
    excluded = draw(st.sampled_from([[], cells])) or draw(st.lists(st.sampled_from(cells), unique=True, max_size=20))
    return true_Q, scores_QC, excluded


@given(blocks())
def test_counts_are_those_of_sorting(block):
    true_Q, scores_QC, excluded = block
    out = set(excluded)
    kept = [[s for at, s in enumerate(row) if (query, at) not in out] for query, row in enumerate(scores_QC)]
    indices = torch.tensor(excluded, dtype=torch.int64).reshape(-1, 2).unbind(1)

    counts = count(torch.tensor(scores_QC), torch.tensor(true_Q), excluded=indices).raw

    expected = [reference.counts_by_sorting(true, row) for true, row in zip(true_Q, kept, strict=True)]
    assert list(zip(counts.better_Q.tolist(), counts.tied_Q.tolist(), strict=True)) == expected
    assert list(map(len, kept)) == counts.num_competitors_Q.tolist()


@pytest.mark.parametrize(
    ("scores_C", "true", "expected"),
    [
        (torch.tensor([1.0, 2.0, 3.0, 2.0]), 2.0, [1, 2, 4]),
        (torch.arange(1 << 20, dtype=torch.float32), 0.0, [(1 << 20) - 1, 1, 1 << 20]),
        (torch.tensor([1.0, 1.0 + 2**-40, 1.0 - 2**-40], dtype=torch.float64), 1.0, [1, 1, 3]),
    ],
    ids=["ties", "a million", "differences of float64"],
)
def test_counts_by_hand(scores_C, true, expected):
    counts = count(scores_C[None], torch.tensor([true], dtype=scores_C.dtype)).raw
    columns = (counts.better_Q, counts.tied_Q, counts.num_competitors_Q)

    assert [int(column) for column in columns] == expected
    assert {torch.int64} == {column.dtype for column in columns}


def test_empty_blocks_count_nothing():
    none = count(torch.empty(2, 0), torch.zeros(2)).raw

    assert (none.better_Q.tolist(), none.tied_Q.tolist(), none.num_competitors_Q.tolist()) == ([0, 0], [0, 0], [0, 0])
    assert count(torch.empty(0, 3), torch.empty(0)).raw.better_Q.numel() == 0


def test_a_block_beyond_exact_float32_counts_is_refused(monkeypatch):
    monkeypatch.setattr(counting, "MAX_CANDIDATES", 3)

    with pytest.raises(ValueError, match="a block of 4 candidates"):
        count(torch.zeros(1, 4), torch.zeros(1))


@given(score_grids(), st.randoms(use_true_random=False), st.sampled_from([torch.float32, torch.float64]))
def test_each_query_is_compared_with_the_row_of_its_key(grid, random, dtype):
    """With columns that do not belong to the block."""
    true_K, scores_KC = grid
    rows = [random.randrange(len(scores_KC)) for _ in range(random.randrange(1, 9))]
    true_Q = [true_K[random.randrange(len(true_K))] for _ in rows]
    own_Q = [random.randrange(len(scores_KC[0])) for _ in rows]
    wider = torch.full((len(scores_KC), len(scores_KC[0]) + 3), 9.0, dtype=dtype)
    wider[:, 1:-2] = torch.tensor(scores_KC, dtype=dtype)

    found = count(
        wider[:, 1:-2],
        torch.tensor(true_Q, dtype=dtype),
        row_Q=torch.tensor(rows, dtype=torch.int64),
        own_Q=torch.tensor(own_Q),
    ).raw

    expected = [
        reference.counts_by_sorting(true, [s for at, s in enumerate(scores_KC[row]) if at != own])
        for row, true, own in zip(rows, true_Q, own_Q, strict=True)
    ]
    assert list(zip(found.better_Q.tolist(), found.tied_Q.tolist(), strict=True)) == expected
    assert {len(scores_KC[0]) - 1} == set(found.num_competitors_Q.tolist())


def test_zeros_of_both_signs_tie():
    counts = count(torch.tensor([[-0.0, 0.0]] * 2), torch.tensor([0.0, -0.0])).raw

    assert (counts.better_Q.tolist(), counts.tied_Q.tolist()) == ([0, 0], [2, 2])


def test_scores_that_are_not_contiguous_are_counted_all_the_same():
    scores_QC = torch.arange(24.0).view(4, 6)[:, 1:5]

    counts = count(scores_QC, torch.tensor([2.0, 0.0, 100.0, 20.0])).raw

    assert (counts.better_Q.tolist(), counts.tied_Q.tolist()) == ([2, 4, 0, 2], [1, 0, 0, 1])


def test_counts_are_exact_at_a_million_candidates():
    scores = torch.arange(1 << 20, dtype=torch.float32)[None]

    counts = count(scores, torch.tensor([0.0])).raw

    assert (int(counts.better_Q), int(counts.tied_Q)) == ((1 << 20) - 1, 1)
