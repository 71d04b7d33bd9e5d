"""Times graphs that are nearly all parts (partitions, buckets, types, relations, edge paths), beside another checkout.

    python benchmarks/many_buckets/main.py                  # this checkout
    python benchmarks/many_buckets/main.py --against PATH   # and another one, in turns
    python benchmarks/many_buckets/main.py --smoke          # the smallest sizes: does it run?

Run it with the Python that pbgeval is installed in. What is measured stands in the README beside this file.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from attrs import frozen

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY))
from benchmarks import machine  # noqa: E402
from benchmarks.many_buckets.graph import Parts, make_graph  # noqa: E402

PROGRAM = "import sys; sys.path.insert(0, sys.argv.pop(1)); from pbgeval.__main__ import main; main()"


@frozen
class Case:
    """A graph that has many parts of one kind."""

    kind: str
    number: int
    parts: Parts


@frozen
class Run:
    """What an evaluation took; nothing where it did not end in time."""

    seconds: float
    cpu_seconds: float
    mean_reciprocal_rank: float | None


def cases(*, smoke: bool) -> list[Case]:
    """Return all graphs, by kind and number of parts."""
    found = [
        *(
            Case("partitions, as many buckets, `candidates=all`", n, Parts("all", num_partitions=n, num_buckets=n))
            for n in (30, 100, 300, 1000)
        ),
        *(
            Case("buckets, sampled candidates", n * n, Parts("sampled", num_partitions=n, num_buckets=n * n))
            for n in (20, 40, 80)
        ),
        *(Case("entity types, a relation each, sampled", n, _of_relations(n, num_types=n)) for n in (300, 3000)),
        *(Case("relations of one type, sampled", n, _of_relations(n)) for n in (1000, 10000)),
        *(Case("edge paths, sampled", n, Parts("sampled", num_paths=n)) for n in (100, 1000)),
    ]
    if not smoke:
        return found
    return [found[0], Case("buckets, sampled candidates", 16, Parts("sampled", num_partitions=4, num_buckets=16))]


def _of_relations(number: int, num_types: int = 1) -> Parts:
    return Parts("sampled", num_types=num_types, num_relations=number, edges_per_bucket=10 * number, dynamic=False)


def main() -> None:
    """Make each graph, evaluate it by each checkout in turns, print."""
    options = _options()
    load = os.getloadavg()[0]
    checkouts = {"this checkout": REPOSITORY}
    if options.against is not None:
        checkouts = {"before": options.against.resolve(), **checkouts}
    rows = []
    for case in cases(smoke=options.smoke):
        if not case.kind.startswith(options.only):
            continue
        with tempfile.TemporaryDirectory(prefix="pbgeval-benchmark-") as name:
            folder = Path(name).resolve()
            config = make_graph(folder, case.parts)
            runs: dict[str, list[Run | None]] = {label: [] for label in checkouts}
            for _ in range(options.repeats):
                for label, checkout in checkouts.items():
                    if None not in runs[label]:  # once too long is enough
                        runs[label].append(_evaluate(checkout, config, options.limit))
        _check_figures(case, runs)
        rows.append(_row(case, runs, options.limit))
        print(rows[-1], file=sys.stderr, flush=True)
    print(machine.describe("benchmarks/many_buckets/main.py", load))
    print(f"OMP_NUM_THREADS: 1; one worker; medians of {options.repeats}: seconds, and in brackets CPU seconds\n")
    print(f"| | number | {' | '.join(checkouts)} |")
    print(f"|---|---|{'---|' * len(checkouts)}")
    print("\n".join(rows))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, metavar="PATH", help="another checkout of this repository")
    parser.add_argument("--repeats", type=int, default=3, help="turns [%(default)s]")
    parser.add_argument("--limit", type=float, default=200.0, help="seconds that an evaluation may take [%(default)g]")
    parser.add_argument("--only", default="", metavar="KIND", help="graphs of which kind, by its first letters [all]")
    parser.add_argument("--smoke", action="store_true", help="one turn of the smallest graphs")
    options = parser.parse_args()
    if options.smoke:
        options.repeats = 1
    return options


def _evaluate(checkout: Path, config: Path, limit: float) -> Run | None:
    """Evaluate a graph in a process of its own; None if it takes longer than the limit."""
    with tempfile.TemporaryDirectory(prefix="output-", dir=config.parent) as name:
        output = Path(name) / "output"
        command = [sys.executable, "-c", PROGRAM, str(checkout), "--config", str(config), "--output", str(output)]
        before, begun = machine.children_cpu_seconds(), time.perf_counter()
        try:
            done = subprocess.run(
                [*command, "--workers", "1", "--device", "cpu"],
                cwd=config.parent,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                capture_output=True,
                text=True,
                check=False,
                timeout=limit,
            )
        except subprocess.TimeoutExpired:
            return None
        seconds, cpu_seconds = time.perf_counter() - begun, machine.children_cpu_seconds() - before
        if done.returncode != 0:
            sys.stderr.write(done.stderr)
            raise SystemExit(f"{checkout}: ended with status {done.returncode}")
        document = json.loads((output / "metrics.json").read_text(encoding="utf-8"))
    return Run(seconds, cpu_seconds, document["metrics"]["both.realistic.mean_reciprocal_rank"])


def _check_figures(case: Case, runs: dict[str, list[Run | None]]) -> None:
    """Refuse to compare evaluations that found different figures."""
    found = {run.mean_reciprocal_rank for of_checkout in runs.values() for run in of_checkout if run is not None}
    if len(found) > 1:
        raise SystemExit(f"{case}: expected the same figures from all evaluations, found {sorted(map(str, found))}")


def _row(case: Case, runs: dict[str, list[Run | None]], limit: float) -> str:
    cells = []
    for of_checkout in runs.values():
        ended = [run for run in of_checkout if run is not None]
        if len(ended) < len(of_checkout):
            cells.append(f"more than {limit:g}")
            continue
        seconds, cpu_seconds = (
            statistics.median(of) for of in zip(*((run.seconds, run.cpu_seconds) for run in ended), strict=True)
        )
        cells.append(f"{seconds:.1f} ({cpu_seconds:.1f})")
    return f"| {case.kind} | {case.number:,} | {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
