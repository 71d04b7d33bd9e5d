"""Scores of pairs of vectors with many relations are the reference's, by one product or by each relation in turn."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from pbgeval.notation import Side
from pbgeval.ranking.relations import CompetingRelations
from pbgeval.scoring.comparators import COMPARATORS as ALL_COMPARATORS
from pbgeval.scoring.comparators import Comparator, UnrankableRowsError
from pbgeval.scoring.operators import OPERATORS
from pbgeval.scoring.scorer import RelationScorer
from tests.kit.graphs import COMPARATORS, OWN_COMPARATORS, OWN_OPERATORS, RowSource, operator_params
from tests.kit.graphs import OPERATORS as PBG_NAMES

MODELS = [
    (operator, comparator)
    for operator in (*PBG_NAMES, *OWN_OPERATORS)
    for comparator in (*COMPARATORS, *OWN_COMPARATORS)
]
BY_PRODUCT = {*((of, "dot") for of in ("diagonal", "translation", "complex_diagonal", "rotate", "swapped_diagonal"))}
BY_PRODUCT |= {("translation", name) for name in ALL_COMPARATORS if ALL_COMPARATORS[name].is_distance}


def scorers_of(operator, comparator, params, *, dynamic):
    """A scorer of all relations, or one of each."""

    def scorer(parameters):
        by = Comparator(comparator)
        return RelationScorer("r", operator, parameters, by, dynamic=dynamic, lhs_type="a", rhs_type="a")

    of_each = [{name: torch.tensor(value, dtype=torch.float64) for name, value in of.items()} for of in params]
    prepared = OPERATORS[operator].prepared
    if not dynamic:
        return [scorer({Side.RHS: prepared(of)}) for of in of_each]
    stacked = {name: torch.stack([of[name] for of in of_each]) for name in of_each[0]}
    return [scorer({Side.LHS: prepared(stacked), Side.RHS: {}})]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("operator", "comparator"), MODELS)
def test_relations_are_multiplied_where_that_is_exact_algebra(operator, comparator, dynamic):
    """Their scores are compared with the reference's by tests/laws/test_hidden_relations.py."""
    dynamic = dynamic and operator != "projected_translation"
    params = [operator_params(operator, 4, RowSource(of, False)) for of in range(2)]
    scorers = scorers_of(operator, comparator, params, dynamic=dynamic)

    competing = CompetingRelations(np.arange(2), scorers)

    assert ((operator, comparator) in BY_PRODUCT) == (competing._rows_CF is not None)


def test_relations_of_unlike_operators_are_scored_in_turn():
    scorers = [
        scorers_of(operator, "dot", [{"diagonal": [2.0, 3.0]}], dynamic=False)[0]
        for operator in ("diagonal", "swapped_diagonal")
    ]
    competing = CompetingRelations(np.array([0, 1]), scorers)

    found = competing.scores(torch.tensor([[1.0, 10.0]]).double(), torch.tensor([[5.0, 7.0]]).double())

    assert (competing._rows_CF, found.tolist()) == (None, [[2 * 5 + 10 * 3 * 7, 2 * 7 + 10 * 3 * 5]])


@pytest.mark.parametrize(("operator", "value"), [("diagonal", 1e-30), ("diagonal", 1e30), ("linear", 1e30)])
def test_what_overflows_is_no_number_or_an_error_with_its_row(operator, value):
    """By a product of features, and by each relation in turn."""
    shape = (1, 2) if operator == "diagonal" else (1, 2, 2)
    name = "diagonal" if operator == "diagonal" else "linear_transformation"
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
