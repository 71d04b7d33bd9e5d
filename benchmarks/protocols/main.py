"""Times ranks of relations and the time-aware filter beside ranks of heads and tails; prints a table.

    python benchmarks/protocols/main.py            # FB15k-237, or a graph of its size
    python benchmarks/protocols/main.py --smoke    # a tiny graph: does it run?

What each figure includes is explained in the README beside this file.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np
from attrs import frozen

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import machine
from benchmarks.exact_vs_pykeen.job import SPLITS, JobSize, write_job

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM = REPOSITORY / "benchmarks" / "exact_vs_pykeen" / "ours.py"
REFERENCE = REPOSITORY.parent / "shared" / "golden" / "fb237_1p_complex"
NUM_TIMES = 50  # the edges of a query's time are about one in fifty
WAYS = {
    "heads and tails": (),
    "relations too": ("relation_prediction=True",),
    "time-aware filter too": ("time_window=0",),
}


@frozen
class Run:
    """What one evaluation took."""

    seconds: float
    cpu_seconds: float  # of its process, start-up included
    peak_bytes: int
    mean_reciprocal_rank: float


def main() -> None:
    """Write the job, measure in turns, print."""
    options = _options()
    load = os.getloadavg()[0]
    size = JobSize(300, 5, (100, 50, 1500), 16) if options.smoke else JobSize()
    reference = None if options.smoke or not (options.reference / "edges_test").exists() else options.reference
    runs: dict[str, list[Run]] = {name: [] for name in WAYS}
    with tempfile.TemporaryDirectory(prefix="pbgeval-benchmark-") as name:
        folder = Path(name)
        write_job(folder, size, reference)
        _add_times(folder)
        for repeat in range(options.repeats):
            for way, keys in WAYS.items():
                runs[way].append(_run(folder, f"{repeat}-{way.replace(' ', '_')}", keys, options.threads))
                print(f"{way}: {runs[way][-1]}", file=sys.stderr, flush=True)
    graph = "a made graph" if reference is None else "FB15k-237"
    print(machine.describe("benchmarks/protocols/main.py", load))
    print(
        f"Job: {graph}, {size.num_edges[0]:,} test edges, filtered, against {size.num_entities:,} entities and "
        f"{size.num_relations} relations, DistMult, D={size.dimension}; {options.threads} threads; "
        f"{NUM_TIMES} times at random; medians of {options.repeats} runs in turns\n"
    )
    _print_table(runs)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2, help="[%(default)s]")
    parser.add_argument("--repeats", type=int, default=7, help="[%(default)s]")
    parser.add_argument(
        "--reference", type=Path, default=REFERENCE, help="folder with edges of FB15k-237 [%(default)s, or made ones]"
    )
    parser.add_argument("--smoke", action="store_true", help="a tiny graph, one repeat")
    options = parser.parse_args()
    if options.smoke:
        options.repeats, options.threads = 1, 1
    return options


def _add_times(folder: Path) -> None:
    """Give every edge a random time. All ways read it, so that they differ by what they compute."""
    random = np.random.default_rng(7)
    for split in SPLITS:
        with h5py.File(folder / f"edges_{split}" / "edges_0_0.h5", "r+") as file:
            file.create_dataset("time", data=random.integers(0, NUM_TIMES, file["lhs"].shape[0]))


def _run(folder: Path, output: str, keys: tuple[str, ...], threads: int) -> Run:
    given = ("filter_paths=" + str(folder / "edges_valid"), *keys)
    command = [sys.executable, str(PROGRAM), str(folder / "config.py"), str(folder / output), *given]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    before = os.times()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    after = os.times()
    if done.returncode != 0:
        raise SystemExit(f"{done.stderr}\nended with status {done.returncode}")
    measured = json.loads(done.stdout.splitlines()[-1])
    cpu_seconds = after.children_user + after.children_system - before.children_user - before.children_system
    return Run(measured["seconds"], cpu_seconds, measured["peak_bytes"], measured["mean_reciprocal_rank"])


def _print_table(runs: dict[str, list[Run]]) -> None:
    first = next(iter(runs.values()))
    print("| | " + " | ".join(runs) + " |\n|---|" + "---|" * len(runs))
    seconds = [[run.seconds for run in of_way] for of_way in runs.values()]
    cells = [f"{statistics.median(of_way):.2f} ({min(of_way):.2f} to {max(of_way):.2f})" for of_way in seconds]
    _row("evaluation, s", cells)
    ratios = [
        statistics.median([run.seconds / other.seconds for run, other in zip(of_way, first, strict=True)])
        for of_way in runs.values()
    ]
    _row("over heads and tails, median of pairs", [f"{ratio:.2f}" for ratio in ratios])
    shortest = [min(run.cpu_seconds for run in of_way) for of_way in runs.values()]
    _row("CPU time of the process, start-up included, shortest, s", [f"{value:.2f}" for value in shortest])
    _row("the same over heads and tails", [f"{value / shortest[0]:.2f}" for value in shortest])
    _row("peak memory, GB", [f"{max(run.peak_bytes for run in of_way) / 1e9:.2f}" for of_way in runs.values()])
    _row("MRR of heads and tails", [f"{of_way[0].mean_reciprocal_rank:.10f}" for of_way in runs.values()])


def _row(title: str, cells: list[str]) -> None:
    print(f"| {title} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
