"""Numbers of edges -> work units of bounded size, cut where no chunk is cut."""

from __future__ import annotations

from collections.abc import Iterator

from pbgeval.notation import Bucket, WorkUnit


def window_units(path_index: int, bucket: Bucket, num_edges: int, window_rows: int) -> Iterator[WorkUnit]:
    """Cut a bucket into windows of `window_rows` rows; the last is shorter."""
    for start in range(0, num_edges, window_rows):
        yield WorkUnit(path_index, bucket, start, min(start + window_rows, num_edges))


def slice_units(path_index: int, bucket: Bucket, num_edges: int, num_slices: int) -> Iterator[WorkUnit]:
    """Cut a bucket as PBG hands it to its workers: contiguous slices of ceil(n / workers) edges."""
    if num_edges:
        yield from window_units(path_index, bucket, num_edges, slice_rows(num_edges, num_slices))


def slice_rows(num_edges: int, num_slices: int) -> int:
    """Return the rows of such a slice; the last may be shorter."""
    return -(-num_edges // num_slices)
