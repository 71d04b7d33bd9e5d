"""Queries -> the groups that they belong to in breakdowns and macro averages."""

from __future__ import annotations

from functools import reduce
from itertools import product
from operator import add

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from pbgeval.config import EvalConfig
from pbgeval.inputs.edges import numbered_files
from pbgeval.inputs.names import relation_groups, relation_labels
from pbgeval.metrics.breakdowns import GroupClasses
from pbgeval.notation import ENDS, Side, distinct
from pbgeval.ranking.draws import DegreeWeights
from pbgeval.ranking.keys import CodeCounts, EdgeColumns
from pbgeval.ranking.sampled_lists import CandidatePolicy
from pbgeval.stats.grouped import ENTITY_FREQUENCY, KEY_FREQUENCY, RELATION, TIME
from pbgeval.worker.context import WorkerContext
from pbgeval.worker.training_edges import SlotCounts, class_limits, frequency_classes


@frozen(eq=False)
class QueryDimensions:
    """What the groups of a query follow from."""

    config: EvalConfig
    training: SlotCounts | None  # None where no breakdown asks for it
    entity_types: dict[Side, np.ndarray]  # index in `type_names` by relation of the config
    type_names: tuple[str, ...]

    def groups_of(self, hidden: Side, edges: EdgeColumns, frequency_Q: np.ndarray | None) -> dict[str, Tensor]:
        """Return the group of each query in every dimension, int64.

        Args:
            hidden: the side that is asked for.
            edges: the queries' edges.
            frequency_Q: how often each query's key occurs among all evaluated edges; None where keys do not count.
        """
        groups = {RELATION: edges.rel_n}
        if frequency_Q is not None:
            groups[KEY_FREQUENCY] = frequency_Q
        if TIME in self.config.breakdowns and self.config.time_bin is not None and edges.time_n is not None:
            groups[TIME] = edges.time_n // self.config.time_bin
        if self.training is not None:
            schema_Q = np.zeros_like(edges.rel_n) if self.config.dynamic_relations else edges.rel_n
            for side, name in ENTITY_FREQUENCY.items():
                type_Q = self.entity_types[side][schema_Q]
                trained_Q = self.training.entity_frequency(side, edges.entity(side))
                groups[name] = np.zeros(edges.num_edges, np.int64)
                for entity_type in distinct(type_Q).tolist():
                    of_type = type_Q == entity_type
                    limits = self.training.entity_limits(side, self.type_names[entity_type])
                    groups[name][of_type] = frequency_classes(limits, trained_Q[of_type])
        return {name: torch.from_numpy(np.ascontiguousarray(group)) for name, group in groups.items()}


def query_dimensions(context: WorkerContext, evaluated: np.ndarray) -> QueryDimensions:
    """Read what breakdowns need of `train_paths`; every worker takes part.

    Args:
        context: of this worker.
        evaluated: sorted numbers of the entities that evaluated edges touch.
    """
    config = context.inputs.config
    names = tuple(config.used_entity_types)
    number_of = {name: number for number, name in enumerate(names)}
    types = {
        side: np.array([number_of[side.pick(relation.lhs, relation.rhs)] for relation in config.relations])
        for side in ENDS
    }
    return QueryDimensions(
        config,
        _training_counts(context, evaluated) if context.work.protocol.counts_training else None,
        types,
        names,
    )


def _training_counts(context: WorkerContext, evaluated: np.ndarray) -> SlotCounts:
    numbering = context.numberer.numbering
    own = SlotCounts.zero(context.inputs.num_relations, numbering)

    with context.collectively():
        for side, slot in context.team.share([*product(ENDS, range(len(numbering.slots)))]):
            entity_type, partition = numbering.slots[slot]
            files = [
                file
                for buckets in context.inputs.training_buckets
                for bucket, file in sorted(buckets.items())
                if context.inputs.partition_of(entity_type, side, bucket) == partition
            ]
            own = own + SlotCounts.of_slot(
                side,
                slot,
                numbered_files(context.numberer, files),
                numbering=numbering,
                num_relations=context.inputs.num_relations,
                evaluated=evaluated,
            )
    return reduce(add, context.team.gather_objects(own))


def degree_weights(context: WorkerContext, training: SlotCounts | None) -> dict[tuple[str, int], DegreeWeights]:
    """Return what candidates are drawn by from each type and partition; nothing where none are drawn by degree.

    Raises:
        DataError: no training edge touches a partition, or the power overflows.
    """
    config, inputs, numbering = context.inputs.config, context.inputs, context.numberer.numbering
    if training is None or not config.num_degree_negs:
        return {}
    sampled = [of for of in config.relations if config.candidates_of(of) == CandidatePolicy.SAMPLED.value]
    slots = {
        (name, inputs.partition_of(name, side, bucket))
        for side, bucket in product(context.settings.sides, {unit.bucket for unit in context.work.protocol.units})
        for name in {side.pick(relation.lhs, relation.rhs) for relation in sampled}
    }
    weights = {}
    for slot in sorted(slots):
        numbers, degrees = training.degrees(*numbering.range_of_slot(numbering.slot_at(slot)))
        label = f"entity type '{slot[0]}', partition {slot[1]}"
        weights[slot] = DegreeWeights.of_degrees(numbers - numbering.offset(*slot), degrees, config.degree_power, label)
    return weights


def group_classes(context: WorkerContext, training: SlotCounts | None) -> GroupClasses:
    """Return what the tables of breakdowns tell relations apart by."""
    config, num_relations, model = context.inputs.config, context.inputs.num_relations, context.inputs.model
    schemas = config.relations * num_relations if config.dynamic_relations else config.relations
    frequency_R = cardinality_R = None
    if training is not None:
        per_relation = training.relation_frequency()
        frequency_R = frequency_classes(class_limits(CodeCounts.of_codes(per_relation.copy())), per_relation)
        cardinality_R = training.cardinality_classes()
    groups = relation_groups(config, num_relations, model) if "groups" in config.breakdowns else {}
    return GroupClasses(
        names=relation_labels(config, num_relations, model),
        types=[(schema.lhs, schema.rhs) for schema in schemas],
        cardinality_R=cardinality_R,
        frequency_R=frequency_R,
        groups={name: ids.tolist() for name, ids in groups.items()},
        time_bin=config.time_bin or 1,
    )
