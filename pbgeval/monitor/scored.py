"""A model that scores queries by number -> what a monitor reads, in the place of tables of vectors."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from attrs import define, field
from torch import Tensor

from pbgeval.monitor.schema import ModelSchema, MonitoredRelation
from pbgeval.notation import Side
from pbgeval.scoring.block_scorer import (
    RowScorer,
    Scorer,
    ScorerComparator,
    ScorerRelation,
    device_of,
    scorer_state,
)


@define(eq=False)
class ScoredModel:
    """Any model that is asked for the scores of queries (`Scorer`): one entity type, one partition, any relations.

    One object serves all visits: the self-check of the model's kernels is made at the first of them.
    """

    scorer: Scorer
    _relation: ScorerRelation | None = field(default=None, init=False)

    def schema(self, *, all_entities: bool = False) -> ModelSchema:
        """Return the schema to make the monitor with.

        Args:
            all_entities: held-out edges are ranked among all entities, not among sampled ones.
        """
        relation = MonitoredRelation("all", "all", "all", all_negs=all_entities)
        # The comparator is not asked: the model is.
        return ModelSchema([relation], {"all": 1}, "dot", num_dynamic_relations=self.scorer.num_relations)

    def relation(self, lhs_type: str, rhs_type: str) -> ScorerRelation:
        """Return what scores the edges of all relations.

        Raises:
            ScorerError: the model gives other scores each time, or no block of scores.
        """
        if self._relation is None:
            relation = ScorerRelation(ScorerComparator(self.scorer), lhs_type, rhs_type)
            scorer_state(relation, tuple(Side))
            self._relation = relation
        return self._relation

    def embeddings(self, entity_type: str, partition: int) -> Tensor:
        """Return the number of each entity, float64 (N, 1)."""
        if isinstance(self.scorer, RowScorer):
            self.scorer.forget()  # training has changed the model since
        numbers_N = torch.arange(self.scorer.num_entities, dtype=torch.float64, device=device_of(self.scorer))
        return numbers_N.unsqueeze(1)

    def operator_parameters(self, relation: int, side: Side) -> Mapping[str, Tensor]:
        return {}

    def global_embedding(self, entity_type: str) -> Tensor | None:
        return None
