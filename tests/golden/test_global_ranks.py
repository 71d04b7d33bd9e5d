"""Ranks against all entities of a partitioned checkpoint: what PyTorch-BigGraph answers on the partitions merged."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from pbgeval import evaluate, load_config
from pbgeval.report.report import Report

NAMES = {"pos_rank": "mean_rank", "mrr": "mean_reciprocal_rank", "r1": "hits_at_1", "r10": "hits_at_10"}
NAMES["r50"] = "hits_at_50"
FILTER = "filter_paths=edges_test,edges_valid,edges_train"
EDGES_AT_ONCE = 500


def run(case: Path, output: Path, monkeypatch: pytest.MonkeyPatch, *overrides: str) -> Report:
    monkeypatch.chdir(case)
    return evaluate(load_config(case / "eval_allnegs.py", ["candidates=all", *overrides]), output=output, workers=1)


def assert_equals_pbg(report: Report, expected: Mapping[str, float], count: int) -> None:
    """Within the tolerances of the reference data's README."""
    assert count == report.document["num_edges"]
    for name, key in NAMES.items():
        tolerance = {"pos_rank": 2 / count, "mrr": 1e-7}.get(name, 1 / (2 * count))
        assert expected[name] == pytest.approx(report[f"both.pessimistic.{key}"], abs=tolerance, rel=0), name


@pytest.mark.slow
@pytest.mark.reference
@pytest.mark.parametrize("case", ["fb237_4p_complex", "fb237_4p_transe"])
def test_partitions_apart_rank_as_partitions_merged(
    case: str, reference_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = reference_path / "golden" / case
    expected = json.loads((folder / "expected_global.json").read_text())
    with_filter = "global_allnegs_filtered" in expected

    report = run(folder, tmp_path / "output", monkeypatch, *([FILTER] if with_filter else []))

    raw = expected["global_allnegs"]
    if with_filter:
        of_filter = expected["global_allnegs_filtered"]
        assert_equals_pbg(report, of_filter["metrics"], of_filter["count"])
        raw_report = Report({**report.document, "metrics": report.document["raw_metrics"]})
        assert_equals_pbg(raw_report, raw["metrics"], raw["count"])
    else:
        assert_equals_pbg(report, raw["metrics"], raw["count"])


@pytest.mark.slow
@pytest.mark.reference
@pytest.mark.parametrize(
    "overrides",
    [
        [],
        pytest.param(["candidates=partition", "pbg_semantics=True", "compute_loss=True"], marks=pytest.mark.slow),
    ],
)
def test_one_partition_equals_pbgs_filtered_evaluator(
    overrides: list[str], reference_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = reference_path / "golden" / "fb237_1p_complex"
    expected = json.loads((folder / "expected.json").read_text())["settings"]["allnegs_filtered"]["first_run"][-1]

    report = run(folder, tmp_path / "output", monkeypatch, FILTER, *overrides)

    assert_equals_pbg(report, expected["metrics"], expected["count"])
    if overrides:
        assert expected["metrics"]["loss"] == pytest.approx(report["loss"], rel=1e-5)


# The heterogeneous case: operators on the candidates' side, global embeddings, two entity types.


def partitions(case: Path, entity_type: str, version: int) -> list[np.ndarray]:
    files = sorted((case / "checkpoint").glob(f"embeddings_{entity_type}_*.v{version}.h5"))
    return [h5py.File(file)["embeddings"][:].astype(np.float64) for file in files]


def parameters(case: Path, version: int) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and name.startswith("model"):
            found[name] = item[:].astype(np.float64)

    h5py.File(case / "checkpoint" / f"model.v{version}.h5").visititems(visit)
    return found


def operate(operator: str, values: Mapping[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    if operator == "none":
        return x
    if operator == "diagonal":
        return x * values["diagonal"]
    if operator == "translation":
        return x + values["translation"]
    if operator in ("linear", "affine"):
        return x @ values["linear_transformation"].T + values.get("translation", 0.0)
    assert operator == "complex_diagonal"
    half = x.shape[1] // 2
    y = (x[:, :half] + 1j * x[:, half:]) * (values["real"] + 1j * values["imag"])
    return np.concatenate([y.real, y.imag], axis=1)


@functools.cache
def pessimistic_ranks(case: Path) -> np.ndarray:
    """Every query's rank in float64, head and tail queries of each edge."""
    config = load_config(case / "eval_allnegs.py")
    version = int((case / "checkpoint" / "checkpoint_version.txt").read_text())
    model = parameters(case, version)
    tables, offsets = {}, {}
    for name in config.entities:
        parts = partitions(case, name, version)
        offsets[name] = np.cumsum([0, *(len(part) for part in parts)])
        tables[name] = np.concatenate(parts) + model[f"model/entities/{name}/global_embedding"]
    ranks = []
    for rel, edges in enumerate(edges_by_relation(case, config, offsets)):
        relation = config.relations[rel]
        prefix = f"model/relations/{rel}/operator/rhs/"
        values = {name.removeprefix(prefix): value for name, value in model.items() if name.startswith(prefix)}
        lhs, rhs = tables[relation.lhs], operate(relation.operator, values, tables[relation.rhs])
        for at in range(0, len(edges), EDGES_AT_ONCE):
            heads, tails = edges[at : at + EDGES_AT_ONCE].T
            ranks += [ranks_among(rhs[tails] @ lhs.T, heads), ranks_among(lhs[heads] @ rhs.T, tails)]
    return np.concatenate(ranks)


def edges_by_relation(case: Path, config: Any, offsets: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Each relation's edges, as pairs of entities whose numbers go on through the partitions of their type."""
    edges: list[list[np.ndarray]] = [[np.empty((0, 2), np.int64)] for _ in config.relations]
    for path in sorted((case / "edges_test").glob("edges_*.h5")):
        bucket = tuple(map(int, path.stem.split("_")[1:]))
        with h5py.File(path) as file:
            lhs, rels, rhs = (file[name][:] for name in ("lhs", "rel", "rhs"))
        for rel, relation in enumerate(config.relations):
            first = [
                offsets[name][part if len(offsets[name]) > 2 else 0]
                for name, part in zip((relation.lhs, relation.rhs), bucket, strict=True)
            ]
            edges[rel].append(np.stack([lhs[rels == rel], rhs[rels == rel]], axis=1) + first)
    return [np.concatenate(of_relation) for of_relation in edges]


def ranks_among(scores: np.ndarray, true: np.ndarray) -> np.ndarray:
    """The rank of one entity of each row, behind all that score the same."""
    return (scores >= np.take_along_axis(scores, true[:, None], axis=1) - 1e-12).sum(axis=1)


@pytest.mark.one_case
@pytest.mark.reference
@pytest.mark.parametrize("precision", ["float32", "float64", "certified"])
def test_the_heterogeneous_case_equals_a_slow_reference(
    precision: str, reference_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within a few near-ties: candidates that stand within the rounding of float32 vectors."""
    case = reference_path / "golden" / "fb237_het"
    monkeypatch.chdir(case)
    ranks = pessimistic_ranks(case)

    report = run(case, tmp_path / "output", monkeypatch, f"precision={precision}")

    assert len(ranks) == report.document["num_queries"]
    near_ties = 0 if precision == "float64" else 2
    share = near_ties / (len(ranks) // 2)
    expected = {"mean_rank": (ranks.mean(), share), "mean_reciprocal_rank": ((1 / ranks).mean(), near_ties * 5e-8)}
    expected |= {f"hits_at_{k}": ((ranks <= k).mean(), share / 4) for k in (1, 10, 50)}
    for name, (value, error) in expected.items():
        assert value == pytest.approx(report[f"both.pessimistic.{name}"], rel=1e-12, abs=error), name
