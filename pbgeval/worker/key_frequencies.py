"""All evaluated edges -> how often each query key occurs among them, looked up bucket by bucket."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from attrs import define, field

from pbgeval.inputs.edges import parts_of_file
from pbgeval.known.frequency import KeyFrequency
from pbgeval.known.keys import KnownBlock
from pbgeval.notation import Bucket, Side
from pbgeval.worker.steps import in_step
from pbgeval.worker.work import Bench


@define(eq=False)
class KeyFrequencies:
    """The tables of all slots of known entities; those of the bucket in hand are in memory."""

    bench: Bench
    _of_slot: dict[tuple[Side, int], KeyFrequency] = field(factory=dict)  # of a worker alone
    _bucket: tuple[Side, Bucket] | None = None
    _held: dict[tuple[Side, frozenset[int]], KeyFrequency] = field(factory=dict)

    def of(self, hidden: Side, bucket: Bucket, edges: KnownBlock) -> np.ndarray:
        """Return how many evaluated edges have the key of each of a bucket's queries, int64."""
        inputs, numbering = self.bench.inputs, self.bench.numberer.numbering
        types = {hidden.other.pick(relation.lhs, relation.rhs) for relation in inputs.config.relations}
        slots = frozenset(
            numbering.slots.index((name, inputs.partition_of(name, hidden.other, bucket))) for name in types
        )
        if (hidden, slots) not in self._held:
            for held in [key for key in self._held if key[0] is hidden]:
                del self._held[held]
            self._held[hidden, slots] = self._joined(hidden, slots)
        return self._held[hidden, slots].of(edges.rel_n, edges.entity(hidden.other))

    def _joined(self, hidden: Side, slots: frozenset[int]) -> KeyFrequency:
        tables = [self._table(hidden, slot) for slot in sorted(slots)]
        codes = np.concatenate([table.codes_K for table in tables])
        order = np.argsort(codes)
        counts = np.concatenate([table.counts_K for table in tables])
        return KeyFrequency(hidden, self.bench.numberer.numbering.num_entities, codes[order], counts[order])

    def _table(self, hidden: Side, slot: int) -> KeyFrequency:
        if self.bench.team.size == 1:
            return self._of_slot[hidden, slot]
        codes, counts = self.bench.scratch.read(_name(hidden, slot), np.int64).reshape(2, -1)
        return KeyFrequency(hidden, self.bench.numberer.numbering.num_entities, codes, counts)


def count_keys(bench: Bench) -> KeyFrequencies:
    """Count the keys of all evaluated edges, a part of the slots on each worker; every worker takes part."""
    frequencies = KeyFrequencies(bench)
    numbering = bench.numberer.numbering
    slots = [(side, slot) for side in bench.settings.sides for slot in range(len(numbering.slots))]

    def count() -> dict[tuple[Side, int], KeyFrequency]:
        tables = {}
        for number, (hidden, slot) in enumerate(slots):
            if number % bench.team.size != bench.team.rank_in_team:
                continue
            table = KeyFrequency.of_blocks(hidden, _edges_of_slot(bench, hidden, slot), numbering.num_entities)
            if bench.team.size == 1:
                tables[hidden, slot] = table
            else:
                bench.scratch.append(_name(hidden, slot), np.stack([table.codes_K, table.counts_K]))
        return tables

    frequencies._of_slot = in_step(bench.team, count)
    return frequencies


def _name(hidden: Side, slot: int) -> str:
    return f"frequency-{hidden.name}-{slot}"


def _edges_of_slot(bench: Bench, hidden: Side, slot: int) -> Iterator[KnownBlock]:
    """Read the evaluated edges whose known entity is in a slot."""
    entity_type, partition = bench.numberer.numbering.slots[slot]
    low, high = bench.numberer.numbering.range_of_slot(slot)
    for path_index, buckets in enumerate(bench.inputs.buckets):
        for bucket, file in sorted(buckets.items()):
            if bench.inputs.partition_of(entity_type, hidden.other, bucket) != partition:
                continue
            for _, start, stop in parts_of_file(file):
                block = bench.numberer.numbered(file, file.read(start, stop))
                known_n = block.entity(hidden.other)
                inside = (known_n >= low) & (known_n < high)
                if not bench.evaluated.keeps_all:
                    kept = np.zeros(block.num_edges, bool)
                    kept[bench.evaluated.positions(block, path_index, bucket, start)] = True
                    inside &= kept
                yield block if inside.all() else KnownBlock(*block.columns(np.flatnonzero(inside)))
