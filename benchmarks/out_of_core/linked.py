"""Streams 10^8 candidates of 128 columns within max_memory on a CPU, and prints the plan of the same for a GPU.

    python benchmarks/out_of_core/linked.py            # the sizes of the README: 4 GB of disk
    python benchmarks/out_of_core/linked.py --smoke    # tiny: does it run?

51 GB are read, 4 GB are on disk: partitions are hard links to a few files. The README beside this file says more.
"""

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import h5py
import numpy as np
import torch
from attrs import frozen

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import machine, made_graph
from pbgeval.config import load_config
from pbgeval.evaluation import plan_evaluation

H200_BYTES = 139 * 2**30
SEED = 0


@frozen
class GraphSize:
    """Sizes of the graph."""

    num_partitions: int
    num_entities: int  # of one partition
    num_files: int  # that partitions are links to
    dimension: int
    num_edges: int  # each in a bucket of its own

    @property
    def table_bytes(self) -> int:
        """Of all partitions, as a run reads them."""
        return 4 * self.num_partitions * self.num_entities * self.dimension


def main() -> None:
    """Make the graph, run, plan, print."""
    options = _options()
    load = os.getloadavg()[0]
    size = GraphSize(options.partitions, options.entities, options.files, options.dimension, options.edges)
    with contextlib.ExitStack() as stack:
        folder = made_graph.data_folder(stack, options.data)
        _make(folder, size)
        config = _write_config(folder, size, options.max_memory)
        before, begun = machine.children_cpu_seconds(), time.perf_counter()
        run = _evaluate(config, folder)
        seconds, cpu_seconds = time.perf_counter() - begun, machine.children_cpu_seconds() - before
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        on_cpu, on_gpu = dict(plan_evaluation(load_config(config), 1, "cpu")[1].facts), _plan_of_gpu(config)
    print(machine.describe("benchmarks/out_of_core/linked.py", load))
    print(
        f"Graph: {size.num_partitions} x {size.num_entities:,} entities, D={size.dimension}, "
        f"{size.table_bytes / 1e9:.1f} GB, links to {size.num_files} files\n"
    )
    print("| | |\n|---|---|")
    print(f"| candidates of a query | {size.num_partitions * size.num_entities:,} |")
    print(f"| queries | {2 * size.num_edges} |")
    print(f"| limit (`max_memory`) | {options.max_memory} |")
    print(f"| peak memory, the process (RUSAGE) | {peak / 1e9:.2f} GB |")
    print(f"| peak memory, as run.json says | {max(of['peak_memory_bytes'] for of in run['workers']) / 1e9:.2f} GB |")
    print(f"| seconds; of CPU | {seconds:.0f}; {cpu_seconds:.0f} |")
    print(f"| plan on a CPU: memory of the host; to read | {on_cpu['memory']}; {on_cpu['to read']} |")
    print(f"| plan on a GPU: memory of the host; to read | {on_gpu['memory']}; {on_gpu['to read']} |")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=100, help="[%(default)s]")
    parser.add_argument("--entities", type=int, default=1_000_000, help="of one partition [%(default)s]")
    parser.add_argument("--files", type=int, default=8, help="that partitions are links to [%(default)s]")
    parser.add_argument("--dimension", type=int, default=128, help="[%(default)s]")
    parser.add_argument("--edges", type=int, default=10, help="[%(default)s]")
    parser.add_argument("--max-memory", default="1GB", help="[%(default)s]")
    parser.add_argument("--data", type=Path, help="folder that keeps the graph [a temporary one, removed]")
    parser.add_argument("--smoke", action="store_true", help="a tiny graph")
    options = parser.parse_args()
    if options.smoke:
        options.partitions, options.entities, options.files, options.dimension, options.edges = 6, 500, 2, 8, 4
    return options


def _make(folder: Path, size: GraphSize) -> None:
    """Write the graph into `folder`, unless this very graph is there already."""
    if made_graph.is_made(folder, size):
        return
    made_graph.begin(
        folder, size.table_bytes * size.num_files // size.num_partitions, ("entity", "checkpoint", "edges")
    )
    for partition in range(size.num_partitions):
        if partition < size.num_files:
            made_graph.write_partition(folder, partition, size.num_entities, size.dimension, SEED)
            continue
        for name in ("entity/entity_count_all_{}.txt", "checkpoint/embeddings_all_{}.v1.h5"):
            os.link(folder / name.format(partition % size.num_files), folder / name.format(partition))
    with h5py.File(folder / "checkpoint" / "model.v1.h5", "w") as file:
        file.attrs["format_version"] = made_graph.FORMAT_VERSION
        file.create_group("model")
    random = np.random.default_rng([SEED, 1])
    for bucket in random.choice(size.num_partitions**2, size.num_edges, replace=False).tolist():
        lhs, rhs = divmod(bucket, size.num_partitions)
        with h5py.File(folder / "edges" / f"edges_{lhs}_{rhs}.h5", "w") as file:
            file.attrs["format_version"] = made_graph.FORMAT_VERSION
            for name in ("lhs", "rhs"):
                file.create_dataset(name, data=random.integers(size.num_entities, size=1))
            file.create_dataset("rel", data=np.zeros(1, np.int64))
    made_graph.finish(folder, size)


def _write_config(folder: Path, size: GraphSize, max_memory: str) -> Path:
    settings = {
        "entity_path": str(folder / "entity"),
        "edge_paths": [str(folder / "edges")],
        "checkpoint_path": str(folder / "checkpoint"),
        "entities": {"all": {"num_partitions": size.num_partitions}},
        "relations": [{"name": "all", "lhs": "all", "rhs": "all", "operator": "none"}],
        "dimension": size.dimension,
        "global_emb": False,
        "comparator": "dot",
        "candidates": "all",
        "max_memory": max_memory,
    }
    return made_graph.write_config(folder, settings)


def _evaluate(config: Path, folder: Path) -> dict:
    """Evaluate by one worker of one thread; return what run.json holds."""
    with tempfile.TemporaryDirectory(prefix="output-", dir=folder.parent) as name:
        output = Path(name) / "output"
        command = [sys.executable, "-m", "pbgeval", "--config", str(config), "--output", str(output)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
        subprocess.run([*command, "--workers", "1", "--device", "cpu", "--quiet"], env=environment, check=True)
        return json.loads((output / "run.json").read_text(encoding="utf-8"))


def _plan_of_gpu(config: Path) -> dict[str, str]:
    """Return the plan for a pretended H200: what runs before anything is computed."""
    properties = SimpleNamespace(name="a pretended H200", uuid="0")
    with contextlib.ExitStack() as stack:
        for name, value in (
            ("is_available", lambda: True),
            ("device_count", lambda: 1),
            ("get_device_properties", lambda device: properties),
            ("mem_get_info", lambda device: (H200_BYTES, H200_BYTES)),
        ):
            stack.enter_context(mock.patch.object(torch.cuda, name, value))
        stack.enter_context(mock.patch("pbgeval.worker.run.check_kernels"))
        stack.enter_context(mock.patch("pbgeval.worker.run.measure", return_value=None))
        return dict(plan_evaluation(load_config(config), 1, "cuda")[1].facts)


if __name__ == "__main__":
    main()
