"""Ranges of candidate rows -> tables for the two sweeps: read ahead, checked, and kept on the GPU if there is room."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import define, field
from torch import Tensor

from pbgeval.cluster.resources import available_bytes
from pbgeval.inputs.partitions import read_rows, rows_ahead
from pbgeval.inputs.protocol import CandidateRange
from pbgeval.ranking.query_edges import EntityVectors
from pbgeval.scoring.block_sizes import GPU_WORKSPACE_BYTES
from pbgeval.scoring.entities import EntityTable
from pbgeval.worker.context import WorkerContext

SHARE_OF_GPU = 0.8  # of its free memory, for ranges that are kept, beside what blocks take


@define(eq=False)
class RangeTables:
    """A worker's ranges, each row looked at when it is read, and the room that its GPU has for what is kept."""

    context: WorkerContext
    vectors: EntityVectors
    _room: int  # bytes of a GPU; 0 on a CPU, whose system keeps pages of files
    _kept: dict[CandidateRange, EntityTable] = field(factory=dict, init=False)

    @classmethod
    def on_device(cls, context: WorkerContext, vectors: EntityVectors) -> RangeTables:
        """Share the free memory of a GPU among its workers."""
        if context.device.type == "cpu":
            return cls(context, vectors, 0)
        free = available_bytes(context.device) // context.num_sharing_gpu
        return cls(context, vectors, max(int(SHARE_OF_GPU * free) - GPU_WORKSPACE_BYTES, 0))

    def takes(self, num_bytes: int) -> bool:
        """Return whether there is room for so many bytes until the sweeps end; if so, it is taken."""
        fits = num_bytes <= self._room
        if fits:
            self._room -= num_bytes
        return fits

    def first(self, parts: Sequence[CandidateRange]) -> Iterator[EntityTable]:
        """Read ranges, and keep what fits."""
        for part, table in zip(parts, self._read(parts), strict=True):
            if self.takes(table.embeddings_ND.nbytes):
                self._kept[part] = table
            yield table

    def last(self, parts: Sequence[CandidateRange]) -> Iterator[EntityTable]:
        """Return ranges for the last time, those that are not kept read."""
        self._kept = {part: self._kept[part] for part in parts if part in self._kept}
        of_missing = self._read([part for part in parts if part not in self._kept])
        for part in parts:
            yield self._kept.pop(part) if part in self._kept else next(of_missing)

    def _read(self, parts: Sequence[CandidateRange]) -> Iterator[EntityTable]:
        config, slots = self.context.inputs.config, self.context.numberer.numbering.slots

        def read(part: CandidateRange) -> Tensor:
            return read_rows(
                self.context.inputs.embeddings[slots[part.slot]], part.start, part.stop, self.vectors.device
            )

        for part, rows_ND in zip(parts, rows_ahead(parts, read, self.vectors.device), strict=True):
            table = self.vectors.table(*slots[part.slot], rows_ND, part.start)
            table.check(refuse_zero_vectors=config.comparator == "cos", has_bias=config.bias)
            yield table
