"""Bad input as rows of a table: what is damaged, how the command is called, and the lines that it must print.

    fault("{root}/edges/edges_1_1.h5: dataset lhs, row 3: …", data("edges/edges_1_1.h5", "lhs", 3, 16))

In an expected line `{root}` is the folder of the files, and `…` any text. A row's command ends with status 1, prints
these lines alone and nothing on stdout, and neither writes nor removes a file. Rows that need no Python are lines of a
text file, see `rows_of`.
"""

from __future__ import annotations

import functools
import json
import re
import runpy
import shlex
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

import h5py
import numpy as np
from attrs import field, frozen

from tests.kit import pbg_files
from tests.kit.case import VERSION, TinyCase
from tests.kit.commands import Done, flags, last_of_each, run_main, writes_nothing
from tests.kit.names import write_edges_by_name
from tests.kit.reports import marked_up_result, write_records

Damage = Callable[[Path], object]
More = ParamSpec("More")

GRAPH = "a\tr\tb\nb\tr\tc\nc\ts\ta\na\tr\tb\n"
TYPES = Path(__file__).resolve().parents[1] / "reference_data" / "types"
RUN = ("--config", "eval.py", "--workers", "1", "--output", "output")
USER = f"checkpoint/embeddings_user_1.v{VERSION}.h5"
MODEL = f"checkpoint/model.v{VERSION}.h5"
MAX_LINE = 2100


def prepared(act: Callable[Concatenate[Any, More], object]) -> Callable[More, Callable[[Any], object]]:
    """Let a function be told at first all but the folder that it works on: a table prepares it, each row does it."""

    @functools.wraps(act)
    def of_some(*given: More.args, **named: More.kwargs) -> Callable[[Any], object]:
        return lambda of: act(of, *given, **named)

    return of_some


# Where a row starts: files, and the arguments of a command that succeeds on them.


@frozen
class World:
    """Files that a command reads, and its arguments."""

    make: Callable[..., object]
    arguments: tuple[str, ...]


def _with_names(root: Path, **settings: Any) -> None:
    write_edges_by_name(
        TinyCase.write(root, **{"dynamic": True, "partition_sizes": (9, 8), "edges_per_bucket": 11} | settings)
    )


@prepared
def _with_files(root: Path, texts: Mapping[str, str]) -> None:
    root.mkdir()
    for name, text in texts.items():
        (root / name).write_text(text)


RANKED = {
    "test.tsv": "a\tlikes\tb\n",
    "ranking.txt": "a likes b\nHeads: x\t0.9\ta\t0.9\t\nTails: c\t0.5\t\n",
}
CASE = World(TinyCase.write, RUN)
SMALL = World(functools.partial(TinyCase.write, partition_sizes=(9, 8), edges_per_bucket=11), RUN)
NAMED_ALOUD = World(_with_names, (*RUN, "-p", "edge_paths=edges.tsv"))
NAMED = World(_with_names, (*RUN, "--quiet", "-p", "edge_paths=edges.tsv"))
IMPORT = World(
    _with_files({"train.tsv": GRAPH}), ("import-graph", "--quiet", "--output", "graph", "--edges", "train=train.tsv")
)
TYPES_COMMAND = World(
    Path.mkdir,
    (
        "types",
        *(part for name in ("taxonomy", "truth", "ranking") for part in (f"--{name}", str(TYPES / f"{name}.tsv"))),
    ),
)
TOPK = World(_with_files(RANKED), ("topk", "--test", "test.tsv", "--ranking", "ranking.txt"))
REPORT = World(functools.partial(marked_up_result, output="run"), ("report", "run"))
MONITOR = World(write_records, ("monitor", "."))
NOTHING = World(Path.mkdir, ())


@frozen
class Fault:
    """A row of the table."""

    lines: tuple[str, ...]
    damage: tuple[Damage, ...]
    arguments: tuple[str, ...]
    world: World
    settings: Mapping[str, Any] = field(factory=dict)


def fault(
    lines: str | Sequence[str],
    *damage: Damage,
    p: str | Sequence[str] = (),
    args: Sequence[str] = (),
    world: World = CASE,
    **settings: Any,
) -> Fault:
    """Return a row.

    Args:
        lines: what is printed; one line, or several in any order.
        *damage: what is done to the files.
        p: settings `key=value` of the command; as a string, by spaces.
        args: arguments that are added to the world's; the command itself where it has none.
        world: the files and the command.
        **settings: how the files are made, see `TinyCase.write`.
    """
    overrides = p.split(" ") if isinstance(p, str) else p
    expected = (lines,) if isinstance(lines, str) else tuple(lines)
    return Fault(expected, damage, (*args, *flags(overrides)), world, settings)


def rows_of(path: Path, worlds: Mapping[str, World]) -> list[Fault]:
    """Return the rows of a text file: below the name of a world, in brackets, `{file: content} arguments -> line` each.

    A content is text, null to remove the file, or an object of changes in a JSON file, by path as in `set_at`.
    """
    kinds: dict[type, Callable[..., Damage]] = {str: write, dict: in_json, type(None): lambda name, _: remove(name)}
    rows, world = [], NOTHING
    for line in path.read_text(encoding="utf-8").splitlines():
        command, arrow, message = line.partition(" -> ")
        if arrow:
            files, end = json.JSONDecoder().raw_decode(command) if command.startswith("{") else ({}, 0)
            damage = [kinds[type(content)](name, content) for name, content in files.items()]
            rows.append(fault(message, *damage, args=shlex.split(command[end:]), world=world))
        elif line.startswith("["):
            world = worlds[line.strip("[]")]
    return rows


def check(row: Fault, root: Path) -> None:
    """Run the command of a row in a folder that is yet to be made, and compare what it prints."""
    shutil.copytree(world_of(row), root)
    for damage in row.damage:
        damage(root)
    with writes_nothing(root):
        done = run_main(*last_of_each([*row.world.arguments, *row.arguments]), cwd=root)
    compare(done, row.lines, root)


@functools.cache
def _scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()  # removed when the process ends


_made: dict[str, Path] = {}


def world_of(row: Fault) -> Path:
    """Return the folder of whole files, which rows of one world share."""
    key = f"{id(row.world)} {row.settings!r}"
    if key not in _made:
        root = Path(tempfile.mkdtemp(dir=_scratch().name)) / "world"  # whatever one that was not made has left
        row.world.make(root, **row.settings)
        _made[key] = root
    return _made[key]


def compare(done: Done, expected: Sequence[str], root: Path) -> None:
    """Assert that a command ended with these lines and nothing else."""
    lines = [line for line in done.faults if " bucket (" not in line]  # progress comes before a fault of the data
    assert (done.status, done.out) == (1, ""), done.err
    assert all(line.isprintable() and len(line) < MAX_LINE for line in lines), lines
    patterns = [_pattern(line.replace("{root}", str(root))) for line in expected]
    assert len(patterns) == len(lines), lines
    assert [of.pattern for of in patterns if not any(map(of.fullmatch, lines))] == [], lines


def _pattern(line: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, line.split("…"))))


# What can be done to the files


@prepared
def remove(root: Path, path: str) -> None:
    """Remove a file, a folder or what a pattern finds."""
    for found in list(root.glob(path)):
        shutil.rmtree(found) if found.is_dir() else found.unlink()


@prepared
def write(root: Path, path: str, content: str | bytes) -> None:
    """Write a file."""
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogateescape"))


REMOVED = "(removed)"  # in place of a value


def set_at(document: Any, path: str | Sequence[Any], value: object) -> None:
    """Set or remove what stands at a path such as `relations.1.weight`, or at its keys and indices."""
    if isinstance(path, str):
        path = [int(part) if part.isdigit() else part for part in path.split(".")]
    *outer, last = path
    for part in outer:
        document = document[part]
    if value == REMOVED:
        del document[last]
    else:
        document[last] = value


@prepared
def in_json(root: Path, file: str, changes: Mapping[str, object]) -> None:
    """Change what a JSON file holds."""
    document = json.loads((root / file).read_text())
    for path, value in changes.items():
        set_at(document, path, value)
    (root / file).write_text(json.dumps(document))


def folder(path: str) -> Damage:
    """Make a folder."""
    return lambda root: (root / path).mkdir(parents=True)


def copy(path: str, target: str) -> Damage:
    """Copy a folder."""
    return lambda root: shutil.copytree(root / path, root / target)


def truncate(path: str) -> Damage:
    """Cut the last third of a file off."""
    return lambda root: (root / path).write_bytes((content := (root / path).read_bytes())[: len(content) * 2 // 3])


@prepared
def data(root: Path, path: str, dataset: str, where: Any, value: Any) -> None:
    """Set values of a dataset of files that a pattern finds."""
    for found in root.glob(path):
        with h5py.File(found, "r+") as file:
            file[dataset][where] = value


@prepared
def version(root: Path, path: str, number: int) -> None:
    """Set the format version of an HDF5 file."""
    with h5py.File(root / path, "r+") as file:
        file.attrs["format_version"] = number


def vectors(partition: int, shape: tuple[int, int]) -> Damage:
    """Write a partition of users anew, of another shape."""
    return lambda root: pbg_files.write_embeddings(
        root / "checkpoint", "user", partition, np.ones(shape), version=VERSION
    )


def edges(path: str, bucket: tuple[int, int], num_edges: int = 1) -> Damage:
    """Write a bucket of edges."""
    zeros = np.zeros(num_edges, np.int64)
    return lambda root: pbg_files.write_edges(root / path, bucket, zeros, zeros, zeros)


def damaged_chunk(root: Path) -> None:
    """Write bucket (2, 2) compressed, and spoil the bytes of a chunk; its header stays right."""
    zeros = np.zeros(40, np.int64)
    path = pbg_files.write_edges(root / "edges", (2, 2), zeros, zeros, zeros, layout=pbg_files.LAYOUTS["gzip_shuffle"])
    with h5py.File(path, "r") as file:
        chunk = file["lhs"].id.get_chunk_info(3)
    content = bytearray(path.read_bytes())
    content[chunk.byte_offset : chunk.byte_offset + chunk.size] = b"\x00" * chunk.size
    path.write_bytes(content)


@prepared
def setting(root: Path, **changes: Any) -> None:
    """Change keys of the config file; a function is called with the config's dict."""
    case = TinyCase(root, settings_in(root))
    case.write_config(**{key: of(case.settings) if callable(of) else of for key, of in changes.items()})


def as_json(text: str | None = None, **changes: Any) -> Damage:
    """Write `eval.json`: the same config with keys changed, or some text."""
    return lambda root: (root / "eval.json").write_text(
        json.dumps(settings_in(root) | changes) if text is None else text.replace("{settings}", _members(root))
    )


def settings_in(root: Path) -> dict[str, Any]:
    """Return what the config file of a case returns."""
    return runpy.run_path(str(root / "eval.py"))["get_torchbiggraph_config"]()


def _members(root: Path) -> str:
    return json.dumps(settings_in(root))[1:-1]


@prepared
def candidates(root: Path, *, less_rows: int = 0, bad_id: int | None = None) -> None:
    """Write lists of candidates for every bucket into `given`."""
    (root / "given").mkdir()
    for path in sorted((root / "edges").glob("edges_*.h5")):
        with h5py.File(path) as file:
            ids = np.zeros((len(file["rel"]) - less_rows, 3), np.int64)
        if bad_id is not None:
            ids[1, 2] = bad_id
        with h5py.File(root / "given" / path.name.replace("edges", "candidates"), "w") as file:
            for side in ("head", "tail"):
                file[side], file[f"{side}_partition"] = ids, np.zeros_like(ids)
