"""Counts of each query -> `ranks/<path index>/ranks_<l>_<r>.h5`, and back: enough for any later cut of the figures.

A group per ranked side, `head` and `tail`, with an int64 dataset per column and a row per row of the edge file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pbgeval.notation import Bucket, Side
from pbgeval.storage.row_files import ColumnLayout, QueryFile, create_query_file, open_query_file
from pbgeval.storage.writing import Check

_COUNT = ColumnLayout(np.dtype(np.int64))
COLUMNS = {
    "better": _COUNT,  # competitors that score higher than the true entity, known answers included
    "tied": _COUNT,  # competitors that score the same
    "num_candidates": _COUNT,  # competitors and the true entity; 0 where the query was not ranked
    "excluded_better": _COUNT,  # of `better`, known answers, which do not compete in filtered figures
    "excluded_tied": _COUNT,  # of `tied`
    "num_excluded": _COUNT,  # of all competitors
}
_FILE = re.compile(r"([0-9]+)/ranks_([0-9]+)_([0-9]+)\.h5")


def ranks_path(folder: Path, path_index: int, bucket: Bucket) -> Path:
    """Return where the counts of a bucket's queries are, in the output directory `folder`."""
    return folder / "ranks" / str(path_index) / f"ranks_{bucket.lhs}_{bucket.rhs}.h5"


def create_ranks_file(
    folder: Path,
    path_index: int,
    bucket: Bucket,
    num_edges: int,
    sides: Sequence[Side],
    digest: str,
    check: Check | None = None,
) -> QueryFile:
    """Make a file in which no query is ranked yet, as `create_query_file` does."""
    return create_query_file(ranks_path(folder, path_index, bucket), num_edges, sides, COLUMNS, digest, check)


def open_ranks_file(folder: Path, path_index: int, bucket: Bucket) -> QueryFile:
    """Open a file that `create_ranks_file` made, for reading and writing.

    Raises:
        StorageError: there is none, or it does not hold what it should.
    """
    return open_query_file(ranks_path(folder, path_index, bucket), COLUMNS)


def find_ranks(folder: Path) -> list[tuple[int, Bucket]]:
    """Return (path index, bucket) of every file of counts in an output directory, in order."""
    names = (path.relative_to(folder / "ranks").as_posix() for path in (folder / "ranks").glob("*/ranks_*_*.h5"))
    matches = filter(None, map(_FILE.fullmatch, names))
    return sorted((int(match[1]), Bucket(int(match[2]), int(match[3]))) for match in matches)
