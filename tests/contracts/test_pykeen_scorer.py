"""The scorer of PyKEEN's model objects satisfies the contract, with and without inverse relations."""

from __future__ import annotations

import pytest
import torch

from pbgeval.errors import ScorerError
from pbgeval.models.pykeen import pykeen_scorer
from pbgeval.notation import Side
from tests.contracts.scorer_contract import ScorerContract
from tests.pykeen_models import NUM_ENTITIES, NUM_RELATIONS, RELATIONS, Diagonal, WithInverses, slow_score


class TestAModelOfPyKEEN(ScorerContract):
    num_entities, num_relations = NUM_ENTITIES, NUM_RELATIONS

    def make(self):
        return pykeen_scorer(Diagonal().train(), batch_size=5, slice_size=4)

    def score(self, lhs: int, rel: int, rhs: int) -> float:
        return slow_score(lhs, rel, rhs)


def test_a_model_with_inverse_triples_has_the_relations_of_the_data():
    """Which of its own it asks: tests/unit/test_interfaces_pykeen.py, by the ranks of its vectors."""
    assert 2 * pykeen_scorer(WithInverses()).num_relations == len(RELATIONS)


@pytest.mark.parametrize(
    ("model", "fault"),
    [
        (torch.nn.Linear(2, 2), r"expected a trained model of PyKEEN, with predict_h, .*got Linear without predict_h$"),
        (type("PipelineResult", (), {"model": 1})(), r"got PipelineResult without predict_h; pass its \.model"),
    ],
)
def test_what_is_no_model_of_pykeen_is_refused_by_name(model, fault):
    with pytest.raises(ScorerError, match=fault):
        pykeen_scorer(model)


def test_scores_of_another_number_of_entities_are_refused():
    scorer = pykeen_scorer(Diagonal(), num_entities=NUM_ENTITIES + 1)

    with pytest.raises(
        ScorerError, match=r"tail scores \(batch, candidates\): expected shape \(1, 24\), got \(1, 23\)"
    ):
        scorer.scores(Side.RHS, torch.tensor([0]), torch.tensor([0]), torch.tensor([0]))
