from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from benchmarks.scaling.simulator import Machines, Simulation, simulate
from pbgeval.inputs.dispatch import make_dispatch_plan
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


# Bounds


# Grids


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("num_workers", "room", "seed"), crossed([1, 2, 16, 256, 1024], [2, 8], range(3), quick=3, thorough=3)
)
def test_64_partitions_end_within_5_percent_of_the_bound(room, num_workers, seed):
    result = simulated(64, room, num_workers, seed)

    assert 1 - 1e-9 <= result.ratio <= 1.05
    assert result.num_loads >= result.bounds.num_loads
