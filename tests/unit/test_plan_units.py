from __future__ import annotations

from pbgeval.inputs.dispatch import best_order, num_loads, share_of_worker
from pbgeval.notation import Bucket, WorkUnit, slice_units, window_units

BUCKET = Bucket(1, 2)


def ranges(units) -> list[tuple[int, int]]:
    return [(unit.start, unit.stop) for unit in units]


def test_windows_by_hand():
    assert [(0, 4), (4, 8), (8, 9)] == ranges(window_units(0, BUCKET, 9, 4))
    assert [(0, 4)] == ranges(window_units(0, BUCKET, 4, 4))
    assert [] == ranges(window_units(0, BUCKET, 0, 4))


def test_slices_by_hand():
    """Ten edges for four workers are three, three, three and one; six for four are two, two and two."""
    assert [(0, 3), (3, 6), (6, 9), (9, 10)] == ranges(slice_units(0, BUCKET, 10, 4))
    assert [(0, 2), (2, 4), (4, 6)] == ranges(slice_units(0, BUCKET, 6, 4))
    assert [(0, 1)] == ranges(slice_units(0, BUCKET, 1, 4))
    assert [] == ranges(slice_units(0, BUCKET, 0, 4))


def test_shares_are_of_equal_numbers_of_edges():
    units = [WorkUnit(0, Bucket(0, at), 0, size) for at, size in enumerate([10, 10, 5, 5, 30])]

    shares = [[unit.bucket.rhs for unit in share_of_worker(units, rank, 2)] for rank in range(2)]

    assert [[0, 1, 2, 3], [4]] == shares


def test_more_workers_than_units_leaves_some_idle():
    units = [WorkUnit(0, BUCKET, 0, 7)]

    assert [[], units, []] == [share_of_worker(units, rank, 3) for rank in range(3)]
    assert [[], []] == [share_of_worker([], rank, 2) for rank in range(2)]


def test_loads_are_counted_when_only_one_buckets_partitions_are_held():
    order = [Bucket(0, 0), Bucket(0, 1), Bucket(1, 0), Bucket(0, 0)]

    assert 1 + 1 + 0 + 0 == num_loads([frozenset({bucket.lhs, bucket.rhs}) for bucket in order], 0)
    assert 2 + 1 + 2 + 1 == num_loads(
        list(map(lambda bucket: frozenset({("l", bucket.lhs), ("r", bucket.rhs)}), order)), 0
    )
    assert 0 == num_loads([frozenset() for bucket in []], 0)


def test_rows_are_walked_up_and_down_where_the_sides_are_unlike():
    grid = [Bucket(lhs, rhs) for lhs in range(2) for rhs in range(3)]

    order = best_order(grid, lambda bucket: frozenset({("l", bucket.lhs), ("r", bucket.rhs)}))

    assert 2 + 2 + 1 + 2 == num_loads(
        list(map(lambda bucket: frozenset({("l", bucket.lhs), ("r", bucket.rhs)}), order)), 0
    )
