"""Times exact ranks of whole evaluations against float32 ones, in turns, and prints the ratios of CPU time.

    python benchmarks/exact/sampled.py                             # 100 + 100: a minute and a half
    python benchmarks/exact/sampled.py --edges 300000 --negs 1000
    python benchmarks/exact/sampled.py --edges 100000 --entities 50000 -p bias=True
    python benchmarks/exact/sampled.py --edges 30000 --entities 50000 --operator linear
    python benchmarks/exact/sampled.py --config eval.py -p candidates=all
    python benchmarks/exact/sampled.py --smoke                     # a tiny graph: does it run?

The graph is that of `benchmarks/sampled_vs_torchbiggraph`, in two partitions, or that of a config. A first turn, in
which loops may be compiled, does not count.
"""

import argparse
import os
import runpy
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import h5py
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import machine
from benchmarks.sampled_vs_torchbiggraph.graph import GraphSize, Protocol, make_graph, write_config
from pbgeval import evaluate, load_config
from pbgeval.notation import Side
from pbgeval.storage.checkpoint_files import write_model

PRECISIONS = ("float32", "exact")
NUM_RELATIONS = 100
MADE = "complex_diagonal"  # the operator of the graph


def main() -> None:
    """Make the graph, measure both precisions in turns, print."""
    options = _options()
    load = os.getloadavg()[0]
    torch.set_num_threads(1)
    seconds: dict[str, list[float]] = {precision: [] for precision in PRECISIONS}
    with tempfile.TemporaryDirectory(prefix="pbgeval-benchmark-") as folder:
        config = options.config or _make(Path(folder), options)
        for repeat in range(options.repeats + 1):
            for precision in PRECISIONS:
                loaded = load_config(config, [f"precision={precision}", *_overrides(options)])
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
    if options.config:
        work = f"{options.config.parent.name} | its own"
    print(f"| {work} | {medians} | {ratios_of_turns} | {statistics.median(ratios):.2f} |")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edges", type=int, default=3_000_000, help="[%(default)s]")
    parser.add_argument("--negs", type=int, default=100, help="of a batch, and as many uniform ones [%(default)s]")
    parser.add_argument("--entities", type=int, default=250_000, help="of one of two partitions [%(default)s]")
    parser.add_argument("--dimension", type=int, default=100, help="[%(default)s]")
    parser.add_argument("--factor", type=float, default=1.0, help="of all vectors [%(default)s]")
    parser.add_argument("--operator", default=MADE, help="or linear, translation [%(default)s]")
    parser.add_argument("--static", action="store_true", help="relations that are not dynamic")
    parser.add_argument("--comparator", help="[dot]")
    parser.add_argument("--candidates", help="sampled, partition or all [sampled]")
    parser.add_argument("--metrics", default="rank,auc", help="[%(default)s]")
    parser.add_argument("--config", type=Path, help="evaluate this instead of a made graph")
    parser.add_argument("-p", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help="of the config")
    parser.add_argument("--repeats", type=int, default=4, help="[%(default)s]")
    parser.add_argument("--smoke", action="store_true", help="a tiny graph, one repeat")
    options = parser.parse_args()
    if options.smoke:
        options.edges, options.entities, options.dimension, options.negs, options.repeats = 2000, 200, 16, 20, 1
    return options


def _overrides(options: argparse.Namespace) -> list[str]:
    chosen = {name: getattr(options, name) for name in ("metrics", "comparator", "candidates")}
    return [*(f"{name}={value}" for name, value in chosen.items() if value is not None), *options.overrides]


def _make(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Write the graph, with parameters of another operator where one is asked for; return the keys of its config."""
    size = GraphSize(2, options.entities, NUM_RELATIONS, options.edges, 2 * options.negs, options.dimension)
    make_graph(folder, size)
    for embeddings in (folder / "checkpoint").glob("embeddings_*.h5") if options.factor != 1 else ():
        with h5py.File(embeddings, "r+") as file:
            file["embeddings"][...] *= options.factor
    path = write_config(folder, size, Protocol(options.negs, options.negs, 1000, 1))
    keys: dict[str, Any] = runpy.run_path(str(path))["get_torchbiggraph_config"]()
    if options.operator == MADE and not options.static:
        return keys
    if options.static:
        relation = keys["relations"][0] | {"operator": options.operator}
        keys["relations"] = [relation | {"name": f"{number}"} for number in range(NUM_RELATIONS)]
        shapes = {(number, Side.RHS): () for number in range(NUM_RELATIONS)}
    else:
        keys["relations"][0]["operator"] = options.operator
        shapes = {(0, side): (NUM_RELATIONS,) for side in (Side.LHS, Side.RHS)}
    torch.manual_seed(0)
    parameters = {key: _parameters(options.operator, shape, options.dimension) for key, shape in shapes.items()}
    (folder / "checkpoint" / "model.v1.h5").unlink()
    write_model(folder / "checkpoint", 1, parameters, dynamic=not options.static)
    return keys | {"dynamic_relations": not options.static}


def _parameters(operator: str, shape: tuple[int, ...], dimension: int) -> dict[str, torch.Tensor]:
    """Return random parameters; `shape` has the number of relations where they are dynamic."""
    parts = {
        "linear": {"linear_transformation": (dimension, dimension)},
        "translation": {"translation": (dimension,)},
        "complex_diagonal": {"real": (dimension // 2,), "imag": (dimension // 2,)},
    }
    return {name: torch.randn(shape + of) / of[-1] ** 0.5 for name, of in parts[operator].items()}


if __name__ == "__main__":
    main()
