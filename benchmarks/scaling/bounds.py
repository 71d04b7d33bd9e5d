"""Units, workers and reading speeds -> times and loads below which no order of the work can come.

A worker with room for c partitions covers at most c (c - 1) / 2 pairs of them with its first c loads (c² / 4 where the
pairs are between two types), and c - 1 with each further load.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import frozen

from pbgeval.inputs.dispatch import Partition, Partitions


@frozen
class Bounds:
    """What no plan can beat."""

    work_seconds: float  # all work, at the speed of all workers
    largest_seconds: float  # the largest unit, on the fastest worker
    reading_seconds: float  # the loads of the worker with the fewest pairs that is possible, or all through one system
    num_loads: int  # by one worker for all pairs; more workers need more together
    num_loads_shared: int  # by all workers together where each covers an equal number of pairs

    @property
    def seconds(self) -> float:
        """The largest of the bounds on time."""
        return max(self.work_seconds, self.largest_seconds, self.reading_seconds)


def lower_bounds(
    work: Sequence[float],
    needs: Sequence[Partitions],
    speeds: Sequence[float],
    room: int,
    load_seconds: float,
    shared_load_seconds: float = 0.0,
) -> Bounds:
    """Return the bounds of a plan.

    Args:
        work: of each unit, at least one.
        needs: the partitions of each unit; sets of more than two count only by their partitions.
        speeds: work per second of each worker.
        room: for how many partitions a worker has memory.
        load_seconds: for the smallest partition, by one worker.
        shared_load_seconds: of the time of a file system that all share, for the smallest partition.
    """
    distinct = set(needs)
    partitions = {partition for needed in distinct for partition in needed}
    pairs = [needed for needed in distinct if len(needed) == 2]
    two_sided = _is_bipartite(pairs)
    num_loads = max(min_loads(len(pairs), room, two_sided=two_sided), len(partitions))
    pairs_of_worker, partitions_of_worker = -(-len(pairs) // len(speeds)), -(-len(partitions) // len(speeds))
    loads_of_worker = max(min_loads(pairs_of_worker, room, two_sided=two_sided), partitions_of_worker)
    return Bounds(
        work_seconds=sum(work) / sum(speeds),
        largest_seconds=max(work) / max(speeds),
        reading_seconds=max(loads_of_worker * load_seconds, num_loads * shared_load_seconds),
        num_loads=num_loads,
        num_loads_shared=max(loads_of_worker * min(len(speeds), len(work)), num_loads),
    )


def min_loads(num_pairs: int, room: int, *, two_sided: bool) -> int:
    """Return the fewest loads with which one worker can cover so many pairs of partitions."""
    loads, covered = 0, 0
    while covered < num_pairs and loads < room:
        loads += 1
        covered = loads * loads // 4 if two_sided else loads * (loads - 1) // 2
    left = num_pairs - covered
    return loads + (-(-left // (room - 1)) if left > 0 else 0)


def _is_bipartite(pairs: Iterable[Partitions]) -> bool:
    """Tell whether the partitions fall into two classes with no pair inside either."""
    neighbours: dict[Partition, list[Partition]] = {}
    for pair in pairs:
        one, other = pair
        neighbours.setdefault(one, []).append(other)
        neighbours.setdefault(other, []).append(one)
    class_of: dict[Partition, bool] = {}
    for first in neighbours:
        if first in class_of:
            continue
        class_of[first], waiting = True, [first]
        while waiting:
            partition = waiting.pop()
            for neighbour in neighbours[partition]:
                if neighbour not in class_of:
                    class_of[neighbour] = not class_of[partition]
                    waiting.append(neighbour)
                elif class_of[neighbour] == class_of[partition]:
                    return False
    return True
