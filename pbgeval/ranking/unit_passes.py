"""Units, one after the other -> what was found about their queries; small ones are counted several at a time.

A unit of a few edges takes far longer to prepare than to score: some hundred calls, each for a few numbers. So units of
one short chunk wait for others with as many edges, and their lists are chunks of one block: the rows of each list are
gathered into a table of their own. Counts and scores are exact, so they are the same in any company.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

import numpy as np
import torch
from attrs import define, evolve, field
from torch import Tensor

from pbgeval.notation import ENDS, Side, grouped
from pbgeval.ranking.bucket_pass import bucket_pass
from pbgeval.ranking.chunks import chunks_of_rows
from pbgeval.ranking.draws import HOST, DrawStream, uniform_below
from pbgeval.ranking.groups import Group
from pbgeval.ranking.relations import RelationCandidates
from pbgeval.ranking.sampled import CandidateList, SampledBlock, Scored
from pbgeval.ranking.sampled_lists import CandidatePolicy
from pbgeval.ranking.settings import Competition, PassSettings, UnitOfEdges
from pbgeval.ranking.tally import SideResult
from pbgeval.scoring.entities import EntityTable
from pbgeval.stats.groups import ScorePool, sortable_int32
from pbgeval.stats.ranks import QueryCounts
from pbgeval.storage.edges import EdgeBlock

# None of these changes a number.
MAX_UNITS = 64  # that wait
MAX_CELLS = 1 << 12  # of a small unit: beyond, scoring takes as long as the calls
MAX_CELLS_TOGETHER = 3 << 12
MAX_BYTES = 1 << 24  # of the partitions that waiting units hold: of larger ones, loading takes longer than the calls

L = TypeVar("L")


@define(eq=False)
class UnitPasses(Generic[L]):
    """Ranks units as they come; each has a label, by which its result is known."""

    settings: PassSettings
    relations: RelationCandidates | None
    _waiting: list[tuple[L, UnitOfEdges]] = field(factory=list, init=False)
    _num_cells: int = field(default=0, init=False)  # of those that wait
    _num_bytes: int = field(default=0, init=False)

    def rank(self, label: L, unit: UnitOfEdges) -> Iterator[tuple[L, dict[Side, SideResult]]]:
        """Rank a unit, or let it wait for others; yield what was found in it or in those that have waited.

        Raises:
            DataError: as `bucket_pass`.
        """
        num_bytes = sum(table.embeddings_ND.nbytes for table in unit.tables.values())
        num_cells = unit.edges.num_edges * self.settings.lists.longest_list * len(self.settings.sides)
        if num_cells > MAX_CELLS or num_bytes > MAX_BYTES or not _may_wait(unit, self.settings):
            yield label, bucket_pass(unit, self.settings, self.relations)
            return
        self._waiting.append((label, unit))
        self._num_cells += num_cells
        self._num_bytes += num_bytes
        is_full = len(self._waiting) == MAX_UNITS or self._num_cells > MAX_CELLS_TOGETHER
        if is_full or self._num_bytes > MAX_BYTES:
            yield from self.finish()

    def finish(self) -> Iterator[tuple[L, dict[Side, SideResult]]]:
        """Yield what was found in the units that wait.

        Raises:
            DataError: as `bucket_pass`.
        """
        alike: dict[tuple[int, int], list[tuple[L, UnitOfEdges]]] = grouped(
            ((_relation_of(unit, self.settings), unit.edges.num_edges), (label, unit)) for label, unit in self._waiting
        )
        self._waiting, self._num_cells, self._num_bytes = [], 0, 0
        for (relation, _), pairs in alike.items():
            units = [unit for _, unit in pairs]
            found = _count_together(units, relation, self.settings) if len(units) > 1 else None
            for at, (label, unit) in enumerate(pairs):
                yield label, bucket_pass(unit, self.settings, self.relations) if found is None else found[at]


def _relation_of(unit: UnitOfEdges, settings: PassSettings) -> int:
    """Return the schema of a unit's relations, where it has only one."""
    return 0 if settings.dynamic else int(unit.edges.rel[0])


def _may_wait(unit: UnitOfEdges, settings: PassSettings) -> bool:
    """Tell whether a unit is one chunk of one relation whose lists are sampled, with nothing special about it."""
    lists, competition, num_edges = settings.lists, unit.competition, unit.edges.num_edges
    if not (
        (not settings.auc.counts and settings.loss is None and Side.REL not in settings.sides)
        and (lists.num_batch_negs and not lists.num_degree_negs and not lists.pbg_semantics)
        and 0 < num_edges <= lists.chunk_size
        and (competition.rows_E is None and competition.chunks is None and competition.cluster_E is None)
        and (not competition.filters and competition.sets is None)
        and all(table.device == HOST and not table.featurized for table in unit.tables.values())
    ):
        return False
    rel = unit.edges.rel.numpy()
    if (not settings.dynamic and (rel != rel[0]).any()) or not 0 <= int(rel[0]) < settings.num_relations:
        return False
    relation = settings.relations[_relation_of(unit, settings)]
    return relation.policy is CandidatePolicy.SAMPLED and relation.scorer.exact_comparator is not None


def _count_together(
    units: Sequence[UnitOfEdges], relation: int, settings: PassSettings
) -> list[dict[Side, SideResult]] | None:
    """Count units of as many edges each; None: they have to be counted one by one, which also says what is wrong."""
    schema, num_units, num_queries = settings.relations[relation], len(units), units[0].edges.num_edges
    ids = {
        side: torch.stack([side.pick(unit.edges.lhs, unit.edges.rhs) for unit in units]) for side in ENDS
    }  # by row of the partition
    tables = {side: [unit.tables[schema.scorer.entity_type(side), side] for unit in units] for side in ENDS}
    rel_BQ = torch.stack([unit.edges.rel for unit in units])
    if not _are_in_range(ids, tables, rel_BQ, settings):
        return None
    rows_BQ = torch.arange(num_units * num_queries).view(num_units, num_queries)
    block = evolve(chunks_of_rows(rows_BQ[0], settings.lists, 0, num_queries), rows_BQ=rows_BQ)
    lists, true, compact = {}, {}, {}
    for side in ENDS:
        ids_BC = ids[side]
        if side in settings.sides:
            drawn = [
                _draws(unit, side, table.num_rows, block.num_draws, settings)
                for unit, table in zip(units, tables[side], strict=True)
            ]
            ids_BC = torch.cat([ids_BC, torch.stack(drawn)], dim=1)
        rows = [table.embeddings_ND[ids_C] for table, ids_C in zip(tables[side], ids_BC, strict=True)]
        compact[side] = evolve(tables[side][0], embeddings_ND=torch.cat(rows))
        place_BC = torch.arange(ids_BC.numel()).view(ids_BC.shape)  # of each candidate among these rows
        true[side] = place_BC[:, :num_queries]
        if side in settings.sides:
            of_units = (
                settings.auc.words(settings.seed, unit.origin.place, side, unit.edges.start + np.arange(num_queries))
                for unit in units
            )
            words = [words_QD for words_QD in of_units if words_QD is not None]
            lists[side] = CandidateList(place_BC, ids[side], ids_BC, torch.cat(words) if words else None)
    lhs, rhs = (true[side].flatten() for side in ENDS)
    edges = EdgeBlock(0, lhs, rel_BQ.flatten(), rhs)
    group = Group(schema, edges, units[0].origin, {Side.LHS: lhs, Side.RHS: rhs}, compact, Competition())
    found = SampledBlock(group, block, true, lists, settings).count_by_loop(slice(0, num_units))
    if found is None:
        return None
    results: list[dict[Side, SideResult]] = [{} for _ in units]
    for scored in found:
        for of_unit, result in zip(results, _split(scored), strict=True):
            of_unit[scored.part.hidden] = result
    return results


def _are_in_range(
    ids: dict[Side, Tensor], tables: dict[Side, list[EntityTable]], rel_BQ: Tensor, settings: PassSettings
) -> bool:
    """Tell whether all ids of some units are rows of their partitions, and relations."""
    limits = [(rel_BQ.numpy(), np.full((len(rel_BQ), 1), settings.num_relations))]
    limits += [(ids[side].numpy(), np.array([[table.num_rows] for table in tables[side]])) for side in ENDS]
    return all(bool(((of_BQ >= 0) & (of_BQ < num_B1)).all()) for of_BQ, num_B1 in limits)


def _draws(unit: UnitOfEdges, side: Side, num_rows: int, num_draws: int, settings: PassSettings) -> Tensor:
    """Return the rows that are drawn for a unit's only chunk."""
    stream = DrawStream.of(settings.seed, *unit.origin.place, side)
    return uniform_below(stream.words_on(HOST, unit.edges.start * settings.lists.words_per_row, num_draws), num_rows)


def _split(scored: Scored) -> Iterator[SideResult]:
    """Yield the results of the queries of each chunk."""
    part = scored.part
    assert scored.query_P is not None, "the cells of the scores are named"
    num_units, num_queries = part.rows_BQ.shape
    true_BQ = sortable_int32(scored.true_Q.float()).reshape(num_units, num_queries)
    kept_BQ = None if part.true_is_sampled_Q is None else part.true_is_sampled_Q.view(true_BQ.shape).numpy()
    images_P = sortable_int32(scored.score_P.float())
    borders = np.searchsorted(scored.query_P.numpy(), np.arange(num_units + 1) * num_queries).tolist()
    num_copies = part.num_copies_Q.view(num_units, num_queries).sum(1).tolist()
    rows_Q = torch.arange(num_queries)
    for at, counts_6Q in enumerate(scored.counts.rows().view(-1, num_units, num_queries).unbind(1)):
        yield SideResult(
            rows_Q=rows_Q,
            counts=QueryCounts.of_rows(counts_6Q),
            raw_pool=ScorePool(
                [true_BQ[at] if kept_BQ is None else true_BQ[at][kept_BQ[at]]],
                [images_P[borders[at] : borders[at + 1]]],
            ),
            filtered_pool=ScorePool(),
            numbers={
                "num_outside": 0,
                "num_short_lists": num_queries if part.block.num_topped_up else 0,
                "num_excluded": num_copies[at],
            },
        )
