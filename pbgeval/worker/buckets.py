"""Units of buckets, one after the other: this worker's part where candidates are sampled or of one partition."""

from __future__ import annotations

import time
from collections.abc import Collection
from functools import reduce
from operator import add
from pathlib import Path

import numpy as np
import torch
from attrs import define, frozen

from pbgeval.candidates.constraints import CandidateSets
from pbgeval.distributed.resources import anonymous_bytes, available_bytes, resident_bytes
from pbgeval.distributed.watch import Watch
from pbgeval.inputs.memory import PartitionRoom, check_held, plan_room
from pbgeval.inputs.partitions import PartitionHolder
from pbgeval.known.keys import KnownBlock
from pbgeval.metrics.rank import rank_metrics
from pbgeval.notation import Side, WorkUnit
from pbgeval.passes.bucket_pass import bucket_pass
from pbgeval.passes.settings import Competition, EdgeOrigin, Tables
from pbgeval.plan.dispatch import make_dispatch_plan
from pbgeval.plan.read_ahead import Holding, StripeUses
from pbgeval.plan.unit_queue import UnitQueue
from pbgeval.progress import UnitReport
from pbgeval.ranking import RankType
from pbgeval.stats.groups import GroupKey
from pbgeval.stats.rank_stats import RankStats
from pbgeval.storage.edges import EdgeBlock
from pbgeval.worker.bucket_known import KnownOfBuckets
from pbgeval.worker.bucket_progress import BucketProgress
from pbgeval.worker.dimensions import QueryDimensions
from pbgeval.worker.key_frequencies import KeyFrequencies
from pbgeval.worker.per_edge import PerEdgeFiles
from pbgeval.worker.record import Record
from pbgeval.worker.so_far import SoFar
from pbgeval.worker.steps import in_step
from pbgeval.worker.time_use import COMPUTING, JOURNAL, LOADING, QUEUE, READING
from pbgeval.worker.work import Bench

EDGES_PER_ROW_LOADED = 0.1  # the time of loading a row, in edges; it decides only in which order units are handed out


@frozen(eq=False)
class BucketTools:
    """What the units of a worker share."""

    sets: CandidateSets
    dimensions: QueryDimensions
    frequencies: KeyFrequencies | None  # None where keys are not counted
    known: KnownOfBuckets | None  # None: nothing is filtered
    files: PerEdgeFiles
    by_chunk: bool  # the units of a sample are chunks


def do_units(
    bench: Bench, record: Record, tools: BucketTools, round_number: int, done: Collection[str], watch: Watch
) -> int:
    """Evaluate units as this worker draws them, until none is left; return how many partitions it loaded.

    Args:
        bench: of this worker.
        record: what it finds is added to it.
        tools: shared by its units.
        round_number: from 1; each round has counters of its own.
        done: names of the units whose results the journal holds.
        watch: is told of each unit.
    """
    team = bench.team
    # Those of which the sample drew an edge: a sample is the same on every worker, and so is the plan.
    units = [
        unit
        for unit in bench.work.protocol.units
        if bench.evaluated.any_between(unit.path_index, unit.bucket, unit.start, unit.stop)
        and unit_name(unit) not in done
    ]
    prefix = f"round/{round_number}"
    room = _room(bench)
    plan = make_dispatch_plan(
        units,
        bench.inputs.partitions_needed,
        team.size,
        room=room.partitions,
        load_cost=EDGES_PER_ROW_LOADED * _mean_rows(bench),
    )
    progress = BucketProgress(units, team, prefix, bench.evaluated.num_rows)
    so_far = SoFar(bench) if bench.evaluated.sample is None else None
    results = _Results(bench, record, tools.files, Record.empty(bench.work.protocol), so_far)
    bench.journal.take(record.add_packed)
    queue = UnitQueue(plan, team, team.rank_in_team, prefix)
    holding = Holding(queue, StripeUses(plan), room.partitions)
    with PartitionHolder(bench.inputs, bench.global_embeddings, bench.device, holding, room.one_more) as partitions:
        while (index := _draw(bench, queue)) is not None:
            unit, begun = plan.units[index], time.perf_counter()
            with bench.time_use.spent_on(JOURNAL):
                bench.journal.begin(unit_name(unit))
            with bench.time_use.spent_on(COMPUTING):
                headline = _do_unit(bench, results.pending, tools, partitions, index, unit)
            check_held(bench.inputs.config.max_memory_bytes, anonymous_bytes())
            with bench.time_use.spent_on(JOURNAL):
                if bench.journal.finish(unit_name(unit)):
                    results.write()
            with bench.time_use.spent_on(QUEUE):
                watch.tick()
                report = _unit_report(bench, progress, unit, headline, time.perf_counter() - begun)
                bench.work.observer.unit_finished(report)
                if team.add("faults", 0):
                    break  # another worker has met a fault: there will be no result
    with bench.time_use.spent_on(JOURNAL):
        results.write(at_end=True)
    return partitions.num_loads


def _draw(bench: Bench, queue: UnitQueue) -> int | None:
    with bench.time_use.spent_on(QUEUE):
        return queue.draw()


def _room(bench: Bench) -> PartitionRoom:
    """Return for how many partitions every worker has memory: all must make the same plan."""
    sizes = [source.num_bytes for source in bench.inputs.embeddings.values()]
    buckets = {unit.bucket for unit in bench.work.protocol.units}
    on_host = bench.device.type == "cpu"  # partitions on a GPU take none of the host's memory
    room = in_step(
        bench.team,
        lambda: plan_room(
            bench.inputs.config.max_memory_bytes if on_host else None,
            resident_bytes(),
            available_bytes(bench.device) // (bench.team.local_size if on_host else 1),
            max(sizes, default=1),
            max((len(bench.inputs.partitions_needed(bucket)) for bucket in buckets), default=1),
            len(sizes),
            bench.held_bytes,
        ),
    )
    rooms: list[PartitionRoom] = bench.team.gather_objects(room)
    return min(rooms)


@define(eq=False)
class _Results:
    """What this worker has found: since the last entry of the journal, and in all."""

    bench: Bench
    total: Record
    files: PerEdgeFiles
    pending: Record
    so_far: SoFar | None  # None: of a sample, whose figures need all of it

    def write(self, *, at_end: bool = False) -> None:
        """Write what is pending to the journal, and add it to the total."""
        with self.bench.journal.counted():
            arrays = self.pending.pack()
            self.files.sync()  # an entry vouches for the rows of its units
            if not at_end or self.bench.journal.is_worth_it:
                self.bench.journal.write(arrays)
            self.total.add_packed(arrays)
            self.pending = Record.empty(self.bench.work.protocol)
        if self.so_far is not None and not at_end:
            self.so_far.write_if_due()


def unit_name(unit: WorkUnit) -> str:
    """Return a unit as the journal calls it."""
    return f"{unit.path_index}:{unit.bucket.lhs}_{unit.bucket.rhs}:{unit.start}-{unit.stop}"


def _mean_rows(bench: Bench) -> float:
    """Return the rows of a partition, on average."""
    return bench.numberer.numbering.num_entities / max(len(bench.numberer.numbering.slots), 1)


def _do_unit(
    bench: Bench, record: Record, tools: BucketTools, partitions: PartitionHolder, index: int, unit: WorkUnit
) -> RankStats:
    """Evaluate one unit; return the sums of the headline's figures over its sides."""
    file = bench.inputs.bucket_file(unit)
    origin = EdgeOrigin(str(file.path), unit.path_index, unit.bucket)
    with bench.time_use.spent_on(READING):
        edges = file.read(unit.start, unit.stop)
    numbered = None if bench.inputs.featurized else bench.numberer.numbered(file, edges)
    competition = _competition(bench, tools, unit, numbered)
    # No variable keeps the tables: those of the last bucket must go before new ones are loaded.
    results = bucket_pass(edges, origin, _tables(bench, partitions, index, unit), bench.settings, competition)
    sums = []
    for side, result in results.items():
        key = GroupKey(unit.path_index, unit.bucket, side)
        rows_Q = result.rows_Q.numpy()
        sums.append(record.add(key, result, _groups_of(tools, unit, side, edges, numbered, rows_Q)))
        bench.journal.journal.check_lease()
        tools.files.write_counts(key, unit.start + rows_Q, result.counts)
        if bench.evaluated.sample is not None and numbered is not None:
            sampled = bench.evaluated.sample[unit.path_index, unit.bucket]
            codes_Q = bench.numberer.key_codes(side, KnownBlock(*numbered.columns(rows_Q)))
            record.sample.add(key, sampled, unit.start + rows_Q, codes_Q, record.headline_counts(result))
    return reduce(add, sums)


def _tables(bench: Bench, partitions: PartitionHolder, index: int, unit: WorkUnit) -> Tables:
    with bench.time_use.spent_on(LOADING):
        tables = partitions.enter(index, unit.bucket)
        partitions.read_ahead()
    return tables


def _competition(bench: Bench, tools: BucketTools, unit: WorkUnit, numbered: KnownBlock | None) -> Competition:
    """Decide which edges of a unit are evaluated, and who does not compete."""
    if numbered is None:
        return Competition()
    rows_E, chunks, sampled = None, None, None
    if bench.evaluated.sample is not None:
        sampled = bench.evaluated.sample[unit.path_index, unit.bucket]
    if sampled is not None and tools.by_chunk:
        # Chunks are cut from all that restrictions leave; the sample says which of them are evaluated.
        rows_E = torch.from_numpy(bench.evaluated.kept(numbered))
        chunks = sampled.chunks[unit.start]
    elif not bench.evaluated.keeps_all:
        rows_E = torch.from_numpy(bench.evaluated.positions(numbered, unit.path_index, unit.bucket, unit.start))
    numbering = bench.numberer.numbering
    return Competition(
        rows_E=rows_E,
        chunks=chunks,
        known=None if tools.known is None else tools.known.of_unit(unit.bucket, numbered),
        sets=None if tools.sets.unconstrained else tools.sets,
        cluster_E=None if sampled is None else sampled.clusters_between(unit.start, unit.stop),
        first_number=lambda entity_type, side: numbering.offset(
            entity_type, bench.inputs.partition_of(entity_type, side, unit.bucket)
        ),
    )


def _groups_of(
    tools: BucketTools, unit: WorkUnit, side: Side, edges: EdgeBlock, numbered: KnownBlock | None, rows_Q: np.ndarray
) -> dict[str, torch.Tensor]:
    """Return the groups of a unit's queries."""
    if numbered is None:
        nowhere = np.zeros(len(rows_Q), np.int64)
        return tools.dimensions.of(side, KnownBlock(nowhere, edges.rel.numpy()[rows_Q], nowhere), None)
    of_queries = KnownBlock(*numbered.columns(rows_Q))
    frequency_Q = None if tools.frequencies is None else tools.frequencies.of(side, unit.bucket, of_queries)
    return tools.dimensions.of(side, of_queries, frequency_Q)


def _unit_report(
    bench: Bench, progress: BucketProgress, unit: WorkUnit, headline: RankStats, seconds: float
) -> UnitReport:
    config, num_edges = bench.inputs.config, bench.evaluated.num_rows(unit)
    mean_reciprocal_rank = rank_metrics(headline, RankType(config.headline))["mean_reciprocal_rank"]
    return UnitReport(
        edge_path=Path(config.edge_paths[unit.path_index]).name,
        bucket=unit.bucket,
        num_edges=num_edges,
        seconds=seconds,
        mean_reciprocal_rank=mean_reciprocal_rank,
        edges_done=bench.team.add(f"{progress.prefix}/edges", num_edges),
        # Of a sample only the round in hand is known.
        edges_total=bench.inputs.num_edges if bench.evaluated.sample is None else progress.num_edges,
        finished_bucket=progress.finished(unit, seconds, mean_reciprocal_rank),
    )
