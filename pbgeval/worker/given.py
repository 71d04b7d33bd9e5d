"""Files of given candidates -> the cells (query, candidate) of each contest, by the slot of the candidate."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from attrs import define, field

from pbgeval.inputs.protocol import CandidateRange
from pbgeval.notation import distinct
from pbgeval.ranking.cells import CellSample, SampledCells
from pbgeval.ranking.constraints import is_among
from pbgeval.ranking.draws import DrawStream
from pbgeval.ranking.query_edges import ContestQueries, EdgeSegment, QueryEdges
from pbgeval.worker.context import WorkerContext

ROWS_AT_A_TIME = 1 << 14  # of a file of candidates


@define(eq=False)
class GivenCells:
    """What the lists of one contest name in this worker's part of the candidates."""

    context: WorkerContext
    name: str  # of its scratch files, this worker's own
    budget_bytes: int
    _of_slot: dict[int, list[np.ndarray]] = field(factory=dict)  # int64 (2, n): query, number
    _num_bytes: int = 0

    def add(self, query: np.ndarray, number: np.ndarray) -> None:
        """Add cells, in memory up to a budget and then in the scratch folder."""
        slot = self.context.numberer.numbering.slot_of(number)
        for of_slot in distinct(slot).tolist():
            part = np.stack([query[slot == of_slot], number[slot == of_slot]])
            self._of_slot.setdefault(of_slot, []).append(part)
            self._num_bytes += part.nbytes
        if self._num_bytes > self.budget_bytes:
            for of_slot, parts in self._of_slot.items():
                self.context.scratch.append(self._name(of_slot), np.concatenate(parts, axis=1).T)
            self._of_slot, self._num_bytes = {}, 0

    def within(self, part: CandidateRange) -> CellSample:
        """Return the cells of a range of candidates, arranged by query."""
        spilled = self.context.scratch.read(self._name(part.slot), np.int64).reshape(-1, 2).T
        query, number = np.concatenate([spilled, *self._of_slot.get(part.slot, [])], axis=1)
        first, _ = self.context.numberer.numbering.range_of_slot(part.slot)
        inside = (number >= first + part.start) & (number < first + part.stop)
        query, number = query[inside], number[inside]
        order = np.lexsort((number, query))
        return CellSample(query[order], number[order])

    def _name(self, slot: int) -> str:
        return f"{self.name}-{self.context.team.rank_in_team}-{slot}"


def read_given(
    context: WorkerContext,
    edges: QueryEdges,
    queries: ContestQueries,
    number: int,
    ranges: list[CandidateRange],
    budget: int,
) -> tuple[GivenCells, SampledCells | None]:
    """Read the lists of a contest's queries.

    Args:
        context: of this worker.
        edges: all edges.
        queries: the contest's.
        number: of the contest.
        ranges: this worker's part of the candidates; other cells are not kept.
        budget: bytes of cells in memory.

    Returns:
        The cells, without true entities and without those that restrictions bar; and what the pooled AUC samples of
        all workers' cells, None where it compares every cell.
    """
    cells = GivenCells(context, f"given-{number}", budget)
    position_E = np.full(edges.num_edges, -1, np.int64)
    position_E[queries.edge_Q] = np.arange(queries.num_queries)
    allowed = context.inputs.restrictions.entities
    numbering = context.numberer.numbering
    own = np.array([numbering.range_of_slot(part.slot)[0] + at for part in ranges for at in (part.start, part.stop)])
    auc = context.settings.auc
    kept_Q = np.ones(queries.num_queries, bool)
    sampled: list[np.ndarray] = [np.empty((2, 0), np.int64)]
    for segment in edges.segments:
        stream = DrawStream.of(
            context.settings.seed, segment.origin.path_index, segment.origin.bucket, queries.contest.hidden, "auc"
        )
        for edge, number_QK in _lists(context, edges, segment, queries, position_E):
            query_Q = position_E[edge]
            query, number_P = np.repeat(query_Q, number_QK.shape[1]), number_QK.reshape(-1)
            competes = _compete(queries, query, number_P, allowed)
            query, number_P = query[competes], number_P[competes]
            mine = np.searchsorted(own, number_P, "right") % 2 == 1
            cells.add(query[mine], number_P[mine])
            rows = edges.row_E[edge]
            words = auc.words(stream, int(rows[0]), int(rows[-1] - rows[0]) + 1)
            if words is not None:
                words_QW = words[rows - rows[0]]
                kept_Q[query_Q] = auc.true_is_kept(words_QW).numpy()
                drawn, place = (index.numpy() for index in auc.cells(words_QW, number_QK.shape[1]))
                of_draw = np.stack([query_Q[drawn], number_QK[drawn, place]])
                sampled.append(of_draw[:, _compete(queries, of_draw[0], of_draw[1], allowed)])
    if auc.exact:
        return cells, None
    query, number_P = np.concatenate(sampled, axis=1)
    return cells, SampledCells(CellSample.by_number(query, number_P), kept_Q)


def _compete(queries: ContestQueries, query: np.ndarray, number: np.ndarray, allowed: np.ndarray | None) -> np.ndarray:
    competes: np.ndarray = number != queries.true_Q[query]
    return competes if allowed is None else competes & is_among(number, allowed)


def _lists(
    context: WorkerContext, edges: QueryEdges, segment: EdgeSegment, queries: ContestQueries, position_E: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (edges, numbers that their lists name) of a segment's queries in a contest, int64 (Q,) and (Q, K)."""
    hidden = queries.contest.hidden
    edge = np.arange(segment.start, segment.stop)
    edge = edge[position_E[edge] >= 0]
    if not edge.size:
        return
    file = context.inputs.candidate_files[segment.origin.path_index][segment.origin.bucket]
    numbering = context.numberer.numbering
    entity_type = queries.contest.candidate_type
    partitions = range(context.inputs.config.entities[entity_type].num_partitions)
    offset_P = np.array([numbering.offset(entity_type, partition) for partition in partitions])
    sizes = [[context.inputs.embeddings[entity_type, partition].num_rows for partition in partitions]]
    windows = edges.row_E[edge] // ROWS_AT_A_TIME
    for window in distinct(windows).tolist():
        of_window = edge[windows == window]
        types = np.zeros(of_window.shape, np.int64)
        ids_EK, partitions_EK = file.read(hidden, edges.row_E[of_window], types, sizes)
        yield of_window, offset_P[partitions_EK] + ids_EK
