"""Blocks of queries and candidates counted by the compiled loop, against the general path on product's scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pbgeval.ranking import counting, cpu_counting
from pbgeval.ranking.cpu_loops import COLUMNS_AT_A_TIME, ROWS_AT_A_TIME
from pbgeval.scoring import blas
from pbgeval.scoring.product import product
from pbgeval.scoring.self_check import check_kernels
from tests.examples import examples

CPU = torch.device("cpu")


@pytest.fixture(scope="module", autouse=True)
def _rule_of_this_machine() -> None:
    check_kernels(CPU)


def drawn_block(
    seed: int,
    queries_of_key: tuple[int, ...],
    num_candidates: int,
    dimension: int = 5,
    has_ties: bool = True,
    num_known: int = 40,
    width: float = 0.0,
) -> dict[str, Any]:
    """Keys with their numbers of queries, and what else makes a block; `width`: between limits and true scores."""
    random = np.random.default_rng(seed)
    num_keys, num_queries = len(queries_of_key), sum(queries_of_key)

    def rows(number: int) -> torch.Tensor:
        x_ND = random.standard_normal((number, dimension))
        return torch.from_numpy(np.round(x_ND) / 2 if has_ties else x_ND).float()

    query_KD, candidate_CD = rows(num_keys), rows(num_candidates)
    row_Q = np.repeat(np.arange(num_keys), queries_of_key)
    scores_KC = product(query_KD[None], candidate_CD[None])[0].numpy()
    # The true entity is a candidate, or is elsewhere, and its score is a candidate's or lies between.
    own_Q = random.integers(-1, num_candidates, num_queries) if num_candidates else np.full(num_queries, -1)
    true_Q = random.standard_normal(num_queries).astype(np.float32)
    is_here = own_Q >= 0
    true_Q[is_here] = scores_KC[row_Q[is_here], own_Q[is_here]]
    codes = np.unique(random.integers(0, max(num_keys * num_candidates, 1), num_known))[: num_keys * num_candidates]
    return {
        "query_KD": query_KD,
        "candidate_CD": candidate_CD,
        "scores_KC": scores_KC,
        "row_Q": row_Q,
        "own_Q": own_Q,
        "high_Q": true_Q + np.float32(width),
        "low_Q": true_Q - np.float32(width),
        "known": np.stack(np.divmod(random.permutation(codes), max(num_candidates, 1))),  # (row, candidate) in no order
        "sampled": np.stack(np.divmod(np.sort(np.tile(codes[::3], 2)), max(num_candidates, 1))),  # in order, twice each
    }


def all_open(drawn: dict[str, Any], room: int) -> cpu_counting.Between:
    """Return what decides no cell, so that those between the limits are listed."""
    query_KD, candidate_CD, num_queries = drawn["query_KD"], drawn["candidate_CD"], drawn["row_Q"].size
    nan_QD = torch.full((num_queries, query_KD.shape[1]), torch.nan)
    zero_Q = torch.zeros(num_queries, dtype=torch.float64)
    known = query_KD, candidate_CD, nan_QD, zero_Q, zero_Q + torch.inf
    return cpu_counting.Between(*known, of_squares=False, end=torch.inf, max_open=room)


shapes = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 1 << 30),
        "queries_of_key": st.lists(st.integers(0, 3), max_size=30).map(tuple)
        | st.sampled_from([(1,) * ROWS_AT_A_TIME, (1,) * (ROWS_AT_A_TIME + 1), (2,) * 400]),
        "num_candidates": st.sampled_from([0, 1, 2, 15, 16, 40, COLUMNS_AT_A_TIME, COLUMNS_AT_A_TIME + 1, 1300]),
        "dimension": st.sampled_from([1, 5, 100, 300]),
        "has_ties": st.booleans(),
        "num_known": st.sampled_from([0, 40, 3000]),
        "width": st.sampled_from([0.0, 0.0, 0.25, 1e-6]),
    }
)


@settings(max_examples=examples(60), deadline=None)
@given(shapes, st.sampled_from([1 << 20, 1 << 20, 9, 1]))
@example({"seed": 0, "queries_of_key": (), "num_candidates": 0}, 9)
@example({"seed": 1, "queries_of_key": (1,), "num_candidates": 1, "num_known": 1}, 9)
@example({"seed": 2, "queries_of_key": (3, 0, 2), "num_candidates": 0}, 9)
@example({"seed": 3, "queries_of_key": (1,) * 193, "num_candidates": 577, "dimension": 300, "num_known": 3000}, 9)
def test_counts_and_open_cells_are_those_of_the_general_path(shape: dict[str, Any], room: int) -> None:
    drawn = drawn_block(**shape)
    known = tuple(map(torch.from_numpy, drawn["known"]))
    row_and_own_Q = torch.from_numpy(drawn["row_Q"]), torch.from_numpy(drawn["own_Q"])
    limits = torch.from_numpy(drawn["high_Q"]), torch.from_numpy(drawn["low_Q"])

    sampled = tuple(map(torch.from_numpy, drawn["sampled"]))

    found, open_cells, score_P = cpu_counting.count(
        drawn["query_KD"], drawn["candidate_CD"], limits, row_and_own_Q, known, sampled, all_open(drawn, room)
    )

    scores_KC = torch.from_numpy(drawn["scores_KC"])
    assert torch.equal(score_P, scores_KC[sampled])
    in_order = tuple(torch.from_numpy(of) for of in drawn["known"][:, np.lexsort(drawn["known"][::-1])])
    expected = counting.count(scores_KC, *limits, row_Q=row_and_own_Q[0], own_Q=row_and_own_Q[1], known=in_order)
    for counts, expected_counts in ((found.raw, expected.raw), (found.known, expected.known)):
        assert [of.tolist() for of in counts.columns] == [of.tolist() for of in expected_counts.columns]
    of_query_QC = drawn["scores_KC"][drawn["row_Q"]]
    ties_QC = (of_query_QC >= drawn["low_Q"][:, None]) & (of_query_QC <= drawn["high_Q"][:, None])
    ties_QC[np.flatnonzero(drawn["own_Q"] >= 0), drawn["own_Q"][drawn["own_Q"] >= 0]] = False
    expected_open = list(zip(*(index.tolist() for index in ties_QC.nonzero()), strict=True))
    found_open = None if open_cells is None else sorted(zip(*(index.tolist() for index in open_cells), strict=True))
    assert found_open == (None if room < len(expected_open) else expected_open)


def test_infinite_true_scores_compare_as_numbers() -> None:
    block = drawn_block(5, (1, 1), 30)
    true_Q = torch.tensor([torch.inf, -torch.inf])
    none = torch.empty(0, dtype=torch.int64)

    found, _, none_sampled = cpu_counting.count(
        block["query_KD"],
        block["candidate_CD"],
        (true_Q, true_Q),
        (torch.arange(2), none.new_full((2,), -1)),
        None,
    )

    assert (found.raw.better_Q.tolist(), found.raw.tied_Q.tolist()) == ([0, 30], [0, 0])
    assert not none_sampled.numel()


@pytest.mark.parametrize("shapes", [[], [(0, 3)], [(5, 7), (0, 2), (16, 16), (3,)]])
def test_buffers_are_zero_begin_at_cache_lines_and_are_not_shared(shapes: list[tuple[int, ...]]) -> None:
    arrays = blas.aligned_zeros(shapes)

    assert [array.shape for array in arrays] == shapes
    assert [array.ctypes.data % 64 for array in arrays] == [0] * len(shapes)
    for number, array in enumerate(arrays):
        assert not array.any()
        array[...] = number + 1
    assert all((array == number + 1).all() for number, array in enumerate(arrays))


def test_bfloat16_is_multiplied_with_or_without_a_routine_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small integers, whose sums are exact however they are added."""
    generator = torch.Generator().manual_seed(0)
    query_KD = torch.randint(-8, 9, (200, 40), generator=generator).bfloat16()
    candidate_CD = torch.randint(-8, 9, (700, 40), generator=generator).bfloat16()
    true_Q = torch.full((200,), 12.0)
    row_and_own_Q = torch.arange(200), torch.full((200,), -1)
    exact_KC = query_KD.float() @ candidate_CD.float().T
    for find in (cpu_counting.blas.find_bfloat16_gemm, lambda: None):
        monkeypatch.setattr(cpu_counting.blas, "find_bfloat16_gemm", find)
        found = cpu_counting.count(query_KD, candidate_CD, (true_Q, true_Q), row_and_own_Q, None)[0].raw

        expected = (exact_KC > 12).sum(1).tolist(), (exact_KC == 12).sum(1).tolist()
        assert (found.better_Q.tolist(), found.tied_Q.tolist()) == expected


def test_a_routine_that_is_off_by_more_than_its_roundings_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cpu_counting.product_is_callable()  # which is remembered
    routines = iter([object()])  # there is one, which the loop does not call
    monkeypatch.setattr(cpu_counting.blas, "find_bfloat16_gemm", lambda: next(routines, None))
    monkeypatch.setattr(cpu_counting, "multiplied", lambda q, c: (q.float() @ c.float().T) * 1.01)
    cpu_counting.multiplies_bfloat16.cache_clear()
    try:
        assert not cpu_counting.multiplies_bfloat16()
    finally:
        cpu_counting.multiplies_bfloat16.cache_clear()
