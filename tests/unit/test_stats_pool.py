from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from pbgeval.stats.groups import ScorePool, SortedPool, sortable_int32


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=2))
def test_any_two_scores_compare_as_their_images(pair):
    first, second = sortable_int32(torch.tensor(pair)).tolist()

    assert (pair[0] < pair[1], pair[0] == pair[1]) == (first < second, first == second)


def test_scores_of_any_shape_and_stride_have_images():
    scores = torch.arange(6.0).view(2, 3).t()

    assert sortable_int32(scores.contiguous()).tolist() == sortable_int32(scores).tolist()
    assert 0 == sortable_int32(torch.empty(0)).size


def test_pools_join_and_sort():
    first = ScorePool([np.array([3, 1], np.int32)], [])
    second = ScorePool([np.array([2], np.int32)], [np.array([5, -5], np.int32)])

    pool = (first + second).sort()
    union = SortedPool.union([first.sort(), second.sort()])

    for of in (pool, union):
        assert ([1, 2, 3], [-5, 5]) == (of.true.tolist(), of.competing.tolist())
    assert ([3, 1], 1) == (first.true[0].tolist(), len(first.true))
    assert 0 == len(ScorePool().sort().true) == len(SortedPool.union([]).competing)
