"""Times pbgeval and torchbiggraph_eval on one synthetic graph, in turns, and prints a table.

    python benchmarks/sampled_vs_torchbiggraph/main.py              # the sizes of the README
    python benchmarks/sampled_vs_torchbiggraph/main.py --smoke      # a tiny graph: does it run?

Run it with the Python that pbgeval is installed in; `scripts/peers torchbiggraph` installs the other program. What
each figure includes stands in the README beside this file.
"""

import argparse
import contextlib
import ctypes
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from attrs import frozen

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import machine, made_graph
from benchmarks.sampled_vs_torchbiggraph.graph import GraphSize, Protocol, make_graph, write_config

REPOSITORY = Path(__file__).resolve().parents[2]
PEER = REPOSITORY / ".venv-peers" / "torchbiggraph" / "bin"
SECONDS_BETWEEN_SAMPLES = 0.1  # of memory
PR_SET_CHILD_SUBREAPER = 36  # of Linux

OURS, THEIRS = "pbgeval", "torchbiggraph"


@frozen
class Program:
    """One of the two evaluators."""

    name: str
    command: tuple[str, ...]  # up to the edge path
    threads: int  # of a worker
    ranks: Callable[[Path], tuple[float, float]]  # folder of a run -> (MRR, mean rank), ties pessimistic


@frozen
class Run:
    """One process tree, from its start to its end."""

    wall_seconds: float
    cpu_seconds: float  # user and system, of the process and its descendants
    peak_bytes: int | None  # of all its processes together, shared pages counted once; None if not sampled


@frozen
class Measured:
    """All runs of one program."""

    full: tuple[Run, ...]
    start_up: tuple[Run, ...]
    peak_bytes: int
    mean_reciprocal_rank: float
    mean_rank: float


def main() -> None:
    """Make the graph, measure, print."""
    options = _options()
    _adopt_orphans()
    options.load = os.getloadavg()[0]
    with contextlib.ExitStack() as stack:
        folder = made_graph.data_folder(stack, options.data)
        size = GraphSize(
            num_partitions=options.partitions,
            num_entities=options.entities,
            num_relations=options.relations,
            num_edges=options.edges,
            few_edges=options.batch_negs or options.uniform_negs,
            dimension=options.dimension,
        )
        begun = time.perf_counter()
        make_graph(folder, size)
        _say(f"graph of {size.bytes_on_disk / 1e9:.2f} GB: {time.perf_counter() - begun:.0f} s")
        protocol = Protocol(
            options.batch_negs, options.uniform_negs, options.batch_size, options.workers, options.all_negs
        )
        config = write_config(folder, size, protocol)
        programs = _programs(options, config)
        limit = machine.matmul_flops(options.workers)
        measured = _measure(programs, folder, options)
    _print_report(options, size, measured, limit)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edges", type=int, default=10_000_000, help="of all buckets [%(default)s]")
    parser.add_argument("--entities", type=int, default=250_000, help="of one partition [%(default)s]")
    parser.add_argument("--partitions", type=int, default=4, help="[%(default)s]")
    parser.add_argument("--relations", type=int, default=100, help="dynamic ones [%(default)s]")
    parser.add_argument("--dimension", type=int, default=100, help="[%(default)s]")
    parser.add_argument("--batch-negs", type=int, default=100, help="[%(default)s]")
    parser.add_argument("--uniform-negs", type=int, default=100, help="[%(default)s]")
    parser.add_argument("--all-negs", action="store_true", help="rank against the whole partition instead")
    parser.add_argument("--batch-size", type=int, default=1000, help="of torchbiggraph; its default [%(default)s]")
    parser.add_argument("--workers", type=int, default=2, help="of each program, one thread each [%(default)s]")
    parser.add_argument("--threads", type=int, help="of pbgeval, which has then one worker [as many workers]")
    parser.add_argument("--repeats", type=int, default=3, help="[%(default)s]")
    parser.add_argument("--data", type=Path, help="folder that keeps the graph [a temporary one, removed]")
    parser.add_argument("--skip-peer", action="store_true", help="measure pbgeval alone")
    parser.add_argument("--smoke", action="store_true", help="a tiny graph, one repeat")
    options = parser.parse_args()
    if options.all_negs:
        options.batch_negs, options.uniform_negs = 0, 0
    options.has_peer = (PEER / "torchbiggraph_eval").exists() and not options.skip_peer
    if options.smoke:
        options.edges, options.entities, options.partitions, options.dimension = 4000, 500, 2, 16
        options.batch_negs, options.uniform_negs, options.workers, options.repeats = 10, 10, 1, 1
    elif not options.has_peer and not options.skip_peer:
        parser.error(f"no torchbiggraph in {PEER}: run scripts/peers torchbiggraph first, or use --skip-peer")
    return options


def _programs(options: argparse.Namespace, config: Path) -> list[Program]:
    bins = Path(sys.executable).parent
    ours = (
        str(bins / "kgeval-dist"),
        "--config",
        str(config),
        "--workers",
        str(1 if options.threads else options.workers),
    )
    programs = [Program(OURS, (*ours, "--device", "cpu", "--output", "output"), options.threads or 1, _our_ranks)]
    if options.has_peer:
        programs.append(Program(THEIRS, (str(PEER / "torchbiggraph_eval"), str(config)), 1, _their_ranks))
    return programs


def _measure(programs: list[Program], graph: Path, options: argparse.Namespace) -> dict[str, Measured]:
    """Run every program on both edge paths, in turns; before that once to warm up and to sample memory."""
    full: dict[str, list[Run]] = {program.name: [] for program in programs}
    start_up: dict[str, list[Run]] = {program.name: [] for program in programs}
    peaks: dict[str, int] = {}
    ranks: dict[str, tuple[float, float]] = {}
    if not options.smoke:
        for program in programs:
            with _run(program, graph / "edges", sample_memory=True) as (run, _):
                peaks[program.name] = run.peak_bytes or 0
            _say(f"warm-up, {program.name}: {run.wall_seconds:.2f} s, {run.peak_bytes} bytes")
    for repeat in range(options.repeats):
        for runs, edges in ((full, "edges"), (start_up, "few_edges")):
            for program in programs:
                with _run(program, graph / edges, sample_memory=options.smoke) as (run, output):
                    runs[program.name].append(run)
                    if edges == "edges":
                        ranks[program.name] = program.ranks(output)
                        peaks[program.name] = max(peaks.get(program.name, 0), run.peak_bytes or 0)
                _say(
                    f"repeat {repeat + 1}, {program.name}, {edges}: {run.wall_seconds:.2f} s wall, "
                    f"{run.cpu_seconds:.2f} s CPU"
                )
    return {name: Measured(tuple(full[name]), tuple(start_up[name]), peaks[name], *ranks[name]) for name in full}


@contextlib.contextmanager
def _run(program: Program, edges: Path, *, sample_memory: bool) -> Iterator[tuple[Run, Path]]:
    """Run a program in an empty folder, which is there until the end of the context."""
    with tempfile.TemporaryDirectory(prefix="pbgeval-benchmark-run-") as name:
        folder = Path(name)
        command = [*program.command, "-p", f"edge_paths={edges}"]
        # Threads as torchbiggraph sets them for itself.
        environment = {**machine.user_environment(), "OMP_NUM_THREADS": str(program.threads)}
        with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
            begun = time.perf_counter()
            process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=err, env=environment)
            sampler = _MemorySampler(process.pid) if sample_memory else None
            _, status, usage = os.wait4(process.pid, 0)
            wall_seconds = time.perf_counter() - begun
            process.returncode = os.waitstatus_to_exitcode(status)
            cpu_seconds = usage.ru_utime + usage.ru_stime + _cpu_seconds_of_orphans()
        peak = sampler.stop() if sampler else None
        if process.returncode != 0:
            sys.stderr.write((folder / "stderr").read_text(encoding="utf-8", errors="replace"))
            raise SystemExit(f"{program.name} ended with status {process.returncode}: {shlex.join(command)}")
        yield Run(wall_seconds, cpu_seconds, peak), folder


def _adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends before them, so that their time counts."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _cpu_seconds_of_orphans() -> float:
    """Wait for all that is left of a run; return its time with that of its own children."""
    seconds = 0.0
    while True:
        try:
            _, _, usage = os.wait3(0)
        except ChildProcessError:
            return seconds
        seconds += usage.ru_utime + usage.ru_stime


class _MemorySampler:
    """Adds up, several times a second, the memory of a process and its descendants; a shared page counts once."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._peak = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        self._ended.set()
        self._thread.join()
        return self._peak

    def _sample(self) -> None:
        while not self._ended.wait(SECONDS_BETWEEN_SAMPLES):
            self._peak = max(self._peak, sum(map(_proportional_bytes, _tree(self._root))))


def _tree(root: int) -> list[int]:
    found = [root]
    for process in found:
        for children in Path(f"/proc/{process}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += map(int, children.read_text().split())
    return found


def _proportional_bytes(process: int) -> int:
    """Return the process's share of the pages that it maps."""
    with contextlib.suppress(OSError):
        match = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{process}/smaps_rollup").read_text(), re.MULTILINE)
        if match:
            return int(match[1]) * 1024
    return 0


def _our_ranks(folder: Path) -> tuple[float, float]:
    metrics = json.loads((folder / "output" / "metrics.json").read_text(encoding="utf-8"))["metrics"]
    return metrics["both.pessimistic.mean_reciprocal_rank"], metrics["both.pessimistic.mean_rank"]


def _their_ranks(folder: Path) -> tuple[float, float]:
    text = "".join((folder / name).read_text(encoding="utf-8", errors="replace") for name in ("stdout", "stderr"))
    total = [line for line in text.splitlines() if "Stats: " in line][-1]
    values = dict(re.findall(r"(\w+):\s+([-+.\deE]+)", total))
    return float(values["mrr"]), float(values["pos_rank"])


def _print_report(options: argparse.Namespace, size: GraphSize, measured: dict[str, Measured], limit: float) -> None:
    negatives = size.num_entities if options.all_negs else options.batch_negs + options.uniform_negs
    flop = 2 * size.num_edges * 2 * negatives * size.dimension  # 2 sides, 2 flop per multiply-add
    print(machine.describe("benchmarks/sampled_vs_torchbiggraph/main.py", options.load, _peer_versions(options)))
    print(
        f"Graph: {size.num_edges:,} edges, {size.num_partitions} x {size.num_entities:,} entities, "
        f"{size.num_relations} relations, D={size.dimension}; {_protocol(options)}; "
        f"medians of {options.repeats} (lowest to highest)"
    )
    print(
        f"Float32 matmul on {options.workers} threads: {limit / 1e9:.0f} GFLOP/s; "
        f"multiply-adds of this work: {flop / limit:.2f} s\n"
    )

    names = list(measured)
    print("| | " + " | ".join(names) + (" | ratio |" if len(names) == 2 else " |"))
    print("|---|" + "---|" * (len(names) + (len(names) == 2)))
    whole = {name: _median(runs.full, "wall_seconds") for name, runs in measured.items()}
    cpu = {name: _median(runs.full, "cpu_seconds") for name, runs in measured.items()}
    start = {name: _median(runs.start_up, "wall_seconds") for name, runs in measured.items()}
    cpu_start = {name: _median(runs.start_up, "cpu_seconds") for name, runs in measured.items()}
    after = {name: max(whole[name] - start[name], 1e-9) for name in names}
    spread = {name: _spread([run.wall_seconds for run in runs.full]) for name, runs in measured.items()}
    spread_start = {name: _spread([run.wall_seconds for run in runs.start_up]) for name, runs in measured.items()}
    _row("whole process, s", whole, "{:.2f}", ratio=True, notes=spread)
    _row("start-up, s", start, "{:.2f}", ratio=True, notes=spread_start)
    _row("after start-up, s", after, "{:.2f}", ratio=True)
    _row("CPU time, whole process, s", cpu, "{:.1f}", ratio=True)
    _row("CPU time after start-up, s", {name: cpu[name] - cpu_start[name] for name in names}, "{:.1f}", ratio=True)
    _row("edges/s after start-up", {name: size.num_edges / after[name] for name in names}, "{:,.0f}")
    _row("share of the matmul limit after start-up", {name: flop / limit / after[name] for name in names}, "{:.0%}")
    peaks = {name: runs.peak_bytes / 1e9 for name, runs in measured.items()}
    _row("peak memory of all processes, GB", peaks, "{:.2f}", ratio=True)
    _row("MRR (ties pessimistic)", {name: runs.mean_reciprocal_rank for name, runs in measured.items()}, "{:.5f}")
    _row("mean rank (ties pessimistic)", {name: runs.mean_rank for name, runs in measured.items()}, "{:.3f}")
    chance = sum(1 / rank for rank in range(1, negatives + 1)) / negatives
    print(f"\nChance: MRR {chance:.5f}, mean rank {(negatives + 1) / 2:.1f}")


def _protocol(options: argparse.Namespace) -> str:
    negatives = f"{options.batch_negs} + {options.uniform_negs} negatives"
    workers = f"{options.workers} workers of one thread"
    if options.threads:
        workers = f"pbgeval: one worker of {options.threads} threads, the other: {workers}"
    return f"{'every entity of the partition' if options.all_negs else negatives}; {workers}"


def _row(
    title: str, values: dict[str, float], form: str, *, ratio: bool = False, notes: dict[str, str] | None = None
) -> None:
    """Print a row; the ratio says how many times less pbgeval needs."""
    cells = [form.format(value) + (f" ({notes[name]})" if notes else "") for name, value in values.items()]
    if len(values) == 2:
        cells.append(f"{values[THEIRS] / values[OURS]:.2f}" if ratio else "")
    print(f"| {title} | " + " | ".join(cells) + " |")


def _median(runs: Iterable[Run], field: str) -> float:
    return float(statistics.median(getattr(run, field) for run in runs))


def _spread(values: list[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"


def _peer_versions(options: argparse.Namespace) -> str:
    if not options.has_peer:
        reason = "not asked for" if options.skip_peer else "not installed (scripts/peers torchbiggraph installs it)"
        return f"torchbiggraph: {reason}, so pbgeval alone was measured"
    code = "from importlib.metadata import version as v; "
    code += "print('torchbiggraph', v('torchbiggraph'), 'on torch', v('torch'))"
    done = subprocess.run([PEER / "python", "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
