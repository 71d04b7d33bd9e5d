"""Sizes -> a random partitioned graph, random embeddings and known edges in PyTorch-BigGraph's format.

entity/       entity counts, the number of dynamic relations
checkpoint/   embeddings per partition, one complex_diagonal operator per side
known/        a file per bucket, int64 as PyTorch-BigGraph writes it
edges/        the evaluated edges: some of the known ones
config.py     what pbgeval reads

Heads, relations and tails are uneven, as in real graphs. One key, the hub, has many known answers in every partition.
"""

from pathlib import Path

import h5py
import numpy as np
import numpy.typing as npt
from attrs import frozen

from benchmarks import made_graph

HUB_ENTITY, HUB_RELATION = 0, 0  # of partition 0

Edges = npt.NDArray[np.int64]  # one row (lhs, rel, rhs) per edge


@frozen
class GraphSize:
    """All that decides the graph."""

    num_partitions: int
    num_entities: int  # of one partition
    num_relations: int
    dimension: int
    num_known: int  # edges of all buckets
    num_edges: int  # evaluated, of all buckets
    num_hub_answers: int
    num_hub_edges: int  # evaluated
    seed: int = 0

    @property
    def num_buckets(self) -> int:
        return self.num_partitions**2

    @property
    def embedding_bytes(self) -> int:
        return self.num_partitions * self.num_entities * self.dimension * 4

    @property
    def known_bytes(self) -> int:
        return (self.num_known + self.num_hub_answers) * 3 * 8


def make_graph(folder: Path, size: GraphSize) -> None:
    """Write the graph into `folder`, unless this very graph is there already."""
    if made_graph.is_made(folder, size):
        return
    made_graph.begin(folder, size.embedding_bytes + size.known_bytes, ("entity", "checkpoint", "edges", "known"))
    _write_entities(folder, size)
    _write_model(folder / "checkpoint" / "model.v1.h5", size)
    for bucket in range(size.num_buckets):
        known, evaluated = _bucket(bucket, size)
        _write_bucket(folder / "known", bucket, known, size)
        _write_bucket(folder / "edges", bucket, evaluated, size)
    made_graph.finish(folder, size)


def write_config(folder: Path, size: GraphSize, max_memory: str) -> Path:
    """Write the config."""
    settings = {
        "entity_path": str(folder / "entity"),
        "edge_paths": [str(folder / "edges")],
        "filter_paths": [str(folder / "known")],
        "checkpoint_path": str(folder / "checkpoint"),
        "entities": {"all": {"num_partitions": size.num_partitions}},
        "relations": [{"name": "all", "lhs": "all", "rhs": "all", "operator": "complex_diagonal"}],
        "dynamic_relations": True,
        "dimension": size.dimension,
        "global_emb": False,
        "comparator": "dot",
        "candidates": "all",
        "max_memory": max_memory,
    }
    return made_graph.write_config(folder, settings)


def _bucket(bucket: int, size: GraphSize) -> tuple[Edges, Edges]:
    """Return the known edges of a bucket, and those of them that are evaluated."""
    random = np.random.default_rng([size.seed, 2, bucket])
    num_known = _share(size.num_known, bucket, size.num_buckets)
    known = np.empty((num_known, 3), np.int64)
    for column, (count, power) in enumerate(((size.num_entities, 4), (size.num_relations, 3), (size.num_entities, 2))):
        known[:, column] = count * random.random(num_known) ** power  # small ids are frequent
    evaluated = known[random.integers(0, num_known, _share(size.num_edges, bucket, size.num_buckets))]
    lhs_partition, rhs_partition = divmod(bucket, size.num_partitions)
    if lhs_partition == 0:
        num_answers = _share(size.num_hub_answers, rhs_partition, size.num_partitions)
        hub = np.empty((num_answers, 3), np.int64)
        hub[:, 0], hub[:, 1] = HUB_ENTITY, HUB_RELATION
        hub[:, 2] = random.permutation(size.num_entities)[:num_answers]
        known = np.concatenate([known, hub])
        num_hub_edges = min(_share(size.num_hub_edges, rhs_partition, size.num_partitions), len(evaluated))
        evaluated[:num_hub_edges] = hub[:num_hub_edges]  # in the place of others
    return known, evaluated


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


def _write_bucket(folder: Path, bucket: int, edges: Edges, size: GraphSize) -> None:
    lhs_partition, rhs_partition = divmod(bucket, size.num_partitions)
    with h5py.File(folder / f"edges_{lhs_partition}_{rhs_partition}.h5", "w") as file:
        file.attrs["format_version"] = made_graph.FORMAT_VERSION
        for column, name in enumerate(("lhs", "rel", "rhs")):
            file.create_dataset(name, data=np.ascontiguousarray(edges[:, column]))


def _share(total: int, part: int, parts: int) -> int:
    return total * (part + 1) // parts - total * part // parts
