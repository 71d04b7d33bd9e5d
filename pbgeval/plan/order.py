"""Buckets and the partitions that each needs -> an order that loads few partitions.

A worker with room for c partitions keeps c - 1 of them, a *band*, while all others pass through the last place, a
*step* each; the last to pass begins the next band. Three such walks and that of the files are compared by the loads
that they cause, and the best is taken. With c = 2, on four partitions:

    triangle (lhs and rhs of one type)     rows              columns
        band 0:  (0,0) (0,1) (1,0)         (0,0) (0,1) ...   the same, transposed
                 (0,2) (2,0) (0,3) (3,0)   (1,3) (1,2) ...
        band 3:  (3,3) (2,3) (3,2) (1,3) (3,1)
        band 1:  (1,1) (1,2) (2,1)
        band 2:  (2,2)

P partitions of one type cost about P² / (2 (c - 1)) loads. Any order gives the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pbgeval.notation import Bucket
from pbgeval.plan.holding import Partitions, num_loads_of

Needs = Callable[[Bucket], Partitions]
Step = list[Bucket]  # buckets between the band and one more partition
Band = list[Step]


def best_order(buckets: Iterable[Bucket], needs: Needs) -> list[Bucket]:
    """Return the buckets in the order that loads the fewest partitions when only those in hand are held."""
    return [bucket for band in best_walk(buckets, needs) for step in band for bucket in step]


def best_walk(buckets: Iterable[Bucket], needs: Needs, room: int = 0, width: int | None = None) -> list[Band]:
    """Return the walk over all buckets that loads the fewest partitions.

    Args:
        buckets: those that exist.
        needs: the partitions of a bucket.
        room: for how many partitions a worker has memory; 0 for those of the bucket in hand, however many.
        width: partitions of a band, if other than the room less one.
    """
    existing = sorted(buckets)
    width = max(room - 1, 1) if width is None else width
    needs_of = {bucket: needs(bucket) for bucket in existing}.__getitem__
    walks = [_triangle(existing, width), _rows(existing, width), _columns(existing, width), [[[b]] for b in existing]]
    return min(walks, key=lambda walk: num_loads([b for band in walk for step in band for b in step], needs_of, room))


def num_loads(order: Sequence[Bucket], needs: Needs, room: int = 0) -> int:
    """Count the partitions loaded with room for so many, or for those of the bucket in hand if they are more."""
    return num_loads_of([needs(bucket) for bucket in order], room)


def _triangle(buckets: list[Bucket], width: int) -> list[Band]:
    """Take bands from both ends of the partitions left, in turn: each begins where the last one's steps ended."""
    existing = set(buckets)
    left = sorted({partition for bucket in buckets for partition in bucket})
    walk, from_end = [], False
    while left:
        if from_end:
            left.reverse()
        band, left = left[:width], left[width:]
        # A partition of the band meets those before it, and itself; the others meet the whole band.
        steps = [_pairs(existing, band[: place + 1], partition) for place, partition in enumerate(band)]
        steps += [_pairs(existing, band, partition) for partition in left]
        walk.append([step for step in steps if step])
        left.sort()
        from_end = not from_end
    return walk


def _pairs(existing: set[Bucket], band: list[int], partition: int) -> Step:
    """Return the buckets between one partition and each of a band, both ways."""
    pairs = [bucket for kept in band for bucket in (Bucket(kept, partition), Bucket(partition, kept))]
    return [bucket for bucket in dict.fromkeys(pairs) if bucket in existing]


def _rows(buckets: list[Bucket], width: int) -> list[Band]:
    """Keep `width` left partitions while the right ones pass, up and down in turn."""
    of_pair = dict.fromkeys(buckets)
    rows = sorted({bucket.lhs for bucket in buckets})
    columns = sorted({bucket.rhs for bucket in buckets})
    walk = []
    for first in range(0, len(rows), width):
        band = rows[first : first + width]
        steps = [[Bucket(lhs, rhs) for lhs in band if Bucket(lhs, rhs) in of_pair] for rhs in columns]
        walk.append([step for step in steps if step])
        columns.reverse()
    return walk


def _columns(buckets: list[Bucket], width: int) -> list[Band]:
    mirrored = _rows(sorted(Bucket(bucket.rhs, bucket.lhs) for bucket in buckets), width)
    return [[[Bucket(bucket.rhs, bucket.lhs) for bucket in step] for step in band] for band in mirrored]
