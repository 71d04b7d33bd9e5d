"""Known edges -> the known answers of one bucket's queries in the bucket's own partitions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from attrs import define, field, frozen

from pbgeval.distinct import distinct
from pbgeval.inputs.edges import numbered_blocks, parts_of_file
from pbgeval.known.keys import KnownBlock, QueryKeys
from pbgeval.known.pairs import KEY_BITS
from pbgeval.notation import Bucket, Side
from pbgeval.passes.settings import KnownInUnit
from pbgeval.storage.edges import EdgeSource
from pbgeval.worker.known import join_blocks, known_files
from pbgeval.worker.work import Bench


@frozen(eq=False)
class _OfBucket:
    """The keys of a bucket's queries that hide one side, and their known answers."""

    keys: QueryKeys
    key_P: np.ndarray
    row_P: np.ndarray


@define(eq=False)
class KnownOfBuckets:
    """Joins the bucket in hand with the known edges that may hold its answers, once for all its units.

    It holds the distinct keys of one bucket's edges and their answers in memory.
    """

    bench: Bench
    _bucket: Bucket | None = None
    _sides: dict[Side, _OfBucket] = field(factory=dict)

    def of_unit(self, bucket: Bucket, edges: KnownBlock) -> dict[Side, KnownInUnit]:
        """Return the known answers of the queries of some of a bucket's edges, by hidden side."""
        if bucket != self._bucket:
            self._sides = {}  # the last bucket's go before the next ones come
            self._sides, self._bucket = self._join(bucket), bucket
        return {
            side: KnownInUnit(
                of_bucket.keys.index_of(edges.rel_n, edges.entity(side.other)), of_bucket.key_P, of_bucket.row_P
            )
            for side, of_bucket in self._sides.items()
        }

    def _join(self, bucket: Bucket) -> dict[Side, _OfBucket]:
        inputs, numbering = self.bench.inputs, self.bench.numberer.numbering
        codes: dict[Side, list[np.ndarray]] = {side: [np.empty(0, np.int64)] for side in self.bench.settings.sides}
        for files in inputs.buckets:
            for block in self._blocks([files[bucket]] if bucket in files else []):
                for side, parts in codes.items():
                    parts.append(distinct(block.rel_n * numbering.num_entities + block.entity(side.other)))
        keys = {
            side: QueryKeys(side, numbering.num_entities, distinct(np.concatenate(parts)))
            for side, parts in codes.items()
        }
        store = join_blocks(self.bench, keys, self._blocks(self._files_that_meet(bucket)))
        sides = {}
        for side in keys:
            types = {side.pick(relation.lhs, relation.rhs) for relation in inputs.config.relations}
            slots = [numbering.slots.index((name, inputs.partition_of(name, side, bucket))) for name in sorted(types)]
            packed = np.concatenate([store.pairs(side, slot).by_key().packed_P for slot in slots])
            packed.sort()
            sides[side] = _OfBucket(keys[side], packed >> KEY_BITS, packed & ((1 << KEY_BITS) - 1))
        return sides

    def _files_that_meet(self, bucket: Bucket) -> list[EdgeSource]:
        every = [item for buckets in known_files(self.bench) for item in sorted(buckets.items())]
        return [file for other, file in every if self._meets(other, bucket)]

    def _meets(self, other: Bucket, bucket: Bucket) -> bool:
        """Tell whether edges of another bucket may lie between the partitions of this one, for some relation."""
        inputs = self.bench.inputs
        return any(
            all(
                inputs.partition_of(entity_type, side, other) == inputs.partition_of(entity_type, side, bucket)
                for side, entity_type in ((Side.LHS, relation.lhs), (Side.RHS, relation.rhs))
            )
            for relation in inputs.config.relations
        )

    def _blocks(self, files: list[EdgeSource]) -> Iterator[KnownBlock]:
        for file in files:
            yield from numbered_blocks(self.bench.numberer, parts_of_file(file))
