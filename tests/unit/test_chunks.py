from __future__ import annotations

import numpy as np
import pytest
import torch

from pbgeval.ranking import chunks
from pbgeval.ranking.chunks import RelationGroup, SampledLists, chunk_blocks, group_by_relation

RELATIONS = torch.tensor([1, 0, 1, 1, 0, 1, 1])


def layout(rel_E, lists, first_row=0, dynamic=False):
    """(relation, rows of each chunk, batch, draws, topped up, masked, first word) of every block."""
    groups = (
        [RelationGroup(0, torch.arange(len(rel_E)))] if dynamic else group_by_relation(rel_E, torch.arange(len(rel_E)))
    )
    return [
        (
            group.relation,
            block.rows_BQ.tolist(),
            block.num_batch,
            block.num_draws,
            block.num_topped_up,
            block.num_masked,
            block.runs[0][0],
        )
        for group, block in chunk_blocks(groups, lists, first_row)
    ]


def test_short_chunks_are_topped_up_and_words_follow_each_other():
    """Words begin at row 10 x (2 + 3); relation 0 has one chunk, relation 1 two whole ones and a short one."""
    assert layout(RELATIONS, SampledLists(2, 3), first_row=10) == [
        (0, [[1, 4]], 2, 3, 0, 0, 50),
        (1, [[0, 2], [3, 5]], 2, 3, 0, 0, 53),
        (1, [[6]], 1, 4, 1, 0, 59),
    ]


@pytest.mark.parametrize(
    ("lists", "chunk_size", "longest", "per_row"),
    [
        (SampledLists(50, 50), 50, 100, 100),
        (SampledLists(50, 0), 50, 50, 50),
        (SampledLists(0, 7), 7, 7, 14),
        (SampledLists(0, 0, num_degree_negs=4), 4, 4, 8),
    ],
)
def test_sizes_of_lists(lists, chunk_size, longest, per_row):
    assert (chunk_size, longest, per_row) == (lists.chunk_size, lists.longest_list, lists.words_per_row)
    assert lists.window_rows() % chunk_size == 0
    assert chunks.WINDOW_ROWS <= lists.window_rows() < chunks.WINDOW_ROWS + chunk_size


@pytest.mark.parametrize("lists", [SampledLists(2, 3), SampledLists(2, 1, num_degree_negs=2)])
def test_chunks_that_a_sample_has_drawn_are_one_block_with_the_draws_they_have_among_all(lists):
    (whole,) = [block for _, block in chunk_blocks([RelationGroup(0, torch.arange(20))], lists, 10)]

    ((_, some),) = chunk_blocks([RelationGroup(0, torch.arange(20))], lists, 10, {0: np.array([0, 1, 4, 7, 8, 9])})
    none = list(chunk_blocks([RelationGroup(0, torch.arange(20))], lists, 10, {0: np.array([], np.int64)}))

    assert (whole.runs, some.rows_BQ.tolist()) == (((50, 10),), [[0, 1], [2, 3], [8, 9], [14, 15], [16, 17], [18, 19]])
    assert (some.runs, none) == (((50, 2), (50 + 4 * 3, 1), (50 + 7 * 3, 3)), [])
