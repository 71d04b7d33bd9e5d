"""Small files that take years or gigabytes to read without care; and a process that reads them within limits.

python -m tests.file_bombs FOLDER    writes and reads each; prints its name and the one line that refuses it
"""

from __future__ import annotations

import gzip
import json
import os
import resource
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np

from tests.kit.case import TinyCase

MAX_CPU_SECONDS = 120  # of all together, on a machine that others use too
MAX_MORE_BYTES = 1 << 30  # than the libraries take; files of 1.2 GB do not fit
DEEP = "[" * 100_000
HUGE = 1 << 50

Write = Callable[[Path], object]
Read = Callable[[Path], object]


def npy(described: str, version: int = 1, length: int | None = None) -> Write:
    """Write a header of a .npy file."""
    text = described.encode("latin-1") + b"\n"
    size = len(text) if length is None else length
    start = b"\x93NUMPY" + bytes([version, 0]) + size.to_bytes(2 if version == 1 else 4, "little")
    return lambda path: path.write_bytes(start + text + bytes(64))


def described(shape: str, dtype: str = "'<f4'") -> str:
    return f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}, }}"


def safetensors(text: str, length: int | None = None) -> Write:
    """Write a header of a file of safetensors, and some numbers."""
    size = len(text.encode()) if length is None else length
    return lambda path: path.write_bytes(size.to_bytes(8, "little") + text.encode() + bytes(64))


def tensor(name: str, shape: list[int], start: int, stop: int) -> str:
    return f'"{name}": {json.dumps({"dtype": "F32", "shape": shape, "data_offsets": [start, stop]})}'


def text(content: str) -> Write:
    return lambda path: path.write_text(content, encoding="utf-8")


def archive(records: dict[str, tuple[bytes, int]]) -> Write:
    """Write a zip archive of compressed records: bytes, and how often they come."""

    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
            for name, (content, times) in records.items():
                with file.open(name, "w", force_zip64=True) as record:
                    for _ in range(times):
                        record.write(content)

    return write


def many_records(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        for number in range(60_000):
            file.writestr(f"archive/data/{number}", b"")


def gz(content: bytes, times: int) -> Write:
    """Write compressed bytes, many times over, as members of a file of gzip."""
    return lambda path: path.write_bytes(gzip.compress(content) * times)


def sparse(path: Path) -> None:
    """Write a file of 8 GB that takes no space."""
    path.touch()
    os.truncate(path, 8 << 30)


def gz_of_long_lines(start: Callable[[int], bytes]) -> Write:
    """Write 72 lines of 16 MB, which differ in how they start."""

    def write(path: Path) -> None:
        rest = gzip.compress(b"x" * (1 << 24) + b"\n")
        path.write_bytes(b"".join(gzip.compress(start(number)) + rest for number in range(72)))

    return write


def hdf5(*names: str, shape: tuple[int, ...], dtype: type) -> Write:
    """Write datasets in chunks of which none is there."""

    def write(path: Path) -> None:
        with h5py.File(path, "w") as file:
            for name in names:
                file.create_dataset(name, shape, dtype, chunks=(1024, *shape[1:]))
            file.attrs["format_version"] = 1

    return write


def edges(path: Path) -> object:
    return evaluated(path, lambda case: case.edges(0, 0))


def evaluated(path: Path, place: Callable[[TinyCase], Path]) -> object:
    """Evaluate a small case in which the file has taken the place of another."""
    from pbgeval.config import load_config
    from pbgeval.evaluation import evaluate

    case = TinyCase.write(path.parent / "case", partition_sizes=(9,))
    path.replace(place(case))
    return evaluate(load_config(case.config), output=path.parent / "output", workers=1)


def embeddings(path: Path) -> object:
    return evaluated(path, lambda case: case.embeddings("user", 0))


def model(path: Path) -> object:
    from pbgeval.models.opening import open_model

    np.save(path.parent / "x_TransE_entity.npy", np.zeros((3, 4), np.float32))
    np.save(path.parent / "x_TransE_relation.npy", np.zeros((3, 4), np.float32))
    return open_model(path.parent, {})


def tensors(path: Path) -> object:
    from pbgeval.models.tensors import tensors_of

    found = tensors_of(path)
    return [make() for make in found.values()]


def tensors_of_folder(path: Path) -> object:
    return tensors(path.parent)


def vectors(path: Path) -> object:
    from pbgeval.storage.arrays import npy_rows

    return npy_rows(path)


def dataset(path: Path) -> object:
    from pbgeval.storage.arrays import hdf5_rows

    return hdf5_rows(path, "x")


def labels(path: Path) -> object:
    from pbgeval.models.labels import labels_in_order

    return list(labels_in_order(path, 1000))


def labels_of_any_number(path: Path) -> object:
    from pbgeval.models.labels import read_labels

    return read_labels(path)


def graphstorm(path: Path) -> object:
    from pbgeval.models.graphstorm import open_graphstorm

    return open_graphstorm(path.parent, {"model": "distmult"})


def taxonomy(path: Path) -> object:
    from pbgeval.metrics.taxonomy import Taxonomy

    return Taxonomy.read(path)


def types_of_relations(path: Path) -> object:
    from pbgeval.importing.dictionaries import RelationTypes

    return RelationTypes.read(path)


def config(path: Path) -> object:
    from pbgeval.config import load_config

    return load_config(path)


def names(path: Path) -> object:
    from pbgeval.storage.entities import read_entity_names

    return read_entity_names(path.parent, "user", 0)


def entity_count(path: Path) -> object:
    from pbgeval.storage.entities import read_entity_count

    return read_entity_count(path.parent, "user", 0)


def checkpoint_version(path: Path) -> object:
    from pbgeval.storage.checkpoint_paths import read_checkpoint_version

    return read_checkpoint_version(path.parent)


def result(path: Path) -> object:
    from pbgeval.results.result import Result

    return Result.read(path.parent)


def history(path: Path) -> object:
    from pbgeval.monitor.records import read_history

    return read_history(path, lambda _: None)


def type_lists(path: Path) -> object:
    from pbgeval.models.type_lists import read_type_lists

    return read_type_lists(path)


TREE = "[" * 60 + "1" + "]" * 60
SMALL = tensor("a", [2, 4], 0, 32) + ", " + tensor("b", [2, 4], 32, 64)
BOMBS: dict[str, tuple[str, Write, Read]] = {
    "npy of 2^60 rows": ("x.npy", npy(described(f"({1 << 60}, 4)")), vectors),
    "npy of a shape beyond 64 bits": ("x.npy", npy(described(f"({1 << 70}, 4)")), vectors),
    "npy of a negative shape": ("x.npy", npy(described("(-1, 4)")), vectors),
    "npy of many dimensions": ("x.npy", npy(described("(" + "1, " * 20_000 + ")"), 2), vectors),
    "npy of objects": ("x.npy", npy(described("(2, 4)", "'|O'")), vectors),
    "npy of records": ("x.npy", npy(described("(2, 4)", "[('a', '<f4'), ('b', '|O')]")), vectors),
    "npy of values of 2^31 bytes": ("x.npy", npy(described("(1, 1)", "'|V2147483647'")), vectors),
    "npy with a header of 2^31 bytes": ("x.npy", npy(described("(2, 4)"), 2, 1 << 31), vectors),
    "npy of version 9": ("x.npy", npy(described("(2, 4)"), 9), vectors),
    "npy with a deep header": ("x.npy", npy("(" * 60_000), vectors),
    "npy with sums as header": ("x.npy", npy(described("(" + "+".join("1" * 30_000) + ", 4)")), vectors),
    "safetensors with a header of 2^60 bytes": ("x.safetensors", safetensors("{}", 1 << 60), tensors),
    "safetensors with a header of 100 MB": (
        "x.safetensors",
        safetensors("{" + " " * 100_000_000 + "}"),
        tensors,
    ),
    "safetensors beyond its end": (
        "x.safetensors",
        safetensors("{" + tensor("a", [2, 4], 1 << 40, (1 << 40) + 32) + "}"),
        tensors,
    ),
    "safetensors that overlap": (
        "x.safetensors",
        safetensors("{" + tensor("a", [2, 4], 0, 32) + ", " + tensor("b", [2, 4], 16, 48) + "}"),
        tensors,
    ),
    "safetensors of 2^60 rows": ("x.safetensors", safetensors("{" + tensor("a", [1 << 60, 4], 0, 64) + "}"), tensors),
    "safetensors with a deep header": ("x.safetensors", safetensors(DEEP), tensors),
    "safetensors with a deep value": ("x.safetensors", safetensors(f'{{{SMALL}, "c": {TREE}}}'), tensors),
    "model.json": ("model.json", text(DEEP), model),
    "a deep value in model.json": ("model.json", text('{"model": ' + '{"a":' * 50_000 + "1" + "}" * 50_001), model),
    "config.json of DGL-KE": ("config.json", text(DEEP), model),
    "an index of safetensors": ("model.safetensors.index.json", text(DEEP), tensors_of_folder),
    "a config": ("eval.json", text(DEEP), config),
    "names of entities": ("entity_names_user_0.json", text(DEEP), names),
    "a result": ("metrics.json", text(DEEP), result),
    "records of a training": ("training_stats.json", text(DEEP), history),
    "types": ("types.json", text(DEEP), type_lists),
    "a number of many digits": ("model.json", text('{"a": ' + "1" * 10_000_000 + "}"), model),
    "pt with a pickle of 1.2 GB": ("x.pt", archive({"archive/data.pkl": (bytes(1 << 24), 72)}), tensors),
    "pt with numbers of 1.2 GB": (
        "x.pt",
        archive({"archive/data.pkl": (b"\x80\x02}.", 1), "archive/data/0": (bytes(1 << 24), 72)}),
        tensors,
    ),
    "pt with many records": ("x.pt", many_records, tensors),
    "npz": ("x.npz", archive({"a.npy": (bytes(1 << 24), 72)}), tensors),
    "HDF5 of 2^50 edges": ("x.h5", hdf5("lhs", "rel", "rhs", shape=(HUGE,), dtype=np.int64), edges),
    "HDF5 of 2^50 vectors": ("x.h5", hdf5("embeddings", shape=(HUGE, 8), dtype=np.float32), embeddings),
    "HDF5 of 2^50 vectors of arrays": ("x.h5", hdf5("x", shape=(HUGE, 8), dtype=np.float32), dataset),
    "labels of one line of 8 GB": ("entities.tsv.gz", gz(b"x" * (1 << 24), 512), labels),
    "labels of 2^32 lines": ("entities.tsv.gz", gz(b"x\n" * (1 << 23), 512), labels),
    "labels of blank lines": ("entities.tsv.gz", gz(b"\n" * (1 << 24), 64), labels),
    "labels of long lines": ("entities.tsv.gz", gz_of_long_lines(b"%d".__mod__), labels),
    "any number of labels, 2^32": ("entities.tsv.gz", gz(b"x\n" * (1 << 23), 512), labels_of_any_number),
    "any number of labels of long lines": ("entities.tsv.gz", gz_of_long_lines(b"%d".__mod__), labels_of_any_number),
    "any number of labels with ids": (
        "entities.tsv.gz",
        gz_of_long_lines(lambda at: b"%d\t%d" % (at, at)),
        labels_of_any_number,
    ),
    "emb_info.json": ("emb_info.json", text(DEEP), graphstorm),
    "emb_info.json of lists": ("emb_info.json", text('{"emb_name": [' + "[]," * 10_000_000 + "[]]}"), graphstorm),
    "emb_info.json of names": (
        "emb_info.json",
        lambda path: path.write_text('{"zz": 1' + "".join(f',"{at:x}":0' for at in range(3_000_000)) + "}"),
        graphstorm,
    ),
    "entity count of 8 GB": ("entity_count_user_0.txt", sparse, entity_count),
    "checkpoint version of 8 GB": ("checkpoint_version.txt", sparse, checkpoint_version),
    "types of 1.2 GB of JSON": ("types.json", gz((b" " * 63 + b"\n") * (1 << 18), 72), type_lists),
    "types of lists": ("types.json", gz(b"[" + b"[]," * 6_000_000, 1), type_lists),
    "types of long lines": ("types.tsv.gz", gz_of_long_lines(b"%d\t".__mod__), type_lists),
    "types of one line": (
        "types.tsv.gz",
        lambda path: path.write_bytes(gzip.compress(b"q" + b"\tx" * 120_000_000, 1)),
        type_lists,
    ),
    "a hierarchy of long lines": ("taxonomy.tsv.gz", gz_of_long_lines(b"%d\t1\t".__mod__), taxonomy),
    "types of relations of long lines": ("types.tsv.gz", gz_of_long_lines(b"%d\ta\tb".__mod__), types_of_relations),
}


def read(path: Path, reader: Read) -> str:
    """Return the one line that refuses a file."""
    from pbgeval.errors import EvalError

    try:
        reader(path)
    except EvalError as error:
        return " | ".join(error.faults).replace(str(path.parent), "FOLDER")
    except BaseException as error:
        return f"raised {type(error).__name__}: {error!s:.200}".replace("\n", " ")
    return "read"


def main(folder: Path) -> None:
    """Write all, then read each within limits."""
    import pbgeval.evaluation
    import pbgeval.models.tensors  # noqa: F401 - before memory is limited

    written = []
    for number, (name, (file, write, reader)) in enumerate(BOMBS.items()):
        path = folder / str(number) / file
        path.parent.mkdir()
        write(path)
        written.append((name, path, reader))
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MAX_MORE_BYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_SECONDS,) * 2)
    for name, path, reader in written:
        sys.stdout.write(f"{name}\t{read(path, reader)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
