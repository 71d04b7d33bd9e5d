"""Sizes -> a random graph with power-law degrees in PyTorch-BigGraph's format, the same for the same sizes.

entity/       entity counts
checkpoint/   embeddings per partition
edges/        a file per bucket, int32
config.py     read by kgeval-dist
"""

import multiprocessing
from functools import partial
from pathlib import Path

import h5py
import numpy as np
from attrs import frozen

from benchmarks import made_graph

FLOAT_BYTES = ID_BYTES = 4
SKEW = 3  # an entity of rank r has about r^(1 / SKEW - 1) of the edges
SPREAD = 7_368_787  # a prime: hubs are not neighbours in their partition


@frozen
class GraphSize:
    """All that decides the graph."""

    num_partitions: int
    num_entities: int  # of one partition
    num_edges: int  # of all buckets
    dimension: int
    seed: int = 0

    @property
    def embedding_bytes(self) -> int:
        return self.num_partitions * self.num_entities * self.dimension * FLOAT_BYTES

    @property
    def bytes_on_disk(self) -> int:
        return self.embedding_bytes + self.num_edges * 3 * ID_BYTES


def make_graph(folder: Path, size: GraphSize, num_processes: int) -> None:
    """Write the graph into `folder`, unless this very graph is there already."""
    if made_graph.is_made(folder, size):
        return
    made_graph.begin(folder, size.bytes_on_disk, ("entity", "checkpoint", "edges"))
    with multiprocessing.get_context("forkserver").Pool(num_processes) as pool:
        pool.map(partial(_write_partition, folder, size), range(size.num_partitions))
        pool.map(partial(_write_bucket, folder, size), range(size.num_partitions**2), chunksize=1)
    with h5py.File(folder / "checkpoint" / "model.v1.h5", "w") as file:
        file.attrs["format_version"] = made_graph.FORMAT_VERSION
        file.create_group("model")
    made_graph.finish(folder, size)


def write_config(folder: Path, size: GraphSize, num_batch_negs: int, num_uniform_negs: int, max_memory: str) -> Path:
    """Write the config of the evaluation."""
    settings = {
        "entity_path": str(folder / "entity"),
        "edge_paths": [str(folder / "edges")],
        "checkpoint_path": str(folder / "checkpoint"),
        "entities": {"all": {"num_partitions": size.num_partitions}},
        "relations": [{"name": "follows", "lhs": "all", "rhs": "all", "operator": "none"}],
        "dimension": size.dimension,
        "global_emb": False,
        "comparator": "dot",
        "num_batch_negs": num_batch_negs,
        "num_uniform_negs": num_uniform_negs,
        "max_memory": max_memory,
    }
    path = folder / "config.py"
    text = f"from pbgeval import EvalConfig\n\n\ndef get_config():\n    return EvalConfig(**{settings!r})\n"
    path.write_text(text, encoding="utf-8")
    return path


def _write_partition(folder: Path, size: GraphSize, partition: int) -> None:
    made_graph.write_partition(folder, partition, size.num_entities, size.dimension, size.seed)


def _write_bucket(folder: Path, size: GraphSize, bucket: int) -> None:
    num_buckets = size.num_partitions**2
    num_edges = size.num_edges * (bucket + 1) // num_buckets - size.num_edges * bucket // num_buckets
    lhs_partition, rhs_partition = divmod(bucket, size.num_partitions)
    with h5py.File(folder / "edges" / f"edges_{lhs_partition}_{rhs_partition}.h5", "w") as file:
        file.attrs["format_version"] = made_graph.FORMAT_VERSION
        file.create_dataset("rel", data=np.zeros(num_edges, np.int32))  # one relation
        for column, name in enumerate(("lhs", "rhs")):
            random = np.random.default_rng([size.seed, 1, bucket, column])
            ids = file.create_dataset(name, (num_edges,), np.int32)
            for start, stop in made_graph.blocks(num_edges, made_graph.ROWS_AT_A_TIME):
                ids[start:stop] = _power_law(random, stop - start, size.num_entities)


def _power_law(random: np.random.Generator, count: int, num_entities: int) -> np.ndarray:
    """Return ids of which the r-th most frequent occurs about r^(1 / SKEW - 1) times as often as the first."""
    uniform = random.random(count)
    rank = (uniform**SKEW * num_entities).astype(np.int64)
    return (rank * SPREAD % num_entities).astype(np.int32)
