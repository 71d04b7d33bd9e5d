"""Folder of given candidates -> for each bucket file, the candidates of each of its queries.

`candidates_<l>_<r>.h5` holds `head` and `tail`, integers (edges, k): rows of entities in their partition, one row per
row of `edges_<l>_<r>.h5`. `head_partition` and `tail_partition`, of the same shapes, say which partition; where they
are absent it is the bucket's own of that side. An entity of a type with one partition is in partition 0, whatever
stands there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

import numpy as np
from attrs import frozen

from pbgeval.errors import DataError, Faults, StorageError
from pbgeval.notation import Bucket, Side
from pbgeval.storage.edges import EdgeSource
from pbgeval.storage.hdf5 import Hdf5Dataset, Hdf5File, open_hdf5
from pbgeval.storage.text import one_line


@frozen
class CandidateFile:
    """A file whose header has been checked; `find_candidate_files` makes them."""

    path: Path
    bucket: Bucket
    num_edges: int
    num_candidates: Mapping[Side, int]  # k, of each side that is ranked
    with_partition: frozenset[Side]  # sides that say a partition

    def read(
        self, side: Side, row_E: np.ndarray, type_E: np.ndarray, sizes: Sequence[Sequence[int]]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Read some rows; those between the first and the last of them pass through memory.

        Args:
            side: the side that is hidden.
            row_E: rows of the file, int64, increasing.
            type_E: int64 (E): the type of each edge's entity on that side, an index into `sizes`.
            sizes: of each type, the number of entities of each of its partitions.

        Returns:
            The candidates' rows in their partitions, int64 (E, K), and these partitions, int64 (E, K).

        Raises:
            StorageError: the file is gone, damaged, or no longer what its header was.
            DataError: an id or a partition is out of range.
        """
        shape = (self.num_edges, self.num_candidates[side])
        with open_hdf5(self.path) as file:
            ids_EK = _read_rows(file, side.label, shape, row_E)
            partitions_EK = (
                _read_rows(file, f"{side.label}_partition", shape, row_E)
                if side in self.with_partition
                else np.full_like(ids_EK, side.pick(*self.bucket))
            )
        num_partitions = np.array([len(partitions) for partitions in sizes], np.int64)
        partition_sizes = np.array([*zip_longest(*sizes, fillvalue=0)], np.int64).T
        partitions_EK[num_partitions[type_E] == 1] = 0
        counts_EK = np.broadcast_to(num_partitions[type_E, None], ids_EK.shape)
        self._check(f"{side.label}_partition", row_E, partitions_EK, counts_EK, "a partition")
        self._check(
            side.label, row_E, ids_EK, partition_sizes[type_E[:, None], partitions_EK], "a row of its partition"
        )
        return ids_EK, partitions_EK

    def _check(self, name: str, row_E: np.ndarray, values_EK: np.ndarray, limits_EK: np.ndarray, what: str) -> None:
        wrong_EK = (values_EK < 0) | (values_EK >= limits_EK)
        if wrong_EK.any():
            row, column = (int(index[0]) for index in np.nonzero(wrong_EK))
            raise DataError(
                f"{self.path}: dataset {name}: row {int(row_E[row])}, column {column}: expected {what}, 0 to"
                f" {int(limits_EK[row, column]) - 1}, found {int(values_EK[row, column])};"
                " check that the candidates belong to this graph"
            )


def candidates_path(folder: Path, bucket: Bucket) -> Path:
    """Return the path of the candidates of a bucket's edges."""
    return folder / f"candidates_{bucket.lhs}_{bucket.rhs}.h5"


def find_candidate_files(
    candidate_path: Path, edge_paths: Sequence[Mapping[Bucket, EdgeSource]], sides: Sequence[Side]
) -> tuple[dict[Bucket, CandidateFile], ...]:
    """Open the header of the candidates of every bucket that has edges.

    Args:
        candidate_path: the folder; it has a folder per edge path (`0`, `1`, ...), or holds the files of the only one.
        edge_paths: the bucket files of each edge path.
        sides: those that are ranked, whose candidates must be there.

    Returns:
        The files of each edge path by bucket, those without edges left out.

    Raises:
        StorageError: a folder, file or dataset is missing, of another form, or not aligned with the edges.
    """
    faults = Faults()
    found: list[dict[Bucket, CandidateFile]] = []
    for index, buckets in enumerate(edge_paths):
        has_own = (candidate_path / str(index)).is_dir()
        folder = candidate_path / str(index) if has_own else candidate_path
        if len(edge_paths) > 1 and not has_own:
            faults.append(
                f"{candidate_path}: expected a folder of candidates per edge path, 0 to {len(edge_paths) - 1}, as"
                f" edge_paths has {len(edge_paths)}, found no folder {index}; move the files of edge_paths[{index}]"
                " there"
            )
            continue
        files: dict[Bucket, CandidateFile] = {}
        for bucket, edges in buckets.items():
            with faults.noted(StorageError):
                if edges.num_edges:
                    files[bucket] = _read_header(candidates_path(folder, bucket), edges, sides)
        found.append(files)
    faults.raise_any(StorageError)
    return tuple(found)


def _read_header(path: Path, edges: EdgeSource, sides: Sequence[Side]) -> CandidateFile:
    num_candidates: dict[Side, int] = {}
    with_partition: set[Side] = set()
    with open_hdf5(path) as file:
        for side in sides:
            shape = _matrix_shape(file.require(side.label))
            if shape[0] != edges.num_edges:
                raise StorageError(
                    f"{path}: dataset {side.label}: not aligned with {edges.path}: expected {edges.num_edges} rows, one"
                    f" per edge, found {shape[0]}; write the candidates of these edges, in their order"
                )
            num_candidates[side] = shape[1]
            partitions = file.find(f"{side.label}_partition")
            if partitions is not None:
                with_partition.add(side)
                if (found := _matrix_shape(partitions)) != shape:
                    raise StorageError(
                        f"{path}: dataset {partitions.name}: expected shape {shape} as {side.label}, found {found}"
                    )
    return CandidateFile(path, edges.bucket, edges.num_edges, num_candidates, frozenset(with_partition))


def _matrix_shape(dataset: Hdf5Dataset) -> tuple[int, int]:
    shape, dtype = dataset.shape or (), dataset.dtype
    for is_wrong, fault in (
        (len(shape) != 2, f"two dimensions (edges, candidates), found shape {dataset.shape}"),
        (shape[1:] == (0,), f"at least one candidate per edge, found shape {shape}"),
        (dtype.kind not in "iu", f"integers, found {one_line(dtype)}"),
    ):
        if is_wrong:
            raise StorageError(f"{dataset.file.path}: dataset {dataset.name}: expected {fault}; write the file again")
    return int(shape[0]), int(shape[1])


def _read_rows(file: Hdf5File, name: str, shape: tuple[int, int], row_E: np.ndarray) -> np.ndarray:
    dataset = file.require(name)
    if (found := _matrix_shape(dataset)) != shape:
        raise StorageError(
            f"{file.path}: dataset {name}: expected shape {shape} as at the start, found {found};"
            " it changed during the run"
        )
    start, stop = (int(row_E[0]), int(row_E[-1]) + 1) if len(row_E) else (0, 0)
    stored = np.empty((stop - start, shape[1]), dataset.dtype)
    dataset.read_into(stored, start)
    return np.asarray(stored[row_E - start], np.int64)
