"""A zoo of hostile models: each animal damages a sound folder so that reading it carelessly would do harm.

pickle_in(FILE)          a pickle that runs a command where tensors are expected
raw_pickle_in(FILE)      the same, as a bare pickle
crushed(FILE)            an archive of torch.save whose records are compressed: small on the disk, large in memory
huge_group(FILE)         Parquet whose one group of rows is larger than what is decoded at once
lying_group(FILE)        Parquet whose end says that such a group is small
prefixes(FILE)           Parquet with long names that share their beginnings, so that they take next to no bytes
large(FILE)              a file that takes no room on the disk
twice(FILE)              safetensors whose header names a tensor twice
lying_header(FILE, ...)  safetensors whose offsets are not those of its shapes
state(FILE, ...)         an archive of torch.save whose values were changed: it holds itself, a name stands twice
pipe(FILE)               what never ends where a file is expected
metadata(FOLDER, ...)    a distributed checkpoint whose description was changed: overlaps, gaps, other folders
"""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.kit.faults import Damage, prepared


class Calls:
    """Unpickling calls a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.function, self.arguments


TOUCHES = Calls(os.system, "touch it_ran")  # in the working directory


def pickle_in(file: str) -> Damage:
    """Hide a command in an archive of torch.save, beside a tensor."""
    return lambda root: torch.save({"tensor": torch.ones(3, 3), "more": TOUCHES}, root / file)


def raw_pickle_in(file: str) -> Damage:
    return lambda root: (root / file).write_bytes(pickle.dumps(TOUCHES))


@prepared
def crushed(root: Path, file: str) -> None:
    """Write an archive again with compressed records."""
    data = (root / file).read_bytes()
    with (
        zipfile.ZipFile(io.BytesIO(data)) as given,
        zipfile.ZipFile(root / file, "w", zipfile.ZIP_DEFLATED) as written,
    ):
        for name in given.namelist():
            written.writestr(name, given.read(name) + bytes(1 << 22))


@prepared
def huge_group(root: Path, file: str, num_values: int) -> None:
    """Write one row of many zeros, which take next to no bytes."""
    import numpy as np
    import pyarrow
    from pyarrow import parquet

    zeros = pyarrow.array(np.zeros(num_values, np.float32))
    values = pyarrow.FixedSizeListArray.from_arrays(zeros, num_values // 4)
    parquet.write_table(pyarrow.table({"emb": values}), root / file)


@prepared
def lying_group(root: Path, file: str, num_values: int) -> None:
    """Write lists of zeros, and a smaller number of them into what describes the file."""
    import numpy as np
    import pyarrow
    from pyarrow import parquet

    offsets = pyarrow.array([0, num_values], pyarrow.int32())
    values = pyarrow.ListArray.from_arrays(offsets, pyarrow.array(np.zeros(num_values, np.float32)))
    parquet.write_table(pyarrow.table({"emb": values}), root / file)
    data = (root / file).read_bytes()
    end = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    large, digits = b"", 2 * num_values  # as Thrift writes an integer: seven bits at a time
    while digits > 127:
        large, digits = large + bytes([digits & 127 | 128]), digits >> 7
    small = b"\x94" + b"\x80" * (len(large) - 1) + b"\x00"  # 10, in as many bytes
    changed = data[end:].replace(large + bytes([digits]), small)
    assert changed != data[end:]
    (root / file).write_bytes(data[:end] + changed)


@prepared
def prefixes(root: Path, file: str, column: str) -> None:
    """Write a column again as long names, each as what differs from the name before it."""
    from pyarrow import parquet

    table = parquet.read_table(root / file)
    names = [["x" * 100_000 + str(row) for row in range(len(table))]]
    table = table.set_column(table.schema.names.index(column), column, names)
    settings = {"use_dictionary": False, "column_encoding": {column: "DELTA_BYTE_ARRAY"}, "compression": "zstd"}
    parquet.write_table(table, root / file, **settings)


def large(file: str) -> Damage:
    return lambda root: os.truncate(root / file, (32 << 20) + 1)


@prepared
def with_header(root: Path, file: str, text_of: Callable[[dict[str, Any]], str]) -> None:
    """Write another header of a safetensors file."""
    data = (root / file).read_bytes()
    size = int.from_bytes(data[:8], "little")
    text = text_of(json.loads(data[8 : 8 + size])).encode()
    (root / file).write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])


def twice(file: str) -> Damage:
    """Give the first tensor again, behind all others: some readers take the first, some the last."""
    return with_header(file, lambda of: f"{json.dumps(of)[:-1]}, {json.dumps({min(of): of[min(of)]})[1:]}")


def lying_header(file: str, change: Callable[[dict[str, Any]], object]) -> Damage:
    """Change the header of a safetensors file."""
    return with_header(file, lambda of: json.dumps((change(of), of)[1]))


def header_size(file: str, size: int) -> Damage:
    return lambda root: (root / file).write_bytes(size.to_bytes(8, "little") + (root / file).read_bytes()[8:])


def pipe(file: str) -> Damage:
    """Put a pipe in the place of a file; no process writes to it."""
    return lambda root: ((root / file).unlink(), os.mkfifo(root / file))


def link(file: str, to: str) -> Damage:
    """Put a link in the place of a file."""
    return lambda root: ((root / file).unlink(), (root / file).symlink_to(to))


def deep_pickle(file: str) -> Damage:
    """Write a list within a list, many times."""
    return lambda root: (root / file).write_bytes(b"\x80\x02" + b"]" * 50_000 + b"a" * 49_999 + b".")


@prepared
def state(root: Path, file: str, change: Callable[[Any], object]) -> None:
    """Change what an archive of torch.save holds; what comes back, if anything, takes its place."""
    found = torch.load(root / file)
    changed = change(found)
    torch.save(found if changed is None else changed, root / file)


def negated(found: torch.Tensor) -> torch.Tensor:
    """Mark a tensor as the negative of the numbers that are saved."""
    return torch._neg_view(found)


@prepared
def metadata(root: Path, folder: str, change: Callable[[Any], object]) -> None:
    """Change the description of a distributed checkpoint, which this process trusts."""
    path = root / folder / ".metadata"
    found = pickle.loads(path.read_bytes())
    change(found)
    path.write_bytes(pickle.dumps(found))


def of_table(found: Any) -> Any:
    """Return the description of the largest sharded table."""
    return max(
        (of for of in found.state_dict_metadata.values() if hasattr(of, "chunks") and len(of.chunks) > 1),
        key=lambda of: of.size.numel(),
    )


def overlapping(found: Any) -> None:
    """Let the second shard begin a row earlier."""
    table = of_table(found)
    name = next(key for key, of in found.state_dict_metadata.items() if of is table)
    index = next(key for key in found.storage_data if key.fqn == name and key.offset == table.chunks[1].offsets)
    table.chunks[1].offsets = torch.Size([index.offset[0] - 1, *index.offset[1:]])
    found.storage_data[type(index)(name, table.chunks[1].offsets)] = found.storage_data[index]


@prepared
def in_part(found: Any, **values: Any) -> None:
    """Say something else of a part of a table."""
    for name, value in values.items():
        setattr(of_table(found).chunks[1], name, value)


def nested(levels: int) -> tuple[Any, ...]:
    return (nested(levels - 1),) if levels else ()


def nameless(file: str) -> Damage:
    """Write a checkpoint's description, by hand, in which the name of a tensor is a list."""

    def of(name: str, values: bytes) -> bytes:
        return f"ctorch.distributed.checkpoint.metadata\n{name}\n)\x81}}(".encode("latin-1") + values + b"ub"

    def text(name: str) -> bytes:
        return b"X" + len(name).to_bytes(4, "little") + name.encode()

    places = b"}" + of("MetadataIndex", text("fqn") + b"]") + of("_StorageInfo", b"") + b"s"
    whole = of("Metadata", text("state_dict_metadata") + b"}" + text("storage_data") + places)
    return lambda root: (root / file).write_bytes(b"\x80\x02" + whole + b".")


def missing_part(found: Any) -> None:
    of_table(found).chunks.pop(0)


def larger(found: Any) -> None:
    table = of_table(found)
    table.size = torch.Size([table.size[0] * 2, table.size[1]])


@prepared
def elsewhere(found: Any, place: str) -> None:
    """Say that shards lie in another file."""
    for info in found.storage_data.values():
        info.relative_path = place


def far_away(found: Any) -> None:
    for info in found.storage_data.values():
        info.offset, info.length = 1 << 60, 1 << 60


def nowhere(found: Any) -> None:
    found.storage_data.clear()
