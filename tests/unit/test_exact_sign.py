from __future__ import annotations

from fractions import Fraction

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from pbgeval.scoring.exact import ExactComparator, exact_signs
from tests.exact_reference import Exact, compare

exponents = st.sampled_from([-298, -150, -3, 0, 1, 60, 255])
numbers = st.builds(lambda mantissa, exponent: mantissa * 2.0**exponent, st.integers(-(2**48), 2**48), exponents)


def sign_of_sum(terms: list[float]) -> int:
    return compare(Exact(sum(map(Fraction, terms), Fraction(0)), Fraction(0)), Exact(Fraction(0), Fraction(0)))


@given(st.lists(numbers, max_size=12), st.lists(numbers, max_size=2), st.randoms(use_true_random=False))
def test_the_sign_is_that_of_the_exact_sum(terms, rest, random):
    """All terms cancel but a few, of any size."""
    row = [*terms, *(-term for term in terms), *rest]
    random.shuffle(row)

    assert [sign_of_sum(row)] == exact_signs(np.array([row], np.float64).reshape(1, -1)).tolist()


def test_each_of_many_rows_has_its_sign():
    generator = np.random.default_rng(0)
    terms = generator.integers(-(2**24), 2**24, (250, 60)).astype(np.float64) * 2.0 ** generator.integers(-40, 40)
    terms[:, 30:] = -terms[:, :30]
    terms[::3, 7] += 2.0**-30 * np.abs(terms[::3, 7])

    assert [sign_of_sum(row) for row in terms.tolist()] == exact_signs(terms).tolist()


@given(st.lists(st.tuples(*[st.integers(-6, 6)] * 3), min_size=1, max_size=3), st.integers(-8, 8), st.integers(-8, 8))
def test_a_root_with_a_bias_is_compared_exactly(columns, added, true_added):
    """Against squares of integers, where roots are integers too: distances 3-4-5 and their like."""
    query, candidate, true = zip(*columns, strict=True)
    squares = [Fraction(sum((q - x) ** 2 for q, x in zip(query, of, strict=True))) for of in (candidate, true)]
    prepared = [*query, 1, 0], [*candidate, added], [*true, true_added]

    found = ExactComparator("l2", bias=True).signs(*(torch.tensor([row]).float() for row in prepared))

    assert [compare(*map(Exact, (Fraction(added), Fraction(true_added)), squares))] == found.tolist()
