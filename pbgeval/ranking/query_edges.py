"""Edges -> queries in the order in which the sweep meets them: query group by query group, key by key, block by block.

And the vectors that these queries are made of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from pbgeval.errors import DataError
from pbgeval.notation import ENDS, EntityNumbering, Side, distinct, values_between
from pbgeval.ranking.keys import EdgeColumns
from pbgeval.ranking.settings import CandidateSets, EdgeOrigin
from pbgeval.scoring.comparators import UnrankableRowsError
from pbgeval.scoring.entities import EntityTable
from pbgeval.scoring.scorer import EdgeScorer, QueryGroup, dtype_of_candidates
from pbgeval.storage.rows import Rows
from pbgeval.storage.transfers import sent


@frozen(eq=False)
class EdgeSegment:
    """The evaluated edges of one bucket of one edge path: a range of `QueryEdges`."""

    origin: EdgeOrigin
    start: int
    stop: int


@frozen(eq=False)
class QueryEdges:
    """All edges that are evaluated, by edge path, bucket and row; entities are numbers."""

    numbering: EntityNumbering
    segments: tuple[EdgeSegment, ...]
    row_E: np.ndarray  # int64: row in the bucket's file
    columns: EdgeColumns  # relations by their ids as the edge files have them
    dynamic: bool

    @property
    def num_edges(self) -> int:
        return self.columns.num_edges

    def segment_of(self, edge: np.ndarray) -> np.ndarray:
        """Return the index of each edge's segment."""
        return np.searchsorted([segment.start for segment in self.segments], edge, "right") - 1

    def label(self, edge: int) -> str:
        """Name an edge in an error."""
        segment = self.segments[int(self.segment_of(np.array([edge]))[0])]
        lhs, rhs = (self.numbering.place_of(int(self.columns.entity(side)[edge]))[2] for side in ENDS)
        ends = f"lhs {lhs}, rel {int(self.columns.rel_n[edge])}, rhs {rhs}"
        return f"{segment.origin.label}: row {int(self.row_E[edge])} ({ends})"

    def entity_label(self, entity_id: int) -> str:
        """Name an entity in an error."""
        entity_type, partition, row = self.numbering.place_of(entity_id)
        return f"entity {row} of entity type '{entity_type}', partition {partition}"


@frozen(eq=False)
class QueryBlock:
    """Consecutive queries of a query group, and the range of their keys."""

    first: int
    stop: int
    first_key: int
    stop_key: int
    relation: int  # of all its queries, where candidates differ by relation; else -1
    continues_key: bool = False  # whether the queries of its first key begin in an earlier block


@frozen(eq=False)
class GroupQueries:
    """The queries of one query group, keys in order; a key's queries are next to each other."""

    query_group: QueryGroup
    edge_Q: np.ndarray  # int64: index in `QueryEdges`
    key_Q: np.ndarray  # int64, ascending: index of the query's key among this query group's
    true_Q: np.ndarray  # int64: number of the true entity
    rel_K: np.ndarray  # int64: relation id of each key
    schema_K: np.ndarray  # int64: index of the key's relation in the config
    known_K: np.ndarray  # int64: number of the known entity
    blocks: tuple[QueryBlock, ...]
    time_K: np.ndarray | None = None  # int64: time of each key; None: keys do not go by time

    @property
    def num_keys(self) -> int:
        return len(self.rel_K)

    @property
    def num_queries(self) -> int:
        return len(self.edge_Q)

    @property
    def edge_of_keys(self) -> np.ndarray:
        """The edge of the first query of each key."""
        return np.asarray(self.edge_Q[np.diff(self.key_Q, prepend=-1) != 0])


def group_queries(
    edges: QueryEdges,
    query_group: QueryGroup,
    sets: CandidateSets,
    queries_per_block: int,
    *,
    by_time: bool = False,
) -> GroupQueries:
    """Arrange the queries of a query group; those whose true entity may not compete are left out.

    If `by_time`, queries of different times have keys of their own.
    """
    hidden, rel_E, true_E = query_group.hidden, edges.columns.rel_n, edges.columns.entity(query_group.hidden)
    schema_E = np.zeros_like(rel_E) if edges.dynamic else rel_E  # index of each edge's relation in the config
    of_query_group_E = np.isin(schema_E, np.array(list(query_group.scorers), np.int64))
    of_query_group_E &= sets.contains(hidden, rel_E, true_E)
    return queries_by_key(
        query_group,
        np.flatnonzero(of_query_group_E),
        (rel_E, edges.columns.entity(hidden.other), true_E),
        schema_E,
        edges.numbering.num_entities,
        queries_per_block,
        by_relation=sets.by_relation,
        time_E=edges.columns.time_n if by_time else None,
    )


def queries_by_key(
    query_group: QueryGroup,
    edge_Q: np.ndarray,
    columns: tuple[np.ndarray, np.ndarray, np.ndarray],
    schema_E: np.ndarray,
    num_known: int,
    queries_per_block: int,
    *,
    by_relation: bool,
    in_order: bool = False,
    time_E: np.ndarray | None = None,
) -> GroupQueries:
    """Arrange the queries of some edges by relation and known entity, and by time if times are given.

    Args:
        query_group: whose queries they are.
        edge_Q: the edges, ascending.
        columns: relation, known and true entity of every edge.
        schema_E: index of every edge's relation in the config.
        num_known: more than the largest known entity.
        queries_per_block: at most.
        by_relation: whether the queries of a block are of one relation.
        in_order: each query has a key of its own, in the order of the edges (of each relation).
        time_E: of every edge; queries of different times then have keys of their own.
    """
    rel_E, known_E, true_E = columns
    code_Q = rel_E[edge_Q] * num_known + known_E[edge_Q]
    if in_order:
        code_Q = rel_E[edge_Q] if by_relation else np.zeros_like(edge_Q)
    time_Q = np.zeros_like(code_Q) if time_E is None or in_order else time_E[edge_Q]
    order = np.argsort(code_Q, kind="stable") if time_E is None or in_order else np.lexsort((time_Q, code_Q))
    edge_Q, code_Q = edge_Q[order], code_Q[order]
    is_first_Q = (np.diff(code_Q, prepend=-1) != 0) | (np.diff(time_Q[order], prepend=0) != 0) | in_order
    key_Q = np.cumsum(is_first_Q) - 1
    edge_K = edge_Q[is_first_Q]
    rel_K = rel_E[edge_K]
    return GroupQueries(
        query_group=query_group,
        edge_Q=edge_Q,
        key_Q=key_Q,
        true_Q=true_E[edge_Q],
        rel_K=rel_K,
        schema_K=schema_E[edge_K],
        known_K=known_E[edge_K],
        blocks=_blocks(key_Q, rel_K, queries_per_block, by_relation=by_relation),
        time_K=None if time_E is None else time_E[edge_K],
    )


@frozen(eq=False)
class CompetingEntities:
    """Which entities from `first` to `stop` compete in the queries of a query group."""

    first: int
    stop: int
    of: Callable[[int], np.ndarray | None]  # relation (-1: any) -> sorted entity ids; None: all
    by_relation: bool = False

    def entity_ids(self, relation: int) -> np.ndarray | None:
        """Return the sorted entity ids that compete in queries of a relation, None for all."""
        entity_ids = self.of(relation)
        return None if entity_ids is None else values_between(entity_ids, self.first, self.stop)

    def rows(self, relation: int, first: int, stop: int) -> np.ndarray:
        """Return the rows of a range of entities that compete in queries of a relation."""
        entity_ids = self.entity_ids(relation)
        return np.arange(stop - first) if entity_ids is None else values_between(entity_ids, first, stop) - first

    def size(self, relation: int) -> int:
        entity_ids = self.entity_ids(relation)
        return self.stop - self.first if entity_ids is None else len(entity_ids)

    def relation_or_any(self, rel_Q: np.ndarray) -> np.ndarray:
        """Return which relation decides on the candidates of queries; -1: all have the same."""
        return rel_Q if self.by_relation else np.full_like(rel_Q, -1)


def _blocks(key_Q: np.ndarray, rel_K: np.ndarray, size: int, *, by_relation: bool) -> tuple[QueryBlock, ...]:
    rel_Q = rel_K[key_Q] if by_relation else np.full_like(key_Q, -1)
    blocks = []
    for run_start, run_stop in pairwise(np.flatnonzero(np.diff(rel_Q, prepend=-2, append=-2)).tolist()):
        for first in range(run_start, run_stop, size):
            stop = min(first + size, run_stop)
            continues = bool(first and key_Q[first - 1] == key_Q[first])
            keys = int(key_Q[first]), int(key_Q[stop - 1]) + 1
            blocks.append(QueryBlock(first, stop, *keys, int(rel_Q[first]), continues))
    return tuple(blocks)


# The vectors of the entities that evaluated edges touch: the first of two sweeps over the partitions.
#
#     gather    rows of a partition -> the vectors of the entities that evaluated edges touch
#     prepare   those vectors -> a prepared query per key, and a true score per query (`QueryGroupState.prepare`)
#     rank      a range of candidate rows, once -> counts of every query against them (`ranking_pass.rank`)
#     finish    counts summed over all ranges -> results per bucket
#
# Nothing of size queries x entities exists: scores live in one block.


@frozen(eq=False)
class EntityVectors:
    """What each type's rows are made into before operators see them."""

    global_embeddings: Mapping[str, Tensor]
    max_norm: float | None
    dtype: torch.dtype
    device: torch.device

    def table(self, entity_type: str, partition: int, rows_ND: Tensor, first_row: int = 0) -> EntityTable:
        """Return raw rows of a partition as a table."""
        return EntityTable(
            entity_type=entity_type,
            partition=partition,
            embeddings_ND=sent(rows_ND, self.device),
            global_embedding_D=self.global_embeddings.get(entity_type),
            max_norm=self.max_norm,
            first_row=first_row,
        )


@frozen(eq=False)
class GatheredVectors:
    """The vectors of all entities that evaluated edges touch, and names for errors (a `QuerySource`)."""

    edges: QueryEdges
    tables: EntityVectors
    entity_ids: Mapping[str, np.ndarray]  # int64, sorted, by entity type
    rows: Mapping[str, Rows]  # raw

    def add(self, table: EntityTable, first_id: int) -> None:
        """Store the rows of a part of a partition that evaluated edges touch.

        Args:
            table: the part, its rows checked.
            first_id: the number of the table's first row.
        """
        entity_ids = self.entity_ids[table.entity_type]
        first, stop = np.searchsorted(entity_ids, [first_id, first_id + table.num_rows])
        if first < stop:
            rows = torch.from_numpy(entity_ids[first:stop] - first_id)
            self.rows[table.entity_type].write(
                int(first), table.embeddings_ND.index_select(0, sent(rows, table.device))
            )

    def vectors(self, scorer: EdgeScorer, side: Side, ids: np.ndarray, *, of_candidates: bool = False) -> Tensor:
        """Return vectors of entities at one side of a relation's edges, (n, D), which may become candidates."""
        entity_type = scorer.entity_type(side)
        rows_ND = self.rows[entity_type].take(torch.from_numpy(np.searchsorted(self.entity_ids[entity_type], ids)))
        table, dtype = self.tables.table(entity_type, 0, rows_ND), self.tables.dtype
        dtype = dtype_of_candidates(scorer, side, table, dtype) if of_candidates else dtype
        return table.range_of_rows(0, len(ids), dtype)

    def unrankable(
        self, error: UnrankableRowsError, scorer: EdgeScorer, side: Side, entity: int, edge: int | None
    ) -> DataError:
        """Return the error that names an entity whose row cannot be prepared."""
        return DataError(
            f"{self.edges.entity_label(entity)}: expected {error.expected}, got {error.found} "
            f"after the operator of relation '{scorer.name}'; this checkpoint cannot be ranked"
        )

    def nan_score(self, hidden: Side, edge: int, entity: int) -> DataError:
        """Return the error that names a query and a candidate whose score is not a number."""
        return DataError(
            f"{self.edges.label(edge)}: expected a number as the score of {hidden.label} candidate "
            f"{self.edges.entity_label(entity)}, got NaN: finite embeddings overflow; this checkpoint cannot be ranked"
        )


def entities_of_edges(edges: QueryEdges, types: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Return the sorted ids of the entities that edges touch, by type."""
    touched = distinct(np.concatenate([edges.columns.lhs_n, edges.columns.rhs_n]))
    ranges = {entity_type: edges.numbering.range_of_type(entity_type) for entity_type in types}
    return {
        entity_type: touched[np.searchsorted(touched, low) : np.searchsorted(touched, high)]
        for entity_type, (low, high) in ranges.items()
    }
