"""Ranks are exact where they are defined, else scores are float32 and the run says why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from torch import Tensor

from pbgeval import EvalConfig, RelationSchema, edge_scorer, evaluate, evaluate_triples, load_config
from pbgeval.config.precision import precision_of, why_not_exact
from tests.kit.case import TinyCase
from tests.kit.commands import flags, run_command

LINKS = RelationSchema(name="links", lhs="user", rhs="user", operator="diagonal")
TRANSLATES = RelationSchema(name="translates", lhs="user", rhs="user", operator="translation")
TURNS = RelationSchema(name="turns", lhs="user", rhs="user", operator="linear")
ROTATES = RelationSchema(name="rotates", lhs="user", rhs="user", operator="rotate")
SLOW = "exact ranks in sampled lists take 1.5 to 6 times as long on a CPU with"


@pytest.mark.parametrize(
    ("changes", "precision", "reason"),
    [
        ({"comparator": "dot"}, "exact", None),
        ({"comparator": "dot", "max_norm": 1.0, "candidates": "all"}, "exact", None),
        ({"comparator": "dot", "relations": [TRANSLATES], "dynamic_relations": True}, "exact", None),
        ({"comparator": "cos", "bias": True, "candidates": "all"}, "exact", None),
        ({"comparator": "l2", "candidates": "partition"}, "exact", None),
        ({"comparator": "l2", "relations": [evolve(LINKS, all_negs=True)]}, "exact", None),
        (
            {"comparator": "l2", "relations": [LINKS, evolve(LINKS, all_negs=True)]},
            "float32",
            f"{SLOW} operator 'diagonal', comparator 'l2' and dynamic_relations = False",
        ),
        ({}, "float32", f"{SLOW} operator 'diagonal', comparator 'cos' and dynamic_relations = False"),
        ({"dynamic_relations": True}, "exact", None),
        ({"comparator": "l2", "relations": [TRANSLATES]}, "exact", None),
        ({"precision": "exact"}, "exact", None),
        ({"comparator": "dot", "bias": True, "max_norm": 1.0}, "exact", None),
        ({"comparator": "l2", "bias": True}, "float32", f"{SLOW} comparator 'l2' and bias = True"),
        ({"comparator": "dot", "num_batch_negs": 0}, "exact", None),
        ({"comparator": "dot", "relations": [LINKS, TURNS]}, "float32", f"{SLOW} operator 'linear'"),
        ({"comparator": "dot", "relations": [TRANSLATES]}, "exact", None),
        ({"comparator": "complex_l1"}, "float32", "comparator 'complex_l1', only for dot, "),
        ({"comparator": "l1"}, "float32", f"{SLOW} comparator 'l1'"),
        ({"comparator": "l1", "candidates": "all", "relations": [TRANSLATES]}, "exact", None),
        ({"comparator": "clamped_dot", "dynamic_relations": True}, "exact", None),
        ({"comparator": "clamped_dot", "bias": True, "candidates": "partition"}, "exact", None),
        ({"relations": [LINKS, ROTATES]}, "float32", "operator 'rotate', only for none, "),
        ({"pbg_semantics": True}, "float32", "torchbiggraph_eval compares rounded scores"),
        ({"relation_prediction": True}, "float32", "relation_prediction = True, which ranks relations"),
        ({"has_vectors": False}, "float32", "a model that is asked for scores"),
        ({"precision": "float32"}, "float32", None),
        ({"precision": "float64", "comparator": "l1"}, "float64", None),
    ],
    ids=str,
)
def test_the_precision_is_exact_where_nobody_and_nothing_says_otherwise(
    changes: dict[str, Any], precision: str, reason: str | None
) -> None:
    config = evolve(EvalConfig(relations=[LINKS]), **changes)

    found = why_not_exact(config)

    assert precision_of(config) == precision
    assert reason in found if reason else found is None


@pytest.mark.parametrize("candidates", ["all", "partition", "sampled"])
def test_the_default_is_the_run_that_asks_for_exact_ranks(candidates: str, tmp_path: Path) -> None:
    case = TinyCase.write(tmp_path, partition_sizes=(9, 8), candidates=candidates, dynamic=True)

    reports = [
        evaluate(load_config(case.config, asked), output=tmp_path / name, workers=1)
        for name, asked in {"default": [], "asked": ["precision=exact"]}.items()
    ]

    default, asked = (report.document for report in reports)
    assert default == asked
    assert default["provenance"]["settings"]["precision"] == "exact"
    assert all("why_not_exact" not in report.run and "open_candidates" in report.run for report in reports)


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        (("candidates=all",), r"precision exact"),
        (
            ("comparator=l2",),
            r"precision float32: exact ranks in sampled lists take 1.5 to 6 times as long on a CPU with operator ",
        ),
        (("precision=float32",), r"precision float32"),
        (
            ("comparator=complex_l1",),
            r"precision float32: exact ranks are not defined for comparator 'complex_l1', only ",
        ),
    ],
)
def test_the_first_line_has_the_precision_and_the_reason(asked: tuple[str, ...], line: str, tmp_path: Path) -> None:
    case = TinyCase.write(tmp_path, partition_sizes=(9, 8))

    done = run_command(case, "--workers", "1", "--output", "out", *flags(asked))

    run = json.loads((case.root / "out" / "run.json").read_text())
    assert done.status == 0
    assert line in done.err.splitlines()[0]
    assert ("why_not_exact" in run) is (asked in (("comparator=l2",), ("comparator=complex_l1",)))
    assert run["reproducible"]  # also of float32: all kernels are alike
    assert "unlike kernels" not in done.err


def test_a_function_has_float32_scores_and_the_reason() -> None:
    scorer = edge_scorer(lambda lhs, rel, rhs: -(lhs + rel - rhs).abs().float(), num_entities=5, num_relations=1)

    report = evaluate_triples(scorer, [(0, 0, 1), (1, 0, 3)])

    assert report.document["provenance"]["settings"]["precision"] == "float32"
    assert report.run["why_not_exact"] == (
        "exact ranks are not defined for a model that is asked for scores, which are compared as it returns them"
    )


@pytest.mark.parametrize("precision", [None, "float32", "float64"])
def test_scores_of_a_function_are_ranked_as_returned_but_pooled_in_float32(precision: str | None) -> None:
    def score(lhs: Tensor, rel: Tensor, rhs: Tensor) -> Tensor:
        return 1e9 - (lhs + rel + 1 - rhs).abs().double() / 100  # float32 has steps of 64 there

    scorer = edge_scorer(score, num_entities=5, num_relations=1)

    report = evaluate_triples(scorer, [(0, 0, 1), (2, 0, 3)], **({} if precision is None else {"precision": precision}))

    assert report["mean_rank"] == 1
    assert (report["query_auc"], report["auc"]) == (1, 0.5)
