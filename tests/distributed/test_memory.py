"""A worker holds its partitions and a bounded rest, whatever the number of edges."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from pbgeval.notation import ENDS
from tests.kit.commands import start
from tests.kit.pbg_files import write_checkpoint_version, write_embeddings, write_entity_counts, write_model

MB = 1_000_000
REST = 600 * MB  # allowed beside the partitions; torch and h5py alone take some 240
MAX_GROWTH = 100 * MB  # between a bucket of few edges and one of thirty times as many

NUM_ENTITIES, DIMENSION, NUM_RELATIONS = 400_000, 16, 50
PARTITION_BYTES = NUM_ENTITIES * DIMENSION * 4
FEW_EDGES, MANY_EDGES = 200_000, 6_000_000
EDGES_AT_A_TIME = 1_000_000


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_worker_needs_its_partitions_and_600_mb_whatever_the_number_of_edges(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    config = _write_model_and_config(tmp_path, random)
    peaks = {}
    for num_edges in (FEW_EDGES, MANY_EDGES):
        _write_bucket(tmp_path / f"edges_{num_edges}", num_edges, random)
        workers = _evaluate(config, tmp_path / f"edges_{num_edges}", tmp_path / f"output_{num_edges}", num_edges)
        shutil.rmtree(tmp_path / f"edges_{num_edges}")  # pytest keeps the folders of some runs
        peaks[num_edges] = max(worker["peak_memory_bytes"] for worker in workers)
    held = 2 * PARTITION_BYTES  # both ends of the bucket: the left and the right partition
    figures = ", ".join(f"{peak / MB:.0f} MB with {num_edges:,} edges" for num_edges, peak in peaks.items())
    figures = f"peak resident of a worker: {figures}; partitions held: {held / MB:.0f} MB"
    print(figures)  # noqa: T201 - shown by pytest -s

    assert max(peaks.values()) <= held + REST, figures
    assert peaks[MANY_EDGES] - peaks[FEW_EDGES] < MAX_GROWTH, figures


def _write_model_and_config(folder: Path, random: np.random.Generator) -> Path:
    """Write two partitions of one type, of which the bucket (0, 1) needs both; relations are dynamic."""
    write_entity_counts(folder / "entity", {"all": [NUM_ENTITIES] * 2}, num_dynamic_relations=NUM_RELATIONS)
    checkpoint = folder / "checkpoint"
    for partition in range(2):
        values = random.standard_normal((NUM_ENTITIES, DIMENSION), dtype=np.float32)
        write_embeddings(checkpoint, "all", partition, values, version=1)
    write_checkpoint_version(checkpoint, 1)
    config = {
        "entity_path": str(folder / "entity"),
        "edge_paths": ["replaced by -p"],
        "checkpoint_path": str(checkpoint),
        "entities": {"all": {"num_partitions": 2}},
        "relations": [{"name": "all", "lhs": "all", "rhs": "all", "operator": "diagonal"}],
        "dynamic_relations": True,
        "dimension": DIMENSION,
        "global_emb": False,
        "comparator": "dot",
        "num_batch_negs": 10,
        "num_uniform_negs": 10,
    }
    _write_operators(checkpoint, random)
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return path


def _write_operators(checkpoint: Path, random: np.random.Generator) -> None:
    operators = {
        (0, side): {"diagonal": random.standard_normal((NUM_RELATIONS, DIMENSION), dtype=np.float32)} for side in ENDS
    }
    write_model(checkpoint, operators, version=1, dynamic=True)


def _write_bucket(folder: Path, num_edges: int, random: np.random.Generator) -> None:
    """Write the bucket (0, 1) a piece at a time, as int32 in one piece each: a smaller file than PBG's."""
    folder.mkdir()
    highest = {"lhs": NUM_ENTITIES, "rel": NUM_RELATIONS, "rhs": NUM_ENTITIES}
    with h5py.File(folder / "edges_0_1.h5", "w") as file:
        file.attrs["format_version"] = np.int64(1)
        for name, high in highest.items():
            ids = file.create_dataset(name, (num_edges,), np.int32)
            for start in range(0, num_edges, EDGES_AT_A_TIME):
                stop = min(start + EDGES_AT_A_TIME, num_edges)
                ids[start:stop] = random.integers(0, high, stop - start, dtype=np.int32)


def _evaluate(config: Path, edges: Path, output: Path, num_edges: int) -> list[dict[str, Any]]:
    """Evaluate with two workers and return what the report says about them."""
    command = [sys.executable, "-m", "pbgeval", "--config", str(config), "-p", f"edge_paths={edges}"]
    command += ["--output", str(output), "--workers", "2", "--device", "cpu", "--quiet"]
    done = start(command, config.parent)
    assert done.status == 0, done.err
    assert num_edges == json.loads((output / "metrics.json").read_text())["num_edges"]
    workers: list[dict[str, Any]] = json.loads((output / "run.json").read_text())["workers"]
    assert len(workers) == 2
    return workers
