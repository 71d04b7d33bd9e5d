"""A plan of dispatch and counters that all workers share -> the units of one worker, drawn one at a time.

    large units, then whole stripes      one counter, `next`
    units of a stripe                    a counter of the stripe; whoever draws from it has the unit
    small units, after all stripes       one counter, `small`
    stripes that are used up             a counter per block of stripes, and one for the blocks

A worker whose stripe is used up draws another; when all have been begun, it joins one with much left, if that is
worth the loads that this takes, and at last draws small units. Whoever began a stripe goes on until it is used up.
Nothing is locked and nobody waits: a unit is whose draw it was, so it is handed out once, whatever the timing.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isqrt

from attrs import define, field

from pbgeval.notation import WorkUnit
from pbgeval.plan.counters import Counter
from pbgeval.plan.dispatch import DispatchPlan
from pbgeval.plan.holding import Partitions

MOST_LOOKS_IN_VAIN = 12  # at stripes with too little left; then a worker no longer joins others
WORTH_JOINING = 0.5  # of the cost of the loads that joining takes: where no more is left, helping would be too late
STRIPES_COMPARED = 2  # of those that have something left, before a worker joins one


@define(eq=False)
class UnitQueue:
    """One worker's view of the queue; iterate to draw."""

    plan: DispatchPlan
    counter: Counter
    rank_in_team: int
    prefix: str = "units"  # of the names of counters: of its own wherever the plan is not the same
    _stripe: int | None = field(default=None, init=False)  # which this worker draws from
    _last: int | None = field(default=None, init=False)  # index of the unit drawn last
    _all_begun: bool = field(default=False, init=False)
    _used_up: set[int] = field(factory=set, init=False)  # stripes, as far as known here
    _blocks_used_up: set[int] = field(factory=set, init=False)
    _num_in_vain: int = field(default=0, init=False)  # looks at stripes not worth joining

    def __iter__(self) -> Iterator[WorkUnit]:
        while (index := self.draw()) is not None:
            yield self.plan.units[index]

    def draw(self) -> int | None:
        """Draw a unit; return its index in the plan, None when all units have been handed out."""
        index = self._draw()
        if index is not None:
            self._last = index
        return index

    def _draw(self) -> int | None:
        while True:
            if self._stripe is None and not self._all_begun:
                position = self.counter.add(f"{self.prefix}/next", 1) - 1
                if position < self.plan.num_large:
                    return position
                if position < self.plan.num_large + len(self.plan.stripes):
                    self._stripe = position - self.plan.num_large
                else:
                    self._all_begun = True
            if self._stripe is None:
                self._stripe = self._stripe_to_join()
            if self._stripe is None:
                return self._draw_small()
            index = self._draw_from(self._stripe)
            if index is not None:
                return index

    def upcoming(self) -> range:
        """Return the units that this worker draws next if nobody else draws from its stripe; empty if not known."""
        if self._stripe is None or self._last is None:
            return range(0)
        return range(self._last + 1, self.plan.stripes[self._stripe].stop)

    def _draw_from(self, number: int) -> int | None:
        """Draw a unit of a stripe, None if it is used up; leave a stripe of which nothing is left."""
        stripe = self.plan.stripes[number]
        index = stripe.start + self.counter.add(self._name_of(number), 1) - 1
        if index >= stripe.stop - 1:
            self._stripe = None
            self._used_up.add(number)
        if index == stripe.stop - 1:
            block = number // self._block_size
            if self.counter.add(f"{self.prefix}/block/{block}", 1) == self._stripes_in(block):
                self.counter.add(f"{self.prefix}/blocks", 1)
        return index if index < stripe.stop else None

    def _draw_small(self) -> int | None:
        index = self.plan.first_small + self.counter.add(f"{self.prefix}/small", 1) - 1
        return index if index < len(self.plan.units) else None

    def _stripe_to_join(self) -> int | None:
        """Return a stripe that others have begun and not used up, None if there is none.

        Workers begin to look in different places, and look away from what they know to be used up.
        """
        if self._num_in_vain == MOST_LOOKS_IN_VAIN or self.counter.add(f"{self.prefix}/blocks", 0) == self._num_blocks:
            return None
        for turn in range(self._num_blocks):
            block = (self.rank_in_team // self._block_size + turn) % self._num_blocks
            if self._num_in_vain == MOST_LOOKS_IN_VAIN:
                return None
            if block in self._blocks_used_up:
                continue
            if self.counter.add(f"{self.prefix}/block/{block}", 0) < self._stripes_in(block):
                stripe = self._best_of_block(block)
                if stripe is not None:
                    return stripe
            self._blocks_used_up.add(block)
        return None

    def _best_of_block(self, block: int) -> int | None:
        """Return the stripe with most left among some of a block; one whose partitions are held counts twice."""
        size = self._stripes_in(block)
        held: Partitions = frozenset() if self._last is None else self.plan.needs[self._last]
        best, best_left, num_compared = None, 0.0, 0
        for turn in range(size):
            number = block * self._block_size + (self.rank_in_team + turn) % size
            if number in self._used_up:
                continue
            if self._num_in_vain == MOST_LOOKS_IN_VAIN:
                break
            stripe = self.plan.stripes[number]
            index = stripe.start + self.counter.add(self._name_of(number), 0)
            left = self.plan.cost_between(index, stripe.stop)
            # Where little more is left than the loads take, who began it is done before the partitions are here.
            if index >= stripe.stop or left <= WORTH_JOINING * self.plan.load_cost * len(self.plan.needs[index] - held):
                self._num_in_vain += 1
                self._used_up.add(number)
                continue
            left *= 2 if held & self.plan.needs[index] else 1
            if best is None or left > best_left:
                best, best_left = number, left
            num_compared += 1
            if num_compared == STRIPES_COMPARED:
                break
        return best

    def _name_of(self, stripe: int) -> str:
        return f"{self.prefix}/stripe/{stripe}"

    @property
    def _block_size(self) -> int:
        return max(isqrt(len(self.plan.stripes)), 1)

    @property
    def _num_blocks(self) -> int:
        return -(-len(self.plan.stripes) // self._block_size)

    def _stripes_in(self, block: int) -> int:
        return min(self._block_size, len(self.plan.stripes) - block * self._block_size)
