"""Scores of pairs of vectors with many relations, by a product of features and by each relation in turn.

That they are the reference's: tests/laws/test_evaluation_equals_reference.py.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from pbgeval.notation import Side
from pbgeval.ranking.relations import CompetingRelations
from pbgeval.scoring.comparators import Comparator, UnrankableRowsError
from pbgeval.scoring.scorer import RelationScorer


@pytest.mark.parametrize(
    ("operators", "expected"),
    [
        (("diagonal", "swapped_diagonal"), [2 * 5 + 10 * 3 * 7, 2 * 7 + 10 * 3 * 5]),
        (("diagonal", "diagonal"), [2 * 5 + 10 * 3 * 7] * 2),
    ],
    ids=["in turn", "by a product"],
)
def test_scores_by_hand(operators, expected):
    parameters = {Side.RHS: {"diagonal": torch.tensor([2.0, 3.0]).double()}}
    scorers = [RelationScorer("r", of, parameters, Comparator("dot"), False, "a", "a") for of in operators]

    found = CompetingRelations(np.arange(2), scorers).scores(*torch.tensor([[[1.0, 10.0]], [[5.0, 7.0]]]).double())

    assert found.tolist() == [expected]


@pytest.mark.parametrize(
    ("operator", "name", "shape", "value"),
    [
        ("diagonal", "diagonal", (1, 2), 1e-30),
        ("diagonal", "diagonal", (1, 2), 1e30),
        ("linear", "linear_transformation", (1, 2, 2), 1e30),
    ],
)
def test_what_overflows_is_no_number_or_an_error_with_its_row(operator, name, shape, value):
    parameters = torch.full(shape, value)
    parameters[0, 0] *= -1
    scorer = RelationScorer(
        "r", operator, {Side.LHS: {name: parameters}}, Comparator("dot"), dynamic=True, lhs_type="a", rhs_type="a"
    )
    competing = CompetingRelations(np.array([0]), [scorer])
    rows = torch.tensor([[1.0, 1.0], [1e20, 1e20]])
    try:
        of_second = competing.scores(rows, rows)[1].tolist()
    except UnrankableRowsError as error:
        of_second = error.rows
    assert of_second == [1] or math.isnan(of_second[0])
