"""Counts of all ranges of candidates, and gains of queries for types -> statistics: the end of a sweep."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from pbgeval.inputs.edges import RowsOfBucket
from pbgeval.metrics.ndcg import num_values, type_values
from pbgeval.notation import EntityNumbering, Side, is_among
from pbgeval.ranking.contest_state import ContestState
from pbgeval.ranking.draws import DrawStream
from pbgeval.ranking.known_answers import KnownOfEdges, key_frequency, repeated_keys
from pbgeval.ranking.query_edges import ContestQueries, EdgeSegment, GatheredVectors, QueryEdges, outside_queries
from pbgeval.ranking.relations import EDGES_PER_BLOCK, HiddenRelations, RelationCandidates
from pbgeval.ranking.settings import CandidateSets
from pbgeval.ranking.tally import SideResult, SideTally
from pbgeval.ranking.type_gains import GainLevels, TypeEntities, TypeGains, TypeTruth
from pbgeval.stats.groups import GroupKey, ScorePool, TypeStats, sortable_int32, with_clusters
from pbgeval.stats.ranks import QueryCounts
from pbgeval.worker.collective import collectively
from pbgeval.worker.context import WorkerContext
from pbgeval.worker.dimensions import QueryDimensions
from pbgeval.worker.per_edge import PerEdgeFiles
from pbgeval.worker.record import Record


def merge_results(context: WorkerContext, states: list[ContestState]) -> None:
    """Give every worker what candidates have added on all of them, but for scores; every worker takes part."""
    for one in states:
        context.team.sum_(one.result.counts_NQ)
    asked = [(number, one) for number, one in enumerate(states) if one.result.top or one.result.gains]
    if context.team.size == 1 or not asked:
        return

    with collectively(context.team):
        for number, one in asked:
            for part, array in enumerate(one.result.pack()[4:]):
                context.scratch.append(f"result-{number}-{part}", array.astype(np.int64))
    with collectively(context.team):
        for number, one in asked:
            merged = one.result.empty()
            best, *gains = (context.scratch.read(f"result-{number}-{part}", np.int64) for part in range(4))
            if merged.top is not None:
                merged.top.merge_packed(best)
            if merged.gains is not None:
                shape = (context.team.size, merged.gains.excluded_LH.size)
                merged.gains.add_packed([*gains[:2], gains[2].reshape(shape).sum(0)])
            one.result.top, one.result.gains = merged.top, merged.gains


# The best candidates that all workers have met -> files, query by query (`save_topk`).


def write_best(
    edges: QueryEdges, states: list[ContestState], key: GroupKey, start: int, stop: int, files: PerEdgeFiles
) -> None:
    """Write the best candidates of the queries of consecutive edges of a bucket."""
    for one in states:
        top, queries = one.result.top, one.queries
        if top is None or one.hidden is not key.side:
            continue
        inside = np.flatnonzero((queries.edge_Q >= start) & (queries.edge_Q < stop))
        inside = inside[np.argsort(queries.edge_Q[inside])]
        best = top.of_keys(queries.key_Q[inside])
        listed = best.number_Kk >= 0
        real = one.comparator.real_scores(torch.from_numpy(best.score_Kk)).numpy()
        entity, partition = _places(edges.numbering, best.number_Kk)
        files.write_best(
            key,
            edges.row_E[queries.edge_Q[inside]],
            {
                "entity": np.where(listed, entity, -1),
                "partition": np.where(listed, partition, -1),
                "score": np.where(listed, real, np.nan),
                "known": best.known_Kk & listed & (best.number_Kk != queries.true_Q[inside][:, None]),
            },
        )


def _places(numbering: EntityNumbering, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return row and partition of entities; of no meaning where the number is negative."""
    slot = numbering.slot_of(np.maximum(numbers, 0))
    partition_of_slot = np.array([partition for _, partition in numbering.slots], np.int64)
    return numbers - numbering.boundaries[slot], partition_of_slot[slot]


EDGES_AT_A_TIME = 1 << 17


@frozen(eq=False)
class _SideTable:
    """All evaluated edges, as queries that hide one side."""

    counts_NE: Tensor  # int64
    outside_E: np.ndarray  # bool: not ranked
    true_image_E: np.ndarray  # int32: order image of the true score
    true_kept_E: np.ndarray  # bool: whether the pooled AUC compares it


def finish(
    context: WorkerContext,
    record: Record,
    edges: QueryEdges,
    states: list[ContestState],
    sets: CandidateSets,
    dimensions: QueryDimensions,
    files: PerEdgeFiles,
    relations: SweptRelations | None = None,
) -> None:
    """Add counts over all workers, and record a part of the edges; every worker takes part."""
    merge_results(context, states)
    record_types(context, record, states, sets)
    block = edges.columns
    for side in context.settings.sides:
        of_side = [one for one in states if one.hidden is side]
        for one in of_side:
            _record_competitors(context, record, edges, one)
        table = _side_table(edges, of_side, outside_queries(edges, side, sets)) if side.is_in("both") else None
        num_entities = edges.numbering.num_entities
        repeated = repeated_keys(side, [block], num_entities)
        for key, start, stop in _share(context, edges, side):
            rows = np.arange(start, stop)
            sampled = None if context.evaluated.sample is None else context.evaluated.sample[key.path_index, key.bucket]
            if table is not None:
                result = _result(context, table, start, stop, sampled, edges)
            else:
                assert relations is not None, "relations are hidden"
                clusters = None if sampled is None else sampled.clusters(edges.row_E[rows])
                result = relations.rank(edges, key, rows, SideTally(clusters))
            ranked = rows[result.rows_Q.numpy()]
            of_ranked = block.select(ranked)
            frequency_Q = None  # of a sample that may still grow: counted at the end
            if context.evaluated.sample is None:
                frequency_Q = key_frequency(repeated, side, of_ranked, num_entities)
            groups = dimensions.groups_of(side, of_ranked, frequency_Q)
            record.add(key, result, groups)
            if files.ranks:
                files.write_counts(key, edges.row_E[ranked], result.counts)
            write_best(edges, of_side, key, start, stop, files)
            if sampled is not None:
                codes_Q = context.numberer.key_codes(side, of_ranked)
                record.sample.add(key, sampled, edges.row_E[ranked], codes_Q, record.headline_counts(result))


def _side_table(edges: QueryEdges, states: list[ContestState], outside_E: np.ndarray) -> _SideTable:
    num_rows = max((len(one.result.counts_NQ) for one in states), default=6)
    counts_NE = torch.zeros((num_rows, edges.num_edges), dtype=torch.int64)
    image_E = np.zeros(edges.num_edges, np.int32)
    kept_E = np.zeros(edges.num_edges, bool)
    for one in states:
        queries = one.queries
        counts_NE[:, torch.from_numpy(queries.edge_Q)] = one.result.counts_NQ
        image_E[queries.edge_Q] = sortable_int32(one.true_values())
        kept_E[queries.edge_Q] = True if one.sample is None else one.sample.true_kept_Q
    return _SideTable(counts_NE, outside_E, image_E, kept_E)


def _result(
    context: WorkerContext, table: _SideTable, start: int, stop: int, sampled: RowsOfBucket | None, edges: QueryEdges
) -> SideResult:
    ranked = np.flatnonzero(~table.outside_E[start:stop])
    rows_Q = torch.from_numpy(ranked)
    counts_NQ = table.counts_NE[:, start:stop][:, rows_Q]
    kept_E = table.true_kept_E[start:stop]
    true = table.true_image_E[start:stop][kept_E]
    if sampled is not None:
        true = with_clusters(true, sampled.clusters(edges.row_E[start:stop][kept_E]))
    return SideResult(
        rows_Q=rows_Q,
        counts=QueryCounts.of_rows(counts_NQ),
        raw_pool=ScorePool([true], []),
        filtered_pool=ScorePool([true], []) if context.work.protocol.filtered else ScorePool(),
        num_outside=stop - start - len(ranked),
    )


@frozen(eq=False)
class SweptRelations:
    """What ranks the edges whose relation is hidden, once their entities have been gathered."""

    candidates: RelationCandidates
    known: Sequence[KnownOfEdges]  # of each filter
    source: GatheredVectors

    def rank(self, edges: QueryEdges, key: GroupKey, rows: np.ndarray, tally: SideTally) -> SideResult:
        """Rank consecutive edges of a bucket."""
        block = edges.columns.select(rows)
        known, in_time, *_ = *(KnownOfEdges(of.answers, of.key_E[rows]) for of in self.known), None, None
        HiddenRelations(
            stream=DrawStream.of(self.candidates.seed, key.path_index, key.bucket, Side.REL, "auc"),
            row_E=edges.row_E[rows],
            rel_E=block.rel_n,
            known=known,
            in_time=in_time,
            vectors=lambda relation, side, at: self.source.vectors(relation, side, block.entity(side)[at]),
            label=lambda at: edges.label(int(rows[at])),
        ).rank(self.candidates, tally, np.arange(len(rows)))
        return tally.finish(filtered=bool(self.known))


def _share(context: WorkerContext, edges: QueryEdges, side: Side) -> list[tuple[GroupKey, int, int]]:
    """Return (group, first edge, one past the last) of this worker's part of the edges, in blocks."""
    rank, size = context.team.rank_in_team, context.team.size
    first, stop = edges.num_edges * rank // size, edges.num_edges * (rank + 1) // size
    parts = []
    for segment in edges.segments:
        key = GroupKey(segment.origin.path_index, segment.origin.bucket, side)
        low, high = (_cut(segment, at) for at in (first, stop))
        parts += [(key, at, min(at + EDGES_AT_A_TIME, high)) for at in range(low, high, EDGES_AT_A_TIME)]
    return parts


def _cut(segment: EdgeSegment, edge: int) -> int:
    """Return where shares are cut in a segment, so that edges are scored together with the same others as ever."""
    blocks = -(-max(edge - segment.start, 0) // EDGES_PER_BLOCK)
    return min(segment.start + blocks * EDGES_PER_BLOCK, segment.stop)


def _record_competitors(context: WorkerContext, record: Record, edges: QueryEdges, one: ContestState) -> None:
    """Record the scores of competitors that this worker has collected for the pooled AUC."""
    query, image, known = one.result.scores.images()
    edge = one.queries.edge_Q[query]
    segment = edges.segment_of(edge)
    order = np.argsort(segment, kind="stable")
    segment, edge, image, known = segment[order], edge[order], image[order], known[order]
    for index, of_segment in enumerate(edges.segments):
        part = slice(*np.searchsorted(segment, [index, index + 1]))
        if part.start < part.stop:
            key = GroupKey(of_segment.origin.path_index, of_segment.origin.bucket, one.hidden)
            pooled = image[part]
            if context.evaluated.sample is not None:
                sampled = context.evaluated.sample[key.path_index, key.bucket]
                pooled = with_clusters(pooled, sampled.clusters(edges.row_E[edge[part]]))
            record.add_pools(key, ScorePool([], [pooled]), ScorePool([], [pooled[~known[part]]]))


# What each worker has met of the queries for types -> their NDCG, by relation, in the record.


KEYS_AT_A_TIME = 1 << 12  # whose ideal lists are in memory together; changes no number


def type_gains(context: WorkerContext, edges: QueryEdges, queries: ContestQueries) -> TypeGains | None:
    """Return the queries of a contest that ask for types; None where there are none."""
    types = context.inputs.types
    if types is None or queries.contest.hidden is not Side.RHS:
        return None
    truth = TypeTruth.of_queries(queries, types.relations, types.entities, edges.numbering.num_entities)
    filtered = context.work.protocol.filtered
    return TypeGains(truth, max(context.settings.layout.cutoffs), filtered) if truth.num_keys else None


def record_types(context: WorkerContext, record: Record, states: list[ContestState], sets: CandidateSets) -> None:
    """Record this worker's part of the queries for types."""
    types = context.inputs.types
    if types is None:
        return
    cutoffs = context.settings.layout.cutoffs
    relations = tuple(types.relations.tolist())
    record.raw_types = TypeStats.zero(relations, num_values(cutoffs))
    if context.work.protocol.filtered:
        record.filtered_types = TypeStats.zero(relations, num_values(cutoffs))
    for one in states:
        if one.result.gains is not None:
            gains = one.result.gains
            num_keys, rank, size = gains.truth.num_keys, context.team.rank_in_team, context.team.size
            first, stop = num_keys * rank // size, num_keys * (rank + 1) // size
            for at in range(first, stop, KEYS_AT_A_TIME):
                rows = slice(at, min(at + KEYS_AT_A_TIME, stop))
                _record(record, one, gains, rows, _ideal(context, one, gains, rows, sets), cutoffs)


def _record(
    record: Record, one: ContestState, gains: TypeGains, rows: slice, ideal_LH: np.ndarray, cutoffs: tuple[int, ...]
) -> None:
    gain_HG = gains.truth.entities.gains()
    relation_L = one.queries.rel_K[gains.truth.key_L[rows]]

    def values(levels: GainLevels, ideal: np.ndarray) -> np.ndarray:
        return type_values(levels.count_Kk[rows], levels.gain_KkG[rows], ideal, gain_HG, cutoffs)

    assert record.raw_types is not None
    record.raw_types.add(relation_L, values(gains.raw, ideal_LH))
    if record.filtered_types is not None:
        record.filtered_types.add(relation_L, values(gains.unknown, ideal_LH - gains.excluded_LH[rows]))


def _ideal(context: WorkerContext, one: ContestState, gains: TypeGains, rows: slice, sets: CandidateSets) -> np.ndarray:
    """Return how many entities that may compete have which distance, int64 (L, max_depth + 1)."""
    truth, queries = gains.truth, one.queries
    low, high = context.numberer.numbering.range_of_type(queries.contest.candidate_type)
    ideal_LH = np.zeros_like(gains.excluded_LH[rows])
    of_truth: dict[tuple[int, ...], np.ndarray] = {}
    competing: dict[int, np.ndarray] = {}
    stop_L = truth.stop_L
    for row, key in enumerate(truth.key_L[rows].tolist()):
        relation = int(queries.rel_K[key])
        if relation not in competing:
            competing[relation] = _competing_types(truth.entities, sets.of(Side.RHS, relation), low, high)
        at = rows.start + row
        asked = (relation, *truth.type_n[truth.first_L[at] : stop_L[at]].tolist())
        if asked not in of_truth:
            related = truth.entities.taxonomy.related(type_ for type_ in asked[1:] if type_ >= 0)
            distance_n = related.distance_n[is_among(related.type_n, competing[relation])]
            of_truth[asked] = np.bincount(distance_n, minlength=ideal_LH.shape[1])
        ideal_LH[row] = of_truth[asked]
    return ideal_LH


def _competing_types(entities: TypeEntities, allowed: np.ndarray | None, low: int, high: int) -> np.ndarray:
    """Return the sorted types of the entities from `low` to `high` that may compete."""
    competes_T = (entities.number_T >= low) & (entities.number_T < high)
    if allowed is not None:
        competes_T &= is_among(entities.number_T, allowed)
    return np.sort(entities.type_T[competes_T])
