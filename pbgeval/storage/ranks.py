"""Counts of each query -> `ranks/<path index>/ranks_<l>_<r>.h5`, and back: enough for any later cut of the figures.

A group per ranked side, `head` and `tail`, with an int64 dataset per column and a row per row of the edge file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from attrs import frozen

from pbgeval.errors import StorageError
from pbgeval.notation import Bucket, Side
from pbgeval.storage.hdf5 import open_hdf5
from pbgeval.storage.row_files import ColumnLayout, RowFile, create_row_file, open_row_file

COLUMNS = (
    "better",  # competitors that score higher than the true entity, known answers included
    "tied",  # competitors that score the same
    "num_candidates",  # competitors and the true entity; 0 where the query was not ranked
    "excluded_better",  # of `better`, known answers, which do not compete in filtered figures
    "excluded_tied",  # of `tied`
    "num_excluded",  # of all competitors
)
_COLUMN = ColumnLayout(np.dtype(np.int64))
_FILE = re.compile(r"([0-9]+)/ranks_([0-9]+)_([0-9]+)\.h5")


@frozen
class RanksFile:
    """The counts of one bucket file's queries; small and picklable."""

    rows: RowFile
    sides: tuple[Side, ...]

    @property
    def path(self) -> Path:
        return self.rows.path

    @property
    def num_edges(self) -> int:
        return self.rows.num_rows

    @property
    def digest(self) -> str:
        """That of the run that made the file."""
        return str(self.rows.attributes["digest"])

    def write(self, side: Side, rows: int | np.ndarray, columns: Mapping[str, np.ndarray]) -> None:
        """Write the counts of some queries. Other processes may write other rows at the same time.

        Args:
            side: the side that is hidden.
            rows: the first row of consecutive ones, or int64 (n), strictly increasing: rows of the edge file.
            columns: each of `COLUMNS`, int64 (n).

        Raises:
            OutputError: the file cannot be written (gone, permissions, a full disk).
            ValueError: columns are missing, or rows or lengths do not fit.
        """
        if set(columns) != set(COLUMNS):
            raise ValueError(f"columns {', '.join(COLUMNS)} expected, got {', '.join(columns)}")
        self.rows.write(rows, {_name(side, column): values for column, values in columns.items()})

    def read(self, side: Side, start: int, stop: int) -> dict[str, np.ndarray]:
        """Return rows start to stop (exclusive) of each of `COLUMNS`, int64.

        Raises:
            StorageError: the file is gone or damaged.
        """
        return {column: self.rows.read(_name(side, column), start, stop) for column in COLUMNS}

    def sync(self) -> None:
        """Wait until all that was written is on the disk; call it once, after all writes."""
        self.rows.sync()


@frozen(eq=False)
class Ranks:
    """All that a file holds."""

    num_edges: int
    digest: str
    columns: Mapping[Side, Mapping[str, np.ndarray]]  # int64 (E), by hidden side and name


def ranks_path(folder: Path, path_index: int, bucket: Bucket) -> Path:
    """Where the counts of a bucket's queries are, in the output directory `folder`."""
    return folder / "ranks" / str(path_index) / f"ranks_{bucket.lhs}_{bucket.rhs}.h5"


def create_ranks_file(
    folder: Path,
    path_index: int,
    bucket: Bucket,
    num_edges: int,
    sides: Sequence[Side],
    digest: str,
    check: Callable[[], None] | None = None,
) -> RanksFile:
    """Make a file in which no query is ranked yet, replacing what was there. One process does.

    Args:
        folder: the output directory.
        path_index: index in `edge_paths`.
        bucket: of the edge file.
        num_edges: rows of the edge file.
        sides: those that are ranked.
        digest: of the run.
        check: raises if the run has lost the directory.

    Raises:
        OutputError: it cannot be written (permissions, a full disk).
    """
    path = ranks_path(folder, path_index, bucket)
    return RanksFile(create_row_file(path, num_edges, _layouts(sides), {"digest": digest}, check), tuple(sides))


def open_ranks_file(folder: Path, path_index: int, bucket: Bucket) -> RanksFile:
    """Open a file that `create_ranks_file` made, for reading and writing.

    Raises:
        StorageError: there is none, or it does not hold what it should.
    """
    path = ranks_path(folder, path_index, bucket)
    with open_hdf5(path) as file:
        names = file.names()
    sides = tuple(side for side in Side if side.label in names)
    if not sides:
        raise StorageError(f"{path}: expected a group head or tail, found neither; did this program write it?")
    return RanksFile(open_row_file(path, _layouts(sides), ("digest",)), sides)


def read_ranks(folder: Path, path_index: int, bucket: Bucket) -> Ranks:
    """Read all counts of a bucket's queries; `open_ranks_file(...).read` reads a part.

    Raises:
        StorageError: there is no such file, or it does not hold what it should.
    """
    file = open_ranks_file(folder, path_index, bucket)
    return Ranks(file.num_edges, file.digest, {side: file.read(side, 0, file.num_edges) for side in file.sides})


def find_ranks(folder: Path) -> list[tuple[int, Bucket]]:
    """Return (path index, bucket) of every file of counts in an output directory, in order."""
    names = (path.relative_to(folder / "ranks").as_posix() for path in (folder / "ranks").glob("*/ranks_*_*.h5"))
    matches = filter(None, map(_FILE.fullmatch, names))
    return sorted((int(match[1]), Bucket(int(match[2]), int(match[3]))) for match in matches)


def _name(side: Side, column: str) -> str:
    return f"{side.label}/{column}"


def _layouts(sides: Sequence[Side]) -> dict[str, ColumnLayout]:
    return {_name(side, column): _COLUMN for side in sides for column in COLUMNS}
