"""Squares of rows' lengths by the compiled loop, against exact ones."""

from __future__ import annotations

from fractions import Fraction
from unittest import mock

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pbgeval.scoring import compiled_lengths
from pbgeval.scoring.certified import CertifiedComparator
from pbgeval.scoring.fast_products import Bfloat16Product, FloatProduct
from tests.examples import examples

numbers = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, 2.0**-100, 2.0**-149, 2.0**63, -(2.0**127)]), st.floats(-4, 4, width=32)
)
RELATIVE_ERROR = Fraction(1, 10**14)


@st.composite
def tables(draw: st.DrawFn) -> torch.Tensor:
    dimension = draw(st.integers(1, 40))
    rows = draw(st.lists(st.lists(numbers, min_size=dimension, max_size=dimension), max_size=5))
    return torch.tensor(rows).reshape(-1, dimension)


def exact_squares(x_NL: torch.Tensor, taken_NL: torch.Tensor) -> list[Fraction]:
    rows = zip(x_NL.tolist(), taken_NL.tolist(), strict=True)
    return [sum(((Fraction(x) - Fraction(y)) ** 2 for x, y in zip(*row, strict=True)), Fraction()) for row in rows]


@settings(max_examples=examples(60))
@given(tables())
def test_squares_are_exact_but_for_roundings(x_NL: torch.Tensor) -> None:
    shorter_NL = x_NL.bfloat16().float()

    for taken_NL in (None, shorter_NL):
        found_N = compiled_lengths.squared_lengths(x_NL, taken_NL)

        expected = exact_squares(x_NL, torch.zeros_like(x_NL) if taken_NL is None else taken_NL)
        assert (found_N.dtype, found_N.shape) == (torch.float64, (x_NL.shape[0],))
        for square, exact in zip(found_N.tolist(), expected, strict=True):
            assert abs(Fraction(square) - exact) <= RELATIVE_ERROR * exact


@settings(max_examples=examples(40))
@given(tables())
def test_lengths_that_bound_errors_are_no_shorter_than_exact_ones(x_NL: torch.Tensor) -> None:
    comparator = CertifiedComparator("dot")
    nothing = torch.zeros_like(x_NL)
    lost = exact_squares(x_NL, x_NL.bfloat16().float())
    for is_compiled in (True, False):
        with mock.patch.object(compiled_lengths, "serves", return_value=is_compiled):
            whole = FloatProduct(comparator, torch.float32).candidates(x_NL)
            rounded = Bfloat16Product(comparator).candidates(x_NL)

        for norm, exact in zip(whole.norm_N.tolist(), exact_squares(x_NL, nothing), strict=True):
            assert Fraction(norm) ** 2 >= exact
        for length, exact in zip(rounded.left_out_N.tolist(), lost, strict=True):
            assert Fraction(length) ** 2 >= exact


def test_what_the_loop_does_not_take_is_left_to_torch() -> None:
    with mock.patch.object(compiled_lengths, "NUMBERS_WORTH_COMPILING", 0):
        assert compiled_lengths.serves(torch.zeros(2, 3))
        for other in (torch.zeros(2, 3, dtype=torch.float64), torch.zeros(2, 2, 3), torch.zeros(2, 4)[:, :3]):
            assert not compiled_lengths.serves(other)
