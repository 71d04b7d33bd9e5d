"""Training edges, slot by slot -> counts per relation and entity that add -> classes of relations and entities.

Distinct keys need all edges of a slot together, so a slot is counted at once: the edges whose left entity is in it for
the left side, those whose right entity is in it for the right side. The counts of all slots of both sides add up,
whichever workers made them. An edge that is listed twice counts twice.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from attrs import frozen

from pbgeval.notation import ENDS, EntityNumbering, Side, values_between
from pbgeval.ranking.keys import CodeCounts, DistinctCodes, EdgeColumns, check_codes_fit, key_codes

_FREQUENCY_BITS = 42  # a frequency and its entity type in one code: 2^42 edges, 2^21 types


@frozen(eq=False)
class SlotCounts:
    """What the training edges of some slots say about relations and entities."""

    edges_2R: np.ndarray  # int64 (2, relations): edges, once by their left slots and once by their right ones
    keys_2R: np.ndarray  # int64 (2, relations): distinct (relation, entity at the side)
    # Type << 42 | frequency -> entities that have it, per side; then evaluated entity -> its frequency, 0 left out.
    counted: list[CodeCounts]
    entity_types: tuple[str, ...]  # by number

    @classmethod
    def zero(cls, num_relations: int, numbering: EntityNumbering) -> SlotCounts:
        """Return the counts of no slot: adding them changes nothing."""
        edges_2R, keys_2R = (np.zeros((len(ENDS), num_relations), np.int64) for _ in range(2))
        return cls(edges_2R, keys_2R, [CodeCounts.zero()] * 4, _types_of(numbering))

    @classmethod
    def of_slot(
        cls,
        side: Side,
        slot: int,
        blocks: Iterable[EdgeColumns],
        *,
        numbering: EntityNumbering,
        num_relations: int,
        evaluated: np.ndarray,
    ) -> SlotCounts:
        """Count all training edges whose entity at a side is in a slot.

        Memory: 8 bytes for each entity of the slot, and up to 32 for each distinct (relation, entity).

        Args:
            side: which entity of an edge is looked at.
            slot: what is counted now. Each slot must be counted once for each side, those without training edges too:
                their entities are among the items of classes.
            blocks: training edges, among them all that touch the slot, each as often as it is listed; edges whose
                entity is elsewhere are passed over.
            numbering: the entities.
            num_relations: relations are 0 to this, exclusive.
            evaluated: distinct numbers of the entities whose frequency is kept, int64, increasing.

        Raises:
            ValueError: relations x entities do not fit in int64.
        """
        check_codes_fit(num_relations, numbering.num_entities)
        first, stop = numbering.range_of_slot(slot)
        keys, edges_R = DistinctCodes(), np.zeros(num_relations, np.int64)
        frequency_N = np.zeros(stop - first, np.int64)
        for block in blocks:
            inside_n = (block.entity(side) >= first) & (block.entity(side) < stop)
            inside = block if inside_n.all() else block.select(np.flatnonzero(inside_n))
            if inside.num_edges:
                edges_R += np.bincount(inside.rel_n, minlength=num_relations)
                keys.add(key_codes(inside.rel_n, inside.entity(side), numbering.num_entities))
                # Sorted: a table of all entities for each block would cost more than counting.
                counted = CodeCounts.of_codes(inside.entity(side) - first)
                frequency_N[counted.keys] += counted.counts
        keys_R = np.bincount(keys.sorted() // max(numbering.num_entities, 1), minlength=num_relations)
        histogram = CodeCounts.of_codes(
            frequency_N | _types_of(numbering).index(numbering.slots[slot][0]) << _FREQUENCY_BITS
        )
        of_slot = values_between(evaluated, first, stop)
        frequency = frequency_N[of_slot - first]
        frequencies = CodeCounts(of_slot, frequency[:, None]).select(frequency > 0)
        counts = cls.zero(num_relations, numbering)
        counts.edges_2R[side.value], counts.keys_2R[side.value] = edges_R, keys_R
        counts.counted[side.value], counts.counted[2 + side.value] = histogram, frequencies
        return counts

    def __add__(self, other: SlotCounts) -> SlotCounts:
        """Add the counts of other slots."""
        if self.entity_types != other.entity_types:
            raise ValueError(f"counts of unlike graphs do not add: {self.entity_types} and {other.entity_types}")
        return SlotCounts(
            self.edges_2R + other.edges_2R,
            self.keys_2R + other.keys_2R,
            [one + of_other for one, of_other in zip(self.counted, other.counted, strict=True)],
            self.entity_types,
        )

    def relation_frequency(self) -> np.ndarray:
        """Return the number of training edges of each relation, int64 (R,)."""
        return np.asarray(self.edges_2R[Side.LHS.value])

    def cardinality_classes(self) -> np.ndarray:
        """Return the cardinality of each relation, an index in `CARDINALITIES`, int64 (R,).

        LibKGE's rule: more than 1.5 edges for each (relation, lhs) make an N on the right, more than 1.5 for each
        (relation, rhs) an M on the left.
        """
        is_many_2R = 2 * self.edges_2R > 3 * self.keys_2R
        return np.where(
            self.relation_frequency() > 0, 1 + is_many_2R[Side.LHS.value] + 2 * is_many_2R[Side.RHS.value], 0
        )

    def entity_frequency(self, side: Side, numbers: np.ndarray) -> np.ndarray:
        """Return how often each evaluated entity stands at a side of a training edge, int64."""
        return self.counted[2 + side.value].of(numbers)

    def degrees(self, first: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the evaluated entities from `first` to `stop` that training edges touch, and how often, int64."""
        left, right = (of.select(slice(*np.searchsorted(of.keys, [first, stop]))) for of in self.counted[2:])
        both = left + right
        return both.keys, both.counts

    def entity_limits(self, side: Side, entity_type: str) -> np.ndarray:
        """Return the limits of the classes of a type's entities by their frequency at a side."""
        histogram = self.counted[side.value]
        first = self.entity_types.index(entity_type) << _FREQUENCY_BITS
        of_type = slice(*np.searchsorted(histogram.keys, [first, first + (1 << _FREQUENCY_BITS)]))
        return class_limits(CodeCounts(histogram.keys[of_type] - first, histogram.sums[of_type]))


# Four classes of items by how often they occur in training, and one for those that never do.
#
# All items, those that never occur too, are ordered by frequency and cut in four quarters, as LibKGE does. Unlike
# there, items of one frequency all fall in the quarter of the first of them, so that the class follows from the
# frequency alone, and those that never occur are a class of their own.


def class_limits(frequencies: CodeCounts) -> np.ndarray:
    """Return from which frequency on an item is in the second, third, fourth quarter, int64 (3,).

    Args:
        frequencies: how many items have each frequency, 0 included.
    """
    num_below = np.cumsum(frequencies.counts) - frequencies.counts  # items that occur less often
    first = np.searchsorted(num_below, frequencies.counts.sum() * np.arange(1, 4) // 4)
    # The last is of a quarter that is empty because the one before reaches over it.
    return np.asarray(np.append(frequencies.keys, np.iinfo(np.int64).max)[first])


def frequency_classes(limits: np.ndarray, frequencies: np.ndarray) -> np.ndarray:
    """Return the class of each item by its frequency, an index in `FREQUENCY_CLASSES`, int64."""
    return np.where(frequencies > 0, 1 + np.searchsorted(limits, frequencies, "right"), 0)


def _types_of(numbering: EntityNumbering) -> tuple[str, ...]:
    return tuple(sorted({entity_type for entity_type, _ in numbering.slots}))
