"""A score that is not a number is found by either shortcut, and finite overflow is not mistaken for one."""

from __future__ import annotations

import pytest
import torch

from pbgeval.ranking.groups import first_nan
from pbgeval.scoring.comparators import Comparator

DOT = Comparator("dot")

SHAPES = [(1, 1, 1, 1), (2, 3, 4, 50), (2, 40, 50, 3)]  # scores fewer than rows' numbers, and more


def scores_of(query: torch.Tensor, candidate: torch.Tensor) -> torch.Tensor:
    return torch.bmm(query, candidate.transpose(1, 2))


@pytest.mark.parametrize("shape", SHAPES)
def test_ordinary_scores_pass(shape: tuple[int, int, int, int]) -> None:
    batches, queries, candidates, dimension = shape
    query, candidate = torch.randn(batches, queries, dimension), torch.randn(batches, candidates, dimension)

    assert first_nan(DOT, query, candidate, scores_of(query, candidate)) is None


@pytest.mark.parametrize("shape", SHAPES)
def test_the_first_nan_is_named(shape: tuple[int, int, int, int]) -> None:
    batches, queries, candidates, dimension = shape
    query, candidate = torch.full((batches, queries, dimension), 1e30), torch.ones(batches, candidates, dimension)
    scores = scores_of(query, candidate)
    scores[-1, queries - 1, candidates - 1] = torch.nan

    assert (batches - 1, queries - 1, candidates - 1) == first_nan(DOT, query * 1e8, candidate, scores)


@pytest.mark.parametrize("shape", SHAPES)
def test_infinite_scores_are_numbers(shape: tuple[int, int, int, int]) -> None:
    batches, queries, candidates, dimension = shape
    query, candidate = torch.full((batches, queries, dimension), 1e38), torch.ones(batches, candidates, dimension)
    scores = torch.full((batches, queries, candidates), torch.inf)
    scores[0, 0, 0] = -torch.inf

    assert first_nan(DOT, query, candidate, scores) is None


def test_no_scores_are_no_fault() -> None:
    assert first_nan(DOT, torch.ones(1, 0, 3), torch.ones(1, 2, 3), torch.ones(1, 0, 2)) is None
