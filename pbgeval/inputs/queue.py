"""A plan of dispatch and counters that all workers share -> the units of one worker, and the partitions it holds.

    large units, then whole stripes      one counter, `next`
    units of a stripe                    a counter of the stripe; the worker that draws from it has the unit
    small units, after all stripes       one counter, `small`

A worker whose stripe is used up claims another; when all have been begun, it joins one with much left, if that is
worth the loads that this takes, and at last claims small units. Whoever began a stripe goes on until it is used up.
There are no locks: the worker that claims a unit has it, so each unit is handed out once, whatever the timing.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from attrs import define, field

from pbgeval.cluster.liveness import Counters
from pbgeval.inputs.dispatch import DispatchPlan, Partition, Partitions, Stripe, Uses, evict
from pbgeval.notation import WorkUnit

POLLS_IN_VAIN = 0.75  # for each unit of a worker, of stripes with too little left; then it no longer joins others
WORTH_JOINING = 0.5  # of the cost of the loads that joining takes: where no more is left, helping would be too late
GOLDEN_RATIO = 0.618
STRIPES_COMPARED = 3  # of those that have something left, before a worker joins one


@define(eq=False)
class UnitQueue:
    """One worker's view of the queue; iterate to claim."""

    plan: DispatchPlan
    counters: Counters
    rank_in_team: int
    prefix: str = "units"  # of the names of counters: of its own wherever the plan is not the same
    _stripe: int | None = field(default=None, init=False)  # which this worker claims from
    _last: int | None = field(default=None, init=False)  # index of the unit claimed last
    _all_begun: bool = field(default=False, init=False)
    _used_up: set[int] = field(factory=set, init=False)  # stripes, as far as known here
    _num_in_vain: int = field(default=0, init=False)  # polls of stripes not worth joining

    def __iter__(self) -> Iterator[WorkUnit]:
        while (index := self.claim_next()) is not None:
            yield self.plan.units[index]

    def claim_next(self) -> int | None:
        """Claim a unit; return its index in the plan, None when all units have been handed out."""
        index = None
        while index is None:
            if self._stripe is None and not self._all_begun:
                position = self._add("next", 1) - 1
                if position < self.plan.num_large:
                    index = position
                    break
                self._stripe = position - self.plan.num_large
                if self._stripe >= len(self.plan.stripes):
                    self._stripe, self._all_begun = None, True
            if self._stripe is None:
                self._stripe = self._stripe_to_join()
            if self._stripe is None:
                index = self.plan.first_small + self._add("small", 1) - 1
                if index >= len(self.plan.units):
                    return None
            else:
                index = self._claim_from(self._stripe)
        self._last = index
        return index

    def upcoming(self) -> range:
        """Return the units that this worker claims next if no other claims from its stripe; empty if not known."""
        if self._stripe is None or self._last is None:
            return range(0)
        return range(self._last + 1, self.plan.stripes[self._stripe].stop)

    def _claim_from(self, number: int) -> int | None:
        """Claim a unit of a stripe, None if it is used up; leave a stripe of which nothing is left."""
        stripe = self.plan.stripes[number]
        index = stripe.start + self._add(f"stripe/{number}", 1) - 1
        if index >= stripe.stop - 1:
            self._stripe = None
            self._used_up.add(number)
        return index if index < stripe.stop else None

    def _stripe_to_join(self) -> int | None:
        """Return a stripe that others have begun and not used up, None if none is worth it.

        It is the one with most left among some; one whose partitions are held counts twice. Workers begin to poll in
        different places.
        """
        held: Partitions = frozenset() if self._last is None else self.plan.needs[self._last]
        best, best_left, num_compared = None, 0.0, 0
        num_stripes = len(self.plan.stripes)
        # From one to the next by about the golden ratio: neighbours are often alike.
        max_in_vain = POLLS_IN_VAIN * len(self.plan.units) / max(num_stripes, 1)
        least = round(GOLDEN_RATIO * num_stripes)
        stride = next(step for step in range(least, least + num_stripes + 2) if gcd(step, num_stripes) == 1)
        for turn in range(num_stripes):
            number = (self.rank_in_team + turn * stride) % num_stripes
            if number in self._used_up:
                continue
            if self._num_in_vain >= max_in_vain or num_compared == STRIPES_COMPARED:
                break
            stripe = self.plan.stripes[number]
            index = stripe.start + self._add(f"stripe/{number}", 0)
            left = self.plan.cost_between(index, stripe.stop)
            # Where the rest takes hardly longer than the loads, the worker that began it finishes first.
            if index >= stripe.stop or left <= WORTH_JOINING * self.plan.load_cost * len(self.plan.needs[index] - held):
                self._num_in_vain += 1
                self._used_up.add(number)
                continue
            left *= 2 if held & self.plan.needs[index] else 1
            if best is None or left > best_left:
                best, best_left = number, left
            num_compared += 1
        return best

    def _add(self, counter: str, amount: int) -> int:
        return self.counters.add(f"{self.prefix}/{counter}", amount)


# A worker's units as it claims them -> which partitions it loads, keeps, drops and reads ahead.
#
# A worker has room for some partitions, and one place more: there it reads, while it computes, the next partition that
# the rest of its stripe needs. Pure bookkeeping, nothing is read here.


@define(eq=False)
class PartitionCache:
    """The partitions that one worker has in memory."""

    queue: UnitQueue
    room: int  # for how many partitions, the place for reading ahead not counted
    held: set[Partition] = field(factory=set, init=False)  # without the one that is read ahead
    ahead: Partition | None = field(default=None, init=False)
    _complete_until: int = field(default=0, init=False)  # units of the stripe that need nothing more than is held
    _uses: dict[Stripe, Uses] = field(factory=dict, init=False)  # where in a stripe its partitions are needed

    def enter(self, index: int) -> list[Partition]:
        """Make room for what a unit needs; return what must be loaded before it can begin, in order.

        What was read ahead is held from then on if the unit needs it, or dropped if nothing will.
        """
        needed = self.queue.plan.needs[index]
        if needed <= self.held:
            return []
        uses, place = self._uses_at(index)
        if self.ahead is not None and (self.ahead in needed or uses.next_use(self.ahead, place) == float("inf")):
            evict(self.held, needed | {self.ahead}, self.room, uses, place)
            self.held.add(self.ahead)
            self.ahead = None
        evict(self.held, needed, self.room, uses, place)
        missing = sorted(needed - self.held, key=repr)
        self.held.update(missing)
        self._complete_until = 0
        return missing

    def _uses_at(self, index: int) -> tuple[Uses, int]:
        """Return the uses of the stripe of a unit, and its place there; one that is in no stripe stands alone."""
        plan = self.queue.plan
        stripe = next((stripe for stripe in plan.stripes if stripe.start <= index < stripe.stop), None)
        if stripe is None:
            return Uses(), 0
        if stripe not in self._uses:
            self._uses[stripe] = Uses.from_needs(plan.needs[stripe.start : stripe.stop])
        return self._uses[stripe], index - stripe.start

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
