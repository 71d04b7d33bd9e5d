"""An output directory -> all counts of a bucket's queries, or of all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pbgeval.notation import Bucket, Side
from pbgeval.storage.row_files import find_ranks, open_query_file


class Ranks(NamedTuple):
    num_edges: int
    digest: str
    columns: Mapping[Side, Mapping[str, np.ndarray]]  # int64 (E), by hidden side and name


def read_ranks(folder: Path, path_index: int, bucket: Bucket) -> Ranks:
    file = open_query_file(folder, "ranks", path_index, bucket)
    return Ranks(file.num_rows, file.digest, {side: file.read_side(side, 0, file.num_rows) for side in file.sides})


def counts_of(output: Path) -> dict[str, list[int]]:
    """Return the counts of all queries, by path and bucket, hidden side and column."""
    found = {}
    for place in find_ranks(output):
        for side, columns in read_ranks(output, *place).columns.items():
            found |= {f"{place} {side.label} {name}": values.tolist() for name, values in columns.items()}
    return found
