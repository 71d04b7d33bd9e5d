"""Times `kgeval-dist import-graph` under a limit of memory, and torchbiggraph's importer on a sample; prints a table.

    python benchmarks/import_graph/main.py                # 100M edges of 10M entities
    python benchmarks/import_graph/main.py --smoke        # a tiny graph: does it run?

Run it with the Python that pbgeval is installed in; `scripts/peers torchbiggraph` installs the other program. What
each figure includes stands in the README beside this file.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from attrs import frozen

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY))
from benchmarks import machine  # noqa: E402

PEER = REPOSITORY / ".venv-peers" / "torchbiggraph" / "bin" / "torchbiggraph_import_from_tsv"
EDGES_AT_A_TIME = 1 << 18
SEED = 0
CONFIG = """
def get_torchbiggraph_config():
    return dict(
        entity_path={entity!r}, edge_paths=[{edges!r}], checkpoint_path="checkpoint", dimension=4,
        entities={{"all": {{"num_partitions": {partitions}}}}}, dynamic_relations=True, global_emb=False,
        relations=[{{"name": "all_edges", "lhs": "all", "rhs": "all", "operator": "none"}}],
    )
"""


@frozen
class Measured:
    """What one import took."""

    num_edges: int
    seconds: float
    peak_bytes: int

    def row(self, name: str) -> str:
        """Return a row of the table."""
        speed = self.num_edges / self.seconds
        return f"| {name} | {self.num_edges:,} | {self.seconds:.1f} | {speed:,.0f} | {self.peak_bytes / 1e9:.2f} |"


def main() -> None:
    """Make the text, import it, print."""
    options = _options()
    load = os.getloadavg()[0]
    with ExitStack() as stack:
        chosen = options.data or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pbgeval-benchmark-")))
        folder = chosen.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        text = _make_text(folder / "edges.tsv", options.edges, options)
        sample = _make_text(folder / "sample.tsv", options.sample, options)
        rows = {
            "pbgeval": _ours(folder / "ours", text, options.edges, options),
            "pbgeval, sample": _ours(folder / "ours_sample", sample, options.sample, options),
        }
        if PEER.exists():
            rows["torchbiggraph, sample"] = _theirs(folder / "theirs", sample, options)
    print(machine.describe("benchmarks/import_graph/main.py", load, f"limit {options.limit_mb} MB for pbgeval"))
    print("\n| | edges | s | edges/s | peak GB |\n|---|---|---|---|---|")
    print("\n".join(measured.row(name) for name, measured in rows.items()))
    if not PEER.exists():
        print("\ntorchbiggraph is not installed: scripts/peers torchbiggraph")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--edges", type=int, default=100_000_000)
    parser.add_argument("--sample", type=int, default=1_000_000, help="edges of the comparison")
    parser.add_argument("--entities", type=int, default=10_000_000)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--limit-mb", type=int, default=4000, help="RLIMIT_DATA of an import of ours")
    parser.add_argument("--data", type=Path, help="folder that keeps what is written")
    parser.add_argument("--smoke", action="store_true", help="a tiny graph")
    options = parser.parse_args()
    if options.smoke:
        options.edges, options.sample, options.entities, options.partitions = 20_000, 2_000, 3_000, 2
    return options


def _make_text(path: Path, num_edges: int, options: argparse.Namespace) -> Path:
    """Write edges whose heads, tails and relations are uneven; names have some 35 letters."""
    random = np.random.default_rng(SEED)
    with path.open("w", encoding="ascii") as file:
        for start in range(0, num_edges, EDGES_AT_A_TIME):
            count = min(EDGES_AT_A_TIME, num_edges - start)
            ends = (options.entities * random.random((2, count)) ** 2).astype(np.int64).tolist()
            relations = (100 * random.random(count) ** 3).astype(np.int64).tolist()
            file.writelines(
                f"<http://example.org/entity/Q{head}>\trelation_{rel}\t<http://example.org/entity/Q{tail}>\n"
                for head, rel, tail in zip(ends[0], relations, ends[1], strict=True)
            )
    return path


def _ours(target: Path, text: Path, num_edges: int, options: argparse.Namespace) -> Measured:
    limit = options.limit_mb * 10**6
    command = [sys.executable, "-m", "pbgeval", "import-graph", "--output", str(target), "--edges", f"train={text}"]
    command += ["--partitions", str(options.partitions), "--max-memory", f"{options.limit_mb * 3 // 4}MB", "--quiet"]
    return _measure(command, num_edges, target.parent, limit)


def _theirs(target: Path, text: Path, options: argparse.Namespace) -> Measured:
    target.mkdir()
    config = target / "config.py"
    entity, edges = str(target / "entity"), str(target / "edges")
    config.write_text(CONFIG.format(entity=entity, edges=edges, partitions=options.partitions), encoding="utf-8")
    command = [str(PEER), "--lhs-col", "0", "--rel-col", "1", "--rhs-col", "2", str(config), str(text)]
    return _measure(command, options.sample, target, None)


def _measure(command: list[str], num_edges: int, folder: Path, limit: int | None) -> Measured:
    """Run a program; its wall time, and the largest resident size, which the kernel tells of the one child."""

    def limited() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # its buffers would count against the limit
    begun = time.perf_counter()
    with (folder / "output.log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log, preexec_fn=limited)
        _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begun
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit((folder / "output.log").read_text(encoding="utf-8"))
    return Measured(num_edges, seconds, usage.ru_maxrss * 1024)


if __name__ == "__main__":
    main()
