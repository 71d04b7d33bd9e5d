"""Vectors, parameters and edges -> files in PyTorch-BigGraph's formats, written in pieces.

A checkpoint is there once `checkpoint_version.txt` is, which is written last.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from pbgeval.notation import Bucket, Side
from pbgeval.storage.checkpoint import PartitionRows
from pbgeval.storage.checkpoint_paths import embedding_path, model_path
from pbgeval.storage.edges import bucket_path
from pbgeval.storage.entities import entity_count_path, entity_names_path
from pbgeval.storage.hdf5 import ColumnLayout, write_hdf5
from pbgeval.storage.names_digests import NamesDigest
from pbgeval.storage.row_files import RowFile, create_row_file
from pbgeval.storage.writing import write_atomically

ROWS_AT_A_TIME = 1 << 16
EDGE_COLUMNS: Mapping[str, np.dtype] = {name: np.dtype(np.int64) for name in ("lhs", "rel", "rhs")}
_PLURAL = ("diagonal", "translation", "linear_transformation", "phase", "projection")  # of dynamic relations


def write_embeddings(
    checkpoint_path: Path, entity_type: str, partition: int, version: int, rows: PartitionRows
) -> None:
    """Write the embeddings of one partition; memory follows a range of rows.

    Raises:
        OutputError: they cannot be written.
        StorageError: the rows cannot be read.
    """
    layout = {"embeddings": ColumnLayout(np.dtype(np.float32), row_shape=(rows.dimension,))}
    file = create_row_file(embedding_path(checkpoint_path, entity_type, partition, version), rows.num_rows, layout)
    for start in range(0, rows.num_rows, ROWS_AT_A_TIME):
        file.write(start, {"embeddings": rows.read_rows(start, min(start + ROWS_AT_A_TIME, rows.num_rows)).numpy()})
    file.sync()


def write_model(
    checkpoint_path: Path, version: int, operators: Mapping[tuple[int, Side], Mapping[str, Tensor]], *, dynamic: bool
) -> None:
    """Write the parameters of operators, by index of the relation and the side that they act on.

    Raises:
        OutputError: they cannot be written.
    """
    stored = {name: f"{name}s" if dynamic else name for name in _PLURAL}
    placed = [
        (side.pick("lhs", "rhs"), index, stored.get(name, name), parameter.float().numpy())
        for (index, side), parameters in operators.items()
        for name, parameter in parameters.items()
    ]
    datasets = {
        f"model/relations/{index}/operator/{word}/{name}": (
            values,
            {"state_dict_key": f"{word}_operators.{index}.{name}"},
        )
        for word, index, name, values in placed
    }
    write_hdf5(model_path(checkpoint_path, version), {}, values=datasets, groups=("model",))


def write_entities(
    entity_path: Path, entity_type: str, partition: int, size: int, names: Iterable[str] | None
) -> str | None:
    """Write the number of a partition's entities, and their names where there are any; return the names' digest.

    Raises:
        OutputError: they cannot be written.
    """
    write_atomically(entity_count_path(entity_path, entity_type, partition), f"{size}\n")
    if names is None:
        return None
    return _write_names(entity_names_path(entity_path, entity_type, partition), names)


def write_relations(entity_path: Path, num_dynamic: int | None, names: Sequence[str] | None) -> str | None:
    """Write the number of dynamic relations, and the names of relations where there are any; return their digest.

    Raises:
        OutputError: they cannot be written.
    """
    if num_dynamic is not None:
        write_atomically(entity_path / "dynamic_rel_count.txt", f"{num_dynamic}\n")
    return None if names is None else _write_names(entity_path / "dynamic_rel_names.json", names)


def _write_names(path: Path, names: Iterable[str]) -> str:
    digest = NamesDigest()
    write_atomically(path, _json_list(digest.passed(names)))
    return digest.text()


def _json_list(names: Iterable[str]) -> Iterable[str]:
    yield "["
    for index, name in enumerate(names):
        yield f"{',' if index else ''}\n    {json.dumps(name)}"
    yield "\n]\n"


def create_bucket(
    edge_path: Path, bucket: Bucket, num_edges: int, dtypes: Mapping[str, np.dtype] = EDGE_COLUMNS
) -> RowFile:
    """Make the file of a bucket, whose columns are still to be written.

    Args:
        edge_path: the folder of the buckets.
        bucket: which one.
        num_edges: rows of each column.
        dtypes: of `lhs`, `rel` and `rhs`, and of `weight` and `time` where edges have them.

    Raises:
        OutputError: it cannot be written.
    """
    layouts = {name: ColumnLayout(dtype) for name, dtype in dtypes.items()}
    return create_row_file(bucket_path(edge_path, bucket), num_edges, layouts)
