"""Arrays -> files in the formats of PyTorch-BigGraph, for tests.

A whole dataset is a folder of edges, a folder of entities and a folder with a checkpoint:

    write_entity_counts(root / "entity", {"user": [3, 3], "item": [5]}, num_dynamic_relations=2)
    write_edges(root / "edges", (0, 1), lhs=[0, 2], rel=[0, 1], rhs=[1, 1])
    write_checkpoint_version(root / "checkpoint", 3)
    write_embeddings(root / "checkpoint", "user", 0, values, version=3)
    write_model(root / "checkpoint", {(0, Side.RHS): {"diagonal": d}}, {"user": g}, version=3)

Folders are made as needed, files are replaced, and each function returns the path it wrote. Nothing is checked: what is
wrong on purpose is written as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from pbgeval.notation import Side

Lists = Sequence[Sequence[int]]  # one list of features per edge

# Layouts by name, as keyword arguments of h5py's create_dataset; `layout` takes them.
LAYOUTS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "chunked": {"chunks": (7,), "maxshape": (None,)},
    "one_chunk": {"chunks": (6553,), "maxshape": (None,)},  # as PBG's importer does it: larger than the data
    "gzip_shuffle": {"chunks": (5,), "maxshape": (None,), "compression": "gzip", "shuffle": True},
    "lzf_fletcher": {"chunks": (16,), "maxshape": (None,), "compression": "lzf", "fletcher32": True},
}


def write_edges(
    path: Path,
    bucket: tuple[int, int],
    lhs: Any,
    rel: Any,
    rhs: Any,
    *,
    dtype: Any = np.int64,
    layout: Mapping[str, Any] | None = None,
    weight: Any = None,
    time: Any = None,
    lhs_features: Lists | None = None,
    rhs_features: Lists | None = None,
    format_version: int | None = 1,
) -> Path:
    """Write `edges_<l>_<r>.h5` into the folder `path`.

    Args:
        path: the folder of edges.
        bucket: partitions of the left and right side.
        lhs: rows of the left entities in their partition; -1 where `lhs_features` has a list.
        rel: indices of the relations.
        rhs: rows of the right entities; -1 where `rhs_features` has a list.
        dtype: of lhs, rel and rhs.
        layout: keyword arguments of h5py's `create_dataset`, see `LAYOUTS`.
        weight: one number per edge, in a dtype of its own.
        time: the same.
        lhs_features: rows of the feature table, a list per edge.
        rhs_features: the same for the right entities.
        format_version: None leaves the attribute out.
    """
    path.mkdir(parents=True, exist_ok=True)
    file_path = path / f"edges_{bucket[0]}_{bucket[1]}.h5"
    with h5py.File(file_path, "w") as file:
        _set_format_version(file, format_version)
        columns = {name: np.asarray(v, dtype) for name, v in (("lhs", lhs), ("rel", rel), ("rhs", rhs))}
        numbers = {"weight": weight, "time": time}
        columns |= {name: np.asarray(values) for name, values in numbers.items() if values is not None}
        for prefix, lists in (("lhsd", lhs_features), ("rhsd", rhs_features)):
            if lists is not None:
                columns[f"{prefix}_offsets"] = np.cumsum([0, *map(len, lists)], dtype=np.int64)
                columns[f"{prefix}_data"] = np.array([row for features in lists for row in features], np.int64)
        for name, values in columns.items():
            file.create_dataset(name, data=values, **(layout or {}))
    return file_path


def write_entity_counts(
    path: Path, counts: Mapping[str, Sequence[int]], *, num_dynamic_relations: int | None = None
) -> Path:
    """Write `entity_count_<type>_<partition>.txt` for each type's partitions; returns the folder."""
    path.mkdir(parents=True, exist_ok=True)
    for entity_type, sizes in counts.items():
        for partition, size in enumerate(sizes):
            (path / f"entity_count_{entity_type}_{partition}.txt").write_text(f"{size}\n")
    if num_dynamic_relations is not None:
        (path / "dynamic_rel_count.txt").write_text(f"{num_dynamic_relations}\n")
    return path


def write_checkpoint_version(path: Path, version: int) -> Path:
    """Write `checkpoint_version.txt` into the folder `path`."""
    path.mkdir(parents=True, exist_ok=True)
    file_path = path / "checkpoint_version.txt"
    file_path.write_text(f"{version}\n")
    return file_path


def write_embeddings(
    path: Path,
    entity_type: str,
    partition: int,
    values: Any,
    *,
    version: int,
    dtype: Any = np.float32,
    layout: Mapping[str, Any] | None = None,
    format_version: int | None = 1,
) -> Path:
    """Write `embeddings_<type>_<partition>.v<version>.h5` with an (N, D) array into the folder `path`."""
    path.mkdir(parents=True, exist_ok=True)
    file_path = path / f"embeddings_{entity_type}_{partition}.v{version}.h5"
    with h5py.File(file_path, "w") as file:
        _set_format_version(file, format_version)
        file.create_dataset("embeddings", data=np.asarray(values, dtype), **(layout or {}))
        file.create_dataset("optimizer/state_dict", data=np.zeros(100, "V1"))  # PBG's has bytes of torch.save
    return file_path


def write_model(
    path: Path,
    operators: Mapping[tuple[int, Side], Mapping[str, Any]],
    global_embeddings: Mapping[str, Any] | None = None,
    *,
    version: int,
    dynamic: bool = False,
    with_keys: bool = True,
    format_version: int | None = 1,
) -> Path:
    """Write `model.v<version>.h5` into the folder `path`.

    Args:
        path: the checkpoint's folder.
        operators: parameters by relation index and side; names as on disk, or singular with `dynamic`.
        global_embeddings: a vector per entity type.
        version: the checkpoint version.
        dynamic: write the plural names of dynamic relations (real and imag have none).
        with_keys: write the attribute `state_dict_key` of every dataset, as PBG does.
        format_version: None leaves the attribute out.
    """
    path.mkdir(parents=True, exist_ok=True)
    file_path = path / f"model.v{version}.h5"
    found: dict[str, tuple[str, Any]] = {}  # by place: its key and values
    for (index, side), parameters in operators.items():
        word = side.pick("lhs", "rhs")
        for name, values in parameters.items():
            plural = re.sub("^(diagonal|translation|linear_transformation|rotation)$", r"\1s", name)
            place = f"{index}.{plural if dynamic else name}"
            found[f"relations/{place.replace('.', f'/operator/{word}/')}"] = f"{word}_operators.{place}", values
    for entity_type, values in (global_embeddings or {}).items():
        found[f"entities/{entity_type}/global_embedding"] = f"global_embs.emb_{entity_type}", values
    with h5py.File(file_path, "w") as file:
        _set_format_version(file, format_version)
        group = file.create_group("model", track_order=True)
        for place, (key, values) in found.items():
            dataset = group.create_dataset(place, data=np.asarray(values).astype(np.float32))
            if with_keys:
                dataset.attrs["state_dict_key"] = key
    return file_path


def _set_format_version(file: h5py.File, version: int | None) -> None:
    if version is not None:
        file.attrs["format_version"] = np.int64(version)
