"""Estimate what a run needs before it starts: edges, candidates, workers, memory, bytes to read, time.

All but the time follows from headers. The time is scaled from a measurement: the run's own pass ranks some of its edges
among random vectors. Runs that take a few seconds measure nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby

import numpy as np
import torch
from attrs import evolve, frozen
from torch import Tensor

from pbgeval.cluster.resources import num_cores, resident_bytes
from pbgeval.errors import EvalError
from pbgeval.inputs.dispatch import num_loads
from pbgeval.inputs.memory_check import (
    expected_memory,
    first_edges,
    largest_partition,
    num_known_edges,
    room_for_partitions,
)
from pbgeval.inputs.opening import Inputs
from pbgeval.inputs.protocol import Protocol
from pbgeval.jit import bytes_to_load
from pbgeval.notation import ENDS, Bucket, Side
from pbgeval.ranking.backend import load_compiled
from pbgeval.ranking.bucket_pass import bucket_pass
from pbgeval.ranking.draws import DegreeWeights
from pbgeval.ranking.sampled_lists import CandidatePolicy
from pbgeval.ranking.settings import Competition, EdgeOrigin, PassSettings, Relation, Tables, UnitOfEdges
from pbgeval.results.document import SideOfEdges
from pbgeval.scoring.entities import EntityTable
from pbgeval.scoring.full_precision import CallerSettings
from pbgeval.scoring.operators import moves_to_query
from pbgeval.stats.grouped import KEY_FREQUENCY, RELATION
from pbgeval.stats.groups import GroupKey
from pbgeval.storage.checkpoint import num_bytes_of
from pbgeval.storage.edges import EdgeBlock, EdgeSource
from pbgeval.storage.text import plural
from pbgeval.worker.record import Record

MEASURED_SECONDS = 0.5  # at most
MEASURED_SHARE = 0.01  # of a run, at most, where the run itself is planned
SECONDS_OF_SMALL_RUNS = 3.0  # which measure nothing before they begin
SECONDS_OF_SMALL_PLANS = 1.0  # of runs for which `plan` measures nothing, either
# Of a core or a GPU; beside terms, lists are drawn, queries counted and saved. They decide only whether and how long to
# measure.
TERMS_PER_SECOND = {"cpu": 2e10, "cuda": 2e12}
SECONDS_PER_QUERY = {"cpu": 1.5e-6, "cuda": 0.2e-6}
FIRST_EDGES = 256  # of a trial, or more: enough that loops are compiled, as for the run
FIRST_CELLS = 1 << 19
STEP = 4  # times as many edges in the next trial
NUMBERS_OF_TABLES = 1 << 24  # that rows are gathered from: more than fit in a cache
NUMBERS_DRAWN = (1 << 20) + 7  # of these, again and again; a prime number, so that few rows are equal
SWEPT_ROWS = 1 << 14  # of a table that queries stream past
# Work beside the pass, as benchmarks/plan has found it.
CPU_SECONDS_PER_KNOWN_EDGE = 0.4e-6
CPU_SECONDS_PER_QUERY = 0.5e-6  # counted, recorded, saved
BYTES_PER_SECOND = 1e9  # from the system's cache or a fast disk
SHORTEST_TOLD = 1.0  # seconds that a plan tells, to start and to convert files of edges by name
MARGIN = 1.5  # of the range, on either side
ID_BYTES = 8


@frozen
class Speed:
    """What a measurement has found, for all edges of a run: of one worker that has them all."""

    seconds: float  # by the clock, as the machine is busy now
    cpu_seconds: float  # of all threads
    own_seconds: float  # by the clock, had it the cores for itself


@frozen
class Measurement:
    """What a worker has found before it begins."""

    speed: Speed | None  # None: not measured
    held_bytes: int  # with all that was loaded to measure, or will be


@frozen
class TimeEstimate:
    """The time that a run takes once its workers have started."""

    seconds: float  # by the clock
    fewest: float
    most: float
    cpu_seconds: float  # of all workers and threads


@frozen
class RunPlan:
    """What a run will take."""

    num_edges: int
    num_queries: int
    limits: tuple[int, int]  # fewest and most candidates of a query, before filters and restrictions
    bound: str  # "", "at least " or "at most ": what the config does to the number of edges
    num_workers: int
    coarse_seconds: float  # it decides only whether and how long to measure
    memory_bytes: int = 0  # of a worker
    read_bytes: int = 0
    estimate: TimeEstimate | None = None  # None: not measured
    has_sampled_lists: bool = False  # a draw of the true entity or a short chunk leaves fewer candidates
    leaves_out_known: bool = False
    leaves_out_drawn: bool = False  # answers among sampled candidates: not under pbg_semantics
    converting_seconds: float = 0.0  # until files of edges by name are buckets
    starting_seconds: float = 0.0  # of a command, until it can begin
    share_left: float = 1.0  # of the work; of a run that is resumed, less

    @property
    def is_small(self) -> bool:
        """Whether the run takes some seconds, and a measurement is not worth its time."""
        return self.coarse_seconds < SECONDS_OF_SMALL_RUNS

    @property
    def needs_no_trial(self) -> bool:
        """Whether a plan tells no time of the run, because it is very short."""
        return self.coarse_seconds < SECONDS_OF_SMALL_PLANS

    @property
    def measured_seconds(self) -> float:
        """How long a run may measure before it begins."""
        return min(MEASURED_SECONDS, MEASURED_SHARE * self.coarse_seconds)

    def of_rest(self, share_left: float) -> RunPlan:
        """Return the plan of a run of which a share of the work is left."""
        return evolve(self, coarse_seconds=share_left * self.coarse_seconds, share_left=share_left)

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Return (what, value) of each line of a table."""
        fewest, most = self.limits
        each = f"{most:,}" if fewest == most else f"{fewest:,} to {most:,}"
        left_out = ["known answers"] * self.leaves_out_known
        if self.has_sampled_lists:
            each, left_out = f"up to {most:,}", [*["draws of the answer"] * self.leaves_out_drawn, *left_out]
        fewer = f", less {' and '.join(left_out)}" if left_out else ""
        told = "a few seconds" if self.is_small else "not estimated"
        if self.estimate is not None:
            one = self.estimate
            told = f"about {_duration(one.seconds)} ({_duration(one.fewest)} to {_duration(one.most)})"
            if self.share_left < 1:
                told += " for the rest"
        converting = f"about {_duration(self.converting_seconds)}"
        advice = "; import-graph or import-model does it once for all runs"
        is_short = self.converting_seconds < SHORTEST_TOLD
        before = [] if is_short else [f"{converting} to convert"]
        if (self.is_small or self.estimate is not None) and self.starting_seconds >= SHORTEST_TOLD:
            before.insert(0, f"about {_duration(self.starting_seconds)} to start")
        return [
            ("edges", f"{self.bound}{self.num_edges:,} ({plural(self.num_queries, 'query', 'queries')})"),
            ("candidates", f"{each} per query{fewer}"),
            ("workers", f"{self.num_workers}"),
            ("memory", f"about {_size(self.memory_bytes)} per worker"),
            ("to read", f"about {_size(self.read_bytes)}"),
            *([] if is_short else [("convert", f"edges by name, {converting}{advice}")]),
            ("time", ", then ".join([*before, told])),
        ]

    @property
    def line(self) -> str:
        """Return the same in a line; of a small run no time."""
        facts = dict(self.facts)
        told = f"{self.bound}{plural(self.num_edges, 'edge')}, {facts['candidates'].replace(' per', ' candidates per')}"
        parts = [told, plural(self.num_workers, "worker"), facts["memory"], f"{facts['to read']} to read"]
        return "; ".join([*parts, *([] if self.estimate is None else [facts["time"]])])


def plan_of(
    inputs: Inputs,
    protocol: Protocol,
    device: torch.device,
    num_workers: int,
    num_threads: int,
    num_local: int,
) -> RunPlan:
    """Return what headers tell, without memory and a measurement.

    Args:
        inputs: opened.
        protocol: of the run.
        device: of each worker.
        num_workers: of all hosts.
        num_threads: of each worker.
        num_local: workers of this host, which share its cores.
    """
    num_edges = first_edges(inputs)
    bound = "at most " if inputs.restrictions.drops_edges else ""
    bound = "at least " if inputs.config.target_error is not None else bound
    load = Workload.from_headers(inputs, protocol)
    widest = max(inputs.config.dimension_of(name) for name in inputs.config.used_entity_types)
    num_queries = num_edges * len(protocol.sides)
    kind = "cuda" if device.type == "cuda" else "cpu"
    seconds = load.num_cells * widest / TERMS_PER_SECOND[kind] + num_queries * SECONDS_PER_QUERY[kind]
    seconds += CPU_SECONDS_PER_KNOWN_EDGE * num_known_edges(inputs) * protocol.filtered
    cores = min(num_threads, num_cores() / num_local)
    return RunPlan(
        num_edges,
        num_queries,
        (load.fewest, load.most),
        bound,
        num_workers,
        seconds / (num_workers * cores),
        has_sampled_lists=CandidatePolicy.SAMPLED.value in inputs.candidates,
        leaves_out_known=protocol.filtered,
        leaves_out_drawn=not inputs.config.pbg_semantics,
    )


def with_memory(
    plan: RunPlan,
    inputs: Inputs,
    protocol: Protocol,
    device: torch.device,
    resident: int,
    num_local: int,
    num_threads: int,
) -> RunPlan:
    """Return a plan with the memory of a worker and the bytes to read.

    Args:
        plan: from `plan_of`.
        inputs: of the run.
        protocol: of the run.
        device: of each worker.
        resident: bytes that a worker holds before it begins.
        num_local: workers of this host, which share its memory.
        num_threads: of each worker.

    Raises:
        ConfigError: `max_memory` is too small; says how much is needed.
    """
    num_sharing = num_local if device.type == "cpu" else -(-num_local // max(torch.cuda.device_count(), 1))
    expected = expected_memory(inputs, protocol, resident, device, num_sharing=num_sharing, num_threads=num_threads)
    return evolve(
        plan,
        memory_bytes=min(expected, inputs.config.max_memory_bytes or expected),  # a limit holds, or ends the run
        read_bytes=_read_bytes(inputs, protocol, resident, device, num_sharing, num_threads),
    )


def with_estimate(plan: RunPlan, inputs: Inputs, protocol: Protocol, speeds: Sequence[Speed | None]) -> RunPlan:
    """Return a plan with the time to expect.

    Args:
        plan: from `plan_of`.
        inputs: of the run.
        protocol: of the run.
        speeds: that workers have measured at the same time, one of them or all; None: nothing was measured.
    """
    found = [speed for speed in speeds if speed is not None]
    if not found:
        return plan
    seconds = sum(speed.seconds for speed in found) / len(found)
    cpu_seconds = sum(speed.cpu_seconds for speed in found) / len(found)
    own_seconds = sum(speed.own_seconds for speed in found) / len(found)
    busy = max(seconds / max(cpu_seconds, own_seconds, 1e-9), 1.0)  # other programs have the cores meanwhile
    seconds, cpu_seconds, own_seconds = (plan.share_left * of_all for of_all in (seconds, cpu_seconds, own_seconds))
    beside = CPU_SECONDS_PER_KNOWN_EDGE * num_known_edges(inputs) * protocol.filtered  # joined again
    beside += plan.share_left * CPU_SECONDS_PER_QUERY * plan.num_queries
    reading = plan.share_left * plan.read_bytes / BYTES_PER_SECOND
    expected = (seconds + beside * busy + reading) / plan.num_workers
    undisturbed = (own_seconds + beside + reading) / plan.num_workers
    fewest, most = min(undisturbed, expected) / MARGIN, expected * MARGIN
    return evolve(plan, estimate=TimeEstimate(expected, fewest, most, cpu_seconds + beside))


def can_measure(inputs: Inputs) -> bool:
    """Tell whether the time follows from vectors.

    It does not where a function scores, files name the candidates, or entities are features.
    """
    return inputs.scorer is None and not inputs.candidate_files and not inputs.featurized and inputs.num_edges > 0


def load_loops(inputs: Inputs, protocol: Protocol, relation: Relation, device: torch.device) -> None:
    """Load what will count, where memory is limited: so it counts as held before memory is planned."""
    if inputs.config.max_memory_bytes is not None:
        in_lists = not protocol.sweeps and inputs.candidates == {CandidatePolicy.SAMPLED.value}
        load_compiled(device, relation.prepared_dtype, with_products=not in_lists)


def held_bytes(device: torch.device) -> int:
    """Return what this process holds before a run, and the loops that the run will load if its memory is limited."""
    return resident_bytes() + (bytes_to_load() if device.type == "cpu" else 0)


def measure(
    inputs: Inputs, protocol: Protocol, device: torch.device, caller_settings: CallerSettings, limit: float
) -> Speed | None:
    """Rank some of the edges among random vectors; return what all edges would take one worker.

    Args:
        inputs: of the run.
        protocol: of the run.
        device: of the worker.
        caller_settings: of torch.
        limit: seconds, once loops have been loaded.

    Returns:
        None where nothing can be measured, for example because a file is damaged, which the run will tell.
    """
    if not can_measure(inputs):
        return None
    try:
        # Relations of its own: they count what they decide.
        relations, global_embeddings = inputs.read_relations(device, caller_settings)
        settings = protocol.settings(inputs.config, inputs.num_relations, relations)
        load_loops(inputs, protocol, settings.relations[0], device)
        return _measured(_Trial.begin(inputs, protocol, settings, global_embeddings, device), limit)
    except (EvalError, MemoryError, RuntimeError):
        return None


def _measured(trial: _Trial, limit: float) -> Speed:
    """Rank more and more edges within a limit of seconds; extend a line through the first and the last run."""
    most = min(trial.file.num_edges, trial.protocol.lists.window_rows())
    num_edges = min(max(FIRST_EDGES, int(FIRST_CELLS / max(trial.cells_per_edge, 1))), most)
    trial.run(min(STEP * num_edges, most))  # loads what is loaded at the first call, and for larger blocks
    runs = [trial.run(num_edges)]
    while num_edges < most:
        num_edges = min(STEP * num_edges, most)
        points = [(run.num_edges, run.own_seconds) for run in runs[-2:]]
        expected = _extended([points[0], points[-1]], num_edges, num_units=1)
        if sum(run.own_seconds for run in runs) + expected > limit:
            break
        run = trial.run(num_edges)
        # Time grows less than edges, except where a loop is loaded for larger blocks.
        runs.append(trial.run(num_edges) if run.own_seconds > expected else run)
    if len(runs) == 1:  # one does not tell what each edge takes beside what is prepared once
        runs.insert(0, trial.run(max(runs[0].num_edges // STEP, 1)))
    num_units, edges_of_work = max(len(trial.protocol.units), 1), trial.edges_of_work
    return Speed(
        *(
            _extended([(run.num_edges, getattr(run, name)) for run in (runs[0], runs[-1])], edges_of_work, num_units)
            for name in ("seconds", "cpu_seconds", "own_seconds")
        )
    )


def _extended(points: Sequence[tuple[int, float]], num_edges: float, num_units: int) -> float:
    """Return the seconds of so many edges in units, from (edges, seconds) of two runs of a unit."""
    (few, seconds_of_few), (many, seconds_of_many) = points
    per_edge = seconds_of_many / many
    if many > few and seconds_of_many > seconds_of_few:
        per_edge = min(per_edge, (seconds_of_many - seconds_of_few) / (many - few))
    return per_edge * num_edges + max(seconds_of_many - per_edge * many, 0.0) * num_units


@frozen
class _TrialRun:
    num_edges: int
    seconds: float
    cpu_seconds: float
    own_seconds: float  # as in `Speed`: this counts against the limit


@frozen(eq=False)
class _Trial:
    """The pass of a run, on some of its edges and random vectors."""

    inputs: Inputs
    protocol: Protocol
    settings: PassSettings
    tables: Tables
    path_index: int
    file: EdgeSource

    @classmethod
    def begin(
        cls,
        inputs: Inputs,
        protocol: Protocol,
        settings: PassSettings,
        global_embeddings: Mapping[str, Tensor],
        device: torch.device,
    ) -> _Trial:
        """Take the largest file of edges, and make tables for it."""
        path_index, bucket, file = max(inputs.files, key=lambda of: of[2].num_edges)
        ends = tuple(side for side in settings.sides if side is not Side.REL)
        random = torch.Generator().manual_seed(0)
        drawn = torch.rand(NUMBERS_DRAWN, generator=random).to(device) - 0.5
        numbers = drawn.repeat(NUMBERS_OF_TABLES // NUMBERS_DRAWN)  # of all tables: there may be many
        longest = NUMBERS_OF_TABLES if inputs.candidates == {CandidatePolicy.SAMPLED.value} else SWEPT_ROWS
        tables = {}
        for places in inputs.places_of_edges(bucket):
            for side, (entity_type, partition) in zip(ENDS, places, strict=True):
                dimension = inputs.config.dimension_of(entity_type)
                num_rows = _num_candidates(inputs, protocol, entity_type, partition)
                num_rows = max(min(num_rows, longest, numbers.numel() // dimension), 1)
                tables[entity_type, side] = EntityTable(
                    entity_type,
                    partition,
                    numbers[: num_rows * dimension].view(num_rows, dimension),
                    global_embeddings.get(entity_type),
                    inputs.config.max_norm,
                )
        return cls(inputs, protocol, evolve(settings, sides=ends), tables, path_index, file)

    def run(self, num_edges: int) -> _TrialRun:
        """Rank edges, and record what was found."""
        origin = EdgeOrigin(str(self.file.path), (self.path_index, self.file.bucket))
        edges = self._edges(num_edges)
        begun, cpu_before = time.perf_counter(), time.process_time()
        competition = Competition(degree_weights=self._degree_weights)
        found = bucket_pass(UnitOfEdges(edges, origin, self.tables, competition), self.settings)
        record = Record.empty(self.protocol)
        for side, result in found.items():
            groups = {RELATION: edges.rel[result.rows_Q]}
            if self.protocol.counts_keys:
                groups[KEY_FREQUENCY] = torch.ones_like(result.rows_Q)
            record.add_soon(SideOfEdges(GroupKey(*origin.place, side), result, groups))
        record.pack()
        seconds, cpu_seconds = time.perf_counter() - begun, time.process_time() - cpu_before
        on_cpu = next(iter(self.tables.values())).device.type == "cpu"
        return _TrialRun(num_edges, seconds, cpu_seconds, cpu_seconds / torch.get_num_threads() if on_cpu else seconds)

    def _edges(self, num_edges: int) -> EdgeBlock:
        """Read edges of the run; their ids are those of rows that the tables have."""
        edges, num_relations = self.file.read(0, num_edges), max(self.inputs.num_relations, 1)
        num_used = min(max(int(num_relations * self.share_of_relations(num_edges)), 1), num_relations)
        rel = edges.rel.remainder(num_used) * num_relations // num_used
        relation_E = torch.zeros_like(rel) if self.settings.dynamic else rel
        relations = self.inputs.config.relations
        rows = {
            side: torch.tensor([self.tables[side.pick(of.lhs, of.rhs), side].num_rows for of in relations])[relation_E]
            for side in ENDS
        }
        return evolve(edges, lhs=edges.lhs.remainder(rows[Side.LHS]), rel=rel, rhs=edges.rhs.remainder(rows[Side.RHS]))

    def share_of_relations(self, num_edges: int) -> float:
        """Return which share of the relations so many edges have, so that as many share one as in the run.

        A pass prepares candidates and pads products for each relation. A sweep prepares a range once for all relations
        of the same types whose operators move to the queries.
        """
        config, inputs = self.inputs.config, self.inputs
        have_same_types = len({(of.lhs, of.rhs) for of in config.relations}) == 1
        move = all(moves_to_query(of.operator, config.comparator) for of in config.relations)
        if self.protocol.sweeps and have_same_types and move:
            return 0.0
        whole = inputs.num_edges if self.protocol.sweeps else self.file.num_edges
        return num_edges * inputs.num_edges / max(whole * first_edges(inputs), 1)

    @property
    def cells_per_edge(self) -> float:
        """How many scores an edge has in the mean, if all relations of the config are as frequent."""
        return sum(
            sum(
                self.protocol.lists.longest_list
                if self.inputs.config.candidates_of(of) == CandidatePolicy.SAMPLED.value
                else self.tables[side.pick(of.lhs, of.rhs), side].num_rows
                for of in self.inputs.config.relations
            )
            for side in self.settings.sides
        ) / len(self.inputs.config.relations)

    @property
    def edges_of_work(self) -> float:
        """How many edges of a trial take as long as the run."""
        if self.inputs.candidates == {CandidatePolicy.SAMPLED.value}:  # however many entities there are
            return first_edges(self.inputs) * len(self.protocol.sides) / len(self.settings.sides)
        return Workload.from_headers(self.inputs, self.protocol).num_cells / self.cells_per_edge

    def _degree_weights(self, entity_type: str, side: Side) -> DegreeWeights:
        rows = np.arange(self.tables[entity_type, side].num_rows)
        return DegreeWeights.of_degrees(rows, np.ones_like(rows), self.inputs.config.degree_power, entity_type)


# Headers -> how much there is to do.


def _num_candidates(inputs: Inputs, protocol: Protocol, entity_type: str, partition: int) -> int:
    """Return how many entities of a type compete where all do, or all of a partition."""
    if not protocol.sweeps:
        return inputs.embeddings[entity_type, partition].num_rows
    first, stop = inputs.numbering.range_of_type(entity_type)
    return stop - first


@frozen
class Workload:
    """How many scores all edges have, if the evaluated relations are equally frequent; and one query."""

    num_cells: float
    fewest: int
    most: int

    @classmethod
    def from_headers(cls, inputs: Inputs, protocol: Protocol) -> Workload:
        """Add up over all files of edges."""
        config, sampled = inputs.config, CandidatePolicy.SAMPLED.value
        relations, chosen = config.relations, inputs.restrictions.relations
        if chosen is not None and not config.dynamic_relations:
            relations = [relations[index] for index in chosen]
        kinds = Counter((of.lhs, of.rhs, config.candidates_of(of) == sampled) for of in relations)
        edges: Counter[Bucket] = Counter()
        for _, bucket, file in inputs.files:
            edges[bucket] += file.num_edges
        num_cells, lengths = 0.0, set()
        lists = protocol.lists
        longest_list = lists.longest_list + (not lists.num_batch_negs)  # the true entity; a batch has it already
        for bucket, num_edges in edges.items():
            for side in protocol.sides:
                if side is Side.REL:
                    of_kinds = [inputs.num_relations] * len(kinds)
                else:
                    of_kinds = [
                        longest_list
                        if is_sampled
                        else _num_candidates(inputs, protocol, name, inputs.partition_of(name, side, bucket))
                        for lhs, rhs, is_sampled in kinds
                        for name in [side.pick(lhs, rhs)]
                    ]
                lengths.update(of_kinds)
                weighted = sum(length * number for length, number in zip(of_kinds, kinds.values(), strict=True))
                num_cells += num_edges * weighted / kinds.total()
        share = first_edges(inputs) / max(inputs.num_edges, 1)
        return cls(share * num_cells, min(lengths, default=0), max(lengths, default=0))


def _read_bytes(
    inputs: Inputs, protocol: Protocol, resident: int, device: torch.device, num_sharing: int, num_threads: int
) -> int:
    """Return what is read of edges and vectors, by one worker that does all the work."""
    num_edges = inputs.num_edges + (num_known_edges(inputs) if protocol.filtered or protocol.counts_training else 0)
    edge_bytes = 3 * ID_BYTES * num_edges
    if protocol.sweeps:
        return edge_bytes + 2 * sum(map(num_bytes_of, inputs.embeddings.values()))
    room, _ = room_for_partitions(inputs, protocol, resident, device, num_sharing, num_threads)
    needs = [inputs.partitions_needed(bucket) for bucket, _ in groupby(unit.bucket for unit in protocol.units)]
    return edge_bytes + num_loads(needs, room) * largest_partition(inputs)


def _duration(seconds: float) -> str:
    """Write a time with the digits that an estimate has."""
    if seconds < 100:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{max(seconds, 0.1):.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 100 * 60 else f"{seconds / 3600:.1f} h"


def _size(num_bytes: int) -> str:
    """Round up: what is told of memory is enough for `max_memory`."""
    return f"{-(-num_bytes // 10**8) / 10:.1f} GB" if num_bytes >= 1e9 else f"{max(-(-num_bytes // 10**6), 1)} MB"
