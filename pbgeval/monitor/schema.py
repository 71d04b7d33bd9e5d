"""What a monitored model is: its relations and types, which do not change, and its tensors, which do.

Names of operators and comparators, shapes of parameters and the side that they act on are PyTorch-BigGraph's
(PBG.md section 2).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from attrs import field, frozen
from torch import Tensor

from pbgeval.errors import ConfigError, DataError
from pbgeval.monitor.holdout import EndTypes
from pbgeval.notation import Bucket, Side
from pbgeval.scoring.comparators import COMPARATORS
from pbgeval.scoring.operators import OPERATORS


@frozen
class MonitoredRelation:
    """A relation: the types of its ends, and how its edges are scored."""

    name: str
    lhs: str  # entity type
    rhs: str
    operator: str = "none"
    all_negs: bool = False  # its edges are ranked among all entities of the bucket's partition, as in PBG


def _as_tuple(relations: Iterable[MonitoredRelation]) -> tuple[MonitoredRelation, ...]:
    return tuple(relations)


@frozen
class ModelSchema:
    """What does not change in training."""

    relations: tuple[MonitoredRelation, ...] = field(converter=_as_tuple)  # one, if they are dynamic
    num_partitions: Mapping[str, int]  # of each entity type
    comparator: str  # dot, cos, l2 or squared_l2
    num_dynamic_relations: int | None = None  # None: relations are not dynamic
    bias: bool = False
    max_norm: float | None = None

    def __attrs_post_init__(self) -> None:
        faults = list(self._faults())
        if faults:
            raise ConfigError(*faults)

    @property
    def dynamic(self) -> bool:
        return self.num_dynamic_relations is not None

    @property
    def num_relations(self) -> int:
        """As the ids of edges have them."""
        return len(self.relations) if self.num_dynamic_relations is None else self.num_dynamic_relations

    @property
    def grid(self) -> Bucket:
        """How many partitions there are on either side."""
        return Bucket(
            max(self.num_partitions[relation.lhs] for relation in self.relations),
            max(self.num_partitions[relation.rhs] for relation in self.relations),
        )

    def partition_of(self, entity_type: str, side: Side, bucket: Bucket) -> int:
        """Return the partition of a type in a bucket; a type with one partition is in partition 0 of any bucket."""
        return bucket.partition(side) if self.num_partitions[entity_type] > 1 else 0

    def ends(self, bucket: Bucket) -> list[EndTypes]:
        """Return what the rows of each relation's edges mean in a bucket."""
        return [
            EndTypes(
                of.lhs, self.partition_of(of.lhs, Side.LHS, bucket), of.rhs, self.partition_of(of.rhs, Side.RHS, bucket)
            )
            for of in self.relations
        ]

    def _faults(self) -> list[str]:
        faults = []
        if not self.relations or (self.dynamic and len(self.relations) > 1):
            faults.append(
                f"relations: expected {'one, as they are dynamic' if self.dynamic else 'some'}, "
                f"got {len(self.relations)}"
            )
        if self.comparator not in COMPARATORS:
            faults.append(f"comparator: expected one of {', '.join(COMPARATORS)}, got {self.comparator!r}")
        for relation in self.relations:
            if relation.operator not in OPERATORS:
                faults.append(
                    f"relation '{relation.name}': expected an operator of {', '.join(OPERATORS)}, "
                    f"got {relation.operator!r}"
                )
            for entity_type in (relation.lhs, relation.rhs):
                if self.num_partitions.get(entity_type, 0) < 1:
                    faults.append(
                        f"num_partitions: expected those of entity type '{entity_type}' of relation "
                        f"'{relation.name}', at least 1, got {self.num_partitions.get(entity_type)}"
                    )
        return faults


class Model(Protocol):
    """A model as a monitor reads it, between two steps of training; tensors may be the live ones, on any device."""

    def embeddings(self, entity_type: str, partition: int) -> Tensor:
        """Return the entities of a partition, (N, D)."""
        ...

    def operator_parameters(self, relation: int, side: Side) -> Mapping[str, Tensor]:
        """Return the parameters by PBG's names: real, imag, diagonal, translation, linear_transformation.

        Asked for the right-hand side alone, relation by relation; of dynamic relations for relation 0 on both sides,
        with a leading dimension R.
        """
        ...

    def global_embedding(self, entity_type: str) -> Tensor | None:
        """Return the vector (D,) that is added to all entities of a type, None if there is none."""
        ...


@frozen(eq=False)
class ModelTensors:
    """A model that is given as tables of tensors.

    Args:
        tables: the vectors of a partition's entities, (N, D), by entity type and partition: `{("user", 0): user_0}`.
        operators: the parameters of a relation by PBG's names (`Model.operator_parameters`), by relation index and
            `Side.RHS`: `{(0, Side.RHS): {"translation": shift}}`. Relations without parameters are left out.
        global_embeddings: a vector (D,) per entity type that has one.
    """

    tables: Mapping[tuple[str, int], Tensor]  # (N, D) by entity type and partition
    operators: Mapping[tuple[int, Side], Mapping[str, Tensor]] = field(factory=dict)  # as `Model` has them
    global_embeddings: Mapping[str, Tensor] = field(factory=dict)

    def embeddings(self, entity_type: str, partition: int) -> Tensor:
        if (entity_type, partition) not in self.tables:
            raise DataError(f"tables: expected entity type '{entity_type}', partition {partition}, found none")
        return self.tables[entity_type, partition]

    def operator_parameters(self, relation: int, side: Side) -> Mapping[str, Tensor]:
        return self.operators.get((relation, side), {})

    def global_embedding(self, entity_type: str) -> Tensor | None:
        return self.global_embeddings.get(entity_type)
