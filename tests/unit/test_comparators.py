from __future__ import annotations

import math
import random

import pytest
import torch
from attrs import evolve

from pbgeval.jit import CompiledLoop
from pbgeval.scoring import distances
from pbgeval.scoring.comparators import COMPARATORS, Comparator, ZeroVectorError
from pbgeval.scoring.distances import ABSOLUTE, MODULUS
from tests import reference
from tests.kit.graphs import OWN_COMPARATORS
from tests.kit.loops import loops_used


def real_scores(comparator: Comparator, queries, candidates) -> torch.Tensor:
    query_QD = comparator.prepare_queries(torch.as_tensor(queries))
    candidate_CD = comparator.prepare_candidates(torch.as_tensor(candidates))
    return comparator.real_scores(comparator.scores(query_QD[None], candidate_CD[None])[0])


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", COMPARATORS)
def test_scores_are_the_references(name, bias, seed):
    generator = random.Random(seed)
    rows = [[generator.gauss(0, 2) for _ in range(4 + bias)] for _ in range(9)] + [[0.25] * (4 + bias)] * 2
    expected = [[reference.score(name, x, y, bias) for y in rows] for x in rows]
    expected, rows_ND = (torch.tensor(of, dtype=torch.float64) for of in (expected, rows))
    comparator = Comparator(name, bias)
    prepared = comparator.prepare_queries(rows_ND), comparator.prepare_candidates(rows_ND)
    of_pairs = comparator.real_scores(comparator.paired_scores(*prepared))

    close = {"rtol": 1e-9, "atol": 1e-6}
    torch.testing.assert_close(real_scores(comparator, rows_ND, rows_ND), expected, **close)
    torch.testing.assert_close(of_pairs, expected.diagonal(), **close)


def test_l2_has_the_floor_of_pbg_and_keeps_infinity():
    products = torch.tensor([0.0, 1e-7, -4.0, -math.inf])

    assert [-1e-15, -1e-15, -2.0, -math.inf] == pytest.approx(
        COMPARATORS["l2"].real_scores(products).tolist(), rel=1e-6
    )


@pytest.mark.parametrize("bias", [False, True])
def test_zero_vectors_under_cos_are_named(bias):
    """The bias alone is no direction."""
    rows = torch.tensor([[1.0, 2.0, 0.0], [float(bias), 0.0, -0.0], [0.0, 0.0, 3.0], [0.0, 0.0, 0.0]])
    comparator = Comparator("cos", bias)

    for prepare in (comparator.prepare_queries, comparator.prepare_candidates):
        with pytest.raises(ZeroVectorError) as caught:
            prepare(rows)
        assert caught.value.rows == [1, 3]


@pytest.mark.parametrize("name", ["dot", "l2", "squared_l2", *OWN_COMPARATORS])
def test_zero_vectors_have_scores_elsewhere(name):
    assert real_scores(Comparator(name), [[0.0, 0.0]], [[0.0, 0.0]]).round(decimals=6).abs().tolist() == [[0.0]]


def test_tiny_and_huge_vectors_have_directions():
    scores = real_scores(Comparator("cos"), [[1e-30, 0.0]], [[3e25, 4e25], [-1e-25, 0.0], [0.0, 1e30]])

    assert scores[0].tolist() == pytest.approx([0.6, -1.0, 0.0], abs=1e-6)


def test_a_clamped_score_ends_at_20_and_ties_beyond():
    rows = torch.tensor([[5.0, 0.0], [4.0, 0.0], [100.0, 0.0], [-1e30, 0.0]])
    comparator = Comparator("clamped_dot")

    assert real_scores(comparator, [[5.0, 1.0]], rows.tolist()).tolist() == [[20.0, 20.0, 20.0, -20.0]]
    assert comparator.paired_scores(rows, rows).tolist() == [20.0, 16.0, 20.0, 20.0]
    assert torch.equal(comparator.paired_scores(rows, rows), comparator.pbg_true_scores(rows, rows))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("distance", [ABSOLUTE, MODULUS], ids=["absolute", "modulus"])
def test_distances_by_a_loop_have_the_bits_of_those_by_torch(distance, dtype):
    """Of more candidates than the loop adds up at a time, with an equal row and an infinite one."""
    query_BQD, candidate_BCD = torch.randn(2, 5, 8, dtype=dtype), torch.randn(2, 1030, 8, dtype=dtype)
    candidate_BCD[:, 3], candidate_BCD[:, 1027] = query_BQD[:, 2], torch.inf

    with loops_used(False):
        expected_BQC = distance(query_BQD, candidate_BCD)
    with loops_used(True):
        found_BQC = distance(query_BQD, candidate_BCD)

    assert torch.equal(found_BQC, expected_BQC)
    assert found_BQC[:, 2, 3].tolist() == [0.0, 0.0]
    assert found_BQC[:, 2, 1027].tolist() == [-torch.inf, -torch.inf]


def test_distances_of_columns_are_computed_in_pieces_that_fit(monkeypatch):
    monkeypatch.setattr(distances, "CELLS_AT_A_TIME", 30)
    query_BQD, candidate_BCD = torch.randn(2, 7, 3), torch.randn(2, 6, 3)
    sizes = []

    def term(parts):
        sizes.append(parts[0].numel())
        return parts[0].abs()

    loop = CompiledLoop(ABSOLUTE.loop.loop)  # that this process has not used, so that it is not worth it
    found_BQC = evolve(ABSOLUTE, term=term, loop=loop)(query_BQD, candidate_BCD)

    torch.testing.assert_close(found_BQC, -(query_BQD[:, :, None] - candidate_BCD[:, None]).abs().sum(3))
    assert sizes == 2 * [30, 30, 30, 12, 12, 12]
