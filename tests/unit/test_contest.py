from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pbgeval.notation import ENDS, Side
from pbgeval.scoring.comparators import Comparator
from pbgeval.scoring.operators import OPERATORS as ALL_OPERATORS
from pbgeval.scoring.operators import moves_to_query
from pbgeval.scoring.scorer import RelationScorer, SharedCandidates, contests
from pbgeval.scoring.true_scores import TrueScores
from tests import reference
from tests.examples import examples
from tests.kit.graphs import COMPARATORS as PBG_COMPARATORS
from tests.kit.graphs import OPERATORS as PBG_OPERATORS
from tests.kit.graphs import OWN_COMPARATORS, OWN_OPERATORS, RowSource, operator_params

COMPARATORS, OPERATORS = (*PBG_COMPARATORS, *OWN_COMPARATORS), (*PBG_OPERATORS, *OWN_OPERATORS)

DTYPES = {"float32": torch.float32, "float64": torch.float64}


def scorers_of(
    operators: list[str], params: list[dict[str, Any]], comparator: Comparator, types: list[str], dtype: torch.dtype
) -> list[RelationScorer]:
    return [
        RelationScorer(
            name=f"relation{index}",
            operator=operator,
            parameters={Side.RHS: ALL_OPERATORS[operator].prepared(tensors(of, dtype))},
            comparator=comparator,
            dynamic=False,
            lhs_type="user",
            rhs_type=rhs_type,
        )
        for index, (operator, of, rhs_type) in enumerate(zip(operators, params, types, strict=True))
    ]


def tensors(of: dict[str, Any], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(values, dtype=dtype) for name, values in of.items()}


def contest_of(of: list[SharedCandidates], relation: int) -> SharedCandidates:
    (contest,) = [contest for contest in of if relation in contest.scorers]
    return contest


def scores_of(
    contest: SharedCandidates, relation: int, known: torch.Tensor, x: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """All scores (K, C), and the true scores (2, K) of pairs as queries are compared with, and from the kernel."""
    queries, candidates = contest.queries(relation, known, None), contest.candidates(x)
    assert contest.width(known.shape[1]) == queries.shape[1] == candidates.shape[1]
    comparator = contest.scorers[relation].comparator
    true = TrueScores.from_pairs(comparator, queries, candidates[: len(known)])
    every = comparator.scores(queries[None], candidates[None])[0]
    assert torch.equal(every.diagonal(), true.kernel_Q)
    return comparator.real_scores(every), comparator.real_scores(torch.stack([true.score_Q, true.kernel_Q]))


@settings(max_examples=examples(8))
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("is_quarters", [True, False], ids=["quarters", "normal"])
@pytest.mark.parametrize("comparator", COMPARATORS)
@given(st.lists(st.sampled_from(OPERATORS), min_size=1, max_size=4), st.integers(0, 10**6), st.sampled_from([*DTYPES]))
def test_an_operator_on_the_query_scores_as_it_does_on_candidates(
    comparator, is_quarters, bias, operators, seed, dtype
):
    draw_row, dimension = RowSource(seed, is_quarters), 6
    bias = bias and comparator != "complex_l1"  # the rest of a row would be odd
    params = [operator_params(operator, dimension, draw_row) for operator in operators]
    types = [draw_row.random.choice(["user", "item"]) for _ in operators]
    scorers = scorers_of(operators, params, Comparator(comparator, bias), types, DTYPES[dtype])
    known = [[0.25, *draw_row(dimension - 1)] for _ in range(5)]
    x = [draw_row(dimension) for _ in range(9)]
    is_exact = is_quarters and comparator not in ("cos", "complex_l1") and not (comparator == "l2" and bias)
    is_exact = is_exact and "rotate" not in operators
    if comparator == "cos":  # rows without a direction are refused, not ranked
        known, x = ([[*row[:-1], row[-1] + 3] for row in rows] for rows in (known, x))
    rows = [torch.tensor(table, dtype=DTYPES[dtype]) for table in (known, x)]
    moved, general = (contests(scorers, Side.RHS, move=move) for move in (True, False))

    for relation, operator in enumerate(operators):
        transformed = [reference.apply_operator(operator, params[relation], row) for row in x]
        left = known
        if operator == "projected_translation":
            left = [reference.apply_operator(operator, params[relation], row, "lhs") for row in known]
        if comparator == "cos" and not all(any(row[int(bias) :]) for row in transformed):
            continue
        expected = [[reference.score(comparator, row, other, bias) for other in transformed] for row in left]
        true = [[row[at] for at, row in enumerate(expected)]] * 2
        one, two = (scores_of(contest_of(of, relation), relation, *rows) for of in (moved, general))
        for found in (one, two):
            if is_exact and comparator != "l2":
                assert (expected, true) == (found[0].tolist(), found[1].tolist())
            elif is_exact:  # the same squares, and only the root is rounded
                assert_near(expected, found[0], 1e-6)
                assert_near(true, found[1], 1e-6)
            else:
                size = 1 + sum(abs(value) for row in transformed for value in row) * (
                    1 + max(math.hypot(*row) for row in left)
                )
                error = size**2 * (2.0**-18 if dtype == "float32" else 2.0**-44)
                assert_near(expected, found[0], math.sqrt(error) if comparator == "l2" else error)
                assert_near(true, found[1], math.sqrt(error) if comparator == "l2" else error)
        if is_exact:
            assert torch.equal(one[0], two[0])


def assert_near(expected: list[list[float]], found: torch.Tensor, error: float) -> None:
    torch.testing.assert_close(found.double(), torch.tensor(expected, dtype=torch.float64), rtol=1e-5, atol=error)


@given(
    st.lists(st.tuples(st.sampled_from(OPERATORS), st.sampled_from(["user", "item"])), min_size=1, max_size=6),
    st.sampled_from(COMPARATORS),
    st.booleans(),
    st.sampled_from(ENDS),
    st.booleans(),
)
def test_each_relation_is_in_one_contest_and_shares_it_where_candidates_are_alike(of, name, bias, hidden, move):
    operators, types = map(list, zip(*of, strict=True))
    params = [operator_params(operator, 4, RowSource(0, True)) for operator in operators]
    found = contests(scorers_of(operators, params, Comparator(name, bias), types, torch.float32), hidden, move=move)

    assert list(range(len(of))) == sorted(relation for contest in found for relation in contest.scorers)
    for contest in found:
        assert hidden is contest.hidden
        candidate_types = {"user" if hidden is Side.LHS else types[relation] for relation in contest.scorers}
        assert {contest.candidate_type} == candidate_types

    def shares(relation: int) -> bool:
        operator = operators[relation]
        if operator == "projected_translation":
            return False
        return hidden is Side.LHS or operator == "none" or (move and moves_to_query(operator, name))

    shared = {"user" if hidden is Side.LHS else types[relation] for relation in range(len(of)) if shares(relation)}
    assert len(shared) + sum(not shares(relation) for relation in range(len(of))) == len(found)


def test_operators_move_only_where_that_is_exact_algebra():
    """M x + t under dot; x + t under distances; nothing under cos, since M changes the norm."""
    moving = {name: [operator for operator in OPERATORS if moves_to_query(operator, name)] for name in COMPARATORS}

    assert [name for name in OPERATORS if name != "projected_translation"] == moving["dot"]
    assert ["none"] == moving["cos"] == moving["clamped_dot"]
    assert ["none", "translation"] == moving["l2"] == moving["squared_l2"] == moving["l1"] == moving["complex_l1"]


@pytest.mark.parametrize("name", COMPARATORS)
def test_a_relation_that_acts_on_both_sides_leaves_the_heads_of_others_as_they_are(name):
    operators = ["projected_translation", "none", "diagonal"]
    params = [operator_params(operator, 4, RowSource(0, True)) for operator in operators]
    known, x = torch.arange(12.0).reshape(3, 4) - 5, torch.arange(20.0).reshape(5, 4) - 9

    def scores(first: int) -> list[torch.Tensor]:
        scorers = scorers_of(
            operators[first:], params[first:], Comparator(name, False), ["user"] * (3 - first), torch.float32
        )
        found = contests(scorers, Side.LHS)
        return [scores_of(contest_of(found, of - first), of - first, known, x)[0] for of in (1, 2)]

    for beside, alone in zip(scores(0), scores(1), strict=True):
        assert torch.equal(beside, alone)
