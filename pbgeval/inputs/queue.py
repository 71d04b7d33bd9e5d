"""Named counters that workers share: what the queue needs of a team's store, and one for threads of a process."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from math import isqrt
from threading import Lock
from typing import Protocol

from attrs import define, field

from pbgeval.inputs.dispatch import DispatchPlan, Partition, Partitions, Uses, make_room
from pbgeval.notation import WorkUnit


class Counter(Protocol):
    """Counters by name, all zero at first; `Team` is one."""

    def add(self, counter: str, amount: int, /) -> int:
        """Add at once for all workers, and return the new value."""


@define(eq=False)
class LocalCounter:
    """Counters of one process, safe for its threads."""

    num_calls: int = field(default=0, init=False)
    _values: dict[str, int] = field(factory=dict, init=False)
    _lock: Lock = field(factory=Lock, init=False, repr=False)

    def add(self, counter: str, amount: int, /) -> int:
        """Add at once for all threads, and return the new value."""
        with self._lock:
            self.num_calls += 1
            self._values[counter] = self._values.get(counter, 0) + amount
            return self._values[counter]


# A plan of dispatch and counters that all workers share -> the units of one worker, drawn one at a time.
#
#     large units, then whole stripes      one counter, `next`
#     units of a stripe                    a counter of the stripe; whoever draws from it has the unit
#     small units, after all stripes       one counter, `small`
#     stripes that are used up             a counter per block of stripes, and one for the blocks
#
# A worker whose stripe is used up draws another; when all have been begun, it joins one with much left, if that is
# worth the loads that this takes, and at last draws small units. Whoever began a stripe goes on until it is used up.
# Nothing is locked and nobody waits: a unit is whose draw it was, so it is handed out once, whatever the timing.

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


# A worker's units as it draws them -> which partitions it loads, keeps, drops and reads ahead.
#
# A worker has room for some partitions, and one place more: there it reads, while it computes, the next partition that
# the rest of its stripe needs. Pure bookkeeping, nothing is read here.


@define(eq=False)
class StripeUses:
    """Where in each stripe of a plan its partitions are needed."""

    plan: DispatchPlan
    _stops: list[int] = field(init=False)
    _uses: dict[int, Uses] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._stops = [stripe.stop for stripe in self.plan.stripes]

    def place_of(self, index: int) -> tuple[Uses, int]:
        """Return the uses of the stripe of a unit, and its place there; one that is in no stripe stands alone."""
        if index < self.plan.num_large or index >= self.plan.first_small:
            return Uses(), 0
        number = bisect_right(self._stops, index)
        start, stop = self.plan.stripes[number]
        if number not in self._uses:
            self._uses[number] = Uses.of(self.plan.needs[start:stop])
        return self._uses[number], index - start


@define(eq=False)
class Holding:
    """The partitions that one worker has in memory."""

    queue: UnitQueue
    stripes: StripeUses
    room: int  # for how many partitions, the place for reading ahead not counted
    held: set[Partition] = field(factory=set, init=False)  # without the one that is read ahead
    ahead: Partition | None = field(default=None, init=False)
    _complete_until: int = field(default=0, init=False)  # units of the stripe that need nothing more than is held

    def enter(self, index: int) -> list[Partition]:
        """Make room for what a unit needs; return what must be loaded before it can begin, in order.

        What was read ahead is held from then on if the unit needs it, or dropped if nothing will.
        """
        needed = self.queue.plan.needs[index]
        if needed <= self.held:
            return []
        uses, place = self.stripes.place_of(index)
        if self.ahead is not None and (self.ahead in needed or uses.next_use(self.ahead, place) == float("inf")):
            make_room(self.held, needed | {self.ahead}, self.room, uses, place)
            self.held.add(self.ahead)
            self.ahead = None
        make_room(self.held, needed, self.room, uses, place)
        missing = sorted(needed - self.held, key=repr)
        self.held.update(missing)
        self._complete_until = 0
        return missing

    def read_ahead(self) -> Partition | None:
        """Return the next partition that this worker's stripe will need, to be read from now on; None if there is none.

        One is read at a time: nothing more until it is held.
        """
        upcoming = self.queue.upcoming()
        if self.ahead is not None or not upcoming:
            return None
        for later in range(max(upcoming.start, self._complete_until), upcoming.stop):
            missing = self.queue.plan.needs[later] - self.held
            if missing:
                self.ahead = min(missing, key=repr)
                return self.ahead
        self._complete_until = upcoming.stop
        return None
