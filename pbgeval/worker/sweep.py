"""All queries against all entities, out of core (`candidates = "all"`): this worker's part, step by step.

    read the evaluated edges        every worker all of them: they are few beside the entities
    join the known edges            a part of the files each
    gather, prepare                 a part of the partitions, of the keys each
    rank                            a part of all candidate rows each: every row is read once by one worker
    finish                          counts added over workers; a part of the buckets each

Where files name the candidates of each query, the cells that they name are read before anything is ranked.

Between two steps lies a barrier, where a fault of one worker stops all.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from itertools import groupby
from operator import attrgetter

import numpy as np
import torch
from attrs import Factory, define, evolve, field

from pbgeval.cluster.resources import anonymous_bytes, resident_bytes
from pbgeval.errors import DataError
from pbgeval.inputs.partitions import BYTES_PER_BEST, MemoryPlan, check_held, plan_memory, sizes_of_sweep
from pbgeval.inputs.protocol import CandidateRange, candidate_ranges
from pbgeval.metrics.breakdowns import GroupClasses
from pbgeval.notation import distinct, is_among
from pbgeval.ranking.backend import Backend, backend_for
from pbgeval.ranking.block_threads import BlockThreads
from pbgeval.ranking.draws import HOST
from pbgeval.ranking.keys import QueryKeys, mixed_bits
from pbgeval.ranking.known_answers import KnownAnswers, KnownFilter
from pbgeval.ranking.query_edges import (
    CompetingEntities,
    EdgeSegment,
    EntityVectors,
    GatheredVectors,
    GroupQueries,
    QueryEdges,
    entities_of_edges,
    group_queries,
)
from pbgeval.ranking.query_group_state import (
    CellSample,
    GroupResult,
    QueryGroupState,
    SampledCells,
    TopCandidates,
    rows_to_keep,
    sample_cells,
)
from pbgeval.ranking.ranking_pass import Shared, rank, rank_given
from pbgeval.ranking.settings import CandidateSets, Kept
from pbgeval.scoring.deferred import Deferred, run_deferred
from pbgeval.scoring.scorer import query_groups
from pbgeval.storage.rows import MemoryRows, Rows, ScratchRows
from pbgeval.worker.context import WorkerContext
from pbgeval.worker.diagnostics import read_query_edges
from pbgeval.worker.dimensions import group_classes, query_dimensions
from pbgeval.worker.finish import count_pools, finish, rank_relations
from pbgeval.worker.known import add_known_digests, candidate_sets, join_all, relation_candidates
from pbgeval.worker.per_edge import PerEdgeFiles
from pbgeval.worker.range_tables import RangeTables
from pbgeval.worker.record import Record

RowsOf = Callable[[str, Sequence[tuple[tuple[int, ...], torch.dtype]]], list[Rows]]  # where rows are kept: see `_rows`


def range_name(part: CandidateRange) -> str:
    """Return a range of candidates as the journal calls it."""
    return f"{part.slot}:{part.start}-{part.stop}"


def range_of_name(name: str) -> CandidateRange:
    """Return the range that the journal calls so."""
    return CandidateRange(*map(int, re.split("[:-]", name)))


def share_rows(done: Iterable[str], units: Sequence[str]) -> bool:
    """Whether some ranges have rows in common with those that are done."""
    ranges = [range_of_name(name) for name in done]
    return any(
        one.slot == part.slot and one.start < part.stop and part.start < one.stop
        for one in map(range_of_name, units)
        for part in ranges
    )


def do_sweep(context: WorkerContext, record: Record, files: PerEdgeFiles) -> tuple[int, GroupClasses]:
    """Rank all evaluated edges against all entities; return how many ranges were read, and the classes of relations."""
    team, config, journal = context.team, context.inputs.config, context.journal
    relation = context.settings.relations[0]  # all have one comparator, and one type of numbers
    context.work.observer.phase("reading edges")
    resident = resident_bytes()  # before what the plan counts is made
    with context.collectively():
        edges = read_query_edges(context)
    sets = candidate_sets(context, distinct(edges.columns.rel_n))
    candidates = relation_candidates(context, sets)
    vectors = EntityVectors(context.global_embeddings, config.max_norm, relation.dtype, context.device)
    takes_all = context.settings.auc.takes_all
    reads_scores = takes_all or config.save_topk is not None or bool(context.inputs.candidate_files)
    backend = backend_for(
        relation.scorer,
        context.device,
        relation.dtype,
        kept=Kept.VALUES if reads_scores else Kept.NOTHING,
        num_cells=edges.num_edges * edges.numbering.num_entities,
    )
    of_query_groups = [
        group_queries(edges, query_group, sets, backend.queries_per_block, by_time=context.inputs.asks_by_time)
        for side in context.settings.ends
        for query_group in query_groups([relation.scorer for relation in context.settings.relations], side)
    ]
    with context.collectively():
        plan = _plan(context, edges, sum(queries.num_keys for queries in of_query_groups), resident)
    filters = []
    if context.work.protocol.filtered:
        keys = {
            side: QueryKeys.of_edges(side, edges.columns, edges.numbering.num_entities)
            for side in context.settings.sides
        }
        filters = join_all(context, keys, edges.columns, plan.pairs_bytes, plan.known_rows)
        add_known_digests(context, record.digests, filters[0])
    context.work.observer.phase("gathering vectors")
    tables = RangeTables.on_device(context, vectors)
    rows_of = partial(_rows, context, tables, plan)
    source = _gather(context, edges, tables, rows_of, plan.rows_per_range)
    done = [range_of_name(name) for name in journal.look(team, context.work.observer, share_rows)]
    if team.rank_in_team == 0:
        team.add(f"{journal.part}rows", sum(part.num_rows for part in done))
    ranges = candidate_ranges(edges.numbering, team, plan.rows_per_range, done)
    states = _states(context, edges, of_query_groups, sets, backend, rows_of, plan.block_threads, source, filters)
    with context.collectively():
        given = [
            read_given(context, edges, one, number, ranges, plan.pairs_bytes)
            for number, one in enumerate(states if context.inputs.candidate_files else ())
        ]
    _prepare(context, states)
    if context.settings.auc.counts:
        with context.collectively():
            count_pools(context, edges, states)
    context.work.observer.phase("scoring")
    _rank(context, edges, states, given, tables, filters, plan, ranges)
    dimensions = query_dimensions(context, distinct(np.concatenate([edges.columns.lhs_n, edges.columns.rhs_n])))
    relations = None if candidates is None else rank_relations(context, edges, candidates, filters, source)
    finish(context, record, edges, states, sets, dimensions, files, relations)
    with context.collectively():
        return len(ranges), group_classes(context, dimensions.training)


def _plan(context: WorkerContext, edges: QueryEdges, num_keys: int, resident: int) -> MemoryPlan:
    config = context.inputs.config
    widest = max(config.dimension_of(name) for name in config.used_entity_types)
    num_queries = edges.num_edges * len(context.settings.sides)
    row_bytes, most_rows = sizes_of_sweep(widest, context.settings.relations[0].dtype, context.device, num_queries)
    limit, threads = config.max_memory_bytes, torch.get_num_threads()
    held = context.held_bytes + num_keys * (config.save_topk or 0) * BYTES_PER_BEST
    plan = plan_memory(limit, resident, edges.num_edges, num_queries, row_bytes, threads, held, most_rows)
    if context.inputs.scorer is None:
        return plan
    # Rows are numbers, and small; a model may score all entities for each range. It is called by one thread.
    longest = max(part.num_rows for part in context.inputs.embeddings.values())
    return evolve(plan, rows_per_range=max(longest, 1), block_threads=1)


def _states(
    context: WorkerContext,
    edges: QueryEdges,
    of_query_groups: list[GroupQueries],
    sets: CandidateSets,
    backend: Backend,
    rows_of: RowsOf,
    block_threads: int,
    source: GatheredVectors,
    filters: Sequence[KnownFilter],
) -> list[QueryGroupState]:
    """Make room for the queries of each query group, and draw what the pooled AUC compares of it."""
    config, settings = context.inputs.config, context.settings
    threads = BlockThreads.of_device(context.device, block_threads)
    competing = [
        CompetingEntities(
            *edges.numbering.range_of_type(queries.query_group.candidate_type),
            cache(partial(sets.of, queries.query_group.hidden)),
            sets.by_relation,
        )
        for queries in of_query_groups
    ]
    samples: list[SampledCells | None] = [None] * len(of_query_groups)
    if not context.inputs.candidate_files:  # else it is drawn among those
        samples = threads.map(
            lambda number: sample_cells(edges, of_query_groups[number], competing[number], settings.auc, settings.seed),
            range(len(of_query_groups)),
        )
    dtype = context.settings.relations[0].prepared_dtype
    states = []
    for number, queries in enumerate(of_query_groups):
        query_group = queries.query_group
        kept = rows_to_keep(queries, config.dimension_of(query_group.candidate_type), dtype)
        prepared, *true_scores = rows_of(f"queries-{number}", kept)
        asked = edges.columns.select(queries.edge_Q)
        state = QueryGroupState(
            queries,
            competing[number],
            backend,
            source,
            prepared,
            true_scores,
            context.settings.relations[0].dtype,
            context.device,
            samples[number],
            in_time_Q=next((one.of_side[query_group.hidden].index_of(asked) for one in filters[1:]), None),
        )
        if config.save_topk is not None:
            state.result.top = TopCandidates.zero(
                (queries.num_keys, config.save_topk), answers_of(edges, queries) if config.topk_metrics else None
            )
        states.append(state)
    return states


def answers_of(edges: QueryEdges, queries: GroupQueries) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Return what tells of (keys of a query group, numbers) which are evaluated answers."""
    num_entities = edges.numbering.num_entities
    codes = distinct(queries.key_Q * num_entities + queries.true_Q)
    return lambda key, number: is_among(key * num_entities + number, codes)


def _rows(
    context: WorkerContext,
    tables: RangeTables,
    plan: MemoryPlan,
    name: str,
    kept: Sequence[tuple[tuple[int, ...], torch.dtype]],
) -> list[Rows]:
    """Return where rows of shapes and types are kept.

    One worker keeps them on the device or in memory, where there is room; else they are in the scratch folder.
    """
    if context.team.size == 1:
        if tables.takes(sum(math.prod(shape) * dtype.itemsize for shape, dtype in kept)):
            return [MemoryRows.empty(*of, context.device) for of in kept]
        if plan.queries_in_memory:
            return [MemoryRows.empty(*of, HOST) for of in kept]
    found = [ScratchRows(context.scratch, f"{name}-{number}", *of) for number, of in enumerate(kept)]
    with context.collectively():
        for rows in found if context.team.rank_in_team == 0 else ():
            rows.create()
    return [*found]


def _gather(
    context: WorkerContext,
    edges: QueryEdges,
    tables: RangeTables,
    rows_of: RowsOf,
    rows_per_range: int,
) -> GatheredVectors:
    """The first sweep: every worker looks up the evaluated entities in its part of the partitions."""
    config = context.inputs.config
    types = tuple(config.used_entity_types)
    numbers = entities_of_edges(edges, types)
    dtype = torch.float32 if context.inputs.scorer is None else torch.float64  # numbers, not vectors
    vectors = {
        name: rows_of(f"vectors-{name}", [((len(numbers[name]), config.dimension_of(name)), dtype)])[0]
        for name in types
    }
    source = GatheredVectors(edges, tables.vectors, numbers, vectors)

    def is_touched(part: CandidateRange) -> bool:
        first, _ = edges.numbering.range_of_slot(part.slot)
        of_type = numbers[edges.numbering.slots[part.slot][0]]
        low, high = np.searchsorted(of_type, [first + part.start, first + part.stop])
        return bool(low < high)

    with context.collectively():
        parts = [part for part in candidate_ranges(edges.numbering, context.team, rows_per_range) if is_touched(part)]
        for part, table in zip(parts, tables.first(parts), strict=True):
            source.add(table, edges.numbering.range_of_slot(part.slot)[0] + part.start)
    return source


def _prepare(context: WorkerContext, states: list[QueryGroupState]) -> None:
    """Prepare a part of the queries, as each worker does."""
    with context.collectively():

        def prepare(deferred: Deferred) -> None:
            for one in states:
                one.prepare(context.team.part(one.queries.num_keys))
                one.defer_true_values(deferred)

        run_deferred(context.device, prepare)


def _rank(
    context: WorkerContext,
    edges: QueryEdges,
    states: list[QueryGroupState],
    given: list[GivenCells],
    tables: RangeTables,
    filters: Sequence[KnownFilter],
    plan: MemoryPlan,
    ranges: list[CandidateRange],
) -> None:
    """The second sweep: every worker streams its part of the candidates past all queries."""
    journal, numbering = context.journal, edges.numbering
    results = _SweepResults(context, states)
    watch = context.team.watch(journal.part)
    threads = BlockThreads.of_device(context.device, plan.block_threads)
    keys_of = [
        one.of_side[state.hidden].index_of(edges.columns.select(state.queries.edge_of_keys))
        for one in filters[:1]
        for state in states
    ]
    types = [one.queries.query_group.candidate_type for one in states]

    with context.collectively(watch), journal.saved_at_signals(results.write):
        journal.take(results.add)
        of_ranges = tables.last([part for part in ranges if numbering.slots[part.slot][0] in types])
        for slot, parts in groupby(ranges, attrgetter("slot")):
            first, _ = numbering.range_of_slot(slot)
            asked = [number for number, name in enumerate(types) if name == numbering.slots[slot][0]]
            of_slot = [{side: one.store.pairs(side, slot) for side in context.settings.ends} for one in filters]
            for part in parts:
                journal.begin(range_name(part))
                with journal.changing(is_brief=False):
                    if asked:
                        table = next(of_ranges)
                    counting = []
                    for number in asked:
                        one, start = states[number], first + part.start
                        of_part = (pairs[one.hidden].in_rows(part.start, part.stop) for pairs in of_slot)
                        left_out = [KnownAnswers(of.key_P, of.entity_id_P + first) for of in of_part]
                        if left_out:
                            left_out[0] = left_out[0].select(keys_of[number])
                        if given:
                            cells = given[number].within(part)
                            rank_given(one, table, start, cells, *left_out)
                        else:
                            counting.append((one, partial(rank, one, table, start, threads, *left_out)))
                        if context.device.type == "cpu" or number == asked[-1]:  # a GPU waits once for all
                            _count(context.device, counting)
                            counting = []
                    if context.inputs.config.max_memory_bytes is not None:
                        check_held(context.inputs.config.max_memory_bytes, anonymous_bytes())
                    if journal.finish(range_name(part)):
                        results.write()
                watch.tick()
                context.work.observer.candidates_done(
                    context.team.add(f"{journal.part}rows", part.num_rows), numbering.num_entities
                )
            del of_slot  # before the next ones come
        with journal.changing():
            results.finish()


def _count(device: torch.device, counting: Sequence[tuple[QueryGroupState, Callable[..., None]]]) -> None:
    """Count query groups against a range; their results are delivered together."""
    copies = [one.result.copy() if device.type != "cpu" and one.backend.keeps_scores else None for one, _ in counting]

    def undo() -> None:
        for (one, _), copy in zip(counting, copies, strict=True):
            one.result = copy or one.result  # counts wait to be delivered, scores do not

    def work(deferred: Deferred) -> None:
        shared: Shared = {}
        for one, count in counting:
            count(deferred=deferred, shared=shared)
            if one.result.top is not None:
                one.result.top.defer(deferred)

    run_deferred(device, work, undo)


@define(eq=False)
class _SweepResults:
    """What all query groups have met: in their states since the last entry of the journal, and here before it."""

    context: WorkerContext
    states: list[QueryGroupState]
    _total: list[GroupResult] = field(
        init=False, default=Factory(lambda self: [one.result.empty() for one in self.states], takes_self=True)
    )

    def add(self, arrays: Sequence[np.ndarray]) -> None:
        """Add an entry."""
        of_results = iter(arrays)
        for total in self._total:
            total.add_packed(of_results)

    def write(self, *, at_end: bool = False) -> None:
        """Write an entry, and begin anew."""
        with self.context.journal.pace.counted():
            arrays = [array for one in self.states for array in one.result.pack()]
            self.context.journal.write(arrays, at_end=at_end)
            self.add(arrays)
            for one in self.states:
                one.result = one.result.empty()

    def finish(self) -> None:
        """Give the states the total."""
        self.write(at_end=True)
        for one, total in zip(self.states, self._total, strict=True):
            one.result = total


# Files of given candidates -> the cells (query, candidate) of each query group, by the slot of the candidate.


ROWS_AT_A_TIME = 1 << 14  # of a file of candidates


@define(eq=False)
class GivenCells:
    """What the lists of one query group name in this worker's part of the candidates."""

    context: WorkerContext
    name: str  # of its scratch files, this worker's own
    budget_bytes: int
    _of_slot: dict[int, list[np.ndarray]] = field(factory=dict)  # int64 (2, n): query, number
    _num_bytes: int = 0

    def add(self, query: np.ndarray, number: np.ndarray) -> None:
        """Add cells, in memory up to a budget and then in the scratch folder."""
        slot = self.context.numberer.numbering.slot_of(number)
        for of_slot in distinct(slot).tolist():
            part = np.stack([query[slot == of_slot], number[slot == of_slot]])
            self._of_slot.setdefault(of_slot, []).append(part)
            self._num_bytes += part.nbytes
        if self._num_bytes > self.budget_bytes:
            for of_slot, parts in self._of_slot.items():
                self.context.scratch.append(self._name(of_slot), np.concatenate(parts, axis=1).T)
            self._of_slot, self._num_bytes = {}, 0

    def within(self, part: CandidateRange) -> CellSample:
        """Return the cells of a range of candidates, arranged by query."""
        spilled = self.context.scratch.read(self._name(part.slot), np.int64).reshape(-1, 2).T
        query, number = np.concatenate([spilled, *self._of_slot.get(part.slot, [])], axis=1)
        first, _ = self.context.numberer.numbering.range_of_slot(part.slot)
        inside = (number >= first + part.start) & (number < first + part.stop)
        query, number = query[inside], number[inside]
        order = np.lexsort((number, query))
        return CellSample(query[order], number[order])

    def _name(self, slot: int) -> str:
        return f"{self.name}-{self.context.team.rank_in_team}-{slot}"


def read_given(
    context: WorkerContext,
    edges: QueryEdges,
    state: QueryGroupState,
    number: int,
    ranges: list[CandidateRange],
    budget: int,
) -> GivenCells:
    """Read the lists of a query group's queries; the pooled AUC samples all workers' cells, or compares every cell.

    Args:
        context: of this worker.
        edges: all edges.
        state: the query group, which gets the sample.
        number: of the query group.
        ranges: this worker's part of the candidates; other cells are not kept.
        budget: bytes of cells in memory.

    Returns:
        The cells, without true entities and without those that restrictions bar.
    """
    cells, queries = GivenCells(context, f"given-{number}", budget), state.queries
    position_E = np.full(edges.num_edges, -1, np.int64)
    position_E[queries.edge_Q] = np.arange(queries.num_queries)
    allowed = context.inputs.restrictions.entities
    own = np.array(
        [edges.numbering.range_of_slot(part.slot)[0] + at for part in ranges for at in (part.start, part.stop)]
    )
    auc = context.settings.auc
    kept_Q = np.ones(queries.num_queries, bool)
    is_answer = answers_of(edges, queries) if context.inputs.config.topk_metrics else None
    others_Q = np.zeros(queries.num_queries, np.uint64)  # a sum over the candidates that are no answers
    sampled: list[np.ndarray] = [np.empty((2, 0), np.int64)]
    for segment in edges.segments:
        for edge, entity_id_QK in _lists(context, edges, segment, queries, position_E):
            query_Q = position_E[edge]
            query, entity_id_P = np.repeat(query_Q, entity_id_QK.shape[1]), entity_id_QK.reshape(-1)
            if is_answer is not None:
                other_QK = ~is_answer(queries.key_Q[query], entity_id_P).reshape(entity_id_QK.shape)
                others_Q[query_Q] = (mixed_bits(entity_id_P).reshape(entity_id_QK.shape) * other_QK).sum(1)
            competes = _compete(queries, query, entity_id_P, allowed)
            query, entity_id_P = query[competes], entity_id_P[competes]
            mine = np.searchsorted(own, entity_id_P, "right") % 2 == 1
            cells.add(query[mine], entity_id_P[mine])
            words_QD = auc.words(
                context.settings.seed, segment.origin.place, queries.query_group.hidden, edges.row_E[edge]
            )
            if words_QD is not None:
                kept_Q[query_Q] = auc.true_is_kept(words_QD).numpy()
                drawn, place = (index.numpy() for index in auc.cells(words_QD, entity_id_QK.shape[1]))
                of_draw = np.stack([query_Q[drawn], entity_id_QK[drawn, place]])
                sampled.append(of_draw[:, _compete(queries, of_draw[0], of_draw[1], allowed)])
    _check_lists_agree(edges, queries, others_Q)
    if not auc.exact:
        state.sample = SampledCells(CellSample.by_entity_id(*np.concatenate(sampled, axis=1)), kept_Q)
    return cells


def _check_lists_agree(edges: QueryEdges, queries: GroupQueries, others_Q: np.ndarray) -> None:
    """Refuse queries of one key whose lists hold other candidates, by a sum over those that are no answers."""
    unlike = np.flatnonzero(others_Q != others_Q[np.searchsorted(queries.key_Q, queries.key_Q)])
    if unlike.size:
        raise DataError(
            f"{edges.label(int(queries.edge_Q[unlike[0]]))}: topk_metrics needs one list of candidates for all answers "
            f"of a {queries.query_group.hidden.label} query, and this edge has another one; give all of them the same"
        )


def _compete(queries: GroupQueries, query: np.ndarray, number: np.ndarray, allowed: np.ndarray | None) -> np.ndarray:
    competes: np.ndarray = number != queries.true_Q[query]
    return competes if allowed is None else competes & is_among(number, allowed)


def _lists(
    context: WorkerContext, edges: QueryEdges, segment: EdgeSegment, queries: GroupQueries, position_E: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (edges, numbers that their lists name) of a segment's queries in a query group, int64 (Q,) and (Q, K)."""
    edge = np.arange(segment.start, segment.stop)
    edge = edge[position_E[edge] >= 0]
    if not edge.size:
        return
    path_index, bucket = segment.origin.place
    file = context.inputs.candidate_files[path_index][bucket]
    entity_type = queries.query_group.candidate_type
    partitions = range(context.inputs.config.entities[entity_type].num_partitions)
    offset_P = np.array([edges.numbering.offset(entity_type, partition) for partition in partitions])
    sizes = [[context.inputs.embeddings[entity_type, partition].num_rows for partition in partitions]]
    windows = edges.row_E[edge] // ROWS_AT_A_TIME
    for window in distinct(windows).tolist():
        of_window = edge[windows == window]
        rows = edges.row_E[of_window]
        ids_EK, partitions_EK = file.read(queries.query_group.hidden, rows, np.zeros_like(rows), sizes)
        yield of_window, offset_P[partitions_EK] + ids_EK
