"""Sizes -> a random graph and random embeddings in PyTorch-BigGraph's format, the same for the same sizes.

entity/       entity counts, the number of dynamic relations
checkpoint/   embeddings per partition, one complex_diagonal operator per relation and side
edges/        a file per bucket, int64 as PyTorch-BigGraph writes it
few_edges/    the same buckets with one chunk of edges each: a run on them is all start-up
config.py     read by both programs
"""

from pathlib import Path

import h5py
import numpy as np
from attrs import frozen

from benchmarks import made_graph

ID_BYTES, FLOAT_BYTES = 8, 4


@frozen
class GraphSize:
    """All that decides the graph."""

    num_partitions: int
    num_entities: int  # of one partition
    num_relations: int
    num_edges: int  # of all buckets
    few_edges: int  # of one bucket of the edges for start-up
    dimension: int
    seed: int = 0

    @property
    def num_buckets(self) -> int:
        return self.num_partitions**2

    @property
    def bytes_on_disk(self) -> int:
        embeddings = self.num_partitions * self.num_entities * self.dimension * FLOAT_BYTES
        edges = (self.num_edges + self.num_buckets * self.few_edges) * 3 * ID_BYTES
        return embeddings + edges


@frozen
class Protocol:
    """What both programs are asked to do."""

    num_batch_negs: int
    num_uniform_negs: int
    batch_size: int  # of PyTorch-BigGraph
    workers: int
    all_negs: bool = False  # every entity of the partition instead


def make_graph(folder: Path, size: GraphSize) -> None:
    """Write the graph into `folder`, unless this very graph is there already."""
    if made_graph.is_made(folder, size):
        return
    made_graph.begin(folder, size.bytes_on_disk, ("entity", "checkpoint", "edges", "few_edges"))
    _write_entities(folder, size)
    _write_model(folder / "checkpoint" / "model.v1.h5", size)
    for bucket, num_edges in enumerate(_shares(size.num_edges, size.num_buckets)):
        _write_bucket(folder / "edges", bucket, num_edges, size)
        _write_bucket(folder / "few_edges", bucket, min(size.few_edges, num_edges), size)
    made_graph.finish(folder, size)


def write_config(folder: Path, size: GraphSize, protocol: Protocol) -> Path:
    """Write the config that both programs read."""
    relation = {
        "name": "all",
        "lhs": "all",
        "rhs": "all",
        "operator": "complex_diagonal",
        "all_negs": protocol.all_negs,
    }
    settings = {
        "entity_path": str(folder / "entity"),
        "edge_paths": [str(folder / "edges")],
        "checkpoint_path": str(folder / "checkpoint"),
        "entities": {"all": {"num_partitions": size.num_partitions}},
        "relations": [relation],
        "dynamic_relations": True,
        "dimension": size.dimension,
        "global_emb": False,
        "comparator": "dot",
        "loss_fn": "softmax",
        "num_batch_negs": protocol.num_batch_negs,
        "num_uniform_negs": protocol.num_uniform_negs,
        "batch_size": protocol.batch_size,
        "workers": protocol.workers,
    }
    return made_graph.write_config(folder, settings)


def _write_entities(folder: Path, size: GraphSize) -> None:
    (folder / "entity" / "dynamic_rel_count.txt").write_text(f"{size.num_relations}\n", encoding="utf-8")
    for partition in range(size.num_partitions):
        made_graph.write_partition(folder, partition, size.num_entities, size.dimension, size.seed)


def _write_model(path: Path, size: GraphSize) -> None:
    random = np.random.default_rng([size.seed, 1])
    shape = (size.num_relations, size.dimension // 2)
    with h5py.File(path, "w") as file:
        file.attrs["format_version"] = made_graph.FORMAT_VERSION
        model = file.create_group("model", track_order=True)
        for side in ("lhs", "rhs"):
            for name in ("real", "imag"):
                values = random.standard_normal(shape, dtype=np.float32) / np.float32(2**0.5)
                dataset = model.create_dataset(f"relations/0/operator/{side}/{name}", data=values)
                dataset.attrs["state_dict_key"] = f"{side}_operators.0.{name}"


def _write_bucket(folder: Path, bucket: int, num_edges: int, size: GraphSize) -> None:
    lhs_partition, rhs_partition = divmod(bucket, size.num_partitions)
    highest = {"lhs": size.num_entities, "rel": size.num_relations, "rhs": size.num_entities}
    with h5py.File(folder / f"edges_{lhs_partition}_{rhs_partition}.h5", "w") as file:
        file.attrs["format_version"] = made_graph.FORMAT_VERSION
        for column, (name, high) in enumerate(highest.items()):
            random = np.random.default_rng([size.seed, 2, bucket, column])
            ids = file.create_dataset(name, (num_edges,), np.int64)
            for start, stop in made_graph.blocks(num_edges, made_graph.ROWS_AT_A_TIME):
                ids[start:stop] = random.integers(0, high, stop - start)


def _shares(total: int, parts: int) -> list[int]:
    return [total * (part + 1) // parts - total * part // parts for part in range(parts)]
