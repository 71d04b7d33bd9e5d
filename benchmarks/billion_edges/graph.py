"""Sizes -> a random graph with power-law degrees in PyTorch-BigGraph's format, the same for the same sizes.

entity/       entity counts
checkpoint/   embeddings per partition
edges/        a file per bucket, int32
config.py     read by kgeval-dist
"""

import json
import multiprocessing
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import h5py
import numpy as np
from attrs import asdict, frozen

FORMAT_VERSION = 1
ROWS_AT_A_TIME = 1 << 20
FLOAT_BYTES = ID_BYTES = 4
SPARE = 1.1  # disk asked for, over what the arrays take
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
    for name in ("entity", "checkpoint", "edges"):
        (folder / name).mkdir()
    with multiprocessing.get_context("spawn").Pool(num_processes) as pool:
        pool.map(partial(_write_partition, folder, size), range(size.num_partitions))
        pool.map(partial(_write_bucket, folder, size), range(size.num_partitions**2), chunksize=1)
    with h5py.File(folder / "checkpoint" / "model.v1.h5", "w") as file:
        file.attrs["format_version"] = FORMAT_VERSION
        file.create_group("model")
    (folder / "checkpoint" / "checkpoint_version.txt").write_text("1\n", encoding="utf-8")
    note.write_text(wanted, encoding="utf-8")


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


def _write_bucket(folder: Path, size: GraphSize, bucket: int) -> None:
    num_buckets = size.num_partitions**2
    num_edges = size.num_edges * (bucket + 1) // num_buckets - size.num_edges * bucket // num_buckets
    lhs_partition, rhs_partition = divmod(bucket, size.num_partitions)
    with h5py.File(folder / "edges" / f"edges_{lhs_partition}_{rhs_partition}.h5", "w") as file:
        file.attrs["format_version"] = FORMAT_VERSION
        file.create_dataset("rel", (num_edges,), np.int32)  # one relation: zeros
        for column, name in enumerate(("lhs", "rhs")):
            random = np.random.default_rng([size.seed, 1, bucket, column])
            ids = file.create_dataset(name, (num_edges,), np.int32)
            for start, stop in _blocks(num_edges, ROWS_AT_A_TIME):
                ids[start:stop] = _power_law(random, stop - start, size.num_entities)


def _power_law(random: np.random.Generator, count: int, num_entities: int) -> np.ndarray:
    """Return ids of which the r-th most frequent occurs about r^(1 / SKEW - 1) times as often as the first."""
    uniform = random.random(count)
    rank = (uniform**SKEW * num_entities).astype(np.int64)
    return (rank * SPREAD % num_entities).astype(np.int32)


def _blocks(total: int, step: int) -> Iterator[tuple[int, int]]:
    step = max(step, 1)
    for start in range(0, total, step):
        yield start, min(start + step, total)
