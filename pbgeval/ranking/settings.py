"""What a pass over edges needs to know, as plain values, and what it needs to be handed, as protocols."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from pbgeval.notation import Bucket, Side
from pbgeval.ranking.auc_sampling import AucSampling
from pbgeval.ranking.chunks import CandidatePolicy, SampledLists
from pbgeval.ranking.constraints import CandidateSets
from pbgeval.ranking.draws import DegreeWeights
from pbgeval.ranking.known_answers import KnownOfEdges
from pbgeval.scoring.entities import EntityTable
from pbgeval.scoring.scorer import EdgeScorer
from pbgeval.stats.rank_stats import StatsLayout


class Features(Protocol):
    """Lists of features, one per edge."""

    @property
    def offsets(self) -> Tensor: ...  # int64 (E + 1)
    @property
    def data(self) -> Tensor: ...  # int64


class BucketEdges(Protocol):
    """Consecutive rows of a bucket."""

    @property
    def start(self) -> int: ...  # row of the first edge in its file
    @property
    def lhs(self) -> Tensor: ...  # int64 (E)
    @property
    def rel(self) -> Tensor: ...
    @property
    def rhs(self) -> Tensor: ...
    @property
    def weight(self) -> Tensor | None: ...  # float64 (E)
    @property
    def lhs_features(self) -> Features | None: ...
    @property
    def rhs_features(self) -> Features | None: ...


@frozen(eq=False)
class EdgeOrigin:
    """Where edges come from: it addresses their draws and names them in errors."""

    label: str  # the file
    path_index: int
    bucket: Bucket


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
    dtype: torch.dtype = torch.float32  # of vectors, products and comparisons; certified: of vectors alone

    @property
    def prepared_dtype(self) -> torch.dtype:
        """Of prepared rows."""
        return self.dtype if self.scorer.certified is None else torch.float32


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
    count_competitors: bool = False  # from how many entities sampled lists are drawn, query by query

    @property
    def dynamic(self) -> bool:
        return self.relations[0].scorer.dynamic

    @property
    def ends(self) -> tuple[Side, ...]:
        """The sides without the relation."""
        return tuple(side for side in self.sides if side is not Side.REL)

    @property
    def pbg_semantics(self) -> bool:
        return self.lists.pbg_semantics


@frozen(eq=False)
class Competition:
    """Which edges of a unit are evaluated, and who does not compete in their queries."""

    rows_E: Tensor | None = None  # int64, ascending: positions of the edges that are evaluated; None: all
    # By hidden side: the known answers, by their rows in the partition of the candidates. None: nothing is filtered.
    known: Mapping[Side, KnownOfEdges] | None = None
    in_time: Mapping[Side, KnownOfEdges] | None = None  # those that a time-aware filter leaves out; None: there is none
    knows_past_alone: bool = False  # `known` differs between queries of one key, by their times
    sets: CandidateSets | None = None  # None: every entity of the type competes
    chunks: np.ndarray | None = None  # int64, ascending: the only chunks of the window that are evaluated; None: all
    cluster_E: np.ndarray | None = None  # int64: the cluster of each edge that is evaluated, if edges are sampled
    first_number: Callable[[str, Side], int] | None = None  # (entity type, side) -> number of its partition's row 0
    degree_weights: Callable[[str, Side], DegreeWeights] | None = None  # of the same partition; None: nothing is drawn

    @property
    def filtered(self) -> bool:
        return self.known is not None

    def rows(self, num_edges: int) -> Tensor:
        """Return the positions of the edges that are evaluated."""
        return torch.arange(num_edges) if self.rows_E is None else self.rows_E


Tables = Mapping[tuple[str, Side], EntityTable]  # of one bucket, by entity type and side
