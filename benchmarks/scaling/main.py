"""Times one worker and two on a synthetic graph, beside a bare matrix product, and compares with the simulator.

    python benchmarks/scaling/main.py              # the sizes of the README
    python benchmarks/scaling/main.py --smoke      # a tiny graph: does it run?

Run it with the Python that pbgeval is installed in. What each figure includes stands in the README beside this file.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from attrs import frozen

from pbgeval.config import load_config
from pbgeval.inputs.dispatch import Partition, make_dispatch_plan
from pbgeval.inputs.opening import Inputs, open_inputs
from pbgeval.inputs.protocol import make_protocol
from pbgeval.notation import Bucket, WorkUnit
from pbgeval.storage.checkpoint import num_bytes_of
from pbgeval.worker.buckets import unit_name

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY))
from benchmarks import machine, made_graph  # noqa: E402
from benchmarks.sampled_vs_torchbiggraph.graph import GraphSize, Protocol, make_graph, write_config  # noqa: E402 - the same graph as there
from benchmarks.scaling.simulator import Machines, simulate  # noqa: E402

PRODUCT_ROWS = 1024
ROOM = 2  # partitions in memory: so that loading is part of the work


@frozen
class Run:
    """One evaluation."""

    seconds: float  # from the first unit that began to the last that ended
    of_units: dict[str, float]  # seconds of each
    spent: dict[str, float]  # seconds of all workers together, by what they were spent on
    num_loads: int

    @property
    def worker_seconds(self) -> float:
        """Of all workers, between their first unit and their last."""
        return sum(self.spent.values())


def main() -> None:
    """Make the graph, measure, print."""
    options = _options()
    options.load = os.getloadavg()[0]
    with contextlib.ExitStack() as stack:
        folder = made_graph.data_folder(stack, options.data)
        size = GraphSize(
            num_partitions=options.partitions,
            num_entities=options.entities,
            num_relations=100,
            num_edges=options.edges,
            few_edges=options.edges // 8 // options.partitions**2,
            dimension=options.dimension,
        )
        make_graph(folder, size)
        config = write_config(folder, size, Protocol(100, 100, 1000, 2))
        products: dict[int, list[float]] = {1: [], 2: []}
        runs: dict[int, list[Run]] = {1: [], 2: []}
        calibrations: list[Run] = []
        for repeat in range(options.repeats):
            for workers in (1, 2):
                products[workers].append(_products_per_second(workers, options.product_seconds))
                runs[workers].append(_evaluate(config, folder / "edges", workers))
                _say(f"repeat {repeat + 1}, {workers} workers: {runs[workers][-1].seconds:.2f} s")
            calibrations.append(_evaluate(config, folder / "few_edges", 1))
        predicted = _predict(folder, config, calibrations)
    _print_report(options, size, runs, products, predicted)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edges", type=int, default=10_000_000, help="of all buckets [%(default)s]")
    parser.add_argument("--entities", type=int, default=250_000, help="of one partition [%(default)s]")
    parser.add_argument("--partitions", type=int, default=4, help="[%(default)s]")
    parser.add_argument("--dimension", type=int, default=100, help="[%(default)s]")
    parser.add_argument("--repeats", type=int, default=5, help="[%(default)s]")
    parser.add_argument("--product-seconds", type=float, default=5.0, help="of each bare product [%(default)s]")
    parser.add_argument("--data", type=Path, help="folder that keeps the graph [a temporary one, removed]")
    parser.add_argument("--smoke", action="store_true", help="a tiny graph, one repeat")
    options = parser.parse_args()
    if options.smoke:
        options.edges, options.entities, options.dimension, options.repeats = 8000, 500, 16, 1
        options.partitions, options.product_seconds = 2, 0.05
    return options


def _evaluate(config: Path, edges: Path, workers: int) -> Run:
    """Run the command with workers of one thread each; read what its log and report say."""
    with tempfile.TemporaryDirectory(prefix="pbgeval-benchmark-run-") as name:
        output = Path(name) / "output"
        command = [str(Path(sys.executable).parent / "kgeval-dist"), "--config", str(config), "--workers", str(workers)]
        command += ["-p", f"edge_paths={edges}", "-p", f"max_memory={_limit(config)}", "--output", str(output)]
        command += ["--device", "cpu", "--quiet"]
        subprocess.run(command, cwd=name, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True)
        events = [json.loads(line) for line in (output / "units.jsonl").read_text(encoding="utf-8").splitlines()]
        run = json.loads((output / "run.json").read_text(encoding="utf-8"))
    begun = {event["unit"]: event["time"] for event in events if event["event"] == "start"}
    ended = {event["unit"]: event["time"] for event in events if event["event"] == "finish"}
    spent: dict[str, float] = {}
    for facts in run["workers"]:
        for what, seconds in facts["seconds"].items():
            spent[what] = spent.get(what, 0.0) + seconds
    return Run(
        seconds=max(ended.values()) - min(begun.values()),
        of_units={unit.partition("/")[2]: ended[unit] - begun[unit] for unit in ended},
        spent=spent,
        num_loads=sum(facts["partition_loads"] for facts in run["workers"]),
    )


def _limit(config: Path) -> str:
    """Return a max_memory that leaves room for the partitions of a bucket, and one more."""
    largest = max(num_bytes_of(source) for source in _inputs(config).embeddings.values())
    return f"{1200 + (ROOM + 1) * largest // 10**6}MB"


def _inputs(config: Path) -> Inputs:
    return open_inputs(load_config(config, []))


def _products_per_second(num_processes: int, seconds: float) -> float:
    """Return how many matrix products processes of one thread each do per second, all together, at the same time."""
    with multiprocessing.get_context("forkserver").Pool(num_processes) as pool:
        pool.map(_multiply, [0.01] * num_processes)  # so that torch is there
        return sum(pool.map(_multiply, [seconds] * num_processes, chunksize=1))


def _multiply(seconds: float) -> float:
    torch.set_num_threads(1)
    left, right = torch.rand(PRODUCT_ROWS, PRODUCT_ROWS), torch.rand(PRODUCT_ROWS, PRODUCT_ROWS)
    out = torch.empty(PRODUCT_ROWS, PRODUCT_ROWS)
    begun, count = time.perf_counter(), 0
    while (passed := time.perf_counter() - begun) < seconds:
        torch.mm(left, right, out=out)
        count += 1
    return count / passed


def _predict(folder: Path, config: Path, calibrations: Sequence[Run]) -> dict[int, float]:
    """Simulate the whole graph from short runs of one worker on an eighth of the edges; two are each as fast as one."""
    inputs = _inputs(config)
    units = make_protocol(inputs).units
    few = make_protocol(open_inputs(load_config(config, [f"edge_paths={folder / 'few_edges'}"]))).units
    num_edges = {unit_name(unit): unit.num_edges for unit in few}
    rates = [seconds / num_edges[unit] for run in calibrations for unit, seconds in run.of_units.items()]
    seconds_per_edge = statistics.median(rates)  # the first unit of a process takes longer
    load_seconds = statistics.median(run.spent["loading"] / run.num_loads for run in calibrations)
    work = {unit: unit.num_edges * seconds_per_edge for unit in units}
    needs = {unit.bucket: inputs.partitions_needed(unit.bucket) for unit in units}
    return {workers: _simulated(units, work, needs, workers, load_seconds) for workers in (1, 2)}


def _simulated(
    units: Sequence[WorkUnit],
    work: dict[WorkUnit, float],
    needs: dict[Bucket, frozenset[Partition]],
    workers: int,
    load_seconds: float,
) -> float:
    plan = make_dispatch_plan(units, needs.__getitem__, workers, room=ROOM, load_cost=load_seconds)
    machines = Machines((1.0,) * workers, ROOM, bytes_per_second=1 / load_seconds)
    return simulate(plan, machines, work, lambda _: 1.0).seconds


def _print_report(
    options: argparse.Namespace,
    size: GraphSize,
    runs: dict[int, list[Run]],
    products: dict[int, list[float]],
    predicted: dict[int, float],
) -> None:
    print(machine.describe("benchmarks/scaling/main.py", options.load))
    print(
        f"Graph: {size.num_edges:,} edges, {size.num_partitions} x {size.num_entities:,} entities, D={size.dimension}; "
        f"100 + 100 negatives; workers of one thread; medians of {options.repeats} (lowest to highest)\n"
    )
    ours = [one.seconds / two.seconds for one, two in zip(runs[1], runs[2], strict=True)]
    bare = [two / one for one, two in zip(products[1], products[2], strict=True)]
    print("| | 1 worker | 2 workers | speed-up |")
    print("|---|---|---|---|")
    seconds = {workers: [run.seconds for run in of_size] for workers, of_size in runs.items()}
    print(f"| units, s | {_cell(seconds[1])} | {_cell(seconds[2])} | {_cell(ours)} |")
    print(f"| bare products per second | {_cell(products[1])} | {_cell(products[2])} | {_cell(bare)} |")
    quotients = [one / other for one, other in zip(ours, bare, strict=True)]
    print(f"| speed-up over that of the bare product | | | {_cell(quotients)} |")
    share = partial(_share, runs)
    print(
        f"| queue and journal, share of the time | {share(1, 'queue', 'journal')} | {share(2, 'queue', 'journal')} | |"
    )
    print(f"| waiting for partitions | {share(1, 'loading')} | {share(2, 'loading')} | |")
    print(f"| reading edges | {share(1, 'reading_edges')} | {share(2, 'reading_edges')} | |")
    loads = {workers: f"{statistics.median(run.num_loads for run in of_size):.0f}" for workers, of_size in runs.items()}
    print(f"| partition loads | {loads[1]} | {loads[2]} | |")
    off = {workers: predicted[workers] / statistics.median(seconds[workers]) - 1 for workers in predicted}
    print(f"| simulated, s | {predicted[1]:.2f} ({off[1]:+.1%}) | {predicted[2]:.2f} ({off[2]:+.1%}) | |")


def _share(runs: dict[int, list[Run]], workers: int, *names: str) -> str:
    shares = [sum(run.spent.get(name, 0.0) for name in names) / run.worker_seconds for run in runs[workers]]
    return f"{statistics.median(shares):.2%}"


def _cell(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
