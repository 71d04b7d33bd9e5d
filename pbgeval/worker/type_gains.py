"""What each worker has met of the queries for types -> their NDCG, by relation, in the record."""

from __future__ import annotations

import numpy as np

from pbgeval.metrics.ndcg import num_values, type_values
from pbgeval.notation import Side
from pbgeval.ranking.constraints import CandidateSets, is_among
from pbgeval.ranking.contest_state import ContestState
from pbgeval.ranking.query_edges import ContestQueries, QueryEdges
from pbgeval.ranking.type_gains import GainLevels, TypeEntities, TypeGains, TypeTruth
from pbgeval.stats.groups import TypeStats
from pbgeval.worker.context import WorkerContext
from pbgeval.worker.record import Record

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
