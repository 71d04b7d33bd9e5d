"""A range of a bucket's edges and the partitions of both sides -> counts of every query, per side.

Used by the command line and by the in-training monitor; reads nothing and writes nothing.
"""

from __future__ import annotations

from pbgeval.candidates.chunks import RelationGroup, chunk_blocks, group_by_relation
from pbgeval.candidates.draws import DrawStream
from pbgeval.candidates.policy import CandidatePolicy
from pbgeval.counting.general import BlockCounter
from pbgeval.notation import Side
from pbgeval.passes.groups import Group, check_relations, make_group
from pbgeval.passes.partition import count_against_partition
from pbgeval.passes.sampled import count_sampled
from pbgeval.passes.settings import Competition, EdgeOrigin, Edges, PassSettings, Tables
from pbgeval.passes.tally import SideResult, SideTally


def bucket_pass(
    edges: Edges, origin: EdgeOrigin, tables: Tables, settings: PassSettings, competition: Competition | None = None
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
    counter = BlockCounter()
    tallies = {side: SideTally() for side in settings.sides}
    streams, auc_words = {}, {}
    for side in settings.sides:
        streams[side] = DrawStream.of(settings.seed, origin.path_index, origin.bucket, side)
        auc_stream = DrawStream.of(settings.seed, origin.path_index, origin.bucket, side, "auc")
        auc_words[side] = settings.auc.words(auc_stream, edges.start, edges.rel.numel())

    groups: dict[int, Group] = {}
    to_sample = []
    for part in _relation_groups(edges, settings, competition):
        relation = settings.relations[part.relation]
        groups[part.relation] = make_group(relation, part.rows_E, edges, origin, tables, competition)
        if relation.policy is CandidatePolicy.PARTITION:
            group = groups[part.relation]
            count_against_partition(group, part.rows_E, settings, auc_words, tallies, counter)
        else:
            to_sample.append(part)
    for part, block in chunk_blocks(to_sample, settings.lists, edges.start):
        count_sampled(groups[part.relation], block, settings, streams, auc_words, tallies, counter)
    return {side: tally.finish(filtered=competition.filtered) for side, tally in tallies.items()}


def _relation_groups(edges: Edges, settings: PassSettings, competition: Competition) -> list[RelationGroup]:
    rows_E = competition.rows(edges.rel.numel())
    if settings.dynamic:
        return [RelationGroup(0, rows_E)] if rows_E.numel() else []
    return group_by_relation(edges.rel, rows_E)
