"""What a monitored model is: relations and types, which do not change, and tensors, which do; which edges are held out.

Names of operators and comparators, shapes of parameters and the side that they act on are PyTorch-BigGraph's
(PBG.md section 2).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Protocol, TypeAlias

import numpy as np
from attrs import field, frozen
from torch import Tensor

from pbgeval.errors import ConfigError, DataError, Faults
from pbgeval.notation import Bucket, Side
from pbgeval.ranking.keys import split_mix
from pbgeval.scoring.comparators import COMPARATORS
from pbgeval.scoring.operators import OPERATORS


@frozen
class MonitoredRelation:
    """A relation: the types of its ends, and how its edges are scored.

    Examples:
        >>> from pbgeval import MonitoredRelation
        >>> MonitoredRelation("likes", lhs="user", rhs="item", operator="translation")
        MonitoredRelation(name='likes', lhs='user', rhs='item', operator='translation', all_negs=False)
    """

    name: str
    lhs: str  # entity type
    rhs: str
    operator: str = "none"
    all_negs: bool = False  # its edges are ranked among all entities of the bucket's partition, as in PBG


def _as_tuple(relations: Iterable[MonitoredRelation]) -> tuple[MonitoredRelation, ...]:
    return tuple(relations)


# What an edge's two rows mean: the left type and its partition, the right type and its partition (0 where it has one)
EndTypes: TypeAlias = tuple[str, int, str, int]


@frozen
class ModelSchema:
    """What does not change in training.

    Args:
        relations: one per relation id; a single one if relations are dynamic. Operators and comparator: as in a
            config (`kgeval-dist --help-config`).
        num_partitions: of each entity type, for example `{"all": 1}`.
        comparator: a distance is negated, so that higher is better.
        num_dynamic_relations: their number; None if relations are not dynamic.
        bias: as in PyTorch-BigGraph's config, like `max_norm`.
        max_norm: the same.

    Examples:
        >>> from pbgeval import ModelSchema, MonitoredRelation
        >>> likes = MonitoredRelation("likes", "user", "item", "translation")
        >>> schema = ModelSchema([likes], {"user": 4, "item": 1}, "dot")
        >>> schema.num_relations, schema.grid
        (1, Bucket(lhs=4, rhs=1))
    """

    relations: tuple[MonitoredRelation, ...] = field(converter=_as_tuple)  # one if dynamic
    num_partitions: Mapping[str, int]  # of each entity type
    comparator: str
    num_dynamic_relations: int | None = None  # None: relations are not dynamic
    bias: bool = False
    max_norm: float | None = None

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

    def ends(self, bucket: Bucket) -> list[EndTypes]:
        """Return what the rows of each relation's edges mean in a bucket."""
        return [
            (
                of.lhs,
                bucket.partition_of(Side.LHS, self.num_partitions[of.lhs]),
                of.rhs,
                bucket.partition_of(Side.RHS, self.num_partitions[of.rhs]),
            )
            for of in self.relations
        ]

    def __attrs_post_init__(self) -> None:
        rows = [
            (
                not self.relations or (self.dynamic and len(self.relations) > 1),
                f"relations: expected {'one, as they are dynamic' if self.dynamic else 'some'}, "
                f"got {len(self.relations)}",
            ),
            (
                self.comparator not in COMPARATORS,
                f"comparator: expected one of {', '.join(COMPARATORS)}, got {self.comparator!r}",
            ),
        ]
        for relation in self.relations:
            rows += [
                (
                    relation.operator not in OPERATORS,
                    f"relation '{relation.name}': expected an operator of {', '.join(OPERATORS)}, "
                    f"got {relation.operator!r}",
                ),
                *(
                    (
                        self.num_partitions.get(entity_type, 0) < 1,
                        f"num_partitions: expected those of entity type '{entity_type}' of relation "
                        f"'{relation.name}', at least 1, got {self.num_partitions.get(entity_type)}",
                    )
                    for entity_type in (relation.lhs, relation.rhs)
                ),
            ]
        Faults(message for is_wrong, message in rows if is_wrong).raise_any(ConfigError)


class Model(Protocol):
    """A model as a monitor reads it, between two steps of training; tensors may be the live ones, on any device."""

    def embeddings(self, entity_type: str, partition: int) -> Tensor:
        """Return the entities of a partition, (N, D)."""

    def operator_parameters(self, relation: int, side: Side) -> Mapping[str, Tensor]:
        """Return the parameters by PBG's names: real, imag, diagonal, translation, linear_transformation.

        Asked for the right-hand side alone, relation by relation; of dynamic relations for relation 0 on both sides,
        with a leading dimension R.
        """

    def global_embedding(self, entity_type: str) -> Tensor | None:
        """Return the vector (D,) that is added to all entities of a type, None if there is none."""


@frozen(eq=False)
class ModelTensors:
    """A model that is given as tables of tensors.

    Args:
        tables: the vectors of a partition's entities, (N, D), by entity type and partition: `{("user", 0): user_0}`.
        operators: the parameters of a relation by PBG's names (`Model.operator_parameters`), by relation index and
            `Side.RHS`: `{(0, Side.RHS): {"translation": shift}}`. Relations without parameters are left out.
        global_embeddings: a vector (D,) per entity type that has one.

    Examples:
        >>> import torch
        >>> from pbgeval import ModelTensors, Side
        >>> shift = torch.zeros(8)
        >>> model = ModelTensors({("all", 0): torch.randn(20, 8)}, {(0, Side.RHS): {"translation": shift}})
        >>> model.operator_parameters(0, Side.RHS)["translation"] is shift
        True
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


# Edges of a bucket -> which of them are held out of training.
#
# The side of an edge is a hash of (seed, relation, entity types, partitions, rows) and of nothing else: the same at
# every epoch, in every chunk and path, on every worker and machine, and all copies of an edge fall on one side.

ROWS_AT_A_TIME = 1 << 15  # so that the words in hand stay in cache; changes no number
NUM_HASHES = 1 << 64
DIGEST_BITS = 40  # so few that the digests of a pass add up exactly


def threshold_of(fraction: float) -> int:
    """Return how many of the 2^64 hashes are held out: the exact value of the fraction, rounded down.

    Raises:
        ConfigError: it is not in [0, 1): with 1 no edge would be trained on.
    """
    if not (isinstance(fraction, int | float) and 0 <= fraction < 1):
        raise ConfigError(
            f"eval_fraction: expected a number from 0 (nothing is held out) to below 1, got {fraction!r}; "
            "with 1 no edge would be left to train on"
        )
    return math.floor(Fraction(fraction) * NUM_HASHES)


def hash_edges(
    seed: int, ends_of_relation: Sequence[EndTypes], lhs_E: np.ndarray, rel_E: np.ndarray, rhs_E: np.ndarray
) -> np.ndarray:
    """Return the hash of each edge, uint64 (E,).

    Args:
        seed: another one draws other edges.
        ends_of_relation: of each relation; a single one holds for all, however many there are.
        lhs_E: row of the left entity in its partition, int64.
        rel_E: relation, int64.
        rhs_E: row of the right entity in its partition, int64.

    Raises:
        DataError: a relation out of range.
    """
    words_of = {ends: _word(f"pbgeval holdout {seed}", ends) for ends in set(ends_of_relation)}
    words_R = np.array([words_of[ends] for ends in ends_of_relation], np.uint64)
    schema_E = rel_E if len(words_R) > 1 else np.zeros_like(rel_E)
    wrong = np.flatnonzero((schema_E < 0) | (schema_E >= len(words_R)))
    if len(wrong):
        raise DataError(f"rel: expected a relation in 0..{len(words_R) - 1}, got {int(rel_E[wrong[0]])}")
    hashes_E = np.empty(len(rel_E), np.uint64)
    for start in range(0, len(rel_E), ROWS_AT_A_TIME):
        part = slice(start, start + ROWS_AT_A_TIME)
        state_E = words_R[schema_E[part]]
        for column_E in (rel_E, lhs_E, rhs_E):
            state_E = split_mix(state_E ^ column_E[part].astype(np.uint64))
        hashes_E[part] = state_E
    return hashes_E


def digest_of_edges(hash_E: np.ndarray, settings: str) -> int:
    """Return a number of `DIGEST_BITS` bits for the edges of these hashes, in any order, under settings of a digest."""
    total = int(split_mix(hash_E).sum(dtype=np.uint64))
    told = hashlib.blake2b(f"{settings} {len(hash_E)} {total}".encode(), digest_size=DIGEST_BITS // 8)
    return int.from_bytes(told.digest(), "little")


def _word(prefix: str, ends: EndTypes) -> int:
    # Types are any text, so each is preceded by its length.
    lhs, lhs_partition, rhs, rhs_partition = ends
    name = f"{prefix} {len(lhs)}:{lhs} {lhs_partition} {len(rhs)}:{rhs} {rhs_partition}"
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def sample_of_rest(hash_E: np.ndarray, threshold: int, num_edges: int) -> np.ndarray:
    """Return the positions, ascending, of as many edges as asked for that are not held out: those next by hash.

    All of them where there are fewer.
    """
    rest = np.flatnonzero(hash_E >= np.uint64(threshold))
    if num_edges >= len(rest):
        return rest
    of_rest = hash_E[rest]
    last = np.partition(of_rest, num_edges)[num_edges]  # the first hash that is not needed any more
    below, ties = rest[of_rest < last], rest[of_rest == last]
    return np.sort(np.concatenate([below, ties[: num_edges - len(below)]]))
