"""Ranks of hidden relations are the reference's, for every operator and comparator, and change nothing else."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest
import torch
from attrs import evolve

from pbgeval import compare, edge_scorer, evaluate, evaluate_triples, load_config
from pbgeval.errors import ConfigError
from pbgeval.integrations.pykeen import RankBasedEvaluator
from pbgeval.models.functions import side_scorer
from pbgeval.models.pykeen import pykeen_scorer
from pbgeval.notation import Side
from tests import reference
from tests.examples import crossed
from tests.kit.case import TinyCase
from tests.kit.commands import run_command

POLICIES = ["all", "partition"]


NUM_ENTITIES, NUM_RELATIONS = 7, 4
SOURCE = random.Random(3)
SIZES = {"num_entities": NUM_ENTITIES, "num_relations": NUM_RELATIONS}
ENTITIES, RELATIONS = range(NUM_ENTITIES), range(NUM_RELATIONS)
TABLE = [[[SOURCE.randint(-2, 2) for _ in ENTITIES] for _ in RELATIONS] for _ in ENTITIES]
SCORES = torch.tensor(TABLE, dtype=torch.float32)  # by lhs, relation and rhs; most tie
KNOWN = [(0, 0, 1), (0, 3, 1), (2, 1, 2), (5, 2, 6)]
TEST = [(0, 1, 1), (0, 1, 1), (2, 0, 2), (3, 3, 4)]


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


def expected_ranks(known: Collection[tuple[int, int, int]]) -> list[float]:
    """The realistic rank of each edge's relation."""
    ranks = []
    for lhs, rel, rhs in TEST:
        others = [TABLE[lhs][of][rhs] for of in RELATIONS if of != rel and (lhs, of, rhs) not in known]
        first, last = reference.rank_by_sorting(TABLE[lhs][rel][rhs], others)
        ranks.append((first + last) / 2)
    return ranks


def check_ranks(metrics: Mapping[str, Any], ranks: Sequence[float]) -> None:
    assert statistics.fmean(ranks) == metrics["relation.realistic.mean_rank"]
    assert statistics.fmean(rank <= 1 for rank in ranks) == metrics["relation.realistic.hits_at_1"]
    assert math.isclose(
        statistics.fmean(1 / rank for rank in ranks), metrics["relation.realistic.mean_reciprocal_rank"]
    )


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
def test_models_that_score_by_number_rank_relations(name, candidates):
    scorer = SCORERS[name]
    report = evaluate_triples(
        scorer, TEST, known=[KNOWN], candidates=candidates, relation_prediction=True, metrics=["rank"]
    )

    check_ranks(report.document["metrics"], expected_ranks({*KNOWN, *TEST}))
    check_ranks(report.document["raw_metrics"], expected_ranks(()))


def test_pykeens_targets_may_name_the_relation():
    found = RankBasedEvaluator().evaluate(
        Model(with_inverses=True), TEST, additional_filter_triples=[], targets=["tail", "relation"]
    )

    assert statistics.fmean(expected_ranks(TEST)) == found.get_metric("relation.realistic.mean_rank")
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
@pytest.mark.parametrize("candidates", ["all", pytest.param("partition", marks=pytest.mark.slow)])
def test_heads_and_tails_have_the_figures_that_they_have_alone(candidates, tmp_path):
    """In all parts of the result, which has a column more per metric of a table."""
    case = TinyCase.write(tmp_path, dynamic=True, partition_sizes=(9, 8), edges_per_bucket=6)
    asked = {"candidates": candidates, "save_ranks": True, "train_paths": [str(case.root / "edges")]}
    asked |= {"breakdowns": ["relation", "entity_types", "cardinality", "relation_frequency", "entity_frequency"]}
    config = evolve(load_config(case.config), **asked)
    with_relations = evolve(config, relation_prediction=True)
    outputs = {False: tmp_path / "without", True: tmp_path / "with"}
    reports = {of: evaluate(with_relations if of else config, output=outputs[of], workers=1) for of in outputs}

    def ends_of(part: Mapping[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in part.items() if not key.startswith("relation.")}

    for part in ("metrics", "raw_metrics", "macro_metrics", "relation_macro_metrics", "intervals", "diagnostics"):
        found = {of: report.document[part] for of, report in reports.items()}
        assert found[False] == {key: value for key, value in ends_of(found[True]).items() if key != "relation"}
        assert len(found[True]) > len(found[False]) or part == "intervals"
    for table in reports[False].tables:
        rows = [ends_of(row) for row in reports[True].rows[table] if row.get("side") != "relation"]
        assert [dict(row) for row in reports[False].rows[table]] == rows
    assert any("relation.realistic.mean_rank" in row for row in reports[True].rows["relations"])
    assert reports[False].document["provenance"]["digest"] != reports[True].document["provenance"]["digest"]

    b = evaluate(evolve(with_relations, comparator="l1"), output=tmp_path / "b", workers=1)
    compared = compare(outputs[True], b, side="relation", metrics=["mean_rank"], edge_paths=config.edge_paths)
    gap = (
        b.document["metrics"]["relation.realistic.mean_rank"]
        - reports[True].document["metrics"]["relation.realistic.mean_rank"]
    )
    assert math.isclose(compared.differences[0].difference, gap)
