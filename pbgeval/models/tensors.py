"""Open files of tensors as tables of vectors by name, read on demand.

    .npy                                   one table
    .parquet, or a folder of them          one table: a column of lists, or a column per dimension
    .safetensors                           a table per tensor
    .pt, .pth, .bin, .ckpt (torch.save)    a table per tensor of nested dicts, whose names are joined by dots
    a folder with .metadata                a table per tensor of a checkpoint of torch.distributed.checkpoint
    a folder with shard-*.safetensors      the same, as its HuggingFaceStorageWriter writes it from all processes
    a folder with an index of safetensors  the same from one process, or put together; as Hugging Face has it

A checkpoint's tensors are put together from their parts, in whatever way these were sharded.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from pbgeval.errors import StorageError, required
from pbgeval.models.pickle_cost import Budget, TooCostlyError
from pbgeval.models.pickles import StandIn, read_pickle, read_saved, stored_rows
from pbgeval.models.saved_tensors import SavedTensor
from pbgeval.storage.arrays import BFLOAT16, MappedRows, Shard, Table, npy_rows, sharded
from pbgeval.storage.json_files import once_each, read_object
from pbgeval.storage.parquet import check_parts, parquet_files, parquet_rows
from pbgeval.storage.text import check_regular, listed, one_line, unreadable

Tensors: TypeAlias = Mapping[str, Callable[[], Table]]  # by name; calling one opens its table
METADATA = ".metadata"
INDEX = "model.safetensors.index.json"
SHARDS = "shard-*.safetensors"
MAX_NAMES, MAX_NAME_BYTES = 1 << 22, 64 << 20  # of nested dicts, counted as often as they are reached
MAX_HEADER_BYTES = 16 << 20  # of what describes the tensors of safetensors
SAVED = (".pt", ".pth", ".bin", ".ckpt")
FORMS = ".npy, .safetensors, .parquet, .pt, a folder of Parquet files or a checkpoint of torch.distributed"
ADVICE = "save tensors alone, by torch.save(model.state_dict(), FILE)"
_MORE = "__metadata__"
_SAFETENSORS = {"F16": "<f2", "BF16": BFLOAT16, "F32": "<f4", "F64": "<f8"}


def is_checkpoint(path: Path) -> bool:
    """Return whether a folder is a checkpoint of torch.distributed or Hugging Face."""
    return any(any(path.glob(files)) for files in (METADATA, "*.distcp", INDEX, SHARDS))


def table_at(place: Path, address: str, tensors: Tensors | None = None) -> Table:
    """Open a table.

    Args:
        place: the folder in which its file lies, or what holds the tensors.
        address: `FILE`, `FILE#NAME` for a tensor or a column of it; `NAME` or `#NAME` where tensors are given.
        tensors: what the model's own file holds.

    Raises:
        StorageError: there is no such table, or it has the wrong form.
    """
    is_file = tensors is None and ("#" not in address or os.path.exists(place / address))
    file, _, name = (address, "", "") if is_file else address.rpartition("#")
    if tensors is not None and not file:
        return named(str(place), tensors, name)
    path = (place.parent if place.is_file() else place) / file
    if path.suffix == ".parquet" or (os.path.isdir(path) and not is_checkpoint(path)):
        files = parquet_files(path)
        if not files:
            raise StorageError(f"{path}: expected Parquet files, found none in this folder")
        if os.path.isdir(path):
            check_parts(path, files)
        return parquet_rows(files, name or None)
    return named(str(path), tensors_of(path), name)


def named(where: str, tensors: Tensors, name: str) -> Table:
    """Open the table of a name, or of the only name that ends in .name.

    Raises:
        StorageError: there is none, or more than one; or the table has the wrong form.
    """
    ending = [name] if name in tensors else [key for key in tensors if key.endswith(f".{name}") or not name]
    if len(ending) == 1:
        return tensors[ending[0]]()
    what = f"a tensor {one_line(name)!r}" if name else "one tensor"
    raise StorageError(f"{where}: expected {what}, found {listed(sorted(ending or tensors))}; name one of them")


def tensors_of(path: Path, num_files: int | None = None) -> Tensors:
    """Return the tables of a file, or of a distributed checkpoint.

    Args:
        path: the file or folder.
        num_files: shards of safetensors that the folder must have.

    Raises:
        StorageError: it is missing, damaged, or none of the forms.
    """
    if not os.path.exists(path):  # False too where a name is too long
        raise StorageError(f"{path}: no such file; check the path")
    if path.is_dir():
        found = [files for files in (METADATA, INDEX, SHARDS) if any(path.glob(files))]
        if len(found) > 1:
            raise StorageError(f"{path}: expected one checkpoint, found several: {listed(found)}; keep one of these")
        if found == [INDEX]:
            return _indexed(path)
        return _shards(path, num_files) if found == [SHARDS] else _distributed(path)
    if path.suffix == ".npy":
        return {path.stem: partial(npy_rows, path)}
    if path.suffix == ".safetensors":
        return _safetensors(path)
    if path.suffix in SAVED:
        return _saved(path)
    raise StorageError(f"{path}: expected tables of vectors ({FORMS}), found another kind of file")


def _saved(path: Path) -> Tensors:
    tables: dict[str, Callable[[], Table]] = {}
    try:
        for name, tensor in _flattened(read_saved(path, ADVICE, check_data=False), Budget(MAX_NAMES, MAX_NAME_BYTES)):
            if tables.setdefault(name or path.stem, table := partial(stored_rows, path, tensor)) is not table:
                raise StorageError(f"{path}: expected a tensor per name, found {one_line(name)} again; {ADVICE}")
    except RecursionError:
        raise StorageError(f"{path}: expected nested dicts of tensors, found one that holds itself; {ADVICE}") from None
    except TooCostlyError:
        found = f"more than {MAX_NAMES:,} names, or {MAX_NAME_BYTES >> 20} MB of them, in dicts that hold others again"
        raise StorageError(f"{path}: expected nested dicts of tensors, found {found}; {ADVICE}") from None
    if not tables:
        raise StorageError(f"{path}: expected tensors by name, found none, as in a whole model; {ADVICE}")
    return tables


def _flattened(value: object, budget: Budget, name: str = "") -> Iterator[tuple[str, SavedTensor]]:
    if isinstance(value, SavedTensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            budget.draw(1)
            if isinstance(item, SavedTensor | Mapping):
                text = key if isinstance(key, str) else one_line(key)
                budget.draw(0, len(name) + len(text))
                yield from _flattened(item, budget, f"{name}.{text}" if name else text)


def _safetensors(path: Path) -> Tensors:
    header, start = _header(path)
    return {name: partial(_described, path, start, name, of) for name, of in header.items() if name != _MORE}


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """Return the header of a safetensors file and the offset of its data."""
    with required(StorageError, f"{path}: safetensors is required to read this file", "safetensors"):
        from safetensors import SafetensorError, safe_open
    kinds = (OSError, SafetensorError, ValueError, RecursionError)
    with unreadable(path, "cannot read this safetensors file", "; copy it again", kinds):
        check_regular(path)
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if size > MAX_HEADER_BYTES:
                raise ValueError(f"a description of more than {MAX_HEADER_BYTES >> 20} MB")
            header = json.loads(file.read(size), object_pairs_hook=once_each)
        with safe_open(path, framework="numpy"):  # it checks that offsets are those of the shapes, without gaps
            return header, 8 + size


def _described(path: Path, start: int, name: str, of: Mapping[str, Any]) -> MappedRows:
    shape, dtype = of["shape"], _SAFETENSORS.get(of["dtype"])
    if dtype is None or len(shape) < 2 or 0 in shape:
        found = f"{of['dtype']} of shape {tuple(shape)}"
        raise StorageError(f"{path}: {name}: expected a table of floats (BF16, F16, F32 or F64), found {found}")
    return MappedRows(path, start + of["data_offsets"][0], shape[0], math.prod(shape[1:]), dtype)


def _indexed(folder: Path) -> Tensors:
    """Return the tables of the files that an index lists."""
    path = folder / INDEX
    places = read_object(path, "the index of tensors").get("weight_map")
    if not isinstance(places, dict):
        raise StorageError(f"{path}: expected weight_map, the file of each tensor, found none; save the model again")
    names = {str(file): _within(folder, str(path), file) for file in places.values()}
    files = {name: _safetensors(file) for name, file in names.items()}
    for name, file in places.items():
        if name not in files[file]:
            raise StorageError(
                f"{folder / file}: expected a tensor {one_line(name)} ({INDEX}), found none; copy it again"
            )
    return {name: files[file][name] for name, file in places.items()}


def _shards(folder: Path, num_files: int | None) -> Tensors:
    """Join the files that several processes wrote, one each."""
    paths = sorted(folder.glob(SHARDS))
    if len(paths) != num_files:
        raise StorageError(
            f"{folder}: set num_files in model_options to the number of files {SHARDS} that were written, as no file "
            f"says it, got {num_files} and found {len(paths)}"
        )
    parts: dict[str, list[tuple[list[int], Callable[[], Table]]]] = {}
    for path in paths:
        header, start = _header(path)
        try:
            offsets = json.loads(header.pop(_MORE)["DCP_SHARDING_INFO"])
            places = {name: _ints(path, tuple(offsets[name]["saved_offsets"])) for name in header}
        except (LookupError, TypeError, ValueError, RecursionError):
            raise StorageError(f"{path}: expected DCP_SHARDING_INFO, the place of each part, found none") from None
        for name, of in header.items():
            if len(places[name]) != len(of["shape"]) or any(places[name][2 if len(of["shape"]) == 2 else 1 :]):
                raise StorageError(
                    f"{path}: {name}: expected rows or columns of a table, found a part from {places[name]}"
                )
            if 0 not in of["shape"]:  # of a process that holds nothing
                parts.setdefault(name, []).append((places[name], partial(_described, path, start, name, of)))
    return {name: partial(_joined, f"{folder}: {name}", of) for name, of in parts.items()}


def _joined(where: str, parts: Sequence[tuple[list[int], Callable[[], Table]]]) -> Table:
    shards = [Shard(offsets[0], [*offsets, 0][1], table()) for offsets, table in parts]
    num_rows = max(shard.row + shard.table.num_rows for shard in shards)
    return sharded(where, shards, num_rows, max(shard.column + shard.table.dimension for shard in shards))


def _distributed(folder: Path) -> Tensors:
    path = folder / METADATA
    if not path.is_file():
        shards = "its parts without" if any(folder.glob("*.distcp")) else "a folder without"
        raise StorageError(f"{path}: expected a checkpoint of torch.distributed.checkpoint, found {shards} this file")
    metadata = _state(path, read_pickle(path), "Metadata")
    described, stored = metadata.get("state_dict_metadata"), metadata.get("storage_data")
    if not isinstance(described, dict) or not isinstance(stored, dict):
        raise StorageError(f"{path}: expected tensors and their places in files, found neither; save it again")
    places: dict[tuple[str, str], Mapping[str, object]] = {}
    for key, place in stored.items():
        index = _state(path, key, "MetadataIndex")
        name, offset = index.get("fqn"), index.get("offset")
        if not isinstance(name, str):
            raise StorageError(f"{path}: expected the name of a tensor, found {one_line(name)}; save the model again")
        # As text: hashes of numbers could be chosen to be the same.
        places[name, "" if offset is None else str(_ints(path, offset))] = _state(path, place, "_StorageInfo")
    return {
        name: partial(_sharded_tensor, folder, name, of.state, places)
        for name, of in described.items()
        if isinstance(name, str)
        and type(of).__name__.rpartition(".")[2] == "TensorStorageMetadata"
        and isinstance(of, StandIn)
    }


def _state(path: Path, found: object, kind: str) -> Mapping[str, object]:
    if type(found).__name__.rpartition(".")[2] == kind and isinstance(found, StandIn) and isinstance(found.state, dict):
        return found.state
    raise StorageError(f"{path}: expected {kind} of torch.distributed.checkpoint, found {type(found).__name__}")


def _ints(path: Path, sizes: object) -> list[int]:
    if isinstance(sizes, tuple) and all(type(size) is int and 0 <= size < 1 << 62 for size in sizes):
        return list(sizes)
    raise StorageError(f"{path}: expected a shape, found {one_line(sizes)}")


def _sharded_tensor(
    folder: Path, name: str, of: object, places: Mapping[tuple[str, str], Mapping[str, object]]
) -> Table:
    """Join the parts of a tensor; dimensions after the first become columns."""
    path = folder / METADATA
    where = f"{path}: {name}"
    chunks = of.get("chunks") if isinstance(of, dict) else None
    if not isinstance(of, dict) or not isinstance(chunks, list):
        raise StorageError(f"{where}: expected the parts of a tensor, found none")
    shape = _ints(path, of.get("size"))
    shards = []
    if len(shape) < 2:
        raise StorageError(f"{where}: expected a table of vectors, found shape {tuple(shape)}")
    for chunk in chunks:
        state = _state(path, chunk, "ChunkStorageMetadata")
        offsets, sizes = _ints(path, state.get("offsets")), _ints(path, state.get("sizes"))
        if len(offsets) != len(shape) or len(sizes) != len(shape) or (len(shape) > 2 and sizes[1:] != shape[1:]):
            raise StorageError(f"{where}: expected parts of {len(shape)} dimensions, found {offsets} and {sizes}")
        if 0 not in sizes:  # of a process that holds nothing
            table = _chunk(folder, where, sizes, places.get((name, str(offsets))))
            shards.append(Shard(offsets[0], offsets[1] if len(shape) == 2 else 0, table))
    return sharded(where, shards, shape[0], math.prod(shape[1:]))


def _chunk(folder: Path, where: str, sizes: list[int], place: Mapping[str, object] | None) -> MappedRows:
    """Open a part: an archive of torch.save somewhere in a file."""
    known = place or {}
    file, offset, length = (known.get(key) for key in ("relative_path", "offset", "length"))
    if place is None:
        raise StorageError(f"{where}: a part of shape {tuple(sizes)} has no place in a file; save the model again")
    if known.get("transform_descriptors"):
        raise StorageError(f"{where}: expected parts as they are, found compressed ones; save without extensions")
    path = _within(folder, where, file)
    start, size = _ints(folder / METADATA, (offset, length))
    if not os.path.isfile(path) or path.stat().st_size < start + size:
        found = f"{path.stat().st_size:,} bytes" if os.path.isfile(path) else "no such file"
        raise StorageError(
            f"{path}: expected at least {start + size:,} bytes, found {found}; copy the checkpoint again"
        )
    tensor = read_saved(path, "save the checkpoint again", piece=(start, size), check_data=False)
    if not isinstance(tensor, SavedTensor) or list(tensor.shape) != sizes:
        found = str(tensor.shape) if isinstance(tensor, SavedTensor) else type(tensor).__name__
        raise StorageError(
            f"{path}: expected a tensor of shape {tuple(sizes)} for {where.rpartition(': ')[2]}, found {found}"
        )
    return stored_rows(path, tensor)


def _within(folder: Path, where: str, file: object) -> Path:
    if not isinstance(file, str) or os.path.basename(file) != file or file in ("", ".", "..") or "\0" in file:
        raise StorageError(f"{where}: expected a file of this folder, found {one_line(file)}")
    return folder / file
