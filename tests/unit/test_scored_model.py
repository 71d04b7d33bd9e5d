"""A model that scores by number in a monitor: the figures of the same model as tables of vectors."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from pbgeval import ModelSchema, ModelTensors, Monitor, MonitoredRelation, batch_scorer, edge_scorer, side_scorer
from pbgeval.errors import ScorerError
from pbgeval.monitor.measure import ScoredModel
from pbgeval.monitor.records import read_history
from pbgeval.notation import ENDS, Side

NUM_ENTITIES, NUM_RELATIONS, BUCKET = 23, 3, (0, 0)


def exact(*shape: int) -> Tensor:
    """Multiples of 1/4, whose products are exact in float32; many scores tie."""
    return torch.from_numpy(np.random.default_rng(len(shape)).integers(-3, 4, size=shape) / 4).float()


def edges() -> Tensor:
    random = np.random.default_rng(5)
    ends = random.integers(NUM_ENTITIES, size=(2, 150))
    return torch.from_numpy(np.stack([ends[0], random.integers(NUM_RELATIONS, size=150), ends[1]], 1))


def scored(entities_ND: Tensor, diagonals_RD: Tensor) -> ScoredModel:
    def score(lhs: Tensor, rel: Tensor, rhs: Tensor) -> Tensor:
        return (entities_ND[lhs] * diagonals_RD[rel] * entities_ND[rhs]).sum(-1)

    return ScoredModel(edge_scorer(score, num_entities=NUM_ENTITIES, num_relations=NUM_RELATIONS))


@pytest.mark.parametrize("all_entities", [False, True])
def test_figures_are_those_of_the_vectors(all_entities: bool) -> None:
    entities_ND, diagonals_RD = exact(NUM_ENTITIES, 6), exact(NUM_RELATIONS, 6)
    by_number = scored(entities_ND, diagonals_RD)
    relation = MonitoredRelation("all", "all", "all", "diagonal", all_negs=all_entities)
    schema = ModelSchema([relation], {"all": 1}, "dot", num_dynamic_relations=NUM_RELATIONS)
    operators = {(0, side): {"diagonal": diagonals_RD} for side in ENDS}
    by_vector = ModelTensors({("all", 0): entities_ND}, operators)

    found = []
    for of, model in ((by_number.schema(all_entities=all_entities), by_number), (schema, by_vector)):
        monitor = Monitor(of, eval_fraction=0.4, eval_num_batch_negs=5, eval_num_uniform_negs=4)
        monitor.split(edges(), BUCKET)
        with monitor.watch(0, BUCKET, model) as visit:
            pass
        found.append([phase.values(with_loss=False) for phase in visit.sums.phases])

    assert found[0][0]["both.realistic.count"] > 60
    assert found[0] == found[1]


def test_scores_that_are_no_numbers_are_a_divergence_and_training_goes_on(tmp_path: Path) -> None:
    entities_ND = exact(NUM_ENTITIES, 6)
    model = scored(entities_ND, exact(NUM_RELATIONS, 6))
    warnings: list[str] = []
    monitor = Monitor(model.schema(), tmp_path, eval_fraction=0.4, warn=warnings.append)
    monitor.split(edges(), BUCKET)
    for epoch in range(2):
        with monitor.watch(epoch, BUCKET, model):
            entities_ND[:] = math.nan
        monitor.end_pass(epoch)

    assert [visit.details.diverged for visit in read_history(tmp_path, pytest.fail).visits] == [True, True]
    [warning] = warnings
    assert "the model has diverged" in warning


@pytest.mark.parametrize("all_entities", [False, True])
def test_scores_of_a_model_that_has_been_trained_since_are_asked_for_again(all_entities: bool) -> None:
    """The same queries, and no others, are scored right before and right after."""
    entities_ND, diagonals_RD = exact(NUM_ENTITIES, 6), exact(NUM_RELATIONS, 6)

    def score_side(hidden: Side, edges: Tensor) -> Tensor:
        known = hidden.pick(edges[:, 2], edges[:, 0])
        return (entities_ND[known] * diagonals_RD[edges[:, 1]]) @ entities_ND.T

    by_rows = ScoredModel(side_scorer(score_side, num_entities=NUM_ENTITIES, num_relations=NUM_RELATIONS))
    schema = by_rows.schema(all_entities=all_entities)
    monitor = Monitor(schema, eval_fraction=0.1, eval_num_batch_negs=5, sides=(Side.RHS,))
    monitor.split(edges(), BUCKET)
    with monitor.watch(0, BUCKET, by_rows) as visit:
        diagonals_RD.mul_(-1)

    before, after, _ = [phase.values(with_loss=False) for phase in visit.sums.phases]
    assert before["tail.optimistic.mean_rank"] != after["tail.optimistic.mean_rank"]


def test_a_scorer_that_takes_times_is_refused() -> None:
    scorer = edge_scorer(lambda lhs, rel, rhs, time: lhs + time, num_entities=3, num_relations=1, takes_time=True)
    with pytest.raises(ScorerError, match="the scorer takes times, but a monitor's edges have none"):
        ScoredModel(scorer)


class Dropped(torch.nn.Module):
    """A module with dropout, in the three forms of scores."""

    def __init__(self) -> None:
        super().__init__()
        self.entities = torch.nn.Embedding(NUM_ENTITIES, 6)
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, lhs: Tensor, rel: Tensor, rhs: Tensor) -> Tensor:
        return (self.dropout(self.entities(lhs)) * self.entities(rhs)).sum(-1)

    def score_batch(self, edges: Tensor) -> tuple[Tensor, Tensor]:
        head, tail = (self.dropout(self.entities(edges[:, column])) for column in (0, 2))
        return tail @ self.entities.weight.T, head @ self.entities.weight.T

    def score_side(self, hidden: Side, edges: Tensor) -> Tensor:
        return hidden.pick(*self.score_batch(edges))


SCORERS_OF_MODULES = {
    "module": lambda of, **sizes: edge_scorer(of, **sizes),
    "batches": lambda of, **sizes: batch_scorer(of.score_batch, **sizes),
    "sides": lambda of, **sizes: side_scorer(of.score_side, **sizes),
}


@pytest.mark.parametrize("form", SCORERS_OF_MODULES)
def test_a_module_in_training_mode_is_refused_at_both_measurements(form: str) -> None:
    module = Dropped().eval()
    scorer = SCORERS_OF_MODULES[form](module, num_entities=NUM_ENTITIES, num_relations=NUM_RELATIONS)
    model = ScoredModel(scorer)
    monitor = Monitor(model.schema(), eval_fraction=0.4, eval_num_batch_negs=5, eval_num_uniform_negs=0)
    monitor.split(edges(), BUCKET)
    with monitor.watch(0, BUCKET, model):
        module.train()
        module.eval()
    refused = r"the module is in training mode; call model\.eval\(\) before `watch`, and again at its end$"
    with pytest.raises(ScorerError, match=refused), monitor.watch(1, BUCKET, model):
        module.train()
    with pytest.raises(ScorerError, match=refused), monitor.watch(1, BUCKET, model):
        pytest.fail("the training began")  # the module is still in training mode
