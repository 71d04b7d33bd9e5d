"""Work units, the partitions that they need and what they cost -> stripes, which workers draw.

A *stripe* is a part of the walk over all buckets (`order.py`) of about one worker's share of the cost, so a worker that
goes through one loads few partitions. What is begun last must not last long: units so large that they must begin early
are handed out one by one before all stripes, and where a worker has few units, small ones are left for the end; both
by falling cost. For the same reason a stripe ends with its smaller units, as far as that costs no loads.

Every worker makes the same plan from the same units.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby, pairwise
from math import isqrt
from typing import NamedTuple

import numpy as np
from attrs import frozen

from pbgeval.notation import Bucket, WorkUnit
from pbgeval.plan.holding import Partitions
from pbgeval.plan.order import Needs, best_walk

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

    def cost_between(self, start: int, stop: int) -> float:
        """Return the cost of units, in the unit of the given costs; 0 where stop is not after start."""
        return float(self.cost_before[stop] - self.cost_before[start]) if start < stop else 0.0


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
    placed = _placed(units, cost_of, _walk(buckets, needs, team_size, room))
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


def _placed(units: Sequence[WorkUnit], cost_of: Cost, walk: dict[Bucket, tuple[int, int]]) -> list[_Placed]:
    of_bucket: dict[Bucket, list[WorkUnit]] = {bucket: [] for bucket in walk}
    for unit in units:
        of_bucket[unit.bucket].append(unit)
    return [_Placed(unit, cost_of(unit), *walk[bucket]) for bucket, its in of_bucket.items() for unit in its]


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
