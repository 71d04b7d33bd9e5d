"""Times exact ranks of sampled lists against float32 ones, in turns, and prints the ratios of CPU time.

    python benchmarks/exact/sampled.py                             # 100 + 100: a minute and a half
    python benchmarks/exact/sampled.py --edges 300000 --negs 1000
    python benchmarks/exact/sampled.py --smoke                     # a tiny graph: does it run?

The graph is that of `benchmarks/sampled_vs_torchbiggraph`, in two partitions. A first turn, in which loops may be
compiled, does not count.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import machine
from benchmarks.sampled_vs_torchbiggraph.graph import GraphSize, Protocol, make_graph, write_config
from pbgeval import evaluate, load_config

PRECISIONS = ("float32", "exact")


def main() -> None:
    """Make the graph, measure both precisions in turns, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edges", type=int, default=3_000_000, help="[%(default)s]")
    parser.add_argument("--negs", type=int, default=100, help="of a batch, and as many uniform ones [%(default)s]")
    parser.add_argument("--entities", type=int, default=250_000, help="of one of two partitions [%(default)s]")
    parser.add_argument("--dimension", type=int, default=100, help="[%(default)s]")
    parser.add_argument("--comparator", default="dot", help="[%(default)s]")
    parser.add_argument("--candidates", default="sampled", help="or partition, all [%(default)s]")
    parser.add_argument("--metrics", default="rank,auc", help="[%(default)s]")
    parser.add_argument("--repeats", type=int, default=4, help="[%(default)s]")
    parser.add_argument("--smoke", action="store_true", help="a tiny graph, one repeat")
    options = parser.parse_args()
    if options.smoke:
        options.edges, options.entities, options.dimension, options.negs, options.repeats = 2000, 200, 16, 20, 1
    load = os.getloadavg()[0]
    torch.set_num_threads(1)
    size = GraphSize(2, options.entities, 100, options.edges, 2 * options.negs, options.dimension)
    seconds: dict[str, list[float]] = {precision: [] for precision in PRECISIONS}
    with tempfile.TemporaryDirectory(prefix="pbgeval-benchmark-") as folder:
        make_graph(Path(folder), size)
        config = write_config(Path(folder), size, Protocol(options.negs, options.negs, 1000, 1))
        for repeat in range(options.repeats + 1):
            for precision in PRECISIONS:
                loaded = load_config(
                    config,
                    [
                        f"precision={precision}",
                        f"metrics={options.metrics}",
                        f"comparator={options.comparator}",
                        f"candidates={options.candidates}",
                    ],
                )
                begun = time.process_time()
                evaluate(loaded, output=Path(folder) / f"output-{repeat}-{precision}", workers=1, device="cpu")
                if repeat:
                    seconds[precision].append(time.process_time() - begun)
    ratios = [exact / float32 for float32, exact in zip(*seconds.values(), strict=True)]
    print(machine.describe("benchmarks/exact/sampled.py", load))
    print("| candidates | edges | float32, CPU s | exact, CPU s | exact over float32, each turn | median |")
    print("|---|---|---|---|---|---|")
    medians = " | ".join(f"{statistics.median(of_precision):.2f}" for of_precision in seconds.values())
    ratios_of_turns = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    work = f"{options.negs} + {options.negs} | {options.edges:,}"
    print(f"| {work} | {medians} | {ratios_of_turns} | {statistics.median(ratios):.2f} |")


if __name__ == "__main__":
    main()
