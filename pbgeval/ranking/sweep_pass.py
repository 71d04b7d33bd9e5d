"""Ranks against every entity of the type, in every partition: two sweeps over the partitions (`candidates = "all"`).

    gather    rows of a partition -> the vectors of the entities that evaluated edges touch
    prepare   those vectors -> a prepared query per key, and a true score per query
    rank      a range of candidate rows, once -> counts of every query against them
    finish    counts summed over all ranges -> results per bucket

Nothing of size queries x entities exists: scores live in one block. Reads nothing and writes nothing; rows come and go
through the sources and sinks handed in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import torch
from attrs import define, field, frozen
from torch import Tensor

from pbgeval.errors import DataError
from pbgeval.notation import Side, distinct
from pbgeval.ranking.certified import Bfloat16Use
from pbgeval.ranking.constraints import CandidateSets
from pbgeval.ranking.fused import paired_scores
from pbgeval.ranking.groups import first_nan_of_pairs
from pbgeval.ranking.query_edges import ContestQueries, QueryEdges
from pbgeval.scoring.block_scorer import ScorerComparator
from pbgeval.scoring.certified import CertifiedComparator
from pbgeval.scoring.comparators import RowComparator, UnrankableRowsError
from pbgeval.scoring.entities import EntityTable
from pbgeval.scoring.true_scores import CertifiedTrue, TrueScores
from pbgeval.stats.ranks import QueryCounts, RankCounts

KEYS_AT_A_TIME = 4096  # prepared together; changes no number
QUERIES_AT_A_TIME = 8192  # true scores computed together
ROWS_AT_A_TIME = 2048  # candidates for certified ranks prepared together; changes no number


class Rows(Protocol):
    """Vectors kept between the sweeps."""

    def write(self, start: int, rows_ND: Tensor) -> None: ...
    def read(self, start: int, stop: int) -> Tensor: ...
    def take(self, rows: Tensor) -> Tensor: ...


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
            embeddings_ND=rows_ND.to(self.device),
            global_embedding_D=self.global_embeddings.get(entity_type),
            max_norm=self.max_norm,
            first_row=first_row,
        )

    def finished(self, entity_type: str, rows_ND: Tensor) -> Tensor:
        """Return raw rows as operators see them, in the type that is computed in."""
        return self.table(entity_type, 0, rows_ND).range_of_rows(0, rows_ND.shape[0], self.dtype)


@frozen(eq=False)
class GatheredEntities:
    """The raw vectors of all entities that evaluated edges touch."""

    numbers: Mapping[str, np.ndarray]  # int64, sorted, by entity type
    rows: Mapping[str, Rows]

    def take(self, entity_type: str, number: np.ndarray) -> Tensor:
        """Return the raw vectors of entities of one type."""
        at = np.searchsorted(self.numbers[entity_type], number)
        return self.rows[entity_type].take(torch.from_numpy(at))


@define
class SweepState:
    """One contest's queries, and what the sweeps make of them."""

    queries: ContestQueries
    prepared: Rows  # (K, D'): a prepared query per key
    true_scores: Rows  # a packed `TrueScores`, or `CertifiedTrue`, per query
    fused: bool = False  # counted by one kernel on a GPU, which nobody asks for the scores themselves
    bfloat16: Bfloat16Use = field(factory=Bfloat16Use, init=False)  # if ranks are certified
    late: LateTrueScores | None = field(default=None, init=False)  # of a model that scores all entities at once
    counts_6Q: Tensor = field(init=False)  # int64: better, tied, competing of all candidates; then of the known ones

    def __attrs_post_init__(self) -> None:
        self.counts_6Q = torch.zeros((6, self.queries.num_queries), dtype=torch.int64)

    @property
    def hidden(self) -> Side:
        return self.queries.contest.hidden

    @property
    def comparator(self) -> RowComparator:
        return self.queries.contest.scorer.comparator

    @property
    def scores_rows(self) -> bool:
        """Whether a model is asked that scores all entities for a query at once."""
        return isinstance(self.comparator, ScorerComparator) and self.comparator.by_rows is not None

    @property
    def certified(self) -> CertifiedComparator | None:
        """The comparator in exact arithmetic, if ranks are certified."""
        return self.queries.contest.scorer.certified

    def true(self, first: int, stop: int, device: torch.device) -> TrueScores:
        """Return the true scores of consecutive queries."""
        if self.late is not None:
            self.late.read(self, first, stop)
        return TrueScores.unpacked(self.true_scores.read(first, stop), device)

    def certified_true(self, certified: CertifiedComparator, first: int, query_QL: Tensor) -> CertifiedTrue:
        """Return those of consecutive queries, whose prepared rows are given, if ranks are certified."""
        rows_QW = self.true_scores.read(first, first + query_QL.shape[0]).to(query_QL.device)
        return CertifiedTrue.unpacked(certified, rows_QW, query_QL)

    def true_values(self) -> Tensor:
        """Return every query's true score as competitors' scores are made that the pooled AUC compares, float32."""
        if self.certified is not None:
            return self.true_scores.read(0, self.queries.num_queries)[:, -1]
        if self.late is not None:
            for block in self.queries.blocks:  # those that met no candidate
                if not self.late.is_read_Q[block.first : block.stop].all():
                    self.late.read(self, block.first, block.stop)
        rows_QW = self.true_scores.read(0, self.queries.num_queries)
        return TrueScores.unpacked(rows_QW, torch.device("cpu")).kernel_Q.float()

    def add(self, first: int, stop: int, counts: QueryCounts) -> None:
        """Add what a block of candidates says about consecutive queries."""
        parts = (counts.raw, counts.known)
        rows = [column for part in parts for column in (part.better_Q, part.tied_Q, part.competing_Q)]
        self.counts_6Q[:, first:stop] += torch.stack(rows).cpu()

    def counts(self) -> QueryCounts:
        """Return the counts of all queries, once every candidate has been met."""
        return QueryCounts(RankCounts(*self.counts_6Q[:3]), RankCounts(*self.counts_6Q[3:]))


@frozen(eq=False)
class LateTrueScores:
    """Makes true scores when a block of queries meets candidates: both are read from the rows that a model returns."""

    edges: QueryEdges
    entities: GatheredEntities
    vectors: EntityVectors
    is_read_Q: np.ndarray  # bool

    def read(self, state: SweepState, first: int, stop: int) -> None:
        """Write the true scores of consecutive queries."""
        first_key = int(state.queries.key_Q[first])
        prepared_KD = state.prepared.read(first_key, int(state.queries.key_Q[stop - 1]) + 1).to(self.vectors.device)
        _true_scores(state, self.edges, self.entities, self.vectors, prepared_KD, first_key, (first, stop))
        self.is_read_Q[first:stop] = True


def entities_of_edges(edges: QueryEdges, types: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Return the sorted numbers of the entities that edges touch, by type."""
    touched = distinct(np.concatenate([edges.lhs_E, edges.rhs_E]))
    ranges = {entity_type: edges.numbering.range_of_type(entity_type) for entity_type in types}
    return {
        entity_type: touched[np.searchsorted(touched, low) : np.searchsorted(touched, high)]
        for entity_type, (low, high) in ranges.items()
    }


def gather(table: EntityTable, first_number: int, entities: GatheredEntities) -> None:
    """Store the rows of a part of a partition that evaluated edges touch.

    Args:
        table: the part, its rows checked.
        first_number: the number of the table's first row.
        entities: where they go.
    """
    numbers = entities.numbers[table.entity_type]
    first, stop = np.searchsorted(numbers, [first_number, first_number + table.num_rows])
    if first < stop:
        rows = torch.from_numpy(numbers[first:stop] - first_number)
        raw_ND = table.embeddings_ND.index_select(0, rows.to(table.device))
        entities.rows[table.entity_type].write(int(first), raw_ND)


def prepare(
    state: SweepState, edges: QueryEdges, entities: GatheredEntities, vectors: EntityVectors, share: tuple[int, int]
) -> None:
    """Make the prepared queries and true scores of this worker's share of the keys.

    Args:
        state: of one contest.
        edges: all edges.
        entities: their vectors.
        vectors: how raw vectors become rows.
        share: first key and one past the last; shares of workers need not be aligned with anything.

    Raises:
        DataError: a query or true entity without a direction under cos, or a true score that is not a number.
    """
    queries = state.queries
    for first, stop in _runs_of_one_schema(queries, *share):
        schema = int(queries.schema_K[first])
        scorer = queries.contest.scorers[schema]
        known_type = scorer.entity_type(state.hidden.other)
        known_KD = vectors.finished(known_type, entities.take(known_type, queries.known_K[first:stop]))
        rel_K = torch.from_numpy(queries.rel_K[first:stop]) if scorer.dynamic else None
        try:
            prepared_KD = queries.contest.queries(schema, known_KD, rel_K)
        except UnrankableRowsError as error:
            raise _unrankable(error, edges, scorer.name, int(queries.known_K[first + error.rows[0]])) from error
        state.prepared.write(first, prepared_KD)
        if not state.scores_rows:
            first_query, last_query = np.searchsorted(queries.key_Q, [first, stop]).tolist()
            _true_scores(state, edges, entities, vectors, prepared_KD, first, (first_query, last_query))
    if state.scores_rows:
        state.late = LateTrueScores(edges, entities, vectors, np.zeros(queries.num_queries, bool))


def _runs_of_one_schema(queries: ContestQueries, start: int, stop: int) -> list[tuple[int, int]]:
    borders = np.flatnonzero(np.diff(queries.schema_K[start:stop])) + 1 + start
    runs = []
    for first, last in zip([start, *borders.tolist()], [*borders.tolist(), stop], strict=True):
        runs += [(at, min(at + KEYS_AT_A_TIME, last)) for at in range(first, last, KEYS_AT_A_TIME)]
    return runs


def _true_scores(
    state: SweepState,
    edges: QueryEdges,
    entities: GatheredEntities,
    vectors: EntityVectors,
    prepared_KD: Tensor,
    first_key: int,
    of_queries: tuple[int, int],
) -> None:
    queries, (first, stop) = state.queries, of_queries
    candidate_type = queries.contest.candidate_type
    for at in range(first, stop, QUERIES_AT_A_TIME):
        until = min(at + QUERIES_AT_A_TIME, stop)
        true_Q = queries.true_Q[at:until]
        true_QD = vectors.finished(candidate_type, entities.take(candidate_type, true_Q))
        row_Q = torch.from_numpy(queries.key_Q[at:until] - first_key).to(prepared_KD.device)
        candidates_QD = prepared_candidates(state, edges, true_QD, true_Q)
        queries_QD = prepared_KD.index_select(0, row_Q)
        if state.certified is not None:
            state.true_scores.write(at, CertifiedTrue.of_pairs(state.certified, queries_QD, candidates_QD).packed())
            continue
        paired = paired_scores if state.fused else None
        true = TrueScores.of_pairs(state.comparator, queries_QD, candidates_QD, paired)
        bad = first_nan_of_pairs(state.comparator, queries_QD, candidates_QD, true.score_Q)
        if bad is not None:
            raise nan_score(state, edges, at + bad, int(true_Q[bad]))
        state.true_scores.write(at, true.packed())


def prepared_candidates(state: SweepState, edges: QueryEdges, x_CD: Tensor, numbers_C: np.ndarray) -> Tensor:
    """Return the prepared rows of candidates; one that cannot be prepared is the user's fault."""
    try:
        return state.queries.contest.candidates(x_CD)
    except UnrankableRowsError as error:
        name = state.queries.contest.scorer.name
        raise _unrankable(error, edges, name, int(numbers_C[error.rows[0]])) from error


def prepared_range(
    state: SweepState, edges: QueryEdges, table: EntityTable, numbers_C: np.ndarray, dtype: torch.dtype
) -> Tensor:
    """Return the prepared rows of all candidates of a table, whose numbers are given; likewise."""
    if state.certified is None:
        return prepared_candidates(state, edges, table.range_of_rows(0, table.num_rows, dtype), numbers_C)
    # In float64 they take twice the room, so a few at a time.
    width = state.certified.candidate_width(table.embeddings_ND.shape[1])
    prepared_CL = torch.empty((table.num_rows, width), device=table.device)
    for start in range(0, table.num_rows, ROWS_AT_A_TIME):
        stop = min(start + ROWS_AT_A_TIME, table.num_rows)
        rows_CD = table.range_of_rows(start, stop, dtype)
        prepared_CL[start:stop] = prepared_candidates(state, edges, rows_CD, numbers_C[start:stop])
    return prepared_CL


def _unrankable(error: UnrankableRowsError, edges: QueryEdges, relation: str, number: int) -> DataError:
    return DataError(
        f"{edges.entity_label(number)}: expected {error.expected}, got {error.found} "
        f"after the operator of relation '{relation}'; this checkpoint cannot be ranked"
    )


def nan_score(state: SweepState, edges: QueryEdges, query: int, number: int) -> DataError:
    """Return the error that names a query and a candidate whose score is not a number."""
    edge = int(state.queries.edge_Q[query])
    return DataError(
        f"{edges.label(edge)}: expected a number as the score of {state.hidden.label} candidate "
        f"{edges.entity_label(number)}, got NaN: finite embeddings overflow; this checkpoint cannot be ranked"
    )


def outside_queries(edges: QueryEdges, hidden: Side, sets: CandidateSets) -> np.ndarray:
    """Tell of each edge whether its true entity may not compete, bool (E,)."""
    if sets.unconstrained:
        return np.zeros(edges.num_edges, bool)
    return ~sets.contains(hidden, edges.rel_E, edges.entity(hidden))
