"""Counts of queries -> the files that hold them edge by edge (`save_ranks`)."""

from __future__ import annotations

import numpy as np
from attrs import frozen

from pbgeval.ranking import QueryCounts
from pbgeval.stats.groups import GroupKey
from pbgeval.storage.ranks import RanksFile, create_ranks_file, open_ranks_file
from pbgeval.worker.work import Bench, in_step


@frozen(eq=False)
class PerEdgeFiles:
    """The per-edge files of a run that this worker writes to."""

    ranks: dict[tuple[int, tuple[int, int]], RanksFile]  # by edge path and bucket; empty: not asked for

    def write_counts(self, key: GroupKey, row_Q: np.ndarray, counts: QueryCounts) -> None:
        """Write the counts of some queries of a bucket, in any order of rows.

        Raises:
            OutputError: the file cannot be written.
        """
        file = self.ranks.get((key.path_index, key.bucket))
        if file is None or not len(row_Q):
            return
        order = np.argsort(row_Q)
        raw, known = counts.raw, counts.known
        columns = {
            "better": raw.better_Q,
            "tied": raw.tied_Q,
            "num_candidates": raw.competing_Q + 1,
            "excluded_better": known.better_Q,
            "excluded_tied": known.tied_Q,
            "num_excluded": known.competing_Q,
        }
        file.write(key.side, row_Q[order], {name: values.numpy()[order] for name, values in columns.items()})

    def close(self) -> None:
        """Wait until everything is on the disk."""
        for file in self.ranks.values():
            file.sync()


def open_per_edge_files(bench: Bench) -> PerEdgeFiles:
    """Make the files that the config asks for, and open them on every worker; every worker takes part."""
    if not bench.inputs.config.save_ranks:
        return PerEdgeFiles({})
    folder, digest = bench.work.output, bench.work.digest
    buckets = [(path_index, file) for path_index, files in enumerate(bench.inputs.buckets) for file in files.values()]

    def create() -> None:
        if bench.team.rank_in_team == 0:
            for path_index, file in buckets:
                create_ranks_file(folder, path_index, file.bucket, file.num_edges, bench.settings.sides, digest)

    in_step(bench.team, create)
    return PerEdgeFiles(
        {(path_index, file.bucket): open_ranks_file(folder, path_index, file.bucket) for path_index, file in buckets}
    )
