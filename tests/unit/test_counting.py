from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pbgeval.ranking import general
from pbgeval.ranking.general import BlockCounter
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
    monkeypatch.setattr(general, "MOST_CANDIDATES", 3)

    with pytest.raises(ValueError, match="a block of 4 candidates"):
        BlockCounter().count(torch.zeros(1, 4), torch.zeros(1))


def test_counts_are_exact_at_a_million_candidates():
    scores = torch.arange(1 << 20, dtype=torch.float32)[None]

    counts = BlockCounter().count(scores, torch.tensor([0.0]))

    assert ((1 << 20) - 1, 1) == (int(counts.better_Q), int(counts.tied_Q))


@given(st.lists(score_grids(), min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_each_query_is_compared_with_the_row_of_its_key(several, random):
    """One counter for blocks of many shapes, in both types, with columns that do not belong to the block."""
    counter = BlockCounter()
    for true_K, scores_KC in several:
        for dtype in (torch.float32, torch.float64):
            rows = [random.randrange(len(scores_KC)) for _ in range(random.randrange(1, 9))]
            true_Q = [true_K[random.randrange(len(true_K))] for _ in rows]
            own_Q = [random.randrange(len(scores_KC[0])) for _ in rows]
            wider = torch.full((len(scores_KC), len(scores_KC[0]) + 3), 9.0, dtype=dtype)
            wider[:, 1:-2] = torch.tensor(scores_KC, dtype=dtype)
            own = (torch.arange(len(rows)), torch.tensor(own_Q))

            found = counter.count(
                wider[:, 1:-2], torch.tensor(true_Q, dtype=dtype), own, row_Q=torch.tensor(rows, dtype=torch.int64)
            )

            expected = [
                reference.counts_by_sorting(true, [s for at, s in enumerate(scores_KC[row]) if at != own])
                for row, true, own in zip(rows, true_Q, own_Q, strict=True)
            ]
            assert expected == list(zip(found.better_Q.tolist(), found.tied_Q.tolist(), strict=True))
            assert {len(scores_KC[0]) - 1} == set(found.competing_Q.tolist())


def test_scores_that_differ_only_in_float64_are_told_apart():
    scores = torch.tensor([[1.0, 1.0 + 2**-40, 1.0 - 2**-40]], dtype=torch.float64)

    counts = BlockCounter().count(scores, torch.tensor([1.0], dtype=torch.float64))

    assert (1, 1) == (int(counts.better_Q), int(counts.tied_Q))


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_count_as_one_does(threads):
    """Each thread has its own buffers."""
    generator = torch.Generator().manual_seed(threads)
    blocks = [torch.randint(-3, 4, (at + 1, 40), generator=generator).float() for at in range(12)]
    counter = BlockCounter()

    with ThreadPoolExecutor(threads) as pool:
        found = list(pool.map(lambda block: counter.count(block, torch.ones(block.shape[0])), blocks))

    for block, counts in zip(blocks, found, strict=True):
        assert counts.better_Q.tolist() == [int((row > 1).sum()) for row in block]
        assert counts.tied_Q.tolist() == [int((row == 1).sum()) for row in block]
