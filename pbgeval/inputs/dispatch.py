"""Work units, the partitions that they need and what they cost -> stripes, which workers draw.

A *stripe* is a part of the walk over all buckets of about one worker's share of the cost, so a worker that
goes through one loads few partitions. What is begun last must not last long: units so large that they must begin early
are handed out one by one before all stripes, and where a worker has few units, small ones are left for the end; both
by falling cost. For the same reason a stripe ends with its smaller units, as far as that costs no loads.

Every worker makes the same plan from the same units.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from math import gcd, isqrt
from typing import NamedTuple

import numpy as np
from attrs import define, field, frozen

from pbgeval.cluster.liveness import Counters
from pbgeval.notation import Bucket, WorkUnit

# The partitions needed next -> which of those in memory to keep, and how many must be loaded.
#
# A worker has room for some partitions and drops the one that it needs again last, or never: no other rule loads fewer.

Partition = Hashable
Partitions = frozenset[Partition]


@define
class Uses:
    """Where in a sequence of needs each partition is needed."""

    _positions: dict[Partition, list[int]] = field(factory=dict, init=False)

    @classmethod
    def from_needs(cls, needs: Iterable[Partitions]) -> Uses:
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
    if excess <= 0:
        return
    droppable = held - needed
    if excess < len(droppable):
        # By name among equals, so that all workers and runs do the same.
        by_use = sorted(droppable, key=lambda of: (uses.next_use(of, position), repr(of)), reverse=True)
        droppable = set(by_use[:excess])
    held -= droppable


def num_loads(needs: Sequence[Partitions], room: int) -> int:
    """Count the partitions loaded by a worker that goes through a sequence with room for so many, or for one step."""
    uses = Uses.from_needs(needs)
    loads = 0
    held: set[Partition] = set()
    for position, needed in enumerate(needs):
        if needed <= held and len(held) <= room:
            continue
        evict(held, needed, room, uses, position)
        loads += len(needed - held)
        held |= needed
    return loads


# Buckets and the partitions that each needs -> an order that loads few partitions.
#
# A worker with room for c partitions keeps c - 1 of them, a *band*, while all others pass through the last place, a
# *step* each; the last to pass begins the next band. Three such walks and that of the files are compared by the loads
# that they cause, and the best is taken. With c = 2, on four partitions:
#
#     triangle (lhs and rhs of one type)     rows              columns
#         band 0:  (0,0) (0,1) (1,0)         (0,0) (0,1) ...   the same, transposed
#                  (0,2) (2,0) (0,3) (3,0)   (1,3) (1,2) ...
#         band 3:  (3,3) (2,3) (3,2) (1,3) (3,1)
#         band 1:  (1,1) (1,2) (2,1)
#         band 2:  (2,2)
#
# P partitions of one type cost about P² / (2 (c - 1)) loads. Any order gives the same numbers.

Needs = Callable[[Bucket], Partitions]
Step = list[Bucket]  # buckets between the band and one more partition
Band = list[Step]


def best_order(buckets: Iterable[Bucket], needs: Needs) -> list[Bucket]:
    """Return the buckets in the order that loads the fewest partitions when only those in hand are held."""
    return [bucket for band in best_walk(buckets, needs) for step in band for bucket in step]


def best_walk(buckets: Iterable[Bucket], needs: Needs, room: int = 0, width: int | None = None) -> list[Band]:
    """Return the walk over all buckets that loads the fewest partitions.

    Args:
        buckets: those that exist.
        needs: the partitions of a bucket.
        room: for how many partitions a worker has memory; 0 for those of the bucket in hand, however many.
        width: partitions of a band, if other than the room less one.
    """
    existing = sorted(buckets)
    width = max(room - 1, 1) if width is None else width
    needs_of = {bucket: needs(bucket) for bucket in existing}.__getitem__
    walks = [_triangle(existing, width), _rows(existing, width), _columns(existing, width), [[[b]] for b in existing]]
    return min(walks, key=lambda walk: num_loads([needs_of(b) for band in walk for step in band for b in step], room))


def _triangle(buckets: list[Bucket], width: int) -> list[Band]:
    """Take bands from both ends of the partitions left, in turn: each begins where the last one's steps ended."""
    existing = set(buckets)
    left = sorted({partition for bucket in buckets for partition in bucket})
    walk, from_end = [], False
    while left:
        if from_end:
            left.reverse()
        band, left = left[:width], left[width:]
        # A partition of the band meets those before it, and itself; the others meet the whole band.
        steps = [_pairs(existing, band[: place + 1], partition) for place, partition in enumerate(band)]
        steps += [_pairs(existing, band, partition) for partition in left]
        walk.append([step for step in steps if step])
        left.sort()
        from_end = not from_end
    return walk


def _pairs(existing: set[Bucket], band: list[int], partition: int) -> Step:
    """Return the buckets between one partition and each of a band, both ways."""
    pairs = [bucket for kept in band for bucket in (Bucket(kept, partition), Bucket(partition, kept))]
    return [bucket for bucket in dict.fromkeys(pairs) if bucket in existing]


def _rows(buckets: list[Bucket], width: int) -> list[Band]:
    """Keep `width` left partitions while the right ones pass, up and down in turn."""
    of_pair = dict.fromkeys(buckets)
    rows = sorted({bucket.lhs for bucket in buckets})
    columns = sorted({bucket.rhs for bucket in buckets})
    walk = []
    for first in range(0, len(rows), width):
        band = rows[first : first + width]
        steps = [[Bucket(lhs, rhs) for lhs in band if Bucket(lhs, rhs) in of_pair] for rhs in columns]
        walk.append([step for step in steps if step])
        columns.reverse()
    return walk


def _columns(buckets: list[Bucket], width: int) -> list[Band]:
    mirrored = _rows(sorted(Bucket(bucket.rhs, bucket.lhs) for bucket in buckets), width)
    return [[[Bucket(bucket.rhs, bucket.lhs) for bucket in step] for step in band] for band in mirrored]


Cost = Callable[[WorkUnit], float]

LATE_SHARE = 0.04  # of a worker's share of all work: a unit larger than this, begun last, would make the end ragged
LARGE_SHARE = 0.125  # where most units are: what is larger than this begins first, and small ones fill the end,
SMALL_FACTOR = 0.75  # of so many usual units per worker in all
CHEAP_LOAD = 0.1  # of a mean unit: where loading costs more, only stripes are handed out, and units larger than
LARGE_SHARE_OF_STRIPES = 0.5  # of a share: a unit out of its place in the walk loads all that it needs
USUAL = 0.95  # the quantile of the cost that is called usual


class Stripe(NamedTuple):
    """Consecutive units of a plan that one worker draws, and others when they have nothing left."""

    start: int  # index of the first unit
    stop: int  # one past the last


@frozen(eq=False)
class DispatchPlan:
    """All units in the order in which they are handed out."""

    units: tuple[WorkUnit, ...]  # large ones, then the stripes one after the other, then small ones
    num_large: int  # handed out first, one by one
    num_small: int  # handed out last, one by one
    stripes: tuple[Stripe, ...]
    needs: tuple[Partitions, ...]  # of each unit
    cost_before: np.ndarray  # float64 (units + 1): of all units before each
    load_cost: float = 0.0  # of a partition, in the unit of the units' cost

    @property
    def first_small(self) -> int:
        """The index of the first unit after all stripes."""
        return len(self.units) - self.num_small


class _Placed(NamedTuple):
    unit: WorkUnit
    cost: float
    band: int  # of the walk
    step: int  # within the band


def make_dispatch_plan(
    units: Sequence[WorkUnit],
    needs: Needs,
    team_size: int,
    *,
    room: int = 2,
    cost: Cost | None = None,
    load_cost: float = 0.0,
) -> DispatchPlan:
    """Plan the dispatch of the units that are left to do.

    Args:
        units: in any order; those of one bucket keep theirs.
        needs: the partitions of a bucket, taken to be of about equal size.
        team_size: number of workers.
        room: for how many partitions a worker has memory.
        cost: of a unit, in any one measure; its number of edges if None.
        load_cost: of loading a partition, in the same measure.
    """
    cost_of = cost or (lambda unit: float(unit.num_edges))
    buckets = {unit.bucket for unit in units}
    walk = _walk(buckets, needs, team_size, room)
    of_bucket = groupby(sorted(units, key=lambda unit: unit.bucket), key=lambda unit: unit.bucket)
    units_of = {bucket: list(its) for bucket, its in of_bucket}
    placed = [_Placed(unit, cost_of(unit), *walk[bucket]) for bucket in walk for unit in units_of[bucket]]
    large, rest, small = _by_size(placed, team_size, load_cost)
    parts = [rest] if team_size == 1 else [_small_last(part) for part in _equal_parts(rest, team_size)]
    parts = sorted((part for part in parts if part), key=lambda part: -sum(entry.cost for entry in part))
    ordered = large + [entry for part in parts for entry in part] + small
    stops = np.cumsum([len(large), *(len(part) for part in parts)], dtype=np.int64).tolist()
    needs_of = {bucket: needs(bucket) for bucket in buckets}
    return DispatchPlan(
        units=tuple(entry.unit for entry in ordered),
        num_large=len(large),
        num_small=len(small),
        stripes=tuple(Stripe(start, stop) for start, stop in pairwise(stops)),
        needs=tuple(needs_of[entry.unit.bucket] for entry in ordered),
        cost_before=np.cumsum([0.0, *(entry.cost for entry in ordered)]),
        load_cost=load_cost,
    )


def _walk(buckets: set[Bucket], needs: Needs, team_size: int, room: int) -> dict[Bucket, tuple[int, int]]:
    """Return (band, step) of each bucket, in the order of the walk.

    A stripe of n pairs of partitions needs the fewest when it is about as wide as long: a band wider than sqrt(n) would
    be loaded for too few steps.
    """
    pairs_of_stripe = len(buckets) // (2 * team_size)
    width = max(min(room - 1, isqrt(pairs_of_stripe)), 1)
    walk = best_walk(buckets, needs, room, width)
    return {
        bucket: (band_number, step_number)
        for band_number, band in enumerate(walk)
        for step_number, step in enumerate(band)
        for bucket in step
    }


def _by_size(
    placed: list[_Placed], team_size: int, load_cost: float
) -> tuple[list[_Placed], list[_Placed], list[_Placed]]:
    """Return (units handed out first, units of stripes, units handed out last); the first and last by falling cost."""
    if team_size == 1 or not placed:
        return [], placed, []
    mean = sum(entry.cost for entry in placed) / len(placed)
    share = mean * len(placed) / team_size
    is_cheap = load_cost <= CHEAP_LOAD * mean
    is_coarse = _usual(placed) > LATE_SHARE * share
    limit = share * ((LARGE_SHARE if is_coarse else LATE_SHARE) if is_cheap else LARGE_SHARE_OF_STRIPES)
    large = sorted((entry for entry in placed if entry.cost > limit), key=lambda entry: -entry.cost)
    rest = [entry for entry in placed if entry.cost <= limit]
    if not (is_cheap and is_coarse and rest):
        return large, rest, []
    by_cost = sorted(range(len(rest)), key=lambda number: rest[number].cost)
    cost_until = np.cumsum([rest[number].cost for number in by_cost])
    small = by_cost[: int(np.searchsorted(cost_until, SMALL_FACTOR * _usual(rest) * team_size))]
    is_small = set(small)
    others = [entry for number, entry in enumerate(rest) if number not in is_small]
    return large, others, [rest[number] for number in reversed(small)]


def _usual(placed: list[_Placed]) -> float:
    return float(np.quantile([entry.cost for entry in placed], USUAL))


def _equal_parts(placed: list[_Placed], num_parts: int) -> list[list[_Placed]]:
    """Cut the walk in parts of about equal cost; a unit is in the part in which its middle lies."""
    total = sum(entry.cost for entry in placed)
    parts: list[list[_Placed]] = [[] for _ in range(num_parts)]
    before = 0.0
    for entry in placed:
        middle = (before + entry.cost / 2) / total if total > 0 else 0.0
        parts[min(int(middle * num_parts), num_parts - 1)].append(entry)
        before += entry.cost
    return parts


def _small_last(part: list[_Placed]) -> list[_Placed]:
    """Order the steps of the last band by falling cost, and so the units of the last step: partitions stay loaded."""
    if not part:
        return part
    last_band = part[-1].band
    steps = [
        list(step)
        for _, step in groupby((entry for entry in part if entry.band == last_band), key=lambda entry: entry.step)
    ]
    steps.sort(key=lambda step: -sum(entry.cost for entry in step))
    steps[-1].sort(key=lambda entry: -entry.cost)
    return [entry for entry in part if entry.band != last_band] + [entry for step in steps for entry in step]


# Ordered work units -> a consecutive share for each worker, of nearly equal numbers of edges.


def share_of_worker(units: Sequence[WorkUnit], rank_in_team: int, team_size: int) -> list[WorkUnit]:
    """Return the units of one worker. Every unit belongs to exactly one worker; order is kept.

    A unit goes to the worker in whose equal part of all edges its middle lies.
    """
    total = sum(unit.num_edges for unit in units)
    share, before = [], 0
    for unit in units:
        owner = min((2 * before + unit.num_edges) * team_size // (2 * max(total, 1)), team_size - 1)
        before += unit.num_edges
        if owner == rank_in_team:
            share.append(unit)
    return share


# A plan and counters that all workers share -> the units of one worker, and the partitions that it holds.
#
#     large units, then whole stripes      one counter, `next`
#     units of a stripe                    a counter of the stripe; the worker that draws from it has the unit
#     small units, after all stripes       one counter, `small`
#
# A worker whose stripe is used up claims another; when all have been begun, it joins one with much left, if that is
# worth the loads that this takes, and at last claims small units. Whoever began a stripe goes on until it is used up.
# There are no locks: the worker that claims a unit has it, so each unit is handed out once, whatever the timing.

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
            left = float(self.plan.cost_before[stripe.stop] - self.plan.cost_before[min(index, stripe.stop)])
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
