"""Counts of all ranges of candidates -> statistics: the end of a sweep."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from pbgeval.notation import Side, distinct
from pbgeval.ranking.known_answers import KnownFilter, KnownOfEdges, key_frequency, repeated_keys
from pbgeval.ranking.pooled_scores import PooledScores
from pbgeval.ranking.query_edges import GatheredVectors, QueryEdges
from pbgeval.ranking.query_group_state import QueryGroupState, TopCandidates
from pbgeval.ranking.relations import EDGES_PER_BLOCK, HiddenRelations, RelationCandidates
from pbgeval.ranking.settings import CandidateSets
from pbgeval.ranking.tally import SideResult, SideTally
from pbgeval.stats.groups import GroupKey, ScorePool, sortable_int32, with_clusters
from pbgeval.stats.pooled_counts import PooledCounts
from pbgeval.stats.ranks import QueryCounts
from pbgeval.worker.context import WorkerContext
from pbgeval.worker.dimensions import QueryDimensions
from pbgeval.worker.per_edge import PerEdgeFiles
from pbgeval.worker.record import Record, add_side


def merge_results(context: WorkerContext, states: list[QueryGroupState]) -> None:
    """Give every worker what candidates have added on all of them, but for scores; every worker takes part."""
    for one in states:
        context.team.sum_(one.result.counts_NQ)
    lists = [(number, one.result.top) for number, one in enumerate(states) if one.result.top is not None]
    if context.team.size == 1 or not lists:
        return

    with context.collectively():
        for number, top in lists:
            for packed in top.pack():
                context.scratch.append(f"best-{number}", packed)
    with context.collectively():
        for number, top in lists:
            merged = TopCandidates.zero(top.score_Kk.shape, top.is_answer)
            merged.add_packed(iter([context.scratch.read(f"best-{number}", np.int64)]))
            states[number].result.top = merged


def count_pools(context: WorkerContext, edges: QueryEdges, states: list[QueryGroupState]) -> None:
    """Have each query group compare its competitors with the true scores of all, once these are prepared."""
    true = np.concatenate([np.empty(0, np.int32), *(sortable_int32(one.true_values().cpu()) for one in states)])
    nothing = PooledCounts.zero(distinct(true), len(true))
    paths = np.array([segment.origin.place[0] for segment in edges.segments], np.int64)
    for one in states:
        path_Q = paths[edges.segment_of(one.queries.edge_Q)]
        one.result.pooled = PooledScores(path_Q, nothing, context.work.protocol.filtered)


# The best candidates that all workers have met -> files, query by query (`save_topk`).


def write_best(
    edges: QueryEdges, states: list[QueryGroupState], key: GroupKey, start: int, stop: int, files: PerEdgeFiles
) -> None:
    """Write the best candidates of the queries of consecutive edges of a bucket."""
    numbering = edges.numbering
    partition_of_slot = np.array([partition for _, partition in numbering.slots], np.int64)
    for one, top in [(one, one.result.top) for one in states if one.result.top is not None]:
        queries = one.queries
        inside = np.flatnonzero((queries.edge_Q >= start) & (queries.edge_Q < stop))
        inside = inside[np.argsort(queries.edge_Q[inside])]
        key_Q = queries.key_Q[inside]
        number_Qk = top.entity_id_Kk[key_Q]
        listed = number_Qk >= 0
        slot = numbering.slot_of(np.maximum(number_Qk, 0))
        score_Qk = one.comparator.real_scores(torch.from_numpy(top.score_Kk[key_Q])).numpy()
        files.write_best(
            key,
            edges.row_E[queries.edge_Q[inside]],
            {
                "entity": np.where(listed, number_Qk - numbering.boundaries[slot], -1),
                "partition": np.where(listed, partition_of_slot[slot], -1),
                "score": np.where(listed, score_Qk, np.nan),
                "known": top.known_Kk[key_Q] & listed & (number_Qk != queries.true_Q[inside][:, None]),
            },
        )


EDGES_AT_A_TIME = 1 << 17

RankedEdges = Callable[[GroupKey, int, int], SideResult]  # (group, first edge, one past the last) -> what was found


def finish(
    context: WorkerContext,
    record: Record,
    edges: QueryEdges,
    states: list[QueryGroupState],
    sets: CandidateSets,
    dimensions: QueryDimensions,
    files: PerEdgeFiles,
    relations: RankedEdges | None = None,
) -> None:
    """Add counts over all workers, and record a part of the edges; every worker takes part.

    `relations` ranks edges whose relation is hidden, where it is in some queries.
    """
    merge_results(context, states)
    num_entities = edges.numbering.num_entities
    with context.collectively():
        for side in context.settings.sides:
            of_side = [one for one in states if one.hidden is side]
            for one in of_side:
                _record_competitors(context, record, edges, one)
            ranked_edges = relations if side is Side.REL else _ranked_edges(context, edges, of_side, side, sets)
            assert ranked_edges is not None, "relations are hidden"
            repeated = repeated_keys(side, [edges.columns], num_entities)
            for key, start, stop in _share(context, edges, side):
                result = ranked_edges(key, start, stop)
                if side is context.settings.sides[0]:  # each edge once
                    rows = slice(start, stop)
                    record.digests.add_edges(
                        key.path_index,
                        key.bucket,
                        edges.row_E[rows],
                        edges.columns.select(rows),
                        with_time=context.inputs.uses_time,
                    )
                ranked = start + result.rows_Q.numpy()
                of_ranked = edges.columns.select(ranked)
                frequency_Q = (
                    key_frequency(repeated, side, of_ranked, num_entities)
                    if context.evaluated.sample is None
                    else None  # a sample that may still grow is counted at the end
                )
                groups = dimensions.groups_of(side, of_ranked, frequency_Q)
                add_side(context, record, files, key, edges.row_E[ranked], of_ranked, result, groups)
                write_best(edges, of_side, key, start, stop, files)


def _ranked_edges(
    context: WorkerContext, edges: QueryEdges, states: list[QueryGroupState], side: Side, sets: CandidateSets
) -> RankedEdges:
    """Arrange the counts of query groups by edge, as queries that hide one side."""
    num_rows = max((len(one.result.counts_NQ) for one in states), default=6)
    counts_NE = torch.zeros((num_rows, edges.num_edges), dtype=torch.int64)
    true_image_E = np.zeros(edges.num_edges, np.int32)
    true_is_kept_E = np.zeros(edges.num_edges, bool)  # the pooled AUC compares it
    is_outside_E = ~sets.contains(side, edges.columns.rel_n, edges.columns.entity(side))  # not ranked
    for one in states:
        queries = one.queries
        counts_NE[:, torch.from_numpy(queries.edge_Q)] = one.result.counts_NQ
        true_image_E[queries.edge_Q] = sortable_int32(one.true_values().cpu())
        true_is_kept_E[queries.edge_Q] = True if one.sample is None else one.sample.true_kept_Q

    def result(key: GroupKey, start: int, stop: int) -> SideResult:
        rows_Q = torch.from_numpy(np.flatnonzero(~is_outside_E[start:stop]))
        kept = start + np.flatnonzero(true_is_kept_E[start:stop])
        true = with_clusters(
            true_image_E[kept], context.evaluated.clusters(key.path_index, key.bucket, edges.row_E[kept])
        )
        pool = ScorePool([true], []).share(context.pool_share)
        return SideResult(
            rows_Q=rows_Q,
            counts=QueryCounts.of_rows(counts_NE[:, start:stop][:, rows_Q]),
            raw_pool=pool,
            filtered_pool=pool if context.work.protocol.filtered else ScorePool(),
            numbers={"num_outside": stop - start - len(rows_Q)},
        )

    return result


def rank_relations(
    context: WorkerContext,
    edges: QueryEdges,
    candidates: RelationCandidates,
    filters: Sequence[KnownFilter],
    source: GatheredVectors,
) -> RankedEdges:
    """Return what ranks edges whose relation is hidden, once their entities have been gathered."""
    of_filters = [
        KnownOfEdges(one.store.pairs(Side.REL, 0).in_rows(), one.of_side[Side.REL].index_of(edges.columns))
        for one in filters
    ]

    def result(key: GroupKey, start: int, stop: int) -> SideResult:
        rows = slice(start, stop)
        block = edges.columns.select(rows)
        clusters_E = context.evaluated.clusters(key.path_index, key.bucket, edges.row_E[rows])
        tally = SideTally(clusters_E, context.pool_share)
        HiddenRelations(
            place=(key.path_index, key.bucket),
            row_E=edges.row_E[rows],
            rel_E=block.rel_n,
            time_E=block.time_n if context.inputs.takes_time else None,
            filters=[KnownOfEdges(of.answers, of.key_E[rows]) for of in of_filters],
            vectors=lambda relation, side, at: source.vectors(relation, side, block.entity(side)[at]),
            label=lambda at: edges.label(start + int(at)),
        ).rank(candidates, tally, np.arange(stop - start))
        return tally.finish(filtered=bool(filters))

    return result


def _share(context: WorkerContext, edges: QueryEdges, side: Side) -> list[tuple[GroupKey, int, int]]:
    """Return (group, first edge, one past the last) of this worker's part of the edges, in blocks."""
    borders = context.team.part(edges.num_edges)
    parts = []
    for segment in edges.segments:
        key = GroupKey(*segment.origin.place, side)
        # Segments are cut between blocks, so that edges are scored together with the same others as ever.
        blocks = (-(-max(at - segment.start, 0) // EDGES_PER_BLOCK) for at in borders)
        low, high = (min(segment.start + block * EDGES_PER_BLOCK, segment.stop) for block in blocks)
        parts += [(key, at, min(at + EDGES_AT_A_TIME, high)) for at in range(low, high, EDGES_AT_A_TIME)]
    return parts


def _record_competitors(context: WorkerContext, record: Record, edges: QueryEdges, one: QueryGroupState) -> None:
    """Record the scores of competitors that this worker has collected, and those that it has counted."""
    query, score, known = one.result.scores.joined()
    image = sortable_int32(torch.from_numpy(score))
    edge = one.queries.edge_Q[query]
    segment = edges.segment_of(edge)
    order = np.argsort(segment, kind="stable")
    segment, edge, image, known = segment[order], edge[order], image[order], known[order]
    for index, of_segment in enumerate(edges.segments):
        part = slice(*np.searchsorted(segment, [index, index + 1]))
        if part.start < part.stop:
            key = GroupKey(*of_segment.origin.place, one.hidden)
            pooled = with_clusters(
                image[part], context.evaluated.clusters(key.path_index, key.bucket, edges.row_E[edge[part]])
            )
            share = context.pool_share
            record.raw.pools[key] += ScorePool([], [pooled]).share(share)
            if record.filtered is not None:
                record.filtered.pools[key] += ScorePool([], [pooled[~known[part]]]).share(share)
    for (path, is_filtered), counts in () if one.result.pooled is None else one.result.pooled.counts().items():
        groups = record.filtered if is_filtered else record.raw
        assert groups is not None, "filtered competitors are counted where there are filtered figures"
        groups.counted[path, one.hidden] += counts
