"""Ranks of hidden relations, of models that score by number; of tables: test_evaluation_equals_reference.py."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from attrs import evolve

from pbgeval import compare, edge_scorer, evaluate, evaluate_triples, load_config
from pbgeval.errors import ConfigError
from pbgeval.integrations.pykeen import RankBasedEvaluator
from pbgeval.models.functions import side_scorer
from pbgeval.models.pykeen import pykeen_scorer
from pbgeval.notation import Side
from pbgeval.results.output import result_line
from tests import reference
from tests.examples import crossed
from tests.kit.case import TinyCase
from tests.kit.commands import run_command

POLICIES = ["all", "partition"]
NUM_ENTITIES, NUM_RELATIONS = 7, 4
MRR = "mean_reciprocal_rank"
SIZES = {"num_entities": NUM_ENTITIES, "num_relations": NUM_RELATIONS}
SOURCE = np.random.default_rng(5)
SCORES = torch.from_numpy(SOURCE.integers(-2, 3, (NUM_ENTITIES, NUM_RELATIONS, NUM_ENTITIES))).float()  # most tie
# Edges with times in a fourth column; of few pairs, so that answers repeat.
TEST, KNOWN = (SOURCE.integers(0, [4, NUM_RELATIONS, NUM_ENTITIES, 5], (number, 4)) for number in (30, 60))


class Model(torch.nn.Module):
    """With the methods of PyKEEN's models that we call; with `with_inverses` each relation is followed by another."""

    num_entities, use_inverse_triples, device = NUM_ENTITIES, False, torch.device("cpu")

    def __init__(self, *, with_inverses: bool) -> None:
        super().__init__()
        self.use_inverse_triples, self.num_relations = with_inverses, NUM_RELATIONS * (1 + with_inverses)

    def predict_h(self, rt_batch: torch.Tensor) -> torch.Tensor:
        return SCORES[:, rt_batch[:, 0], rt_batch[:, 1]].T

    def predict_t(self, hr_batch: torch.Tensor) -> torch.Tensor:
        return SCORES[hr_batch[:, 0], hr_batch[:, 1]]

    def predict_r(self, ht_batch: torch.Tensor) -> torch.Tensor:
        found = SCORES[ht_batch[:, 0], :, ht_batch[:, 1]]
        return found.repeat_interleave(2, dim=1) if self.use_inverse_triples else found


def expected_rank(edge: np.ndarray, side: int, window: int) -> float:
    """The realistic rank of a query, by a loop over all candidates and all known edges until its time."""
    true, now = edge[side], edge[3]
    others = []
    for other in range((NUM_ENTITIES, NUM_RELATIONS, NUM_ENTITIES)[side]):
        corrupted = [*edge[:3]]
        corrupted[side] = other
        ages = [now - of[3] for of in (*TEST, *KNOWN) if [*of[:3]] == corrupted]
        if other != true and not any(0 <= age <= window for age in ages):
            others.append(float(SCORES[*corrupted]))
    return sum(reference.rank_by_sorting(float(SCORES[*edge[:3]]), others)) / 2


def score_side(hidden: Side, edges: torch.Tensor, scores: torch.Tensor = SCORES) -> torch.Tensor:
    lhs, rel, rhs = edges.unbind(1)
    return {Side.LHS: scores[:, rel, rhs].T, Side.RHS: scores[lhs, rel], Side.REL: scores[lhs, :, rhs]}[hidden]


SCORERS = {
    "edges": edge_scorer(lambda lhs, rel, rhs: SCORES[lhs, rel, rhs], **SIZES),
    "pairs of edges": edge_scorer(lambda lhs, rel, rhs: SCORES[lhs, rel, rhs], broadcasts=False, **SIZES),
    "sides": side_scorer(score_side, scores_relations=True, batch_size=2, **SIZES),
    "PyKEEN": pykeen_scorer(Model(with_inverses=False)),
    "PyKEEN with inverse relations": pykeen_scorer(Model(with_inverses=True)),
}


@pytest.mark.parametrize(("name", "candidates"), crossed(list(SCORERS), POLICIES, quick=3))
def test_models_that_score_by_number_rank_relations_and_all_sides_are_filtered_by_time(name, candidates):
    asked = {"candidates": candidates, "relation_prediction": True, "metrics": ["rank"]}
    report = evaluate_triples(SCORERS[name], TEST, known=[KNOWN], time_window=1, known_until="query", **asked)

    for part, window in {"raw_metrics": -1, "metrics": 5, "time_filtered_metrics": 1}.items():
        for side, label in enumerate(("head", "relation", "tail")):
            ranks = np.array([expected_rank(edge, side, window) for edge in TEST])
            found = [report.document[part][f"{label}.realistic.{of}"] for of in ("mean_rank", "hits_at_1", MRR)]
            assert found == pytest.approx([ranks.mean(), (ranks <= 1).mean(), (1 / ranks).mean()], rel=1e-9)
    mrr = report.document["time_filtered_metrics"][f"both.realistic.{MRR}"]
    assert mrr == report.time_filtered["mrr"] == result_line(report, "run")[2][f"time_filtered.both.realistic.{MRR}"]


def test_pykeens_targets_may_name_the_relation():
    model, triples = Model(with_inverses=True), TEST[:, :3]
    found = RankBasedEvaluator().evaluate(model, triples, additional_filter_triples=[], targets=["tail", "relation"])

    report = evaluate_triples(SCORERS["PyKEEN"], triples, known=[triples], relation_prediction=True)
    key = "relation.realistic.mean_rank"
    assert report.document["metrics"][key] == found.get_metric(key)
    assert "head.realistic.mean_rank" not in found.report.document["metrics"]


def test_a_scorer_that_knows_no_relations_is_refused_in_a_line():
    scorer = side_scorer(score_side, **SIZES)
    with pytest.raises(ConfigError) as refused:
        evaluate_triples(scorer, TEST, relation_prediction=True)
    message = "relation_prediction: score_side scores no relations; set it to False, or give the scorer an attribute"
    assert str(refused.value) == f"{message} scores_relations = True and scores for Side.REL"


@pytest.mark.parametrize("candidates", POLICIES)
def test_a_score_that_is_not_a_number_is_refused_with_its_edge(candidates, tmp_path):
    case = TinyCase.write(tmp_path, dynamic=True, partition_sizes=(3,), edges_per_bucket=1)
    case.spoil_embeddings("user", 0, slice(None), 1e30)
    done = run_command(case, "-p", f"candidates={candidates}", "-p", "relation_prediction=True", "--workers", "1")
    assert "cannot be ranked" in done.refusal


@pytest.mark.slow
def test_they_are_in_tables_and_are_compared(tmp_path):
    """That heads and tails have the figures that they have alone: tests/laws/test_evaluation_equals_reference.py."""
    case = TinyCase.write(tmp_path, dynamic=True, partition_sizes=(9, 8), edges_per_bucket=6)
    config = evolve(load_config(case.config), candidates="all", save_ranks=True, relation_prediction=True)
    a, b = (
        evaluate(evolve(config, edge_paths=[str(case.root / "edges")], comparator=of), output=tmp_path / of, workers=1)
        for of in ("dot", "l1")
    )

    compared = compare(a, b, side="relation", metrics=["mean_rank"], edge_paths=[case.root / "edges"])
    gap = b["relation.mean_rank"] - a["relation.mean_rank"]
    assert math.isclose(compared.differences[0].difference, gap)
    assert {"relation.realistic.mean_rank"} <= {*a.rows["relations"][0]}
