"""Counts of all ranges of candidates -> statistics: the end of a sweep."""

from __future__ import annotations

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from pbgeval.inputs.edges import RowsOfBucket
from pbgeval.notation import EntityNumbering, Side
from pbgeval.ranking.constraints import CandidateSets
from pbgeval.ranking.contest_state import ContestState
from pbgeval.ranking.keys import EdgeColumns
from pbgeval.ranking.known_answers import KeyFrequency
from pbgeval.ranking.query_edges import QueryEdges
from pbgeval.ranking.sweep_pass import outside_queries
from pbgeval.ranking.tally import SideResult
from pbgeval.stats.groups import GroupKey, ScorePool, sortable_int32, with_clusters
from pbgeval.stats.ranks import QueryCounts, RankCounts
from pbgeval.worker.collective import collectively
from pbgeval.worker.context import WorkerContext
from pbgeval.worker.dimensions import QueryDimensions
from pbgeval.worker.per_edge import PerEdgeFiles
from pbgeval.worker.record import Record
from pbgeval.worker.type_gains import record_types


def merge_results(context: WorkerContext, states: list[ContestState]) -> None:
    """Give every worker what candidates have added on all of them, but for scores; every worker takes part."""
    for one in states:
        context.team.sum_(one.result.counts_6Q)
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

    counts_6E: Tensor  # int64
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
) -> None:
    """Add counts over all workers, and record a part of the edges; every worker takes part."""
    merge_results(context, states)
    record_types(context, record, states, sets)
    block = EdgeColumns(edges.lhs_E, edges.rel_E, edges.rhs_E)
    for side in context.settings.sides:
        of_side = [one for one in states if one.hidden is side]
        for one in of_side:
            _record_competitors(context, record, edges, one)
        table = _side_table(edges, of_side, outside_queries(edges, side, sets))
        frequency = KeyFrequency.of_blocks(side, [block], edges.numbering.num_entities)
        for key, start, stop in _share(context, edges, side):
            rows = np.arange(start, stop)
            sampled = None if context.evaluated.sample is None else context.evaluated.sample[key.path_index, key.bucket]
            result = _result(context, table, start, stop, sampled, edges)
            ranked = rows[result.rows_Q.numpy()]
            of_ranked = EdgeColumns(*block.columns(ranked))
            frequency_Q = None  # of a sample that may still grow: counted at the end
            if context.evaluated.sample is None:
                frequency_Q = frequency.of(of_ranked.rel_n, of_ranked.entity(side.other))
            groups = dimensions.groups_of(side, of_ranked, frequency_Q)
            record.add(key, result, groups)
            if files.ranks:
                files.write_counts(key, edges.row_E[ranked], result.counts)
            write_best(edges, of_side, key, start, stop, files)
            if sampled is not None:
                codes_Q = context.numberer.key_codes(side, of_ranked)
                record.sample.add(key, sampled, edges.row_E[ranked], codes_Q, record.headline_counts(result))


def _side_table(edges: QueryEdges, states: list[ContestState], outside_E: np.ndarray) -> _SideTable:
    counts_6E = torch.zeros((6, edges.num_edges), dtype=torch.int64)
    image_E = np.zeros(edges.num_edges, np.int32)
    kept_E = np.zeros(edges.num_edges, bool)
    for one in states:
        queries = one.queries
        counts_6E[:, torch.from_numpy(queries.edge_Q)] = one.result.counts_6Q
        image_E[queries.edge_Q] = sortable_int32(one.true_values())
        kept_E[queries.edge_Q] = True if one.sample is None else one.sample.true_kept_Q
    return _SideTable(counts_6E, outside_E, image_E, kept_E)


def _result(
    context: WorkerContext, table: _SideTable, start: int, stop: int, sampled: RowsOfBucket | None, edges: QueryEdges
) -> SideResult:
    ranked = np.flatnonzero(~table.outside_E[start:stop])
    rows_Q = torch.from_numpy(ranked)
    counts_6Q = table.counts_6E[:, start:stop][:, rows_Q]
    kept_E = table.true_kept_E[start:stop]
    true = table.true_image_E[start:stop][kept_E]
    if sampled is not None:
        true = with_clusters(true, sampled.clusters(edges.row_E[start:stop][kept_E]))
    return SideResult(
        rows_Q=rows_Q,
        counts=QueryCounts(RankCounts(*counts_6Q[:3]), RankCounts(*counts_6Q[3:])),
        raw_pool=ScorePool([true], []),
        filtered_pool=ScorePool([true], []) if context.work.protocol.filtered else ScorePool(),
        num_outside=stop - start - len(ranked),
    )


def _share(context: WorkerContext, edges: QueryEdges, side: Side) -> list[tuple[GroupKey, int, int]]:
    """Return (group, first edge, one past the last) of this worker's part of the edges, in blocks."""
    rank, size = context.team.rank_in_team, context.team.size
    first, stop = edges.num_edges * rank // size, edges.num_edges * (rank + 1) // size
    parts = []
    for segment in edges.segments:
        key = GroupKey(segment.origin.path_index, segment.origin.bucket, side)
        low, high = max(first, segment.start), min(stop, segment.stop)
        parts += [(key, at, min(at + EDGES_AT_A_TIME, high)) for at in range(low, high, EDGES_AT_A_TIME)]
    return parts


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
