"""Scores of pairs and lengths of rows in float64, by the compiled loop and by torch: within bounds of exact ones."""

from __future__ import annotations

from fractions import Fraction
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pbgeval.scoring import exact
from pbgeval.scoring.exact import ExactComparator, squared_lengths
from pbgeval.scoring.fast_products import FloatProduct
from tests.examples import examples
from tests.kit.loops import loops_used

numbers = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, 2.0**-100, 2.0**-149, 2.0**63, -(2.0**63)]), st.floats(-4, 4, width=32)
)


def exact_score(comparator: ExactComparator, query_L: list[float], candidate_L: list[float]) -> Fraction:
    pairs = [(Fraction(x), Fraction(y)) for x, y in zip(query_L[: len(candidate_L)], candidate_L, strict=True)]
    if comparator.adds_squares:
        return -sum(((x - y) ** 2 for x, y in pairs), Fraction())
    if comparator.adds_magnitudes:
        return -sum((abs(x - y) for x, y in pairs), Fraction())
    product = sum((x * y for x, y in pairs), Fraction())
    return min(max(product, Fraction(-20)), Fraction(20)) if comparator.clamps else product


@pytest.mark.one_case
@settings(max_examples=examples(60))
@pytest.mark.parametrize("name", ["dot", "cos", "l2", "squared_l2", "l1", "clamped_dot"])
@given(st.data())
def test_scores_are_within_their_bounds(name: str, data: st.DataObject) -> None:
    comparator = ExactComparator(name)
    dimension = data.draw(st.integers(1, 9))
    query_KL = data.draw(st.lists(st.lists(numbers, min_size=dimension + 1, max_size=dimension + 1), min_size=1))
    candidate_CL = data.draw(st.lists(st.lists(numbers, min_size=dimension, max_size=dimension), min_size=1))
    pair = st.tuples(st.integers(0, len(query_KL) - 1), st.integers(0, len(candidate_CL) - 1))
    pairs = data.draw(st.lists(pair, max_size=12))
    index = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)
    queries, candidates = (torch.tensor(query_KL), index[:, 0]), (torch.tensor(candidate_CL), index[:, 1])

    with loops_used(True):
        assert exact.sums_in_float64(queries[0], index[:, 0], candidates[0], index[:, 1], exact.PRODUCTS)
        found = comparator.pair_scores_in_float64(queries, candidates)
    with loops_used(False):
        plain = comparator.pair_scores_in_float64(queries, candidates)

    for score_P, error_P in (found, plain):
        for (row, column), score, error in zip(pairs, score_P.tolist(), error_P.tolist(), strict=True):
            off = abs(Fraction(score) - exact_score(comparator, query_KL[row], candidate_CL[column]))
            assert off <= Fraction(error)


def test_a_bias_beside_a_distance_is_left_to_torch() -> None:
    comparator = ExactComparator("squared_l2", bias=True)
    queries = comparator.prepare_queries(torch.randn((3, 6), dtype=torch.float64)), torch.tensor([0, 2])
    candidates = comparator.prepare_candidates(torch.randn((4, 6), dtype=torch.float64)), torch.tensor([3, 1])
    with mock.patch.object(exact, "sums_in_float64", None):
        score_P, _ = comparator.pair_scores_in_float64(queries, candidates)

    expected_P, _ = comparator.scores_in_float64(queries[0][queries[1]], candidates[0][candidates[1]])
    assert torch.equal(expected_P, score_P)


RELATIVE_ERROR = Fraction(1, 10**14)


@settings(max_examples=examples(60))
@given(st.data())
def test_lengths_are_exact_but_for_roundings_and_bounds_no_shorter(data: st.DataObject) -> None:
    dimension = data.draw(st.integers(1, 40))
    small = st.sampled_from([0.0, -0.0, 1.0, 2.0**-100, 2.0**-149, 2.0**63, -(2.0**127)]) | st.floats(-4, 4, width=32)
    rows = data.draw(st.lists(st.lists(small, min_size=dimension, max_size=dimension), max_size=5))
    x_NL = torch.tensor(rows).reshape(-1, dimension)
    shorter_NL = x_NL.bfloat16().float()
    whole, lost = ([_square(*of) for of in zip(x_NL.tolist(), y.tolist(), strict=True)] for y in (0 * x_NL, shorter_NL))
    for is_compiled in (True, False):
        with loops_used(is_compiled):
            squares = squared_lengths(x_NL), squared_lengths(x_NL, shorter_NL)
            operand = FloatProduct(ExactComparator("dot"), torch.bfloat16).operand(x_NL, of_queries=False)
        for found_N, expected in zip(squares, (whole, lost), strict=True):
            assert (found_N.dtype, found_N.shape) == (torch.float64, (len(rows),))
            for found, exact_square in zip(found_N.tolist(), expected, strict=True):
                assert abs(Fraction(found) - exact_square) <= RELATIVE_ERROR * exact_square
        for length_N, expected in ((operand.norm_N, whole), (operand.left_out_N, lost)):
            assert all(Fraction(of) ** 2 >= square for of, square in zip(length_N.tolist(), expected, strict=True))


def _square(x_L: list[float], y_L: list[float]) -> Fraction:
    return sum(((Fraction(x) - Fraction(y)) ** 2 for x, y in zip(x_L, y_L, strict=True)), Fraction())


def test_what_the_loop_does_not_take_is_left_to_torch() -> None:
    every = torch.arange(2)
    with loops_used(True):
        assert exact.sums_in_float64(torch.zeros(2, 3), every, torch.zeros(2, 3), every, exact.SQUARES)
        for other in (torch.zeros(2, 3, dtype=torch.float64), torch.zeros(3, 2).t()):
            assert exact.sums_in_float64(other, every, other, every, exact.SQUARES) is None
