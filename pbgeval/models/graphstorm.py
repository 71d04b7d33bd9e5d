"""Open embeddings that GraphStorm saved: one table per node type, mapped or decoded in place.

    emb_info.json                                   node types, dimensions, number of parts
    TYPE/embed-00000.pt, ...                        vectors, a part per process
    TYPE/embed_nids-00000.pt, ...                   the node of each row; without them, rows are in the order of nodes
    TYPE/embed-00000_00000.parquet, ...             instead of both, after remapping: columns nid (raw id) and emb
    embed_dict.hdf5                                 instead of all of them: a dataset per node type
    rel_emb.pt, relation2id_map.json                relation vectors, but of the dot product

As graphstorm 0.5.1 writes them (model/utils.py: save_pytorch_embeddings, save_hdf5_embeddings,
save_shuffled_node_embeddings, save_relation_embeddings; gconstruct/remap_result.py). The decoder (eval/utils.py) stands
in no file, so the description names it. Rows keep their order on the disk, so that a table is read from start to end;
edges are numbered by rows.
"""

from __future__ import annotations

import ast
import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attrs import evolve, frozen

from pbgeval.errors import StorageError
from pbgeval.models.arrays import formula_of, refuse_unused, relation_types_of, untyped_relations
from pbgeval.models.model import EmbeddingModel, TypedRelations
from pbgeval.models.pickles import read_saved, stored_at, stored_rows
from pbgeval.models.saved_tensors import SavedTensor
from pbgeval.storage.arrays import Shard, Table, hdf5_rows, sharded
from pbgeval.storage.json_files import read_object
from pbgeval.storage.parquet import parquet_column, parquet_files, parquet_rows
from pbgeval.storage.text import listed, one_line

INFO, HDF5 = "emb_info.json", "embed_dict.hdf5"
DECODERS: Mapping[str, Mapping[str, object]] = {
    "dot_product": {"model": "dot"},
    "distmult": {"model": "distmult"},
    "transe_l1": {"model": "transe", "norm": 1},
    "transe_l2": {"model": "transe", "norm": 2},
    "rotate": {"model": "rotate", "norm": 1},
}
_ADVICE = "let GraphStorm save the embeddings again"
_NODES, _RAW_IDS = ("new", "node_int_id"), ("orig", "node_str_id")  # columns of gconstruct, or of GSProcessing
_IDS_AT_A_TIME = 1 << 20
_LETTERS_OF_A_RELATION = 1 << 12


def open_graphstorm(path: Path, options: Mapping[str, Any]) -> EmbeddingModel:
    """Open saved embeddings.

    Args:
        path: the folder.
        options: the description: `model` is the decoder.

    Raises:
        StorageError: a file is missing or does not fit; the decoder is none that is known.
    """
    where = str(path)
    decoder = str(options.get("model"))
    if decoder not in DECODERS:
        raise StorageError(
            f"{where}: set model in model_options to the decoder, one of {', '.join(DECODERS)}, got {one_line(decoder)}"
        )
    of_decoder = {"rotate": ["gamma"], "dot_product": ["relation_types"]}.get(decoder, [])
    refuse_unused(path, options, {"model", "id_maps", *of_decoder}, f"{decoder} of GraphStorm")
    if decoder == "rotate" and "gamma" not in options:
        raise StorageError(f"{where}: the decoder rotate needs gamma in model_options, as it was set for training")
    info = read_object(path / INFO, "what GraphStorm saved")
    types = _node_types(path / INFO, info)
    opened = {name: _table(path / name, info, dimension) for name, dimension in types.items()}
    tables = {name: table for name, (table, _) in opened.items()}
    labels = {
        name: evolve(saved, maps=Path(path, options["id_maps"], name) if "id_maps" in options else None)
        for name, (_, saved) in opened.items()
    }
    rows_of_ids = {name: ids.rows for name, ids in labels.items() if isinstance(ids, RawIds) or not ids.in_order()}
    formula = formula_of(where, {**options, **DECODERS[decoder]}, next(iter(types.values())))
    relation_types = relation_types_of(where, options, list(tables))
    parameters: dict[str, Table] = {}
    if formula.kind != "dot":
        if not os.path.exists(path / "rel_emb.pt"):
            raise StorageError(
                f"{path / 'rel_emb.pt'}: no such file, but the decoder {decoder} needs the relations' vectors; copy it "
                "with relation2id_map.json from the folder that GraphStorm saved to"
            )
        relations = stored_rows(path / "rel_emb.pt", _tensor(path / "rel_emb.pt"))
        parameters = {"relations": relations}
        relation_types = _relations(path / "relation2id_map.json", relations.num_rows, list(tables))
        formula.check(where, next(iter(types.values())), relations.dimension, relations.num_rows)
    relation_types = relation_types or untyped_relations(where, {}, list(tables))
    return EmbeddingModel(where, "graphstorm", formula, tables, parameters, labels, None, relation_types, rows_of_ids)


def _node_types(path: Path, info: Mapping[str, Any]) -> dict[str, int]:
    """Return the dimension of each node type."""
    form, dimensions = info.get("format", "pytorch"), info.get("emb_dim")
    if form not in ("pytorch", "hdf5"):
        raise StorageError(f"{path}: format: expected pytorch or hdf5, found {one_line(form)}; save in one of these")
    names = info.get("emb_name") if form == "pytorch" or not isinstance(dimensions, dict) else [*dimensions]
    names = [names] if isinstance(names, str) else names
    if type(dimensions) is int:
        named = names[0] if isinstance(names, list) and names else "user"
        raise StorageError(
            f"{path}: emb_dim: expected a dictionary by node type, such as {json.dumps({str(named): dimensions})}, "
            f"found {one_line(dimensions)}"
        )
    if not isinstance(names, list) or not names or not isinstance(dimensions, dict):
        raise StorageError(f"{path}: expected emb_name and emb_dim, found {listed(sorted(info))}; {_ADVICE}")
    for name in names:
        if not isinstance(name, str) or os.path.basename(name) != name or name in ("", ".", "..") or "\0" in name:
            raise StorageError(f"{path}: emb_name: expected the name of a folder here, found {one_line(name)}")
    found = {name: dimensions.get(name) for name in names}
    if not all(type(size) is int and size > 0 for size in found.values()) or len(set(found.values())) != 1:
        raise StorageError(f"{path}: emb_dim: expected one dimension for all node types, found {one_line(found)}")
    return {name: int(size) for name, size in found.items() if size is not None}


def _table(folder: Path, info: Mapping[str, Any], dimension: int) -> tuple[Table, SavedIds | RawIds]:
    """Open the vectors of a node type, and the node ids of its rows."""
    if info.get("format") == "hdf5":
        path = folder.parent / HDF5
        table = _of_dimension(path, hdf5_rows(path, folder.name), dimension)
        return table, SavedIds(table.num_rows)
    found = {path.name for path in folder.glob("*")} if os.path.isdir(folder) else set()
    saved = sorted(name for name in found if name.startswith("embed-") and name.endswith(".pt"))
    if not saved:
        paths = [path for path in parquet_files(folder) if path.name.startswith("embed-")]
        if not paths:
            raise StorageError(f"{folder}: expected embed-00000.pt or embed-*.parquet, found neither; {_ADVICE}")
        table = _of_dimension(folder, parquet_rows(paths, "emb"), dimension)
        names = [path.name for path in paths]
        counts = Counter(name.partition("_")[0] for name in names)  # of the files of each process
        whole = [f"{process}_{index:05d}.parquet" for process, count in counts.items() for index in range(count)]
        _check_parts(folder, info, names, whole, len(counts), table.num_rows)
        return table, RawIds(tuple(paths), table.num_rows)
    _check_parts(folder, info, saved, [f"embed-{index:05d}.pt" for index in range(len(saved))], len(saved))
    of_files = [(folder / name, _tensor(folder / name)) for name in saved]
    some = [one for one in of_files if one[1].shape != (0, dimension)]  # a process may have no node of the type
    parts = [_of_dimension(folder, stored_rows(path, tensor), dimension) for path, tensor in some or of_files]
    starts = [*accumulate((part.num_rows for part in parts), initial=0)]
    shards = [Shard(start, 0, part) for start, part in zip(starts, parts, strict=False)]
    table = sharded(str(folder), shards, starts[-1], dimension)
    nids = [name.replace("embed-", "embed_nids-") for name in saved]
    if not any(name.startswith("embed_nids-") for name in found):
        return table, SavedIds(table.num_rows)
    for name in nids:
        if name not in found:
            raise StorageError(f"{folder / name}: no such file, but other parts have theirs; copy the folder again")
    pieces = (_id_piece(folder / name, tensor.shape[0]) for name, (_, tensor) in zip(nids, of_files, strict=True))
    return table, SavedIds(table.num_rows, tuple(pieces))


def _check_parts(
    folder: Path,
    info: Mapping[str, Any],
    names: Sequence[str],
    whole: Sequence[str],
    num_processes: int,
    num_rows: float = math.inf,  # a process that has no node writes no Parquet
) -> None:
    size = info.get("world_size")
    if type(size) is not int or names != whole or not min(size, num_rows) <= num_processes <= size:
        raise StorageError(
            f"{folder}: expected {one_line(size)} parts (world_size in {INFO}), embed-00000 and so on, found "
            f"{listed(names)}; copy the folder again"
        )


def _of_dimension(path: Path, table: Table, dimension: int) -> Table:
    if table.dimension != dimension:
        raise StorageError(f"{path}: expected vectors of {dimension} columns ({INFO}), found {table.dimension}")
    return table


def _tensor(path: Path) -> SavedTensor:
    found = read_saved(path, _ADVICE, check_data=False)
    if not isinstance(found, SavedTensor):
        raise StorageError(f"{path}: expected a tensor, found {type(found).__name__}")
    return found


def _id_piece(path: Path, num_rows: int) -> tuple[Path, int, int]:
    tensor = _tensor(path)
    if tensor.dtype is not torch.int64 or tensor.shape != (num_rows,):
        found = f"{str(tensor.dtype).removeprefix('torch.')} of shape {tensor.shape}"
        raise StorageError(f"{path}: expected int64 node ids of {num_rows:,} rows, found {found}")
    return path, stored_at(path, tensor), num_rows


@frozen
class SavedIds:
    """The node of each row of a table; iterated over, their names: raw ids, or numbers if no file maps them."""

    num_rows: int
    pieces: tuple[tuple[Path, int, int], ...] = ()  # file, byte, number of ids; (): row n is node n
    maps: Path | None = None  # the folder that maps raw ids to nodes

    def __iter__(self) -> Iterator[str]:
        """Yield the names.

        Raises:
            StorageError: a file is missing or damaged, or a node has no raw id, or two.
        """
        raw = None if self.maps is None else _raw_ids(self.maps, self.num_rows)
        for ids in (ids for _, ids in self.blocks()) if self.pieces else [np.arange(self.num_rows)]:
            yield from map(str, ids.tolist()) if raw is None else (raw[node] for node in ids.tolist())

    def blocks(self) -> Iterator[tuple[Path, np.ndarray]]:
        """Yield the nodes in the order of the rows, with their file."""
        for path, offset, count in self.pieces:
            for start in range(0, count, _IDS_AT_A_TIME):
                size = min(_IDS_AT_A_TIME, count - start)
                ids = np.fromfile(path, np.int64, size, offset=offset + start * 8)
                if len(ids) != size:
                    raise StorageError(f"{path}: the file is truncated; copy it again")
                yield path, ids

    def in_order(self) -> bool:
        """Check that each node has one row; return whether row n is node n.

        Raises:
            StorageError: a node has no row, or several; names the file.
        """
        seen = np.zeros(self.num_rows, bool)
        first = 0
        is_in_order = True
        for path, ids in self.blocks():
            is_outside = (ids < 0) | (ids >= len(seen))
            values, counts = np.unique(ids[~is_outside], return_counts=True)
            wrong = [*ids[is_outside], *values[seen[values] | (counts > 1)]]
            if wrong:
                raise StorageError(
                    f"{path}: expected each node id from 0 to {len(seen) - 1} once, found {wrong[0]} "
                    f"{'too' if is_outside.any() else 'again'}; copy the folder again"
                )
            seen[values] = True
            is_in_order = is_in_order and bool((ids == np.arange(first, first + len(ids))).all())
            first += len(ids)
        return is_in_order

    def rows(self, ids_E: np.ndarray) -> np.ndarray:
        """Return the row of each node; -1 where there is none."""
        row_N, first = np.empty(self.num_rows, np.int64), 0
        for _, ids in self.blocks():
            row_N[ids] = np.arange(first, first + len(ids))
            first += len(ids)
        return _rows_of(row_N, ids_E)


def _rows_of(row_N: np.ndarray, ids_E: np.ndarray) -> np.ndarray:
    is_node_E = (ids_E >= 0) & (ids_E < len(row_N))
    return np.where(is_node_E, row_N[np.where(is_node_E, ids_E, 0)], -1)


@frozen
class RawIds:
    """The raw id of each row of a table."""

    paths: tuple[Path, ...]
    num_rows: int
    maps: Path | None = None  # the folder that maps raw ids to nodes

    def __iter__(self) -> Iterator[object]:
        return iter(parquet_column(self.paths, "nid"))

    def rows(self, ids_E: np.ndarray) -> np.ndarray:
        """Return the row of each node; -1 where there is none.

        Raises:
            StorageError: nothing says which node has which raw id, or raw ids are not those of `maps`, each once.
        """
        folder = self.paths[0].parent
        if self.maps is None:
            raise StorageError(
                f"{folder}: the embeddings were remapped to raw ids, but edges have the numbers of nodes; give edges "
                "by name, as .tsv, .csv or .parquet, or set id_maps in model_options"
            )
        row_of: dict[str, int] = {}
        for row, name in enumerate(map(str, self)):
            if row_of.setdefault(name, row) != row:
                raise StorageError(
                    f"{folder}: expected each raw id (nid) once, found {one_line(name)} again; {_ADVICE}"
                )
        raw = _raw_ids(self.maps, self.num_rows)
        if unknown := row_of.keys() - raw:
            raise StorageError(
                f"{self.maps}: no node has the raw id {one_line(min(unknown))} of {folder}; check id_maps"
            )
        return _rows_of(np.array([row_of[name] for name in raw]), ids_E)


def _raw_ids(folder: Path, num_nodes: int) -> list[str]:
    """Return the raw id of each node."""
    paths = parquet_files(folder, "**/*.parquet") if os.path.isdir(folder) else ()
    if not paths:
        raise StorageError(f"{folder}: expected Parquet files that map raw ids, found none; check id_maps")
    raw: list[str | None] = [None] * num_nodes
    for node, name in zip(parquet_column(paths, *_NODES), parquet_column(paths, *_RAW_IDS), strict=True):
        if not isinstance(node, int) or not 0 <= node < num_nodes or raw[node] is not None:
            raise StorageError(f"{folder}: expected each node from 0 to {num_nodes - 1} once, found {one_line(node)}")
        raw[node] = str(name)
    missing = next((node for node, name in enumerate(raw) if name is None), None)
    if missing is not None:
        raise StorageError(f"{folder}: node {missing} of {num_nodes:,} has no raw id; check id_maps")
    return [str(name) for name in raw]


def _relations(path: Path, num_rows: int, types: list[str]) -> TypedRelations:
    """Return name and types of each relation, in the order of the rows."""
    found: dict[int, tuple[str, str, str]] = {}
    for text, number in read_object(path, "the numbers of relations").items():
        try:
            edge_type = ast.literal_eval(text) if len(text) <= _LETTERS_OF_A_RELATION else None
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            edge_type = None
        if not isinstance(edge_type, tuple) or len(edge_type) != 3 or not all(isinstance(of, str) for of in edge_type):
            raise StorageError(f"{path}: expected ('left type', 'relation', 'right type'), found {one_line(text)}")
        lhs, _, rhs = edge_type
        if type(number) is not int or not 0 <= number < num_rows or number in found:
            raise StorageError(f"{path}: expected each number from 0 to {num_rows - 1} once, found {one_line(number)}")
        if not {lhs, rhs} <= set(types):
            raise StorageError(f"{path}: {one_line(text)}: expected node types with embeddings: {listed(types)}")
        found[number] = (",".join(edge_type), lhs, rhs)
    if len(found) != num_rows:
        raise StorageError(f"{path}: expected {num_rows} relations, as in rel_emb.pt, found {len(found)}")
    return tuple(found[number] for number in range(num_rows))
