from __future__ import annotations

import pytest
import torch

from pbgeval.ranking import counting
from pbgeval.ranking.counting import count

pytestmark = pytest.mark.usefixtures("counting_path")


def test_empty_blocks_count_nothing():
    none = count(torch.empty(2, 0), torch.zeros(2)).raw

    assert ([0, 0], [0, 0], [0, 0]) == (none.better_Q.tolist(), none.tied_Q.tolist(), none.competing_Q.tolist())
    assert 0 == count(torch.empty(0, 3), torch.empty(0)).raw.better_Q.numel()


def test_a_block_beyond_exact_float32_counts_is_refused(monkeypatch):
    monkeypatch.setattr(counting, "MAX_CANDIDATES", 3)

    with pytest.raises(ValueError, match="a block of 4 candidates"):
        count(torch.zeros(1, 4), torch.zeros(1))


def test_counts_are_exact_at_a_million_candidates():
    scores = torch.arange(1 << 20, dtype=torch.float32)[None]

    counts = count(scores, torch.tensor([0.0])).raw

    assert ((1 << 20) - 1, 1) == (int(counts.better_Q), int(counts.tied_Q))
