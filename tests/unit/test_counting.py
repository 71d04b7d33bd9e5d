from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from pbgeval.counting import general
from pbgeval.counting.general import BlockCounter
from tests import reference
from tests.strategies import score_grids


@st.composite
def blocks(draw):
    """True scores, scores and a mask of what does not compete, at times all of a row."""
    true_Q, scores_QC = draw(score_grids())
    cells = [(query, at) for query, row in enumerate(scores_QC) for at in range(len(row))]
    excluded = draw(st.sampled_from([[], cells])) or draw(st.lists(st.sampled_from(cells), unique=True, max_size=20))
    return true_Q, scores_QC, excluded


@given(st.lists(blocks(), min_size=1, max_size=3))
def test_counts_are_those_of_sorting(several):
    """One counter for blocks of many shapes: its buffer leaves nothing behind."""
    counter = BlockCounter()
    for true_Q, scores_QC, excluded in several:
        out = set(excluded)
        kept = [[s for at, s in enumerate(row) if (query, at) not in out] for query, row in enumerate(scores_QC)]
        indices = torch.tensor(excluded, dtype=torch.int64).reshape(-1, 2).unbind(1)

        counts = counter.count(torch.tensor(scores_QC), torch.tensor(true_Q), indices)

        expected = [reference.counts_by_sorting(true, row) for true, row in zip(true_Q, kept, strict=True)]
        assert expected == list(zip(counts.better_Q.tolist(), counts.tied_Q.tolist(), strict=True))
        assert list(map(len, kept)) == counts.competing_Q.tolist()


def test_without_exclusions_all_compete():
    counts = BlockCounter().count(torch.tensor([[1.0, 2.0, 3.0, 2.0]]), torch.tensor([2.0]))

    assert ([1], [2], [4]) == tuple(part.tolist() for part in (counts.better_Q, counts.tied_Q, counts.competing_Q))
    assert torch.int64 == counts.better_Q.dtype == counts.tied_Q.dtype == counts.competing_Q.dtype


def test_infinite_true_scores_compare_as_numbers():
    scores = torch.tensor([[-torch.inf, 0.0, torch.inf]] * 2)

    counts = BlockCounter().count(scores, torch.tensor([torch.inf, -torch.inf]))

    assert ([0, 2], [1, 1]) == (counts.better_Q.tolist(), counts.tied_Q.tolist())


def test_zeros_of_both_signs_tie():
    counts = BlockCounter().count(torch.tensor([[-0.0, 0.0]] * 2), torch.tensor([0.0, -0.0]))

    assert ([0, 0], [2, 2]) == (counts.better_Q.tolist(), counts.tied_Q.tolist())


def test_empty_blocks_count_nothing():
    none = BlockCounter().count(torch.empty(2, 0), torch.zeros(2))

    assert ([0, 0], [0, 0], [0, 0]) == (none.better_Q.tolist(), none.tied_Q.tolist(), none.competing_Q.tolist())
    assert 0 == BlockCounter().count(torch.empty(0, 3), torch.empty(0)).better_Q.numel()


def test_scores_that_are_not_contiguous_are_counted_all_the_same():
    scores_QC = torch.arange(24.0).view(4, 6)[:, 1:5]

    counts = BlockCounter().count(scores_QC, torch.tensor([2.0, 0.0, 100.0, 20.0]))

    assert ([2, 4, 0, 2], [1, 0, 0, 1]) == (counts.better_Q.tolist(), counts.tied_Q.tolist())


def test_a_block_beyond_exact_float32_counts_is_refused(monkeypatch):
    import pytest

    monkeypatch.setattr(general, "MOST_CANDIDATES", 3)

    with pytest.raises(ValueError, match="a block of 4 candidates"):
        BlockCounter().count(torch.zeros(1, 4), torch.zeros(1))


def test_counts_are_exact_at_a_million_candidates():
    scores = torch.arange(1 << 20, dtype=torch.float32)[None]

    counts = BlockCounter().count(scores, torch.tensor([0.0]))

    assert ((1 << 20) - 1, 1) == (int(counts.better_Q), int(counts.tied_Q))


@given(st.lists(score_grids(), min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_each_query_gets_the_row_of_its_key(several, random):
    """One counter for blocks of many shapes."""
    counter = BlockCounter()
    for _, scores_KC in several:
        for dtype in (torch.float32, torch.float64):
            rows = [random.randrange(len(scores_KC)) for _ in range(random.randrange(1, 9))]
            found = counter.expand(torch.tensor(scores_KC, dtype=dtype), torch.tensor(rows))

            assert [scores_KC[row] for row in rows] == found.tolist()
            assert found.dtype == dtype
