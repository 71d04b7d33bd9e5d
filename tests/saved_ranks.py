"""An output directory -> all counts of a bucket's queries, or of all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np

from pbgeval.notation import Bucket, Side
from pbgeval.storage.row_files import find_ranks, query_path


class Ranks(NamedTuple):
    num_edges: int
    digest: str
    columns: Mapping[Side, Mapping[str, np.ndarray]]  # int64 (E), by hidden side and name


def read_ranks(folder: Path, path_index: int, bucket: Bucket) -> Ranks:
    with h5py.File(query_path(folder, "ranks", path_index, bucket)) as file:
        columns = {
            side: {name: column[:] for name, column in file[side.label].items()} for side in Side if side.label in file
        }
        return Ranks(int(file.attrs["num_rows"]), str(file.attrs["digest"]), columns)


def counts_of(output: Path) -> dict[str, list[int]]:
    """Return the counts of all queries, by path and bucket, hidden side and column."""
    found = {}
    for place in find_ranks(output):
        for side, columns in read_ranks(output, *place).columns.items():
            found |= {f"{place} {side.label} {name}": values.tolist() for name, values in columns.items()}
    return found
