"""Times the monitor's and torchbiggraph's evaluation of the same held-out edges, in turns, and prints a table.

    python benchmarks/monitor/main.py                    # the quickstart's graph
    python benchmarks/monitor/main.py --smoke            # a tiny graph: does it run?

Run it with the Python that pbgeval is installed in; `scripts/peers torchbiggraph` installs the other program. What
each figure includes stands in the README beside this file.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np
import torch
from attrs import define, field

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY))
from benchmarks import machine, made_graph  # noqa: E402
from pbgeval import ModelSchema, ModelTensors, Monitor, MonitoredRelation  # noqa: E402
from pbgeval.examples.files import DEMO_GRAPH  # noqa: E402
from pbgeval.notation import Bucket, Side  # noqa: E402
from pbgeval.storage.edges import find_buckets  # noqa: E402

PEER = REPOSITORY / ".venv-peers" / "torchbiggraph" / "bin"
PROCESSED = re.compile(r"Processed (\d+) edges in ([-+.\deE]+) s")
STATS = re.compile(r"(\w+):\s+([-+.\deE]+)")
OURS, COMPARED, THEIRS = "pbgeval", "pbgeval, with training edges", "torchbiggraph"


@define
class Measured:
    """What one program needed, repeat by repeat."""

    seconds: list[float] = field(factory=list)  # of one evaluation of all held-out edges
    mean_reciprocal_rank: float = 0.0
    mean_rank: float = 0.0


def main() -> None:
    """Make the graph, measure, print."""
    options = _options()
    load = os.getloadavg()[0]
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="pbgeval-benchmark-") as name:
        folder = options.graph.resolve() if options.graph else _make_graph(Path(name) / "graph", options)
        config = json.loads((folder / "checkpoint" / "config.json").read_text(encoding="utf-8"))
        watched = Watched(folder, config, options)
        measured = {OURS: Measured(), COMPARED: Measured()}
        if options.has_peer:
            measured[THEIRS] = Measured()
            peer_config = _write_peer_config(Path(name), folder, config, options, watched)
        for _ in range(options.repeats):  # in turns
            watched.measure(measured[OURS], compare=False)
            watched.measure(measured[COMPARED], compare=True)
            if options.has_peer:
                _measure_peer(measured[THEIRS], peer_config, watched)
    _print_report(options, load, watched, measured)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", type=Path, help="folder that scripts/quickstart left [default: makes one]")
    parser.add_argument("--eval-fraction", type=float, default=0.05, help="[%(default)s]")
    parser.add_argument("--batch-negs", type=int, default=1000, help="[%(default)s]")
    parser.add_argument("--uniform-negs", type=int, default=1000, help="[%(default)s]")
    parser.add_argument("--repeats", type=int, default=5, help="[%(default)s]")
    parser.add_argument("--skip-peer", action="store_true", help="measure pbgeval alone")
    parser.add_argument("--smoke", action="store_true", help="a tiny graph, one repeat")
    options = parser.parse_args()
    options.has_peer = (PEER / "torchbiggraph_eval").exists() and not options.skip_peer
    if options.smoke:
        options.batch_negs, options.uniform_negs, options.repeats, options.eval_fraction = 20, 20, 1, 0.2
    elif not options.has_peer and not options.skip_peer:
        parser.error(f"no torchbiggraph in {PEER}: run scripts/peers torchbiggraph first, or use --skip-peer")
    return options


def _make_graph(folder: Path, options: argparse.Namespace) -> Path:
    """Write the quickstart's graph (or a tiny one) with a checkpoint."""
    edges, types, epochs = DEMO_GRAPH / "train.tsv.gz", DEMO_GRAPH / "types.tsv", "5"
    if options.smoke:
        folder.parent.mkdir(exist_ok=True)
        edges, types, epochs = folder.parent / "train.tsv", folder.parent / "types.tsv", "1"
        lines = [f"f{i}\tcalls\tf{(i + step) % 120}\n" for i in range(120) for step in (1, 2, 3)]
        lines += [f"f{i}\traises\tc{i % 5}\n" for i in range(120)]
        edges.write_text("".join(lines), encoding="utf-8")
        types.write_text("calls\tfunction\tfunction\nraises\tfunction\tclass\n", encoding="utf-8")
    partitions = ["--partitions", "function=4", "--partitions", "class=4"] if not options.smoke else []
    words = ["import-graph", "--output", folder, "--types", types, "--edges", f"train={edges}", "--quiet"]
    _run(sys.executable, "-m", "pbgeval", *words, *partitions)
    train = (sys.executable, "-m", "pbgeval.examples.training", "--graph", folder, "--types", types)
    _run(*train, "--epochs", epochs)
    return folder


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{command[1]} ended with status {done.returncode}: {done.stderr}")


class Watched:
    """The training edges of a graph, its checkpoint in memory, and monitors of both."""

    def __init__(self, folder: Path, config: dict, options: argparse.Namespace) -> None:
        relations = [MonitoredRelation(of["name"], of["lhs"], of["rhs"], of["operator"]) for of in config["relations"]]
        num_partitions = {name: of["num_partitions"] for name, of in config["entities"].items()}
        schema = ModelSchema(relations, num_partitions, config["comparator"])
        self.model = _read_model(folder / "checkpoint", config)
        self.grid = schema.grid
        self.held_out: dict[Bucket, np.ndarray] = {}
        self.monitors = {}
        for compare in (False, True):
            self.monitors[compare] = Monitor(
                schema,
                eval_fraction=options.eval_fraction,
                eval_num_batch_negs=options.batch_negs,
                eval_num_uniform_negs=options.uniform_negs,
                compare_with_training=compare,
            )
            for bucket, file in sorted(find_buckets(folder / "train", *schema.grid).items()):
                edges = np.stack(file.read_ids(0, file.num_edges), axis=1)
                self.held_out[bucket] = self.monitors[compare].split(edges, bucket).held_out
        self.num_edges = sum(map(len, self.held_out.values()))
        self._epoch = 0
        for compare in (False, True):  # start-up: compiled loops, the self-check of the kernels
            self.measure(Measured(), compare=compare)

    def measure(self, measured: Measured, *, compare: bool) -> None:
        """Visit every bucket once, without training; a visit evaluates the held-out edges twice."""
        self._epoch += 1
        seconds = 0.0
        for bucket in self.held_out:
            with self.monitors[compare].watch(self._epoch, bucket, self.model) as visit:
                pass
            seconds += visit.seconds
        measured.seconds.append(seconds / 2)
        after = self.monitors[compare].end_pass(self._epoch).details.after
        measured.mean_reciprocal_rank = after["both.pessimistic.mean_reciprocal_rank"]
        measured.mean_rank = after["both.pessimistic.mean_rank"]


def _read_model(checkpoint: Path, config: dict) -> ModelTensors:
    version = int((checkpoint / "checkpoint_version.txt").read_text(encoding="utf-8"))
    tables, operators = {}, {}
    for name, of in config["entities"].items():
        for partition in range(of["num_partitions"]):
            with h5py.File(checkpoint / f"embeddings_{name}_{partition}.v{version}.h5", "r") as file:
                tables[name, partition] = torch.from_numpy(file["embeddings"][:])
    with h5py.File(checkpoint / f"model.v{version}.h5", "r") as file:
        for index in range(len(config["relations"])):
            group = file[f"model/relations/{index}/operator/rhs"]
            operators[index, Side.RHS] = {name: torch.from_numpy(values[:]) for name, values in group.items()}
    return ModelTensors(tables, operators)


def _write_peer_config(
    scratch: Path, folder: Path, config: dict, options: argparse.Namespace, watched: Watched
) -> Path:
    """Write the held-out edges and the config of the other program, which evaluates them twice: first to warm up."""
    # It ends when a bucket has no file.
    every = {Bucket(*at): np.empty((0, 3), np.int64) for at in np.ndindex(*watched.grid)}
    for bucket, edges in {**every, **watched.held_out}.items():
        path = scratch / "held_out" / f"edges_{bucket.lhs}_{bucket.rhs}.h5"
        path.parent.mkdir(exist_ok=True)
        with h5py.File(path, "w") as file:
            file.attrs["format_version"] = 1
            for column, name in enumerate(("lhs", "rel", "rhs")):
                file.create_dataset(name, data=np.ascontiguousarray(edges[:, column]))
    keys = ("dimension", "global_emb", "comparator")
    settings = {key: config[key] for key in keys} | {
        # Without the keys that version 1.0.0 does not know.
        "entities": {name: {"num_partitions": of["num_partitions"]} for name, of in config["entities"].items()},
        "relations": [{key: of[key] for key in ("name", "lhs", "rhs", "operator")} for of in config["relations"]],
        "entity_path": str(folder / "entity"),
        "edge_paths": [str(scratch / "held_out")] * 2,
        "checkpoint_path": str(folder / "checkpoint"),
        "num_batch_negs": options.batch_negs,
        "num_uniform_negs": options.uniform_negs,
        "batch_size": -(-1000 // options.batch_negs) * options.batch_negs,
        "workers": 1,
    }
    return made_graph.write_config(scratch, settings)


def _measure_peer(measured: Measured, config: Path, watched: Watched) -> None:
    """Run it; what it says of each bucket leaves out reading edges and partitions, as ours does."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [PEER / "torchbiggraph_eval", config], capture_output=True, text=True, check=False, env=environment
    )
    text = done.stdout + done.stderr
    if done.returncode != 0:
        raise SystemExit(f"torchbiggraph_eval ended with status {done.returncode}: {text}")
    found = [(int(edges), float(seconds)) for edges, seconds in PROCESSED.findall(text)]
    warm = found[len(found) // 2 :]
    if sum(edges for edges, _ in warm) != watched.num_edges:
        raise SystemExit(f"torchbiggraph_eval: expected {watched.num_edges} edges, found {warm}")
    measured.seconds.append(sum(seconds for _, seconds in warm))
    figures = dict(STATS.findall([line for line in text.splitlines() if "Stats: " in line][-1]))
    measured.mean_reciprocal_rank, measured.mean_rank = float(figures["mrr"]), float(figures["pos_rank"])


def _print_report(options: argparse.Namespace, load: float, watched: Watched, measured: dict[str, Measured]) -> None:
    further = "torchbiggraph 1.0.0" if options.has_peer else "pbgeval alone was measured"
    print(machine.describe("benchmarks/monitor/main.py", load, further))
    print(
        f"{watched.num_edges:,} held-out edges in {len(watched.held_out)} buckets (fraction {options.eval_fraction}), "
        f"{options.batch_negs} + {options.uniform_negs} negatives, one thread; medians of {options.repeats} "
        "(lowest to highest)\n"
    )
    rows = ["one evaluation of a held-out edge, us", "share of torchbiggraph's", "MRR (ties pessimistic)", "mean rank"]
    cells: dict[str, list[str]] = {row: [] for row in rows}
    theirs = statistics.median(measured[THEIRS].seconds) if THEIRS in measured else None
    for of in measured.values():
        seconds, low, high = statistics.median(of.seconds), min(of.seconds), max(of.seconds)
        scale = 1e6 / watched.num_edges
        cells[rows[0]].append(f"{seconds * scale:.1f} ({low * scale:.1f} to {high * scale:.1f})")
        cells[rows[1]].append("" if theirs is None else f"{seconds / theirs:.2f}")
        cells[rows[2]].append(f"{of.mean_reciprocal_rank:.4f}")
        cells[rows[3]].append(f"{of.mean_rank:.1f}")
    print("| | " + " | ".join(measured) + " |")
    print("|---|" + "---|" * len(measured))
    for row in rows:
        print(f"| {row} | " + " | ".join(cells[row]) + " |")


if __name__ == "__main__":
    main()
