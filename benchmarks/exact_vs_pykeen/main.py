"""Times filtered ranks against all entities in pbgeval and in PyKEEN's RankBasedEvaluator, and prints a table.

    python benchmarks/exact_vs_pykeen/main.py              # FB15k-237, or a graph of its size
    python benchmarks/exact_vs_pykeen/main.py --smoke      # a tiny graph: does it run?

Run it with the Python that pbgeval is installed in; `scripts/peers pykeen` installs the other program. What each figure
includes stands in the README beside this file.
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from attrs import frozen
from job import JobSize, write_job

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import machine

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
REFERENCE = REPOSITORY.parent / "shared" / "golden" / "fb237_1p_complex"
PEER = REPOSITORY / ".venv-peers" / "pykeen" / "bin" / "python"
MEAN_RANK_ALONE = ("metrics=mean_rank", "breakdowns=")


@frozen
class Run:
    """What one process has measured of itself; fields that only one program measures are None for the other."""

    seconds: float
    peak_bytes: int
    mean_reciprocal_rank: float | None
    mean_rank: float
    sweep_seconds: float | None = None
    startup_seconds: float | None = None


def main() -> None:
    """Write the job, measure, print."""
    options = _options()
    load = os.getloadavg()[0]
    size = JobSize(300, 5, (100, 50, 1500), 16) if options.smoke else JobSize(dimension=options.dimension)
    reference = None if options.smoke or not (options.reference / "edges_test").exists() else options.reference
    ours: list[Run] = []
    alone: list[Run] = []  # mean rank, and nothing else
    theirs: list[Run] = []
    speeds: list[float] = []
    with tempfile.TemporaryDirectory(prefix="pbgeval-benchmark-") as name:
        folder = Path(name)
        write_job(folder, size, reference)
        for repeat in range(options.repeats):
            speeds.append(machine.matmul_flops(options.threads))  # between the runs: a shared machine's speed varies
            output = folder / f"output-{repeat}"
            command = [sys.executable, str(HERE / "ours.py"), str(folder / "config.py"), str(output)]
            ours.append(_run(command, options.threads, folder))
            _say(f"pbgeval: {ours[-1]}")
            alone.append(_run([*command[:-1], f"{output}-alone", *MEAN_RANK_ALONE], options.threads, folder))
            _say(f"pbgeval, mean rank alone: {alone[-1]}")
            if options.has_peer and repeat < options.peer_repeats:
                command = [str(PEER), str(HERE / "theirs.py"), str(folder / "arrays.npz")]
                theirs.append(_run(command, options.threads, folder))
                _say(f"PyKEEN: {theirs[-1]}")
        flops = statistics.median(speeds)
    graph = "a made graph" if reference is None else "FB15k-237"
    _print_report(options, size, graph, load, flops, ours, alone, theirs)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dimension", type=int, default=100, help="[%(default)s]")
    parser.add_argument("--threads", type=int, default=2, help="of each program [%(default)s]")
    parser.add_argument("--repeats", type=int, default=5, help="of pbgeval [%(default)s]")
    parser.add_argument("--peer-repeats", type=int, default=1, help="of PyKEEN: minutes each [%(default)s]")
    parser.add_argument(
        "--reference", type=Path, default=REFERENCE, help="folder with edges of FB15k-237 [%(default)s, or made ones]"
    )
    parser.add_argument("--skip-peer", action="store_true", help="measure pbgeval alone")
    parser.add_argument("--smoke", action="store_true", help="a tiny graph, one repeat")
    options = parser.parse_args()
    options.has_peer = PEER.exists() and not options.skip_peer
    if options.smoke:
        options.repeats, options.threads = 1, 1
    elif not options.has_peer and not options.skip_peer:
        parser.error(f"no PyKEEN in {PEER}: run scripts/peers pykeen first, or use --skip-peer")
    return options


def _run(command: list[str], threads: int, folder: Path) -> Run:
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.stderr.write(done.stderr)
        raise SystemExit(f"ended with status {done.returncode}: {shlex.join(command)}")
    return Run(**json.loads(done.stdout.splitlines()[-1]))


def _print_report(
    options: argparse.Namespace,
    size: JobSize,
    graph: str,
    load: float,
    flops: float,
    ours: list[Run],
    alone: list[Run],
    theirs: list[Run],
) -> None:
    num_queries = 2 * size.num_edges[0]
    limit = 2 * num_queries * size.num_entities * size.dimension / flops
    print(machine.describe("benchmarks/exact_vs_pykeen/main.py", load, _peer_versions(options)))
    print(
        f"Job: {graph}, {size.num_edges[0]:,} test edges, both sides, filtered, against {size.num_entities:,} "
        f"entities, DistMult, D={size.dimension}; {options.threads} threads; "
        f"medians of {len(ours)} and {len(theirs)} runs (lowest to highest)"
    )
    print(
        f"Float32 matmul, median of {len(ours)} measurements between the runs: {flops / 1e9:.0f} GFLOP/s; "
        f"queries x entities x D: {limit:.2f} s\n"
    )
    both = [("pbgeval", ours), *([("PyKEEN", theirs)] if theirs else [])]
    print("| | " + " | ".join(name for name, _ in both) + (" | ratio |" if theirs else " |"))
    print("|---|" + "---|" * (len(both) + bool(theirs)))
    seconds = [_median([run.seconds for run in runs]) for _, runs in both]
    spreads = [f"{min(run.seconds for run in runs):.2f} to {max(run.seconds for run in runs):.2f}" for _, runs in both]
    _row("evaluation, s", [f"{s:.2f} ({spread})" for s, spread in zip(seconds, spreads, strict=True)], seconds)
    sweep = _median([run.sweep_seconds for run in ours if run.sweep_seconds is not None])
    blank = [""] * (len(both) - 1)
    _row("of that the ranking sweep, s", [f"{sweep:.2f}", *blank])
    startup = _median([run.startup_seconds for run in ours if run.startup_seconds is not None])
    _row("start-up before it (imports, loading compiled loops), s", [f"{startup:.2f}", *blank])
    _row("evaluation over the matmul limit", [f"{value / limit:.1f}" for value in seconds])
    _row("ranking sweep over the matmul limit", [f"{sweep / limit:.1f}", *blank])
    sweeps = [
        (run.sweep_seconds or 0.0, of_alone.sweep_seconds or 0.0) for run, of_alone in zip(ours, alone, strict=True)
    ]
    _row("ranking sweep with mean rank alone, s", [f"{_median([of_alone for _, of_alone in sweeps]):.2f}", *blank])
    _row("ranking sweep over that, median of pairs", [f"{_median([one / other for one, other in sweeps]):.2f}", *blank])
    peaks = [max(run.peak_bytes for run in runs) / 1e9 for _, runs in both]
    _row("peak memory of the process, GB", [f"{peak:.2f}" for peak in peaks], peaks)
    _row("MRR (realistic)", [f"{runs[0].mean_reciprocal_rank or 0.0:.10f}" for _, runs in both])
    _row("mean rank (realistic)", [f"{runs[0].mean_rank:.4f}" for _, runs in both])


def _row(title: str, cells: list[str], values: list[float] | None = None) -> None:
    """Print a row; the ratio says how many times less pbgeval needs."""
    if len(cells) == 2:
        cells = [*cells, f"{values[1] / values[0]:.1f}" if values else ""]
    print(f"| {title} | " + " | ".join(cells) + " |")


def _median(values: list[float]) -> float:
    return float(statistics.median(values))


def _peer_versions(options: argparse.Namespace) -> str:
    if not options.has_peer:
        reason = "not asked for" if options.skip_peer else "not installed (scripts/peers pykeen installs it)"
        return f"PyKEEN: {reason}, so pbgeval alone was measured"
    code = "from importlib.metadata import version as v; print('PyKEEN', v('pykeen'), 'on torch', v('torch'))"
    done = subprocess.run([PEER, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
