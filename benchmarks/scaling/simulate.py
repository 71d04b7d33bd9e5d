"""Simulates the dispatch of work units to up to 1,024 workers, and prints tables: a grid, and a large graph on paper.

    python benchmarks/scaling/simulate.py              # the tables of the README, minutes
    python benchmarks/scaling/simulate.py --smoke      # few partitions and workers: does it run?

Nothing is measured: the machine it runs on does not matter. What the columns say stands in the README beside this file.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from attrs import evolve, frozen

from pbgeval.inputs.dispatch import Partition, make_dispatch_plan
from pbgeval.notation import Bucket, WorkUnit, window_units

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.scaling.simulator import Machines, Simulation, simulate

SIGMA = 0.5  # of the logarithm of a bucket's size
NOISE = 0.1  # of the logarithm of a unit's time, where its number of edges is known
EDGES_PER_UNIT = 1_000_000  # of the grid: a mean bucket, which takes a second


@frozen
class Graph:
    """A graph whose entities are of one type, and who evaluates it."""

    num_entities: float
    num_edges: float
    dimension: int  # of float32
    edges_per_second: float  # of one worker
    bytes_per_second: float  # that a worker reads
    shared_bytes_per_second: float  # that all read together
    rows_per_unit: int  # a larger bucket is cut


PAPER = Graph(
    num_entities=1e9,
    num_edges=1e10,
    dimension=100,
    edges_per_second=2e5,
    bytes_per_second=1e9,
    shared_bytes_per_second=1e11,
    rows_per_unit=1 << 17,
)


def main() -> None:
    """Simulate, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, nargs="+", default=[64, 128, 256], help="%(default)s")
    parser.add_argument("--room", type=int, nargs="+", default=[2, 8], help="partitions in memory %(default)s")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 16, 256, 1024], help="%(default)s")
    parser.add_argument("--seeds", type=int, default=3, help="the worst of so many is shown [%(default)s]")
    parser.add_argument("--load-seconds", type=float, nargs="+", default=[0.05, 0.5], help="%(default)s")
    parser.add_argument("--only-paper", action="store_true", help="no grid")
    parser.add_argument("--smoke", action="store_true", help="few partitions and workers")
    options = parser.parse_args()
    if options.smoke:
        options.partitions, options.workers, options.seeds, options.load_seconds = [8], [1, 4], 1, [0.05]
        options.room = [2]
    graph = evolve(PAPER, num_edges=1e7) if options.smoke else PAPER
    for load_seconds in [] if options.only_paper else options.load_seconds:
        print(f"\nGrid; a partition takes {load_seconds:g} s to load:\n")
        _print_grid(options.partitions, options.room, options.workers, options.seeds, load_seconds)
    print("\nOn paper:\n")
    _print_paper(graph, options.partitions, options.room, options.workers[-2:])


def on_the_grid(num_partitions: int, room: int, num_workers: int, seed: int, load_seconds: float) -> Simulation:
    """Simulate a unit per bucket, log-normal, of a second in the mean, with noise that the plan does not know."""
    random = np.random.default_rng(seed)
    sizes = _bucket_sizes(num_partitions, EDGES_PER_UNIT * num_partitions**2, random)
    units = [WorkUnit(0, bucket, 0, size) for bucket, size in sizes]
    noise = np.exp(random.normal(0, NOISE, len(units))).tolist()
    work = {unit: unit.num_edges * factor / EDGES_PER_UNIT for unit, factor in zip(units, noise, strict=True)}
    plan = make_dispatch_plan(units, frozenset, num_workers, room=room, load_cost=EDGES_PER_UNIT * load_seconds)
    return simulate(plan, Machines((1.0,) * num_workers, room, 1 / load_seconds), work, lambda _: 1.0)


def on_paper(graph: Graph, num_partitions: int, room: int, num_workers: int, *, shared: bool) -> Simulation:
    """Simulate an evaluation in seconds and bytes, reading through one file system or each from a disk of its own."""
    random = np.random.default_rng(0)
    units: list[WorkUnit] = []
    for bucket, size in _bucket_sizes(num_partitions, graph.num_edges, random):
        units += window_units(0, bucket, size, graph.rows_per_unit)
    noise = np.exp(random.normal(0, NOISE, len(units))).tolist()
    work = {unit: unit.num_edges * factor / graph.edges_per_second for unit, factor in zip(units, noise, strict=True)}
    partition_bytes = 4.0 * graph.dimension * graph.num_entities / num_partitions
    load_cost = graph.edges_per_second * partition_bytes / graph.bytes_per_second
    plan = make_dispatch_plan(units, frozenset, num_workers, room=room, load_cost=load_cost)
    bandwidth = graph.shared_bytes_per_second if shared else float("inf")
    machines = Machines((1.0,) * num_workers, room, graph.bytes_per_second, bandwidth)

    def bytes_of(_: Partition) -> float:
        return partition_bytes

    return simulate(plan, machines, work, bytes_of)


def _bucket_sizes(num_partitions: int, num_edges: float, random: np.random.Generator) -> Iterator[tuple[Bucket, int]]:
    weights = np.exp(random.normal(-(SIGMA**2) / 2, SIGMA, num_partitions**2))
    for number, weight in enumerate(weights.tolist()):
        yield Bucket(*divmod(number, num_partitions)), max(1, int(num_edges / num_partitions**2 * weight))


def _print_grid(
    partitions: Sequence[int], rooms: Sequence[int], workers: Sequence[int], num_seeds: int, load_seconds: float
) -> None:
    print("| P | c | workers | time, s | bound, s | ratio | busy | loads | bound of one | of all | calls |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for num_partitions in partitions:
        for room in rooms:
            for num_workers in workers:
                results = [
                    on_the_grid(num_partitions, room, num_workers, seed, load_seconds) for seed in range(num_seeds)
                ]
                worst = max(results, key=lambda result: result.ratio)
                print(
                    f"| {num_partitions} | {room} | {num_workers:,} | {worst.seconds:,.1f} | "
                    f"{worst.bounds.seconds:,.1f} | {worst.ratio:.3f} | {np.mean(worst.busy_shares):.3f} | "
                    f"{worst.num_loads:,} | {worst.bounds.num_loads:,} | {worst.bounds.num_loads_shared:,} | "
                    f"{worst.num_calls / num_partitions**2:.2f} |"
                )


def _print_paper(graph: Graph, partitions: Sequence[int], rooms: Sequence[int], workers: Sequence[int]) -> None:
    print(
        f"{graph.num_entities:,.0f} entities, {graph.num_edges:,.0f} edges, D={graph.dimension}; a worker does "
        f"{graph.edges_per_second:,.0f} edges/s and reads {graph.bytes_per_second / 1e9:g} GB/s, a shared file system "
        f"serves {graph.shared_bytes_per_second / 1e9:g} GB/s\n"
    )
    print("| P | c | workers | reads | partition, GB | time, s | work, s | reading, s | ratio | loads | read, TB |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    cases = [(size, room, number) for size in partitions for room in rooms for number in workers]
    for num_partitions, room, num_workers in cases:
        for shared in (False, True):
            result = on_paper(graph, num_partitions, room, num_workers, shared=shared)
            print(
                f"| {num_partitions} | {room} | {num_workers:,} | {'shared' if shared else 'each'} | "
                f"{4e-9 * graph.dimension * graph.num_entities / num_partitions:.2f} | {result.seconds:,.0f} | "
                f"{result.bounds.work_seconds:,.0f} | {result.bounds.reading_seconds:,.0f} | {result.ratio:.2f} | "
                f"{result.num_loads:,} | {result.bytes_read / 1e12:,.1f} |"
            )


if __name__ == "__main__":
    main()
