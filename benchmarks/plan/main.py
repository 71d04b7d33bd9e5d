"""Compares what `kgeval-dist plan` tells with what runs take, and prints a table.

    python benchmarks/plan/main.py              # five jobs: some minutes
    python benchmarks/plan/main.py --smoke      # tiny graphs: does it run?

Run it with the Python that pbgeval is installed in. What each figure includes stands in the README beside this file.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from attrs import evolve, frozen

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY))
from benchmarks import machine  # noqa: E402
from benchmarks.sampled_vs_torchbiggraph.graph import GraphSize, Protocol, make_graph, write_config  # noqa: E402

COMMAND = Path(sys.executable).parent / "kgeval-dist"
SIZE = GraphSize(
    num_partitions=2, num_entities=50_000, num_relations=100, num_edges=3_000_000, few_edges=10_000, dimension=100
)
SMALL_SIZE = GraphSize(
    num_partitions=2, num_entities=200, num_relations=5, num_edges=4_000, few_edges=100, dimension=16
)
# What `kgeval-dist plan` prints, with all digits.
PLAN = """
import json, sys
from pbgeval import load_config
from pbgeval.evaluation import plan_evaluation
_, plan = plan_evaluation(load_config(sys.argv[1], sys.argv[3:]), int(sys.argv[2]))
one = plan.estimate
seconds = [0.0, 0.0, 0.0, 0.0] if one is None else [one.seconds, one.fewest, one.most, one.cpu_seconds]
print(json.dumps([*seconds, plan.memory_bytes]))
"""


@frozen
class Job:
    """An evaluation: its graph's folder and what it asks for."""

    name: str
    config: Path
    settings: tuple[str, ...] = ()


@frozen
class Figures:
    """What was planned, or what was taken."""

    seconds: float
    cpu_seconds: float
    memory_bytes: float
    fewest: float = 0.0
    most: float = 0.0


def main() -> None:
    """Make the graphs, plan and run in turns, print."""
    options = _options()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="pbgeval-benchmark-") as name:
        folder = Path(name).resolve()
        jobs = _jobs(folder, SMALL_SIZE if options.smoke else SIZE)[:: 4 if options.smoke else 1]
        planned: dict[str, list[Figures]] = defaultdict(list)
        taken: dict[str, list[Figures]] = defaultdict(list)
        starts = []
        for turn in range(options.repeats):
            starts.append(_run(_start(jobs[0]), options.workers, folder / f"start-{turn}").cpu_seconds)
            for number, job in enumerate(jobs):
                planned[job.name].append(_plan(job, options.workers))
                taken[job.name].append(_run(job, options.workers, folder / f"output-{turn}-{number}"))
                print(f"{job.name}: {planned[job.name][-1]}, {taken[job.name][-1]}", file=sys.stderr, flush=True)
    print(machine.describe("benchmarks/plan/main.py", load))
    start = statistics.median(starts)
    print(f"Workers: {options.workers}; medians of {options.repeats} turns; a start takes {start:.1f} s of CPU time\n")
    _print(jobs, planned, taken, start)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="turns [%(default)s]")
    parser.add_argument("--workers", type=int, default=1, help="[%(default)s]")
    parser.add_argument("--smoke", action="store_true", help="one turn of tiny graphs")
    options = parser.parse_args()
    if options.smoke:
        options.repeats = 1
    return options


def _jobs(folder: Path, size: GraphSize) -> list[Job]:
    """Make a graph for each length of lists, and return the jobs."""
    graphs = {100: size, 1000: evolve(size, num_edges=3 * size.num_edges // 10)}
    configs = {}
    for num_negatives, of_graph in graphs.items():
        place = folder / f"graph-{num_negatives}"
        make_graph(place, of_graph)
        configs[num_negatives] = write_config(place, of_graph, Protocol(num_negatives, num_negatives, 10_000, 2))
    config = configs[100]
    few, known = (
        f"{key}={config.parent / name}" for key, name in (("edge_paths", "few_edges"), ("filter_paths", "edges"))
    )
    return [
        Job("sampled, 100 + 100", config),
        Job("sampled, 1,000 + 1,000", configs[1000]),
        Job("partition", config, (few, "candidates=partition")),
        Job("all", config, (few, "candidates=all")),
        Job("all, filtered", config, (few, "candidates=all", known)),
    ]


def _start(job: Job) -> Job:
    """Return a job that is nearly all start."""
    return evolve(job, settings=(f"edge_paths={job.config.parent / 'few_edges'}", "sample_edges=100"))


def _plan(job: Job, workers: int) -> Figures:
    done = _output([sys.executable, "-c", PLAN, str(job.config), str(workers), *job.settings])
    seconds, fewest, most, cpu_seconds, memory_bytes = json.loads(done)
    return Figures(seconds, cpu_seconds, memory_bytes, fewest, most)


def _run(job: Job, workers: int, output: Path) -> Figures:
    settings = [word for setting in job.settings for word in ("-p", setting)]
    before = machine.children_cpu_seconds()
    _output(
        [str(COMMAND), "run", str(job.config), *settings, "--workers", str(workers), "--output", str(output), "--quiet"]
    )
    cpu_seconds = machine.children_cpu_seconds() - before
    run = json.loads((output / "run.json").read_text(encoding="utf-8"))
    return Figures(run["seconds"], cpu_seconds, max(worker["peak_memory_bytes"] for worker in run["workers"]))


def _output(command: list[str]) -> str:
    """Run a program as kgeval-dist runs: torch's threads sleep soon while they wait."""
    environment = os.environ | {"GOMP_SPINCOUNT": "10000"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout


def _print(jobs: list[Job], planned: dict[str, list[Figures]], taken: dict[str, list[Figures]], start: float) -> None:
    print("| | planned CPU s | used CPU s | planned / used | planned s, range | taken s | planned MB | used MB |")
    print("|---|---|---|---|---|---|---|---|")
    for job in jobs:
        plan, run = (_medians(of[job.name]) for of in (planned, taken))
        used = max(run.cpu_seconds - start, 1e-9)
        print(
            f"| {job.name} | {plan.cpu_seconds:.1f} | {used:.1f} | {plan.cpu_seconds / used:.2f} | "
            f"{plan.seconds:.0f} ({plan.fewest:.0f} to {plan.most:.0f}) | {run.seconds:.0f} | "
            f"{plan.memory_bytes / 1e6:.0f} | {run.memory_bytes / 1e6:.0f} |"
        )


def _medians(figures: list[Figures]) -> Figures:
    names = ("seconds", "cpu_seconds", "memory_bytes", "fewest", "most")
    return Figures(**{name: statistics.median(getattr(one, name) for one in figures) for name in names})


if __name__ == "__main__":
    main()
