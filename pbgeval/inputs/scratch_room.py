"""Objects that are copied while they are needed -> of how many partitions a worker may have copies at a time."""

from __future__ import annotations

from attrs import frozen

from pbgeval.errors import StorageError
from pbgeval.inputs.opening import Inputs
from pbgeval.storage.object_folder import RemoteBucket, RemoteRows
from pbgeval.storage.scratch import Scratch


def partition_copies(inputs: Inputs, num_workers: int) -> int | None:
    """Share the scratch folder's limit among the workers of this host.

    Args:
        inputs: opened.
        num_workers: of this host.

    Returns:
        How many copies of partitions each may hold, at least those that a bucket needs; None: none is copied.

    Raises:
        StorageError: it is too little for one bucket of each; says how much is needed.
    """
    sizes = {key: rows.copy.of.size for key, rows in inputs.embeddings.items() if isinstance(rows, RemoteRows)}
    files = [file for of_path in (*inputs.buckets, *inputs.known_buckets) for file in of_path.values()]
    edges = [file.copy for file in files if isinstance(file, RemoteBucket)]
    copies = [*(rows.copy for rows in inputs.embeddings.values() if isinstance(rows, RemoteRows)), *edges]
    if not copies:
        return None
    scratch = copies[0].scratch
    needs = _Needs(
        of_run=scratch.bytes_beside({copy.path for copy in copies}),
        edges=max((copy.of.size for copy in edges), default=0),
        partitions=_most_at_a_time(inputs, sizes),
    )
    needs.check(scratch, num_workers)
    if not sizes:
        return None
    share = (scratch.limit_bytes - needs.of_run) // num_workers - needs.edges
    return share // max(max(sizes.values()), 1)


@frozen
class _Needs:
    """Bytes of copies."""

    of_run: int  # that stay as long as it does
    edges: int  # of the largest bucket
    partitions: int  # that a worker needs at a time

    def check(self, scratch: Scratch, num_workers: int) -> None:
        of_worker = self.edges + self.partitions
        needed = self.of_run + num_workers * of_worker
        if scratch.limit_bytes < needed:
            raise StorageError(
                f"scratch_limit: expected at least {needed} bytes ({self.of_run} for the whole run, {of_worker} for a "
                f"bucket and its partitions of each of {num_workers} workers of a host), got {scratch.limit_bytes}; "
                "raise it or use fewer --workers"
            )


def _most_at_a_time(inputs: Inputs, sizes: dict[tuple[str, int], int]) -> int:
    if "all" in inputs.candidates:  # partitions are read one after the other
        return max(sizes.values(), default=0)
    needed = (inputs.partitions_needed(bucket) for bucket in inputs.all_buckets())
    return max(sum(sizes.get(key, 0) for key in keys) for keys in needed)
