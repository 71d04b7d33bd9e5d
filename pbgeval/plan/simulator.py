"""A plan of dispatch, workers and their speeds -> how long it takes, what is loaded, and what bounds it from below.

Simulated workers draw from the same `UnitQueue` as real ones. Each computes one unit at a time and, meanwhile, reads
the next partition that the rest of its stripe needs into one place more than it has room for. A worker reads one
partition at a time; a file system that all share serves reads in the order in which they are asked for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heappush

from attrs import define, field, frozen

from pbgeval.notation import WorkUnit
from pbgeval.plan.bounds import Bounds, lower_bounds
from pbgeval.plan.counters import LocalCounter
from pbgeval.plan.dispatch import DispatchPlan
from pbgeval.plan.holding import Partition, Uses, make_room
from pbgeval.plan.unit_queue import UnitQueue


@frozen
class Machines:
    """The workers, and what they read with."""

    speeds: tuple[float, ...]  # of each worker: work per second
    room: int  # for how many partitions a worker has memory, the place for reading ahead not counted
    bytes_per_second: float  # that a worker reads at most
    shared_bytes_per_second: float = float("inf")  # that all read together at most


@frozen
class Simulation:
    """What would happen."""

    seconds: float  # until the last unit is done
    num_loads: int
    bytes_read: float
    busy_shares: tuple[float, ...]  # of each worker: of that time, what it computed
    num_calls: int  # of shared counters
    bounds: Bounds

    @property
    def ratio(self) -> float:
        """The time over the largest lower bound."""
        return self.seconds / self.bounds.seconds


def simulate(
    plan: DispatchPlan,
    machines: Machines,
    work: Mapping[WorkUnit, float],
    bytes_of: Callable[[Partition], float],
) -> Simulation:
    """Run a plan of at least one unit on simulated workers.

    Args:
        plan: made for as many workers, from estimates of the cost.
        machines: the workers.
        work: what each unit really takes, in the unit of the speeds.
        bytes_of: the size of a partition.
    """
    work_of = [work[unit] for unit in plan.units]
    reader = _Reader(machines, bytes_of)
    counter = LocalCounter()
    stripes = _Stripes(plan)
    workers = [
        _Worker(UnitQueue(plan, counter, number), machines, stripes, reader) for number in range(len(machines.speeds))
    ]
    # (when, worker, unit that it has and can begin; -1: it draws one)
    events = [(0.0, number, -1) for number in range(len(workers))]
    heapify(events)
    end = 0.0
    while events:
        now, number, index = heappop(events)
        worker = workers[number]
        if index < 0:
            drawn = worker.queue.draw()
            if drawn is not None:
                heappush(events, (worker.load(drawn, now), number, drawn))
            continue
        worker.read_ahead(index, now)
        seconds = work_of[index] / machines.speeds[number]
        worker.busy_seconds += seconds
        end = max(end, now + seconds)
        heappush(events, (now + seconds, number, -1))
    smallest = min(bytes_of(partition) for needed in set(plan.needs) for partition in needed)
    bounds = lower_bounds(
        work_of,
        plan.needs,
        machines.speeds,
        machines.room,
        smallest / machines.bytes_per_second,
        smallest / machines.shared_bytes_per_second,
    )
    return Simulation(
        seconds=end,
        num_loads=reader.num_loads,
        bytes_read=reader.bytes_read,
        busy_shares=tuple(worker.busy_seconds / end for worker in workers),
        num_calls=counter.num_calls,
        bounds=bounds,
    )


@define(eq=False)
class _Reader:
    """Reads partitions for all workers."""

    machines: Machines
    bytes_of: Callable[[Partition], float]
    num_loads: int = field(default=0, init=False)
    bytes_read: float = field(default=0.0, init=False)
    _shared_free: float = field(default=0.0, init=False)  # when the shared file system has served all reads

    def read(self, partition: Partition, now: float, worker_free: float) -> float:
        """Return when a partition asked for now is in memory; `worker_free`: when the worker's last read ends."""
        size = self.bytes_of(partition)
        self.num_loads += 1
        self.bytes_read += size
        self._shared_free = max(self._shared_free, now) + size / self.machines.shared_bytes_per_second
        return max(max(now, worker_free) + size / self.machines.bytes_per_second, self._shared_free)


@define(eq=False)
class _Stripes:
    """Where in each stripe its partitions are needed."""

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
class _Worker:
    """One simulated worker: what it holds and reads."""

    queue: UnitQueue
    machines: Machines
    stripes: _Stripes
    reader: _Reader
    busy_seconds: float = field(default=0.0, init=False)
    _held: set[Partition] = field(factory=set, init=False)  # without the one read ahead
    _ahead: Partition | None = field(default=None, init=False)
    _ahead_ready: float = field(default=0.0, init=False)  # when it is in memory
    _free: float = field(default=0.0, init=False)  # when the last read ends
    _complete_until: int = field(default=0, init=False)  # units of the stripe that need nothing more than is held

    def load(self, index: int, now: float) -> float:
        """Load what a unit needs and is not in memory; return when all is there."""
        needed = self.queue.plan.needs[index]
        ready = now
        if needed <= self._held:
            return ready
        uses, place = self.stripes.place_of(index)
        if self._ahead is not None and (self._ahead in needed or uses.next_use(self._ahead, place) == float("inf")):
            make_room(self._held, needed | {self._ahead}, self.machines.room, uses, place)
            self._held.add(self._ahead)
            ready = max(ready, self._ahead_ready) if self._ahead in needed else ready
            self._ahead = None
        make_room(self._held, needed, self.machines.room, uses, place)
        for partition in sorted(needed - self._held, key=repr):
            self._held.add(partition)
            self._free = self.reader.read(partition, now, self._free)
            ready = max(ready, self._free)
        self._complete_until = 0
        return ready

    def read_ahead(self, index: int, now: float) -> None:
        """Begin to read the next partition that this worker's stripe will need."""
        upcoming = self.queue.upcoming()
        if self._ahead is not None or not upcoming:
            return
        for later in range(max(upcoming.start, self._complete_until), upcoming.stop):
            missing = self.queue.plan.needs[later] - self._held
            if missing:
                self._ahead = min(missing, key=repr)
                self._free = self._ahead_ready = self.reader.read(self._ahead, now, self._free)
                return
        self._complete_until = upcoming.stop
