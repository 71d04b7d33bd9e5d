"""Ranks edges against all nodes of what GraphStorm and TorchRec save, in place and filtered, and prints a table.

    python benchmarks/foreign_checkpoints/main.py              # 20 million nodes: 10 GB of disk, an hour on 2 cores
    python benchmarks/foreign_checkpoints/main.py --nodes 2000000
    python benchmarks/foreign_checkpoints/main.py --smoke      # a tiny graph: does it run?

Run it with the Python that pbgeval is installed in. What each figure includes stands in the README beside this file.
"""

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from attrs import frozen

from pbgeval.models.opening import open_model

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import machine, made_graph

HERE = Path(__file__).resolve().parent
TABLE = "app.model.large_embeddings.ebc.embedding_bags.node.weight"
NUM_RELATIONS, NUM_PARTS = 4, 4
ROWS_AT_A_TIME = 1 << 18
OPTIONS: Mapping[str, dict[str, object]] = {
    "graphstorm": {"model": "distmult"},
    "torchrec": {"source": "diagonal", "similarity": "dot"},
}


@frozen
class Measured:
    """One evaluation."""

    open_seconds: float
    seconds: float
    read_bytes: int  # of the model, by all workers
    peak_bytes: list[int]  # of each worker
    mean_reciprocal_rank: float


def main() -> None:
    """Make both models, measure, print."""
    options = _options()
    load = os.getloadavg()[0]
    with contextlib.ExitStack() as stack:
        folder = made_graph.data_folder(stack, options.data)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "known.npy").exists():
            _make(folder, options)
        measured = {system: _run(folder, system, options) for system in OPTIONS}
    print(machine.describe("benchmarks/foreign_checkpoints/main.py", load))
    size = options.nodes * options.dimension * 4
    print(
        f"Work: {options.edges:,} edges, both sides, filtered by {options.known:,} edges, against all of "
        f"{options.nodes:,} nodes, D={options.dimension} ({size / 1e9:.2f} GB); {options.workers} workers of one "
        f"thread, max_memory {options.max_memory}\n"
    )
    print("| | GraphStorm, 4 parts, nodes in any order | TorchRec, 2 shards of rows |")
    print("|---|---|---|")
    for name, text in (
        ("opening, s", lambda of: f"{of.open_seconds:.2f}"),
        ("evaluation, s", lambda of: f"{of.seconds:.1f}"),
        ("read of the model, GB", lambda of: f"{of.read_bytes / 1e9:.2f}"),
        ("peak memory of a worker, GB", lambda of: f"{max(of.peak_bytes) / 1e9:.2f}"),
        ("mean reciprocal rank", lambda of: f"{of.mean_reciprocal_rank:.6f}"),
    ):
        print(f"| {name} | {' | '.join(text(of) for of in measured.values())} |")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=20_000_000, help="[%(default)s]")
    parser.add_argument("--dimension", type=int, default=64, help="[%(default)s]")
    parser.add_argument("--edges", type=int, default=20_000, help="evaluated [%(default)s]")
    parser.add_argument("--known", type=int, default=1_000_000, help="edges that filter [%(default)s]")
    parser.add_argument("--workers", type=int, default=2, help="one thread each [%(default)s]")
    parser.add_argument("--max-memory", default="2GB", help="of each worker [%(default)s]")
    parser.add_argument("--data", type=Path, help="folder that keeps the models [a temporary one, removed]")
    parser.add_argument("--smoke", action="store_true", help="a tiny graph")
    options = parser.parse_args()
    if options.smoke:
        options.nodes, options.dimension, options.edges, options.known = 3000, 8, 50, 500
    return options


# The same vectors in both forms, made a block of rows at a time.


def _make(folder: Path, options: argparse.Namespace) -> None:
    relations = _block(options.dimension, NUM_RELATIONS, 99)
    order = np.random.default_rng(1).permutation(options.nodes)  # node of each row that GraphStorm writes
    _write_graphstorm(folder / "graphstorm", options, order, relations)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    arguments = [(rank, port, folder / "torchrec", options.nodes, options.dimension, relations) for rank in range(2)]
    with get_context("forkserver").Pool(2) as pool:
        pool.starmap(_write_torchrec, arguments, chunksize=1)
    random = np.random.default_rng(2)
    for name, number in (("edges", options.edges), ("known", options.known)):
        edges = np.stack(
            [random.integers(0, high, number) for high in (options.nodes, NUM_RELATIONS, options.nodes)], 1
        )
        np.save(folder / f"{name}.npy", edges)


def _block(dimension: int, rows: int, number: int) -> torch.Tensor:
    random = np.random.default_rng([7, number])
    return torch.from_numpy(random.standard_normal((rows, dimension), dtype=np.float32))


def _rows(nodes: int, dimension: int, first: int, stop: int) -> torch.Tensor:
    """Return the vectors of some nodes."""
    table = torch.empty((stop - first, dimension))
    for number in range(first // ROWS_AT_A_TIME, -(-stop // ROWS_AT_A_TIME)):
        begin = number * ROWS_AT_A_TIME
        block = _block(dimension, min(ROWS_AT_A_TIME, nodes - begin), number)
        low, high = max(first, begin), min(stop, begin + len(block))
        table[low - first : high - first] = block[low - begin : high - begin]
    return table


def _write_graphstorm(folder: Path, options: argparse.Namespace, order: np.ndarray, relations: torch.Tensor) -> None:
    (folder / "node").mkdir(parents=True)
    table = _rows(options.nodes, options.dimension, 0, options.nodes)
    for part, nids in enumerate(np.array_split(order, NUM_PARTS)):
        torch.save(table[torch.from_numpy(nids)], folder / "node" / f"embed-{part:05d}.pt")
        torch.save(torch.from_numpy(nids.copy()), folder / "node" / f"embed_nids-{part:05d}.pt")
    torch.save(relations, folder / "rel_emb.pt")
    names = {str(("node", f"rel{index}", "node")): index for index in range(NUM_RELATIONS)}
    (folder / "relation2id_map.json").write_text(json.dumps(names), encoding="utf-8")
    info = {"format": "pytorch", "emb_name": ["node"], "emb_dim": {"node": options.dimension}, "world_size": NUM_PARTS}
    (folder / "emb_info.json").write_text(json.dumps(info), encoding="utf-8")


def _write_torchrec(rank: int, port: int, folder: Path, nodes: int, dimension: int, relations: torch.Tensor) -> None:
    """Save one of two shards, as a process of torch.distributed does; TorchRec's tables are DTensors too."""
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    half = -(-nodes // 2)
    local = _rows(nodes, dimension, rank * half, min(nodes, (rank + 1) * half))
    table = DTensor.from_local(local, mesh, [Shard(0)], shape=torch.Size((nodes, dimension)), stride=(dimension, 1))
    state = {TABLE: table, "app.model.src_operator.edge_type_embeddings.weight": relations}
    dcp.save(state, checkpoint_id=folder)
    dist.destroy_process_group()


def _run(folder: Path, system: str, options: argparse.Namespace) -> Measured:
    """Evaluate in a process of its own, and read what it wrote."""
    begun = time.perf_counter()
    open_model(folder / system, OPTIONS[system])
    open_seconds = time.perf_counter() - begun
    config = {
        "model": str(folder / system),
        "model_options": OPTIONS[system],
        "candidates": "all",
        "max_memory": options.max_memory,
        "edge_paths": [str(folder / "edges.npy")],
        "train_paths": [str(folder / "known.npy")],
    }
    with tempfile.TemporaryDirectory(prefix="pbgeval-benchmark-run-") as name:
        path, output, notes = (Path(name) / of for of in ("eval.json", "output", "notes"))
        notes.mkdir()
        path.write_text(json.dumps(config), encoding="utf-8")
        command = [sys.executable, str(HERE / "ours.py"), str(path), str(output), str(options.workers)]
        begun = time.perf_counter()
        environment = {**os.environ, "NOTES": str(notes), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, check=False)
        seconds = time.perf_counter() - begun
        if done.returncode:
            raise SystemExit(f"{system}: ended with status {done.returncode}\n{done.stderr}")
        read_bytes = sum(int(line) for of in notes.iterdir() for line in of.read_text(encoding="ascii").splitlines())
        document, run = (json.loads((output / of).read_text(encoding="utf-8")) for of in ("metrics.json", "run.json"))
    return Measured(
        open_seconds,
        seconds,
        read_bytes,
        [worker["peak_memory_bytes"] for worker in run["workers"]],
        document["metrics"]["both.realistic.mean_reciprocal_rank"],
    )


if __name__ == "__main__":
    main()
