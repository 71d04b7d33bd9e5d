"""Blocks of queries and candidates counted by the compiled loop, against comparisons one by one of product's scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from attrs import frozen
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pbgeval.ranking import blocks
from pbgeval.ranking.chunk_loops import COLUMNS_AT_A_TIME, ROWS_AT_A_TIME
from pbgeval.scoring.product import product
from pbgeval.scoring.self_check import check_kernels
from tests.examples import examples

CPU = torch.device("cpu")


@pytest.fixture(scope="module", autouse=True)
def _rule_of_this_machine() -> None:
    check_kernels(CPU)


@frozen
class Block:
    """Keys with their numbers of queries, and what else makes a block."""

    seed: int
    queries_of_key: tuple[int, ...]
    num_candidates: int
    dimension: int = 5
    has_ties: bool = True
    num_known: int = 40
    width: float = 0.0  # between the limits and true scores
    room_for_open: int = 1 << 20

    def draw(self) -> dict[str, Any]:
        random = np.random.default_rng(self.seed)
        num_keys, num_queries = len(self.queries_of_key), sum(self.queries_of_key)

        def rows(number: int) -> torch.Tensor:
            x_ND = random.standard_normal((number, self.dimension))
            return torch.from_numpy(np.round(x_ND) / 2 if self.has_ties else x_ND).float()

        query_KD, candidate_CD = rows(num_keys), rows(self.num_candidates)
        row_Q = np.repeat(np.arange(num_keys), self.queries_of_key)
        scores_KC = product(query_KD[None], candidate_CD[None])[0].numpy()
        # The true entity is a candidate, or is elsewhere, and its score is a candidate's or lies between.
        own_Q = (
            random.integers(-1, self.num_candidates, num_queries) if self.num_candidates else np.full(num_queries, -1)
        )
        true_Q = random.standard_normal(num_queries).astype(np.float32)
        is_here = own_Q >= 0
        true_Q[is_here] = scores_KC[row_Q[is_here], own_Q[is_here]]
        known = self._cells(random, num_keys, self.num_known, unique=True)
        return {
            "query_KD": query_KD,
            "candidate_CD": candidate_CD,
            "scores_KC": scores_KC,
            "row_Q": row_Q,
            "own_Q": own_Q,
            "high_Q": true_Q + np.float32(self.width),
            "low_Q": true_Q - np.float32(self.width),
            "known": known,
            "room": self.room_for_open,
        }

    def _cells(self, random: np.random.Generator, num_rows: int, number: int, *, unique: bool) -> np.ndarray:
        """Draw (row, candidate) in no order."""
        if not num_rows * self.num_candidates:
            return np.empty((2, 0), np.int64)
        code = random.integers(0, num_rows * self.num_candidates, number)
        return np.stack(np.divmod(random.permutation(np.unique(code)) if unique else code, self.num_candidates))


def one_by_one(drawn: dict[str, Any]) -> tuple[list[list[int]], list[tuple[int, int]]]:
    """Count each query's candidates by Python's comparisons: better, tied, competing; then of the known ones.

    Return these, and the cells that tie.
    """
    known_of_row: dict[int, set[int]] = {}
    for row, candidate in drawn["known"].T.tolist():
        known_of_row.setdefault(row, set()).add(candidate)
    found, ties = [], []
    columns = [drawn[name].tolist() for name in ("row_Q", "own_Q", "high_Q", "low_Q")]
    for query, (row, own, high, low) in enumerate(zip(*columns, strict=True)):
        counts = [0] * 6
        for candidate, score in enumerate(drawn["scores_KC"][row].tolist()):
            if candidate == own:
                continue
            for first in (0, 3) if candidate in known_of_row.get(row, ()) else (0,):
                counts[first] += score > high
                counts[first + 1] += low <= score <= high
                counts[first + 2] += 1
            ties += [(query, candidate)] if low <= score <= high else []
        found.append(counts)
    return np.array(found, np.int64).reshape(-1, 6).T.tolist(), ties


shapes = st.builds(
    Block,
    seed=st.integers(0, 1 << 30),
    queries_of_key=st.lists(st.integers(0, 3), max_size=30).map(tuple)
    | st.sampled_from([(1,) * ROWS_AT_A_TIME, (1,) * (ROWS_AT_A_TIME + 1), (2,) * 400]),
    num_candidates=st.sampled_from([0, 1, 2, 15, 16, 40, COLUMNS_AT_A_TIME, COLUMNS_AT_A_TIME + 1, 1300]),
    dimension=st.sampled_from([1, 5, 100, 300]),
    has_ties=st.booleans(),
    num_known=st.sampled_from([0, 40, 3000]),
    width=st.sampled_from([0.0, 0.0, 0.25, 1e-6]),
    room_for_open=st.sampled_from([1 << 20, 1 << 20, 9, 1]),
)


@settings(max_examples=examples(60), deadline=None)
@given(shapes)
@example(Block(0, (), 0))
@example(Block(1, (1,), 1, num_known=1))
@example(Block(2, (3, 0, 2), 0))
@example(Block(3, (1,) * 193, 577, 300, num_known=3000))
def test_counts_and_scores_are_those_of_comparing_one_by_one(block: Block) -> None:
    drawn = block.draw()
    known = tuple(map(torch.from_numpy, drawn["known"]))
    row_and_own_Q = torch.from_numpy(drawn["row_Q"]), torch.from_numpy(drawn["own_Q"])
    limits = torch.from_numpy(drawn["high_Q"]), torch.from_numpy(drawn["low_Q"])

    found, open_cells = blocks.count(
        drawn["query_KD"], drawn["candidate_CD"], limits, row_and_own_Q, known, drawn["room"]
    )

    counts = [getattr(of, name) for of in (found.raw, found.known) for name in COUNTS]
    expected_counts, expected_open = one_by_one(drawn)
    assert expected_counts == [of_query.tolist() for of_query in counts]
    if 0 < drawn["room"] < len(expected_open):
        assert open_cells is None
    elif drawn["room"]:
        assert open_cells is not None
        assert expected_open == sorted(zip(*(index.tolist() for index in open_cells), strict=True))


COUNTS = ("better_Q", "tied_Q", "num_competitors_Q")


def test_infinite_true_scores_compare_as_numbers() -> None:
    block = Block(5, (1, 1), 30).draw()
    true_Q = torch.tensor([torch.inf, -torch.inf])
    none = torch.empty(0, dtype=torch.int64)

    found, _ = blocks.count(
        block["query_KD"],
        block["candidate_CD"],
        (true_Q, true_Q),
        (torch.arange(2), none.new_full((2,), -1)),
        None,
    )

    assert (found.raw.better_Q.tolist(), found.raw.tied_Q.tolist()) == ([0, 30], [0, 0])


def test_bfloat16_is_multiplied_with_or_without_a_routine_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small integers, whose sums are exact however they are added."""
    generator = torch.Generator().manual_seed(0)
    query_KD = torch.randint(-8, 9, (200, 40), generator=generator).bfloat16()
    candidate_CD = torch.randint(-8, 9, (700, 40), generator=generator).bfloat16()
    true_Q = torch.full((200,), 12.0)
    row_and_own_Q = torch.arange(200), torch.full((200,), -1)
    exact_KC = query_KD.float() @ candidate_CD.float().T
    for find in (blocks.blas.find_bfloat16_gemm, lambda: None):
        monkeypatch.setattr(blocks.blas, "find_bfloat16_gemm", find)
        found = blocks.count(query_KD, candidate_CD, (true_Q, true_Q), row_and_own_Q, None)[0].raw

        assert (exact_KC > 12).sum(1).tolist() == found.better_Q.tolist()
        assert (exact_KC == 12).sum(1).tolist() == found.tied_Q.tolist()


def test_a_routine_that_is_off_by_more_than_its_roundings_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert blocks.product_is_callable()  # which is remembered
    routines = iter([object()])  # there is one, which the loop does not call
    monkeypatch.setattr(blocks.blas, "find_bfloat16_gemm", lambda: next(routines, None))
    monkeypatch.setattr(blocks, "multiplied", lambda q, c: (q.float() @ c.float().T) * 1.01)
    blocks.multiplies_bfloat16.cache_clear()
    try:
        assert not blocks.multiplies_bfloat16()
    finally:
        blocks.multiplies_bfloat16.cache_clear()
