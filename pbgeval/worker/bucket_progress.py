"""Units that different workers finish -> one report of each bucket, from whoever finishes its last unit."""

from __future__ import annotations

from collections import Counter as Multiset
from collections.abc import Callable, Iterable
from operator import attrgetter

from attrs import define, field

from pbgeval.notation import WorkUnit
from pbgeval.plan.counters import Counter
from pbgeval.progress import BucketReport

MILLION = 1_000_000  # seconds and reciprocal ranks are added as whole millionths


@define(eq=False)
class BucketProgress:
    """Sums over the units of each bucket of each edge path, in counters that all workers share.

    A bucket of one unit needs no counter.
    """

    units: Iterable[WorkUnit]  # all that will be done, by all workers
    counter: Counter
    prefix: str  # of the names of counters
    edges_of: Callable[[WorkUnit], int] = attrgetter("num_edges")  # how many of a unit are evaluated
    _num_units: Multiset[tuple[object, ...]] = field(init=False)
    _num_edges: Multiset[tuple[object, ...]] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._num_units, self._num_edges = Multiset(), Multiset()
        for unit in self.units:
            self._num_units[unit[:2]] += 1
            self._num_edges[unit[:2]] += self.edges_of(unit)

    @property
    def num_edges(self) -> int:
        """All that will be evaluated."""
        return self._num_edges.total()

    def finished(self, unit: WorkUnit, seconds: float, mean_reciprocal_rank: float | None) -> BucketReport | None:
        """Note a finished unit; return the report of its bucket if no unit of it is left."""
        num_units, num_edges = self._num_units[unit[:2]], self._num_edges[unit[:2]]
        if num_units == 1:
            return BucketReport(num_edges, seconds, mean_reciprocal_rank)
        name = f"{self.prefix}/bucket/{unit.path_index}/{unit.bucket.lhs}/{unit.bucket.rhs}"
        self.counter.add(f"{name}/seconds", round(MILLION * seconds))
        self.counter.add(f"{name}/ranks", round(MILLION * (mean_reciprocal_rank or 0.0) * self.edges_of(unit)))
        # Counted after its sums: whoever counts the last unit reads the sums of all.
        if self.counter.add(f"{name}/units", 1) < num_units:
            return None
        total_seconds, total_ranks = (self.counter.add(f"{name}/{of}", 0) / MILLION for of in ("seconds", "ranks"))
        return BucketReport(num_edges, total_seconds, total_ranks / max(num_edges, 1))
