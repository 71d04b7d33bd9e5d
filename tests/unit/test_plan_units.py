from __future__ import annotations

import pytest

from pbgeval.inputs.dispatch import best_walk, equal_parts, num_loads
from pbgeval.notation import Bucket, WorkUnit
from tests.unit.test_plan_dispatch import one_type, two_types


def test_shares_are_of_equal_numbers_of_edges():
    units = [WorkUnit(0, Bucket(0, at), 0, size) for at, size in enumerate([10, 10, 5, 5, 30])]

    assert [[unit.bucket.rhs for unit in part] for part in equal_parts(units, 2)] == [[0, 1, 2, 3], [4]]


ORDER = [Bucket(0, 0), Bucket(0, 1), Bucket(1, 0), Bucket(0, 0)]
ROWS = [Bucket(lhs, rhs) for lhs in range(2) for rhs in range(3)]


@pytest.mark.parametrize(
    ("needs", "loads"),
    [
        ([one_type(bucket) for bucket in ORDER], 1 + 1 + 0 + 0),
        ([two_types(bucket) for bucket in ORDER], 2 + 1 + 2 + 1),
        ([], 0),
        # Rows are walked up and down where the sides are unlike.
        ([two_types(bucket) for step in best_walk(ROWS, two_types) for bucket in step], 2 + 2 + 1 + 2),
    ],
)
def test_loads_are_counted_when_only_one_buckets_partitions_are_held(needs: list[frozenset], loads: int) -> None:
    assert num_loads(needs, 0) == loads
