"""What a pass over edges needs to know, as plain values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial, reduce

import numpy as np
import torch
from attrs import field, frozen
from torch import Tensor

from pbgeval.notation import Bucket, Side, is_among, values_between
from pbgeval.ranking.auc_sampling import AucSampling
from pbgeval.ranking.draws import DegreeWeights
from pbgeval.ranking.known_answers import KnownOfEdges
from pbgeval.ranking.sampled_lists import CandidatePolicy, SampledLists
from pbgeval.scoring.entities import EntityTable
from pbgeval.scoring.scorer import EdgeScorer
from pbgeval.stats.rank_stats import StatsLayout
from pbgeval.storage.edges import EdgeBlock


@frozen(eq=False)
class EdgeOrigin:
    """Where edges come from: it addresses their draws and names them in errors."""

    label: str  # the file
    place: tuple[int, Bucket]  # edge path and bucket


class Kept(Enum):
    """What a backend keeps of the scores of a block that it has counted."""

    NOTHING = "nothing"
    SCORES = "scores"  # for a loss: where ranks are exact, the rounded scores that they are counted from
    VALUES = "values"  # to be compared and reported: where ranks are exact, in float64


@frozen
class LossSettings:
    """Which of PBG's losses is computed."""

    name: str
    margin: float


@frozen(eq=False)
class Relation:
    """A relation schema and who competes in its queries."""

    scorer: EdgeScorer  # its parameters are of type `dtype`
    policy: CandidatePolicy
    dtype: torch.dtype = torch.float32  # of vectors, products and comparisons; exact: of vectors alone

    @property
    def prepared_dtype(self) -> torch.dtype:
        """Of prepared rows."""
        return self.dtype if self.scorer.exact_comparator is None else torch.float32


@frozen(eq=False)
class PassSettings:
    """The protocol of a pass: everything but the data that can change a number."""

    layout: StatsLayout
    relations: tuple[Relation, ...]  # one, if relations are dynamic
    num_relations: int  # of the dynamic relations, else len(relations)
    lists: SampledLists
    seed: int
    sides: tuple[Side, ...]  # what is hidden in the queries that are evaluated
    auc: AucSampling
    loss: LossSettings | None = None

    @property
    def kept(self) -> Kept:
        """What is kept of the scores of a bucket's blocks."""
        if self.auc.exact:
            return Kept.VALUES
        return Kept.NOTHING if self.loss is None else Kept.SCORES

    @property
    def dynamic(self) -> bool:
        return self.relations[0].scorer.dynamic

    @property
    def ends(self) -> tuple[Side, ...]:
        """The sides without the relation."""
        return tuple(side for side in self.sides if side is not Side.REL)


# Sets of entities that may compete: of the whole evaluation, of one side, or of one side of one relation.
#
# A set only ever narrows "every entity of the type". An entity is its id (`EntityNumbering`).


@frozen(eq=False)
class CandidateSets:
    """Who may compete; every array is sorted and without duplicates."""

    num_entities: int  # of all types: what a code is made with
    allowed: np.ndarray | None = None  # int64 entity ids: no others compete on either side
    of_side: Mapping[Side, np.ndarray] = field(factory=dict)  # entity ids that compete where this side is hidden
    observed: Mapping[Side, np.ndarray] | None = None  # relation * num_entities + entity id, by hidden side

    @property
    def by_relation(self) -> bool:
        """Whether relations of one type have different candidates."""
        return self.observed is not None

    @property
    def unconstrained(self) -> bool:
        """Whether every entity of a type competes everywhere."""
        return self.allowed is None and not self.of_side and self.observed is None

    def of(self, hidden: Side, relation: int) -> np.ndarray | None:
        """Return the entity ids that compete in queries of a relation, None for every entity of its type."""
        sets = [entity_ids for entity_ids in (self.allowed, self.of_side.get(hidden)) if entity_ids is not None]
        if self.observed is not None:
            first = relation * self.num_entities
            sets.append(values_between(self.observed[hidden], first, first + self.num_entities) - first)
        return reduce(partial(np.intersect1d, assume_unique=True), sets) if sets else None

    def contains(self, hidden: Side, rel_Q: np.ndarray, entity_id_Q: np.ndarray) -> np.ndarray:
        """Tell of each (relation, entity) whether it may compete where `hidden` is hidden, bool (Q,)."""
        inside_Q = np.ones(entity_id_Q.shape, bool)
        for entity_ids in (self.allowed, self.of_side.get(hidden)):
            if entity_ids is not None:
                inside_Q &= is_among(entity_id_Q, entity_ids)
        if self.observed is not None:
            inside_Q &= is_among(rel_Q * self.num_entities + entity_id_Q, self.observed[hidden])
        return inside_Q


@frozen(eq=False)
class Competition:
    """Which edges of a unit are evaluated, and who does not compete in their queries."""

    rows_E: Tensor | None = None  # int64, ascending: positions of the edges that are evaluated; None: all
    # By hidden side: the known answers that a filter leaves out, by their rows in the partition of the candidates. The
    # first filter makes the filtered figures; the second, if there is one, goes by time.
    filters: Sequence[Mapping[Side, KnownOfEdges]] = ()
    knows_past_alone: bool = False  # the first filter tells queries of one key apart, by their times
    sets: CandidateSets | None = None  # None: every entity of the type competes
    chunks: np.ndarray | None = None  # int64, ascending: the only chunks of the window that are evaluated; None: all
    cluster_E: np.ndarray | None = None  # int64: the cluster of each edge that is evaluated, if edges are sampled
    pool_share: float = 1.0  # of their scores that enter the pools
    first_id: Callable[[str, Side], int] | None = None  # (entity type, side) -> number of its partition's row 0
    degree_weights: Callable[[str, Side], DegreeWeights] | None = None  # of the same partition; None: nothing is drawn


Tables = Mapping[tuple[str, Side], EntityTable]  # of one bucket, by entity type and side


@frozen(eq=False)
class UnitOfEdges:
    """Consecutive edges of a bucket, and what they are ranked with."""

    edges: EdgeBlock  # a whole window: chunks never reach over its borders
    origin: EdgeOrigin  # the file, and what addresses its draws
    tables: Tables  # the bucket's partitions
    competition: Competition = field(factory=Competition)
