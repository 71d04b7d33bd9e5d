"""The partitions needed next -> which of those in memory to keep, and how many must be loaded.

A worker has room for some partitions and drops the one that it needs again last, or never: no other rule loads fewer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Sequence

from attrs import define, field

Partition = Hashable
Partitions = frozenset[Partition]


@define
class Uses:
    """Where in a sequence of needs each partition is needed."""

    _positions: dict[Partition, list[int]] = field(factory=dict, init=False)

    @classmethod
    def of(cls, needs: Iterable[Partitions]) -> Uses:
        """Note every use."""
        uses = cls()
        for position, needed in enumerate(needs):
            for partition in needed:
                uses._positions.setdefault(partition, []).append(position)
        return uses

    def next_use(self, partition: Partition, position: int) -> float:
        """Return the first position from `position` on at which a partition is needed, infinity for none."""
        positions = self._positions.get(partition, [])
        found = bisect_left(positions, position)
        return positions[found] if found < len(positions) else float("inf")


def make_room(held: set[Partition], needed: Partitions, room: int, uses: Uses, position: int) -> None:
    """Drop partitions until what is held and needed fits in the room; what is needed always stays.

    Args:
        held: the partitions in memory; changed in place.
        needed: what is needed at `position`.
        room: for how many partitions there is memory.
        uses: where in the coming sequence they are needed.
        position: the place in that sequence.
    """
    excess = len(held | needed) - room
    if excess <= 0:
        return
    droppable = held - needed
    if excess < len(droppable):
        # By name among equals, so that all workers and runs do the same.
        by_use = sorted(droppable, key=lambda of: (uses.next_use(of, position), repr(of)), reverse=True)
        droppable = set(by_use[:excess])
    held -= droppable


def num_loads_of(needs: Sequence[Partitions], room: int) -> int:
    """Count the partitions loaded by a worker that goes through a sequence with room for so many, or for one step."""
    uses = Uses.of(needs)
    loads = 0
    held: set[Partition] = set()
    for position, needed in enumerate(needs):
        if needed <= held and len(held) <= room:
            continue
        make_room(held, needed, room, uses, position)
        loads += len(needed - held)
        held |= needed
    return loads
