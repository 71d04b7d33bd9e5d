"""Workers' parts of files of edges: together every row once, whatever each has room for."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pbgeval.cluster.team import Team
from pbgeval.inputs.edges import shares_of_files
from pbgeval.notation import Bucket

FILES = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 7)), max_size=5)  # rows, and rows per chunk


@given(files=FILES, rows_at_a_time=st.lists(st.integers(1, 12), min_size=1, max_size=5))
def test_every_row_is_in_the_part_of_one_worker_and_blocks_follow_chunks(
    files: list[tuple[int, int]], rows_at_a_time: list[int]
) -> None:
    buckets: list[Any] = [
        {Bucket(0, 0): SimpleNamespace(number=number, num_edges=num_edges, rows_per_chunk=rows_per_chunk)}
        for number, (num_edges, rows_per_chunk) in enumerate(files)
    ]
    read: Counter[tuple[int, int]] = Counter()
    of_workers = []
    for rank, rows in enumerate(rows_at_a_time):
        blocks = [*shares_of_files(buckets, Team(rank_in_team=rank, size=len(rows_at_a_time)), rows)]
        of_workers.append(sum(stop - start for _, start, stop in blocks))
        for file, start, stop in blocks:
            of = files[file.number]  # type: ignore[attr-defined]
            assert 0 < stop - start < rows + of[1]
            assert (start % of[1], stop % of[1] * (stop != of[0])) == (0, 0)
            read.update((file.number, row) for row in range(start, stop))  # type: ignore[attr-defined]

    assert read == {(number, row): 1 for number, (num_edges, _) in enumerate(files) for row in range(num_edges)}
    most = max([per_chunk for _, per_chunk in files], default=0)
    assert max(of_workers) - min(of_workers) <= 1 + 2 * most, "parts are equal but for chunks"
