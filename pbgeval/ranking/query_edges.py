"""Edges -> queries in the order in which the sweep meets them: contest by contest, key by key, block by block."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from attrs import field, frozen

from pbgeval.notation import EntityNumbering, Side
from pbgeval.ranking.constraints import CandidateSets
from pbgeval.ranking.settings import EdgeOrigin
from pbgeval.scoring.contest import Contest

QUERIES_PER_BLOCK = 1024  # changes no number


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
    lhs_E: np.ndarray  # int64: number
    rel_E: np.ndarray  # int64: id as the edge files have it
    rhs_E: np.ndarray  # int64: number
    dynamic: bool
    _starts: np.ndarray = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "_starts", np.array([segment.start for segment in self.segments], np.int64))

    @property
    def num_edges(self) -> int:
        return len(self.rel_E)

    @property
    def schema_E(self) -> np.ndarray:
        """Index of each edge's relation in the config: 0 for all if relations are dynamic."""
        return np.zeros_like(self.rel_E) if self.dynamic else self.rel_E

    def entity(self, side: Side) -> np.ndarray:
        return side.pick(self.lhs_E, self.rhs_E)

    def segment_of(self, edge: np.ndarray) -> np.ndarray:
        """Return the index of each edge's segment."""
        return np.searchsorted(self._starts, edge, "right") - 1

    def label(self, edge: int) -> str:
        """Name an edge in an error."""
        segment = self.segments[int(self.segment_of(np.array([edge]))[0])]
        lhs, rhs = (self.numbering.place_of(int(self.entity(side)[edge]))[2] for side in Side)
        ends = f"lhs {lhs}, rel {int(self.rel_E[edge])}, rhs {rhs}"
        return f"{segment.origin.label}: row {int(self.row_E[edge])} ({ends})"

    def entity_label(self, number: int) -> str:
        """Name an entity in an error."""
        entity_type, partition, row = self.numbering.place_of(number)
        return f"entity {row} of entity type '{entity_type}', partition {partition}"


@frozen(eq=False)
class QueryBlock:
    """Consecutive queries of a contest, and the range of their keys."""

    first: int
    stop: int
    first_key: int
    stop_key: int
    relation: int  # of all its queries, where candidates differ by relation; else -1
    continues_key: bool = False  # whether the queries of its first key begin in an earlier block


@frozen(eq=False)
class ContestQueries:
    """The queries of one contest, keys in order; a key's queries are next to each other."""

    contest: Contest
    edge_Q: np.ndarray  # int64: index in `QueryEdges`
    key_Q: np.ndarray  # int64, ascending: index of the query's key among this contest's
    true_Q: np.ndarray  # int64: number of the true entity
    rel_K: np.ndarray  # int64: relation id of each key
    schema_K: np.ndarray  # int64: index of the key's relation in the config
    known_K: np.ndarray  # int64: number of the known entity
    blocks: tuple[QueryBlock, ...]

    @property
    def num_keys(self) -> int:
        return len(self.rel_K)

    @property
    def num_queries(self) -> int:
        return len(self.edge_Q)


def contest_queries(
    edges: QueryEdges, contest: Contest, sets: CandidateSets, queries_per_block: int | None = None
) -> ContestQueries:
    """Arrange the queries of a contest; those whose true entity may not compete are left out."""
    hidden = contest.hidden
    schema_E = edges.schema_E
    of_contest_E = np.isin(schema_E, np.array(list(contest.scorers), np.int64))
    if not sets.unconstrained:
        of_contest_E &= sets.contains(hidden, edges.rel_E, edges.entity(hidden))
    edge_Q = np.flatnonzero(of_contest_E)
    rel_Q, known_Q = edges.rel_E[edge_Q], edges.entity(hidden.other)[edge_Q]
    code_Q = rel_Q * edges.numbering.num_entities + known_Q
    order = np.argsort(code_Q, kind="stable")
    edge_Q, code_Q = edge_Q[order], code_Q[order]
    is_first_Q = np.diff(code_Q, prepend=-1) != 0
    key_Q = np.cumsum(is_first_Q) - 1
    edge_K = edge_Q[is_first_Q]
    rel_K = edges.rel_E[edge_K]
    return ContestQueries(
        contest=contest,
        edge_Q=edge_Q,
        key_Q=key_Q,
        true_Q=edges.entity(hidden)[edge_Q],
        rel_K=rel_K,
        schema_K=schema_E[edge_K],
        known_K=edges.entity(hidden.other)[edge_K],
        blocks=_blocks(key_Q, rel_K, queries_per_block or QUERIES_PER_BLOCK, by_relation=sets.by_relation),
    )


def _blocks(key_Q: np.ndarray, rel_K: np.ndarray, size: int, *, by_relation: bool) -> tuple[QueryBlock, ...]:
    num_queries = len(key_Q)
    borders: Sequence[int] = [0, num_queries] if num_queries else []
    if by_relation and num_queries:
        rel_Q = rel_K[key_Q]
        borders = [0, *(np.flatnonzero(np.diff(rel_Q)) + 1).tolist(), num_queries]
    blocks = []
    for run_start, run_stop in pairwise(borders):
        for first in range(run_start, run_stop, size):
            stop = min(first + size, run_stop)
            relation = int(rel_K[key_Q[first]]) if by_relation else -1
            continues = bool(first and key_Q[first - 1] == key_Q[first])
            blocks.append(QueryBlock(first, stop, int(key_Q[first]), int(key_Q[stop - 1]) + 1, relation, continues))
    return tuple(blocks)
