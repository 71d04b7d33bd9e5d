"""Units of buckets, one after the other: this worker's part where candidates are sampled or of one partition."""

from __future__ import annotations

import math
import time
from collections import Counter as Multiset
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from operator import attrgetter
from pathlib import Path
from statistics import NormalDist

import numpy as np
import torch
from attrs import define, field, frozen

from pbgeval.cluster.liveness import Counters, Watch
from pbgeval.cluster.resources import anonymous_bytes, resident_bytes
from pbgeval.inputs.dispatch import DispatchPlan, PartitionCache, UnitQueue, make_dispatch_plan
from pbgeval.inputs.memory_check import room_for_partitions
from pbgeval.inputs.partitions import PartitionHolder, check_held
from pbgeval.metrics.breakdowns import GroupClasses
from pbgeval.metrics.summary import SortedPools, summarise
from pbgeval.notation import Bucket, Side, WorkUnit, as_slice
from pbgeval.progress import BucketReport, UnitReport
from pbgeval.ranking.draws import DegreeWeights
from pbgeval.ranking.edge_digests import EdgeDigests
from pbgeval.ranking.keys import EdgeColumns
from pbgeval.ranking.relations import RelationCandidates
from pbgeval.ranking.settings import CandidateSets, Competition, EdgeOrigin, Tables
from pbgeval.ranking.tally import SideResult
from pbgeval.results.output import write_incomplete
from pbgeval.stats.groups import GroupKey
from pbgeval.stats.rank_types import RankType
from pbgeval.storage.edges import EdgeBlock
from pbgeval.worker.context import COMPUTING, LOADING, QUEUE, READING, WRITING, WorkerContext
from pbgeval.worker.dimensions import QueryDimensions, degree_weights, group_classes, query_dimensions
from pbgeval.worker.journal import Pace, share_names
from pbgeval.worker.known import KeyFrequencies, KnownOfBuckets, candidate_sets, count_keys, relation_candidates
from pbgeval.worker.per_edge import PerEdgeFiles
from pbgeval.worker.record import Record, add_side

# Units that different workers finish -> one report of each bucket, from the worker that finishes its last unit.

MIN_UNITS = 5  # an interval from fewer would be too narrow
Z_95 = NormalDist().inv_cdf(0.975)
MILLION = 1_000_000  # seconds and reciprocal ranks are added as whole millionths


@define(eq=False)
class BucketProgress:
    """Sums over the units of each bucket of each edge path, in counters that all workers share.

    A bucket of one unit needs no counter.
    """

    units: Iterable[WorkUnit]  # all that will be done, by all workers
    counter: Counters
    prefix: str  # of the names of counters
    edges_of: Callable[[WorkUnit], int] = attrgetter("num_edges")  # how many of a unit are evaluated
    _num_units: Multiset[tuple[object, ...]] = field(init=False)
    _num_edges: Multiset[tuple[object, ...]] = field(init=False)
    num_edges: int = field(init=False)  # all that will be evaluated

    def __attrs_post_init__(self) -> None:
        self._num_units, self._num_edges = Multiset(unit[:2] for unit in self.units), Multiset()
        for unit in self.units:
            self._num_edges[unit[:2]] += self.edges_of(unit)
        self.num_edges = self._num_edges.total()

    def running(self, unit: WorkUnit, mean_reciprocal_rank: float | None) -> tuple[int, float | None, float | None]:
        """Note the unit's mean; return the edges done by all workers, their mean, and half its 95% interval.

        Units are clusters of about one size, drawn from all: so the interval has no width when all are done.
        """
        num_edges, mean = self.edges_of(unit), mean_reciprocal_rank or 0.0
        sums = {"edges": num_edges, "ranks": MILLION * num_edges * mean, "squares": MILLION * num_edges * mean**2}
        totals = {name: self.counter.add(f"{self.prefix}/{name}", round(value)) for name, value in sums.items()}
        num_units, done = self.counter.add(f"{self.prefix}/units", 1), totals["edges"]
        if not done:
            return 0, None, None
        average, square = (totals[name] / MILLION / done for name in ("ranks", "squares"))
        variance = max(square - average**2, 0.0) * max(1.0 - done / self.num_edges, 0.0)
        return done, average, None if num_units < MIN_UNITS else Z_95 * math.sqrt(variance / (num_units - 1))

    def finished(self, unit: WorkUnit, seconds: float, mean_reciprocal_rank: float | None) -> BucketReport | None:
        """Note a finished unit; return the report of its bucket if no unit of it is left."""
        num_units, num_edges = self._num_units[unit[:2]], self._num_edges[unit[:2]]
        if num_units == 1:
            return BucketReport(num_edges, seconds, mean_reciprocal_rank)
        name = f"{self.prefix}/bucket/{unit.path_index}/{unit.bucket.lhs}/{unit.bucket.rhs}"
        self.counter.add(f"{name}/seconds", round(MILLION * seconds))
        self.counter.add(f"{name}/ranks", round(MILLION * (mean_reciprocal_rank or 0.0) * self.edges_of(unit)))
        # Counted after its sums: the worker that counts the last unit reads the sums of all.
        if self.counter.add(f"{name}/units", 1) < num_units:
            return None
        total_seconds, total_ranks = (self.counter.add(f"{name}/{of}", 0) / MILLION for of in ("seconds", "ranks"))
        return BucketReport(num_edges, total_seconds, total_ranks / max(num_edges, 1))


# The journal of a run that goes on -> metrics.json with `complete: false` and the metrics so far (worker 0).
#
# Where all entities compete, no query has met all candidates before the end: fewer candidates flatter, so there are no
# metrics before it, only how far the run is.

MIN_SECONDS = 10.0  # between two reports


@define(eq=False)
class InterimReport:
    """What all workers have written to the journal, as worker 0 has read it."""

    context: WorkerContext
    _record: Record
    _entries: set[str] = field(factory=set, init=False)
    _done: set[str] = field(factory=set, init=False)
    _pace: Pace = field(factory=Pace, init=False)

    def write_if_due(self) -> None:
        """Write metrics.json if the last time is long enough ago for what it takes.

        Raises:
            IncompleteError: another run has taken over.
            OutputError: it cannot be written.
        """
        if self.context.team.rank_in_team != 0 or not self._pace.is_due(MIN_SECONDS):
            return
        work, config = self.context.work, self.context.inputs.config
        with self._pace.counted():
            self._read()
            groups = self._record.headline
            pools = SortedPools.from_groups(groups, work.protocol.auc_samples())
            summary = summarise(groups, pools, work.protocol.sides, config.selection, with_loss=config.compute_loss)
            facts = {
                "filter": "filtered" if work.protocol.filtered else "raw",
                "headline": config.headline,
                "num_edges": summary.num_edges,
                "num_queries": summary.num_queries,
                "metrics": summary.metrics,
                "intervals": summary.intervals,
                "progress": {"units_done": len(self._done), "units": len(work.protocol.units)},
            }
            # A run that has taken over meanwhile, from an owner that was cut off, may have finished.
            write_incomplete(work.output, work.provenance, facts, self.context.journal.journal.check)

    def _read(self) -> None:
        """Add the entries that have come since the last time."""
        journal, part = self.context.journal.journal, self.context.journal.part
        new = sorted({*journal.entries()} - self._entries)
        self._entries.update(new)
        for units, arrays in journal.readable(new):
            if not share_names(self._done, units) and all(unit.startswith(part) for unit in units):
                self._done.update(units)
                self._record.add_packed(arrays)


EDGES_PER_ROW_LOADED = 0.1  # the time of loading a row, in edges; it decides only in which order units are handed out


@contextmanager
def claimed_units(context: WorkerContext, record: Record, files: PerEdgeFiles) -> Iterator[ClaimedUnits]:
    """Give the units of buckets that this worker claims. Every worker takes part; a fault of one stops all.

    Args:
        context: of this worker.
        record: in the end it has what was found in all units, those of the journal too.
        files: results of single edges go there.
    """
    team, prefix, journal = context.team, context.journal.part, context.journal
    results = _UnitResults.begin(context, record, files)
    done = journal.look(team, context.work.observer, share_names)
    watch = team.watch(prefix)
    context.work.observer.phase("scoring")
    with context.collectively(watch):
        plan, room, reads_ahead = _plan(context, done)
        progress = BucketProgress(plan.units, team, prefix, lambda unit: context.evaluated.num_between(*unit))
        journal.take(record.add_packed)
        queue = UnitQueue(plan, team, team.rank_in_team, prefix)
        cache = PartitionCache(queue, room)
        holder = PartitionHolder(context.inputs, context.global_embeddings, context.device, cache, reads_ahead)
        with journal.saved_at_signals(results.write), closing(holder) as partitions:
            yield ClaimedUnits(context, queue, partitions, results, progress, watch)
        with context.time_use.spent_on(WRITING):
            results.write(at_end=True)


@frozen(eq=False)
class UnitEdges:
    """The edges of a unit, and what they compete with."""

    block: EdgeBlock
    origin: EdgeOrigin
    columns: EdgeColumns  # by number of the entity, whatever its partition
    competition: Competition
    known: EdgeDigests | None = None  # of all known answers of the bucket, in its first unit


@define(eq=False)
class ClaimedUnits:
    """The units of this worker, one after the other: what they are ranked with, and what was found in them."""

    context: WorkerContext
    queue: UnitQueue
    partitions: PartitionHolder
    results: _UnitResults
    progress: BucketProgress
    watch: Watch
    _index: int = field(default=0, init=False)  # of the unit that was claimed last
    _since: float = field(default=0.0, init=False)  # when this unit was claimed, or an earlier one was done

    @property
    def num_loads(self) -> int:
        """How many partitions were read."""
        return self.partitions.num_loads

    @property
    def relations(self) -> RelationCandidates | None:
        """The relations that may compete where one is hidden; None: none is."""
        return self.results.relations

    def __iter__(self) -> Iterator[WorkUnit]:
        """Claim units until none is left, or another worker has met a fault.

        Each is ranked meanwhile or later: it is done when what was found is added.
        """
        context, journal, time_use = self.context, self.context.journal, self.context.time_use
        limit = context.inputs.config.max_memory_bytes
        claim_next = time_use.spent_on(QUEUE)(self.queue.claim_next)
        while (index := claim_next()) is not None:
            unit, self._since, self._index = self.queue.plan.units[index], time.perf_counter(), index
            with time_use.spent_on(WRITING):
                journal.begin(unit_name(unit))
            with time_use.spent_on(COMPUTING):
                yield unit
            if limit is not None:
                check_held(limit, anonymous_bytes())
            with time_use.spent_on(QUEUE):
                self.watch.tick()
                if context.team.add("faults", 0):
                    return  # there will be no result

    def load_partitions(self, unit: WorkUnit) -> Tables:
        """Return the partitions that a unit needs; those of earlier units may be dropped."""
        with self.context.time_use.spent_on(LOADING):
            tables = self.partitions.enter(self._index, unit.bucket)
            self.partitions.read_ahead()
        return tables

    def add(self, unit: WorkUnit, edges: UnitEdges, found: Mapping[Side, SideResult]) -> None:
        """Add what was found about the queries of a unit, which is done then."""
        context, journal = self.context, self.context.journal
        with journal.changing():
            mean_reciprocal_rank = self.results.add(unit, edges, found)
            with context.time_use.spent_on(WRITING):
                if journal.finish(unit_name(unit)):
                    self.results.write()
        with context.time_use.spent_on(QUEUE):
            now = time.perf_counter()
            report = _unit_report(context, self.progress, unit, mean_reciprocal_rank, now - self._since)
            self._since = now
            context.work.observer.unit_finished(report)

    def group_classes(self) -> GroupClasses:
        """Return the classes of relations; every worker takes part."""
        with self.context.collectively():
            return group_classes(self.context, self.results.dimensions.training)


def _plan(context: WorkerContext, done: Collection[str]) -> tuple[DispatchPlan, int, bool]:
    """Plan the units left, how many partitions a worker holds, and whether it reads ahead: alike on every worker."""
    inputs, numbering, device = context.inputs, context.numberer.numbering, context.device
    num_sharing = context.team.host_size if device.type == "cpu" else context.num_sharing_gpu
    with context.collectively():
        own_room = room_for_partitions(
            inputs,
            context.work.protocol,
            resident_bytes(),
            device,
            num_sharing,
            torch.get_num_threads(),
            context.held_bytes,
        )
    room, reads_ahead = min(context.team.gather_objects(own_room))
    # Those of which the sample drew an edge: a sample is the same on every worker, and so is the plan.
    units = [
        unit
        for unit in context.work.protocol.units
        if context.evaluated.num_between(*unit) and unit_name(unit) not in done
    ]
    load_cost = EDGES_PER_ROW_LOADED * numbering.num_entities / max(len(numbering.slots), 1)
    return (
        make_dispatch_plan(units, inputs.partitions_needed, context.team.size, room=room, load_cost=load_cost),
        room,
        reads_ahead,
    )


@define(eq=False)
class _UnitResults:
    """What a worker's units share, and its results: those that no journal entry holds yet, and the total."""

    context: WorkerContext
    total: Record
    files: PerEdgeFiles
    sets: CandidateSets
    relations: RelationCandidates | None  # None: no relation is hidden
    dimensions: QueryDimensions
    weights: dict[tuple[str, int], DegreeWeights]  # by type and partition; none where nothing is drawn by degree
    frequencies: KeyFrequencies | None  # None where keys are not counted
    known: KnownOfBuckets | None  # None: nothing is filtered
    first_units: Mapping[Bucket, WorkUnit]  # that are evaluated; none where nothing is filtered
    pending: Record
    interim: InterimReport | None  # None: of a sample, whose figures need all of it

    @classmethod
    def begin(cls, context: WorkerContext, record: Record, files: PerEdgeFiles) -> _UnitResults:
        """Read what units need beside their edges and partitions; every worker takes part."""
        protocol = context.work.protocol
        is_sample = context.evaluated.sample is not None
        dimensions = query_dimensions(context, np.arange(context.numberer.numbering.num_entities))
        sets = candidate_sets(context, np.arange(context.inputs.num_relations))
        return cls(
            context,
            record,
            files,
            sets=sets,
            relations=relation_candidates(context, sets),
            dimensions=dimensions,
            weights=degree_weights(context, dimensions.training),
            frequencies=count_keys(context) if protocol.counts_keys and not is_sample else None,
            known=KnownOfBuckets(context) if protocol.filtered else None,
            first_units={
                unit.bucket: unit
                for unit in reversed(protocol.units if protocol.filtered else ())
                if context.evaluated.num_between(*unit)
            },
            pending=Record.empty(protocol, context.device),
            interim=None if is_sample else InterimReport(context, Record.empty(protocol)),
        )

    def read(self, unit: WorkUnit) -> UnitEdges:
        """Read the edges of a unit, number their entities, and look up what competes with them."""
        context = self.context
        file = context.inputs.buckets[unit.path_index][unit.bucket]
        with context.time_use.spent_on(READING):
            edges = file.read(unit.start, unit.stop)
        if context.inputs.featurized:
            nowhere = np.zeros(unit.num_edges, np.int64)
            columns = EdgeColumns(
                nowhere, edges.rel.numpy(), nowhere, None if edges.time is None else edges.time.numpy()
            )
            competition = Competition()
        else:
            columns = context.numberer.numbered(file, edges)
            competition = self._competition(unit, columns)
        origin = EdgeOrigin(str(file.path), (unit.path_index, unit.bucket))
        is_first = self.known is not None and unit == self.first_units[unit.bucket]
        known = self.known.digests(unit.bucket) if self.known is not None and is_first else None
        return UnitEdges(edges, origin, columns, competition, known)

    def add(self, unit: WorkUnit, edges: UnitEdges, found: Mapping[Side, SideResult]) -> float | None:
        """Add what was found about the queries of a unit; return their mean reciprocal rank over heads and tails."""
        context = self.context
        context.journal.journal.check()
        for side, result in found.items():
            rows_Q = result.rows_Q.numpy()
            of_queries = edges.columns.select(as_slice(rows_Q))
            frequency_Q = None if self.frequencies is None else self.frequencies.look_up(side, unit.bucket, of_queries)
            groups = self.dimensions.groups_of(side, of_queries, frequency_Q)
            key = GroupKey(unit.path_index, unit.bucket, side)
            add_side(context, self.pending, self.files, key, unit.start + rows_Q, of_queries, result, groups)
        if not context.inputs.featurized:
            rows, columns, with_time = np.arange(unit.start, unit.stop), edges.columns, context.inputs.uses_time
            if context.evaluated.is_part:
                kept = context.evaluated.positions(columns, unit.path_index, unit.bucket, unit.start)
                rows, columns = rows[kept], columns.select(kept)
            self.pending.digests.add_edges(unit.path_index, unit.bucket, rows, columns, with_time=with_time)
        if edges.known is not None:
            self.pending.digests.add_packed(edges.known.pack())
        of_ends = [result.counts for side, result in found.items() if side.is_in("both")]
        num_queries = sum(counts.raw.num_queries for counts in of_ends)
        rank_type = RankType(context.inputs.config.headline)
        total = sum(self.pending.sum_of_reciprocal_ranks(counts, rank_type) for counts in of_ends)
        return total / num_queries if num_queries else None

    def _competition(self, unit: WorkUnit, columns: EdgeColumns) -> Competition:
        """Decide which edges of a unit are evaluated, and which entities do not compete."""
        context = self.context
        bucket = unit.bucket
        rows_E = chunks = None
        evaluated, inputs, numbering = context.evaluated, context.inputs, context.numberer.numbering
        sampled = evaluated.drawn(unit.path_index, bucket)
        if sampled is not None and sampled.chunks:
            # Chunks are cut from all that restrictions leave; the sample says which of them are evaluated.
            rows_E = torch.from_numpy(evaluated.kept(columns))
            chunks = sampled.chunks[unit.start]
        elif sampled is not None or evaluated.restrictions.drops_edges:
            rows_E = torch.from_numpy(evaluated.positions(columns, unit.path_index, bucket, unit.start))
        return Competition(
            rows_E=rows_E,
            chunks=chunks,
            filters=[] if self.known is None else self.known.select_unit(bucket, columns),
            knows_past_alone=inputs.config.known_until is not None,
            sets=None if self.sets.unconstrained else self.sets,
            cluster_E=None if sampled is None else sampled.clusters_between(unit.start, unit.stop),
            pool_share=context.pool_share,
            first_id=lambda name, side: numbering.offset(name, inputs.partition_of(name, side, bucket)),
            degree_weights=lambda name, side: self.weights[name, inputs.partition_of(name, side, bucket)],
        )

    def write(self, *, at_end: bool = False) -> None:
        """Write what is pending to the journal, and add it to the total."""
        with self.context.journal.pace.counted():
            arrays = self.pending.pack()
            self.files.sync()  # an entry vouches for the rows of its units
            self.context.journal.write(arrays, at_end=at_end)
            self.total.add_packed(arrays)
            self.pending = Record.empty(self.context.work.protocol, self.context.device)
        if self.interim is not None and not at_end:
            self.interim.write_if_due()


def unit_name(unit: WorkUnit) -> str:
    """Return a unit as the journal calls it."""
    return f"{unit.path_index}:{unit.bucket.lhs}_{unit.bucket.rhs}:{unit.start}-{unit.stop}"


def num_edges_of_name(name: str) -> int:
    """Return how many edges the unit has that the journal calls so."""
    start, stop = name.rpartition(":")[2].split("-")
    return int(stop) - int(start)


def _unit_report(
    context: WorkerContext, progress: BucketProgress, unit: WorkUnit, mean_reciprocal_rank: float | None, seconds: float
) -> UnitReport:
    config, num_edges = context.inputs.config, context.evaluated.num_between(*unit)
    done, average, half_width = progress.running(unit, mean_reciprocal_rank)
    total = context.inputs.num_edges if context.evaluated.sample is None else context.evaluated.num_sampled
    return UnitReport(
        edge_path=Path(config.edge_paths[unit.path_index]).name,
        bucket=unit.bucket,
        num_edges=num_edges,
        seconds=seconds,
        edges_done=total - progress.num_edges + done,  # the journal has the others
        edges_total=total,
        mean_reciprocal_rank=average,
        half_width=None if context.evaluated.sample is not None else half_width,  # of buckets: none is drawn
        finished_bucket=progress.finished(unit, seconds, mean_reciprocal_rank),
    )
