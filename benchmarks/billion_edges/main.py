"""Evaluates a billion edges with sampled negatives on few cores, killed and resumed once, and prints a table.

    python benchmarks/billion_edges/main.py --data FOLDER    # the sizes of the README: 17 GB of disk
    python benchmarks/billion_edges/main.py --smoke          # a tiny graph: does it run?

Run it with the Python that pbgeval is installed in. What each figure includes stands in the README beside this file.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from attrs import frozen

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import machine, made_graph
from benchmarks.billion_edges.graph import GraphSize, make_graph, write_config

BATCH_NEGS, UNIFORM_NEGS = 50, 50
METRIC = "both.realistic.mean_reciprocal_rank"
SECONDS_BETWEEN_LOOKS = 0.2


@frozen
class Run:
    """One evaluation, from its first start to its end."""

    seconds: float
    seconds_before_kill: float
    units_kept: int  # whose results the journal held when the run was started again
    units: int
    document: dict[str, Any]  # metrics.json
    workers: list[dict[str, Any]]  # of run.json
    worker_seconds: dict[str, float]  # of the workers after the restart, by what they were spent on


def main() -> None:
    """Make the graph, measure, print."""
    options = _options()
    load = os.getloadavg()[0]
    size = GraphSize(options.partitions, options.entities, options.edges, options.dimension)
    with contextlib.ExitStack() as stack:
        folder = made_graph.data_folder(stack, options.data)
        begun = time.perf_counter()
        make_graph(folder, size, options.workers)
        _say(f"graph of {size.bytes_on_disk / 1e9:.2f} GB: {time.perf_counter() - begun:.0f} s")
        config = write_config(folder, size, BATCH_NEGS, UNIFORM_NEGS, options.max_memory)
        flops = machine.matmul_flops(options.workers)
        with tempfile.TemporaryDirectory(prefix="pbgeval-benchmark-run-") as name:
            whole = _killed_and_resumed(config, Path(name) / "whole", options)
            _say(f"all edges: {whole.seconds:.1f} s")
            sampled, sampled_seconds = _sampled(config, Path(name) / "sampled", options)
    _print_report(options, size, load, flops, whole, sampled, sampled_seconds)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=16, help="[%(default)s]")
    parser.add_argument("--entities", type=int, default=1_000_000, help="of one partition [%(default)s]")
    parser.add_argument("--edges", type=int, default=1_000_000_000, help="of all buckets [%(default)s]")
    parser.add_argument("--dimension", type=int, default=64, help="[%(default)s]")
    parser.add_argument("--workers", type=int, default=2, help="one thread each [%(default)s]")
    parser.add_argument("--max-memory", default="1.9GB", help="of each worker [%(default)s]")
    parser.add_argument("--kill-at", type=float, default=0.5, help="share of the units that are done [%(default)s]")
    parser.add_argument("--target-error", type=float, default=0.001, help="of the sample's MRR [%(default)s]")
    parser.add_argument("--data", type=Path, help="folder that keeps the graph [a temporary one, removed]")
    parser.add_argument("--smoke", action="store_true", help="a tiny graph, one worker")
    options = parser.parse_args()
    if options.smoke:
        options.partitions, options.entities, options.edges, options.dimension = 2, 1000, 40_000, 8
        options.workers, options.target_error = 1, 0.01
    return options


def _command(config: Path, output: Path, workers: int, *overrides: str) -> list[str]:
    command = [str(Path(sys.executable).parent / "kgeval-dist"), "--config", str(config), "--workers", str(workers)]
    command += [argument for override in overrides for argument in ("-p", override)]
    return [*command, "--output", str(output), "--device", "cpu", "--quiet"]


def _killed_and_resumed(config: Path, output: Path, options: argparse.Namespace) -> Run:
    """Start, kill all processes once a share of the units is done, start again, wait for the end."""
    command = _command(config, output, options.workers)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    begun = time.perf_counter()
    first = subprocess.Popen(command, env=environment, start_new_session=True)
    share = 0.0
    while first.poll() is None and share < options.kill_at:
        time.sleep(SECONDS_BETWEEN_LOOKS)
        share = _share_done(output)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    before = time.perf_counter() - begun
    kept = _units_kept(output)
    subprocess.run(command, env=environment, check=True)
    seconds = time.perf_counter() - begun
    document = json.loads((output / "metrics.json").read_text(encoding="utf-8"))
    finished = {json.loads(line).get("unit") for line in (output / "units.jsonl").read_bytes().splitlines()}
    spent: dict[str, float] = {}
    workers = json.loads((output / "run.json").read_text(encoding="utf-8"))["workers"]
    for facts in workers:
        for what, of in facts["seconds"].items():
            spent[what] = spent.get(what, 0.0) + of
    return Run(seconds, before, kept, len(finished - {None}), document, workers, spent)


def _share_done(output: Path) -> float:
    """Return the share of the units that metrics.json counts as done; it is written now and then."""
    try:
        progress = json.loads((output / "metrics.json").read_text(encoding="utf-8")).get("progress", {})
    except FileNotFoundError:
        return 0.0
    return float(progress["units_done"] / progress["units"]) if progress else 0.0


def _units_kept(output: Path) -> int:
    entries = [path.read_bytes().split(b"\n", 2)[1] for path in (output / "journal").glob("*.unit")]
    return sum(len(json.loads(line)["units"]) for line in entries)


def _sampled(config: Path, output: Path, options: argparse.Namespace) -> tuple[dict[str, Any], float]:
    """Sample edges until the error of the MRR is small enough."""
    overrides = (f"target_error={options.target_error}", f"target_metric={METRIC}")
    begun = time.perf_counter()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(_command(config, output, options.workers, *overrides), env=environment, check=True)
    seconds = time.perf_counter() - begun
    document: dict[str, Any] = json.loads((output / "metrics.json").read_text(encoding="utf-8"))
    return document, seconds


def _print_report(
    options: argparse.Namespace,
    size: GraphSize,
    load: float,
    flops: float,
    whole: Run,
    sampled: dict[str, Any],
    sampled_seconds: float,
) -> None:
    limit = size.num_edges * 2 * (BATCH_NEGS + UNIFORM_NEGS) * size.dimension * 2 / flops  # 2 sides, multiply and add
    workers = whole.workers
    peak = max(facts["peak_memory_bytes"] for facts in workers)
    loads = sum(facts["partition_loads"] for facts in workers)
    edge_bytes = size.num_edges * 12
    spent = sum(whole.worker_seconds.values())
    print(machine.describe("benchmarks/billion_edges/main.py", load))
    print(
        f"Graph: {size.num_edges:,} edges, {size.num_partitions} x {size.num_entities:,} entities, D={size.dimension}; "
        f"{BATCH_NEGS} + {UNIFORM_NEGS} negatives; {options.workers} workers of one thread, {options.max_memory} each\n"
    )
    print("| | |")
    print("|---|---|")
    print(f"| all edges, start-ups and the kill included, s | {whole.seconds:.1f} |")
    print(f"| killed after, s | {whole.seconds_before_kill:.1f} |")
    print(f"| units kept of all | {whole.units_kept:,} of {whole.units:,} |")
    print(f"| edges per second | {size.num_edges / whole.seconds:,.0f} |")
    shown = f"share of the float32 matmul limit ({flops / 1e9:.0f} GFLOP/s: {limit:.1f} s)"
    print(f"| {shown} | {limit / whole.seconds:.0%} |")
    print(f"| largest resident memory of a worker, GB | {peak / 1e9:.2f} |")
    print(f"| partitions loaded after the restart | {loads} |")
    print(f"| bytes of edges read, GB | {edge_bytes / 1e9:.1f} |")
    for what, seconds in sorted(whole.worker_seconds.items()):
        print(f"| workers' time after the restart: {what} | {seconds / spent:.1%} |")
    print(f"| MRR of all edges | {whole.document['metrics'][METRIC]:.6f} |")
    interval = sampled["intervals"][METRIC]
    print(f"| MRR of a sample with target_error={options.target_error} | {sampled['metrics'][METRIC]:.6f} |")
    print(f"| its standard error | {interval['standard_error']:.6f} |")
    print(f"| edges of the sample | {sampled['num_edges']:,} |")
    print(f"| its seconds | {sampled_seconds:.1f} |")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
