"""Parquet files with vectors -> the rows of a table, a group of rows at a time; and columns of names and of numbers.

Vectors are a column of lists, or a column for each dimension. A group of rows is decoded whole, so its size is limited:
what a small file says that it holds could be larger than memory.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from pbgeval.errors import StorageError, required
from pbgeval.notation import grouped
from pbgeval.storage.row_slice import RowSlice
from pbgeval.storage.text import check_regular, fingerprint, joint_fingerprint, listed, one_line, unreadable

MAX_GROUP_BYTES = 512 << 20  # of the vectors of a group of rows, and of all that it holds
MAX_FOOTER_BYTES = 64 << 20  # of what describes a file
_BATCH_ROWS = 1 << 14
_NAMES = re.compile(r"u?int|(dictionary<values=)?(large_)?string")  # pyarrow's names of types
_OF_PARTS = re.compile(r"(.*)(?<![0-9])([0-9]+)-of-([0-9]+)")
_UUID = re.compile(r"[0-9a-f]{8}(-?[0-9a-f]{4}){4}[0-9a-f]{8}")
_PAGE_HEADER_BYTES = 1 << 12
_BOOLS, _INTEGERS, _BINARY, _STRUCT = (1, 2), (4, 5, 6), 8, 12  # types of Thrift's compact protocol


@frozen
class ParquetRows(RowSlice):
    """Rows of some files, one file after the other."""

    paths: tuple[Path, ...]
    columns: tuple[str, ...]  # one of lists, or one per dimension
    groups: tuple[tuple[int, int, int], ...]  # first row, file, number within the file; of each group with rows

    def read_rows(self, start: int, stop: int) -> Tensor:
        """Return a copy of rows start to stop (exclusive), float32.

        Raises:
            StorageError: a file is gone or damaged, or a row has another number of values.
        """
        rows = np.empty((stop - start, self.dimension), np.float32)
        begin, end = start + self.first, stop + self.first
        firsts = [first for first, _, _ in self.groups]
        for first, file, group in self.groups[bisect_right(firsts, begin) - 1 : bisect_left(firsts, end)]:
            path = self.paths[file]
            values = _decoded(path, _state(path), group, self.columns, self.dimension)
            low = max(begin, first)
            high = min(end, first + len(values))
            rows[low - begin : high - begin] = values[low - first : high - first]
        return torch.from_numpy(rows)

    def fingerprint(self) -> str:
        return joint_fingerprint([fingerprint(path) for path in self.paths], self.columns, self.first, self.num_rows)


def parquet_files(path: Path, pattern: str = "*.parquet") -> tuple[Path, ...]:
    """Return a file, or the Parquet files of a folder in the order of their names: part-2, then part-10.

    As for pyarrow and Spark, names that begin with a dot or an underscore are of temporary files.
    """
    if not os.path.isdir(path):
        return (path,)
    names = (str(found.relative_to(path)) for found in path.glob(pattern))
    parts_of = {
        name: [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]
        for name in names
        if not any(part[0] in "._" for part in name.split(os.sep))
    }
    return tuple(path / name for name in sorted(parts_of, key=lambda name: (parts_of[name], name)))


def check_parts(folder: Path, paths: Sequence[Path]) -> None:
    """Refuse files of a folder that are not a whole table, as far as names tell: rows after a gap would be others.

    Raises:
        StorageError: a numbered file is missing or there twice, or a folder in this one holds more files.
    """
    below = parquet_files(folder, "*/**/*.parquet")
    if below:
        raise StorageError(
            f"{folder}: expected all Parquet files in this folder itself, found also {below[0].relative_to(folder)}; "
            "move all of them into one folder"
        )
    numbered = filter(None, (_OF_PARTS.match(path.name) for path in paths))
    numbers_of: dict[tuple[str, int | None], list[int]] = grouped(  # by what stands before the number, and how many
        ((match[1], int(match[3])), int(match[2])) for match in numbered
    )
    pieces = [re.split("([0-9]+)", path.name) for path in paths]
    differing = [{*values} for values in zip(*pieces, strict=False) if len({*values}) > 1]
    # Spark and Ray, whose names hold a UUID, write no file for an empty partition.
    is_numbered = len(differing) == 1 == len({*map(len, pieces)}) and all(map(str.isdecimal, differing[0]))
    if is_numbered and not numbers_of and not _UUID.search(paths[0].name):
        numbers_of["", None] = [int(number) for number in differing[0]]
    for (_, named), numbers in numbers_of.items():
        first = min(numbers)
        count = max(numbers) + 1 - first if named is None else named
        is_gapless = len(numbers) == count and sorted(numbers) == list(range(first, first + count))
        if not is_gapless and (named is not None or first in (0, 1)):
            raise StorageError(
                f"{folder}: expected {count} files by the numbers in names such as {paths[0].name}, found "
                f"{len(numbers)}, or one twice; copy the missing ones"
            )


def parquet_rows(paths: Sequence[Path], column: str | None = None) -> ParquetRows:
    """Open a table of vectors.

    Args:
        paths: the files, in the order of their rows.
        column: of lists; None: the only one of lists, or all columns, which are numbers.

    Raises:
        StorageError: a file is missing or damaged, has other columns, or too large a group of rows.
    """
    groups: list[tuple[int, int, int]] = []
    columns, num_rows, dimension = (), 0, 0  # type: tuple[str, ...], int, int
    for index, path in enumerate(paths):
        with _opened(path) as file:
            found = _vector_columns(path, file.schema_arrow, column)
            if columns not in ((), found):
                raise StorageError(f"{path}: expected columns {listed(list(columns))}, found {listed(list(found))}")
            columns = found
            for number in range(file.metadata.num_row_groups):
                group = file.metadata.row_group(number)
                if group.num_rows:
                    _check_size(path, number, group)
                    dimension = dimension or _dimension(path, file, number, columns)
                    groups.append((num_rows, index, number))
                    num_rows += group.num_rows
    if not num_rows or not dimension:
        raise StorageError(f"{paths[0]}: there are no vectors in this file; write it again")
    return ParquetRows(num_rows, dimension, tuple(paths), columns, tuple(groups))


def parquet_column(paths: Sequence[Path], *columns: str) -> Iterator[Any]:
    """Yield the values of a column of names or integers, one after the other.

    Args:
        paths: the files.
        *columns: what it may be called.

    Raises:
        StorageError: a file is missing or damaged, or a value is.
    """
    for path in paths:
        with _opened(path) as file:
            schema = file.schema_arrow
        column = next((name for name in columns if schema.names.count(name) == 1), None)
        if column is None:
            raise StorageError(f"{path}: expected a column {' or '.join(columns)}, found {listed(schema.names)}")
        kind = schema.field(column).type
        if not _NAMES.match(str(kind)):
            raise StorageError(f"{path}: expected names or integers in column {column}, found {one_line(kind)}")
        with _opened(path, column) as file:
            for number in range(file.metadata.num_row_groups):
                _check_size(path, number, file.metadata.row_group(number))
            for batch in file.iter_batches(_BATCH_ROWS, columns=[column]):
                values = batch.column(0)
                if values.null_count:
                    raise StorageError(f"{path}: column {column} has empty values; write the file again")
                if hasattr(values, "dictionary"):
                    names = values.dictionary.to_pylist()  # a long name that is repeated is in memory once
                    yield from (names[index] for index in values.indices.to_pylist())
                else:
                    yield from values.to_pylist()


@contextmanager
def _opened(path: Path, names: str | None = None) -> Iterator[Any]:
    """Open a file, and say what is wrong with it wherever that is found; `names` is a column that may be text."""
    with required(StorageError, f"{path}: pyarrow is required to read vectors from Parquet", "pyarrow"):
        import pyarrow
        import pyarrow.parquet
    # pyarrow raises OSError for what is damaged, too.
    kinds = (OSError, pyarrow.ArrowException, MemoryError, OverflowError, ValueError)
    with unreadable(path, "cannot read this Parquet file", "", kinds):
        check_regular(path)
        _check_footer(path)
        with pyarrow.parquet.ParquetFile(path, read_dictionary=[names] if names else None) as file:
            yield file


def _check_footer(path: Path) -> None:
    with path.open("rb") as file:
        file.seek(-min(8, os.fstat(file.fileno()).st_size), os.SEEK_END)
        end = file.read(8)
    size = int.from_bytes(end[:4], "little")
    if end[4:] != b"PAR1" or size > MAX_FOOTER_BYTES:
        raise ValueError(f"it has a description of {size:,} bytes" if end[4:] == b"PAR1" else "it does not end as one")


def _vector_columns(path: Path, schema: Any, column: str | None) -> tuple[str, ...]:  # noqa: ANN401 - of pyarrow
    import pyarrow

    of = pyarrow.types
    names = [str(name) for name in schema.names]
    kinds = {name: schema.field(name).type for name in names if names.count(name) == 1}
    lists = [name for name, kind in kinds.items() if _is_list(kind) and of.is_floating(kind.value_type)]
    chosen = [name for name in lists if column in (None, name)]
    if len(chosen) == 1:
        return (chosen[0],)
    numbers = [name for name, kind in kinds.items() if of.is_floating(kind)]
    if column is None and not lists and names and numbers == names:
        return tuple(names)
    expected = "one column of lists of floats, or columns of floats alone" if column is None else f"lists in {column}"
    raise StorageError(f"{path}: expected {expected}, found columns {listed(names)}; name the column: FILE#COLUMN")


def _is_list(kind: Any) -> bool:  # noqa: ANN401 - a type of pyarrow, of any of its five kinds of lists
    return hasattr(kind, "value_field")


def _dimension(path: Path, file: Any, group: int, columns: tuple[str, ...]) -> int:  # noqa: ANN401 - of pyarrow
    if not _is_list(file.schema_arrow.field(columns[0]).type):
        return len(columns)
    _check_pages(path, group, file.metadata.row_group(group), columns[0])
    first = next(file.iter_batches(1, row_groups=[group], columns=list(columns))).column(0)[0]
    return len(first) if first.is_valid else 0


def _check_pages(path: Path, number: int, group: Any, column: str) -> None:  # noqa: ANN401 - of pyarrow
    """Refuse lists of which pages hold more than the file's end says: pyarrow decodes a row of any length.

    Raises:
        ValueError: see above.
    """
    leaves = (group.column(index) for index in range(group.num_columns))
    with path.open("rb") as file:
        for leaf in (leaf for leaf in leaves if leaf.path_in_schema.startswith(f"{column}.")):
            at = min(leaf.data_page_offset, leaf.dictionary_page_offset or leaf.data_page_offset)
            end, num_values = at + leaf.total_compressed_size, 0
            while at < end:
                file.seek(at)
                of_page, length = _page(file.read(_PAGE_HEADER_BYTES))
                num_values, at = num_values + of_page, at + length
            if num_values != leaf.num_values:
                raise ValueError(f"row group {number} has {num_values:,} values, and {leaf.num_values:,} by its end")


def _page(data: bytes) -> tuple[int, int]:
    """Return how many values a page holds, and its length, from its first bytes (parquet.thrift: PageHeader).

    Raises:
        ValueError: it is damaged.
    """
    at = 0

    def number() -> int:
        nonlocal at
        found, shift = 0, 0
        while data[at] > 127:
            found, shift, at = found | (data[at] & 127) << shift, shift + 7, at + 1
        at += 1
        return found | data[at - 1] << shift

    def struct(depth: int) -> dict[int, Any]:  # of Thrift's compact protocol
        nonlocal at
        found: dict[int, Any] = {}
        key = 0
        while byte := data[at]:
            at += 1
            key = (key + (byte >> 4) if byte >> 4 else number() >> 1) & 0xFFFF
            kind = byte & 15
            if kind == _STRUCT and depth < 2:
                found[key] = struct(depth + 1)
            elif kind in (*_INTEGERS, _BINARY):
                found[key] = number()
                at += found[key] if kind == _BINARY else 0
            elif kind not in _BOOLS:  # of no page; what it would be followed by is not known
                raise ValueError("a page that is damaged")
        at += 1
        return found

    try:
        fields = struct(0)
        num_values = sum(fields[kind].get(1, 0) >> 1 for kind in (5, 8) if kind in fields)  # of two versions of pages
        return num_values, at + (fields[3] >> 1)
    except (LookupError, AttributeError, TypeError):
        raise ValueError("a page that is damaged") from None


def _check_size(path: Path, number: int, group: Any) -> None:  # noqa: ANN401 - of pyarrow
    num_values = sum(group.column(index).num_values for index in range(group.num_columns))
    size = max(group.total_byte_size, num_values * torch.float32.itemsize)  # repeated values take no bytes in a file
    if size > MAX_GROUP_BYTES:
        raise StorageError(
            f"{path}: row group {number} has {size >> 20:,} MB, which is decoded at once; write row groups of at most "
            f"{MAX_GROUP_BYTES >> 20} MB"
        )


def _state(path: Path) -> tuple[int, int, int, int]:
    """Return what changes when a file is written again."""
    with unreadable(path, "cannot open the file", "; check the path"):
        of = os.stat(path)
    return of.st_size, of.st_mtime_ns, of.st_ctime_ns, of.st_ino


@lru_cache(maxsize=1)  # ranges of rows come one after the other
def _decoded(
    path: Path, state: tuple[int, int, int, int], number: int, columns: tuple[str, ...], dimension: int
) -> np.ndarray:
    """Return the vectors of a group of rows of a file in some state, float32."""
    with _opened(path) as file:
        from pyarrow.compute import list_value_length

        has_lists = _is_list(file.schema_arrow.field(columns[0]).type)
        group = file.metadata.row_group(number)
        _check_size(path, number, group)
        if has_lists:
            _check_pages(path, number, group, columns[0])
        values = np.empty((group.num_rows, dimension), np.float32)
        at = 0
        for batch in file.iter_batches(_BATCH_ROWS, row_groups=[number], columns=list(columns)):
            parts = [column.flatten() if has_lists else column for column in batch.columns]
            if any(array.null_count for array in (*batch.columns, *parts)):
                raise StorageError(f"{path}: row group {number} has empty values; write the file again")
            lengths = list_value_length(batch.column(0)).to_numpy() if has_lists else np.empty(0)
            if (lengths != dimension).any() or sum(map(len, parts)) != batch.num_rows * dimension:
                raise StorageError(f"{path}: row group {number}: expected vectors of {dimension} numbers, found others")
            with np.errstate(over="ignore"):  # becomes infinite, and is refused as such
                rows = np.stack([part.to_numpy(zero_copy_only=False) for part in parts], axis=1)
                values[at : at + batch.num_rows] = rows.reshape(batch.num_rows, dimension)
            at += batch.num_rows
        if at != group.num_rows:
            raise StorageError(f"{path}: expected {group.num_rows:,} rows in row group {number}, found {at:,}")
        return values
