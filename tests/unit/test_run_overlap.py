"""What two runs have in common, against definitions written out."""

from __future__ import annotations

import numpy as np
import pytest

from pbgeval.report.run_overlap import PERSISTENCE, Overlap, mean_overlap, overlaps


def rank_biased(a: list[int], b: list[int]) -> float:
    """Return equation 32 of Webber et al. for lists of one length."""
    k, p = len(a), PERSISTENCE
    agreement = [len({*a[:depth]} & {*b[:depth]}) / depth for depth in range(1, k + 1)]
    return agreement[-1] * p**k + (1 - p) / p * sum(of * p**depth for depth, of in enumerate(agreement, 1))


def test_overlaps_are_those_of_the_definitions() -> None:
    words = np.random.default_rng(3)
    a_EK, b_EK = (np.stack([words.permutation(9)[:6] for _ in range(50)]) for _ in range(2))

    common_E, biased_E = overlaps(a_EK, b_EK)

    lists = list(zip(a_EK.tolist(), b_EK.tolist(), strict=True))
    assert common_E.tolist() == pytest.approx([len({*a} & {*b}) / 6 for a, b in lists])
    assert biased_E.tolist() == pytest.approx([rank_biased(a, b) for a, b in lists])


def test_equal_lists_overlap_wholly_and_others_not_at_all() -> None:
    a_EK = np.array([[4, 2, 7], [1, 2, 3]])

    assert [of.tolist() for of in overlaps(a_EK, a_EK)] == [[1.0, 1.0], pytest.approx([1.0, 1.0])]
    assert [of.tolist() for of in overlaps(a_EK, a_EK + 10)] == [[0.0, 0.0], [0.0, 0.0]]


def test_lists_count_as_far_as_both_go_and_empty_ones_not_at_all() -> None:
    a_EK = np.array([[4, 2, 7], [1, -1, -1], [-1, -1, -1]])
    b_EK = np.array([[2, 4, -1], [1, 2, 3], [5, 6, 7]])

    common_E, biased_E = overlaps(a_EK, b_EK)

    assert common_E.tolist() == [1.0, 1.0]
    assert biased_E.tolist() == pytest.approx([rank_biased([4, 2], [2, 4]), 1.0])


def test_the_mean_leaves_out_what_is_unknown() -> None:
    found = mean_overlap([Overlap(10, 0.5, 4, 3, 0.25, 0.5), Overlap(10, None, 2, 5, 0.75, 1.0)])

    assert found == Overlap(10, 0.5, 6, 3, 0.5, 0.75)
