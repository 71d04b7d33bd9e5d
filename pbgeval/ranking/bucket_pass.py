"""A range of a bucket's edges and the partitions of both sides -> counts of every query, per side.

Used by the command line and by the in-training monitor; reads nothing and writes nothing.
"""

from __future__ import annotations

from functools import cache, partial

import numpy as np
import torch
from torch import Tensor

from pbgeval.notation import Side, values_between
from pbgeval.ranking.backend import backend_for
from pbgeval.ranking.block_threads import BlockThreads
from pbgeval.ranking.chunks import chunk_blocks, group_by_relation
from pbgeval.ranking.draws import HOST
from pbgeval.ranking.groups import Group, check_range, make_group
from pbgeval.ranking.known_answers import KnownOfEdges
from pbgeval.ranking.query_edges import queries_by_key
from pbgeval.ranking.query_group_state import CellSample, QueryGroupState, SampledCells, drawn_cells, rows_to_keep
from pbgeval.ranking.ranking_pass import rank
from pbgeval.ranking.relations import HiddenRelations, RelationCandidates
from pbgeval.ranking.sampled import WordsOn, count_sampled
from pbgeval.ranking.sampled_lists import CandidatePolicy
from pbgeval.ranking.settings import PassSettings, UnitOfEdges
from pbgeval.ranking.tally import SideResult, SideTally
from pbgeval.ranking.torch_backend import LOSS_CANDIDATES_PER_BLOCK
from pbgeval.scoring.block_scorer import ScorerComparator
from pbgeval.scoring.block_sizes import sizes_on
from pbgeval.scoring.deferred import Deferred, run_deferred
from pbgeval.scoring.scorer import QueryGroup
from pbgeval.storage.rows import MemoryRows


def bucket_pass(
    unit: UnitOfEdges, settings: PassSettings, relations: RelationCandidates | None = None
) -> dict[Side, SideResult]:
    """Rank one window (under pbg_semantics: one slice) of a bucket's edges.

    Args:
        unit: the edges, and what they are ranked with.
        settings: the protocol.
        relations: that may compete where one is hidden; None: none is.

    Returns:
        What was found about the queries of each enabled side.

    Raises:
        DataError: an id out of range, a zero vector under cos, or a score that is not a number.
    """
    device = next(iter(unit.tables.values())).device
    tallies = run_deferred(device, partial(_tallied, unit, settings, relations))
    return {side: tally.finish(filtered=bool(unit.competition.filters)) for side, tally in tallies.items()}


def _tallied(
    unit: UnitOfEdges, settings: PassSettings, relations: RelationCandidates | None, deferred: Deferred
) -> dict[Side, SideTally]:
    """Rank the edges; what is found is in the tallies once it is delivered."""
    edges, origin, competition = unit.edges, unit.origin, unit.competition
    check_range(edges.rel, settings.num_relations, f"{origin.label}: dataset rel", edges.start, "relations")
    tallies = {side: SideTally(competition.cluster_E, competition.pool_share) for side in settings.sides}
    file_row_E = edges.start + np.arange(edges.rel.numel())
    auc_words = cache(lambda side, device: settings.auc.words(settings.seed, origin.place, side, file_row_E, device))

    groups: dict[int, Group] = {}
    to_sample: dict[int, Tensor] = {}
    chosen: dict[int, np.ndarray] = {}  # chunks of each group, where a sample has only some
    before = 0  # chunks of earlier groups: a sample numbers them through
    evaluated_E = torch.arange(edges.rel.numel()) if competition.rows_E is None else competition.rows_E
    if settings.dynamic:
        of_groups = {0: evaluated_E} if evaluated_E.numel() else {}
    else:
        of_groups = group_by_relation(edges.rel, evaluated_E)
    for index, rows_E in of_groups.items():
        relation = settings.relations[index]
        groups[index] = group = make_group(relation, rows_E, unit)
        if competition.chunks is not None:
            num_chunks = -(-rows_E.numel() // settings.lists.chunk_size)
            chosen[index] = values_between(competition.chunks, before, before + num_chunks) - before
            before += num_chunks
        if relation.policy is CandidatePolicy.SAMPLED:
            to_sample[index] = rows_E
        else:
            if index in chosen:
                chunks = torch.split(rows_E, settings.lists.chunk_size)
                rows_E = torch.cat([rows_E[:0], *(chunks[at] for at in chosen[index].tolist())])
            count_against_partition(group, rows_E, settings, auc_words, tallies, deferred)
            if relations is not None:
                _rank_relations(group, rows_E.numpy(), relations, tallies[Side.REL])
    for index, block in chunk_blocks(
        to_sample, settings.lists, edges.start, None if competition.chunks is None else chosen
    ):
        count_sampled(groups[index], block, settings, auc_words, tallies, deferred)
    return tallies


# Queries of one relation -> counts against every entity of the bucket's partition (`candidates = "partition"`).
#
# The pass is that of `candidates = "all"`; the table of candidates is the partition, a range of rows at a time.


def count_against_partition(
    group: Group,
    rows_E: Tensor,
    settings: PassSettings,
    auc_words: WordsOn,
    tallies: dict[Side, SideTally],
    deferred: Deferred,
) -> None:
    """Rank the edges of a group against all entities of each side's partition that may compete."""
    for hidden in settings.ends:
        state = _state(group, hidden, rows_E, settings, auc_words(hidden, HOST))
        state.prepare((0, state.queries.num_keys))
        filters = [of_sides[hidden].answers for of_sides in group.competition.filters]
        if filters:  # by the keys of these queries
            filters[0] = group.competition.filters[0][hidden].of(state.queries.edge_of_keys)
        table = group.tables[hidden]
        threads = BlockThreads.of_device(table.device)
        rows_at_a_time = max(sizes_on(table.device).range_bytes // (4 * max(table.embeddings_ND.shape[1], 1)), 1)
        if isinstance(state.comparator, ScorerComparator):  # a user's function need not bear several threads
            threads = BlockThreads(1)
            rows_at_a_time = table.num_rows
        elif state.loss is not None:  # it is folded over whole runs of those that compete
            runs = -(-rows_at_a_time // LOSS_CANDIDATES_PER_BLOCK)
            rows_at_a_time = runs * LOSS_CANDIDATES_PER_BLOCK if group.competition.sets is None else table.num_rows
        for start in range(0, table.num_rows, rows_at_a_time):  # the partition streams past the queries
            stop = min(start + rows_at_a_time, table.num_rows)
            of_part = (answers.between(start, stop) for answers in filters)
            rank(state, table.between(start, stop), start, threads, *of_part, deferred=deferred)
        num_outside = rows_E.numel() - state.queries.num_queries
        folded: list[Tensor] = []  # two of each block
        if state.loss is not None:
            for block in state.queries.blocks:
                folded += state.losses[block.first].folded
        deferred.add(
            partial(_tally, group, state, settings, tallies[hidden], num_outside), state.true_values(), *folded
        )


def _rank_relations(group: Group, row_E: np.ndarray, candidates: RelationCandidates, tally: SideTally) -> None:
    """Rank the edges of a group whose relation is hidden."""
    edges, origin, time_E = group.edges, group.origin, group.time(torch.from_numpy(row_E))
    HiddenRelations(
        place=origin.place,
        row_E=edges.start + row_E,
        rel_E=edges.rel.numpy()[row_E],
        filters=[
            KnownOfEdges(of_sides[Side.REL].answers, of_sides[Side.REL].key_E[row_E])
            for of_sides in group.competition.filters
        ],
        time_E=None if time_E is None else time_E.numpy(),
        vectors=lambda _, side, at: group.rows(side, group.ids_E[side][row_E[at]]),
        label=lambda at: f"{origin.label}: {group.row_label(int(row_E[at]))}",
    ).rank(candidates, tally, row_E)


def _state(
    group: Group,
    hidden: Side,
    rows_E: Tensor,
    settings: PassSettings,
    auc_words_ED: Tensor | None,
) -> QueryGroupState:
    scorer, table = group.relation.scorer, group.tables[hidden]
    competing = group.competing(hidden)
    backend = backend_for(
        scorer,
        table.device,
        group.relation.dtype,
        kept=settings.kept,
        num_cells=rows_E.numel() * table.num_rows,
    )
    query_group = QueryGroup(hidden, table.entity_type, {0: scorer}, moved=False, has_constant=False)
    rel_E, known_E, true_E = (
        ids_E.numpy() for ids_E in (group.edges.rel, group.ids_E[hidden.other], group.ids_E[hidden])
    )
    edge_Q = rows_E.numpy()
    edge_Q = edge_Q[group.may_compete(hidden, rel_E[edge_Q], true_E[edge_Q])]
    filters = [of_sides[hidden] for of_sides in group.competition.filters]
    by_time = scorer.takes_time or group.competition.knows_past_alone
    time_E = group.edges.time if by_time else None
    queries = queries_by_key(
        query_group,
        edge_Q,
        (rel_E, known_E, true_E),
        np.zeros_like(rel_E),
        int(known_E.max(initial=0)) + 1,
        backend.queries_per_block,
        by_relation=competing.by_relation,
        in_order=settings.loss is not None,  # the last bits of a loss depend on the queries beside it
        time_E=None if time_E is None else time_E.numpy(),
    )
    dtype, dimension = group.relation.prepared_dtype, table.embeddings_ND.shape[1]
    sample = None
    if auc_words_ED is not None:
        words_QD = auc_words_ED[torch.from_numpy(queries.edge_Q)]
        cells = drawn_cells(np.arange(queries.num_queries), rel_E[queries.edge_Q], words_QD, competing, settings.auc)
        sample = SampledCells(CellSample.by_entity_id(*cells), settings.auc.true_is_kept(words_QD).numpy())
    prepared, *true_scores = (MemoryRows.empty(*of, table.device) for of in rows_to_keep(queries, dimension, dtype))
    return QueryGroupState(
        queries,
        competing,
        backend,
        group,
        prepared,
        true_scores,
        group.relation.dtype,
        table.device,
        sample,
        settings.loss,
        in_time_Q=next((in_time.key_E[queries.edge_Q] for in_time in filters[1:]), None),
    )


def _tally(
    group: Group,
    state: QueryGroupState,
    settings: PassSettings,
    tally: SideTally,
    num_outside: int,
    true_Q: Tensor,
    *folded: Tensor,
) -> None:
    """Hand over what was found, in the order of the edges; true scores and folded losses are on the host."""
    queries, counts = state.queries, state.counts()
    order = torch.from_numpy(np.argsort(queries.edge_Q))
    rows_Q = torch.from_numpy(queries.edge_Q)
    loss_Q = None
    if state.loss is not None and queries.blocks:
        lengths_Q = counts.filtered.num_competitors_Q
        weights_Q = group.weights(rows_Q)
        losses = []
        for block, state_Q, fold_true_Q in zip(queries.blocks, folded[::2], folded[1::2], strict=True):
            part = slice(block.first, block.stop)
            if settings.lists.pbg_semantics:
                lengths_Q[part] = state.competing.size(block.relation)
            state.losses[block.first].take(state_Q, fold_true_Q)
            losses.append(state.losses[block.first].finish(lengths_Q[part], weights_Q[part]))
        loss_Q = torch.cat(losses)[order]
    tally.add_queries(rows_Q[order], counts.select(order), num_outside=num_outside, loss_Q=loss_Q)
    kept_Q = slice(None) if state.sample is None else torch.from_numpy(state.sample.true_kept_Q)
    tally.add_true_scores(true_Q[kept_Q], rows_Q[kept_Q])
    for query_P, score_P, known_P in state.result.scores.parts:  # not joined: there may be millions
        known = torch.from_numpy(known_P) if group.competition.filters else None
        tally.add_scores(torch.from_numpy(score_P), rows_Q[query_P], known)
