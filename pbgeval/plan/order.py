"""Buckets and the partitions that each needs -> an order that loads few partitions.

A worker holds the partitions of the bucket in hand and keeps those that the next one needs too. Three orders and
that of the files are compared by the loads that they cause, and the best is taken:

    triangle (lhs and rhs of one type)     rows              columns
        (0,0)                              (0,0) (0,1)       the same, transposed
        (0,1) (1,0)                        (1,1) (1,0)
        (1,1) ...                          boustrophedon

Any order gives the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence

from pbgeval.notation import Bucket

Partitions = frozenset[Hashable]
Needs = Callable[[Bucket], Partitions]


def best_order(buckets: Iterable[Bucket], needs: Needs) -> list[Bucket]:
    """Return the buckets in the order that loads the fewest partitions."""
    existing = sorted(buckets)
    orders = [_triangle(existing), _rows(existing), _columns(existing), existing]
    return min(orders, key=lambda order: num_loads(order, needs))


def num_loads(order: Sequence[Bucket], needs: Needs) -> int:
    """Count the partitions loaded when only those of the bucket in hand are held."""
    loads, held = 0, frozenset[Hashable]()
    for bucket in order:
        needed = needs(bucket)
        loads += len(needed - held)
        held = needed
    return loads


def _triangle(buckets: list[Bucket]) -> list[Bucket]:
    """Pair (i, j) with (j, i); walk j up and down in turn, so that the turn keeps both partitions."""
    ascending = sorted(buckets, key=lambda b: (min(b), max(b), b))
    order: list[Bucket] = []
    for low in sorted({min(bucket) for bucket in buckets}):
        row = [bucket for bucket in ascending if min(bucket) == low]
        order += row[::-1] if low % 2 else row
    return order


def _rows(buckets: list[Bucket]) -> list[Bucket]:
    return sorted(buckets, key=lambda b: (b.lhs, b.rhs if b.lhs % 2 == 0 else -b.rhs))


def _columns(buckets: list[Bucket]) -> list[Bucket]:
    return sorted(buckets, key=lambda b: (b.rhs, b.lhs if b.rhs % 2 == 0 else -b.lhs))
