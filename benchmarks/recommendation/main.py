"""Times the first k recommendations of all users among all items beside ranks alone and PyG's way; prints a table.

    python benchmarks/recommendation/main.py                            # 100,000 users x 1,000,000 items: an hour
    python benchmarks/recommendation/main.py --users 10000 --items 100000
    python benchmarks/recommendation/main.py --smoke                    # a tiny graph: does it run?

Run it with the Python that pbgeval is installed in; `scripts/peers metrics` installs PyTorch Geometric. What each
figure includes stands in the README beside this file.
"""

import argparse
import contextlib
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import h5py
import numpy as np
from attrs import frozen

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import machine, made_graph

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
PEER = REPOSITORY / ".venv-peers" / "metrics" / "bin" / "python"
BLOCK = 1 << 16  # rows of a table made together
WAYS = {
    "ranks alone": (),
    "topk_metrics": ("topk_metrics=True",),
    "topk_metrics, save_topk": ("topk_metrics=True", "save_topk={k}"),
}
NAMES = ("recall", "precision", "map", "ndcg", "mrr", "hit_ratio")


@frozen
class Run:
    """What one process did."""

    seconds: float
    cpu_seconds: float  # of all its processes
    peak_bytes: int  # of the largest worker
    figures: dict[str, float]


def main() -> None:
    """Make the data, measure in turns, print."""
    options = _options()
    load = os.getloadavg()[0]
    ways = {name: keys for name, keys in WAYS.items() if not (options.skip_lists and "save_topk={k}" in keys)}
    runs: dict[str, list[Run]] = {name: [] for name in ways}
    theirs: list[Run] = []
    with contextlib.ExitStack() as stack:
        folder = made_graph.data_folder(stack, options.data)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "eval.json").exists():
            _make(folder, options)
        for _ in range(options.repeats):
            for name, keys in ways.items():
                runs[name].append(_run(folder, [key.format(k=options.k) for key in keys], options))
                _say(f"{name}: {runs[name][-1]}")
            if options.has_peer:
                theirs.append(_run_peer(folder, options))
                _say(f"PyTorch Geometric: {theirs[-1]}")
    _print_report(options, load, runs, theirs)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=100_000, help="[%(default)s]")
    parser.add_argument("--items", type=int, default=1_000_000, help="[%(default)s]")
    parser.add_argument("--dimension", type=int, default=64, help="[%(default)s]")
    parser.add_argument("--answers", type=int, default=10, help="evaluated items of a user [%(default)s]")
    parser.add_argument("--known", type=int, default=20, help="training items of a user [%(default)s]")
    parser.add_argument("--k", type=int, default=10, help="[%(default)s]")
    parser.add_argument("--workers", type=int, default=2, help="one thread each [%(default)s]")
    parser.add_argument("--repeats", type=int, default=1, help="[%(default)s]")
    parser.add_argument("--peer-users", type=int, default=1000, help="the first users, for the peer [%(default)s]")
    parser.add_argument("--data", type=Path, help="folder that keeps the data [a temporary one, removed]")
    parser.add_argument("--skip-peer", action="store_true", help="measure pbgeval alone")
    parser.add_argument("--skip-lists", action="store_true", help="leave out lists of recommended items (save_topk)")
    parser.add_argument("--smoke", action="store_true", help="a tiny graph, one worker, no peer")
    options = parser.parse_args()
    if options.smoke:
        options.users, options.items, options.dimension, options.workers = 50, 400, 8, 1
    options.has_peer = PEER.exists() and not options.skip_peer and not options.smoke
    if not (options.has_peer or options.skip_peer or options.smoke):
        parser.error(f"no PyTorch Geometric in {PEER}: run scripts/peers metrics first, or use --skip-peer")
    return options


def _make(folder: Path, options: argparse.Namespace) -> None:
    """Write random vectors, and for each user evaluated and training items, popular ones more often."""
    (folder / "checkpoint").mkdir()
    (folder / "entity").mkdir()
    random = np.random.default_rng(5)
    for name, number in (("user", options.users), ("item", options.items)):
        (folder / "entity" / f"entity_count_{name}_0.txt").write_text(f"{number}\n", encoding="ascii")
        with h5py.File(folder / "checkpoint" / f"embeddings_{name}_0.v1.h5", "w") as file:
            file.attrs["format_version"] = made_graph.FORMAT_VERSION
            rows = file.create_dataset("embeddings", (number, options.dimension), np.float32)
            for start, stop in made_graph.blocks(number, BLOCK):
                rows[start:stop] = random.standard_normal((stop - start, options.dimension), dtype=np.float32)
    (folder / "checkpoint" / "checkpoint_version.txt").write_text("1\n", encoding="ascii")
    for name, times in (("edges", options.answers), ("train", options.known)):
        user = np.repeat(np.arange(options.users), times)
        item = (options.items * random.random(len(user)) ** 3).astype(np.int64)
        (folder / name).mkdir()
        with h5py.File(folder / name / "edges_0_0.h5", "w") as file:
            file.attrs["format_version"] = made_graph.FORMAT_VERSION
            for column, values in (("lhs", user), ("rel", np.zeros_like(user)), ("rhs", item)):
                file.create_dataset(column, data=values)
    relation = {"name": "likes", "lhs": "user", "rhs": "item", "operator": "none"}
    config = {
        "entities": {name: {"num_partitions": 1} for name in ("user", "item")},
        "relations": [relation],
        "entity_path": str(folder / "entity"),
        "checkpoint_path": str(folder / "checkpoint"),
        "edge_paths": [str(folder / "edges")],
        "train_paths": [str(folder / "train")],
        "dimension": options.dimension,
        "global_emb": False,
        "comparator": "dot",
        "candidates": "all",
        "disable_lhs_negs": True,
        "metrics": ["rank"],
        "hits_at": [options.k],
    }
    (folder / "eval.json").write_text(json.dumps(config), encoding="utf-8")


def _run(folder: Path, keys: list[str], options: argparse.Namespace) -> Run:
    """Evaluate in processes of its own."""
    with tempfile.TemporaryDirectory(prefix="pbgeval-benchmark-run-") as output:
        command = [sys.executable, "-m", "pbgeval", "--config", str(folder / "eval.json"), "--quiet"]
        command += ["--output", f"{output}/result", "--workers", str(options.workers), "--device", "cpu"]
        command += [part for key in keys for part in ("-p", key)]
        seconds, cpu_seconds, _ = _timed(command, "1")
        document, run = (
            json.loads((Path(output) / "result" / name).read_text(encoding="utf-8"))
            for name in ("metrics.json", "run.json")
        )
    section = document.get("topk_metrics")
    figures = {"mrr of ranks": document["metrics"]["tail.realistic.mean_reciprocal_rank"]}
    if section is not None:
        figures = {name: section["macro_metrics"][f"tail.{name}_at_{options.k}"] for name in NAMES}
    return Run(seconds, cpu_seconds, max(worker["peak_memory_bytes"] for worker in run["workers"]), figures)


def _run_peer(folder: Path, options: argparse.Namespace) -> Run:
    arguments = [folder, options.k, min(options.peer_users, options.users)]
    _, cpu_seconds, text = _timed([str(PEER), str(HERE / "theirs.py"), *map(str, arguments)], str(options.workers))
    return Run(cpu_seconds=cpu_seconds, **json.loads(text.splitlines()[-1]))


def _timed(command: list[str], threads: str) -> tuple[float, float, str]:
    """Return the clock's seconds, those of the processor, and what was printed."""
    begun, before = time.perf_counter(), machine.children_cpu_seconds()
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run(command, env=environment, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"ended with status {done.returncode}: {shlex.join(command)}\n{done.stderr}")
    return time.perf_counter() - begun, machine.children_cpu_seconds() - before, done.stdout


def _print_report(options: argparse.Namespace, load: float, runs: dict[str, list[Run]], theirs: list[Run]) -> None:
    print(machine.describe("benchmarks/recommendation/main.py", load))
    print(
        f"Work: {options.users:,} users with {options.answers} answers and {options.known} training items each, "
        f"against all of {options.items:,} items, D={options.dimension}; {options.workers} threads; medians of "
        f"{options.repeats} runs\n"
    )
    peer_users = min(options.peer_users, options.users)
    columns = {**runs, **({f"PyTorch Geometric, {peer_users:,} users": theirs} if theirs else {})}
    seconds = {name: statistics.median(run.seconds for run in of) for name, of in columns.items()}
    cpu = {name: statistics.median(run.cpu_seconds for run in of) for name, of in columns.items()}
    per_user = {name: of / (options.users if name in runs else peer_users) for name, of in cpu.items()}
    alone = per_user["ranks alone"]
    print(f"| | {' | '.join(columns)} |")
    print("|---" * (len(columns) + 1) + "|")
    _row("seconds", [f"{of:.1f}" for of in seconds.values()])
    _row("seconds of the processor", [f"{of:.1f}" for of in cpu.values()])
    _row("the same per user, milliseconds", [f"{1000 * of:.3f}" for of in per_user.values()])
    _row("over ranks alone", [f"{of / alone:.2f}" for of in per_user.values()])
    _row("peak memory of a process, GB", [f"{max(run.peak_bytes for run in of) / 1e9:.2f}" for of in columns.values()])
    for name in (*NAMES, "mrr of ranks"):
        found = [of[0].figures.get(name) for of in columns.values()]
        _row(f"{name}@{options.k}" if name in NAMES else name, ["" if of is None else f"{of:.8f}" for of in found])


def _row(title: str, cells: list[str]) -> None:
    print(f"| {title} | {' | '.join(cells)} |")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
