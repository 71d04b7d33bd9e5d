"""Mutations by kind: an undamaged input and a source of random numbers -> a damaged input and the command to run.

Every function changes the files of the current folder, which is a copy of one of `originals`, and returns the `Case`.
"""

from __future__ import annotations

import gzip
import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import h5py
import numpy as np
from attrs import evolve, frozen

from pbgeval.config import EvalConfig
from pbgeval.config.schema import keys_of
from tests.fuzz.hostile_values import (
    CONVERTED,
    DTYPES,
    HUGE_SETTINGS,
    LINES_OF_PYTHON,
    ODD_ATTRIBUTES,
    ODD_BYTES,
    ODD_NAMES,
    ODD_NUMBERS,
    ODD_OVERRIDES,
    PROGRAMS_OF_PICKLES,
    VALUES,
)

READ = "read"  # another figure is right where a plain reader finds other data, whole and valid
SAME = "same"  # the figures of the undamaged input, or a refusal
REFUSED = "refused"
ANY = "any"  # settings were changed, so the figures may be others


@frozen
class Case:
    """A command, what limits it, and which end is right."""

    arguments: tuple[str, ...]
    end: str = READ
    note: str = ""  # what was done to the input
    reason: str = ""  # which a refusal names

    num_descriptors: int | None = None
    file_bytes: int = 1 << 30  # that a file may have: no case fills this machine's disk
    disk_bytes: int | None = None  # of the disk below `out`


EVALUATE = ("--output", "out/result", "--workers", "1", "--quiet")
TOP_K = (
    *("topk", "--test", "test.tsv", "--ranking", "ranking.txt", "--known", "known.tsv", "--entities", "entities.txt"),
    *("--output", "out/result"),
)
TYPES = ("types", *(f"--{name}={name}.tsv" for name in ("taxonomy", "truth", "ranking")), "--output", "out/result")
IMPORT_GRAPH = (
    *("import-graph", "--output", "out/result", "--partitions", "2", "--quiet"),
    *("--edges", "test=edges.tsv", "--edges", "train=edges_gzip.tsv.gz"),
)
POLICIES = (
    ("candidates=sampled",),
    ("candidates=partition", "save_ranks=true"),
    ("candidates=all", "save_ranks=true", "save_topk=3"),
)


def flags(*overrides: str) -> tuple[str, ...]:
    return tuple(argument for override in overrides for argument in ("-p", override))


def evaluation(random: Random, *overrides: str, config: str = "eval.py", end: str = READ, note: object = "") -> Case:
    return Case(("--config", config, *EVALUATE, *flags(*random.choice(POLICIES), *overrides)), end, str(note))


def damage(random: Random, data: bytes) -> bytes:
    """Flip, overwrite, remove, repeat or cut some bytes."""
    at = random.randrange(len(data) + 1)
    length = random.choice((1, 1, 2, 4, 8, 64))
    before, part, after = data[:at], data[at : at + length], data[at + length :]
    flipped = bytes(byte ^ 1 << random.randrange(8) for byte in part)
    fillers = (b"\0" * len(part), b"\xff" * len(part), random.randbytes(len(part)))
    others = (b"", part * random.choice((2, 50, 5000)))
    changed = [before + filler + after for filler in (*(flipped,) * 3, *fillers, *others)]
    return random.choice((*changed, before, data + random.randbytes(length)))


def damage_one(random: Random, *patterns: str) -> Path:
    path = random.choice(sorted(path for pattern in patterns for path in Path().glob(pattern)))
    path.write_bytes(damage(random, path.read_bytes()))
    return path


# HDF5


HDF5 = ("edges/*.h5", "known/*.h5", "checkpoint/e*.h5", "checkpoint/m*.h5", "checkpoint/m*.h5")


def pick_dataset(random: Random, *patterns: str) -> tuple[Path, str]:
    path = random.choice(sorted(Path().glob(random.choice(patterns or HDF5))))
    names: list[str] = []
    with h5py.File(path) as file:
        file.visit(names.append)
        return path, random.choice(
            [name for name in names if isinstance(file[name], h5py.Dataset) and "state" not in name]
        )


def hdf5_bytes(random: Random) -> Case:
    path = damage_one(random, random.choice(HDF5))
    return Case(("inspect", "."), ANY) if random.random() < 0.1 else evaluation(random, note=path)


def hdf5_types(random: Random) -> Case:
    path, name = pick_dataset(random)
    way = random.choice(("dtype", "converted", "shape", "null"))
    with h5py.File(path, "r+") as file:
        values = file[name][()]
        del file[name]
        shapes = (
            *((), (0,), values.shape[:-1], (1, *values.shape), (*values.shape, 1), (values.size,), values.shape[::-1]),
            *((values.shape[0] - 1, *values.shape[1:]), (values.shape[0] + 1, *values.shape[1:]), (1,) * 32),
        )
        if way == "dtype":
            file.create_dataset(name, values.shape, random.choice(DTYPES))
        else:
            file[name] = {
                "converted": values.astype(random.choice(CONVERTED)),
                "shape": np.resize(values, random.choice(shapes)),
                "null": h5py.Empty(values.dtype),
            }[way]
    return evaluation(random, note=f"{way}: {path}, {name}")


def hdf5_names(random: Random) -> Case:
    """Names of groups and datasets, and attributes, most of them in the file of the model."""
    path, name = pick_dataset(random, *HDF5[3:], "edges/*.h5")
    with h5py.File(path, "r+") as file:
        dataset, parent = file[name], file[name].parent
        way = random.choice(("rename", "rename", "add", "attribute", "attribute", "attribute of the file", "deep"))
        if way == "rename":
            parts = name.split("/")
            last = random.randrange(len(parts))
            file["/" + "/".join(parts[:last])].id.move(parts[last].encode(), random.choice(ODD_NAMES))
        elif way == "add":
            h5py.h5g.create(random.choice((parent, file["/"])).id, random.choice(ODD_NAMES))
        elif way == "deep":
            parent.create_group("x/" * 3000)
        else:
            of, key = (dataset, "state_dict_key") if way == "attribute" else (file, "format_version")
            of.attrs[key] = random.choice(ODD_ATTRIBUTES)
    return Case(("inspect", "."), ANY) if random.random() < 0.1 else evaluation(random, note=f"{way}: {path}, {name}")


def small_files(random: Random) -> Case:
    """Counts, versions and names beside the arrays."""
    path = random.choice(sorted([*Path("entity").iterdir(), Path("checkpoint/checkpoint_version.txt")]))
    path.write_bytes(random.choice(ODD_NUMBERS) if random.random() < 0.6 else damage(random, path.read_bytes()))
    return evaluation(random, note=path)


# Configs


def config_python(random: Random) -> Case:
    program = random.choice(LINES_OF_PYTHON)
    text = (
        Path("eval.py").read_text(encoding="utf-8").replace("def get_torchbiggraph_config():\n    return", "settings =")
    )
    inside = "".join(f"    {line}\n" for line in program.splitlines())
    before, within = random.choice((("", inside), (f"{program}\n", "")))
    text = f"{text}\n{before}def get_torchbiggraph_config():\n{within}    return settings\n"
    Path("eval.py").write_text(text, encoding="utf-8")
    return evaluation(random, end=ANY, note=program[:200])


def config_values(random: Random) -> Case:
    keys = sorted(keys_of(EvalConfig))
    line = f"    settings[{random.choice(keys)!r}] = {random.choice(VALUES)}\n"
    if random.random() < 0.2:
        part = random.choice(("settings['relations'][0]", "next(iter(settings['entities'].values()))"))
        key = random.choice(("num_partitions", "name", "lhs", "operator", "all_negs", "weight", "dimension"))
        line = f"    {part}[{key!r}] = {random.choice(VALUES)}\n"
    text = Path("eval.py").read_text(encoding="utf-8").replace("    return", "    settings =")
    Path("eval.py").write_text(f"{text}{line}    return settings\n", encoding="utf-8")
    return Case(("--config", "eval.py", *EVALUATE), ANY, line[:200])


def config_overrides(random: Random) -> Case:
    text = random.choice((*ODD_OVERRIDES, "=" + "x" * 100_000, "=" + "9" * 5000))
    return evaluation(random, random.choice(sorted(keys_of(EvalConfig))) + text, end=ANY)


def config_sizes(random: Random) -> Case:
    overrides, end = random.choice(HUGE_SETTINGS)
    return Case(("--config", "eval.py", *EVALUATE, *flags(*overrides)), REFUSED if end else ANY)


# Text, and models of other systems


def damage_text(random: Random, path: Path) -> None:
    """Damage a text, or what compresses it."""
    if path.read_bytes()[:2] != b"\x1f\x8b" and random.random() < 0.3:
        path.write_bytes(gzip.compress(path.read_bytes(), mtime=0))
    data = path.read_bytes()
    is_gzip = data[:2] == b"\x1f\x8b"
    text = gzip.decompress(data) if is_gzip else data
    at = random.choice([0, *(index + 1 for index, byte in enumerate(text) if byte in b"\n\t")])
    text = damage(random, text) if random.random() < 0.4 else text[:at] + random.choice(ODD_BYTES) + text[at:]
    if is_gzip and random.random() < 0.8:
        cut = data[: random.randrange(3, len(data))]
        others = (data[:-8] + random.randbytes(8), data[:-4], data + b"x" * 99, data + data[:30])
        text = random.choice((damage(random, data), cut, *others))
    elif is_gzip:
        text = gzip.compress(text, mtime=0)
    path.write_bytes(text)


def of_text(make: Callable[[Random], Case], *names: str) -> Callable[[Random], Case]:
    """Damage one of some texts; make the case of a command that reads them all."""

    def mutate(random: Random) -> Case:
        damage_text(random, Path(random.choice(names)))
        return make(random)

    return mutate


def types(random: Random) -> Case:
    """Write a taxonomy that is deep, or no hierarchy."""
    chain = [f"t{n}\t{n + 1}\t{f't{n - 1}' if n else 'thing'}" for n in range(random.choice((10, 3000, 100_000)))]
    odd = ("loop\t1\tloop", "a\t1\tb\nb\t1\ta", f"far\t{10**18}\tthing", f"huge\t{'9' * 5000}\tthing", chain[-1])
    with Path("taxonomy.tsv").open("a") as file:
        file.write("\n".join([*chain, random.choice(odd)]) + "\n")
    return Case(TYPES)


def of_model(random: Random, model: str, end: str = READ, note: object = "") -> Case:
    """Evaluate a model of another system, or write it as a checkpoint, which may hold what is refused later."""
    if random.random() < 0.4:
        return Case(("import-model", model, "--output", "out/result", "--edges", "test=edges.npy"), ANY, str(note))
    return Case(("--config", "evaluation.json", *EVALUATE, *flags(f"model={model}", "candidates=all")), end, str(note))


def arrays(random: Random) -> Case:
    model = random.choice(("dglke", "arrays"))
    path = damage_one(random, f"{model}/*", f"{model}/*.npy", "edges.npy")
    if path.suffix == ".npy" and random.random() < 0.3:
        odd: tuple[Any, ...] = (np.array([{}, None], object), np.zeros((3, 0)), np.zeros(()), np.full((41, 12), np.nan))
        np.save(
            path, random.choice((*odd, np.zeros((41, 12), "S3"), np.zeros((2**12, 2**12), "u1"))), allow_pickle=True
        )
    return of_model(random, model, note=path)


def pickles(random: Random) -> Case:
    path = Path("libkge.pt")
    with zipfile.ZipFile(path) as archive:
        records = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    name = next(name for name in records if name.endswith("data.pkl"))
    way = random.choice(("file", "program", "program", "hostile", "records"))
    if way == "file":
        path.write_bytes(damage(random, path.read_bytes()))
        return of_model(random, "libkge.pt", note=way)
    if way == "records":
        gone = random.choice(sorted(records))
        records = {key: value[:9] if key == gone else value for key, value in records.items()}
    else:
        records[name] = damage(random, records[name]) if way == "program" else random.choice(PROGRAMS_OF_PICKLES)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", random.choice((zipfile.ZIP_STORED,) * 9 + (zipfile.ZIP_DEFLATED,))) as archive:
        for key, value in records.items():
            archive.writestr(key, value)
    path.write_bytes(buffer.getvalue())
    return of_model(random, "libkge.pt", note=way)


# What surrounds a run


def full_disks(random: Random) -> Case:
    """A full disk, or a limit of the size of files."""
    saved = ("candidates=all", "save_ranks=true", "save_topk=20")
    case = Case(("--config", "eval.py", *EVALUATE, *flags(*saved)), SAME)
    num_bytes = int(2 ** random.uniform(12, 20))
    if random.random() < 0.7:
        return evolve(case, disk_bytes=num_bytes, reason="No space left on device", note=f"disk {num_bytes}")
    return evolve(case, file_bytes=num_bytes, reason="File too large", note=f"files {num_bytes}")


def few_descriptors(random: Random) -> Case:
    limit = random.randrange(4, 12)
    return evolve(evaluation(random, end=SAME), num_descriptors=limit, reason="open files", note=str(limit))


@frozen
class Kind:
    """How many cases of a mutation there are, and of which originals."""

    mutate: Callable[[Random], Case]
    originals: tuple[str, ...]
    num_cases: int


CHECKPOINTS = ("static", "dynamic")
NAMES = ("entity/dynamic_rel_names.json", "entity/entity_names_user_0.json")
TEXTS_OF_NAMES = ("edges.tsv", "edges_known.tsv.gz", "edges_known.tsv.gz", *NAMES)
TEXTS_OF_RANKS = ("test.tsv", "known.tsv", "entities.txt")
TEXTS_OF_TYPES = ("taxonomy.tsv", "taxonomy.tsv", "truth.tsv", "ranking.tsv")
KINDS: dict[str, Kind] = {
    "hdf5_bytes": Kind(hdf5_bytes, CHECKPOINTS, 120),
    "hdf5_types": Kind(hdf5_types, CHECKPOINTS, 70),
    "hdf5_names": Kind(hdf5_names, CHECKPOINTS, 60),
    "small_files": Kind(small_files, ("static", "dynamic", "named"), 60),
    "config_python": Kind(config_python, CHECKPOINTS, 100),
    "config_values": Kind(config_values, CHECKPOINTS, 80),
    "config_overrides": Kind(config_overrides, CHECKPOINTS, 60),
    "config_sizes": Kind(config_sizes, CHECKPOINTS, 30),
    "text_by_name": Kind(of_text(evaluation, *TEXTS_OF_NAMES), ("named",), 60),
    "text_import": Kind(of_text(lambda _: Case(IMPORT_GRAPH), "edges.tsv", *["edges_gzip.tsv.gz"] * 2), ("graph",), 60),
    "top_k": Kind(of_text(lambda _: Case(TOP_K), *["ranking.txt"] * 2, *TEXTS_OF_RANKS), ("topk",), 70),
    "types": Kind(types, ("types",), 20),
    "texts_of_types": Kind(of_text(lambda _: Case(TYPES), *TEXTS_OF_TYPES), ("types",), 60),
    "arrays": Kind(arrays, ("models",), 60),
    "pickles": Kind(pickles, ("models",), 80),
    "full_disks": Kind(full_disks, ("large",), 40),
    "few_descriptors": Kind(few_descriptors, CHECKPOINTS, 30),
}
