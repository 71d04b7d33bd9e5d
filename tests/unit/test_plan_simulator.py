from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from benchmarks.scaling.bounds import min_loads
from benchmarks.scaling.simulator import Machines, Simulation, simulate
from pbgeval.inputs.dispatch import DispatchPlan, make_dispatch_plan
from pbgeval.notation import Bucket, WorkUnit
from tests.examples import crossed
from tests.unit.test_plan_dispatch import one_type

LOAD_SECONDS = 0.05  # of one partition, where a bucket takes about a second


def one_byte(partition) -> float:
    return 1.0


@cache
def units_and_work(num_partitions: int, seed: int, noise: float) -> tuple[list[WorkUnit], dict[WorkUnit, float]]:
    """Buckets of log-normal size (sigma .5); the cost is taken to be the number of edges, the time differs from it."""
    random = np.random.default_rng(seed)
    seconds = np.exp(random.normal(0, 0.5, num_partitions**2) - 0.125)
    units = [
        WorkUnit(0, Bucket(*divmod(number, num_partitions)), 0, max(1, int(1e6 * of)))
        for number, of in enumerate(seconds)
    ]
    factors = np.exp(random.normal(0, noise, len(units))).tolist()
    return units, {unit: unit.num_edges / 1e6 * factor for unit, factor in zip(units, factors, strict=True)}


@cache
def simulated(num_partitions: int, room: int, num_workers: int, seed: int, noise: float = 0.1) -> Simulation:
    units, work = units_and_work(num_partitions, seed, noise)
    plan = make_dispatch_plan(units, one_type, num_workers, room=room, load_cost=1e6 * LOAD_SECONDS)
    return simulate(plan, Machines((1.0,) * num_workers, room, 1 / LOAD_SECONDS), work, one_byte)


# By hand


@pytest.mark.parametrize(
    ("needs", "seconds", "machines", "expected"),
    [
        # Each partition takes 1 s to load.
        # Worker 0 loads 0 and 1 until 2 s, works until 5, has loaded 2 meanwhile, works until 6.
        # Worker 1 loads 2 and 3 until 2 s, works until 3, has nothing to load, works until 7.
        (
            [{0, 1}, {0, 2}, {2, 3}, {3}],
            [3.0, 1.0, 1.0, 4.0],
            Machines((1.0, 1.0), 2, 1.0),
            (7.0, 5, 5.0, (4 / 7, 5 / 7), 3.0),
        ),
        # Each worker loads one partition: alone in 1 s, through the shared system the second comes at 4 s.
        (
            [{0}, {1}],
            [1.0, 1.0],
            Machines((1.0, 1.0), 1, 1.0, shared_bytes_per_second=0.5),
            (5.0, 2, 2.0, (0.2, 0.2), 4.0),
        ),
    ],
)
def test_two_workers_by_hand(
    needs: list[set[int]], seconds: list[float], machines: Machines, expected: tuple[object, ...]
) -> None:
    half = len(needs) // 2
    plan = DispatchPlan(
        units=tuple(WorkUnit(0, Bucket(0, 0), row, row + 1) for row in range(len(needs))),
        num_large=0,
        stripes=(range(half), range(half, len(needs))),
        needs=tuple(frozenset(needed) for needed in needs),
    )

    result = simulate(plan, machines, dict(zip(plan.units, seconds, strict=True)), one_byte)

    found = (result.seconds, result.num_loads, result.bytes_read, result.busy_shares, result.bounds.reading_seconds)
    assert found == expected


# Bounds


@pytest.mark.parametrize(
    ("room", "two_sided", "loads"),
    [(2, False, [0, 2, 3, 4]), (3, False, [0, 2, 3, 3, 4]), (4, True, [0, 2, 3, 4, 4, 5])],
)
def test_the_bound_on_loads_by_hand(room: int, two_sided: bool, loads: list[int]) -> None:
    assert [min_loads(pairs, room, two_sided=two_sided) for pairs in range(len(loads))] == loads


# Grids


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("num_workers", "room", "seed"), crossed([1, 2, 16, 256, 1024], [2, 8], range(3), quick=3, thorough=3)
)
def test_64_partitions_end_within_5_percent_of_the_bound(room, num_workers, seed):
    result = simulated(64, room, num_workers, seed)

    assert 1 - 1e-9 <= result.ratio <= 1.05
    assert result.num_loads >= result.bounds.num_loads
