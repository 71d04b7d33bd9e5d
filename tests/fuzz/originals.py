"""Undamaged inputs of every kind of file that commands read, each in a folder of its own, and what a file holds."""

from __future__ import annotations

import gzip
import json
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from tests.kit import pbg_files
from tests.kit.case import TinyCase
from tests.kit.names import write_edges_by_name, write_tsv
from tests.systems_reference import DglkeFolder, LibkgeCheckpoint
from tests.unit.test_adapters_topk import RANKING, TEST

TYPES = Path(__file__).resolve().parents[1] / "reference_data" / "types"
MAX_NUMBERS = 1 << 20  # of a dataset that is read whole


class NotWholeError(Exception):
    """A file does not hold all that it declares, or holds what is no valid input."""


def write_originals(root: Path) -> None:
    """Write all inputs, a folder for each."""
    for name, dynamic in (("static", False), ("dynamic", True)):
        sizes: dict[str, Any] = {"partition_sizes": (9, 8), "edges_per_bucket": 5, "filter_paths": ["known"]}
        TinyCase.write(root / name, dynamic=dynamic, **sizes)
        shutil.copytree(root / name / "edges", root / name / "known")
        if dynamic:
            _store_in_chunks(root / name)
    TinyCase.write(root / "large", dynamic=True, partition_sizes=(40, 40), edges_per_bucket=600)
    paths: dict[str, Any] = {"edge_paths": ["edges.tsv"], "filter_paths": ["edges_known.tsv.gz"]}
    edges = write_edges_by_name(TinyCase.write(root / "named", partition_sizes=(9, 8), **paths))
    (root / "graph").mkdir()
    write_tsv(root / "graph" / "edges.tsv", edges)
    for name, some in (("named/edges_known.tsv", edges[: len(edges) // 2]), ("graph/edges_gzip.tsv", edges[:40] * 40)):
        write_tsv(root / name, some)
        (root / f"{name}.gz").write_bytes(gzip.compress((root / name).read_bytes(), mtime=0))
        (root / name).unlink()
    _write_rankings(root / "topk")
    shutil.copytree(TYPES, root / "types")
    _write_models(root / "models")


def _store_in_chunks(folder: Path) -> None:
    """Store edges compressed with checksums, one bucket without, as PyTorch-BigGraph's own importer does."""
    layouts = list(pbg_files.LAYOUTS.values())[1:]
    for number, path in enumerate(sorted(folder.glob("*/edges_*.h5"))):
        with h5py.File(path, "r+") as file:
            for name in ("lhs", "rel", "rhs"):
                values = file[name][()]
                del file[name]
                file.create_dataset(name, data=values, **layouts[number % len(layouts)])


def _write_rankings(folder: Path) -> None:
    folder.mkdir()
    known, entities = "x\tlikes\tb\nz\tlikes\tb\n", "".join(f"{name}\n" for name in "abcdxyz")
    for name, text in {"test.tsv": TEST, "ranking.txt": RANKING, "known.tsv": known, "entities.txt": entities}.items():
        (folder / name).write_text(text, encoding="utf-8")


def _write_models(folder: Path) -> None:
    DglkeFolder(folder / "dglke", "ComplEx", labels=True)
    LibkgeCheckpoint(folder / "libkge.pt", "complex", num_entities=41, num_relations=4)
    arrays = folder / "arrays"
    arrays.mkdir()
    source = np.random.default_rng(3)
    for name, rows in (("entity", 41), ("relation", 4)):
        np.save(arrays / f"{name}.npy", source.standard_normal((rows, 8)).astype(np.float32))
    (arrays / "model.json").write_text(json.dumps({"model": "distmult", "reciprocal": False, "norm": 1}))
    (folder / "evaluation.json").write_text(json.dumps({"edge_paths": ["edges.npy"]}))

    np.save(folder / "edges.npy", np.stack([source.integers(n, size=30) for n in (41, 4, 41)], axis=1))


def contents_of(folder: Path) -> dict[str, Any]:
    """Read every input below a folder by a plain reader of its format.

    Raises:
        Exception: a file is damaged, or not all of it is there; NotWholeError among others.
    """
    inputs = sorted(path for path in folder.rglob("*") if not path.is_dir() and "out" not in path.parts)
    return {str(path.relative_to(folder)): list(_content(path)) for path in inputs}


def _content(path: Path) -> Iterator[Any]:
    if not path.is_file():
        raise NotWholeError("no file")
    if path.suffix == ".h5":
        with h5py.File(path) as file:
            yield _attribute(file, "format_version")
            names = ["embeddings"] if path.name.startswith("embeddings") else ["lhs", "rel", "rhs"]
            if path.name.startswith("model"):
                names = ["model"]
                file["model"].visit(lambda name: names.append(f"model/{name}"))
            yield from (_of_dataset(file, name) if isinstance(file[name], h5py.Dataset) else name for name in names)
    elif path.suffix == ".npy":
        yield _valid(np.load(path, allow_pickle=False))
    elif path.suffix == ".pt":
        with zipfile.ZipFile(path) as archive:
            yield from ((entry.filename, archive.read(entry)) for entry in archive.infolist())
    elif path.suffix == ".json":
        yield repr(json.loads(path.read_text(encoding="utf-8")))
    else:
        data = path.read_bytes()
        text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        lines = [line.split("\t") for line in text.decode("utf-8").split("\n") if line]
        if path.name.startswith("edges") and any(len(line) != 3 or not all(line) for line in lines):
            raise NotWholeError("lines of other than three columns")
        yield lines


def _of_dataset(file: h5py.File, name: str) -> tuple[Any, ...]:
    return name, file[name].dtype.kind, _valid(_whole(file[name])), _attribute(file[name], "state_dict_key")


def _attribute(of: Any, name: str) -> str:
    return repr(of.attrs.get(name))


def _whole(dataset: h5py.Dataset) -> np.ndarray:
    """Read a dataset every value of which was written."""
    if dataset.size > MAX_NUMBERS:
        raise NotWholeError("more numbers than any original")
    is_whole = True
    if dataset.chunks is not None:
        number = np.prod([-(-size // chunk) for size, chunk in zip(dataset.shape, dataset.chunks, strict=True)])
        is_whole = dataset.id.get_num_chunks() == number
    elif dataset.size and dataset.id.get_create_plist().get_layout() == h5py.h5d.CONTIGUOUS:
        offset = dataset.id.get_offset()
        is_whole = offset is not None and offset + dataset.nbytes <= Path(dataset.file.filename).stat().st_size
    if not is_whole:
        raise NotWholeError("never written, or beyond the end")
    return dataset[()]


def _valid(values: Any) -> Any:
    array = np.asarray(values)
    if array.dtype.kind not in "iufb" or not np.isfinite(array.astype(np.float64)).all():
        raise NotWholeError("what is no number")
    return array.astype(object if array.dtype.kind in "iu" else np.float64).tolist()
