"""Results of passes -> the statistics of this worker, and the sum over all workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from attrs import define, field
from torch import Tensor

from pbgeval.cluster.team import Team
from pbgeval.inputs.protocol import Protocol
from pbgeval.metrics.intervals import SampledQueries
from pbgeval.notation import MAX_PARTITIONS, Side
from pbgeval.ranking.draws import HOST
from pbgeval.ranking.edge_digests import EdgeDigests
from pbgeval.ranking.keys import EdgeColumns, mixed_bits
from pbgeval.ranking.tally import SideResult
from pbgeval.results.document import RunStats, SideOfEdges
from pbgeval.stats.cluster_sums import BY_EDGE, BY_KEY, GROUP_BITS, ClusterSums
from pbgeval.stats.grouped import KEY_FREQUENCY, GroupedStats
from pbgeval.stats.groups import GroupKey, GroupStats
from pbgeval.stats.rank_types import RankType, doubled_rank
from pbgeval.stats.ranks import QueryCounts, RankCounts
from pbgeval.worker.context import WorkerContext
from pbgeval.worker.per_edge import PerEdgeFiles


@define
class SampleTable:
    """Counts query by query, where edges are sampled: intervals and the frequency of keys need them."""

    NUM_COLUMNS: ClassVar[int] = 7  # side, edge path, cluster, key, better, tied, competing
    _rows: list[np.ndarray] = field(factory=list)  # int64 (n, NUM_COLUMNS), in any order

    def add(self, key: GroupKey, cluster_Q: np.ndarray, code_Q: np.ndarray, counts: RankCounts) -> None:
        """Add some queries of a bucket.

        Args:
            key: their edge path, bucket and side.
            cluster_Q: of each query's edge.
            code_Q: a number for each query's key.
            counts: of the headline's figures.
        """
        place = np.broadcast_to([key.side.value, key.path_index], (len(cluster_Q), 2))
        self._rows.append(np.column_stack([place, cluster_Q, code_Q, *(of.numpy() for of in counts.columns)]))

    def queries(self, path_index: int | None = None) -> SampledQueries:
        """Return the queries of one edge path or of all, on worker 0."""
        side_Q, path_Q, cluster_Q, _, *counts = self._columns()
        chosen_Q = slice(None) if path_index is None else path_Q == path_index
        return SampledQueries(RankCounts(*counts).select(chosen_Q), side_Q[chosen_Q], cluster_Q[chosen_Q])

    def add_key_frequencies(self, grouped: GroupedStats) -> None:
        """Group the queries by how many queries of the sample share their key."""
        side_Q, _, _, code_Q, *counts = self._columns()
        for side in Side:
            of_side = side_Q == side.value
            _, key_Q, frequency_K = torch.unique(code_Q[of_side], return_inverse=True, return_counts=True)
            grouped.add(KEY_FREQUENCY, side, frequency_K[key_Q], RankCounts(*counts).select(of_side))

    def gather(self, team: Team) -> None:
        """Move what all workers have added to worker 0."""
        self._rows = team.gather(self._table())

    def pack(self) -> np.ndarray:
        """Return all rows as one array of int64 (n,)."""
        return self._table().reshape(-1)

    def add_packed(self, packed: np.ndarray) -> None:
        """Add the rows of another table."""
        if packed.size:
            self._rows.append(packed.reshape(-1, self.NUM_COLUMNS))

    def _columns(self) -> tuple[Tensor, ...]:
        return torch.from_numpy(np.ascontiguousarray(self._table().T)).unbind(0)

    def _table(self) -> np.ndarray:
        return np.concatenate([np.empty((0, self.NUM_COLUMNS), np.int64), *self._rows])


MAX_WAITING_QUERIES = 1 << 14  # of small units, which are added up together


@define
class Record(RunStats):
    """What a worker has found so far; what waits is added up before anything leaves the record."""

    sample: SampleTable = field(factory=SampleTable)
    digests: EdgeDigests = field(factory=EdgeDigests)
    _waiting: list[SideOfEdges] = field(factory=list, init=False)
    _num_waiting: int = field(default=0, init=False)  # queries
    _thread: ThreadPoolExecutor | None = field(default=None, init=False)  # adds up; None: the caller does
    _adding: Future[None] | None = field(default=None, init=False)  # what the thread is at

    @classmethod
    def empty(cls, protocol: Protocol, device: torch.device = HOST) -> Record:
        """Make a record.

        Args:
            protocol: says what is recorded.
            device: of the vectors: beside a GPU, a thread adds up while its worker asks for the next counts.
        """
        zero = partial(GroupStats.zero, protocol.layout, protocol.groups)
        filtered, in_time = (zero() if is_asked else None for is_asked in (protocol.filtered, protocol.in_time))
        layout = protocol.layout
        record = cls(zero(), filtered, GroupedStats(layout), ClusterSums(layout), in_time=in_time)
        if device.type != "cpu":
            record._thread = ThreadPoolExecutor(1, "statistics")
        return record

    def add_soon(self, part: SideOfEdges) -> None:
        """Add queries, now or together with those of further edges."""
        self._waiting.append(part)
        self._num_waiting += part.result.counts.raw.num_queries
        if self._num_waiting >= MAX_WAITING_QUERIES:
            self._begin_to_add()

    def _begin_to_add(self) -> None:
        """Add what waits, after what is being added."""
        self._finish_adding()
        if self._thread is None:
            self.add(self._waiting)
        else:
            self._adding = self._thread.submit(self.add, self._waiting)
        self._waiting, self._num_waiting = [], 0

    def _finish_adding(self) -> None:
        if self._adding is not None:
            self._adding.result()
            self._adding = None

    def _add_waiting(self) -> None:
        self._begin_to_add()
        self._finish_adding()

    def sum_of_reciprocal_ranks(self, counts: QueryCounts, rank_type: RankType) -> float:
        """Return the sum over queries that were just added, by the headline's figures."""
        headline, times = self.headline_counts(counts), None
        if headline is counts.raw and headline.num_queries >= MAX_WAITING_QUERIES:  # they were added alone
            headline, times = headline.each_once()
        reciprocal_Q = 2.0 / doubled_rank(headline.better_Q.numpy(), headline.tied_Q.numpy(), rank_type)
        return float(reciprocal_Q.sum() if times is None else reciprocal_Q @ times)

    def pack(self) -> list[np.ndarray]:
        """Return everything as arrays of int64 (n,), for `add_packed`."""
        self._add_waiting()
        parts = []
        for groups in self._group_stats:
            table_GD = groups.table_GD.numpy()
            rows = np.flatnonzero(table_GD.any(axis=1))
            parts += [rows, table_GD[rows].reshape(-1), groups.pack_sparse()]
        return [*parts, self.grouped.pack(), self.clusters.pack(), self.sample.pack(), self.digests.pack()]

    def add_packed(self, arrays: Sequence[np.ndarray]) -> None:
        """Add what another record packed."""
        self._finish_adding()
        for number, groups in enumerate(self._group_stats):
            rows, sums, sparse = arrays[3 * number : 3 * number + 3]
            groups.table_GD[torch.from_numpy(rows)] += torch.from_numpy(sums).view(len(rows), groups.table_GD.shape[1])
            groups.add_sparse(sparse)
        grouped, clusters, sample, digests = arrays[-4:]
        self.grouped.add_packed(grouped)
        self.clusters.add_packed(clusters)
        self.sample.add_packed(sample)
        self.digests.add_packed(digests)

    def share_pools(self, share: float) -> None:
        """Keep a share of the scores of a sample of edges."""
        self._add_waiting()  # scores of the last round, too
        for groups in self._group_stats:
            groups.pools.update({key: pool.share(share) for key, pool in groups.pools.items()})

    @property
    def _group_stats(self) -> list[GroupStats]:
        return [groups for groups in (self.raw, self.filtered, self.in_time) if groups is not None]

    def sum_over(self, team: Team) -> None:
        """Add the records of all workers; worker 0 has the sum, the others' are then of no use."""
        self._add_waiting()
        if team.size == 1:
            return
        for groups in self._group_stats:
            team.sum_(groups.table_GD)
            for part in team.gather(groups.pack_sparse())[1:]:
                groups.add_sparse(part)
        for part in team.gather(self.grouped.pack())[1:]:
            self.grouped.add_packed(part)
        for part in team.gather(self.clusters.pack())[1:]:
            self.clusters.add_packed(part)
        for part in team.gather(self.digests.pack())[1:]:
            self.digests.add_packed(part)


def add_side(
    context: WorkerContext,
    record: Record,
    files: PerEdgeFiles,
    key: GroupKey,
    row_Q: np.ndarray,
    edges: EdgeColumns,
    result: SideResult,
    groups: Mapping[str, Tensor],
) -> None:
    """Add the queries of one side of some edges of a bucket to a record, and write the files that hold them.

    Args:
        context: of this worker.
        record: of this worker.
        files: of this worker.
        key: edge path, bucket and side.
        row_Q: row of each query's edge in the bucket's file, in the order of the result.
        edges: the same edges.
        result: what was found.
        groups: group of each query, by name of the dimension.
    """
    code_Q = None if context.inputs.featurized else context.numberer.key_codes(key.side, edges)
    cluster_Q = context.evaluated.clusters(key.path_index, key.bucket, row_Q)
    if cluster_Q is not None and code_Q is not None:  # featurized types have no samples
        record.sample.add(key, cluster_Q, code_Q, record.headline_counts(result.counts))
    record.add_soon(SideOfEdges(key, result, groups, clusters_of(key, row_Q, code_Q)))
    files.write_counts(key, row_Q, result.counts)


def clusters_of(key: GroupKey, row_Q: np.ndarray, code_Q: np.ndarray | None) -> dict[str, np.ndarray]:
    """Return the group of clusters of each query by its edge and, where entities have numbers, by its key."""
    place = np.array([(key.path_index * MAX_PARTITIONS + key.bucket.lhs) * MAX_PARTITIONS + key.bucket.rhs])
    codes = {BY_EDGE: mixed_bits(place).view(np.int64) + row_Q}
    if code_Q is not None:
        codes[BY_KEY] = code_Q
    shift = np.uint64(64 - GROUP_BITS)
    return {by: (mixed_bits(code) >> shift).view(np.int64) for by, code in codes.items()}
