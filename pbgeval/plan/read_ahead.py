"""A worker's units as it draws them -> which partitions it loads, keeps, drops and reads ahead.

A worker has room for some partitions, and one place more: there it reads, while it computes, the next partition that
the rest of its stripe needs. Pure bookkeeping, nothing is read here.
"""

from __future__ import annotations

from bisect import bisect_right

from attrs import define, field

from pbgeval.plan.dispatch import DispatchPlan
from pbgeval.plan.holding import Partition, Uses, make_room
from pbgeval.plan.unit_queue import UnitQueue


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
