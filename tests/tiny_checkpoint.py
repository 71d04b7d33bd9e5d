"""A small valid dataset in PyTorch-BigGraph's format with its checkpoint and config, and the command run on it.

Use:
    case = TinyCase.write(tmp_path)                  # two entity types, four operators, global embeddings
    case = TinyCase.write(tmp_path, dynamic=True)    # one entity type, dynamic relations
    case.spoil_embeddings("user", 1, row=3, value=math.nan)
    done = run_command(case, "--workers", "1")       # in this process
    done = start_command(case, "--workers", "2")     # as a user would
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import pprint
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import h5py
import numpy as np
import typer.main
from attrs import frozen

from pbgeval.notation import Side
from tests import pbg_files
from tests.patience import PATIENCE

VERSION = 3
DIMENSION = 8
COMMAND = Path(sys.executable).parent / "kgeval-dist"
# What typer makes of its declarations, a tenth of a small run: once per process here, as it is for users.
_command_of = functools.cache(typer.main.get_command)

RELATIONS = (
    {"name": "knows", "lhs": "user", "rhs": "user", "operator": "none"},
    {"name": "likes", "lhs": "user", "rhs": "user", "operator": "diagonal"},
    {"name": "has", "lhs": "user", "rhs": "tag", "operator": "translation", "weight": 0.5},
    {"name": "marks", "lhs": "tag", "rhs": "user", "operator": "complex_diagonal", "all_negs": True},
)
NUM_DYNAMIC_RELATIONS = 5


@frozen
class TinyCase:
    """Where the files are, and what the config says."""

    root: Path
    settings: dict[str, Any]

    @classmethod
    def write(
        cls,
        root: Path,
        *,
        dynamic: bool = False,
        partition_sizes: Sequence[int] = (17, 16, 17),
        num_tags: int = 6,
        edges_per_bucket: int = 23,
        dimension: int = DIMENSION,
        scale: float = 1.0,
        seed: int = 1,
        **settings: object,
    ) -> TinyCase:
        """Write all files.

        Args:
            root: the folder; made if need be.
            dynamic: one entry of `relations`, its operator `complex_diagonal`.
            partition_sizes: entities of each partition of `user`.
            num_tags: entities of `tag`, in one partition; there are none when relations are dynamic.
            edges_per_bucket: of the first bucket; each further one has an edge more.
            dimension: of all embeddings.
            scale: of the embeddings' values.
            seed: of all values and edges.
            **settings: further keys of the config, or other values.
        """
        generator = np.random.default_rng(seed)
        root.mkdir(parents=True, exist_ok=True)
        sizes = {"user": list(partition_sizes)} | ({} if dynamic else {"tag": [num_tags]})
        entities = {name: {"num_partitions": len(counts)} for name, counts in sizes.items()}
        relations = [RELATIONS[0] | {"operator": "complex_diagonal"}] if dynamic else list(RELATIONS)
        keys: dict[str, Any] = {
            "entity_path": "entity",
            "edge_paths": ["edges"],
            "checkpoint_path": "checkpoint",
            "entities": entities,
            "relations": relations,
            "dynamic_relations": dynamic,
            "dimension": dimension,
            "global_emb": not dynamic,
            "comparator": "dot",
            "num_batch_negs": 5,
            "num_uniform_negs": 5,
            "batch_size": 10,
            "workers": 2,
        }
        keys.update(settings)
        case = cls(root, keys)
        num_relations = NUM_DYNAMIC_RELATIONS if dynamic else len(keys["relations"])
        pbg_files.write_entity_counts(root / "entity", sizes, num_dynamic_relations=num_relations if dynamic else None)
        for number, (lhs, rhs) in enumerate(np.ndindex(len(partition_sizes), len(partition_sizes))):
            case._write_bucket(generator, (lhs, rhs), edges_per_bucket + number, sizes, num_relations)
        pbg_files.write_checkpoint_version(root / "checkpoint", VERSION)
        for name, counts in sizes.items():
            for partition, count in enumerate(counts):
                values = scale * generator.standard_normal((count, dimension))
                pbg_files.write_embeddings(root / "checkpoint", name, partition, values, version=VERSION)
        case._write_model(generator, dimension, dynamic)
        case.write_config()
        return case

    def _write_bucket(
        self,
        generator: np.random.Generator,
        bucket: tuple[int, int],
        num_edges: int,
        sizes: Mapping[str, Sequence[int]],
        num_relations: int,
    ) -> None:
        rel = generator.integers(num_relations, size=num_edges)
        ids = {}
        for side in Side:
            # The size of the partition that each edge's relation has on this side.
            of_relation = []
            for relation in range(num_relations):
                schema = self.settings["relations"][0 if self.settings["dynamic_relations"] else relation]
                counts = sizes[side.pick(schema["lhs"], schema["rhs"])]
                of_relation.append(counts[side.pick(*bucket)] if len(counts) > 1 else counts[0])
            ids[side] = generator.integers(1 << 30, size=num_edges) % np.array(of_relation)[rel]
        pbg_files.write_edges(self.root / "edges", bucket, ids[Side.LHS], rel, ids[Side.RHS])

    def _write_model(self, generator: np.random.Generator, dimension: int, dynamic: bool) -> None:
        operators: dict[tuple[int, Side], dict[str, Any]] = {}
        if dynamic:
            shape = (NUM_DYNAMIC_RELATIONS, dimension // 2)
            for side in Side:
                operators[0, side] = {name: generator.standard_normal(shape) for name in ("real", "imag")}
        else:
            half, whole = (dimension // 2,), (dimension,)
            operators[1, Side.RHS] = {"diagonal": generator.standard_normal(whole)}
            operators[2, Side.RHS] = {"translation": generator.standard_normal(whole)}
            operators[3, Side.RHS] = {name: generator.standard_normal(half) for name in ("real", "imag")}
        names = [] if dynamic else list(self.settings["entities"])
        globals_ = {name: generator.standard_normal(dimension) for name in names}
        pbg_files.write_model(self.root / "checkpoint", operators, globals_, version=VERSION, dynamic=dynamic)

    @property
    def config(self) -> Path:
        return self.root / "eval.py"

    def write_config(self, **settings: object) -> Path:
        """Write the config file anew, with other values of some keys."""
        text = pprint.pformat(self.settings | settings)
        self.config.write_text(f"def get_torchbiggraph_config():\n    return {text}\n", encoding="utf-8")
        return self.config

    def edges(self, lhs: int, rhs: int) -> Path:
        return self.root / "edges" / f"edges_{lhs}_{rhs}.h5"

    def embeddings(self, entity_type: str, partition: int) -> Path:
        return self.root / "checkpoint" / f"embeddings_{entity_type}_{partition}.v{VERSION}.h5"

    @property
    def model(self) -> Path:
        return self.root / "checkpoint" / f"model.v{VERSION}.h5"

    def spoil_embeddings(self, entity_type: str, partition: int, row: Any, value: object) -> None:
        """Set rows of a partition to a value."""
        with h5py.File(self.embeddings(entity_type, partition), "r+") as file:
            file["embeddings"][row] = value

    def spoil_edges(self, lhs: int, rhs: int, column: str, row: int, value: int) -> None:
        """Set one id of a bucket file."""
        with h5py.File(self.edges(lhs, rhs), "r+") as file:
            file[column][row] = value


@frozen
class Done:
    """How a command ended."""

    status: int
    out: str
    err: str

    @property
    def faults(self) -> list[str]:
        return self.err.splitlines()


def run_command(case: TinyCase | Path, *arguments: str, cwd: Path | None = None) -> Done:
    """Run the command in this process; of a case, in its folder."""
    config, folder = (case.config, case.root) if isinstance(case, TinyCase) else (case, case.parent)
    return run_main("--config", str(config), *arguments, cwd=cwd or folder)


def run_main(*arguments: str, cwd: Path) -> Done:
    """Call `main` with these arguments."""
    from pbgeval.cli import main

    out, err = io.StringIO(), io.StringIO()
    status: object = None
    with (
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "argv", ["kgeval-dist", *arguments]),
        mock.patch.object(typer.main, "get_command", _command_of),
        mock.patch.dict(os.environ, {"OMP_NUM_THREADS": "1"}),  # two test processes share the cores
    ):
        try:
            main()
        except SystemExit as exit_:
            status = exit_.code
    assert isinstance(status, int), "main ends the process with a number"
    return Done(status, out.getvalue(), err.getvalue())


def start_command(
    case: TinyCase, *arguments: str, environment: Mapping[str, str] | None = None, timeout: float = PATIENCE
) -> Done:
    """Run the installed command as a process, in the case's folder."""
    done = subprocess.run(
        [COMMAND, "--config", case.config, *arguments],
        cwd=case.root,
        env=os.environ | dict(environment or {}),
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def flags(overrides: Sequence[str]) -> list[str]:
    """Return settings (`key=value`) as arguments."""
    return [argument for override in overrides for argument in ("-p", override)]


def evaluated(case: TinyCase, *overrides: str, output: str = "output") -> dict[str, Any]:
    """Run the command in this process, with some settings changed; return what metrics.json holds."""
    done = run_command(case, "--workers", "1", "--quiet", "--output", output, *flags(overrides))
    assert (0, "") == (done.status, done.err)
    return metrics_of(case.root / output)


def undisturbed_numbers(case: TinyCase, output: Path) -> dict[str, str]:
    """Return the numbers of a run of two workers that nothing disturbs."""
    done = start_command(case, "--workers", "2", "--quiet", "--output", str(output))
    assert (0, "") == (done.status, done.err)
    return numbers_of(output)


def metrics_of(output: Path) -> dict[str, Any]:
    """Return what metrics.json holds."""
    document: dict[str, Any] = json.loads((output / "metrics.json").read_text(encoding="utf-8"))
    return document


def numbers_of(output: Path) -> dict[str, str]:
    """Return, as text, all that equal runs must agree on: metrics.json without `run`, and the tables."""
    document = metrics_of(output)
    del document["run"]
    tables = {path.name: path.read_text(encoding="utf-8") for path in sorted(output.glob("*.csv"))}
    return {"metrics.json": json.dumps(document), **tables}


def journaled_units(output: Path) -> set[str]:
    """Return the units whose results the journal of an unfinished run holds."""
    entries = [path.read_bytes() for path in (output / "journal").glob("*.unit") if not path.name.startswith(".")]
    return {unit for entry in entries for unit in json.loads(entry.splitlines()[1])["units"]}


def unit_log(output: Path) -> list[dict[str, Any]]:
    """Return the lines of units.jsonl: who began and finished which unit."""
    return [json.loads(line) for line in (output / "units.jsonl").read_text(encoding="utf-8").splitlines()]


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Return content and time of every file below a folder."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@contextlib.contextmanager
def writes_nothing(folder: Path) -> Iterator[None]:
    """Assert that a folder holds the same files, unchanged, and the same folders before and after."""
    before, folders = snapshot(folder), _folders(folder)
    yield
    assert before == snapshot(folder)
    assert folders == _folders(folder)


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_dir() and path.name != "__pycache__")
