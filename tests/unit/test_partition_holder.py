"""Partitions of units as a worker loads, keeps and reads them ahead."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch

from benchmarks.scaling.bounds import min_loads
from benchmarks.scaling.local_counter import LocalCounter
from pbgeval.config import load_config
from pbgeval.errors import DataError
from pbgeval.inputs.dispatch import PartitionCache, UnitQueue, make_dispatch_plan
from pbgeval.inputs.opening import open_inputs
from pbgeval.inputs.partitions import PartitionHolder
from pbgeval.notation import ENDS, Bucket, WorkUnit
from pbgeval.ranking.settings import Tables
from tests.kit.case import TinyCase

NUM_PARTITIONS = 5


@pytest.fixture
def case(tmp_path: Path) -> TinyCase:
    return TinyCase.write(tmp_path, dynamic=True, partition_sizes=(4,) * NUM_PARTITIONS, edges_per_bucket=3)


def holder_of(case: TinyCase, room: int, *, reads_ahead: bool = True) -> PartitionHolder:
    """One worker's, over one unit per bucket."""
    inputs = open_inputs(load_config(case.config, []))
    units = [WorkUnit(0, Bucket(lhs, rhs), 0, 3) for lhs in range(NUM_PARTITIONS) for rhs in range(NUM_PARTITIONS)]
    plan = make_dispatch_plan(units, inputs.partitions_needed, 1, room=room)
    holding = PartitionCache(UnitQueue(plan, LocalCounter(), 0), room)
    return PartitionHolder(inputs, {}, torch.device("cpu"), holding, reads_ahead)


def entered(holder: PartitionHolder) -> Iterator[tuple[Bucket, Tables]]:
    """Go through all units."""
    queue = holder.holding.queue
    with closing(holder):
        for index in iter(queue.claim_next, None):
            bucket = queue.plan.units[index].bucket
            yield bucket, holder.enter(index, bucket)
            holder.read_ahead()


@pytest.mark.parametrize("room", [2, 3, 4, NUM_PARTITIONS])
@pytest.mark.parametrize("reads_ahead", [False, True])
def test_every_unit_gets_its_partitions_whatever_the_room(case: TinyCase, room: int, reads_ahead: bool) -> None:
    holder, buckets = holder_of(case, room, reads_ahead=reads_ahead), []
    for bucket, tables in entered(holder):
        for side in ENDS:
            expected = holder.inputs.embeddings["user", side.pick(*bucket)].load()
            assert torch.equal(expected, tables["user", side].embeddings_ND)
        assert len(holder.holding.held) <= room
        buckets.append(bucket)

    assert NUM_PARTITIONS**2 == len(set(buckets)) == len(buckets)
    assert holder.num_loads <= 1.1 * min_loads(NUM_PARTITIONS * (NUM_PARTITIONS - 1) // 2, room, two_sided=False) + 1


def test_a_fault_found_by_reading_ahead_is_raised_when_the_partition_is_needed(case: TinyCase) -> None:
    case.spoil_embeddings("user", 3, row=2, value=math.nan)
    buckets: list[Bucket] = []

    with pytest.raises(DataError, match=r"^entity type 'user', partition 3: expected finite numbers, got NaN"):
        buckets.extend(bucket for bucket, _ in entered(holder_of(case, 2)))
    assert [3 in bucket for bucket in buckets] == [False] * len(buckets) != []
