"""Edges as a training loop has them -> those to train on and those held out, in the same form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from attrs import field, frozen
from torch import Tensor

from pbgeval.errors import DataError
from pbgeval.monitor.holdout import EndTypes, hash_edges, held_out_rows, sample_of_rest
from pbgeval.monitor.measure import BucketEdges

E = TypeVar("E")  # (E, 3) of lhs, rel, rhs, or the three columns: tensors or arrays of integers


@frozen(eq=False)
class Split(Generic[E]):
    """The two sides of a bucket's edges; it unpacks to `training, held_out`."""

    training: E
    held_out: E
    training_rows: np.ndarray | None = field(repr=False)  # int64, ascending positions; None: all
    held_out_rows: np.ndarray = field(repr=False)
    held_out_edges: BucketEdges = field(repr=False)
    sampled_edges: BucketEdges = field(repr=False)  # as many training edges, for comparison

    def __iter__(self) -> Iterator[E]:
        return iter((self.training, self.held_out))


def split_edges(edges: E, ends: list[EndTypes], seed: int, threshold: int, *, sample_training: bool) -> Split[E]:
    """Split some edges of a bucket.

    Args:
        edges: in either form; nothing is copied if nothing is held out.
        ends: of each relation (see `hash_edges`).
        seed: of the holdout.
        threshold: hashes below it are held out.
        sample_training: whether as many training edges are kept for comparison.

    Raises:
        DataError: edges of another form.
    """
    columns = _columns(edges)
    none = np.empty(0, np.int64)
    if threshold == 0:
        empty = _bucket_edges(columns, none)
        return Split(edges, _taken(edges, none), None, none, empty, empty)
    hash_E = hash_edges(seed, ends, *columns)
    held_out = held_out_rows(hash_E, threshold)
    is_training_E = np.ones(len(hash_E), bool)
    is_training_E[held_out] = False
    training = np.flatnonzero(is_training_E)
    sampled = sample_of_rest(hash_E, threshold, len(held_out)) if sample_training else none
    return Split(
        _taken(edges, training),
        _taken(edges, held_out),
        training,
        held_out,
        _bucket_edges(columns, held_out),
        _bucket_edges(columns, sampled),
    )


def _columns(edges: Any) -> list[np.ndarray]:  # noqa: ANN401 - what a user hands in
    """Return lhs, rel, rhs as int64 arrays (E,)."""
    parts = edges
    if isinstance(edges, Tensor | np.ndarray):
        if edges.ndim != 2 or edges.shape[1] != 3:
            raise DataError(f"edges: expected (E, 3) of lhs, rel, rhs, or the three columns, got {tuple(edges.shape)}")
        parts = [edges[:, column] for column in range(3)]
    if not isinstance(parts, list | tuple) or len(parts) != 3:
        raise DataError(f"edges: expected (E, 3) of lhs, rel, rhs, or the three columns, got {type(edges).__name__}")
    columns = [part.detach().cpu().numpy() if isinstance(part, Tensor) else np.asarray(part) for part in parts]
    for name, column in zip(("lhs", "rel", "rhs"), columns, strict=True):
        if column.ndim != 1 or column.dtype.kind not in "iu" or len(column) != len(columns[0]):
            found = f"{column.shape} of {column.dtype}"
            raise DataError(f"edges: expected {len(columns[0])} integers as {name}, got {found}")
    return [column.astype(np.int64, copy=False) for column in columns]


def _taken(edges: Any, rows: np.ndarray) -> Any:  # noqa: ANN401 - the same form comes back
    if isinstance(edges, Tensor):
        return edges[torch.from_numpy(rows).to(edges.device)]
    if isinstance(edges, np.ndarray):
        return edges[rows]
    return type(edges)(_taken(part if isinstance(part, Tensor) else np.asarray(part), rows) for part in edges)


def _bucket_edges(columns: list[np.ndarray], rows: np.ndarray) -> BucketEdges:
    lhs, rel, rhs = (torch.from_numpy(column[rows]) for column in columns)
    return BucketEdges(lhs, rel, rhs)
