"""A small graph in memory for `gpu_check`, and the passes over it: on a device, what they find about every query."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from pbgeval.notation import ENDS, Bucket, EntityNumbering, Side
from pbgeval.ranking.auc_sampling import AucSampling
from pbgeval.ranking.backend import backend_for
from pbgeval.ranking.block_threads import BlockThreads
from pbgeval.ranking.bucket_pass import bucket_pass
from pbgeval.ranking.draws import HOST
from pbgeval.ranking.keys import EdgeColumns
from pbgeval.ranking.known_answers import KnownAnswers, KnownOfEdges
from pbgeval.ranking.query_edges import (
    CompetingEntities,
    EdgeSegment,
    EntityVectors,
    GatheredVectors,
    QueryEdges,
    entities_of_edges,
    group_queries,
)
from pbgeval.ranking.query_group_state import CellSample, QueryGroupState, SampledCells, TopCandidates, rows_to_keep
from pbgeval.ranking.ranking_pass import rank
from pbgeval.ranking.sampled_lists import CandidatePolicy, SampledLists
from pbgeval.ranking.settings import (
    CandidateSets,
    Competition,
    EdgeOrigin,
    Kept,
    LossSettings,
    PassSettings,
    Relation,
    UnitOfEdges,
)
from pbgeval.scoring.comparators import Comparator
from pbgeval.scoring.deferred import Deferred, run_deferred
from pbgeval.scoring.entities import EntityTable
from pbgeval.scoring.operators import OPERATORS
from pbgeval.scoring.scorer import RelationScorer, query_groups
from pbgeval.stats.groups import sortable_int32
from pbgeval.stats.rank_stats import StatsLayout
from pbgeval.storage.edges import EdgeBlock
from pbgeval.storage.rows import MemoryRows

TYPE = "entity"
ORIGIN = EdgeOrigin("edges", (0, Bucket(0, 0)))


def exact(shape: tuple[int, ...], seed: int) -> Tensor:
    """Return small multiples of 1/4."""
    return torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(seed)) / 4


def normal(shape: tuple[int, ...], seed: int) -> Tensor:
    """Return normal numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@frozen(eq=False)
class Graph:
    """One entity type in one partition, relations of one dynamic operator, exact vectors."""

    embeddings_ND: Tensor
    edges: EdgeBlock
    operator: str
    parameters: dict[str, Tensor]
    comparator: Comparator
    dtype: torch.dtype
    known: dict[Side, Tensor]  # (2, P): positions of edges and entities that are known answers of their queries

    @classmethod
    def made(cls, comparator: str, operator: str, dtype: torch.dtype, smoke: bool) -> Graph:
        """Make a graph in which some entities have the same vector."""
        num_entities, num_edges, dimension, num_relations = (90, 30, 8, 3) if smoke else (6000, 1500, 64, 20)
        embeddings_ND = exact((num_entities, dimension), 1)
        embeddings_ND[num_entities // 2 :: 7] = embeddings_ND[0]
        generator = torch.Generator().manual_seed(2)
        sizes = (num_entities, num_relations, num_entities)
        lhs, rel, rhs = (torch.randint(size, (num_edges,), generator=generator) for size in sizes)
        shapes = OPERATORS[operator].shapes(dimension)
        parameters = {name: exact((num_relations, *shape), 3).to(dtype) for name, shape in shapes.items()}
        pairs = torch.stack(
            [torch.randint(size, (8 * num_edges,), generator=generator) for size in (num_edges, num_entities)]
        )
        known = {}
        for side in ENDS:
            own = torch.stack([torch.arange(num_edges), side.pick(lhs, rhs)])
            known[side] = torch.unique(torch.cat([pairs, own[:, ::2]], dim=1), dim=1)
        edges = EdgeBlock(0, lhs, rel, rhs)
        return cls(embeddings_ND, edges, operator, parameters, Comparator(comparator), dtype, known)

    def relation(self, device: torch.device, policy: CandidatePolicy) -> Relation:
        """Return the one entry of `relations`."""
        parameters = {name: value.to(device) for name, value in self.parameters.items()}
        of_sides = {side: parameters for side in ENDS}
        scorer = RelationScorer("relation", self.operator, of_sides, self.comparator, True, TYPE, TYPE)
        return Relation(scorer, policy, self.dtype)

    def keys(self, side: Side) -> tuple[np.ndarray, np.ndarray]:
        """Return the key of each edge's query that hides a side, and the answers known of it: (key, entity), sorted."""
        other = side.pick(self.edges.rhs, self.edges.lhs)
        code_E = self.edges.rel * self.embeddings_ND.shape[0] + other
        _, key_E = torch.unique(code_E, return_inverse=True)
        cells = torch.unique(torch.stack([key_E[self.known[side][0]], self.known[side][1]]), dim=1)
        return key_E.numpy(), cells.numpy()


def auc_sampling(graph: Graph, *, exact: bool) -> AucSampling:
    """Return which cells the pooled AUC compares: all, or one in ten."""
    longest = graph.embeddings_ND.shape[0]
    return AucSampling(1.0, 1.0, 0) if exact else AucSampling(0.1, 0.5, 3 + longest // 10)


def rank_bucket(
    graph: Graph, device: torch.device, policy: CandidatePolicy, auc: AucSampling, loss: LossSettings | None
) -> dict[str, Tensor]:
    """Rank the edges as one bucket, filtered."""
    relation = graph.relation(device, policy)
    settings = PassSettings(
        StatsLayout((1, 10)), (relation,), len(graph.edges.rel), SampledLists(10, 10), 0, tuple(ENDS), auc, loss
    )
    table = EntityVectors({}, None, graph.dtype, device).table(TYPE, 0, graph.embeddings_ND)
    known = {}
    for side in ENDS:
        key_E, answers = graph.keys(side)
        known[side] = KnownOfEdges(KnownAnswers(*answers), key_E)
    tables = {(TYPE, side): table for side in ENDS}
    results = bucket_pass(UnitOfEdges(graph.edges, ORIGIN, tables, Competition(filters=[known])), settings)
    found: dict[str, Tensor] = {}
    for side, result in results.items():
        order = torch.argsort(result.rows_Q)
        found |= {f"{side.label} {name}": value[order] for name, value in _columns(result.counts).items()}
        pools = (result.raw_pool.competing, result.filtered_pool.competing, result.raw_pool.true)
        for name, pool in zip(("competing", "not known", "true"), pools, strict=True):
            images = np.sort(np.concatenate([np.empty(0, np.int32), *pool]))
            found[f"{side.label} {name} scores"] = torch.from_numpy(images)
        if result.loss_Q is not None:
            found[f"{side.label} loss"] = result.loss_Q[order]
    return found


def _columns(counts: Any) -> dict[str, Tensor]:  # noqa: ANN401 - QueryCounts
    parts = {"all": counts.raw, "known": counts.known}
    names = ("better_Q", "tied_Q", "num_competitors_Q")
    return {f"{of} {name[:-2]}": getattr(part, name) for of, part in parts.items() for name in names}


def _count_range(
    state: QueryGroupState,
    table: EntityTable,
    first_id: int,
    threads: BlockThreads,
    known: KnownAnswers,
    *,
    deferred: Deferred,
) -> None:
    """Count a range, and deliver the best candidates with its counts, as a sweep does."""
    rank(state, table, first_id, threads, known, deferred=deferred)
    if state.result.top is not None:
        state.result.top.defer(deferred)


def rank_all(graph: Graph, device: torch.device, *, with_scores: bool) -> dict[str, Tensor]:
    """Rank the edges against all entities in two ranges of candidates, filtered."""
    num_entities, num_edges = graph.embeddings_ND.shape[0], len(graph.edges.rel)
    numbering = EntityNumbering.from_sizes({(TYPE, 0): num_entities})
    columns = EdgeColumns(*(column.numpy() for column in (graph.edges.lhs, graph.edges.rel, graph.edges.rhs)))
    edges = QueryEdges(numbering, (EdgeSegment(ORIGIN, 0, num_edges),), np.arange(num_edges), columns, True)
    sets, vectors = CandidateSets(num_entities), EntityVectors({}, None, graph.dtype, device)
    relation = graph.relation(device, CandidatePolicy.ALL)
    numbers = entities_of_edges(edges, (TYPE,))
    raw = MemoryRows(torch.empty(len(numbers[TYPE]), graph.embeddings_ND.shape[1]))
    source = GatheredVectors(edges, vectors, numbers, {TYPE: raw})
    source.add(vectors.table(TYPE, 0, graph.embeddings_ND), 0)
    found: dict[str, Tensor] = {}
    for side in ENDS:
        [query_group] = query_groups([relation.scorer], side)
        queries = group_queries(edges, query_group, sets, 500)
        backend = backend_for(
            relation.scorer,
            device,
            graph.dtype,
            kept=Kept.VALUES if with_scores else Kept.NOTHING,
            num_cells=num_edges * num_entities,
        )
        of_rows = rows_to_keep(queries, graph.embeddings_ND.shape[1], graph.dtype)
        prepared, *true_scores = (MemoryRows.empty(*of, HOST) for of in of_rows)
        key_P, number_P = graph.keys(side)[1]
        generator = np.random.default_rng(4)
        sample = CellSample.by_entity_id(*(generator.integers(size, size=999) for size in (num_edges, num_entities)))
        state = QueryGroupState(
            queries,
            CompetingEntities(0, num_entities, lambda _: None),
            backend,
            source,
            prepared,
            true_scores,
            graph.dtype,
            device,
            None if with_scores else SampledCells(sample, np.ones(queries.num_queries, bool)),
        )
        state.result.top = TopCandidates.zero((queries.num_keys, 5)) if with_scores else None
        state.prepare((0, queries.num_keys))
        for start, stop in ((0, num_entities // 3), (num_entities // 3, num_entities)):
            here = (number_P >= start) & (number_P < stop)
            known = KnownAnswers(key_P[here], number_P[here])
            table = vectors.table(TYPE, 0, graph.embeddings_ND[start:stop], start)
            threads = BlockThreads.of_device(device, 1)
            run_deferred(device, partial(_count_range, state, table, start, threads, known))
        found |= {f"{side.label} {name}": value for name, value in _columns(state.counts()).items()}
        query, score, is_known = state.result.scores.joined()
        packed = np.stack([query, sortable_int32(torch.from_numpy(score)), is_known])
        found[f"{side.label} sampled"] = torch.from_numpy(packed[:, np.lexsort(packed)])
        if state.result.top is not None:
            found[f"{side.label} top"] = torch.from_numpy(state.result.top.pack()[0])
    return found
