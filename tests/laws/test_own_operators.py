"""Operators and comparators that PyTorch-BigGraph lacks: compiled loops, and where they are declined.

Their ranks: test_evaluation_equals_reference.py and test_partitions_change_no_rank.py.
"""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pbgeval.errors import ConfigError
from pbgeval.scoring import distances
from tests.examples import examples
from tests.kit.graphs import OWN_OPERATORS
from tests.laws.test_partitions_change_no_rank import assert_same_ranks, plain_graph


@settings(max_examples=examples(40), deadline=None)
@given(
    st.integers(1, 3),
    st.integers(1, 5),
    st.integers(1, 1100),
    st.integers(1, 5),
    st.integers(0, 2**32 - 1),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_compiled_distances_have_the_bits_of_the_general_path(batches, queries, candidates, half, seed, dtype):
    """Tiny, huge and infinite differences, equal rows, and more candidates than one run of the loop."""
    generator = torch.Generator().manual_seed(seed)

    def rows(size: int) -> torch.Tensor:
        exponents = torch.randint(-25, 26, (batches, size, 1), generator=generator)
        return torch.randn(batches, size, 2 * half, generator=generator, dtype=dtype) * torch.tensor(10.0).pow(
            exponents
        )

    query_BQD, candidate_BCD = rows(queries), rows(candidates)
    candidate_BCD[:, 0] = query_BQD[:, 0]
    for distance in (distances.ABSOLUTE, distances.MODULUS):
        with mock.patch.object(distances, "is_installed", return_value=False):
            general_BQC = distance(query_BQD, candidate_BCD)
        with mock.patch.object(distances, "JIT_MIN_TERMS", 0):
            assert torch.equal(general_BQC, distance(query_BQD, candidate_BCD))
        assert bool((general_BQC[:, 0, 0] == 0).all())


@pytest.mark.parametrize(
    ("comparator", "operator", "blamed"),
    [("l1", "none", "comparator 'l1'"), ("dot", "rotate", "operator 'rotate'")],
)
def test_certified_ranks_decline_them_in_one_line(comparator, operator, blamed, seed):
    plain = plain_graph(seed, 8, 4, [operator], comparator, True)
    with pytest.raises(ConfigError, match=f"^precision: 'certified' does not support {blamed}, only "):
        assert_same_ranks(plain, precision="certified")


def test_dynamic_relations_decline_an_operator_of_both_sides(seed):
    plain = plain_graph(seed, 8, 4, ["projected_translation"], "l1", True)
    with pytest.raises(
        ConfigError, match=r"^dynamic_relations: operator 'projected_translation' also changes the candidates"
    ):
        assert_same_ranks(plain)


def test_odd_dimensions_are_declined(seed):
    for operator in OWN_OPERATORS[:2]:
        with pytest.raises(ConfigError, match=f"{operator} needs an even dimension, but 'user' has 5"):
            assert_same_ranks(plain_graph(seed, 8, 5, [operator], "dot", True))
    with pytest.raises(ConfigError, match=r"complex_l1 needs an even dimension \(without the bias\), but 'user' has 3"):
        assert_same_ranks(plain_graph(seed, 8, 4, ["none"], "complex_l1", True, bias=True))
