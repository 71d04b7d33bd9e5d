"""All queries against all entities, out of core (`candidates = "all"`): this worker's part, step by step.

    read the evaluated edges        every worker all of them: they are few beside the entities
    join the known edges            a part of the files each
    gather, prepare                 a part of the partitions, of the keys each
    rank                            a part of all candidate rows each: every row is read once by one worker
    finish                          counts added over workers; a part of the buckets each

Between two steps lies a barrier, where a fault of one worker stops all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from attrs import define, evolve, field

from pbgeval.cluster.resources import anonymous_bytes, resident_bytes
from pbgeval.inputs.partitions import BYTES_PER_BEST, MemoryPlan, check_held, plan_memory, rows_ahead
from pbgeval.inputs.protocol import CandidateRange, candidate_ranges
from pbgeval.notation import Side, distinct
from pbgeval.ranking.block_threads import BlockThreads
from pbgeval.ranking.cells import SampledCells, sample_cells
from pbgeval.ranking.constraints import CandidateSets
from pbgeval.ranking.contest_state import RESULT_ARRAYS, ContestResult, ContestState, Rows
from pbgeval.ranking.kernels import Kernel, choose_kernel, load_compiled
from pbgeval.ranking.keys import QueryKeys
from pbgeval.ranking.known_answers import KnownPairs, PairStore
from pbgeval.ranking.known_by_block import KnownAnswers
from pbgeval.ranking.query_edges import CompetingEntities, ContestQueries, QueryEdges, contest_queries
from pbgeval.ranking.ranking_pass import rank
from pbgeval.ranking.sweep_given import rank_given
from pbgeval.ranking.sweep_pass import (
    EntityVectors,
    GatheredEntities,
    GatheredQueries,
    entities_of_edges,
)
from pbgeval.ranking.topk import TopCandidates
from pbgeval.scoring.contest import contests
from pbgeval.scoring.entities import EntityTable
from pbgeval.storage.rows import MemoryRows, ScratchRows
from pbgeval.worker.collective import collectively
from pbgeval.worker.context import SweepSummary, WorkerContext
from pbgeval.worker.diagnostics import read_query_edges
from pbgeval.worker.dimensions import group_classes, query_dimensions
from pbgeval.worker.finish import finish
from pbgeval.worker.given import GivenCells, read_given
from pbgeval.worker.known import candidate_sets, join_all
from pbgeval.worker.per_edge import PerEdgeFiles
from pbgeval.worker.record import Record
from pbgeval.worker.type_gains import type_gains


def range_name(part: CandidateRange) -> str:
    """Return a range of candidates as the journal calls it."""
    return f"{part.slot}:{part.start}-{part.stop}"


def range_of_name(name: str) -> CandidateRange:
    """Return the range that the journal calls so."""
    slot, _, rows = name.partition(":")
    start, _, stop = rows.partition("-")
    return CandidateRange(int(slot), int(start), int(stop))


def share_rows(done: Sequence[str], units: Sequence[str]) -> bool:
    """Whether some ranges have rows in common with those that are done."""
    ranges = [range_of_name(name) for name in done]
    return any(
        one.slot == part.slot and one.start < part.stop and part.start < one.stop
        for one in map(range_of_name, units)
        for part in ranges
    )


def do_sweep(context: WorkerContext, record: Record, files: PerEdgeFiles) -> SweepSummary:
    """Rank all evaluated edges against all entities."""
    context.work.observer.phase("reading edges")
    with collectively(context.team):
        edges = read_query_edges(context)
    with collectively(context.team):
        resident = _resident(context)  # before what the plan counts is made
    sets = candidate_sets(context, distinct(edges.rel_E))
    vectors = EntityVectors(
        context.global_embeddings, context.inputs.config.max_norm, context.relations[0].dtype, context.device
    )
    kernel = _kernel(context, edges)
    queries_per_block = kernel.queries_per_block(context.relations[0].scorer.comparator)
    of_contests = [
        contest_queries(edges, contest, sets, queries_per_block)
        for side in context.settings.sides
        for contest in contests([relation.scorer for relation in context.relations], side)
    ]
    keys = {side: _keys_of_side(edges, of_contests, side) for side in context.settings.sides}
    with collectively(context.team):
        plan = _plan(context, edges, sum(queries.num_keys for queries in of_contests), resident)
    pairs = join_all(context, keys, plan.pairs_bytes, plan.known_rows) if context.work.protocol.filtered else None
    context.work.observer.phase("gathering vectors")
    entities = _gather(context, edges, vectors, plan)
    done = [range_of_name(name) for name in context.journal.look(context.team, context.work.observer, share_rows)]
    if context.team.rank_in_team == 0:
        context.team.add(f"{context.journal.part}rows", sum(part.num_rows for part in done))
    ranges = _ranges(context, plan, done)
    states = _states(context, edges, of_contests, sets, kernel, plan, entities, vectors)
    given = _given(context, edges, states, ranges, plan)
    _prepare(context, states)
    context.work.observer.phase("scoring")
    _rank(context, edges, states, given, keys, vectors, pairs, plan, ranges)
    touched = distinct(np.concatenate([edges.lhs_E, edges.rhs_E]))
    dimensions = query_dimensions(context, touched)
    finish(context, record, edges, states, sets, dimensions, files)
    with collectively(context.team):
        classes = group_classes(context, dimensions.training)
    return SweepSummary(len(ranges), classes)


def _kernel(context: WorkerContext, edges: QueryEdges) -> Kernel:
    config, relation = context.inputs.config, context.relations[0]  # all have one comparator, and one type of numbers
    wants_best = config.save_topk is not None or context.inputs.types is not None
    wants_scores = wants_best or context.settings.auc.exact or bool(context.inputs.candidate_files)
    num_cells = edges.num_edges * context.numberer.numbering.num_entities
    return choose_kernel(
        relation.scorer, context.device, relation.dtype, wants_scores=wants_scores, num_cells=num_cells
    )


def _resident(context: WorkerContext) -> int:
    """Return what this process holds, what compiled loops take among it."""
    if context.inputs.config.max_memory_bytes is not None:
        load_compiled(context.device, context.relations[0].prepared_dtype)
    return resident_bytes()


def _plan(context: WorkerContext, edges: QueryEdges, num_keys: int, resident: int) -> MemoryPlan:
    config = context.inputs.config
    widest = max(config.dimension_of(name) for name in config.used_entity_types) + 3
    num_queries = edges.num_edges * len(context.settings.sides)
    itemsize = torch.empty(0, dtype=context.relations[0].dtype).element_size()
    limit, threads = config.max_memory_bytes, torch.get_num_threads()
    held = context.held_bytes + num_keys * (config.save_topk or 0) * BYTES_PER_BEST
    plan = plan_memory(limit, resident, edges.num_edges, num_queries, widest * itemsize, threads, held)
    if context.inputs.scorer is None:
        return plan
    # Rows are numbers, and small; a model may score all entities for each range. It is called by one thread.
    longest = max(part.num_rows for part in context.inputs.embeddings.values())
    return evolve(plan, rows_per_range=max(longest, 1), block_threads=1)


def _keys_of_side(edges: QueryEdges, of_contests: list[ContestQueries], side: Side) -> QueryKeys:
    num_entities = edges.numbering.num_entities
    codes = [
        queries.rel_K * num_entities + queries.known_K for queries in of_contests if queries.contest.hidden is side
    ]
    return QueryKeys(side, num_entities, distinct(np.concatenate([np.empty(0, np.int64), *codes])))


def _states(
    context: WorkerContext,
    edges: QueryEdges,
    of_contests: list[ContestQueries],
    sets: CandidateSets,
    kernel: Kernel,
    plan: MemoryPlan,
    entities: GatheredEntities,
    vectors: EntityVectors,
) -> list[ContestState]:
    """Make room for the queries of each contest, and draw what the pooled AUC compares of it."""
    competing = [_competing(edges, queries, sets) for queries in of_contests]
    samples: list[SampledCells | None] = [None] * len(of_contests)
    if not context.inputs.candidate_files:  # else it is drawn among those
        threads, auc, seed = (
            BlockThreads.of_device(context.device, plan.block_threads),
            context.settings.auc,
            context.settings.seed,
        )
        samples = threads.map(
            lambda number: sample_cells(edges, of_contests[number], competing[number], auc, seed),
            range(len(of_contests)),
        )
    dtype = context.relations[0].prepared_dtype
    states = []
    for number, queries in enumerate(of_contests):
        contest = queries.contest
        dimension = context.inputs.config.dimension_of(contest.candidate_type)
        state = ContestState(
            queries,
            competing[number],
            kernel,
            GatheredQueries(edges, queries, entities, vectors),
            _rows(context, f"queries-{number}", queries.num_keys, contest.width(dimension), dtype, plan),
            _rows(context, f"true-{number}", queries.num_queries, contest.true_width(dimension, dtype), dtype, plan),
            context.relations[0].dtype,
            context.device,
            samples[number],
        )
        topk = context.inputs.config.save_topk
        state.result.top = TopCandidates(queries.num_keys, topk) if topk is not None else None
        state.result.gains = type_gains(context, edges, queries)
        states.append(state)
    return states


def _competing(edges: QueryEdges, queries: ContestQueries, sets: CandidateSets) -> CompetingEntities:
    hidden = queries.contest.hidden
    first, stop = edges.numbering.range_of_type(queries.contest.candidate_type)
    return CompetingEntities(first, stop, lambda relation: sets.of(hidden, relation), sets.by_relation)


def _given(
    context: WorkerContext,
    edges: QueryEdges,
    states: list[ContestState],
    ranges: list[CandidateRange],
    plan: MemoryPlan,
) -> list[GivenCells] | None:
    """Read what lists name, where candidates are given, and what the pooled AUC compares of it."""
    if not context.inputs.candidate_files:
        return None
    given = []
    for number, one in enumerate(states):
        with collectively(context.team):
            cells, one.sample = read_given(context, edges, one.queries, number, ranges, plan.pairs_bytes)
        given.append(cells)
    return given


def _rows(context: WorkerContext, name: str, num_rows: int, width: int, dtype: torch.dtype, plan: MemoryPlan) -> Rows:
    """Return where rows are kept: in memory where one worker has room for them, else in the scratch folder."""
    if context.team.size == 1 and plan.queries_in_memory:
        return MemoryRows(num_rows, width, dtype)
    rows = ScratchRows(context.scratch, name, num_rows, width, dtype)

    with collectively(context.team):
        if context.team.rank_in_team == 0:
            rows.create()
    return rows


def _gather(context: WorkerContext, edges: QueryEdges, vectors: EntityVectors, plan: MemoryPlan) -> GatheredEntities:
    """The first sweep: every worker looks up the evaluated entities in its part of the partitions."""
    config = context.inputs.config
    types = tuple(config.used_entity_types)
    numbers = entities_of_edges(edges, types)
    dtype = torch.float32 if context.inputs.scorer is None else torch.float64  # numbers, not vectors
    entities = GatheredEntities(
        numbers,
        {
            name: _rows(context, f"vectors-{name}", len(numbers[name]), config.dimension_of(name), dtype, plan)
            for name in types
        },
    )

    def is_touched(part: CandidateRange) -> bool:
        first, _ = edges.numbering.range_of_slot(part.slot)
        of_type = numbers[edges.numbering.slots[part.slot][0]]
        low, high = np.searchsorted(of_type, [first + part.start, first + part.stop])
        return bool(low < high)

    with collectively(context.team):
        parts = [part for part in _ranges(context, plan) if is_touched(part)]
        for part, table in zip(parts, _tables(context, vectors, parts), strict=True):
            entities.add(table, edges.numbering.range_of_slot(part.slot)[0] + part.start)
    return entities


def _ranges(context: WorkerContext, plan: MemoryPlan, done: Sequence[CandidateRange] = ()) -> list[CandidateRange]:
    """Return this worker's part of all rows of all partitions that are not done."""
    team = context.team
    return candidate_ranges(context.numberer.numbering, team.rank_in_team, team.size, plan.rows_per_range, done)


def _tables(context: WorkerContext, vectors: EntityVectors, parts: Sequence[CandidateRange]) -> Iterator[EntityTable]:
    """Read ranges of rows, one after the other, and look at each row."""
    config, slots = context.inputs.config, context.numberer.numbering.slots

    def read(part: CandidateRange) -> torch.Tensor:
        return context.inputs.embeddings[slots[part.slot]].read_rows(part.start, part.stop)

    of_parts = rows_ahead(parts, read, context.device)
    for part in parts:
        table = vectors.table(*slots[part.slot], next(of_parts), part.start)
        table.check(refuse_zero_vectors=config.comparator == "cos", has_bias=config.bias)
        yield table


def _prepare(context: WorkerContext, states: list[ContestState]) -> None:
    with collectively(context.team):
        for one in states:
            num_keys, rank_in_team, size = one.queries.num_keys, context.team.rank_in_team, context.team.size
            one.prepare((num_keys * rank_in_team // size, num_keys * (rank_in_team + 1) // size))


def _rank(
    context: WorkerContext,
    edges: QueryEdges,
    states: list[ContestState],
    given: list[GivenCells] | None,
    keys: dict[Side, QueryKeys],
    vectors: EntityVectors,
    pairs: PairStore | None,
    plan: MemoryPlan,
    ranges: list[CandidateRange],
) -> None:
    """The second sweep: every worker streams its part of the candidates past all queries."""
    results, watch = _SweepResults(context, states), context.team.watch(context.journal.part)
    threads = BlockThreads.of_device(context.device, plan.block_threads)
    keys_of = [_keys_among(keys[one.hidden], one.queries) for one in states]
    type_of = [one.queries.contest.candidate_type for one in states]

    with collectively(context.team, watch):
        context.journal.take(results.add)
        tables = _tables(context, vectors, [part for part in ranges if edges.numbering.slots[part.slot][0] in type_of])
        for part, of_slots in _with_known(context, ranges, pairs):
            context.journal.begin(range_name(part))
            entity_type, _ = edges.numbering.slots[part.slot]
            table = next(tables) if entity_type in type_of else None
            for number, one in enumerate(states):
                if table is not None and type_of[number] == entity_type:
                    first = edges.numbering.range_of_slot(part.slot)[0]
                    known = None
                    if of_slots is not None:
                        key_P, row_P = of_slots[one.hidden].in_rows(part.start, part.stop)
                        known = KnownAnswers.select(keys_of[number], key_P, row_P + first)
                    if given is None:
                        rank(one, table, first + part.start, known, threads)
                    else:
                        rank_given(one, table, first + part.start, given[number].within(part), known)
            check_held(context.inputs.config.max_memory_bytes, anonymous_bytes())
            if context.journal.finish(range_name(part)):
                results.write()
            watch.tick()
            done = context.team.add(f"{context.journal.part}rows", part.num_rows)
            context.work.observer.candidates_done(done, context.numberer.numbering.num_entities)
        results.finish()


@define(eq=False)
class _SweepResults:
    """What all contests have met: in their states since the last entry of the journal, and here before it."""

    context: WorkerContext
    states: list[ContestState]
    _total: list[ContestResult] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._total = [one.result.empty() for one in self.states]

    def add(self, arrays: Sequence[np.ndarray]) -> None:
        """Add an entry."""
        for number, total in enumerate(self._total):
            total.add_packed(arrays[RESULT_ARRAYS * number : RESULT_ARRAYS * (number + 1)])

    def write(self) -> None:
        """Write an entry, and begin anew."""
        with self.context.journal.counted():
            arrays = [array for one in self.states for array in one.result.pack()]
            self.context.journal.write(arrays)
            self.add(arrays)
            for one in self.states:
                one.result = one.result.empty()

    def finish(self) -> None:
        """Give the states the total."""
        if self.context.journal.is_worth_it:
            self.write()
        self.add([array for one in self.states for array in one.result.pack()])
        for one, total in zip(self.states, self._total, strict=True):
            one.result = total


def _keys_among(keys: QueryKeys, queries: ContestQueries) -> np.ndarray:
    """Return the index of each of a contest's keys among those of its side."""
    index_K: np.ndarray = np.searchsorted(keys.codes_K, queries.rel_K * keys.num_entities + queries.known_K)
    return index_K


def _with_known(
    context: WorkerContext, ranges: list[CandidateRange], pairs: PairStore | None
) -> Iterator[tuple[CandidateRange, dict[Side, KnownPairs] | None]]:
    """Yield ranges with the known answers of their slot, which are read once per slot."""
    slot, of_slot = -1, None
    for part in ranges:
        if pairs is not None and part.slot != slot:
            of_slot = None  # the last slot's go before the next ones come
            slot, of_slot = part.slot, {side: pairs.pairs(side, part.slot) for side in context.settings.sides}
        yield part, of_slot
