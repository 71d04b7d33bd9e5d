"""Figures of a pool of scores that is too large to keep: exact where all are counted, else null with a reason.

Beyond 2^24 scores they were estimated from 2^18 competitors: 2 to 15% off, mostly too high, without an interval.
"""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from attrs import frozen
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pbgeval import Edges, EvalConfig, evaluate
from pbgeval.metrics.classification import NAMES
from pbgeval.notation import Bucket, Side
from pbgeval.ranking import auc_sampling, pooled_scores
from pbgeval.stats.pooled_counts import PooledCounts
from tests.examples import examples
from tests.kit.case import TinyCase
from tests.kit.commands import evaluated, run_command
from tests.kit.graphs import tiny_graphs
from tests.kit.on_disk import write_graph
from tests.laws.test_evaluation_equals_reference import all_rules, protocols
from tests.laws.test_order_does_not_matter import SMALL_BLOCKS, comparable, result_in, with_constants
from tests.unit.test_storage_candidates import write as write_candidates

FILTERED = "filter_paths=edges"
CHOSEN = "metrics=rank,auc,average_precision,classification,pooled_hits@1,pooled_hits@10"
OF_POOLS = (*NAMES, "auc", "pooled_hits_at_1", "pooled_hits_at_10")
SECTIONS = ("metrics", "raw_metrics")
SETTINGS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "raw": ({}, ()),
    "filtered": ({}, (FILTERED,)),
    "distances in float64": ({"comparator": "l2"}, (FILTERED, "precision=float64")),
    "distances of L1": ({"comparator": "l1", "bias": True}, (FILTERED,)),
    "exact": ({}, (FILTERED, "precision=exact")),
    "narrowed": ({}, ("train_paths=edges", "type_constraint=observed")),
    "two paths": ({}, (FILTERED, "edge_paths=edges,more")),
    "best candidates": ({}, (FILTERED, "save_topk=3")),
    "relations": ({"dynamic": True}, (FILTERED, "relation_prediction=True")),
    "tails alone": ({}, ("disable_lhs_negs=True",)),
    "more than all edges": ({}, ("sample_edges=100000",)),
}


def of_pools(document: dict[str, Any]) -> dict[str, Any]:
    """Return what follows from scores; sums are of another order."""
    sections = {name: document[name] for name in SECTIONS if name in document}
    sections |= {of["path"]: of["metrics"] for of in document["edge_paths"]}
    return {
        f"{section} {key}": pytest.approx(value, rel=1e-12) if isinstance(value, float) else value
        for section, metrics in sections.items()
        for key, value in metrics.items()
        if key.rpartition(".")[2] in OF_POOLS
    }


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Pools are too large to keep, but for those of relations; scores are sorted some at a time."""
    monkeypatch.setattr(pooled_scores, "SCORES_AT_A_TIME", 200)
    return monkeypatch


@pytest.mark.parametrize("name", SETTINGS)
def test_counted_pools_give_the_figures_of_kept_ones(name: str, tmp_path: Path, counts: pytest.MonkeyPatch) -> None:
    of_model, overrides = SETTINGS[name]
    case = TinyCase.write(tmp_path / "case", partition_sizes=(17, 16), edges_per_bucket=14, **of_model)
    (case.root / "more").symlink_to(case.root / "edges")
    kept = evaluated(case, "candidates=all", CHOSEN, *overrides, output="kept")
    counts.setattr(auc_sampling, "EXACT_CELLS", 1000)
    counts.setattr(auc_sampling, "SAMPLED_CELLS", 40)
    counted = evaluated(case, "candidates=all", CHOSEN, *overrides, output="counted")

    assert "refused" not in counted
    assert of_pools(counted) == of_pools(kept)
    assert not {key for key in counted["intervals"] if key.rpartition(".")[2] in OF_POOLS}
    assert counted["metrics"]["both.average_precision_score"] > 0.0


def test_lists_of_candidates_are_counted_too(tmp_path: Path, counts: pytest.MonkeyPatch) -> None:
    """Who is named twice counts twice."""
    case = TinyCase.write(tmp_path / "case", partition_sizes=(17,), edges_per_bucket=14)
    random = np.random.default_rng(0)
    lists = {side: random.integers(0, 6, (14, 9)).tolist() for side in ("head", "tail")}
    write_candidates(case.root / "given", Bucket(0, 0), **lists)
    overrides = (f"candidate_path={case.root / 'given'}", CHOSEN, FILTERED)
    kept = evaluated(case, *overrides, output="kept")
    counts.setattr(auc_sampling, "EXACT_CELLS", 0)

    assert of_pools(evaluated(case, *overrides, output="counted")) == of_pools(kept)


@pytest.mark.parametrize("size", [60, 300])
def test_fewer_scores_wait_than_are_sorted_together(size: int, counts: pytest.MonkeyPatch) -> None:
    queries = np.zeros(size, np.int64)
    pool = pooled_scores.PooledScores(queries[:1], PooledCounts.zero(np.array([0], np.int32), 9), filtered=False)

    for _ in range(5):
        pool.add(queries, torch.ones(size), None)
        assert sum(map(len, pool._waiting[0, False])) < pooled_scores.SCORES_AT_A_TIME


def test_a_side_without_queries_has_no_figures_and_no_reason(tmp_path: Path, counts: pytest.MonkeyPatch) -> None:
    """The only tail that may compete is no tail of an edge."""
    case = TinyCase.write(tmp_path / "case", partition_sizes=(17,), edges_per_bucket=14)
    with h5py.File(case.edges(0, 0)) as file:
        [absent, *_] = set(range(17)) - set(file["rhs"][:].tolist())
    overrides = ("candidates=all", CHOSEN, f"tail_candidates=user:0:{absent}")
    kept = evaluated(case, *overrides, output="kept")
    counts.setattr(auc_sampling, "EXACT_CELLS", 0)

    counted = evaluated(case, *overrides, output="counted")

    assert "refused" not in counted
    assert of_pools(counted) == of_pools(kept)


@settings(max_examples=examples(8, quick=2), suppress_health_check=list(HealthCheck))
@given(st.data())
def test_workers_and_blocks_change_no_counted_figure(data):
    graph = data.draw(tiny_graphs(max_edges=16, max_partitions=3))
    rules, protocol = data.draw(all_rules(graph, data.draw(st.booleans()))), data.draw(protocols("all"))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        keys = (
            protocol.settings()
            | rules.settings(graph, protocol.sides)
            | {"metrics": CHOSEN.removeprefix("metrics=").split(",")}
        )
        config = write_graph(graph, Path(folder) / "data", **keys)

        def of_workers(number: int) -> str:
            return comparable(result_in(config, number, Path(folder) / f"of-{number}"))

        kept = json.loads(of_workers(1))[0]
        with_constants(stack, {"ranking.auc_sampling.EXACT_CELLS": 0, "ranking.auc_sampling.SAMPLED_CELLS": 40})
        alone = of_workers(1)
        assert alone == of_workers(2)
        with_constants(stack, SMALL_BLOCKS)
        assert alone == of_workers(3)
        counted = json.loads(alone)[0]
        refused = counted.get("refused", {})
        assert all(key.startswith("relation.") for key in refused)  # too many to keep, and never counted
        expected = {key: value for key, value in of_pools(kept).items() if "relation." not in key}
        assert {key: value for key, value in of_pools(counted).items() if "relation." not in key} == expected


NULL = {
    "partition": (("candidates=partition",), 'they are only counted with candidates = "all"'),
    "sampled": (("candidates=sampled",), 'they are only counted with candidates = "all"'),
    "a sample of edges": (("candidates=all", "sample_edges=40"), "a part of them is kept of a sample of edges"),
    "a target": (("candidates=all", "target_error=0.5"), "a part of them is kept of a sample of edges"),
    "many queries": (("candidates=all",), "they are only counted up to 3 queries"),
}


@pytest.mark.parametrize("name", NULL)
def test_what_is_not_counted_is_null_with_a_reason(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overrides, reason = NULL[name]
    case = TinyCase.write(tmp_path / "case", partition_sizes=(17, 16), edges_per_bucket=14)
    monkeypatch.setattr(auc_sampling, "EXACT_CELLS", 1000)
    if name == "many queries":
        monkeypatch.setattr("pbgeval.inputs.protocol.MAX_COUNTED_QUERIES", 3)
    printed = run_command(
        case,
        "--output",
        "output",
        "--workers",
        "1",
        *(of for one in (*overrides, CHOSEN, FILTERED) for of in ("-p", one)),
    )
    document = json.loads((case.root / "output" / "metrics.json").read_text())

    names = {f"{side}.{metric}" for side in ("head", "tail", "both") for metric in OF_POOLS if metric != "auc"}
    assert names == document["refused"].keys()
    assert all(reason in of for of in document["refused"].values())
    assert {None} == {document[section][key] for section in SECTIONS for key in names}
    assert not names & document["intervals"].keys()
    assert document["metrics"]["both.auc"] is not None
    assert "both.auc" in document["intervals"]
    assert reason in printed.out.replace("\n", " ")


def test_hits_of_a_sample_of_edges_say_why_they_are_null(tmp_path: Path) -> None:
    case = TinyCase.write(tmp_path / "case", partition_sizes=(17,), edges_per_bucket=30)
    document = evaluated(case, "candidates=all", "sample_edges=10", "metrics=mrr,pooled_hits@10,average_precision")

    assert {f"{side}.pooled_hits_at_10" for side in ("head", "tail", "both")} == document["refused"].keys()
    assert {"the K-th best score of a sample of edges is not that of all edges"} == set(document["refused"].values())
    assert document["metrics"]["both.average_precision_score"] > 0.0


@frozen(eq=False)
class Products:
    """Products of vectors of small integers, which are exact and tie."""

    vectors: np.ndarray
    num_relations: int = 1

    @property
    def num_entities(self) -> int:
        return len(self.vectors)

    def scores(
        self, hidden: Side, known_Q: torch.Tensor, relation_Q: torch.Tensor, candidate_C: torch.Tensor
    ) -> torch.Tensor:
        return torch.from_numpy(self.vectors[known_Q] @ self.vectors[candidate_C].T)


@pytest.mark.slow
def test_9000_entities_have_exact_figures() -> None:
    """More than 2^24 scores: average precision changed with the seed, from 0.7 to 3.2 times its value."""
    random = np.random.default_rng(1)
    num_entities, num_edges = 9000, 1000
    model = Products(random.integers(-9, 10, (num_entities, 6)).astype(np.float32))
    head = random.integers(0, num_entities, num_edges)
    scores = model.vectors[head] @ model.vectors.T
    tail = np.argmax(scores + random.gumbel(size=scores.shape) * 50, axis=1)
    report = evaluate(
        EvalConfig(candidates="all", metrics=["average_precision", "f1"]),
        model=model,
        edges=Edges(np.column_stack([head, 0 * head, tail])),
        device="cpu",
    )

    for side, known, hidden in (("tail", head, tail), ("head", tail, head)):
        every = model.vectors[known] @ model.vectors.T
        true = every[np.arange(num_edges), hidden]
        every[np.arange(num_edges), hidden] = -np.inf
        competing = np.sort(every, axis=None)[num_edges:]
        num_above = competing.size - np.searchsorted(competing, true)
        num_true_above = num_edges - np.searchsorted(np.sort(true), true)
        precision = np.mean(num_true_above / (num_true_above + num_above))
        assert report[f"{side}.average_precision"] == pytest.approx(precision, rel=1e-9)
        threshold = np.sort(np.concatenate([true, competing]))[-num_edges]
        num_predicted = np.sum(true >= threshold) + np.sum(competing >= threshold)
        assert report[f"{side}.f1"] == 2 * np.sum(true >= threshold) / (num_predicted + num_edges)
