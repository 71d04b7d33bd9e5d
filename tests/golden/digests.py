"""The digest of metrics.json, without its provenance, of golden cases and of a graph that is made here, by policy.

    python -m tests.golden.digests made            # prints {"made, cos, all": "...", ...}
    python -m tests.golden.digests ../shared/golden --loops never
    python -m tests.golden.digests ../shared/golden --record    # also into digests.json, where metrics.json has changed

The made graph has no number that a library draws or rounds, so that it is the same wherever it is made.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from attrs import evolve

from pbgeval import EvalConfig, evaluate, load_config
from tests.kit.graphs import COMPARATORS, EXACT_OWN_COMPARATORS, OPERATORS, Params, Relation, TinyGraph
from tests.kit.loops import loops_used
from tests.kit.on_disk import write_graph

POLICIES = ("all", "partition", "sampled")
COUNTED = ("dot", "squared_l2")  # comparators whose scores are also counted without being kept for the AUC
RECORD = Path(__file__).resolve().parent / "digests.json"
DIMENSION, ROWS, EDGES = 12, 90, 40  # rows of each of two partitions, edges of each bucket
LOOPS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "as usual": nullcontext,
    "always": lambda: loops_used(True),
    "never": lambda: loops_used(False),
}


def made_graph(comparator: str, *, bias: bool) -> TinyGraph:
    source = random.Random(0)  # integers alone: their stream is fixed

    def row(size: int = DIMENSION) -> list[float]:
        return [source.randint(-(2**23), 2**23) * 2.0 ** -source.randint(20, 26) for _ in range(size)]

    def parameters(operator: str) -> Params:
        shapes = {
            "none": {},
            "diagonal": {"diagonal": row},
            "translation": {"translation": row},
            "linear": {"linear_transformation": lambda: [row() for _ in range(DIMENSION)]},
            "affine": {"linear_transformation": lambda: [row() for _ in range(DIMENSION)], "translation": row},
            "complex_diagonal": {"real": lambda: row(DIMENSION // 2), "imag": lambda: row(DIMENSION // 2)},
        }
        return {name: make() for name, make in shapes[operator].items()}

    tables = [[row() for _ in range(ROWS)] for _ in range(2)]
    for table in tables:
        table += [list(of) for of in table[:5]]  # copies, which tie
    relations = [Relation(name, "user", "user", name, parameters(name), {}) for name in OPERATORS]
    buckets = {
        (lhs, rhs): [
            (source.randrange(ROWS), source.randrange(len(relations)), source.randrange(ROWS)) for _ in range(EDGES)
        ]
        for lhs in range(2)
        for rhs in range(2)
    }
    return TinyGraph(relations, {"user": tables}, {}, buckets, comparator=comparator, bias=bias)


def jobs(of: str, folder: Path) -> Iterator[tuple[str, EvalConfig]]:
    """Yield each job's name and config; the working directory becomes that of a golden case."""
    if of == "made":
        for at, comparator in enumerate((*COMPARATORS, *EXACT_OWN_COMPARATORS)):
            graph = made_graph(comparator, bias=at % 2 == 1)
            known = [graph.buckets]
            for policy in POLICIES if comparator in COMPARATORS else POLICIES[:1]:
                keys = {"candidates": policy, "precision": "exact", "num_batch_negs": 10, "num_uniform_negs": 20}
                path = folder / f"{comparator}-{policy}"
                config = write_graph(graph, path, filter_edges=known, **keys)
                yield f"made, {comparator}, {policy}", config
                if comparator in COUNTED:
                    yield f"made, {comparator}, {policy}, ranks alone", evolve(config, metrics=["rank"])
        return
    for case in sorted(path for path in Path(of).resolve().iterdir() if path.is_dir()):
        os.chdir(case)
        for policy in POLICIES:
            yield f"{case.name}, {policy}", load_config("eval.py", [f"candidates={policy}", "precision=exact"])


def digest_of(output: Path) -> str:
    document = json.loads((output / "metrics.json").read_text(encoding="utf-8"))
    assert document["provenance"]["settings"]["precision"] == "exact"
    del document["provenance"]  # digests of files, whose bytes are those of a version of HDF5
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:32]


def digests(of: str, names: Collection[str] | None = None, device: str = "cpu") -> dict[str, str]:
    """Return the digest of each job, or of some by name."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, config in jobs(of, Path(folder)):
            if names is not None and name not in names:
                continue
            output = Path(folder) / "output" / name
            evaluate(config, output=output, workers=1, device=device)
            found[name] = digest_of(output)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("of", help="made, or the folder of golden cases")
    parser.add_argument("--loops", choices=LOOPS, default="as usual", help="whether compiled loops are used")
    parser.add_argument("--record", action="store_true", help="keep them in digests.json")
    options = parser.parse_args()
    with LOOPS[options.loops]():
        result = digests(options.of)
    sys.stdout.write(json.dumps(result, indent=1) + "\n")
    if options.record:
        recorded = json.loads(RECORD.read_text(encoding="utf-8"))
        RECORD.write_text(json.dumps(recorded | result, indent=1) + "\n", encoding="utf-8")
