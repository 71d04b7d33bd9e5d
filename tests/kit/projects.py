"""What pages of documentation take for given: a project as users have one, files of edges, models of other systems."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from pbgeval.examples.demo import make_demo
from pbgeval.examples.training import Training
from pbgeval.progress import Observer
from tests.kit import pbg_files
from tests.kit.case import TinyCase
from tests.pykeen_models import ENTITIES, NUM_ENTITIES, NUM_RELATIONS, RELATIONS, Diagonal
from tests.systems_reference import write_labels

DIMENSION = 4
NUM_SUITE_RELATIONS = 3
SUITE_MODELS = """
import time
import torch
from neighbour_of_suite import score
from pbgeval import edge_scorer, side_scorer

def distance(graph):
    return edge_scorer(score, num_entities=graph.num_entities, num_relations=graph.num_relations)

def degree(graph):
    time.sleep(0.3)  # so that a test can end the suite in its midst
    counts = torch.bincount(torch.from_numpy(graph.train[:, [0, 2]].ravel()), minlength=graph.num_entities)
    def score_side(side, edges):
        return counts.double().expand(len(edges), -1)
    return side_scorer(score_side, num_entities=graph.num_entities, num_relations=graph.num_relations)
"""
_NEIGHBOUR = "def score(lhs, rel, rhs):\n    return -((lhs + rel - rhs).abs() % 7).float()\n"
_SUITE = """
settings: {hits_at: [1, 3]}
metrics: [mrr, hits@3, mean_rank]
graphs:
%s
models:
  distance: models.py:distance
  degree: models.py:degree
  vectors: models/{graph}
"""


def write_project(folder: Path) -> TinyCase:
    """A project of PyTorch-BigGraph's as the pages describe it: eval.py, entity, checkpoint, three folders of edges."""
    sizes: dict[str, Any] = {"partition_sizes": (60, 60), "num_tags": 9, "workers": 1}
    for seed, name, num_edges in ((2, "train", 150), (3, "valid", 20)):
        other = TinyCase.write(
            folder.with_name(f"{folder.name}_{name}"), **sizes, edges_per_bucket=num_edges, seed=seed
        )
        shutil.move(other.root / "edges", folder / f"edges_{name}")
    case = TinyCase.write(folder, **sizes, edges_per_bucket=30, edge_paths=["edges_test"])
    (case.root / "edges").rename(case.root / "edges_test")
    (case.root / "checkpoint" / "config.json").write_text(json.dumps(case.settings), encoding="utf-8")
    return case


def write_demo(folder: Path) -> None:
    """Write `demo` as `kgeval-dist demo` leaves it, but for training: the model is random."""
    make_demo(folder / "demo", Observer(), str, Training(epochs=0))


def write_labelled_edges(path: Path, num_edges: int, num_entities: int, num_relations: int, seed: int) -> np.ndarray:
    """Write edges by name as `label<TAB>relation<TAB>label`; return their ids (edges, 3)."""
    edges_E3 = np.random.default_rng(seed).integers((num_entities, num_relations, num_entities), size=(num_edges, 3))
    lines = [f"entity {lhs}\trelation {rel}\tentity {rhs}\n" for lhs, rel, rhs in edges_E3.tolist()]
    path.write_text("".join(lines), encoding="utf-8")
    return edges_E3


def write_untrained_model(graph: Path, num_relations: int) -> Path:
    """Write a checkpoint for an imported graph of one type, and a config that names its dictionaries beside it.

    Returns:
        The config, `eval.py` in the folder where the graph is.
    """
    source = np.random.default_rng(0)
    counts = sorted((graph / "entity").glob("entity_count_all_*.txt"))
    checkpoint = graph / "checkpoint"
    pbg_files.write_checkpoint_version(checkpoint, 1)
    for partition, path in enumerate(counts):
        values = source.standard_normal((int(path.read_text()), DIMENSION))
        pbg_files.write_embeddings(checkpoint, "all", partition, values, version=1)
    pbg_files.write_model(checkpoint, {}, {}, version=1, dynamic=True)
    settings = {
        "entity_path": f"{graph.name}/entity",
        "edge_paths": [f"{graph.name}/test"],
        "checkpoint_path": f"{graph.name}/checkpoint",
        "entities": {"all": {"num_partitions": len(counts)}},
        "relations": [{"name": "all", "lhs": "all", "rhs": "all", "operator": "none"}],
        "dynamic_relations": True,
        "global_emb": False,
        "dimension": DIMENSION,
    }
    config = graph.with_name("eval.py")
    config.write_text(f"def get_torchbiggraph_config():\n    return {settings}\n", encoding="utf-8")
    return config


def write_pykeen_arrays(folder: Path) -> None:
    """Write the stand-in for a PyKEEN model as `pbgeval/examples/export_pykeen.py` writes one."""
    folder.mkdir()
    (folder / "model.json").write_text('{"model": "distmult", "reciprocal": false, "norm": 1}', encoding="utf-8")
    np.save(folder / "entity.npy", ENTITIES.astype(np.float32))
    np.save(folder / "relation.npy", RELATIONS[:NUM_RELATIONS].astype(np.float32))
    write_labels(folder / "entities.tsv", [f"entity {index}" for index in range(NUM_ENTITIES)])
    write_labels(folder / "relations.tsv", [f"relation {index}" for index in range(NUM_RELATIONS)])


def pykeen_names(test: np.ndarray, train: np.ndarray) -> dict[str, Any]:
    """Return stand-ins for a model of PyKEEN's and its dataset, of edges (n, 3), by the names that pages use."""

    def triples(edges_E3: np.ndarray) -> SimpleNamespace:
        labels = [(f"entity {head}", f"relation {relation}", f"entity {tail}") for head, relation, tail in edges_E3]
        return SimpleNamespace(mapped_triples=torch.tensor(edges_E3), num_entities=NUM_ENTITIES, triples=labels)

    dataset = SimpleNamespace(testing=triples(test), training=triples(train[5:]), validation=triples(train[:5]))
    return {"model": Diagonal(), "dataset": dataset}


def write_openbiolink_dataset(root: Path, num_test: int, num_entities: int, num_relations: int) -> None:
    """Write `root/HQ_DIR` as OpenBioLink lays it out; every entity and relation is in a training edge."""
    folder = root / "HQ_DIR" / "train_test_data"
    folder.mkdir(parents=True)
    source = np.random.default_rng(1)
    around = [(index, index % num_relations, (index + 1) % num_entities) for index in range(num_entities)]
    drawn = source.integers((num_entities, num_relations, num_entities), size=(num_test + 5, 3)).tolist()
    for name, edges in (("train", around), ("test", drawn[:num_test]), ("val", drawn[num_test:])):
        lines = [f"e{head:02}\tr{relation}\te{tail:02}\t1\t0\n" for head, relation, tail in edges]
        (folder / f"{name}_sample.csv").write_text("".join(lines), encoding="utf-8")


def _write_vectors(folder: Path, num_entities: int) -> None:
    """Write a model of tables with labels."""
    source = np.random.default_rng(num_entities)
    folder.mkdir(parents=True)
    np.save(folder / "entity.npy", source.standard_normal((num_entities, DIMENSION)).astype(np.float32))
    np.save(folder / "relation.npy", source.standard_normal((NUM_SUITE_RELATIONS, DIMENSION)).astype(np.float32))
    (folder / "model.json").write_text(json.dumps({"model": "distmult"}), encoding="utf-8")
    for name, number, word in (("entities", num_entities, "entity"), ("relations", NUM_SUITE_RELATIONS, "relation")):
        labels = "".join(f"{index}\t{word} {index}\n" for index in range(number))
        (folder / f"{name}.tsv").write_text(labels, encoding="utf-8")


def write_suite(path: Path, graphs: Mapping[str, int]) -> None:
    """Write graphs of random edges, by name with their number of entities, three models, and the file of both."""
    lines, folder = [], path.parent
    for seed, (name, num_entities) in enumerate(graphs.items()):
        for kind, num_edges in (("train", 40), ("valid", 10), ("test", 15)):
            edges = folder / f"{name}-{kind}.tsv"
            write_labelled_edges(edges, num_edges, num_entities, NUM_SUITE_RELATIONS, seed=10 * seed + num_edges)
        lines.append(f"  {name}: {{train: {name}-train.tsv, known: [{name}-valid.tsv], test: {name}-test.tsv}}")
        _write_vectors(folder / "models" / name, num_entities)
    (folder / "models.py").write_text(SUITE_MODELS, encoding="utf-8")
    (folder / "neighbour_of_suite.py").write_text(_NEIGHBOUR, encoding="utf-8")
    path.write_text(_SUITE % "\n".join(lines), encoding="utf-8")
