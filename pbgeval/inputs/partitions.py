"""Buckets -> the partitions that they need, loaded, checked, and kept while the next bucket needs them too."""

from __future__ import annotations

import torch
from attrs import define, field
from torch import Tensor

from pbgeval.inputs.opening import Inputs
from pbgeval.notation import Bucket, Side
from pbgeval.passes.settings import Tables
from pbgeval.scoring.entities import EntityTable


@define
class PartitionHolder:
    """The partitions of the bucket in hand. Contiguous files are mapped, so workers of a host share their pages."""

    inputs: Inputs
    global_embeddings: dict[str, Tensor]
    device: torch.device
    num_loads: int = field(default=0, init=False)
    _held: dict[tuple[str, int], EntityTable] = field(factory=dict, init=False)

    def of_bucket(self, bucket: Bucket) -> Tables:
        """Return the tables of a bucket, by entity type and side.

        Raises:
            DataError: a partition holds what cannot be ranked.
            StorageError: a file has become unreadable.
        """
        needed = self.inputs.partitions_needed(bucket)
        for key in set(self._held) - needed:
            del self._held[key]
        for entity_type, partition in sorted(needed - set(self._held)):
            self._held[entity_type, partition] = self._load(entity_type, partition)
        return {
            (entity_type, side): self._held[entity_type, self.inputs.partition_of(entity_type, side, bucket)]
            for relation in self.inputs.config.relations
            for side, entity_type in ((Side.LHS, relation.lhs), (Side.RHS, relation.rhs))
        }

    def _load(self, entity_type: str, partition: int) -> EntityTable:
        config = self.inputs.config
        self.num_loads += 1
        table = EntityTable(
            entity_type=entity_type,
            partition=partition,
            embeddings_ND=self.inputs.embeddings[entity_type, partition].load().to(self.device),
            global_embedding_D=self.global_embeddings.get(entity_type),
            max_norm=config.max_norm,
            featurized=config.entities[entity_type].featurized,
        )
        table.check(refuse_zero_vectors=config.comparator == "cos", has_bias=config.bias)
        return table
