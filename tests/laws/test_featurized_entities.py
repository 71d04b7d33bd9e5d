"""Featurized entities: an entity is its list of features, its vector their mean; only batch negatives compete."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pbgeval import evaluate, load_config
from tests import reference
from tests.kit import pbg_files

NUM_FEATURES, NUM_ITEMS, DIMENSION, CHUNK = 12, 9, 4, 5
LISTS = [[0], [1, 2], [2, 1], [3, 4, 5, 6], [7], [7, 7], [8, 9], [10], [11], [0]]  # lengths with exact means


def quarters(generator: np.random.Generator, *shape: int) -> np.ndarray:
    return generator.integers(-8, 9, shape) / 4


@pytest.fixture
def case(tmp_path: Path) -> dict[str, Any]:
    """Documents (featurized) that cite items; 23 edges, so that the last chunk is short."""
    generator = np.random.default_rng(5)
    docs = [LISTS[i] for i in generator.integers(0, len(LISTS), 23)]
    items = generator.integers(0, NUM_ITEMS, 23)
    features, rows = quarters(generator, NUM_FEATURES, DIMENSION), quarters(generator, NUM_ITEMS, DIMENSION)
    pbg_files.write_entity_counts(tmp_path / "entity", {"doc": [NUM_FEATURES], "item": [NUM_ITEMS]})
    pbg_files.write_edges(tmp_path / "edges", (0, 0), [-1] * 23, [0] * 23, items, lhs_features=docs)
    pbg_files.write_checkpoint_version(tmp_path / "checkpoint", 1)
    pbg_files.write_embeddings(tmp_path / "checkpoint", "doc", 0, features, version=1)
    pbg_files.write_embeddings(tmp_path / "checkpoint", "item", 0, rows, version=1)
    config = {
        "entities": {"doc": {"num_partitions": 1, "featurized": True}, "item": {"num_partitions": 1}},
        "relations": [{"name": "cites", "lhs": "doc", "rhs": "item", "operator": "none"}],
        "entity_path": str(tmp_path / "entity"),
        "edge_paths": [str(tmp_path / "edges")],
        "checkpoint_path": str(tmp_path / "checkpoint"),
        "dimension": DIMENSION,
        "global_emb": False,
        "comparator": "dot",
        "num_batch_negs": CHUNK,
        "num_uniform_negs": 0,
        "batch_size": 10,
        "workers": 1,
        "hits_at": [1, 2],
    }
    (tmp_path / "eval.json").write_text(json.dumps(config))
    vectors = [features[listed].mean(0) for listed in docs]
    return {"folder": tmp_path, "docs": docs, "vectors": vectors, "items": rows[items]}


def expected_head_ranks(case: dict[str, Any], *, copies_compete: bool, batch: int) -> list[reference.Ranks]:
    """Rank each document among those of its chunk by sorting."""
    ranks = []
    for begin in range(0, 23, batch):
        for start in range(begin, min(begin + batch, 23), CHUNK):
            chunk = range(start, min(start + CHUNK, begin + batch, 23))
            for query in chunk:
                scores = {other: float(case["vectors"][other] @ case["items"][query]) for other in chunk}
                true_list = sorted(case["docs"][query])
                competitors = [
                    scores[other]
                    for other in chunk
                    if other != query and (copies_compete or sorted(case["docs"][other]) != true_list)
                ]
                best, worst = reference.rank_by_sorting(scores[query], competitors)
                ranks.append(reference.Ranks(best, worst, len(competitors) + 1))
    return ranks


@pytest.mark.parametrize("semantics", ["ours", "pbg"])
def test_documents_are_ranked_among_those_of_their_chunk(case: dict[str, Any], semantics: str, tmp_path: Path) -> None:
    is_pbg = semantics == "pbg"
    overrides = ["pbg_semantics=True", "num_uniform_negs=3"] if is_pbg else []

    report = evaluate(load_config(case["folder"] / "eval.json", overrides), output=tmp_path / "output", workers=1)

    expected = expected_head_ranks(case, copies_compete=is_pbg, batch=10 if is_pbg else 23)
    metrics = reference.rank_metrics(expected, [1, 2])
    assert [
        (rank_type, name)
        for rank_type, of_type in metrics.items()
        for name, value in of_type.items()
        if value != pytest.approx(report[f"head.{rank_type}.{name}"], rel=1e-12)
    ] == []
    assert reference.query_auc(expected) == pytest.approx(report["head.query_auc"], rel=1e-12)
    candidates = report.document["diagnostics"]["head"]["num_candidates"]
    assert min(rank.num_candidates for rank in expected) == candidates["min"]
    assert report.document["diagnostics"]["head"]["num_queries_topped_up"] == 0


def test_a_feature_out_of_range_names_file_and_row(case: dict[str, Any], tmp_path: Path) -> None:
    pbg_files.write_edges(
        case["folder"] / "edges", (0, 0), [-1, -1], [0, 0], [0, 1], lhs_features=[[0], [NUM_FEATURES]]
    )

    with pytest.raises(Exception, match=r"lhsd_data, row 1: expected features in 0\.\.11 .* got feature 12"):
        evaluate(load_config(case["folder"] / "eval.json"), output=tmp_path / "output", workers=1)
