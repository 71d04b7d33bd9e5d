"""Work units, the partitions that they need and what they cost -> stripes, which workers draw.

A *stripe* is a part of the walk over all buckets of about one worker's share of the edges, so a worker that goes
through one loads few partitions. What is begun last must not last long, so the largest units are handed out one by one
before all stripes and, where loads are cheap, the smallest ones after them; both by falling size.

Every worker makes the same plan from the same units.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import chain, pairwise, starmap
from math import isqrt

import numpy as np
from attrs import Factory, define, field, frozen

from pbgeval.cluster.liveness import Counters
from pbgeval.notation import Bucket, WorkUnit, grouped

# The partitions needed next -> which of those in memory to keep, and how many must be loaded.
#
# A worker has room for some partitions and drops the one that it needs again last, or never: no other rule loads fewer.

Partition = Hashable
Partitions = frozenset[Partition]


class Uses:
    """Where in a sequence of needs each partition is needed."""

    def __init__(self, needs: Iterable[Partitions] = ()) -> None:
        """Note every use."""
        self._positions: dict[Partition, list[int]] = {}
        for position, needed in enumerate(needs):
            for partition in needed:
                self._positions.setdefault(partition, []).append(position)

    def next_use(self, partition: Partition, position: int) -> float:
        """Return the first position from `position` on at which a partition is needed, infinity for none."""
        positions = self._positions.get(partition, [])
        found = bisect_left(positions, position)
        return positions[found] if found < len(positions) else float("inf")


def evict(held: set[Partition], needed: Partitions, room: int, uses: Uses, position: int) -> None:
    """Drop partitions until what is held and needed fits in the room; what is needed always stays.

    Args:
        held: the partitions in memory; changed in place.
        needed: what is needed at `position`.
        room: for how many partitions there is memory.
        uses: where in the coming sequence they are needed.
        position: the place in that sequence.
    """
    excess = len(held | needed) - room
    if excess > 0:
        droppable = held - needed
        if excess < len(droppable):
            # By name among equals, so that all workers and runs do the same.
            by_use = sorted(droppable, key=lambda of: (uses.next_use(of, position), repr(of)), reverse=True)
            droppable = set(by_use[:excess])
        held -= droppable


def num_loads(needs: Sequence[Partitions], room: int) -> int:
    """Count the partitions loaded by a worker that goes through a sequence with room for so many, or for one step."""
    uses = Uses(needs)
    loads = 0
    held: set[Partition] = set()
    for position, needed in enumerate(needs):
        if not needed <= held or len(held) > room:
            evict(held, needed, room, uses, position)
            loads += len(needed - held)
            held |= needed
    return loads


# Buckets and the partitions that each needs -> an order that loads few partitions.
#
# A worker with room for c partitions keeps c - 1 of them, a *band*, while all others pass through the last place, a
# *step* each; the last to pass begins the next band. Two such walks are compared by the loads that they cause. With
# c = 2, on four partitions:
#
#     triangle (lhs and rhs of one type)     rows
#         band 0:  (0,0) (0,1) (1,0)         (0,0) (0,1) ...
#                  (0,2) (2,0) (0,3) (3,0)   (1,3) (1,2) ...
#         band 3:  (3,3) (2,3) (3,2) (1,3) (3,1)
#         band 1:  (1,1) (1,2) (2,1)
#         band 2:  (2,2)
#
# P partitions of one type cost about P² / (2 (c - 1)) loads. Any order gives the same numbers.

Needs = Callable[[Bucket], Partitions]
Step = list[Bucket]  # buckets between a band and one more partition


def best_walk(buckets: Iterable[Bucket], needs: Needs, room: int = 0, width: int | None = None) -> list[Step]:
    """Return the walk over all buckets that loads the fewest partitions.

    Args:
        buckets: those that exist.
        needs: the partitions of a bucket.
        room: for how many partitions a worker has memory; 0 for those of the bucket in hand, however many.
        width: partitions of a band, if other than the room less one.
    """
    existing = set(buckets)
    width = max(room - 1, 1) if width is None else width
    needs_of = {bucket: needs(bucket) for bucket in existing}
    return min(
        (_triangle(existing, width), _rows(existing, width)),
        key=lambda walk: num_loads([needs_of[bucket] for step in walk for bucket in step], room),
    )


def _triangle(existing: set[Bucket], width: int) -> list[Step]:
    """Take bands from both ends of the partitions left, in turn: each begins where the last one's steps ended."""
    met_by = grouped(pair for bucket in sorted(existing) for pair in (bucket, bucket[::-1]))
    left = deque(sorted(met_by))
    walk: list[Step] = []
    is_upwards = True
    while left:
        take = left.popleft if is_upwards else left.pop
        band = [take() for _ in range(min(width, len(left)))]
        # A partition of the band meets those before it, and itself; the others meet the whole band.
        first = (_pairs(existing, band[: place + 1], partition) for place, partition in enumerate(band))
        others = {other for partition in band for other in met_by[partition]}  # few, where few buckets exist
        if left:
            others = {other for other in others if left[0] <= other <= left[-1]}
        ordered = sorted(others if left else (), reverse=not is_upwards)
        walk += filter(None, (*first, *(_pairs(existing, band, partition) for partition in ordered)))
        is_upwards = not is_upwards
    return walk


def _pairs(existing: set[Bucket], band: list[int], partition: int) -> Step:
    """Return the buckets between one partition and each of a band, both ways."""
    pairs = [bucket for kept in band for bucket in (Bucket(kept, partition), Bucket(partition, kept))]
    return [bucket for bucket in dict.fromkeys(pairs) if bucket in existing]


def _rows(existing: set[Bucket], width: int) -> list[Step]:
    """Keep `width` left partitions while the right ones pass, up and down in turn."""
    columns_of = grouped(sorted(existing))  # the right partitions of each left one
    rows = sorted(columns_of)
    walk: list[Step] = []
    for number, first in enumerate(range(0, len(rows), width)):
        band = rows[first : first + width]
        columns = sorted({column for row in band for column in columns_of[row]}, reverse=number % 2 == 1)
        walk += [[Bucket(lhs, rhs) for lhs in band if Bucket(lhs, rhs) in existing] for rhs in columns]
    return walk


LARGE_SHARE = 0.125  # of a worker's share of all edges: a unit larger than this begins before the stripes, or,
LARGE_SHARE_OF_STRIPES = 0.5  # where a load costs more than a tenth of a mean unit, one larger than this:
CHEAP_LOAD = 0.1  # out of its place in the walk it loads all that it needs
SMALL_SHARE = 0.08  # of all edges: the smallest units, which end the run evenly where loads are cheap


@frozen(eq=False)
class DispatchPlan:
    """All units in the order in which they are handed out."""

    units: tuple[WorkUnit, ...]  # large ones, then the stripes one after the other, then small ones
    num_large: int  # handed out first, one by one
    stripes: tuple[range, ...]  # units that one worker draws, and others when they have nothing left
    needs: tuple[Partitions, ...]  # of each unit
    load_cost: float = 0.0  # of a partition, in edges

    @property
    def first_small(self) -> int:
        """The index of the first unit after all stripes; these, too, are handed out one by one."""
        return self.stripes[-1].stop if self.stripes else self.num_large


def make_dispatch_plan(
    units: Sequence[WorkUnit], needs: Needs, team_size: int, *, room: int = 2, load_cost: float = 0.0
) -> DispatchPlan:
    """Plan the dispatch of the units that are left to do.

    Args:
        units: in any order.
        needs: the partitions of a bucket, taken to be of about equal size.
        team_size: number of workers.
        room: for how many partitions a worker has memory.
        load_cost: of loading a partition, in edges that are evaluated meanwhile.
    """
    buckets = {unit.bucket for unit in units}
    # A stripe of n pairs of partitions needs the fewest when it is about as wide as long: a band wider than sqrt(n)
    # would be loaded for too few steps.
    width = max(min(room - 1, isqrt(len(buckets) // (2 * team_size))), 1)
    place_of = {
        bucket: place for place, bucket in enumerate(chain.from_iterable(best_walk(buckets, needs, room, width)))
    }
    num_edges = sum(unit.num_edges for unit in units)
    is_cheap = load_cost * len(units) <= CHEAP_LOAD * num_edges
    limit = num_edges * (LARGE_SHARE if is_cheap else LARGE_SHARE_OF_STRIPES) / team_size
    by_size = sorted(units, key=lambda unit: (-unit.num_edges, unit)) if team_size > 1 else []
    large = [unit for unit in by_size if unit.num_edges > limit]
    left = num_edges - np.cumsum([unit.num_edges for unit in by_size])
    small = by_size[max(len(large), int((left >= SMALL_SHARE * num_edges).sum())) :] if is_cheap else []
    rest = sorted({*units} - {*large, *small}, key=lambda unit: (place_of[unit.bucket], unit))
    parts = sorted(filter(None, equal_parts(rest, team_size)), key=lambda part: -sum(unit.num_edges for unit in part))
    ordered = [*large, *chain.from_iterable(parts), *small]
    stops = np.cumsum([len(large), *map(len, parts)], dtype=np.int64).tolist()
    needs_of = {bucket: needs(bucket) for bucket in buckets}
    return DispatchPlan(
        units=tuple(ordered),
        num_large=len(large),
        stripes=tuple(starmap(range, pairwise(stops))),
        needs=tuple(needs_of[unit.bucket] for unit in ordered),
        load_cost=load_cost,
    )


def equal_parts(units: Sequence[WorkUnit], num_parts: int) -> list[list[WorkUnit]]:
    """Cut units in consecutive parts of nearly equal numbers of edges; a unit is in the part where its middle lies."""
    total = sum(unit.num_edges for unit in units)
    parts: list[list[WorkUnit]] = [[] for _ in range(num_parts)]
    before = 0
    for unit in units:
        part = (2 * before + unit.num_edges) * num_parts // (2 * max(total, 1))
        parts[min(part, num_parts - 1)].append(unit)
        before += unit.num_edges
    return parts


# A plan and counters that all workers share -> the units of one worker, and the partitions that it holds.
#
#     large units, then whole stripes      one counter, `next`
#     units of a stripe                    a counter of the stripe; the worker that draws from it has the unit
#     small units, after all stripes       one counter, `small`
#
# A worker whose stripe is used up claims another; when all have been begun, it steals from one with much left, if that
# is worth the loads that this takes, and at last claims small units. The worker that began a stripe goes on until
# it is used up.
# There are no locks: the worker that claims a unit has it, so each unit is handed out once, whatever the timing.

MAX_FAILED_POLLS = 0.75  # per unit of a worker: polls of stripes with too little left, after which it steals no more
WORTH_STEALING = 0.5  # of the cost of the loads that stealing takes: where no more is left, helping would be too late
STRIPES_COMPARED = 3  # of those that have something left, before a worker steals from one


@define(eq=False)
class UnitQueue:
    """One worker's view of the queue."""

    plan: DispatchPlan
    counters: Counters
    rank_in_team: int
    prefix: str = "units"  # of the names of counters: of its own wherever the plan is not the same
    _left: Iterator[int] = field(init=False, default=Factory(lambda self: self._claims(), takes_self=True))
    _stripe: range | None = field(default=None, init=False)  # which this worker claims from
    _last: int | None = field(default=None, init=False)  # index of the unit claimed last
    _used_up: set[int] = field(factory=set, init=False)  # stripes, as far as known here
    _num_failed_polls: int = field(default=0, init=False)  # polls of stripes not worth stealing from

    def claim_next(self) -> int | None:
        """Claim a unit; return its index in the plan, None when all units have been handed out."""
        self._last = next(self._left, None)
        return self._last

    def _claims(self) -> Iterator[int]:
        """Claim a unit whenever the next one is asked for."""
        num_stripes = len(self.plan.stripes)
        while (number := self._add("next", 1) - 1 - self.plan.num_large) < num_stripes:
            if number < 0:
                yield number + self.plan.num_large
            else:
                yield from self._claims_of_stripe(number)
        while (stolen := self._find_stripe_to_steal()) is not None:
            yield from self._claims_of_stripe(stolen)
        while (index := self.plan.first_small + self._add("small", 1) - 1) < len(self.plan.units):
            yield index

    def _claims_of_stripe(self, number: int) -> Iterator[int]:
        stripe = self._stripe = self.plan.stripes[number]
        while (index := stripe.start + self._add(f"stripe/{number}", 1) - 1) < stripe.stop:
            yield index
        self._stripe = None
        self._used_up.add(number)

    def upcoming(self) -> range:
        """Return the units that this worker claims next if no other claims from its stripe; empty if not known."""
        return range(0) if self._stripe is None or self._last is None else range(self._last + 1, self._stripe.stop)

    def _find_stripe_to_steal(self) -> int | None:
        """Return a stripe that others have begun and not used up, None if none is worth it.

        It is the one with most left among some; one whose partitions are held counts twice. Workers begin to poll in
        different places.
        """
        held: Partitions = frozenset() if self._last is None else self.plan.needs[self._last]
        left_of: dict[int, float] = {}  # of stripes that are compared
        num_stripes = len(self.plan.stripes)
        max_failed = MAX_FAILED_POLLS * len(self.plan.units) / max(num_stripes, 1)
        for turn in range(num_stripes):
            number = (self.rank_in_team + turn) % num_stripes
            if number in self._used_up:
                continue
            if self._num_failed_polls >= max_failed or len(left_of) == STRIPES_COMPARED:
                break
            stripe = self.plan.stripes[number]
            index = stripe.start + self._add(f"stripe/{number}", 0)
            left = sum(unit.num_edges for unit in self.plan.units[index : stripe.stop])
            # Where the rest takes hardly longer than the loads, the worker that began it finishes first.
            loads = 0 if index >= stripe.stop else len(self.plan.needs[index] - held)
            if index >= stripe.stop or left <= WORTH_STEALING * self.plan.load_cost * loads:
                self._num_failed_polls += 1
                self._used_up.add(number)
            else:
                left_of[number] = left * (2 if held & self.plan.needs[index] else 1)
        return max(left_of, key=left_of.__getitem__, default=None)

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
    _uses: dict[range, Uses] = field(factory=dict, init=False)  # where in a stripe its partitions are needed

    def enter(self, index: int) -> list[Partition]:
        """Make room for what a unit needs; return what must be loaded before it can begin, in order.

        What was read ahead is held from then on if the unit needs it, or dropped if nothing will.
        """
        plan = self.queue.plan
        needed = plan.needs[index]
        if needed <= self.held:
            return []
        stripe = next((stripe for stripe in plan.stripes if index in stripe), range(0))  # of none, nothing follows
        if stripe not in self._uses:
            self._uses[stripe] = Uses(plan.needs[stripe.start : stripe.stop])
        uses = self._uses[stripe]
        place = index - stripe.start
        if self.ahead is not None and (self.ahead in needed or uses.next_use(self.ahead, place) == float("inf")):
            evict(self.held, needed | {self.ahead}, self.room, uses, place)
            self.held.add(self.ahead)
            self.ahead = None
        evict(self.held, needed, self.room, uses, place)
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
            if missing := self.queue.plan.needs[later] - self.held:
                self.ahead = min(missing, key=repr)
                return self.ahead
        self._complete_until = upcoming.stop
        return None
