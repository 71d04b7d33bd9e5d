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
