"""Ranks edges against all entities of embeddings larger than a worker's memory, filtered, and prints a table.

    python benchmarks/out_of_core/main.py              # the sizes of the README: 5 GB of disk, minutes
    python benchmarks/out_of_core/main.py --smoke      # a tiny graph: does it run?

Run it with the Python that pbgeval is installed in. What each figure includes stands in the README beside this file.
"""

import argparse
import contextlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from attrs import frozen
from noting import STEPS

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import machine, made_graph
from benchmarks.out_of_core.graph import GraphSize, make_graph, write_config

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]


@frozen
class Measured:
    """One run."""

    seconds: float  # of evaluate
    step_seconds: dict[str, float]  # of the slowest worker
    read_bytes: int  # of embeddings, by all workers
    peak_bytes: list[int]  # of each worker
    mean_reciprocal_rank: float
    mean_rank: float
    num_queries: int
    num_known_excluded: int


def main() -> None:
    """Make the graph, measure, print."""
    options = _options()
    load = os.getloadavg()[0]
    size = GraphSize(
        num_partitions=options.partitions,
        num_entities=options.entities,
        num_relations=options.relations,
        dimension=options.dimension,
        num_known=options.known,
        num_edges=options.edges,
        num_hub_answers=options.hub_answers,
        num_hub_edges=options.hub_edges,
    )
    with contextlib.ExitStack() as stack:
        folder = made_graph.data_folder(stack, options.data)
        begun = time.perf_counter()
        make_graph(folder, size)
        _say(f"graph of {(size.embedding_bytes + size.known_bytes) / 1e9:.2f} GB: {time.perf_counter() - begun:.0f} s")
        flops = machine.matmul_flops(options.workers)
        measured = _run(write_config(folder, size, options.max_memory), options.workers)
    _print_report(options, size, load, flops, measured)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=16, help="[%(default)s]")
    parser.add_argument("--entities", type=int, default=500_000, help="of one partition [%(default)s]")
    parser.add_argument("--relations", type=int, default=1000, help="dynamic ones [%(default)s]")
    parser.add_argument("--dimension", type=int, default=64, help="[%(default)s]")
    parser.add_argument("--known", type=int, default=100_000_000, help="edges of all buckets [%(default)s]")
    parser.add_argument("--edges", type=int, default=20_000, help="evaluated, of all buckets [%(default)s]")
    parser.add_argument("--hub-answers", type=int, default=1_000_000, help="known answers of one key [%(default)s]")
    parser.add_argument("--hub-edges", type=int, default=160, help="evaluated edges of that key [%(default)s]")
    parser.add_argument("--max-memory", default="1.5GB", help="of each worker [%(default)s]")
    parser.add_argument("--workers", type=int, default=2, help="one thread each [%(default)s]")
    parser.add_argument("--data", type=Path, help="folder that keeps the graph [a temporary one, removed]")
    parser.add_argument("--smoke", action="store_true", help="a tiny graph")
    options = parser.parse_args()
    if options.smoke:
        options.partitions, options.entities, options.dimension, options.relations = 2, 2000, 8, 10
        options.known, options.edges, options.hub_answers, options.hub_edges = 20_000, 200, 1000, 8
    return options


def _run(config: Path, workers: int) -> Measured:
    """Evaluate in a process of its own, and read what it wrote."""
    with tempfile.TemporaryDirectory(prefix="pbgeval-benchmark-run-") as name:
        notes, output = Path(name) / "notes", Path(name) / "output"
        notes.mkdir()
        command = [sys.executable, str(HERE / "ours.py"), str(config), str(output), str(workers)]
        environment = {**os.environ, "NOTES": str(notes), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            sys.stderr.write(done.stderr)
            raise SystemExit(f"ended with status {done.returncode}: {shlex.join(command)}")
        noted = [line.split() for path in notes.iterdir() for line in path.read_text(encoding="ascii").splitlines()]
        document, run = (
            json.loads((output / name).read_text(encoding="utf-8")) for name in ("metrics.json", "run.json")
        )
    values = {name: [float(value) for of, value in noted if of == name] for name in (*STEPS, "read_bytes", "evaluate")}
    diagnostics = document["diagnostics"]["both"]
    return Measured(
        seconds=values["evaluate"][0],
        step_seconds={name: max(values[name]) for name in STEPS},
        read_bytes=int(sum(values["read_bytes"])),
        peak_bytes=[worker["peak_memory_bytes"] for worker in run["workers"]],
        mean_reciprocal_rank=document["metrics"]["both.realistic.mean_reciprocal_rank"],
        mean_rank=document["metrics"]["both.realistic.mean_rank"],
        num_queries=diagnostics["num_queries"],
        num_known_excluded=diagnostics["num_known_excluded"],
    )


def _print_report(options: argparse.Namespace, size: GraphSize, load: float, flops: float, measured: Measured) -> None:
    all_entities = size.num_partitions * size.num_entities
    limit = 2 * measured.num_queries * all_entities * size.dimension / flops
    num_known = size.num_known + size.num_hub_answers + size.num_edges
    print(machine.describe("benchmarks/out_of_core/main.py", load))
    print(
        f"Graph: {size.num_partitions} x {size.num_entities:,} entities, D={size.dimension} "
        f"({size.embedding_bytes / 1e9:.2f} GB); {num_known:,} known edges in {size.num_buckets} buckets "
        f"({size.known_bytes / 1e9:.2f} GB), {size.num_hub_answers:,} of them of one key"
    )
    print(
        f"Work: {size.num_edges:,} edges, both sides, filtered, against all entities; {options.workers} workers of one "
        f"thread, max_memory {options.max_memory}"
    )
    print(f"Float32 matmul on {options.workers} threads: {flops / 1e9:.0f} GFLOP/s; all products: {limit:.2f} s\n")
    join, rank = measured.step_seconds["join_all"], measured.step_seconds["_rank"]
    print("| | |")
    print("|---|---|")
    print(f"| evaluation, s | {measured.seconds:.1f} |")
    print(f"| semi-join, both sides, reading included, s | {join:.2f} |")
    print(f"| known edges/s of the semi-join | {num_known / join / 1e6:.1f} million |")
    print(f"| first sweep (gather), s | {measured.step_seconds['_gather']:.2f} |")
    print(f"| second sweep (rank), s | {rank:.1f} |")
    print(f"| second sweep over the matmul limit | {rank / limit:.2f} |")
    print(f"| bytes of embeddings read over bytes on disk | {measured.read_bytes / size.embedding_bytes:.3f} |")
    print(f"| peak memory per worker, GB | {', '.join(f'{peak / 1e9:.2f}' for peak in measured.peak_bytes)} |")
    print(f"| known answers excluded, over all queries | {measured.num_known_excluded:,} |")
    chance = sum(1 / place for place in range(1, all_entities + 1)) / all_entities
    print(f"| MRR; of chance | {measured.mean_reciprocal_rank:.3e}; {chance:.3e} |")
    print(f"| mean rank; of chance | {measured.mean_rank:,.0f}; {(all_entities + 1) / 2:,.0f} |")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
