"""Edges in an array, in memory or in a .npy file -> what a bucket file is: of a graph in one partition."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from pbgeval.errors import DataError
from pbgeval.notation import Bucket
from pbgeval.storage.array_rows import open_npy
from pbgeval.storage.edges import EdgeBlock
from pbgeval.storage.fingerprint import fingerprint

WHOLE = Bucket(0, 0)
FORM = "integers of shape (edges, 3): lhs, rel, rhs"


@frozen(eq=False)
class ArrayEdges:
    """Edges that are numbers; those of a file are mapped anew wherever they are read."""

    path: Path  # of a file; else what errors call the array
    num_edges: int
    array_E3: np.ndarray | None = None  # None: read from the file
    bucket: Bucket = WHOLE
    has_weight: bool = False
    lhs_featurized: bool = False
    rhs_featurized: bool = False
    rows_per_chunk: int = 1

    def read(self, start: int, stop: int) -> EdgeBlock:
        """Read rows start to stop (exclusive).

        Raises:
            StorageError: the file is gone or damaged.
        """
        if not 0 <= start <= stop <= self.num_edges:
            raise ValueError(f"rows {start} to {stop} of {self.num_edges} edges")
        array_E3 = open_npy(self.path, "iu")[0] if self.array_E3 is None else self.array_E3
        columns = array_E3[start:stop].astype(np.int64).T
        lhs, rel, rhs = (torch.from_numpy(np.ascontiguousarray(column)) for column in columns)
        return EdgeBlock(start, lhs, rel, rhs, None, None, None)

    def fingerprint(self) -> str:
        """Return a short text that changes when the edges do."""
        if self.array_E3 is None:
            return fingerprint(self.path)
        return hashlib.sha256(np.ascontiguousarray(self.array_E3, np.int64).tobytes()).hexdigest()[:32]


Array: TypeAlias = np.ndarray | Tensor | Sequence[Sequence[int]]


@frozen(eq=False)
class Edges:
    """Edges in memory, in place of the paths of a config; each array has integers (edges, 3): lhs, rel, rhs."""

    evaluated: Array
    filter: Sequence[Array] = ()  # known edges, as `filter_paths`: a list of arrays
    train: Sequence[Array] = ()  # as `train_paths`

    def by_name(self) -> dict[str, dict[str, ArrayEdges]]:
        """Return what stands for each key of a config: arrays by names that errors and reports use.

        Raises:
            DataError: an array is not as it should be.
        """
        names = {"edge_paths": "edges", "filter_paths": "filter edges", "train_paths": "training edges"}
        arrays: dict[str, Sequence[Array]] = {
            "edge_paths": [self.evaluated],
            "filter_paths": self.filter,
            "train_paths": self.train,
        }
        named: dict[str, dict[str, ArrayEdges]] = {}
        for key, of_key in arrays.items():
            labels = [f"{names[key]} {index}" if index else names[key] for index in range(len(of_key))]
            named[key] = {label: edges_of_array(array, label) for label, array in zip(labels, of_key, strict=True)}
        return named


def edges_of_array(edges: Array, label: str) -> ArrayEdges:
    """Take edges in memory.

    Raises:
        DataError: they are no integers, or not three to an edge.
    """
    array_E3 = edges.detach().cpu().numpy() if isinstance(edges, Tensor) else np.asarray(edges)
    if not array_E3.size:
        array_E3 = np.empty((0, 3), np.int64)
    _check(array_E3, label)
    return ArrayEdges(Path(label), array_E3.shape[0], array_E3)


def edges_of_file(path: Path) -> ArrayEdges:
    """Open a .npy file of edges.

    Raises:
        StorageError: it is none, or holds no integers.
        DataError: not three to an edge.
    """
    array_E3, _ = open_npy(path, "iu")
    _check(array_E3, str(path))
    return ArrayEdges(path, array_E3.shape[0])


def _check(array_E3: np.ndarray, label: str) -> None:
    if array_E3.ndim != 2 or array_E3.shape[1] != 3 or array_E3.dtype.kind not in "iu":
        raise DataError(f"{label}: expected {FORM}, got {array_E3.dtype} of shape {array_E3.shape}")
