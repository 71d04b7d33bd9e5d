"""Bucket files -> all evaluated edges in memory."""

from __future__ import annotations

import numpy as np
from attrs import evolve

from pbgeval.inputs.edges import numbered_blocks, shares_of_files
from pbgeval.inputs.partitions import MAX_DIAGNOSED_EDGES
from pbgeval.notation import Side, distinct
from pbgeval.ranking.keys import EdgeColumns, KeyTable, QueryKeys
from pbgeval.ranking.known_answers import FilterKeys, SemiJoin, TimeWindow
from pbgeval.ranking.query_edges import EdgeSegment, QueryEdges
from pbgeval.ranking.settings import EdgeOrigin
from pbgeval.worker.context import WorkerContext


def read_query_edges(context: WorkerContext) -> QueryEdges:
    """Read all evaluated edges, by edge path, bucket and row."""
    segments: list[EdgeSegment] = []
    columns: list[list[np.ndarray]] = [[np.empty(0, np.int64)] for _ in range(5)]
    num_edges = 0
    for path_index, bucket, file in context.inputs.files:
        first = num_edges
        for rows, block in context.evaluated.blocks(context.numberer, path_index, file):
            times = [] if block.time_n is None else [block.time_n]
            for column, part in zip(columns, (rows, block.lhs_n, block.rel_n, block.rhs_n, *times), strict=False):
                column.append(part)
            num_edges += len(rows)
        segments.append(EdgeSegment(EdgeOrigin(str(file.path), (path_index, bucket)), first, num_edges))
    row_E, lhs_E, rel_E, rhs_E, time_E = (np.concatenate(column) for column in columns)
    return QueryEdges(
        context.numberer.numbering,
        tuple(segments),
        row_E,
        EdgeColumns(lhs_E, rel_E, rhs_E, time_E if context.inputs.uses_time else None),
        context.inputs.config.dynamic_relations,
    )


# Evaluated edges, beside each other and beside `train_paths` -> repeated edges, leaked edges, entities never trained.
#
# Counts that no figure shows, and that change what a figure means. Where the evaluation uses times, an edge is one at
# its time; a training edge without one is the same at any time. Every evaluated edge is held by every worker here
# (the sweeps do so anyway), so other evaluations are looked at up to MAX_DIAGNOSED_EDGES.

TRAINING_ROWS_AT_A_TIME = 1 << 16  # few, so that `max_memory` is kept whatever it is; changes no number
SIEVE_CELLS = 1 << 22  # bytes; a power of two


def diagnose_edges(context: WorkerContext) -> dict[str, int | None] | None:
    """Count what the evaluated edges share; every worker takes part.

    Returns:
        The section `edge_diagnostics` of metrics.json: `num_repeated` are edges beyond the first of equal ones, and
        what needs training edges is None without `train_paths`.
        None where edges are sampled, where a type is featurized (its entities have no numbers), and where there are
        more than MAX_DIAGNOSED_EDGES that the evaluation need not hold.
    """
    work = context.work
    few = work.protocol.sweeps or work.inputs.num_edges <= MAX_DIAGNOSED_EDGES
    if context.evaluated.sample is not None or work.inputs.featurized or not few:
        return None
    with context.collectively():
        edges = read_query_edges(context)
    num_numbers, columns = edges.numbering.num_entities, edges.columns
    window = None if columns.time_n is None else TimeWindow(0, 0)
    keys = FilterKeys.of_queries(QueryKeys.of_edges(Side.RHS, columns, num_numbers), window, [columns])
    # A distinct edge is its key's position x number of entities + tail; and how many evaluated edges are this one.
    codes_K, copies_K = np.unique(keys.index_of(columns) * num_numbers + columns.rhs_n, return_counts=True)
    entities = distinct(np.concatenate([columns.lhs_n, columns.rhs_n]))
    leaked, is_seen = _in_training(context, keys, codes_K, entities)
    return {
        "num_edges": edges.num_edges,
        "num_repeated": edges.num_edges - len(codes_K),
        "num_in_training": None if leaked is None else int(copies_K[leaked].sum()),
        "num_entities": len(entities),
        "num_entities_unseen": None if is_seen is None else int((~is_seen).sum()),
    }


def _in_training(
    context: WorkerContext, keys: FilterKeys, codes_K: np.ndarray, entities: np.ndarray
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Tell which distinct edges and which of some entities training edges name, bool; None if they were not read."""
    if not context.inputs.config.train_paths:
        return None, None
    is_leaked_K, is_seen = np.zeros(len(codes_K), bool), np.zeros(len(entities), bool)
    table = KeyTable.of_codes(entities)
    cells = np.zeros(SIEVE_CELLS, bool)
    cells[entities & (SIEVE_CELLS - 1)] = True  # by the last bits: most other numbers need no search

    any_time = keys if keys.window is None else evolve(keys, window=TimeWindow(None, None))

    def mark(_: Side, key_P: np.ndarray, answer_P: np.ndarray, time_P: np.ndarray | None = None) -> None:
        pairs = (
            any_time.pairs(key_P, answer_P, np.zeros_like(key_P))
            if time_P is None
            else keys.pairs(key_P, answer_P, time_P)
        )
        for position_P, tail_P in pairs:
            codes_P = position_P * keys.keys.num_entities + tail_P
            at_P = np.minimum(np.searchsorted(codes_K, codes_P), len(codes_K) - 1)
            is_leaked_K[at_P[codes_K[at_P] == codes_P]] = True

    with context.collectively():
        join = SemiJoin({Side.RHS: keys.keys}, mark)
        parts = shares_of_files(context.inputs.training_buckets, context.team, TRAINING_ROWS_AT_A_TIME)
        for block in numbered_blocks(context.numberer, parts):
            join.feed(block)
            for number_n in (block.lhs_n, block.rhs_n):
                index = table.index_of(number_n[cells[number_n & (SIEVE_CELLS - 1)]])
                is_seen[index[index >= 0]] = True
    of_edges, of_entities = zip(*context.team.gather_objects((is_leaked_K, is_seen)), strict=True)
    return np.logical_or.reduce(of_edges), np.logical_or.reduce(of_entities)
