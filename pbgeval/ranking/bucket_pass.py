"""A range of a bucket's edges and the partitions of both sides -> counts of every query, per side.

Used by the command line and by the in-training monitor; reads nothing and writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pbgeval.notation import Side
from pbgeval.ranking.chunks import CandidatePolicy, RelationGroup, chunk_blocks, group_by_relation, rows_of_chunks
from pbgeval.ranking.draws import DrawStream
from pbgeval.ranking.groups import Group, check_relations, make_group
from pbgeval.ranking.partition import count_against_partition
from pbgeval.ranking.sampled import count_sampled
from pbgeval.ranking.settings import BucketEdges, Competition, EdgeOrigin, PassSettings, Tables
from pbgeval.ranking.tally import SideResult, SideTally


def bucket_pass(
    edges: BucketEdges,
    origin: EdgeOrigin,
    tables: Tables,
    settings: PassSettings,
    competition: Competition | None = None,
) -> dict[Side, SideResult]:
    """Rank one window (under pbg_semantics: one slice) of a bucket's edges.

    Args:
        edges: consecutive rows, a whole window: chunks never reach over its borders.
        origin: the file, and what addresses its draws.
        tables: the bucket's partitions, by entity type and side.
        settings: the protocol.
        competition: which of the edges are evaluated and who does not compete; None: all, and everybody does.

    Returns:
        What was found about the queries of each enabled side.

    Raises:
        DataError: an id out of range, a zero vector under cos, or a score that is not a number.
    """
    competition = competition or Competition()
    check_relations(edges, origin, settings.num_relations)
    tallies = {side: SideTally(competition.cluster_E) for side in settings.sides}
    streams, auc_words = {}, {}
    for side in settings.sides:
        streams[side] = DrawStream.of(settings.seed, origin.path_index, origin.bucket, side)
        auc_stream = DrawStream.of(settings.seed, origin.path_index, origin.bucket, side, "auc")
        auc_words[side] = settings.auc.words(auc_stream, edges.start, edges.rel.numel())

    groups: dict[int, Group] = {}
    to_sample = []
    chosen = {}
    for part, chunks in _with_chunks(_relation_groups(edges, settings, competition), settings, competition):
        relation = settings.relations[part.relation]
        if chunks is not None:
            chosen[part.relation] = chunks
        groups[part.relation] = make_group(relation, part.rows_E, edges, origin, tables, competition)
        if relation.policy is CandidatePolicy.PARTITION:
            group = groups[part.relation]
            rows_E = part.rows_E if chunks is None else rows_of_chunks(part.rows_E, chunks, settings.lists.chunk_size)
            count_against_partition(group, rows_E, settings, auc_words, tallies)
        else:
            to_sample.append(part)
    for part, block in chunk_blocks(
        to_sample, settings.lists, edges.start, None if competition.chunks is None else chosen
    ):
        count_sampled(groups[part.relation], block, settings, streams, auc_words, tallies)
    return {side: tally.finish(filtered=competition.filtered) for side, tally in tallies.items()}


def _relation_groups(edges: BucketEdges, settings: PassSettings, competition: Competition) -> list[RelationGroup]:
    rows_E = competition.rows(edges.rel.numel())
    if settings.dynamic:
        return [RelationGroup(0, rows_E)] if rows_E.numel() else []
    return group_by_relation(edges.rel, rows_E)


def _with_chunks(
    groups: list[RelationGroup], settings: PassSettings, competition: Competition
) -> Iterator[tuple[RelationGroup, np.ndarray | None]]:
    """Yield groups with those of their chunks that a sample has drawn; None: all. Chunks are numbered through."""
    before = 0
    for part in groups:
        if competition.chunks is None:
            yield part, None
            continue
        num_chunks = -(-part.rows_E.numel() // settings.lists.chunk_size)
        first, stop = np.searchsorted(competition.chunks, [before, before + num_chunks])
        yield part, competition.chunks[first:stop] - before
        before += num_chunks
