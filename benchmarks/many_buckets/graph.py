"""Numbers of parts -> a graph that is nearly all parts, with hardly any edges, in PyTorch-BigGraph's format.

entity/       entity counts; where relations are dynamic, their number
checkpoint/   embeddings per partition, one translation per relation
edges_<i>/    a file per bucket, one folder per edge path
config.py     what is evaluated
"""

import itertools
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from attrs import frozen

from benchmarks import made_graph

DIMENSION = 8
SEED = 0


@frozen
class Parts:
    """How many parts of each kind a graph has."""

    candidates: str  # all or sampled
    num_partitions: int = 1  # of each entity type
    num_types: int = 1
    num_relations: int = 1
    num_paths: int = 1
    num_buckets: int = 1  # of each edge path
    edges_per_bucket: int = 2
    entities_per_partition: int = 10
    dynamic: bool = True

    @property
    def num_edges(self) -> int:
        """The edges of all paths."""
        return self.num_paths * self.num_buckets * self.edges_per_bucket


def make_graph(folder: Path, parts: Parts) -> Path:
    """Write the graph into an empty folder; return its config."""
    paths = [f"edges_{number}" for number in range(parts.num_paths)]
    for name in ("entity", "checkpoint", *paths):
        (folder / name).mkdir(parents=True)
    names = [f"type_{number}" for number in range(parts.num_types)]
    random = np.random.default_rng(SEED)
    for name, partition in itertools.product(names, range(parts.num_partitions)):
        count = folder / "entity" / f"entity_count_{name}_{partition}.txt"
        count.write_text(f"{parts.entities_per_partition}\n", encoding="utf-8")
        values = random.standard_normal((parts.entities_per_partition, DIMENSION), dtype=np.float32)
        with h5py.File(folder / "checkpoint" / f"embeddings_{name}_{partition}.v1.h5", "w") as file:
            file.attrs["format_version"] = made_graph.FORMAT_VERSION
            file.create_dataset("embeddings", data=values)
    _write_model(folder / "checkpoint" / "model.v1.h5", parts, random)
    (folder / "checkpoint" / "checkpoint_version.txt").write_text("1\n", encoding="utf-8")
    if parts.dynamic:
        (folder / "entity" / "dynamic_rel_count.txt").write_text(f"{parts.num_relations}\n", encoding="utf-8")
    for path in paths:
        for bucket in range(parts.num_buckets):
            _write_bucket(folder / path, bucket, parts, random)
    return _write_config(folder, parts, names, paths)


def _write_model(path: Path, parts: Parts, random: np.random.Generator) -> None:
    count, sides, shape = parts.num_relations, ["rhs"], (DIMENSION,)
    if parts.dynamic:
        count, sides, shape = 1, ["lhs", "rhs"], (parts.num_relations, DIMENSION)
    with h5py.File(path, "w") as file:
        file.attrs["format_version"] = made_graph.FORMAT_VERSION
        model = file.create_group("model", track_order=True)
        for relation, side in itertools.product(range(count), sides):
            values = random.standard_normal(shape, dtype=np.float32)
            of_side = f"relations/{relation}/operator/{side}/translation"
            dataset = model.create_dataset(of_side, data=values)
            dataset.attrs["state_dict_key"] = f"{side}_operators.{relation}.translation"


def _write_bucket(folder: Path, bucket: int, parts: Parts, random: np.random.Generator) -> None:
    # The buckets of a walk around the partitions, then of one that is a step longer: P buckets touch each one twice.
    step, lhs = divmod(bucket, parts.num_partitions)
    rhs = (lhs + step + 1) % parts.num_partitions
    highest = {"lhs": parts.entities_per_partition, "rel": parts.num_relations, "rhs": parts.entities_per_partition}
    with h5py.File(folder / f"edges_{lhs}_{rhs}.h5", "w") as file:
        file.attrs["format_version"] = made_graph.FORMAT_VERSION
        for name, high in highest.items():
            file[name] = random.integers(0, high, parts.edges_per_bucket)


def _write_config(folder: Path, parts: Parts, names: list[str], paths: list[str]) -> Path:
    count = 1 if parts.dynamic else parts.num_relations
    relations = [
        {
            "name": f"relation_{number}",
            "lhs": names[number % len(names)],
            "rhs": names[(number + 1) % len(names)],
            "operator": "translation",
        }
        for number in range(count)
    ]
    settings: dict[str, Any] = {
        "entity_path": str(folder / "entity"),
        "edge_paths": [str(folder / path) for path in paths],
        "checkpoint_path": str(folder / "checkpoint"),
        "entities": {name: {"num_partitions": parts.num_partitions} for name in names},
        "relations": relations,
        "dynamic_relations": parts.dynamic,
        "dimension": DIMENSION,
        "global_emb": False,
        "comparator": "dot",
        "candidates": parts.candidates,
        "num_batch_negs": 10,
        "num_uniform_negs": 10,
    }
    return made_graph.write_config(folder, settings)
