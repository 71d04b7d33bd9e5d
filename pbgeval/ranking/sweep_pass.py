"""The vectors of the entities that evaluated edges touch: the first of two sweeps over the partitions.

    gather    rows of a partition -> the vectors of the entities that evaluated edges touch
    prepare   those vectors -> a prepared query per key, and a true score per query (`ContestState.prepare`)
    rank      a range of candidate rows, once -> counts of every query against them (`ranking_pass.rank`)
    finish    counts summed over all ranges -> results per bucket

Nothing of size queries x entities exists: scores live in one block. Reads nothing and writes nothing; rows come and go
through the sources and sinks handed in.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from pbgeval.errors import DataError
from pbgeval.notation import Side, distinct
from pbgeval.ranking.constraints import CandidateSets
from pbgeval.ranking.contest_state import Rows
from pbgeval.ranking.query_edges import ContestQueries, QueryEdges
from pbgeval.scoring.comparators import UnrankableRowsError
from pbgeval.scoring.entities import EntityTable
from pbgeval.scoring.scorer import EdgeScorer


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


@frozen(eq=False)
class GatheredEntities:
    """The raw vectors of all entities that evaluated edges touch."""

    numbers: Mapping[str, np.ndarray]  # int64, sorted, by entity type
    rows: Mapping[str, Rows]

    def add(self, table: EntityTable, first_number: int) -> None:
        """Store the rows of a part of a partition that evaluated edges touch.

        Args:
            table: the part, its rows checked.
            first_number: the number of the table's first row.
        """
        numbers = self.numbers[table.entity_type]
        first, stop = np.searchsorted(numbers, [first_number, first_number + table.num_rows])
        if first < stop:
            rows = torch.from_numpy(numbers[first:stop] - first_number)
            self.rows[table.entity_type].write(int(first), table.embeddings_ND.index_select(0, rows.to(table.device)))

    def take(self, entity_type: str, number: np.ndarray) -> Tensor:
        """Return the raw vectors of entities of one type."""
        at = np.searchsorted(self.numbers[entity_type], number)
        return self.rows[entity_type].take(torch.from_numpy(at))


@frozen(eq=False)
class GatheredQueries:
    """The vectors of the queries of one contest, and names for errors."""

    edges: QueryEdges
    queries: ContestQueries
    entities: GatheredEntities
    vectors: EntityVectors

    def known(self, first_key: int, stop_key: int) -> Tensor:
        """Return those of the known entities of consecutive keys, all of one relation schema."""
        known_type = self._scorer(first_key).entity_type(self.queries.contest.hidden.other)
        return self._take(known_type, self.queries.known_K[first_key:stop_key])

    def true(self, first: int, stop: int) -> Tensor:
        """Return those of the true entities of consecutive queries."""
        return self._take(self.queries.contest.candidate_type, self.queries.true_Q[first:stop])

    def unrankable(self, error: UnrankableRowsError, number: int, key: int | None) -> DataError:
        """Return the error that names the known entity of a key, or (None) a candidate, that cannot be prepared."""
        scorer = self.queries.contest.scorer if key is None else self._scorer(key)
        return DataError(
            f"{self.edges.entity_label(number)}: expected {error.expected}, got {error.found} "
            f"after the operator of relation '{scorer.name}'; this checkpoint cannot be ranked"
        )

    def nan_score(self, query: int, number: int) -> DataError:
        """Return the error that names a query and a candidate whose score is not a number."""
        edges = self.edges
        return DataError(
            f"{edges.label(int(self.queries.edge_Q[query]))}: expected a number as the score of "
            f"{self.queries.contest.hidden.label} candidate {edges.entity_label(number)}, got NaN: finite embeddings "
            "overflow; this checkpoint cannot be ranked"
        )

    def _scorer(self, key: int) -> EdgeScorer:
        return self.queries.contest.scorers[int(self.queries.schema_K[key])]

    def _take(self, entity_type: str, numbers: np.ndarray) -> Tensor:
        rows_ND = self.entities.take(entity_type, numbers)
        return self.vectors.table(entity_type, 0, rows_ND).range_of_rows(0, len(numbers), self.vectors.dtype)


def entities_of_edges(edges: QueryEdges, types: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Return the sorted numbers of the entities that edges touch, by type."""
    touched = distinct(np.concatenate([edges.lhs_E, edges.rhs_E]))
    ranges = {entity_type: edges.numbering.range_of_type(entity_type) for entity_type in types}
    return {
        entity_type: touched[np.searchsorted(touched, low) : np.searchsorted(touched, high)]
        for entity_type, (low, high) in ranges.items()
    }


def outside_queries(edges: QueryEdges, hidden: Side, sets: CandidateSets) -> np.ndarray:
    """Tell of each edge whether its true entity may not compete, bool (E,)."""
    if sets.unconstrained:
        return np.zeros(edges.num_edges, bool)
    return ~sets.contains(hidden, edges.rel_E, edges.entity(hidden))
