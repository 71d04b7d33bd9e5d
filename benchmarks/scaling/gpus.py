"""Simulates evaluations on 1 to 8 GPUs of one host from the stages that one GPU was measured with, and prints a table.

    python benchmarks/scaling/gpus.py

Nothing is measured here: the machine it runs on does not matter. What is assumed stands in the README beside this file.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from attrs import frozen

from pbgeval.inputs.dispatch import make_dispatch_plan
from pbgeval.notation import Bucket, WorkUnit, window_units

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.scaling.simulator import Machines, simulate

NUMBERS_OF_GPUS = (1, 2, 4, 8)
ROWS_PER_UNIT = 1 << 17
NOISE = 0.1  # of the logarithm of a unit's time, where its number of edges is known
SEEDS = range(3)  # the worst is shown
# A table of float32 and the edges as int64, both read from the page cache, in the sampled run below.
BYTES_READ = 4 * 1_000_000 * 100 + 3 * 8 * 10_000_000
SECONDS_OF_READING = 0.16
SHARE_OF_TABLES = 4 * 1_000_000 * 100 / BYTES_READ


@frozen
class Stages:
    """Seconds of one evaluation on one H200 (benchmarks/gpu/README.md, commit 618558c0)."""

    read: float
    prepare: float
    count: float
    pairs: float
    lists: float
    statistics: float
    report: float
    other: float


SAMPLED = Stages(SECONDS_OF_READING, 0.03, 0.36, 0.0, 0.34, 0.69, 0.11, 0.95)  # 10 million edges, 100 + 100 negatives
ALL_EXACT = Stages(0.00, 0.06, 0.98, 0.10, 0.03, 0.09, 0.38, 0.37)  # 200,000 queries, a million entities


@frozen
class Graph:
    """A graph whose edges are ranked in sampled lists, bucket by bucket."""

    name: str
    num_partitions: int
    entities_of_partition: int
    dimension: int
    num_edges: int


GRAPHS = (
    Graph("sampled, 10 million edges, 100 + 100 negatives", 4, 250_000, 100, 10_000_000),
    Graph("sampled, a billion edges, 50 + 50 negatives, at most", 16, 1_000_000, 64, 1_000_000_000),
)


def main() -> None:
    """Simulate, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="without the billion edges")
    options = parser.parse_args()
    print("| simulated, seconds | 1 GPU | 2 GPUs | 4 GPUs | 8 GPUs |\n|---|---|---|---|---|")
    for graph in GRAPHS[:1] if options.smoke else GRAPHS:
        _print_row(graph.name, [sampled(graph, number) for number in NUMBERS_OF_GPUS])
    _print_row(
        "all, exact, 200,000 queries, 1 million entities",
        [all_entities(ALL_EXACT, number) for number in NUMBERS_OF_GPUS],
    )


def sampled(graph: Graph, num_gpus: int) -> tuple[float, float]:
    """Return the seconds of sampled lists: where `other` divides among GPUs, and where it does not."""
    # By an edge of the measured run; its lists are as long or longer, and so are its rows.
    scale = graph.num_edges / GRAPHS[0].num_edges
    of_units = SAMPLED.prepare + SAMPLED.count + SAMPLED.pairs + SAMPLED.lists + SAMPLED.statistics
    of_units += SAMPLED.read * (1 - SHARE_OF_TABLES)  # edges; tables are read as the simulator says
    alone = SAMPLED.report  # of a summary: it does not grow with the edges
    divided = _simulated(graph, num_gpus, scale * (of_units + SAMPLED.other))
    undivided = _simulated(graph, num_gpus, scale * of_units) + scale * SAMPLED.other
    return divided + alone, undivided + alone


def _simulated(graph: Graph, num_gpus: int, seconds: float) -> float:
    """Return how long GPUs take that draw units from the queue, all of which take one GPU so many seconds."""
    units = list(_units(graph))
    room, partition_bytes = graph.num_partitions, 4.0 * graph.entities_of_partition * graph.dimension
    bytes_per_second = BYTES_READ / SECONDS_OF_READING
    found = []
    for seed in SEEDS:
        noise = np.exp(np.random.default_rng(seed).normal(0, NOISE, len(units))).tolist()
        work = {
            unit: unit.num_edges * seconds / graph.num_edges * factor for unit, factor in zip(units, noise, strict=True)
        }
        load_cost = partition_bytes / bytes_per_second / seconds * graph.num_edges
        plan = make_dispatch_plan(units, frozenset, num_gpus, room=room, load_cost=load_cost)
        machines = Machines((1.0,) * num_gpus, room, bytes_per_second)
        found.append(simulate(plan, machines, work, lambda _: partition_bytes).seconds)
    return max(found)


def _units(graph: Graph) -> Iterator[WorkUnit]:
    num_buckets = graph.num_partitions**2
    for number in range(num_buckets):
        bucket = Bucket(*divmod(number, graph.num_partitions))
        yield from window_units(0, bucket, graph.num_edges // num_buckets, ROWS_PER_UNIT)


def all_entities(stages: Stages, num_gpus: int) -> tuple[float, float]:
    """Return the same where all entities compete: each GPU has an equal part of them, and of the edges at the end."""
    of_parts = stages.read + stages.prepare + stages.count + stages.pairs + stages.statistics
    alone = stages.lists + stages.report  # each worker draws for all queries; one writes
    return (of_parts + stages.other) / num_gpus + alone, of_parts / num_gpus + stages.other + alone


def _print_row(name: str, found: list[tuple[float, float]]) -> None:
    cells = []
    for of in found:
        low, high = (f"{seconds:.0f}" if seconds >= 10 else f"{seconds:.1f}" for seconds in sorted(of))
        cells.append(low if max(of) < 1.01 * min(of) else f"{low} to {high}")
    print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
