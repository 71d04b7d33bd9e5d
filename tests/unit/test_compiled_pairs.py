"""Scores of pairs in float64 by the compiled loop: within its bound of exact ones, and beside torch's."""

from __future__ import annotations

from fractions import Fraction
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pbgeval.scoring import compiled_pairs
from pbgeval.scoring.certified import CertifiedComparator
from tests.examples import examples

numbers = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, 2.0**-100, 2.0**-149, 2.0**63, -(2.0**63)]), st.floats(-4, 4, width=32)
)


def exact(comparator: CertifiedComparator, query_L: list[float], candidate_L: list[float]) -> Fraction:
    pairs = [(Fraction(x), Fraction(y)) for x, y in zip(query_L[: len(candidate_L)], candidate_L, strict=True)]
    if comparator.is_distance:
        return -sum(((x - y) ** 2 for x, y in pairs), Fraction())
    return sum((x * y for x, y in pairs), Fraction())


@settings(max_examples=examples(60))
@pytest.mark.parametrize("name", ["dot", "cos", "l2", "squared_l2"])
@given(st.data())
def test_scores_are_within_their_bounds(name: str, data: st.DataObject) -> None:
    comparator = CertifiedComparator(name)
    dimension = data.draw(st.integers(1, 9))
    query_KL = data.draw(st.lists(st.lists(numbers, min_size=dimension + 1, max_size=dimension + 1), min_size=1))
    candidate_CL = data.draw(st.lists(st.lists(numbers, min_size=dimension, max_size=dimension), min_size=1))
    pair = st.tuples(st.integers(0, len(query_KL) - 1), st.integers(0, len(candidate_CL) - 1))
    pairs = data.draw(st.lists(pair, max_size=12))
    index = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)
    queries, candidates = (torch.tensor(query_KL), index[:, 0]), (torch.tensor(candidate_CL), index[:, 1])

    with mock.patch.object(compiled_pairs, "PAIRS_WORTH_COMPILING", 0):
        assert compiled_pairs.serves(queries[0], candidates[0], len(pairs))
        found = comparator.pair_scores_in_float64(queries, candidates)
    with mock.patch.object(compiled_pairs, "serves", return_value=False):
        plain = comparator.pair_scores_in_float64(queries, candidates)

    for score_P, error_P in (found, plain):
        for (row, column), score, error in zip(pairs, score_P.tolist(), error_P.tolist(), strict=True):
            off = abs(Fraction(score) - exact(comparator, query_KL[row], candidate_CL[column]))
            assert off <= Fraction(error)


def test_a_bias_beside_a_distance_is_left_to_torch() -> None:
    comparator = CertifiedComparator("squared_l2", bias=True)
    queries = comparator.prepare_queries(torch.randn((3, 6), dtype=torch.float64)), torch.tensor([0, 2])
    candidates = comparator.prepare_candidates(torch.randn((4, 6), dtype=torch.float64)), torch.tensor([3, 1])
    with mock.patch.object(compiled_pairs, "sums", None), mock.patch.object(compiled_pairs, "PAIRS_WORTH_COMPILING", 0):
        score_P, _ = comparator.pair_scores_in_float64(queries, candidates)

    expected_P, _ = comparator.scores_in_float64(queries[0][queries[1]], candidates[0][candidates[1]])
    assert torch.equal(expected_P, score_P)
