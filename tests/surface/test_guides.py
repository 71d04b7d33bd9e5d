"""docs/guides: every command, pasted into a folder as the page describes it, does what the page says."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.pasted_commands import REPOSITORY, Block, blocks_of, pasted
from tests.pykeen_models import ENTITIES, NUM_ENTITIES, NUM_RELATIONS, RELATIONS, Diagonal
from tests.systems_reference import DglkeFolder, write_labels
from tests.tiny_checkpoint import TinyCase, metrics_of, numbers_of, run_main

GUIDES = REPOSITORY / "docs" / "guides"
PAGES = sorted(path.name for path in GUIDES.glob("*.md"))


def commands_succeed(name: str, folder: Path) -> str:
    """Paste a page's commands; return what they print."""
    done = pasted(blocks_of(GUIDES / name), folder)
    assert 0 == done.returncode, done.stderr
    return done.stdout


def blocks_in(name: str, language: str) -> list[Block]:
    return [block for block in blocks_of(GUIDES / name) if block.language == language]


def write_project(folder: Path) -> TinyCase:
    """A project of PyTorch-BigGraph's as the pages describe it: eval.py, entity, checkpoint, three folders of edges."""
    sizes = {"partition_sizes": (60, 60), "num_tags": 9}
    for seed, name, num_edges in ((2, "train", 150), (3, "valid", 20)):
        other = TinyCase.write(folder.with_name(name), **sizes, edges_per_bucket=num_edges, seed=seed)
        shutil.move(other.root / "edges", folder / f"edges_{name}")
    case = TinyCase.write(folder, **sizes, edges_per_bucket=30, edge_paths=["edges_test"])
    (case.root / "edges").rename(case.root / "edges_test")
    (case.root / "checkpoint" / "config.json").write_text(json.dumps(case.settings), encoding="utf-8")
    return case


def write_labelled_edges(path: Path, num_edges: int, num_entities: int, num_relations: int, seed: int) -> np.ndarray:
    """Write edges by name as `label<TAB>relation<TAB>label`; return their ids (edges, 3)."""
    source = np.random.default_rng(seed)
    edges_E3 = source.integers((num_entities, num_relations, num_entities), size=(num_edges, 3))
    lines = [f"entity {lhs}\trelation {rel}\tentity {rhs}\n" for lhs, rel, rhs in edges_E3.tolist()]
    path.write_text("".join(lines), encoding="utf-8")
    return edges_E3


def test_every_guide_is_run() -> None:
    run = {"billion_edges.md", "from_dglke.md", "from_pykeen.md", "from_pytorch_biggraph.md", "reading_the_numbers.md"}

    assert run == set(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_a_guide_calls_commands_that_exist(name: str, tmp_path: Path) -> None:
    listed = run_main("--help", cwd=tmp_path).out
    blocks = blocks_of(GUIDES / name)

    assert any("kgeval-dist --config" in block.text for block in blocks)
    called = [command for block in blocks for command in block.commands]
    assert [] == [command for command in called if not re.search(rf"^\s*{command}\s", listed, re.MULTILINE)]
    assert [] == [block.text for block in blocks if block.needs not in (None, "PyKEEN")]


@pytest.mark.slow
def test_from_pytorch_biggraph(tmp_path: Path) -> None:
    case = write_project(tmp_path / "project")

    commands_succeed("from_pytorch_biggraph.md", case.root)

    results = {path.name: metrics_of(path) for path in (case.root / "results").iterdir()}
    assert {"ours", "as_pbg", "from_checkpoint", "partition", "filtered"} == results.keys()
    assert results["ours"]["metrics"] == results["from_checkpoint"]["metrics"]
    assert ("realistic", "pessimistic") == (results["ours"]["headline"], results["as_pbg"]["headline"])
    mrr = {name: of["metrics"]["both.realistic.mean_reciprocal_rank"] for name, of in results.items()}
    raw = results["filtered"]["raw_metrics"]["both.realistic.mean_reciprocal_rank"]
    assert raw < mrr["partition"]  # more candidates
    assert raw < mrr["filtered"]  # fewer


@pytest.mark.slow
def test_from_pykeen_in_partitions(tmp_path: Path) -> None:
    exported = tmp_path / "exported"
    exported.mkdir()
    description = {"model": "distmult", "reciprocal": False, "norm": 1}
    (exported / "model.json").write_text(json.dumps(description), encoding="utf-8")
    np.save(exported / "entity.npy", ENTITIES.astype(np.float32))
    np.save(exported / "relation.npy", RELATIONS[:NUM_RELATIONS].astype(np.float32))
    write_labels(exported / "entities.tsv", [f"entity {index}" for index in range(NUM_ENTITIES)])
    write_labels(exported / "relations.tsv", [f"relation {index}" for index in range(NUM_RELATIONS)])
    edges = {
        name: write_labelled_edges(tmp_path / f"{name}.tsv", number, NUM_ENTITIES, NUM_RELATIONS, seed=number)
        for name, number in (("test", 30), ("train", 90))
    }

    printed = commands_succeed("from_pykeen.md", tmp_path)

    assert "23 entities of dimension 4 in 3 partitions" in printed
    document = metrics_of(tmp_path / "results" / "pykeen")
    figures = figures_of_the_model_object(edges["test"], edges["train"])
    assert figures["both.realistic.mean_rank"] == document["metrics"]["both.realistic.mean_rank"]
    assert figures["both.realistic.hits_at_3"] == document["metrics"]["both.realistic.hits_at_3"]


def figures_of_the_model_object(test: np.ndarray, train: np.ndarray) -> dict[str, Any]:
    """Run the page's program on a stand-in; return the report's metrics."""

    def triples(edges_E3: np.ndarray) -> SimpleNamespace:
        return SimpleNamespace(mapped_triples=torch.tensor(edges_E3), num_entities=NUM_ENTITIES)

    dataset = SimpleNamespace(testing=triples(test), training=triples(train), validation=triples(train[:5]))
    names: dict[str, Any] = {"model": Diagonal(), "dataset": dataset}
    (block,) = blocks_in("from_pykeen.md", "python")
    exec(block.text, names)
    return dict(names["results"].report.document["metrics"])


def test_from_pykeen_on_a_model_object(capsys: pytest.CaptureFixture[str]) -> None:
    source = np.random.default_rng(5)
    edges_E3 = source.integers((NUM_ENTITIES, NUM_RELATIONS, NUM_ENTITIES), size=(60, 3))

    metrics = figures_of_the_model_object(edges_E3[:20], edges_E3[20:])

    mrr, hits = capsys.readouterr().out.split()
    assert (metrics["both.realistic.mean_reciprocal_rank"], metrics["both.realistic.hits_at_10"]) == (
        float(mrr),
        float(hits),
    )


@pytest.mark.slow
def test_from_dglke(tmp_path: Path) -> None:
    model = DglkeFolder(tmp_path / "ckpts" / "ComplEx_FB15k_0", "ComplEx")
    num_entities, num_relations = len(model.entity), len(model.relation)
    write_labels(model.folder / "entities.tsv", [f"entity {index}" for index in range(num_entities)])
    write_labels(model.folder / "relations.tsv", [f"relation {index}" for index in range(num_relations)])
    for name, number in (("test", 30), ("train", 90)):
        edges_E3 = write_labelled_edges(tmp_path / f"{name}.txt", number, num_entities, num_relations, seed=number)
        np.save(tmp_path / f"{name}.npy", edges_E3)
    (config,) = blocks_in("from_dglke.md", "python")
    (tmp_path / "eval.py").write_text(config.text, encoding="utf-8")

    commands_succeed("from_dglke.md", tmp_path)

    in_place, converted = (metrics_of(tmp_path / "results" / name) for name in ("dglke", "converted"))
    assert (30, 60) == (in_place["num_edges"], in_place["num_queries"])
    assert in_place["metrics"]["both.realistic.mean_rank"] == converted["metrics"]["both.realistic.mean_rank"]


@pytest.mark.slow
def test_billion_edges(tmp_path: Path) -> None:
    case = write_project(tmp_path / "project")
    for name, number in (("test", 30), ("train", 400)):
        write_labelled_edges(case.root / f"{name}.tsv", number, 40, 3, seed=number)

    printed = commands_succeed("billion_edges.md", case.root)

    assert "40 entities of type all in 4 partitions of 10 to 10" in printed
    results = {path.name: metrics_of(path) for path in (case.root / "results").iterdir()}
    assert {"sample", "until_precise", "sampled", "exact"} == results.keys()
    assert results["exact"]["num_edges"] == results["sampled"]["num_edges"] == results["until_precise"]["num_edges"]
    assert 100 == results["sample"]["num_edges"] < results["exact"]["num_edges"]
    key = "both.realistic.mean_reciprocal_rank"
    interval = results["sample"]["intervals"][key]
    assert interval["low"] < results["sample"]["metrics"][key] < interval["high"]
    assert all(of["complete"] for of in results.values())


@pytest.mark.slow
def test_reading_the_numbers(tmp_path: Path) -> None:
    case = write_project(tmp_path / "project")

    printed = commands_succeed("reading_the_numbers.md", case.root)

    exact = metrics_of(case.root / "results" / "exact")
    assert f"MRR {exact['metrics']['both.realistic.mean_reciprocal_rank']} raw" in printed
    assert "\nadjusted_mean_rank_index\n" in printed
    assert "p (Holm)" in printed
    estimates = metrics_of(case.root / "results" / "estimates")["estimates"]
    of_partition = metrics_of(case.root / "results" / "partition")["metrics"]
    interval = estimates["intervals"]["both.realistic.mean_rank"]
    # Five standard errors of the draws: an estimate of the mean rank against the whole partition.
    assert of_partition["both.realistic.mean_rank"] == pytest.approx(
        estimates["metrics"]["both.realistic.mean_rank"], abs=5 * interval["standard_error"]
    )
    assert numbers_of(case.root / "results" / "exact") != numbers_of(case.root / "results" / "other")
