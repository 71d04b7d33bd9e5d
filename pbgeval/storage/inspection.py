"""A folder of edges or entities, a checkpoint, or a bucket file -> what it holds, in words, mostly from headers.

Nothing is judged: files that an evaluation would refuse are described as far as they can be read.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import numpy as np

from pbgeval.errors import StorageError
from pbgeval.storage.checkpoint_paths import embedding_path, model_path, read_checkpoint_version
from pbgeval.storage.edges import bucket_of_name, find_buckets, open_bucket
from pbgeval.storage.entities import read_dynamic_relation_count, read_entity_count
from pbgeval.storage.hdf5 import open_hdf5
from pbgeval.storage.left_out import LeftOut
from pbgeval.storage.text import did_you_mean, listed, partitions, plural, unreadable

_EMBEDDINGS = re.compile(r"embeddings_(.+)_(0|[1-9][0-9]*)\.v([0-9]+)\.h5")
_PART_OF_CHECKPOINT = re.compile(rf"checkpoint_version\.txt|{_EMBEDDINGS.pattern}")
_ENTITIES = re.compile(r"entity_count_(.+)_(0|[1-9][0-9]*)\.txt")
_TEXT = (".tsv", ".txt", ".csv", ".parquet")
_ROWS_AT_A_TIME = 1 << 20
_SHOWN_ROWS = 3

Description = list[tuple[str, str]]  # (what, value), in the order of reading


def describe(path: Path) -> dict[str, Description]:
    """Describe a path, or what the folders in it hold.

    Returns:
        Descriptions by the path of what they describe.

    Raises:
        StorageError: there is nothing of ours, or a file cannot be read.
    """
    if not path.exists():
        raise StorageError(f"{path}: no such file or folder{did_you_mean(path, os.path.exists)}")
    if path.is_file() and path.suffix in _TEXT:
        raise StorageError(
            f"{path}: inspect describes imported edges; import this file first: kgeval-dist import-graph --output graph"
            f" --edges {path.stem}={path}"
        )
    names = _names(path) if path.is_dir() else ["another file"]
    for places in ([path], [path / name for name in names if (path / name).is_dir()]):
        described = {str(place): describer(place) for place in places if (describer := _describer(place)) is not None}
        if described:
            return described
    raise StorageError(f"{path}: expected {_EXPECTED}, found {listed(names)}")


_EXPECTED = "a folder of edges or entities, a checkpoint, an edge file edges_LHS_RHS.h5, or a folder of such folders"


def _names(path: Path) -> list[str]:
    with unreadable(path, "cannot read the folder"):
        return sorted(os.listdir(path))


def _describer(path: Path) -> Callable[[Path], Description] | None:
    if path.is_file():
        return _describe_bucket if bucket_of_name(path.name) else None
    names = _names(path) if path.is_dir() else []
    kinds = (
        (bucket_of_name, _describe_edges),
        (_ENTITIES.fullmatch, _describe_entities),
        (_PART_OF_CHECKPOINT.fullmatch, _describe_checkpoint),
    )
    return next((describer for is_part, describer in kinds if any(map(is_part, names))), None)


def _describe_edges(path: Path) -> Description:
    found = [bucket for name in _names(path) if (bucket := bucket_of_name(name)) is not None]
    num_lhs, num_rhs = (max(bucket[side] for bucket in found) + 1 for side in (0, 1))
    buckets = find_buckets(path, num_lhs, num_rhs)
    sizes = {bucket: file.num_edges for bucket, file in buckets.items()}
    largest = max(sizes, key=sizes.__getitem__)
    lost = LeftOut.read(path)
    told = "" if lost is None else f"{lost.num_left_out:,} of {lost.num_read:,} edges: {lost.unknown_names}"
    return [
        ("kind", "folder of edges"),
        ("edges", f"{sum(sizes.values()):,}"),
        ("buckets", f"{len(sizes):,} of {num_lhs * num_rhs:,} ({num_lhs} left x {num_rhs} right partitions)"),
        ("edges per bucket", f"{min(sizes.values()):,} to {sizes[largest]:,}, most in {buckets[largest].path.name}"),
        ("weights", _some(file.has_weight for file in buckets.values())),
        ("features", _some(file.lhs_featurized or file.rhs_featurized for file in buckets.values())),
        *([("left out", told)] if told else []),
        ("bytes", _bytes(file.path for file in buckets.values())),
    ]


def _describe_bucket(path: Path) -> Description:
    bucket = bucket_of_name(path.name)
    assert bucket is not None  # chosen by it
    file = open_bucket(path, bucket)
    lines = [
        ("kind", f"bucket: left partition {bucket.lhs}, right partition {bucket.rhs}"),
        ("edges", f"{file.num_edges:,}"),
        ("features", _some([file.lhs_featurized or file.rhs_featurized])),
        ("bytes", _bytes([path])),
    ]
    with open_hdf5(path) as opened:
        for name in ("lhs", "rel", "rhs", *(["weight"] if file.has_weight else [])):
            dataset = opened.require(name)
            chunks = dataset.rows_per_chunk
            layout = "not chunked" if chunks is None else f"stored in chunks of {plural(chunks, 'row')}"
            layout += f" with {dataset.compression}" if dataset.compression else ""
            bounds: list[float | int] = []
            for start in range(0, dataset.num_rows, _ROWS_AT_A_TIME):
                values = np.empty(min(_ROWS_AT_A_TIME, dataset.num_rows - start), dataset.dtype)
                dataset.read_into(values, start)
                bounds += [values.min().item(), values.max().item()]
            span = f"{min(bounds)} to {max(bounds)}" if bounds else "no rows"
            lines.append((name, f"{span}, {dataset.dtype}, {layout}"))
    ids = file.read_ids(0, min(_SHOWN_ROWS, file.num_edges))
    rows = zip(*(of_side.tolist() for of_side in ids), strict=True)
    return lines + [(f"row {number}", "left {}, relation {}, right {}".format(*row)) for number, row in enumerate(rows)]


def _describe_entities(path: Path) -> Description:
    sizes: dict[str, dict[int, int]] = {}
    for match in filter(None, map(_ENTITIES.fullmatch, _names(path))):
        sizes.setdefault(match[1], {})[int(match[2])] = read_entity_count(path, match[1], int(match[2])) or 0
    has_relations = (path / "dynamic_rel_count.txt").exists()
    named = sorted(name for name in sizes if (path / f"entity_names_{name}_0.json").exists())
    return [
        ("kind", "folder of entities"),
        *((f"type {name}", _parts(parts.values())) for name, parts in sorted(sizes.items())),
        *([("relations", f"{read_dynamic_relation_count(path):,}")] if has_relations else []),
        ("names", ", ".join(named) or "none"),
    ]


def _describe_checkpoint(path: Path) -> Description:
    version = read_checkpoint_version(path)
    found = [(m[1], int(m[2]), int(m[3])) for m in map(_EMBEDDINGS.fullmatch, _names(path)) if m]
    lines = [("kind", "checkpoint"), ("version", str(version))]
    for name in sorted({name for name, _, of_version in found if of_version == version}):
        parts = [part for other, part, of_version in found if (other, of_version) == (name, version)]
        shapes = [_shape(embedding_path(path, name, part, version)) for part in parts]
        kinds = sorted({f"dimension {dimension}, {dtype}" for _, dimension, dtype in shapes})
        lines.append((f"type {name}", f"{_parts([rows for rows, _, _ in shapes])}; {'; '.join(kinds)}"))
    others = sorted({of_version for *_, of_version in found} - {version})
    return [
        *lines,
        ("parameters", _parameters(model_path(path, version))),
        *([("other versions", ", ".join(map(str, others)))] if others else []),
        ("bytes", _bytes(path / name for name in _names(path) if name.endswith(f".v{version}.h5"))),
    ]


def _shape(path: Path) -> tuple[int, int, str]:
    """Return rows, dimension and type of a partition's embeddings."""
    with open_hdf5(path) as file:
        dataset = file.require("embeddings")
        shape, dtype = dataset.shape, str(dataset.dtype)
    if shape is None or len(shape) != 2:
        raise StorageError(f"{path}: dataset embeddings: expected two dimensions, found shape {shape}")
    return int(shape[0]), int(shape[1]), dtype


def _parameters(path: Path) -> str:
    """Name the datasets of a model, with how many relations have one and its shape."""
    if not path.exists():
        return f"none ({path.name} is missing)"
    found: Counter[str] = Counter()
    with open_hdf5(path) as file:
        for name, dataset in (file.datasets("model") or {}).items():
            label = "/".join(name.split("/")[2:]) if name.startswith("relations/") else name
            found[f"{label}: {' x '.join(map(str, dataset.shape or (1,)))} values"] += 1
    each = (f"{what} for {plural(count, 'relation')}" if count > 1 else what for what, count in sorted(found.items()))
    return "; ".join(each) or "none"


def _parts(sizes: Collection[int]) -> str:
    return f"{sum(sizes):,} entities in {partitions(sizes)}"


def _some(have: Iterable[bool]) -> str:
    found = set(have)
    return "yes" if found == {True} else "no" if found == {False} else "in some files"


def _bytes(paths: Iterable[Path]) -> str:
    return f"{sum(path.stat().st_size for path in paths):,}"
