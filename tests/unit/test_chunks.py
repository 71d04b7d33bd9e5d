from __future__ import annotations

import numpy as np
import pytest
import torch

from pbgeval.ranking.chunks import chunk_blocks
from pbgeval.ranking.sampled_lists import SampledLists


@pytest.mark.parametrize("lists", [SampledLists(2, 3), SampledLists(2, 1, num_degree_negs=2)])
def test_chunks_that_a_sample_has_drawn_are_one_block_with_the_draws_they_have_among_all(lists):
    (whole,) = [block for _, block in chunk_blocks({0: torch.arange(20)}, lists, 10)]

    ((_, some),) = chunk_blocks({0: torch.arange(20)}, lists, 10, {0: np.array([0, 1, 4, 7, 8, 9])})
    none = list(chunk_blocks({0: torch.arange(20)}, lists, 10, {0: np.array([], np.int64)}))

    assert (whole.runs, some.rows_BQ.tolist()) == (((50, 10),), [[0, 1], [2, 3], [8, 9], [14, 15], [16, 17], [18, 19]])
    assert (some.runs, none) == (((50, 2), (50 + 4 * 3, 1), (50 + 7 * 3, 3)), [])
