from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pbgeval.notation import ENDS, Side
from pbgeval.scoring.comparators import Comparator
from pbgeval.scoring.operators import OPERATORS as ALL_OPERATORS
from pbgeval.scoring.operators import moves_to_query
from pbgeval.scoring.scorer import RelationScorer, query_groups
from tests import reference
from tests.kit.graphs import COMPARATORS as PBG_COMPARATORS
from tests.kit.graphs import OPERATORS as PBG_OPERATORS
from tests.kit.graphs import OWN_COMPARATORS, OWN_OPERATORS, RowSource, operator_params

COMPARATORS, OPERATORS = (*PBG_COMPARATORS, *OWN_COMPARATORS), (*PBG_OPERATORS, *OWN_OPERATORS)


def scorers_of(
    operators: list[str], params: list[dict[str, Any]], comparator: Comparator, types: list[str]
) -> list[RelationScorer]:
    return [
        RelationScorer(
            name=f"relation{index}",
            operator=operator,
            parameters={
                Side.RHS: ALL_OPERATORS[operator].prepared({key: torch.tensor(values) for key, values in of.items()})
            },
            comparator=comparator,
            dynamic=False,
            lhs_type="user",
            rhs_type=rhs_type,
        )
        for index, (operator, of, rhs_type) in enumerate(zip(operators, params, types, strict=True))
    ]


@given(
    st.lists(st.tuples(st.sampled_from(OPERATORS), st.sampled_from(["user", "item"])), min_size=1, max_size=6),
    st.sampled_from(COMPARATORS),
    st.booleans(),
    st.sampled_from(ENDS),
    st.booleans(),
)
def test_each_relation_is_in_one_query_group_and_shares_it_where_candidates_are_alike(of, name, bias, hidden, move):
    operators, types = map(list, zip(*of, strict=True))
    params = [operator_params(operator, 4, RowSource(0, True)) for operator in operators]
    found = query_groups(scorers_of(operators, params, Comparator(name, bias), types), hidden, move=move)

    alone = [
        operator == "projected_translation"
        or (hidden is Side.RHS and operator != "none" and not (move and moves_to_query(operator, name)))
        for operator in operators
    ]
    shared: dict[tuple[str, int | None], list[int]] = {}
    for relation, of_type in enumerate(["user"] * len(of) if hidden is Side.LHS else types):
        shared.setdefault((of_type, relation if alone[relation] else None), []).append(relation)
    assert sorted((of_type, relations) for (of_type, _), relations in shared.items()) == sorted(
        (query_group.candidate_type, sorted(query_group.scorers))
        for query_group in found
        if query_group.hidden is hidden
    )


def is_distance(name: str) -> bool:
    """Whether x + t is as far from y as x from y - t."""
    x, y, t = [0.25, -1.0, 0.5, 2.0], [1.0, 0.5, -0.25, -1.0], [0.5, 1.25, -1.5, 0.25]
    moved, back = [a + b for a, b in zip(x, t, strict=True)], [a - b for a, b in zip(y, t, strict=True)]
    return reference.score(name, moved, y) == pytest.approx(reference.score(name, x, back))


def test_operators_move_only_where_that_is_exact_algebra():
    """M x + t under dot; x + t under distances; nothing under cos, since M changes the norm."""
    moving = {name: tuple(operator for operator in OPERATORS if moves_to_query(operator, name)) for name in COMPARATORS}

    assert moving == {
        **{name: ("none", "translation") if is_distance(name) else ("none",) for name in COMPARATORS},
        "dot": tuple(name for name in OPERATORS if name != "projected_translation"),
    }


@pytest.mark.parametrize("name", COMPARATORS)
def test_a_relation_that_acts_on_both_sides_leaves_the_heads_of_others_as_they_are(name):
    operators = ["projected_translation", "none", "diagonal"]
    params = [operator_params(operator, 4, RowSource(0, True)) for operator in operators]
    known, x = torch.arange(12.0).reshape(3, 4) - 5, torch.arange(20.0).reshape(5, 4) - 9

    def scores(first: int) -> list[torch.Tensor]:
        comparator = Comparator(name, False)
        scorers = scorers_of(operators[first:], params[first:], comparator, ["user"] * (3 - first))
        of_relation = {relation: one for one in query_groups(scorers, Side.LHS) for relation in one.scorers}
        pairs = [(of_relation[relation - first], relation - first) for relation in (1, 2)]
        return [comparator.scores(of.queries(rel, known, None)[None], of.candidates(x)[None])[0] for of, rel in pairs]

    for beside, alone in zip(scores(0), scores(1), strict=True):
        assert torch.equal(beside, alone)
