"""A unit's edges of one relation -> identities and vectors of both ends, checked.

A featurized entity has no row of its own: its identity is its list of features, and its vector their mean. Such
lists are numbered as they occur in the group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache

import numpy as np
import torch
from attrs import evolve, frozen
from torch import Tensor

from pbgeval.errors import DataError, EvalError, UnrankableError
from pbgeval.notation import ENDS, Side, values_between
from pbgeval.ranking.draws import DegreeWeights
from pbgeval.ranking.query_edges import CompetingEntities, GatheredVectors
from pbgeval.ranking.settings import Competition, EdgeOrigin, Relation, UnitOfEdges
from pbgeval.scoring.block_scorer import RowComparator
from pbgeval.scoring.block_sizes import sizes_on
from pbgeval.scoring.comparators import UnrankableRowsError
from pbgeval.scoring.deferred import holds
from pbgeval.scoring.entities import EntityTable
from pbgeval.scoring.scorer import EdgeScorer, dtype_of_candidates
from pbgeval.storage.edges import EdgeBlock, FeatureLists


@frozen(eq=False)
class Group:
    """The edges of one relation schema within a unit."""

    relation: Relation
    edges: EdgeBlock
    origin: EdgeOrigin
    # By end: the identity of each of the unit's edges' entity, of which only the group's are meaningful; and what has
    # the vectors of identities.
    ids_E: Mapping[Side, Tensor]
    tables: Mapping[Side, EntityTable]
    competition: Competition

    def rows(self, side: Side, ids: Tensor) -> Tensor:
        """Return the vectors of identities at one end, (n, D)."""
        return self.tables[side].rows(ids, self.relation.dtype)

    def vectors(self, scorer: EdgeScorer, side: Side, ids: np.ndarray, *, of_candidates: bool = False) -> Tensor:
        """Return the vectors of identities, (n, D), which may become candidates."""
        table, dtype = self.tables[side], self.relation.dtype
        dtype = dtype_of_candidates(scorer, side, table, dtype) if of_candidates else dtype
        return table.rows(torch.from_numpy(ids), dtype)

    def rel(self, rows_E: Tensor) -> Tensor | None:
        """Return the relation of each row when relations are dynamic."""
        return self.edges.rel[rows_E] if self.relation.scorer.dynamic else None

    def time(self, rows_E: Tensor) -> Tensor | None:
        """Return the time of each row when the model takes times."""
        if not self.relation.scorer.takes_time:
            return None
        assert self.edges.time is not None, "edges without times were refused"
        return self.edges.time[rows_E]

    def competing(self, hidden: Side) -> CompetingEntities:
        """Return which rows of a side's partition compete in queries of each relation (id in edge files)."""
        sets, num_rows = self.competition.sets, self.tables[hidden].num_rows

        @cache
        def rows(relation: int) -> np.ndarray | None:
            entity_ids = None if sets is None else sets.of(hidden, relation)
            if entity_ids is None:
                return None
            first = self.first_id(hidden)  # a set may be of all partitions, and much larger than this one
            return values_between(entity_ids, first, first + num_rows) - first

        return CompetingEntities(0, num_rows, rows, sets is not None and sets.by_relation)

    def may_compete(self, hidden: Side, rel: np.ndarray, row: np.ndarray) -> np.ndarray:
        """Tell of each (relation, row of the partition) whether it may compete, bool of the same shape."""
        sets = self.competition.sets
        if sets is None:
            return np.ones(np.broadcast_shapes(rel.shape, row.shape), bool)
        rel, entity_id = np.broadcast_arrays(rel, row + self.first_id(hidden))
        return sets.contains(hidden, rel, entity_id)

    def first_id(self, side: Side) -> int:
        """Return the number of row 0 of a side's partition."""
        assert self.competition.first_id is not None, "constraints need the numbering of entities"
        return self.competition.first_id(self.tables[side].entity_type, side)

    def degree_weights(self, side: Side) -> DegreeWeights:
        """Return what the entities of a side's partition are drawn by."""
        assert self.competition.degree_weights is not None, "draws by degree need the degrees of entities"
        return self.competition.degree_weights(self.tables[side].entity_type, side)

    def weights(self, rows_E: Tensor) -> Tensor:
        """Return what each query's loss counts, float64."""
        weight_E = (
            torch.ones_like(rows_E, dtype=torch.float64) if self.edges.weight is None else self.edges.weight[rows_E]
        )
        return weight_E * self.relation.scorer.weight

    def queries(self, hidden: Side, known_ED: Tensor, rows_E: Tensor) -> Tensor:
        """Return prepared queries; a row that cannot be prepared is the user's fault."""

        def named(row: int) -> tuple[int, int]:
            edge = int(rows_E.flatten()[row])
            return int(self.ids_E[hidden.other][edge]), edge

        with refused_by_name(self, self.relation.scorer, hidden.other, named):
            return self.relation.scorer.queries(hidden, known_ED, self.rel(rows_E), self.time(rows_E))

    def candidates(self, hidden: Side, x_CD: Tensor, ids_C: Tensor) -> Tensor:
        """Return prepared candidates; a row that cannot be prepared is the user's fault."""
        with refused_by_name(self, self.relation.scorer, hidden, lambda row: (int(ids_C.flatten()[row]), None)):
            return self.relation.scorer.candidates(hidden, x_CD)

    def unrankable(
        self, error: UnrankableRowsError, scorer: EdgeScorer, side: Side, entity: int, edge: int | None
    ) -> UnrankableError:
        """Return the error that names an entity whose row cannot be prepared, and the edge that uses it."""
        where = "" if edge is None else f", used by row {self.edges.start + edge} of {self.origin.label}"
        return UnrankableError(
            f"{self.tables[side].label}: expected {error.expected}, got {error.found} for entity {entity} after "
            f"operator '{scorer.operator}' of relation '{scorer.name}'{where}; this checkpoint cannot be ranked"
        )

    def row_label(self, row: int) -> str:
        """Name an edge in an error."""
        edges = self.edges
        edge = f"lhs {int(edges.lhs[row])}, rel {int(edges.rel[row])}, rhs {int(edges.rhs[row])}"
        return f"row {edges.start + row} ({edge})"

    def nan_score(self, hidden: Side, edge: int, entity: int) -> UnrankableError:
        """Return the error that names a query and a candidate whose score is not a number."""
        return UnrankableError(
            f"{self.origin.label}: {self.row_label(edge)}: expected a number as the score of {hidden.label} "
            f"candidate {entity} of {self.tables[hidden].label}, got NaN: finite embeddings overflow; "
            "this checkpoint cannot be ranked"
        )


QuerySource = Group | GatheredVectors  # vectors of the entities of some edges, and names for errors


@contextmanager
def refused_by_name(
    source: QuerySource, scorer: EdgeScorer, side: Side, named: Callable[[int], tuple[int, int | None]]
) -> Iterator[None]:
    """Raise an error that names an entity whose row cannot be prepared, and the edge that uses it.

    Args:
        source: of the rows.
        scorer: that prepares them.
        side: of the entities.
        named: position of a row -> its entity, and its edge; None: it stands for no edge.
    """
    try:
        yield
    except UnrankableRowsError as error:
        raise source.unrankable(error, scorer, side, *named(error.rows[0])) from error


def make_group(relation: Relation, rows_E: Tensor, unit: UnitOfEdges) -> Group:
    """Look up and check both ends of a group's edges.

    Raises:
        DataError: an entity or feature id is out of range; it names file, dataset and row.
    """
    edges = unit.edges
    ids_E = {Side.LHS: edges.lhs, Side.RHS: edges.rhs}
    tables = {side: unit.tables[relation.scorer.entity_type(side), side] for side in ENDS}
    for side, table in [*tables.items()]:
        where = f"{unit.origin.label}: dataset {side.pick('lhs', 'rhs')}"
        if table.featurized:
            features = side.pick(edges.lhs_features, edges.rhs_features)
            ids_E[side], tables[side] = _with_features(
                table, features, rows_E, f"{where}d_data", edges.start, relation.dtype
            )
        else:
            check_range(ids_E[side][rows_E], table.num_rows, where, edges.start, table.label, rows_E)
    return Group(relation, edges, unit.origin, ids_E, tables, unit.competition)


def check_range(ids_E: Tensor, high: int, where: str, start: int, of: str, rows_E: Tensor | None = None) -> None:
    """Refuse ids of edges that are out of range.

    Args:
        ids_E: of some edges.
        high: one more than the largest id.
        where: the file and dataset, for errors.
        start: row of the first edge.
        of: what the ids number, for errors.
        rows_E: positions of the edges; None: all.

    Raises:
        DataError: an id is out of range.
    """
    if not ids_E.numel():
        return
    lowest, highest = torch.aminmax(ids_E)
    if int(lowest) >= 0 and int(highest) < high:
        return
    at = int(((ids_E < 0) | (ids_E >= high)).nonzero()[0])
    row = start + (at if rows_E is None else int(rows_E[at]))
    raise DataError(
        f"{where}, row {row}: expected an id in 0..{high - 1} ({of} has {high}), got {int(ids_E[at])}; "
        "the edges and the entity counts do not belong together"
    )


def _with_features(
    table: EntityTable, features: FeatureLists | None, rows_E: Tensor, where: str, start: int, dtype: torch.dtype
) -> tuple[Tensor, EntityTable]:
    """Return the identity of each edge's entity, and a table of the vectors of identities."""
    if features is None:
        raise DataError(f"{where}: expected lists of features ({table.label} is featurized), got none")
    offsets, data = features.offsets.tolist(), features.data.tolist()
    identities: dict[tuple[int, ...], int] = {}
    ids_E = torch.zeros(len(offsets) - 1, dtype=torch.int64)
    for row in rows_E.tolist():
        listed = tuple(sorted(data[offsets[row] : offsets[row + 1]]))
        if not listed or listed[0] < 0 or listed[-1] >= table.num_rows:
            found = "an empty list" if not listed else f"feature {listed[0] if listed[0] < 0 else listed[-1]}"
            raise DataError(
                f"{where}, row {start + row}: expected features in 0..{table.num_rows - 1} ({table.label}), got {found}"
            )
        ids_E[row] = identities.setdefault(listed, len(identities))
    offsets_K = torch.tensor([0, *[len(listed) for listed in identities]]).cumsum(0)
    flat = torch.tensor([feature for listed in identities for feature in listed], dtype=torch.int64)
    vectors_KD = table.rows_of_features(offsets_K, flat, dtype)
    return ids_E, evolve(table, embeddings_ND=vectors_KD, global_embedding_D=None, max_norm=None)


# Find scores that are not numbers, so that they are refused.
#
# Finite rows can overflow: inf - inf is NaN, and NaN compares as false with everything, which would rank first. Kernels
# that round a product and its sum only once return the first infinity instead, so a score also counts as NaN where its
# positive terms and its negative terms both overflow, whatever the kernel returned. Most blocks are not searched: a
# bound on the rows excludes overflow (no partial sum exceeds D' * max|q| * max|c|), or all scores have a finite sum.

Ends = tuple[Tensor, Tensor]  # the lowest and the highest number of some rows, NaN if there is a NaN
LARGEST_SAFE_SCORE = 1e37  # a tenth of the largest float32, so that rounding cannot reach it


def first_nan(
    comparator: RowComparator, query_BQD: Tensor, candidate_BCD: Tensor, scores_BQC: Tensor
) -> tuple[int, int, int] | None:
    """Return (chunk, query, candidate) of a score that is not a number, None if all are numbers."""
    if not scores_BQC.numel():
        return None
    sum_tells = comparator.is_inner_product and scores_BQC.numel() < query_BQD.numel() + candidate_BCD.numel()
    is_safe = (
        holds(math.isfinite, scores_BQC.sum())
        if sum_tells
        else no_overflow(torch.aminmax(query_BQD), torch.aminmax(candidate_BCD), query_BQD.shape[-1])
    )
    if is_safe:
        return None
    if not comparator.multiplies:
        return _first(torch.isnan(scores_BQC))
    num_queries, dimension = query_BQD.shape[1:]
    rows = max(sizes_on(scores_BQC.device).cells // (candidate_BCD.shape[1] + dimension), 1)
    chunks = max(rows // num_queries, 1)
    for chunk in range(0, scores_BQC.shape[0], chunks):
        for row in range(0, num_queries, rows):
            part = slice(chunk, chunk + chunks), slice(row, row + rows)
            scores_bqC = scores_BQC[part]
            nan_bqC = _overflows_both_ways(query_BQD[part], candidate_BCD[part[0]], scores_BQC.dtype)
            if comparator.is_inner_product:  # as compiled loops have it, whose scores are finite if their sum is
                nan_bqC &= ~torch.isfinite(scores_bqC)
            found = _first(nan_bqC | torch.isnan(scores_bqC))
            if found is not None:
                return chunk + found[0], row + found[1], found[2]
    return None


def refuse_nan_of_pairs(
    comparator: RowComparator,
    rows: tuple[Tensor, Tensor],
    score_P: Tensor,
    cells: tuple[np.ndarray, np.ndarray],
    nan_score: Callable[[int, int], EvalError],
) -> None:
    """Raise the error that names a query and its own candidate, if their score is not a number.

    Args:
        comparator: of the scores.
        rows: prepared queries, and the candidate of each.
        score_P: of each pair.
        cells: (query, candidate) of each pair, as the error names them.
        nan_score: returns the error.
    """
    query_PD, candidate_PD = rows
    found = first_nan(comparator, query_PD.unsqueeze(1), candidate_PD.unsqueeze(1), score_P[:, None, None])
    if found is not None:
        raise nan_score(int(cells[0][found[0]]), int(cells[1][found[0]]))


def _overflows_both_ways(query_BQD: Tensor, candidate_BCD: Tensor, dtype: torch.dtype) -> Tensor:
    """Tell of each pair of rows whether a term is no number, or positive and negative terms both overflow, bool."""
    query_BQD, candidate_BDC = query_BQD.double(), candidate_BCD.double().transpose(1, 2)
    no_number_BQC = torch.isnan(query_BQD.abs() @ candidate_BDC.abs())  # infinity times zero
    longest = torch.finfo(torch.float64).max  # an infinity times zero would spoil sums of other terms
    query_BQD, candidate_BDC = query_BQD.clamp(-longest, longest), candidate_BDC.clamp(-longest, longest)
    high_BQD, low_BQD, high_BDC, low_BDC = (x.relu() for x in (query_BQD, -query_BQD, candidate_BDC, -candidate_BDC))
    positive_BQC = high_BQD @ high_BDC + low_BQD @ low_BDC
    negative_BQC = high_BQD @ low_BDC + low_BQD @ high_BDC
    return no_number_BQC | (torch.minimum(positive_BQC, negative_BQC) > torch.finfo(dtype).max)


def _first(found_BQC: Tensor) -> tuple[int, int, int] | None:
    if not bool(found_BQC.any()):
        return None
    chunk, query, candidate = found_BQC.nonzero()[0].tolist()
    return chunk, query, candidate


@cache
def _no_overflow_with(num_columns: int) -> Callable[..., bool]:
    """Return the fact for rows of so many columns: one function, so that a GPU looks at it once it has been false."""

    def is_impossible(*ends: float) -> bool:  # False for NaN and infinity
        return magnitude(*ends[:2]) * magnitude(*ends[2:]) * num_columns < LARGEST_SAFE_SCORE

    return is_impossible


def no_overflow(queries: Ends, candidates: Ends, num_columns: int) -> bool:
    """Tell whether no inner product of rows with such ends overflows, or assume it (`deferred`)."""
    return holds(_no_overflow_with(num_columns), *queries, *candidates)


def magnitude(low: float, high: float) -> float:
    """Return the largest magnitude of what has these ends."""
    return max(-low, high)
