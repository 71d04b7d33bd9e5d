from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.scaling.bounds import min_loads
from benchmarks.scaling.local_counter import LocalCounter
from pbgeval.inputs.dispatch import (
    DispatchPlan,
    UnitQueue,
    make_dispatch_plan,
    num_loads,
)
from pbgeval.notation import Bucket, WorkUnit


def one_type(bucket: Bucket) -> frozenset:
    return frozenset(bucket)


def two_types(bucket: Bucket) -> frozenset:
    return frozenset({("user", bucket.lhs), ("item", bucket.rhs)})


def grid(num_partitions: int, costs=None) -> list[WorkUnit]:
    """A unit per bucket, of 1000 edges or of the given ones."""
    buckets = [Bucket(lhs, rhs) for lhs in range(num_partitions) for rhs in range(num_partitions)]
    edges = [1000] * len(buckets) if costs is None else costs
    return [WorkUnit(0, bucket, 0, int(num_edges)) for bucket, num_edges in zip(buckets, edges, strict=True)]


def log_normal_edges(num_units: int, seed: int) -> np.ndarray:
    return np.maximum(1, 1000 * np.exp(np.random.default_rng(seed).normal(0, 0.5, num_units))).astype(int)


def queues_of(plan: DispatchPlan, num_workers: int, counter: LocalCounter | None = None) -> list[UnitQueue]:
    counter = counter or LocalCounter()
    return [UnitQueue(plan, counter, number) for number in range(num_workers)]


def units_of(queue: UnitQueue) -> list[WorkUnit]:
    """Let a worker claim until nothing is left."""
    return [queue.plan.units[index] for index in iter(queue.claim_next, None)]


# Every unit once


class CallByCall:
    """A counter whose callers, threads, are let through one call at a time, in an order that a test chooses."""

    def __init__(self, choose, num_workers: int) -> None:
        self.choose, self.running, self.counter = choose, num_workers, LocalCounter()
        self.waiting: set[int] = set()
        self.turn: int | None = None
        self.condition = threading.Condition()

    def add_of(self, number: int):
        def add(counter: str, amount: int, /) -> int:
            with self.condition:
                self.waiting.add(number)
                self.let_one_through()
                self.condition.wait_for(lambda: self.turn == number)
                self.turn = None
                self.waiting.remove(number)
                return self.counter.add(counter, amount)

        return add

    def ended(self) -> None:
        with self.condition:
            self.running -= 1
            self.let_one_through()

    def let_one_through(self) -> None:
        if self.turn is None and self.waiting and len(self.waiting) == self.running:
            self.turn = sorted(self.waiting)[self.choose(len(self.waiting))]
            self.condition.notify_all()


@given(
    num_workers=st.integers(1, 7),
    num_partitions=st.integers(0, 4),
    windows=st.integers(1, 3),
    kept=st.sets(st.integers(0, 47)),
    load_cost=st.sampled_from([0.0, 1e9]),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_unit_that_is_left_is_handed_out_once_whatever_the_order_of_the_calls(
    num_workers, num_partitions, windows, kept, load_cost, seed
):
    random = np.random.default_rng(seed)
    units = [
        unit._replace(start=window, stop=window + int(random.integers(1, 100)))
        for unit in grid(num_partitions)
        for window in range(windows)
    ]
    units = [unit for number, unit in enumerate(units) if number not in kept]  # the others were done before
    plan = make_dispatch_plan(units, one_type, num_workers, load_cost=load_cost)
    counter = CallByCall(lambda count: int(random.integers(count)), num_workers)

    def work(number: int) -> list[WorkUnit]:
        found = units_of(UnitQueue(plan, SimpleNamespace(add=counter.add_of(number)), number))
        counter.ended()
        return found

    with ThreadPoolExecutor(num_workers) as threads:
        drawn = [unit for found in threads.map(work, range(num_workers), timeout=30) for unit in found]

    assert sorted(units) == sorted(drawn)


def test_another_prefix_begins_anew():
    plan, counter = make_dispatch_plan(grid(2), one_type, 1), LocalCounter()

    rounds = [units_of(UnitQueue(plan, counter, 0, prefix=f"round/{number}")) for number in range(2)]

    assert rounds[0] == rounds[1] == list(plan.units)


# Order


@pytest.mark.parametrize("num_workers", [1, 3, 16, 200])
@pytest.mark.parametrize("load_cost", [0.0, 1000.0])
def test_the_plan_holds_every_unit_once_and_does_not_depend_on_their_order(num_workers, load_cost):
    units = grid(8, log_normal_edges(64, seed=1))

    plan = make_dispatch_plan(units, one_type, num_workers, load_cost=load_cost)
    of_shuffled = make_dispatch_plan(units[::-1], one_type, num_workers, load_cost=load_cost)

    assert (sorted(units), plan.units, plan.stripes) == (sorted(plan.units), of_shuffled.units, of_shuffled.stripes)
    bounds = [plan.num_large, *(stripe.stop for stripe in plan.stripes)]
    assert (bounds[:-1], plan.first_small) == ([stripe.start for stripe in plan.stripes], bounds[-1])
    assert [one_type(unit.bucket) for unit in plan.units] == list(plan.needs)


def test_large_units_come_first_and_small_ones_last_by_falling_cost():
    plan = make_dispatch_plan(grid(64, log_normal_edges(4096, seed=2)), one_type, 256)

    edges = [unit.num_edges for unit in plan.units]
    large, small = edges[: plan.num_large], edges[plan.first_small :]
    assert (large, small) == (sorted(large, reverse=True), sorted(small, reverse=True))
    assert (max(edges), min(edges)) == (large[0], small[-1])
    assert max(edges[plan.num_large : plan.first_small]) <= large[-1]


# Loads


@pytest.mark.parametrize("num_partitions", [16, 64])
@pytest.mark.parametrize("room", [2, 4, 8])
def test_one_worker_loads_about_as_few_partitions_as_can_be(num_partitions, room):
    """P² / (2 (c - 1)) holds for P much larger than c; the exact bound for 16 partitions and room for 8 is 22."""
    loads = num_loads(make_dispatch_plan(grid(num_partitions), one_type, 1, room=room).needs, room)

    usual = num_partitions**2 / (2 * (room - 1))
    fewest = min_loads(num_partitions * (num_partitions - 1) // 2, room, two_sided=False)
    assert loads <= (25 if (num_partitions, room) == (16, 8) else 1.1 * usual)
    assert fewest <= loads


@pytest.mark.parametrize(("room", "limit"), [(2, 1.01), (4, 1.1), (8, 1.2)])
def test_one_worker_loads_few_partitions_of_two_types(room, limit):
    assert num_loads(make_dispatch_plan(grid(64), two_types, 1, room=room).needs, room) <= limit * 64**2 / (room - 1)


@pytest.mark.parametrize("num_workers", [2, 4, 16])
def test_stripes_cost_few_loads_more_than_one_worker_needs(num_workers):
    plan = make_dispatch_plan(grid(32, log_normal_edges(1024, seed=3)), one_type, num_workers)

    loads = sum(num_loads(plan.needs[stripe.start : stripe.stop], 2) for stripe in plan.stripes)

    assert num_workers == len(plan.stripes)
    assert loads <= 1.02 * 32**2 / 2 + 4 * num_workers


# Calls of the store


@pytest.mark.parametrize("num_workers", [1, 16, 256])
def test_a_unit_costs_at_most_two_calls_of_the_store(num_workers):
    plan, counter = make_dispatch_plan(grid(64, log_normal_edges(4096, seed=4)), one_type, num_workers), LocalCounter()

    drawn = [index for queue in queues_of(plan, num_workers, counter) for index in iter(queue.claim_next, None)]

    assert list(range(len(plan.units))) == sorted(drawn)
    assert counter.num_calls <= 2 * 4096


# What comes


def test_a_worker_knows_the_rest_of_its_stripe():
    queue = UnitQueue(make_dispatch_plan(grid(2), one_type, 1), LocalCounter(), 0)

    assert range(0) == queue.upcoming()
    queue.claim_next()
    assert (range(1, 4), [1, 2, 3]) == (queue.upcoming(), [queue.claim_next() for _ in range(3)])
    assert range(0) == queue.upcoming()


def test_a_worker_without_work_joins_the_stripe_that_has_something_left():
    plan = make_dispatch_plan(grid(8), one_type, 2)
    fast, slow = queues_of(plan, 2)

    assert [fast.claim_next(), slow.claim_next()] == [stripe.start for stripe in plan.stripes]
    assert (len(list(iter(fast.claim_next, None))), slow.claim_next()) == (62, None)


def test_windows_of_a_bucket_stay_in_order_where_one_worker_does_them():
    units = [WorkUnit(0, Bucket(0, rhs), 10 * window, 10 * window + 10) for rhs in range(2) for window in range(3)]

    assert units == list(make_dispatch_plan(units, one_type, 1).units)
