from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from pbgeval.ranking.copies import copies_of_true


def brute_force(true_BQ: list[list[int]], lists_BC: list[list[int]], num_batch: int) -> list[tuple[int, int]]:
    num_queries = len(true_BQ[0])
    return sorted(
        (chunk * num_queries + query, at)
        for chunk, (true_Q, entries) in enumerate(zip(true_BQ, lists_BC, strict=True))
        for query, true in enumerate(true_Q)
        for at, entry in enumerate(entries)
        if entry == true and not (num_batch and at == query)
    )


def found(true_BQ, lists_BC, num_batch) -> list[tuple[int, int]]:
    query, candidate = copies_of_true(torch.tensor(true_BQ), torch.tensor(lists_BC), num_batch)
    return sorted(zip(query.tolist(), candidate.tolist(), strict=True))


def test_nothing_in_nothing():
    query, candidate = copies_of_true(torch.empty((0, 3), dtype=torch.int64), torch.empty((0, 5), dtype=torch.int64), 3)

    assert (0, 0) == (query.numel(), candidate.numel())


@st.composite
def chunks(draw):
    """Chunks of few or of huge identities, whose lists begin with the true entities or do not hold them."""
    num_chunks, num_queries, num_draws = draw(st.integers(1, 4)), draw(st.integers(1, 6)), draw(st.integers(0, 6))
    holds_true = draw(st.booleans()) or num_draws == 0
    identity = draw(st.sampled_from([st.integers(0, 3), st.sampled_from([0, 10**9, 2**40])]))
    row = st.lists(identity, min_size=num_queries, max_size=num_queries)
    true_BQ = draw(st.lists(row, min_size=num_chunks, max_size=num_chunks))
    draws_row = st.lists(identity, min_size=num_draws, max_size=num_draws)
    draws_BC = draw(st.lists(draws_row, min_size=num_chunks, max_size=num_chunks))
    lists = [(true if holds_true else []) + of for true, of in zip(true_BQ, draws_BC, strict=True)]
    return true_BQ, lists, num_queries if holds_true else 0


@given(chunks())
def test_all_copies_are_found_once(of):
    assert brute_force(*of) == found(*of)
