"""Rows and pairs of rows as a GPU's kernels have them, in Triton's interpreter, against a CPU's code and fractions."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from pbgeval.scoring import device_pairs, device_scores
from pbgeval.scoring.exact import ExactComparator
from pbgeval.scoring.fast_products import values_of_pairs
from pbgeval.scoring.true_scores import ExactTrue, described, row_hashes

KINDS = [
    (name, bias)
    for name in ("dot", "cos", "l2", "squared_l2")
    for bias in (False, True)
    if (name, bias) != ("l2", True)
]


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def of_all_magnitudes(generator: torch.Generator, *shape: int) -> Tensor:
    powers = torch.randint(-60, 60, shape, generator=generator).double()
    return normal(generator, *shape) * torch.exp2(powers)


def subnormal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randint(-9, 10, shape, generator=generator).double() * 2.0**-148


def drawn(make: Callable[..., Tensor], comparator: ExactComparator, dimension: int) -> tuple[Tensor, Tensor]:
    """Prepared queries and as many candidates; one of each is zero, and one candidate is its query."""
    generator = torch.Generator().manual_seed(dimension)
    query_ND, candidate_ND = make(generator, 150, dimension), make(generator, 150, dimension)
    candidate_ND[2] = query_ND[2]
    if comparator.name != "cos":
        query_ND[0] = candidate_ND[1] = 0.0
    return comparator.prepare_queries(query_ND), comparator.prepare_candidates(candidate_ND)


def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_scores, "DEVICE_TYPES", ("cuda",))


@pytest.mark.parametrize("dimension", [1, 2, 31, 33, 100])
def test_rows_have_the_hashes_of_a_cpu(kernel_device, monkeypatch, dimension):
    rows_ND = normal(torch.Generator().manual_seed(0), 70, dimension).float()
    rows_ND[:, ::3], rows_ND[5] = -0.0, rows_ND[4]
    padded_ND = torch.cat([rows_ND, torch.ones(70, 1)], 1)

    found = described(padded_ND[:, :-1], dimension // 2)  # rows that are further apart than they are long

    assert torch.equal(found.hash_N, row_hashes(rows_ND))
    on_a_cpu(monkeypatch)
    assert torch.equal(found.hash_N, row_hashes(rows_ND))
    norm_N = torch.linalg.vector_norm(rows_ND, dim=1, dtype=torch.float64)
    assert bool(((found.norm_N >= norm_N) & (found.norm_N <= norm_N * (1 + 1e-8))).all())
    assert torch.allclose(found.square_N, rows_ND[:, : dimension // 2].double().square().sum(1), rtol=1e-12)


@pytest.mark.parametrize(("name", "bias"), KINDS)
@pytest.mark.parametrize("make", [normal, of_all_magnitudes, subnormal])
@pytest.mark.parametrize("dimension", [2, 40])
def test_values_have_the_bits_of_a_cpu(kernel_device, monkeypatch, make, name, bias, dimension):
    comparator = ExactComparator(name, bias)
    if name == "cos" and make is not normal:
        return
    pairs = drawn(make, comparator, dimension)

    found = values_of_pairs(comparator, *pairs)

    on_a_cpu(monkeypatch)
    assert torch.equal(found, values_of_pairs(comparator, *pairs))


def score(comparator: ExactComparator, query_D: Tensor, candidate_D: Tensor) -> Fraction:
    pairs = [(Fraction(x), Fraction(y)) for x, y in zip(query_D.tolist(), candidate_D.tolist(), strict=False)]
    if not comparator.adds_squares:
        return sum((x * y for x, y in pairs), Fraction(0))
    added = Fraction(0)
    if comparator.bias:
        (weight, bias), pairs = pairs[-1], pairs[:-1]
        added = weight * bias
    return added - sum(((x - y) ** 2 for x, y in pairs), Fraction(0))


@pytest.mark.parametrize(("name", "bias"), KINDS)
@pytest.mark.parametrize("make", [normal, of_all_magnitudes])
def test_scores_and_signs_are_those_of_fractions(kernel_device, make, name, bias):
    comparator = ExactComparator(name, bias)
    if name == "cos" and make is not normal:
        return
    query_PD, candidate_PD = drawn(make, comparator, 9)

    true = ExactTrue.from_pairs(comparator, query_PD, candidate_PD)
    score_P, error_P = true.score_Q, true.error_Q
    assert torch.equal(true.value_Q, values_of_pairs(comparator, query_PD, candidate_PD).float())
    exact = [score(comparator, *rows) for rows in zip(query_PD, candidate_PD, strict=True)]
    for found, error, expected in zip(score_P.tolist(), error_P.tolist(), exact, strict=True):
        assert abs(Fraction(found) - expected) <= Fraction(error)
    generator = torch.Generator().manual_seed(2)
    row_P, column_P = (torch.randint(0, 150, (300,), generator=generator) for _ in range(2))
    column_P[:50] = row_P[:50]  # the query's own true entity
    column_P[50:] %= 50
    grids = [rows_ND.view(3, 50, -1) for rows_ND in (query_PD, candidate_PD)]
    column_P[:50] %= 50

    sign_P, num_open = device_pairs.signs(comparator, *grids, (score_P, error_P, candidate_PD), (row_P, column_P))

    assert not sign_P[:50].any()
    assert num_open == (sign_P == device_pairs.OPEN).sum()
    column_P += row_P // 50 * 50
    for row, column, sign in zip(row_P.tolist(), column_P.tolist(), sign_P.tolist(), strict=True):
        first = score(comparator, query_PD[row], candidate_PD[column])
        expected = (first > exact[row]) - (first < exact[row])
        assert sign == expected or (
            sign == device_pairs.OPEN and abs(float(first - exact[row])) <= 1e-9 * abs(float(first)) + 1e-30
        )
    assert (sign_P == device_pairs.OPEN).sum() < 120
