"""Names and shapes of datasets -> an HDF5 file whose rows many processes fill at the same time.

HDF5 lets one process write. So one process makes the file with every dataset allocated and laid out in one piece,
closes it, and from then on any process writes its own rows where they lie, past the library: a dataset's offset in
the file, plus the row times its size. We read rows the same way; to others the file is plain HDF5.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from attrs import evolve, frozen

from pbgeval.errors import StorageError
from pbgeval.notation import Bucket, Side
from pbgeval.storage import writing
from pbgeval.storage.hdf5 import FORMAT_VERSION, ColumnLayout, Hdf5File, open_hdf5, write_hdf5
from pbgeval.storage.text import one_line, unreadable
from pbgeval.storage.writing import Check, opened, output_faults, write_all


@frozen
class RowFile:
    """A file that was made; small and picklable, so that each worker gets a copy."""

    path: Path
    num_rows: int
    layouts: Mapping[str, ColumnLayout]  # groups in front: `head/better`

    def write(self, rows: int | np.ndarray, columns: Mapping[str, np.ndarray]) -> None:
        """Write rows of some datasets. Other processes may write other rows at the same time.

        Args:
            rows: the first row, of consecutive ones; or int64 (n), strictly increasing.
            columns: n rows for each dataset named, of the shape and a type that fits the dataset's.

        Raises:
            OutputError: the file cannot be written (gone, permissions, a full disk).
        """
        runs = self._runs(rows, columns)
        with output_faults(self.path), opened(self.path, 0) as descriptor:
            for name, values in columns.items():
                layout = self.layouts[name]
                data = np.ascontiguousarray(values, layout.dtype).reshape(-1).view(np.uint8).data
                for first, position, length in runs:
                    start, stop = position * layout.row_size, (position + length) * layout.row_size
                    write_all(descriptor, data[start:stop], layout.offset + first * layout.row_size)

    def sync(self) -> None:
        """Wait until all that was written is on the disk.

        Raises:
            OutputError: it cannot be written.
        """
        with output_faults(self.path), opened(self.path, 0) as descriptor:
            writing.system.sync(descriptor)

    def read(self, names: Sequence[str], start: int, stop: int) -> dict[str, np.ndarray]:
        """Return rows start to stop (exclusive) of some datasets, from where they lie.

        Raises:
            StorageError: the file is gone or has become shorter.
        """
        rows = {}
        with unreadable(self.path, "cannot read this file", "; evaluate again"):
            for name in names:
                layout = self.layouts[name]
                shape, place = (stop - start, *(layout.row_shape or ())), layout.offset + start * layout.row_size
                values = np.fromfile(self.path, layout.dtype, math.prod(shape), offset=place)
                if len(values) < math.prod(shape):
                    raise StorageError(f"{self.path}: the file is truncated; evaluate again")
                rows[name] = values.reshape(shape)
        return rows

    def _runs(self, rows: int | np.ndarray, columns: Mapping[str, np.ndarray]) -> list[tuple[int, int, int]]:
        """Cut rows into runs of consecutive ones: (first row, position among the values, length)."""
        length = len(next(iter(columns.values())))
        if isinstance(rows, int):
            rows = np.arange(rows, rows + length)
        for name, values in columns.items():
            layout = self.layouts[name]
            assert values.shape == (len(rows), *(layout.row_shape or ())), name
            assert np.can_cast(values.dtype, layout.dtype, "same_kind"), name
        assert not length or 0 <= rows[0] <= rows[-1] < self.num_rows
        assert (rows[1:] > rows[:-1]).all()
        starts = np.flatnonzero(np.diff(rows, prepend=rows[:1] - 2) != 1).tolist()
        stops = [*starts[1:], length]
        return [(int(rows[start]), start, stop - start) for start, stop in zip(starts, stops, strict=False)]


def create_row_file(
    path: Path,
    num_rows: int,
    layouts: Mapping[str, ColumnLayout],
    attributes: Mapping[str, int | str] = {},
    check: Check | None = None,
) -> RowFile:
    """Make a file whose rows are still to be written, replacing what was there. One process does.

    Args:
        path: the file; folders are made as needed.
        num_rows: of every dataset.
        layouts: the datasets by name, groups in front.
        attributes: of the file, beside `format_version` and `num_rows`.
        check: is called just before the file takes its name, and may raise: what others have taken over stays.

    Raises:
        OutputError: it cannot be written (permissions, a full disk).
    """
    offsets = write_hdf5(path, {"num_rows": num_rows, **attributes}, num_rows=num_rows, layouts=layouts, check=check)
    made = {name: ColumnLayout(of.dtype, 0, of.row_shape or (), offsets[name]) for name, of in layouts.items()}
    return RowFile(path, num_rows, made)


def _attribute(file: Hdf5File, name: str) -> int | str:
    value = file.attribute(name)
    if not isinstance(value, np.integer | str):
        raise StorageError(
            f"{file.path}: expected an attribute {name}, found {one_line(value)}; check that kgeval-dist wrote it"
        )
    return value if isinstance(value, str) else int(value)


def _layout(file: Hdf5File, name: str, num_rows: int, layout: ColumnLayout) -> ColumnLayout:
    dataset = file.require(name)
    shape, dtype, offset = dataset.shape, dataset.dtype, dataset.offset
    row_shape = (shape or ())[1:] if layout.row_shape is None else layout.row_shape
    expected = (num_rows, *row_shape)
    if shape != expected or dtype != layout.dtype or (offset is None and math.prod(expected) != 0):
        raise StorageError(
            f"{file.path}: dataset {name}: expected {layout.dtype} of shape {expected} in one piece, found {dtype} of"
            f" shape {shape}{' in pieces' if offset is None else ''}; check that kgeval-dist wrote this file"
        )
    return ColumnLayout(layout.dtype, 0, row_shape, offset or 0)


# What a run keeps of each query: a file per bucket, with a group per ranked side, `head` and `tail`, whose datasets
# have a row per row of the edge file.
#
#     ranks/<path index>/ranks_<l>_<r>.h5    counts: enough for any later cut of the figures
#     topk/<path index>/topk_<l>_<r>.h5      the k best candidates, the best one first
#
# Edges that no file holds are kept beside their counts: ranks/<path index>/edges.npy.

_INT64 = np.dtype(np.int64)
RANK_COLUMNS = {
    "better": ColumnLayout(_INT64),  # competitors that score higher than the true entity, known answers included
    "tied": ColumnLayout(_INT64),  # competitors that score the same
    "num_candidates": ColumnLayout(_INT64),  # competitors and the true entity; 0 where the query was not ranked
    "excluded_better": ColumnLayout(_INT64),  # of `better`, known answers, which do not compete in filtered figures
    "excluded_tied": ColumnLayout(_INT64),  # of `tied`
    "num_excluded": ColumnLayout(_INT64),  # of all competitors
}
TOPK_COLUMNS = {
    "entity": ColumnLayout(_INT64, -1, None),  # row in its partition; -1 where there are fewer than k candidates
    "partition": ColumnLayout(_INT64, -1, None),  # -1 as above
    "score": ColumnLayout(np.dtype(np.float64), math.nan, None),
    "known": ColumnLayout(np.dtype(np.uint8), 0, None),  # 1: a known answer other than the true entity
}
_COLUMNS = {"ranks": RANK_COLUMNS, "topk": TOPK_COLUMNS}
_RANKS_FILE = re.compile(r"([0-9]+)/ranks_([0-9]+)_([0-9]+)\.h5")

Kind = Literal["ranks", "topk"]


@frozen
class QueryFile(RowFile):
    """A file with the saved results of one bucket's queries, a row for each edge; small and picklable."""

    sides: tuple[Side, ...]
    digest: str  # of the run that made the file

    @property
    def columns(self) -> list[str]:
        """Return the names of the datasets of each side."""
        group = f"{self.sides[0].label}/"
        return [name.removeprefix(group) for name in self.layouts if name.startswith(group)]

    def write_side(self, side: Side, rows: int | np.ndarray, columns: Mapping[str, np.ndarray]) -> None:
        """Write what belongs to some queries that hide a side, as `write` does: every column."""
        assert columns.keys() == {*self.columns}, columns.keys()
        self.write(rows, {f"{side.label}/{name}": values for name, values in columns.items()})

    def read_side(self, side: Side, start: int, stop: int) -> dict[str, np.ndarray]:
        """Return rows start to stop (exclusive) of each column of a side, as `read` does."""
        group = f"{side.label}/"
        found = self.read([f"{group}{name}" for name in self.columns], start, stop)
        return {name.removeprefix(group): values for name, values in found.items()}


def query_path(folder: Path, kind: Kind, path_index: int, bucket: Bucket) -> Path:
    """Return the path of the saved results of a bucket's queries in an output directory."""
    return folder / kind / str(path_index) / f"{kind}_{bucket.lhs}_{bucket.rhs}.h5"


def create_query_file(
    folder: Path,
    kind: Kind,
    path_index: int,
    bucket: Bucket,
    num_edges: int,
    sides: Sequence[Side],
    digest: str,
    check: Check | None = None,
    *,
    k: int | None = None,
) -> QueryFile:
    """Make a file in which nothing is said of any query yet, as `create_row_file` does.

    Args:
        folder: the output directory.
        kind: of the file.
        path_index: index in `edge_paths`.
        bucket: whose queries they are.
        num_edges: rows of the edge file.
        sides: those that are ranked.
        digest: of the run.
        check: raises if the run has lost the directory.
        k: how many candidates `topk` keeps of each query.
    """
    path, columns = query_path(folder, kind, path_index, bucket), _COLUMNS[kind]
    if k is not None:
        columns = {name: evolve(layout, row_shape=(k,)) for name, layout in columns.items()}
    file = create_row_file(path, num_edges, _of_sides(sides, columns), {"digest": digest}, check)
    return QueryFile(path, num_edges, file.layouts, tuple(sides), digest)


def open_query_file(folder: Path, kind: Kind, path_index: int, bucket: Bucket) -> QueryFile:
    """Open a file that `create_query_file` made, for reading and writing.

    Raises:
        StorageError: there is none, or it does not hold what it should.
    """
    path = query_path(folder, kind, path_index, bucket)
    with open_hdf5(path) as file:
        sides = tuple(side for side in Side if side.label in file.names())
        if not sides:
            raise StorageError(f"{path}: no group head, tail or relation; check that kgeval-dist wrote this file")
        version, num_rows, digest = (_attribute(file, name) for name in ("format_version", "num_rows", "digest"))
        if version != FORMAT_VERSION:
            raise StorageError(f"{path}: attribute format_version: expected {FORMAT_VERSION}; evaluate again")
        layouts = {
            name: _layout(file, name, int(num_rows), layout)
            for name, layout in _of_sides(sides, _COLUMNS[kind]).items()
        }
    return QueryFile(path, int(num_rows), layouts, sides, str(digest))


def _of_sides(sides: Sequence[Side], columns: Mapping[str, ColumnLayout]) -> dict[str, ColumnLayout]:
    return {f"{side.label}/{name}": layout for side in sides for name, layout in columns.items()}


def find_ranks(folder: Path) -> list[tuple[int, Bucket]]:
    """Return (path index, bucket) of every file of counts in an output directory, in order."""
    matches = (_RANKS_FILE.fullmatch("/".join(path.parts[-2:])) for path in (folder / "ranks").glob("*/ranks_*_*.h5"))
    return sorted((int(match[1]), Bucket(int(match[2]), int(match[3]))) for match in matches if match)
