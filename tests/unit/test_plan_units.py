from __future__ import annotations

from pbgeval.inputs.dispatch import best_walk, equal_parts, num_loads
from pbgeval.notation import Bucket, WorkUnit


def test_shares_are_of_equal_numbers_of_edges():
    units = [WorkUnit(0, Bucket(0, at), 0, size) for at, size in enumerate([10, 10, 5, 5, 30])]


    assert [[unit.bucket.rhs for unit in part] for part in equal_parts(units, 2)] == [[0, 1, 2, 3], [4]]


def test_loads_are_counted_when_only_one_buckets_partitions_are_held():
    order = [Bucket(0, 0), Bucket(0, 1), Bucket(1, 0), Bucket(0, 0)]

    assert num_loads([frozenset({bucket.lhs, bucket.rhs}) for bucket in order], 0) == 1 + 1 + 0 + 0
    assert (
        num_loads(list(map(lambda bucket: frozenset({("l", bucket.lhs), ("r", bucket.rhs)}), order)), 0)
        == 2 + 1 + 2 + 1
    )
    assert num_loads([frozenset() for bucket in []], 0) == 0


def test_rows_are_walked_up_and_down_where_the_sides_are_unlike():
    grid = [Bucket(lhs, rhs) for lhs in range(2) for rhs in range(3)]

    walk = best_walk(grid, lambda bucket: frozenset({("l", bucket.lhs), ("r", bucket.rhs)}))
    order = [bucket for step in walk for bucket in step]

    assert (
        num_loads(list(map(lambda bucket: frozenset({("l", bucket.lhs), ("r", bucket.rhs)}), order)), 0)
        == 2 + 2 + 1 + 2
    )
