"""A plan of dispatch, workers and their speeds -> how long it takes, what is loaded, and what bounds it from below.

Simulated workers draw from the same `UnitQueue` as real ones. Each computes one unit at a time and, meanwhile, reads
the next partition that the rest of its stripe needs into one place more than it has room for. A worker reads one
partition at a time; a file system that all share serves reads in the order in which they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heappush

from attrs import define, field, frozen

from benchmarks.scaling.bounds import Bounds, lower_bounds
from benchmarks.scaling.local_counter import LocalCounter
from pbgeval.inputs.dispatch import DispatchPlan, Partition, PartitionCache, UnitQueue
from pbgeval.notation import WorkUnit


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
    queues = [UnitQueue(plan, counter, number) for number in range(len(machines.speeds))]
    workers = [_Worker(queue, machines, PartitionCache(queue, machines.room), reader) for queue in queues]
    # (when, worker, unit that it has and can begin; -1: it draws one)
    events = [(0.0, number, -1) for number in range(len(workers))]
    heapify(events)
    end = 0.0
    while events:
        now, number, index = heappop(events)
        worker = workers[number]
        if index < 0:
            drawn = worker.queue.claim_next()
            if drawn is not None:
                heappush(events, (worker.load(drawn, now), number, drawn))
            continue
        worker.read_ahead(now)
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
class _Worker:
    """One simulated worker: what it holds and reads."""

    queue: UnitQueue
    machines: Machines
    holding: PartitionCache
    reader: _Reader
    busy_seconds: float = field(default=0.0, init=False)
    _ahead_ready: float = field(default=0.0, init=False)  # when what is read ahead is in memory
    _free: float = field(default=0.0, init=False)  # when the last read ends

    def load(self, index: int, now: float) -> float:
        """Load what a unit needs and is not in memory; return when all is there."""
        waiting = self.holding.ahead
        missing = self.holding.enter(index)
        taken_over = waiting is not None and self.holding.ahead is None and waiting in self.queue.plan.needs[index]
        ready = max(now, self._ahead_ready) if taken_over else now
        for partition in missing:
            self._free = self.reader.read(partition, now, self._free)
            ready = max(ready, self._free)
        return ready

    def read_ahead(self, now: float) -> None:
        """Begin to read the next partition that this worker's stripe will need."""
        partition = self.holding.read_ahead()
        if partition is not None:
            self._free = self._ahead_ready = self.reader.read(partition, now, self._free)
