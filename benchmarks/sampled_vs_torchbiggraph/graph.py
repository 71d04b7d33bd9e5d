"""Sizes -> a random graph and random embeddings in PyTorch-BigGraph's format, the same for the same sizes.

entity/       entity counts, the number of dynamic relations
checkpoint/   embeddings per partition, one complex_diagonal operator per relation and side
edges/        a file per bucket, int64 as PyTorch-BigGraph writes it
few_edges/    the same buckets with one chunk of edges each: a run on them is all start-up
config.py     read by both programs
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
from attrs import asdict, frozen

FORMAT_VERSION = 1
ROWS_AT_A_TIME = 1 << 20
ID_BYTES, FLOAT_BYTES = 8, 4
SPARE = 1.1  # disk asked for, over what the arrays take


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


def make_graph(folder: Path, size: GraphSize) -> None:
    """Write the graph into `folder`, unless this very graph is there already."""
    note = folder / "graph.json"
    wanted = json.dumps(asdict(size), indent=4) + "\n"
    if note.exists() and note.read_text(encoding="utf-8") == wanted:
        return
    folder.mkdir(parents=True, exist_ok=True)
    if note.exists() or any(folder.iterdir()):
        raise SystemExit(f"{folder}: expected an empty folder or the graph of these sizes, found something else")
    free = shutil.disk_usage(folder).free
    if free < SPARE * size.bytes_on_disk:
        raise SystemExit(f"{folder}: expected {SPARE * size.bytes_on_disk / 1e9:.2f} GB free, found {free / 1e9:.2f}")
    for name in ("entity", "checkpoint", "edges", "few_edges"):
        (folder / name).mkdir()
    _write_entities(folder, size)
    _write_model(folder / "checkpoint" / "model.v1.h5", size)
    (folder / "checkpoint" / "checkpoint_version.txt").write_text("1\n", encoding="utf-8")
    for bucket, num_edges in enumerate(_shares(size.num_edges, size.num_buckets)):
        _write_bucket(folder / "edges", bucket, num_edges, size)
        _write_bucket(folder / "few_edges", bucket, min(size.few_edges, num_edges), size)
    note.write_text(wanted, encoding="utf-8")


def write_config(folder: Path, size: GraphSize, protocol: Protocol) -> Path:
    """Write the config that both programs read."""
    settings = {
        "entity_path": str(folder / "entity"),
        "edge_paths": [str(folder / "edges")],
        "checkpoint_path": str(folder / "checkpoint"),
        "entities": {"all": {"num_partitions": size.num_partitions}},
        "relations": [{"name": "all", "lhs": "all", "rhs": "all", "operator": "complex_diagonal"}],
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
    path = folder / "config.py"
    path.write_text(f"def get_torchbiggraph_config():\n    return {settings!r}\n", encoding="utf-8")
    return path


def _write_entities(folder: Path, size: GraphSize) -> None:
    (folder / "entity" / "dynamic_rel_count.txt").write_text(f"{size.num_relations}\n", encoding="utf-8")
    for partition in range(size.num_partitions):
        count = folder / "entity" / f"entity_count_all_{partition}.txt"
        count.write_text(f"{size.num_entities}\n", encoding="utf-8")
        random = np.random.default_rng([size.seed, 0, partition])
        with h5py.File(folder / "checkpoint" / f"embeddings_all_{partition}.v1.h5", "w") as file:
            file.attrs["format_version"] = FORMAT_VERSION
            rows = file.create_dataset("embeddings", (size.num_entities, size.dimension), np.float32)
            for start, stop in _blocks(size.num_entities, ROWS_AT_A_TIME // size.dimension):
                # Scores are sums of D products: this scale gives them a variance near 1.
                block = random.standard_normal((stop - start, size.dimension), dtype=np.float32)
                rows[start:stop] = block / np.float32(size.dimension**0.25)


def _write_model(path: Path, size: GraphSize) -> None:
    random = np.random.default_rng([size.seed, 1])
    shape = (size.num_relations, size.dimension // 2)
    with h5py.File(path, "w") as file:
        file.attrs["format_version"] = FORMAT_VERSION
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
        file.attrs["format_version"] = FORMAT_VERSION
        for column, (name, high) in enumerate(highest.items()):
            random = np.random.default_rng([size.seed, 2, bucket, column])
            ids = file.create_dataset(name, (num_edges,), np.int64)
            for start, stop in _blocks(num_edges, ROWS_AT_A_TIME):
                ids[start:stop] = random.integers(0, high, stop - start)


def _blocks(total: int, step: int) -> Iterator[tuple[int, int]]:
    step = max(step, 1)
    for start in range(0, total, step):
        yield start, min(start + step, total)


def _shares(total: int, parts: int) -> list[int]:
    return [total * (part + 1) // parts - total * part // parts for part in range(parts)]
