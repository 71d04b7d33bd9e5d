"""Copies of true entities in sampled lists; and the edges of a block."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pbgeval.ranking.chunks import ChunkBlock
from pbgeval.ranking.sampled import copies_of_true


@given(data=st.data())
def test_copies_are_found_in_order(data):
    num_chunks, num_queries, num_draws = (data.draw(st.integers(low, 4)) for low in (1, 1, 0))
    begins_with_own = data.draw(st.booleans())
    entity = st.integers(0, 3) | st.sampled_from([1 << 31, (1 << 40) - 1])
    true = data.draw(st.lists(entity, min_size=num_chunks * num_queries, max_size=num_chunks * num_queries))
    drawn = data.draw(st.lists(entity, min_size=num_chunks * num_draws, max_size=num_chunks * num_draws))
    true_BQ = torch.tensor(true).view(num_chunks, num_queries)
    drawn_BN = torch.tensor(drawn, dtype=torch.int64).view(num_chunks, num_draws)
    ids_BC = torch.cat([true_BQ, drawn_BN], dim=1) if begins_with_own else drawn_BN
    num_batch = num_queries if begins_with_own else 0
    expected = [
        (chunk * num_queries + query, at)
        for chunk in range(num_chunks)
        for query in range(num_queries)
        for at in range(ids_BC.shape[1])
        if ids_BC[chunk, at] == true_BQ[chunk, query] and not (begins_with_own and at == query)
    ]

    query, candidate = copies_of_true(true_BQ, ids_BC, num_batch)

    assert list(zip(query.tolist(), candidate.tolist(), strict=True)) == expected
    assert (query.dtype, candidate.dtype) == (torch.int64, torch.int64)


@pytest.mark.parametrize("rows", [[[3, 4], [5, 6]], [[3, 4], [6, 7]], [[9]]])
def test_the_values_of_a_block_are_those_of_its_edges(rows):
    values_E = torch.arange(100, 120)
    block = ChunkBlock(torch.tensor(rows), 0, 0, 0, 0, 0, ())

    assert block.of_edges(values_E).tolist() == [100 + row for chunk in rows for row in chunk]
    assert isinstance(block.place, slice) is (rows != [[3, 4], [6, 7]])
