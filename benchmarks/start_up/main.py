"""Times commands that compute nothing and evaluations of a tiny graph beside Python's own start and torch's import.

    python benchmarks/start_up/main.py              # seven turns
    python benchmarks/start_up/main.py --smoke      # one, of the tiny graph: does it run?

Run it with the Python that pbgeval is installed in. What each figure includes stands in the README beside this file.
"""

import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from attrs import evolve, field, frozen

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY))
from benchmarks import machine  # noqa: E402
from benchmarks.sampled_vs_torchbiggraph.graph import GraphSize, Protocol, make_graph, write_config  # noqa: E402 - the same graph as there, tiny

COMMAND = Path(sys.executable).parent / "kgeval-dist"
SIZE = GraphSize(num_partitions=2, num_entities=100, num_relations=5, num_edges=400, few_edges=1, dimension=16)
PROTOCOL = Protocol(num_batch_negs=10, num_uniform_negs=10, batch_size=100, workers=2)
# So many that loops are worth compiling, and the names of the evaluations of them: without and with loops in the cache.
LARGER_SIZE = evolve(SIZE, num_edges=400_000)
FIRST, LATER = "evaluation of 400,000 edges, 1 worker, the first on a machine", "the same, later"
NUM_PACKAGES = 10
RESULTS = ("result-a", "result-b")  # of the tiny graph, for commands that read one or two
WITHOUT_SCORES = ("metrics", "inspect edges", "report result-a", "compare result-a result-b")
# import time: self [us] | cumulative | imported package
IMPORT_LINE = re.compile(r"import time:\s*(\d+) \|\s*\d+ \|\s*([^.\s]+)")


@frozen
class Run:
    """How long a command took, by the clock and by its CPU time, and the metrics of an evaluation."""

    seconds: float
    cpu_seconds: float
    metrics: dict[str, float] | None = None


@frozen
class Program:
    """A command that is timed."""

    name: str
    words: tuple[str, ...]
    limit: float | None = None  # seconds that are asked for
    cpu_limit: float | None = None  # the same, of CPU time
    is_evaluation: bool = False
    variables: Mapping[str, str] = field(factory=dict)  # added to its environment

    def run(self, folder: Path) -> Run:
        """Run it once in the graph's folder, an evaluation into an output directory that is removed."""
        with tempfile.TemporaryDirectory(prefix="output-", dir=folder) as name:
            output = Path(name) / "output"
            further = ["--output", str(output)] if self.is_evaluation else []
            variables = {**self.variables, "NUMBA_CACHE_DIR": name} if self.name == FIRST else self.variables
            begun, cpu_before = time.perf_counter(), machine.children_cpu_seconds()
            _run([*self.words, *further], folder, variables)
            times = time.perf_counter() - begun, machine.children_cpu_seconds() - cpu_before
            if not self.is_evaluation:
                return Run(*times)
            document = json.loads((output / "metrics.json").read_text(encoding="utf-8"))
            return Run(*times, document["metrics"])


def main() -> None:
    """Make the graph, measure, print."""
    options = _options()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="pbgeval-benchmark-") as name:
        folder = Path(name).resolve() / "graph"
        make_graph(folder, SIZE)
        config = write_config(folder, SIZE, PROTOCOL)
        for result in RESULTS:
            _run([*_evaluation(config, 1), "-p", "save_ranks=True", "--output", result], folder, {})
        programs = _programs(config)
        if not options.smoke:
            make_graph(folder / "larger", LARGER_SIZE)
            programs += _further_programs(config, write_config(folder / "larger", LARGER_SIZE, PROTOCOL))
            for program in programs:
                program.run(folder)  # bytecode, the system's cache of files
        runs: dict[str, list[Run]] = {program.name: [] for program in programs}
        for turn in range(options.repeats):
            for program in programs:
                runs[program.name].append(program.run(folder))
            _say(f"turn {turn + 1}: " + ", ".join(f"{name} {of_it[-1].seconds:.2f} s" for name, of_it in runs.items()))
        imports = _imports(config, folder)
    print(machine.describe("benchmarks/start_up/main.py", load))
    print(
        f"Graph: {SIZE.num_edges} edges, {SIZE.num_partitions} x {SIZE.num_entities} entities, D={SIZE.dimension}; "
        f"medians of {options.repeats} (lowest to highest); "
        f"OMP_NUM_THREADS: {os.environ.get('OMP_NUM_THREADS', 'not set')}; "
        f"MRR of every evaluation: {_mean_reciprocal_rank(runs):.10f}\n"
    )
    _print_times(programs, runs)
    _print_imports(imports)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7, help="turns [%(default)s]")
    parser.add_argument("--smoke", action="store_true", help="one turn of the tiny graph, and none before it")
    options = parser.parse_args()
    if options.smoke:
        options.repeats = 1
    return options


def _programs(config: Path) -> list[Program]:
    """Return the commands of the tiny graph, in the order of a turn."""
    one, two = (_evaluation(config, workers) for workers in (1, 2))
    return [
        Program("`python -c pass`", (sys.executable, "-c", "pass")),
        Program("`kgeval-dist --help`", (str(COMMAND), "--help"), 0.3),
        *(Program(f"`kgeval-dist {words}`", (str(COMMAND), *words.split()), cpu_limit=0.7) for words in WITHOUT_SCORES),
        Program("`python -c 'import torch'`", (sys.executable, "-c", "import torch")),
        Program("evaluation, 1 worker", one, 3.0, is_evaluation=True),
        Program("evaluation, 2 workers", two, 6.0, is_evaluation=True),
    ]


def _further_programs(config: Path, larger: Path) -> list[Program]:
    """Return those that a smoke test leaves out: further evaluations, for which loops are compiled half a minute."""
    spinning = "evaluation, 1 worker, `GOMP_SPINCOUNT=300000`"
    return [
        Program(spinning, _evaluation(config, 1), is_evaluation=True, variables={"GOMP_SPINCOUNT": "300000"}),
        *(Program(name, _evaluation(larger, 1), is_evaluation=True) for name in (FIRST, LATER)),
    ]


def _evaluation(config: Path, workers: int) -> tuple[str, ...]:
    return (str(COMMAND), "--config", str(config), "--workers", str(workers), "--device", "cpu")


def _run(command: list[str], folder: Path, variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    environment = {**machine.user_environment(), **variables}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.stderr.write(done.stderr)
        raise SystemExit(f"ended with status {done.returncode}: {shlex.join(command)}")
    return done


def _mean_reciprocal_rank(runs: dict[str, list[Run]]) -> float:
    """Return the MRR of the tiny graph; all evaluations of a graph must share its metrics: what was timed is right."""
    found: dict[bool, list[dict[str, float]]] = defaultdict(list)
    for name, of_program in runs.items():
        found[name in (FIRST, LATER)] += [run.metrics for run in of_program if run.metrics is not None]
    if any(metrics != of_graph[0] for of_graph in found.values() for metrics in of_graph):
        raise SystemExit("expected the same metrics from all evaluations of a graph, found others")
    return found[False][0]["both.realistic.mean_reciprocal_rank"]


def _imports(config: Path, folder: Path) -> dict[str, float]:
    """Return the seconds that one worker spends on importing each top-level package, as Python says."""
    seconds: dict[str, float] = defaultdict(float)
    of_python = (sys.executable, "-X", "importtime", "-m", "pbgeval", *_evaluation(config, 1)[1:])
    done = _run([*of_python, "--output", str(folder / "output-imports")], folder, {})
    for line in done.stderr.splitlines():
        found = IMPORT_LINE.match(line)
        if found:
            seconds[found[2]] += int(found[1]) / 1e6
    return seconds


def _print_times(programs: list[Program], runs: dict[str, list[Run]]) -> None:
    of_torch = [run.seconds for run in runs["`python -c 'import torch'`"]]
    print("| | s | asked for: less than | CPU s | asked for: at most | times torch's import, median of turns |")
    print("|---|---|---|---|---|---|")
    for program in programs:
        taken = [run.seconds for run in runs[program.name]]
        times = statistics.median(one / other for one, other in zip(taken, of_torch, strict=True))
        limit, cpu_limit = ("" if of is None else f"{of:g}" for of in (program.limit, program.cpu_limit))
        cpu = _spread([run.cpu_seconds for run in runs[program.name]])
        print(f"| {program.name} | {_spread(taken)} | {limit} | {cpu} | {cpu_limit} | {times:.2f} |")


def _spread(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})"


def _print_imports(seconds: dict[str, float]) -> None:
    total = sum(seconds.values())
    shown = sorted(seconds.items(), key=lambda item: -item[1])[:NUM_PACKAGES]
    print("\n| imported by an evaluation with one worker, one run under `-X importtime` | s | share |")
    print("|---|---|---|")
    for package, of_package in [*shown, ("others", total - sum(of_one for _, of_one in shown)), ("all", total)]:
        print(f"| {package} | {of_package:.3f} | {of_package / total:.0%} |")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
