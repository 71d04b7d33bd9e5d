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
from torch import Tensor

from pbgeval.cluster.resources import anonymous_bytes, resident_bytes
from pbgeval.inputs.partitions import BYTES_PER_BEST, MemoryPlan, check_held, plan_memory, rows_ahead
from pbgeval.inputs.protocol import CandidateRange, candidate_ranges
from pbgeval.jit import is_installed
from pbgeval.notation import Side, distinct
from pbgeval.ranking import blocks, compiled, fused
from pbgeval.ranking.block_threads import BlockThreads
from pbgeval.ranking.cells import ScoreCollector
from pbgeval.ranking.constraints import CandidateSets
from pbgeval.ranking.general import BlockCounter
from pbgeval.ranking.keys import QueryKeys
from pbgeval.ranking.known_answers import KnownPairs, PairStore
from pbgeval.ranking.query_edges import ContestQueries, QueryEdges, contest_queries
from pbgeval.ranking.sweep_cells import KnownAnswers, SampledCells, sample_cells
from pbgeval.ranking.sweep_given import rank_given, score_cells
from pbgeval.ranking.sweep_pass import (
    EntityVectors,
    GatheredEntities,
    Rows,
    SweepState,
    entities_of_edges,
    gather,
    prepare,
)
from pbgeval.ranking.sweep_rank import RangeSinks, rank
from pbgeval.ranking.topk import TopCandidates
from pbgeval.ranking.type_gains import TypeGains
from pbgeval.scoring import compiled_hashes
from pbgeval.scoring.contest import contests
from pbgeval.scoring.entities import EntityTable
from pbgeval.storage.rows import MemoryRows, ScratchRows
from pbgeval.worker.collective import in_step
from pbgeval.worker.context import Bench, Found
from pbgeval.worker.diagnostics import read_query_edges
from pbgeval.worker.dimensions import group_classes, query_dimensions
from pbgeval.worker.finish import finish
from pbgeval.worker.given import Contestants, read_given
from pbgeval.worker.known import candidate_sets, join_all
from pbgeval.worker.per_edge import PerEdgeFiles
from pbgeval.worker.record import Record
from pbgeval.worker.type_gains import type_gains

# What the second sweep has counted: since the last entry of the journal, and in all.

_ARRAYS = 8  # per contest: counts; query, bits and mark of each score; best candidates; three of queries for types


@define(eq=False)
class SweepResults:
    """The results of all contests; ranges of candidates add to the contestants themselves, which start at zero."""

    contestants: list[Contestants]
    _counts: list[Tensor] = field(init=False)
    _collectors: list[ScoreCollector] = field(init=False)
    _tops: list[TopCandidates | None] = field(init=False)
    _gains: list[TypeGains | None] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._counts = [torch.zeros_like(one.state.counts_6Q) for one in self.contestants]
        self._collectors = [ScoreCollector() for _ in self.contestants]
        self._tops = [
            None if one.top is None else TopCandidates(one.top.num_keys, one.top.k) for one in self.contestants
        ]
        self._gains = [None if one.gains is None else one.gains.empty() for one in self.contestants]

    def pack(self) -> list[np.ndarray]:
        """Return what was counted since `clear`, as arrays of integers (n,)."""
        arrays = []
        for one in self.contestants:
            nothing = np.empty(0, np.int64)
            best = nothing if one.top is None else one.top.packed()
            gains = [nothing] * 3 if one.gains is None else one.gains.pack()
            arrays += [one.state.counts_6Q.numpy().reshape(-1), *one.collector.pack(), best, *gains]
        return arrays

    def add_packed(self, arrays: Sequence[np.ndarray]) -> None:
        """Add to the total what was packed."""
        for number in range(len(self.contestants)):
            counts, query, bits, known, best, *of_gains = arrays[_ARRAYS * number : _ARRAYS * (number + 1)]
            self._counts[number] += torch.from_numpy(counts).view_as(self._counts[number])
            self._collectors[number].add_packed(query, bits, known)
            top = self._tops[number]
            if top is not None:
                top.merge_packed(best)
            gains = self._gains[number]
            if gains is not None:
                gains.add_packed(of_gains)

    def clear(self) -> None:
        """Begin anew: what was counted is in an entry, and in the total."""
        for one in self.contestants:
            one.state.counts_6Q.zero_()
            one.collector = ScoreCollector()
            if one.top is not None:
                one.top = TopCandidates(one.top.num_keys, one.top.k)
            if one.gains is not None:
                one.gains = one.gains.empty()

    def finish(self) -> None:
        """Give the contestants the total, what was counted since `clear` included."""
        for one, counts, collector, top, gains in zip(
            self.contestants, self._counts, self._collectors, self._tops, self._gains, strict=True
        ):
            one.state.counts_6Q += counts
            one.collector.extend(collector)
            if top is not None and one.top is not None:
                one.top.merge_packed(top.packed())
            if gains is not None and one.gains is not None:
                one.gains.add_packed(gains.pack())


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


FUSED_QUERIES_PER_BLOCK = 1 << 14  # on a GPU, so that it has much to do at a time; changes no number


def do_sweep(bench: Bench, record: Record, files: PerEdgeFiles) -> Found:
    """Rank all evaluated edges against all entities."""
    edges = in_step(bench.team, lambda: read_query_edges(bench))
    resident = in_step(bench.team, lambda: _resident(bench))  # before what the plan counts is made
    sets = candidate_sets(bench, distinct(edges.rel_E))
    vectors = EntityVectors(
        bench.global_embeddings, bench.inputs.config.max_norm, bench.relations[0].dtype, bench.device
    )
    of_contests = [
        contest_queries(edges, contest, sets, _queries_per_block(bench))
        for side in bench.settings.sides
        for contest in contests([relation.scorer for relation in bench.relations], side)
    ]
    keys = {side: _keys_of_side(edges, of_contests, side) for side in bench.settings.sides}
    plan = in_step(bench.team, lambda: _plan(bench, edges, sum(queries.num_keys for queries in of_contests), resident))
    pairs = join_all(bench, keys, plan.pairs_bytes, plan.known_rows) if bench.work.protocol.filtered else None
    entities = _gather(bench, edges, vectors, plan)
    done = bench.journal.look(bench.team, bench.work.observer, share_rows)
    ranges = _ranges(bench, plan, [range_of_name(name) for name in done])
    samples = _samples(bench, edges, of_contests, sets, plan)
    contestants = [
        _contestants(bench, edges, queries, samples[number], keys[queries.contest.hidden], plan, number, ranges)
        for number, queries in enumerate(of_contests)
    ]
    _prepare(bench, edges, contestants, entities, vectors)
    _rank(bench, edges, contestants, sets, vectors, pairs, plan, ranges)
    touched = distinct(np.concatenate([edges.lhs_E, edges.rhs_E]))
    dimensions = query_dimensions(bench, touched)
    finish(bench, record, edges, contestants, sets, dimensions, files)
    return Found(len(ranges), in_step(bench.team, lambda: group_classes(bench, dimensions.training)))


def _queries_per_block(bench: Bench) -> int | None:
    if bench.inputs.scorer is not None:
        return getattr(bench.inputs.scorer, "queries_per_block", None)
    return FUSED_QUERIES_PER_BLOCK if _is_fused(bench) else None


def _resident(bench: Bench) -> int:
    """Return what this process holds, what compiled loops take among it."""
    if bench.inputs.config.max_memory_bytes is not None and bench.device.type == "cpu" and is_installed():
        compiled.load(bench.relations[0].prepared_dtype)
        blocks.load()
        compiled_hashes.load()
    return resident_bytes()


def _plan(bench: Bench, edges: QueryEdges, num_keys: int, resident: int) -> MemoryPlan:
    config = bench.inputs.config
    widest = max(config.dimension_of(name) for name in config.used_entity_types) + 3
    num_queries = edges.num_edges * len(bench.settings.sides)
    itemsize = torch.empty(0, dtype=bench.relations[0].dtype).element_size()
    limit, threads = config.max_memory_bytes, torch.get_num_threads()
    held = bench.held_bytes + num_keys * (config.save_topk or 0) * BYTES_PER_BEST
    plan = plan_memory(limit, resident, edges.num_edges, num_queries, widest * itemsize, threads, held)
    if bench.inputs.scorer is None:
        return plan
    # Rows are numbers, and small; a model may score all entities for each range. It is called by one thread.
    longest = max(part.num_rows for part in bench.inputs.embeddings.values())
    return evolve(plan, rows_per_range=max(longest, 1), block_threads=1)


def _keys_of_side(edges: QueryEdges, of_contests: list[ContestQueries], side: Side) -> QueryKeys:
    num_entities = edges.numbering.num_entities
    codes = [
        queries.rel_K * num_entities + queries.known_K for queries in of_contests if queries.contest.hidden is side
    ]
    return QueryKeys(side, num_entities, distinct(np.concatenate([np.empty(0, np.int64), *codes])))


def _samples(
    bench: Bench, edges: QueryEdges, of_contests: list[ContestQueries], sets: CandidateSets, plan: MemoryPlan
) -> list[SampledCells | None]:
    """Draw what the pooled AUC compares of each contest; of given candidates it is drawn among those."""
    if bench.inputs.candidate_files:
        return [None] * len(of_contests)
    threads = BlockThreads.of_device(bench.device, plan.block_threads)
    auc, seed = bench.settings.auc, bench.settings.seed
    return threads.map(lambda queries: sample_cells(edges, queries, sets, auc, seed), of_contests)


def _contestants(
    bench: Bench,
    edges: QueryEdges,
    queries: ContestQueries,
    sample: SampledCells | None,
    keys: QueryKeys,
    plan: MemoryPlan,
    number: int,
    ranges: list[CandidateRange],
) -> Contestants:
    dtype = bench.relations[0].prepared_dtype
    dimension = bench.inputs.config.dimension_of(queries.contest.candidate_type)
    width, true_width = queries.contest.width(dimension), queries.contest.true_width(dimension, dtype)
    state = SweepState(
        queries,
        _rows(bench, f"queries-{number}", queries.num_keys, width, dtype, plan),
        _rows(bench, f"true-{number}", queries.num_queries, true_width, dtype, plan),
        _is_fused(bench),
    )
    codes = queries.rel_K * edges.numbering.num_entities + queries.known_K
    topk = bench.inputs.config.save_topk
    given = None
    if bench.inputs.candidate_files:
        given, sample = in_step(bench.team, lambda: read_given(bench, edges, queries, number, ranges, plan.pairs_bytes))
    top = TopCandidates(queries.num_keys, topk) if topk is not None else None
    gains = type_gains(bench, edges, queries)
    return Contestants(state, np.searchsorted(keys.codes_K, codes), sample, given, top=top, gains=gains)


def _is_fused(bench: Bench) -> bool:
    """Whether one kernel on a GPU counts: nobody asks for the scores that it forgets."""
    wants_best = bench.inputs.config.save_topk is not None or bench.inputs.types is not None
    wants_scores = wants_best or bench.settings.auc.exact
    relation = bench.relations[0]  # all have one comparator, and one type of numbers: float64 for certified ranks
    serves = fused.serves(relation.scorer.comparator, bench.device, relation.dtype)
    return serves and not wants_scores and not bench.inputs.candidate_files


def _rows(bench: Bench, name: str, num_rows: int, width: int, dtype: torch.dtype, plan: MemoryPlan) -> Rows:
    """Return where rows are kept: in memory where one worker has room for them, else in the scratch folder."""
    if bench.team.size == 1 and plan.queries_in_memory:
        return MemoryRows(num_rows, width, dtype)
    rows = ScratchRows(bench.scratch, name, num_rows, width, dtype)

    def create() -> None:
        if bench.team.rank_in_team == 0:
            rows.create()

    in_step(bench.team, create)
    return rows


def _gather(bench: Bench, edges: QueryEdges, vectors: EntityVectors, plan: MemoryPlan) -> GatheredEntities:
    """The first sweep: every worker looks up the evaluated entities in its part of the partitions."""
    config = bench.inputs.config
    types = tuple(config.used_entity_types)
    numbers = entities_of_edges(edges, types)
    dtype = torch.float32 if bench.inputs.scorer is None else torch.float64  # numbers, not vectors
    entities = GatheredEntities(
        numbers,
        {
            name: _rows(bench, f"vectors-{name}", len(numbers[name]), config.dimension_of(name), dtype, plan)
            for name in types
        },
    )

    def is_touched(part: CandidateRange) -> bool:
        first, _ = edges.numbering.range_of_slot(part.slot)
        of_type = numbers[edges.numbering.slots[part.slot][0]]
        low, high = np.searchsorted(of_type, [first + part.start, first + part.stop])
        return bool(low < high)

    def work() -> None:
        parts = [part for part in _ranges(bench, plan) if is_touched(part)]
        for part, table in zip(parts, _tables(bench, vectors, parts), strict=True):
            gather(table, edges.numbering.range_of_slot(part.slot)[0] + part.start, entities)

    in_step(bench.team, work)
    return entities


def _ranges(bench: Bench, plan: MemoryPlan, done: Sequence[CandidateRange] = ()) -> list[CandidateRange]:
    """Return this worker's part of all rows of all partitions that are not done."""
    team = bench.team
    return candidate_ranges(bench.numberer.numbering, team.rank_in_team, team.size, plan.rows_per_range, done)


def _tables(bench: Bench, vectors: EntityVectors, parts: Sequence[CandidateRange]) -> Iterator[EntityTable]:
    """Read ranges of rows, one after the other, and look at each row."""
    config, slots = bench.inputs.config, bench.numberer.numbering.slots

    def read(part: CandidateRange) -> torch.Tensor:
        return bench.inputs.embeddings[slots[part.slot]].read_rows(part.start, part.stop)

    of_parts = rows_ahead(parts, read, bench.device)
    for part in parts:
        table = vectors.table(*slots[part.slot], next(of_parts), part.start)
        table.check(refuse_zero_vectors=config.comparator == "cos", has_bias=config.bias)
        yield table


def _prepare(
    bench: Bench,
    edges: QueryEdges,
    contestants: list[Contestants],
    entities: GatheredEntities,
    vectors: EntityVectors,
) -> None:
    def work() -> None:
        for one in contestants:
            num_keys, rank_in_team, size = one.state.queries.num_keys, bench.team.rank_in_team, bench.team.size
            share = (num_keys * rank_in_team // size, num_keys * (rank_in_team + 1) // size)
            prepare(one.state, edges, entities, vectors, share)

    in_step(bench.team, work)


def _rank(
    bench: Bench,
    edges: QueryEdges,
    contestants: list[Contestants],
    sets: CandidateSets,
    vectors: EntityVectors,
    pairs: PairStore | None,
    plan: MemoryPlan,
    ranges: list[CandidateRange],
) -> None:
    """The second sweep: every worker streams its part of the candidates past all queries."""
    results, watch = SweepResults(contestants), bench.team.watch(bench.journal.part)
    counter = BlockCounter()
    threads = BlockThreads.of_device(bench.device, plan.block_threads)

    def write() -> None:
        with bench.journal.counted():
            arrays = results.pack()
            bench.journal.write(arrays)
            results.add_packed(arrays)
            results.clear()

    def work() -> None:
        bench.journal.take(results.add_packed)
        total = sum(part.num_rows for part in ranges)
        done = 0
        types = {one.state.queries.contest.candidate_type for one in contestants}
        tables = _tables(bench, vectors, [part for part in ranges if edges.numbering.slots[part.slot][0] in types])
        for part, of_slots in _with_known(bench, ranges, pairs):
            bench.journal.begin(range_name(part))
            entity_type = edges.numbering.slots[part.slot][0]
            taking_part = [one for one in contestants if one.state.queries.contest.candidate_type == entity_type]
            if taking_part:
                table = next(tables)
                for one in taking_part:
                    known = _known_in_range(one, of_slots, part, edges) if of_slots is not None else None
                    cells = one.sample.cells if one.sample is not None else None
                    first_number = edges.numbering.range_of_slot(part.slot)[0] + part.start
                    if one.given is None:
                        sinks = RangeSinks(cells, one.collector, one.top, one.gains)
                        rank(one.state, edges, table, first_number, sets, vectors.dtype, known, counter, threads, sinks)
                        continue
                    named = one.given.within(part)
                    collector = one.collector if cells is None else None
                    rank_given(one.state, edges, table, first_number, vectors.dtype, named, known, collector)
                    if cells is not None:
                        score_cells(one.state, edges, table, first_number, vectors.dtype, cells, known, one.collector)
            check_held(bench.inputs.config.max_memory_bytes, anonymous_bytes())
            if bench.journal.finish(range_name(part)):
                write()
            watch.tick()
            done += part.num_rows
            bench.work.observer.candidates_done(done, total)

        if bench.journal.is_worth_it:
            write()
        results.finish()

    in_step(bench.team, work, watch)


def _with_known(
    bench: Bench, ranges: list[CandidateRange], pairs: PairStore | None
) -> Iterator[tuple[CandidateRange, dict[Side, KnownPairs] | None]]:
    """Yield ranges with the known answers of their slot, which are read once per slot."""
    slot, of_slot = -1, None
    for part in ranges:
        if pairs is not None and part.slot != slot:
            of_slot = None  # the last slot's go before the next ones come
            slot, of_slot = part.slot, {side: pairs.pairs(side, part.slot) for side in bench.settings.sides}
        yield part, of_slot


def _known_in_range(
    one: Contestants, of_slot: dict[Side, KnownPairs], part: CandidateRange, edges: QueryEdges
) -> KnownAnswers:
    """Return the known answers of a contest's keys in a range of candidates."""
    key_P, row_P = of_slot[one.state.hidden].in_rows(part.start, part.stop)
    number_P = row_P + edges.numbering.range_of_slot(part.slot)[0]
    if not one.keys.size:
        return KnownAnswers(np.empty(0, np.int64), np.empty(0, np.int64))
    if one.keys[-1] == one.keys.size - 1:  # the side's first keys, usually all: a key's index is the key
        first = int(np.searchsorted(key_P, one.keys.size))
        return KnownAnswers(key_P[:first], number_P[:first])
    at = np.minimum(np.searchsorted(one.keys, key_P), one.keys.size - 1)
    of_contest = one.keys[at] == key_P
    return KnownAnswers(at[of_contest], number_P[of_contest])
