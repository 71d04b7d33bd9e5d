"""An output directory -> all counts of a bucket's queries."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pbgeval.notation import Bucket, Side
from pbgeval.storage.row_files import open_query_file


class Ranks(NamedTuple):
    num_edges: int
    digest: str
    columns: Mapping[Side, Mapping[str, np.ndarray]]  # int64 (E), by hidden side and name


def read_ranks(folder: Path, path_index: int, bucket: Bucket) -> Ranks:
    file = open_query_file(folder, "ranks", path_index, bucket)
    return Ranks(file.num_edges, file.digest, {side: file.read(side, 0, file.num_edges) for side in file.sides})
