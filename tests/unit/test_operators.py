from __future__ import annotations

import pytest
import torch

from pbgeval.scoring.operators import OPERATORS
from tests.kit.graphs import OPERATORS as PBG_NAMES
from tests.kit.graphs import OWN_OPERATORS, RowSource, operator_params

NAMES = (*PBG_NAMES, *OWN_OPERATORS)

X = torch.tensor([[1.0, 2.0, 3.0, 4.0], [0.0, -1.0, 0.5, 2.0]])
MATRIX = torch.tensor([[0.0, 1, 0, 0], [2, 0, 0, 0], [0, 0, 0, -1], [1, 1, 1, 1]])
DIAGONAL, SHIFT = torch.tensor([2.0, 0, -1, 1]), torch.tensor([1.0, 1, 0, -4])
REAL, IMAG = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
BY_HAND = [
    ("none", {}, [[1, 2, 3, 4], [0, -1, 0.5, 2]]),
    ("diagonal", {"diagonal": DIAGONAL}, [[2, 0, -3, 4], [0, 0, -0.5, 2]]),
    ("translation", {"translation": SHIFT}, [[2, 3, 3, 0], [1, 0, 0.5, -2]]),
    ("linear", {"linear_transformation": MATRIX}, [[2, 2, -4, 10], [-1, 0, -2, 1.5]]),
    ("affine", {"linear_transformation": MATRIX, "translation": SHIFT}, [[3, 3, -4, 6], [0, 1, -2, -2.5]]),
    ("complex_diagonal", {"real": REAL, "imag": IMAG}, [[1, -4, 3, 2], [0, -2, 0.5, -1]]),
    ("swapped_diagonal", {"diagonal": DIAGONAL}, [[6, 0, -1, 2], [1, 0, 0, -1]]),
    ("projected_translation", {"projection": MATRIX, "translation": SHIFT}, [[2, 2, -4, 10], [-1, 0, -2, 1.5]]),
]


def prepared(name, parameters):
    return OPERATORS[name].prepared(parameters)


@pytest.mark.parametrize(("name", "parameters", "expected"), BY_HAND)
def test_a_relation_for_each_row(name, parameters, expected):
    """Relation 0 has other parameters (twice those of relation 1), relation 2 does not occur."""
    stacked = {
        key: torch.stack([2 * value, value, torch.full_like(value, torch.nan)]) for key, value in parameters.items()
    }
    doubled = {key: 2 * value for key, value in parameters.items()}

    found = OPERATORS[name].apply(stacked, torch.cat([X, X]), torch.tensor([1, 1, 0, 1]))

    assert found[:2].tolist() == expected
    assert torch.equal(OPERATORS[name].apply(doubled, X, None)[0], found[2])
    assert found[3].tolist() == expected[1]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_no_rows_make_no_rows(name, dynamic):
    parameters = prepared(
        name,
        {key: torch.ones((3, *shape) if dynamic else shape) for key, shape in OPERATORS[name].shapes(4).items()},
    )
    rel_E = torch.empty(0, dtype=torch.int64) if dynamic else None

    assert tuple(OPERATORS[name].apply(parameters, torch.empty(0, 4), rel_E).shape) == (0, 4)


@pytest.mark.parametrize("name", NAMES)
def test_shapes_are_those_of_a_checkpoint(name):
    parameters = operator_params(name, 6, RowSource(0, is_quarters=True))

    assert {key: tuple(torch.tensor(value).shape) for key, value in parameters.items()} == OPERATORS[name].shapes(6)


def test_the_conjugate_of_a_relation_makes_the_complex_of_papers():
    """As docs/monitor.md says: the real part of sum h r conj(t)."""
    h, t = (torch.complex(*row.view(2, 2)) for row in X)
    relation = torch.complex(REAL, IMAG)

    acted = OPERATORS["complex_diagonal"].apply({"real": REAL, "imag": -IMAG}, X[1:], None)

    assert (X[0] * acted[0]).sum() == (h * relation * t.conj()).sum().real != (h.conj() * relation * t).sum().real


def test_a_projection_acts_on_both_sides_and_a_translation_on_the_left():
    parameters = {"projection": MATRIX, "translation": SHIFT}

    left = OPERATORS["projected_translation"].apply_to_lhs(parameters, X)

    assert left.tolist() == [[3, 3, -4, 6], [0, 1, -2, -2.5]]


def test_a_phase_turns_by_its_cosine_and_sine_of_float64_rounded_once():
    phase = torch.tensor([[0.5, -2.0, 3.0], [1e4, 0.0, 1.0]])

    found = prepared("rotate", {"phase": phase})

    assert {name: of.tolist() for name, of in found.items()} == {
        "real": phase.double().cos().float().tolist(),
        "imag": phase.double().sin().float().tolist(),
    }
    assert (found["real"].dtype, prepared("rotate", {"phase": phase.double()})["imag"].dtype) == (
        torch.float32,
        torch.float64,
    )
