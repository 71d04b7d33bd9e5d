"""Operators and comparators that PyTorch-BigGraph lacks: compiled loops, and where they are declined.

Their ranks: test_evaluation_equals_reference.py and test_partitions_change_no_rank.py.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pbgeval.errors import ConfigError
from tests.examples import examples
from tests.fast_paths import COLUMN_DISTANCES
from tests.kit.graphs import OWN_OPERATORS
from tests.kit.loops import loops_used
from tests.kit.refusals import fault_of
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
    for distance in COLUMN_DISTANCES:
        with loops_used(False):
            general_BQC = distance(query_BQD, candidate_BCD)
        with loops_used(True):
            assert torch.equal(general_BQC, distance(query_BQD, candidate_BCD))
        assert bool((general_BQC[:, 0, 0] == 0).all())


@pytest.mark.parametrize(
    ("comparator", "operator", "dimension", "more", "message"),
    [
        ("complex_l1", "none", 4, {"precision": "exact"}, "'exact' is not defined for comparator 'complex_l1', only "),
        ("dot", "rotate", 4, {"precision": "exact"}, "precision: 'exact' is not defined for operator 'rotate', "),
        ("l1", "projected_translation", 4, {}, "dynamic_relations: operator 'projected_translation' also changes the "),
        *(("dot", of, 5, {}, f"{of} needs an even dimension, but 'user' has 5") for of in OWN_OPERATORS[:2]),
        ("complex_l1", "none", 3, {}, "complex_l1 needs an even dimension (without the bias), but 'user' has 3"),
    ],
)
def test_what_they_do_not_fit_is_declined_in_one_line(comparator, operator, dimension, more, message, seed):
    plain = plain_graph(seed, 8, dimension + (dimension == 3), [operator], comparator, True, bias=dimension == 3)

    assert message in fault_of(lambda: assert_same_ranks(plain, **more), ConfigError)
