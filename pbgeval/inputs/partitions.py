"""Units -> the partitions that they need: loaded, checked, kept while useful, and read ahead by a thread."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import cast

import torch
from attrs import define, field
from torch import Tensor

from pbgeval.inputs.opening import Inputs
from pbgeval.notation import Bucket, Side
from pbgeval.passes.settings import Tables
from pbgeval.plan.holding import Partition
from pbgeval.plan.read_ahead import Holding
from pbgeval.scoring.entities import EntityTable


@define(eq=False)
class PartitionHolder:
    """The partitions that a worker holds. Contiguous files are mapped, so workers of a host share their pages.

    A context: at its end nothing more is read.
    """

    inputs: Inputs
    global_embeddings: dict[str, Tensor]
    device: torch.device
    holding: Holding
    reads_ahead: bool = True  # else there is memory for no more than the room
    num_loads: int = field(default=0, init=False)
    _tables: dict[Partition, EntityTable] = field(factory=dict, init=False)
    _reader: ThreadPoolExecutor = field(
        factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="read-ahead"), init=False
    )
    _coming: Future[EntityTable] | None = field(default=None, init=False)

    def __enter__(self) -> PartitionHolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._reader.shutdown(wait=True, cancel_futures=True)

    def enter(self, index: int, bucket: Bucket) -> Tables:
        """Return the tables of a unit (its index in the plan, and its bucket), by entity type and side.

        Raises:
            DataError: a partition holds what cannot be ranked.
            StorageError: a file has become unreadable.
        """
        waiting = self.holding.ahead
        missing = self.holding.enter(index)
        for partition in set(self._tables) - self.holding.held:
            del self._tables[partition]
        if self.holding.ahead is None and self._coming is not None:
            if waiting in self.holding.held:
                self._tables[waiting] = self._coming.result()
            self._coming = None
        self.num_loads += len(missing)
        for partition in missing:
            self._tables[partition] = self._load(partition)
        return {
            (entity_type, side): self._tables[entity_type, self.inputs.partition_of(entity_type, side, bucket)]
            for relation in self.inputs.config.relations
            for side, entity_type in ((Side.LHS, relation.lhs), (Side.RHS, relation.rhs))
        }

    def read_ahead(self) -> None:
        """Begin to read what the units after this one need first."""
        partition = self.holding.read_ahead() if self.reads_ahead else None
        if partition is not None:
            self.num_loads += 1
            self._coming = self._reader.submit(self._load, partition)

    def _load(self, partition: Partition) -> EntityTable:
        entity_type, number = cast("tuple[str, int]", partition)
        config = self.inputs.config
        table = EntityTable(
            entity_type=entity_type,
            partition=number,
            embeddings_ND=self.inputs.embeddings[entity_type, number].load().to(self.device),
            global_embedding_D=self.global_embeddings.get(entity_type),
            max_norm=config.max_norm,
            featurized=config.entities[entity_type].featurized,
        )
        table.check(refuse_zero_vectors=config.comparator == "cos", has_bias=config.bias)
        return table
