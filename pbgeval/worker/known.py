"""Known edges and the queries of this run -> the pairs (query key, known answer), and the observed entities."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from operator import itemgetter
from typing import TypeAlias

import numpy as np
from attrs import define, field

from pbgeval.inputs.edges import ROWS_AT_A_TIME, numbered_blocks, numbered_files, shares_of_files
from pbgeval.notation import ENDS, Bucket, Side, distinct, grouped, is_among
from pbgeval.ranking.edge_digests import EdgeDigests
from pbgeval.ranking.keys import CodeCounts, EdgeColumns, QueryKeys
from pbgeval.ranking.known_answers import (
    FilterKeys,
    KnownAnswers,
    KnownFilter,
    KnownOfEdges,
    PairStore,
    SemiJoin,
    key_frequency,
    observed_entities,
    repeated_keys,
)
from pbgeval.ranking.relations import RelationCandidates
from pbgeval.ranking.settings import CandidateSets
from pbgeval.storage.edges import EdgeSource
from pbgeval.storage.writing import ScratchFolder
from pbgeval.worker.context import WorkerContext


def _known_files(context: WorkerContext) -> list[dict[Bucket, EdgeSource]]:
    """Return the buckets of every path whose edges are known: those of the evaluated edges always are."""
    return [*context.inputs.buckets, *context.inputs.known.values()]


def join_all(
    context: WorkerContext,
    keys: Mapping[Side, QueryKeys],
    evaluated: EdgeColumns,
    budget_bytes: int,
    known_rows: int,
) -> list[KnownFilter]:
    """Join this worker's part of the known edges with the keys; every worker takes part.

    Returns:
        The filters, of which the first makes the filtered figures, with the pairs of all workers.
    """
    with context.collectively():
        filters = _join(
            context, keys, lambda: [evaluated], _known_blocks(context, known_rows), budget_bytes, context.scratch
        )
        for one in filters if context.team.size > 1 else ():
            one.store.flush()
    return filters


def add_known_digests(context: WorkerContext, digests: EdgeDigests, one: KnownFilter) -> None:
    """Add this worker's part of the known answers of a filter to digests; every worker takes part."""
    slots = range(len(context.numberer.numbering.slots))
    places = [(side, slot) for side in one.of_side for slot in (slots if side is not Side.REL else (0,))]
    with context.collectively():
        for side, slot in context.team.share(places):
            digests.add_known((side.value, slot), one.store.pairs(side, slot).packed_P)


def _join(
    context: WorkerContext,
    keys: Mapping[Side, QueryKeys],
    evaluated: Callable[[], Iterable[EdgeColumns]],
    known: Iterable[EdgeColumns],
    budget_bytes: int = 1 << 62,
    scratch: ScratchFolder | None = None,
) -> list[KnownFilter]:
    """Join known edges; return the filter of the filtered figures and, if configured, the time-aware one."""
    windows, numbering = context.work.protocol.time_windows, context.numberer.numbering
    filters = [
        KnownFilter(
            {side: FilterKeys.of_queries(of_side, window, evaluated()) for side, of_side in keys.items()},
            PairStore(numbering, budget_bytes // len(windows), scratch, "pairs" + "-in-time" * number),
        )
        for number, window in enumerate(windows)
    ]

    def sink(hidden: Side, *pairs: np.ndarray) -> None:
        for one in filters:
            one.add(hidden, *pairs)

    join = SemiJoin(keys, sink)
    for block in known:
        join.feed(block)
    return filters


def _known_blocks(context: WorkerContext, known_rows: int) -> Iterator[EdgeColumns]:
    return numbered_blocks(context.numberer, shares_of_files(_known_files(context), context.team, known_rows))


def candidate_sets(context: WorkerContext, evaluated_relations: np.ndarray) -> CandidateSets:
    """Return the entities that may compete; reads known edges once for observed types. Every worker takes part."""
    observed: dict[Side, np.ndarray] | None = None
    if Side.REL in context.settings.sides:  # any relation may be a candidate
        evaluated_relations = np.arange(context.inputs.num_relations)
    if context.inputs.config.type_constraint == "observed":
        with context.collectively():
            num_entities, blocks = context.numberer.numbering.num_entities, _known_blocks(context, ROWS_AT_A_TIME)
            for side, codes in observed_entities(evaluated_relations, num_entities, blocks).items():
                context.scratch.append(f"observed-{side.name}", codes)
        observed = {side: distinct(context.scratch.read(f"observed-{side.name}", np.int64)) for side in ENDS}
    return CandidateSets(
        num_entities=context.numberer.numbering.num_entities,
        allowed=context.inputs.restrictions.entities,
        of_side=context.inputs.restrictions.of_side,
        observed=observed,
    )


def relation_candidates(context: WorkerContext, sets: CandidateSets) -> RelationCandidates | None:
    """Return the relations that may compete where one is hidden; None where none is."""
    if Side.REL not in context.settings.sides:
        return None
    num_relations = context.inputs.num_relations
    ids = np.arange(num_relations) if sets.observed is None else distinct(sets.observed[Side.RHS] // sets.num_entities)
    scorers = [relation.scorer for relation in context.settings.relations]
    return RelationCandidates(scorers, ids, context.work.protocol.relation_auc, context.settings.seed, context.device)


_Places: TypeAlias = tuple[tuple[str, int], tuple[str, int]]  # type and partition at both ends of some edges


@define(eq=False)
class KnownOfBuckets:
    """Joins the bucket in hand with the known edges that may hold its answers, once for all its units.

    It holds the distinct keys of one bucket's edges and their answers in memory.
    """

    context: WorkerContext
    _bucket: Bucket | None = None
    _files_at: dict[_Places, list[tuple[int, EdgeSource]]] = field(init=False)  # known ones, in order
    # By filter and hidden side: what answers go by, and answers by their rows in the bucket's partitions.
    _known: list[dict[Side, tuple[FilterKeys, KnownAnswers]]] = field(factory=list)

    def __attrs_post_init__(self) -> None:
        files = [pair for buckets in _known_files(self.context) for pair in sorted(buckets.items())]
        self._files_at = grouped(
            (places, (number, file))
            for number, (bucket, file) in enumerate(files)
            for places in self.context.inputs.places_of_edges(bucket)
        )

    def select_unit(self, bucket: Bucket, edges: EdgeColumns) -> list[dict[Side, KnownOfEdges]]:
        """Return the bucket's known answers, and which some of its edges have, by filter and hidden side."""
        if bucket != self._bucket:
            self._known = []  # the last bucket's go before the next ones come
            self._known = self._join(bucket)
            self._bucket = bucket
        return [
            {side: KnownOfEdges(answers, keys.index_of(edges)) for side, (keys, answers) in of_filter.items()}
            for of_filter in self._known
        ]

    def digests(self, bucket: Bucket) -> EdgeDigests:
        """Return the digest of the known answers of the bucket in hand, those that make the filtered figures."""
        found = EdgeDigests()
        for side, (_, answers) in self._known[0].items():
            found.add_known((side.value, *bucket), answers.key_P, answers.entity_id_P)
        return found

    def _join(self, bucket: Bucket) -> list[dict[Side, tuple[FilterKeys, KnownAnswers]]]:
        inputs, numberer = self.context.inputs, self.context.numberer
        codes: dict[Side, list[np.ndarray]] = {side: [np.empty(0, np.int64)] for side in self.context.settings.sides}
        evaluated = [files[bucket] for files in inputs.buckets if bucket in files]
        for block in numbered_files(numberer, evaluated):
            for side, parts in codes.items():
                parts.append(distinct(numberer.key_codes(side, block)))
        keys = {
            side: QueryKeys(side, numberer.numbering.num_entities, distinct(np.concatenate(parts)))
            for side, parts in codes.items()
        }
        # Edges of a bucket may lie between the partitions of this one for some relation.
        of_places = (self._files_at.get(places, []) for places in inputs.places_of_edges(bucket))
        met = [file for _, file in sorted({*chain.from_iterable(of_places)}, key=itemgetter(0))]
        filters = _join(self.context, keys, lambda: numbered_files(numberer, evaluated), numbered_files(numberer, met))
        return [
            {side: (of_side, self._answers(one.store, side, bucket)) for side, of_side in one.of_side.items()}
            for one in filters
        ]

    def _answers(self, store: PairStore, side: Side, bucket: Bucket) -> KnownAnswers:
        slots = [0] if side is Side.REL else slots_at(self.context, side, bucket)
        of_slots = [store.pairs(side, slot).in_rows() for slot in slots]
        key_P, row_P = (np.concatenate(of) for of in zip(*((of.key_P, of.entity_id_P) for of in of_slots), strict=True))
        order = np.lexsort((row_P, key_P))
        return KnownAnswers(key_P[order], row_P[order])


# All evaluated edges -> how often each query key occurs among them, looked up bucket by bucket.


def slots_at(context: WorkerContext, side: Side, bucket: Bucket) -> list[int]:
    """Return the slots at a side of a bucket's edges, ascending."""
    places = {side.pick(*of_edges) for of_edges in context.inputs.places_of_edges(bucket)}
    return sorted(map(context.numberer.numbering.slot_at, places))


MAX_KEYS_TOGETHER = 1 << 22  # of edges that are read together: 64 MB
SlotGroup: TypeAlias = tuple[int, ...]  # slots that the same buckets touch


@define(eq=False)
class KeyFrequencies:
    """The tables of all groups of slots of known entities: in memory are those of the bucket in hand."""

    context: WorkerContext
    group_of: Mapping[tuple[Side, int], SlotGroup]  # by hidden side and slot
    _held: dict[Side, tuple[list[SlotGroup], CodeCounts]] = field(factory=dict)

    def look_up(self, hidden: Side, bucket: Bucket, edges: EdgeColumns) -> np.ndarray:
        """Return how many evaluated edges have the key of each of a bucket's queries, int64."""
        groups = sorted({self.group_of[hidden, slot] for slot in slots_at(self.context, hidden.other, bucket)})
        if hidden not in self._held or self._held[hidden][0] != groups:
            self._held.pop(hidden, None)  # before the next ones come
            of_groups = (self.context.scratch.read(_name(hidden, group), np.int64).reshape(2, -1) for group in groups)
            tables = (CodeCounts(codes, counts[:, None]) for codes, counts in of_groups)
            self._held[hidden] = groups, CodeCounts.sum(list(tables))
        return key_frequency(self._held[hidden][1], hidden, edges, self.context.numberer.numbering.num_entities)


def count_keys(context: WorkerContext) -> KeyFrequencies:
    """Count the keys of all evaluated edges, a part of the slots on each worker; every worker takes part."""
    num_entities = context.numberer.numbering.num_entities
    groups = [
        (hidden, group, files)
        for hidden in context.settings.sides
        for group, files in _slot_groups(context, hidden.other)
    ]
    with context.collectively():
        for hidden, group, files in context.team.share(groups):
            repeated = repeated_keys(hidden, _edges_of_slots(context, hidden.other, group, files), num_entities)
            context.scratch.append(_name(hidden, group), np.stack([repeated.keys, repeated.counts]))
    return KeyFrequencies(context, {(hidden, slot): group for hidden, group, _ in groups for slot in group})


def _name(hidden: Side, group: SlotGroup) -> str:
    return f"frequency-{hidden.name}-{group[0]}"


def _slot_groups(context: WorkerContext, side: Side) -> list[tuple[SlotGroup, list[tuple[int, EdgeSource]]]]:
    """Group the slots by the evaluated files that have their entities at a side; return these with edge paths, too.

    Types of one partition are in all files, however many types there are. Of very many edges a group is cut in several:
    the keys of one are in memory together.
    """
    inputs, slots = context.inputs, context.numberer.numbering.slots
    parts = {name: config.num_partitions for name, config in inputs.config.entities.items()}
    of_partition = grouped((side.pick(*bucket), (path, file)) for path, bucket, file in inputs.files)
    everywhere = [of for _, files in sorted(of_partition.items()) for of in files]
    groups = []
    for (is_split, partition), of_group in grouped(
        ((parts[name] > 1, at), slot) for slot, (name, at) in enumerate(slots)
    ).items():
        files = of_partition.get(partition, []) if is_split else everywhere
        num_parts = -(-sum(file.num_edges for _, file in files) // MAX_KEYS_TOGETHER) or 1
        size = -(-len(of_group) // num_parts)
        groups += [(tuple(of_group[first : first + size]), files) for first in range(0, len(of_group), size)]
    return groups


def _edges_of_slots(
    context: WorkerContext, side: Side, group: SlotGroup, files: Iterable[tuple[int, EdgeSource]]
) -> Iterator[EdgeColumns]:
    """Read the evaluated edges whose entity at a side is in one of some slots."""
    slots = np.array(group)
    for path_index, file in files:
        for _, block in context.evaluated.blocks(context.numberer, path_index, file):
            inside = is_among(context.numberer.numbering.slot_of(block.entity(side)), slots)
            yield block if inside.all() else block.select(np.flatnonzero(inside))
