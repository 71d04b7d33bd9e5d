"""The slow truth of comparisons: sums over pairs of queries in fractions, flips one by one, Holm's procedure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import product
from typing import NamedTuple

from tests import rank_metrics_reference


class Query(NamedTuple):
    """A query of both runs."""

    side: str
    edge: int
    unit: int
    key: object  # None: its own
    a: Fraction
    b: Fraction

    @property
    def change(self) -> Fraction:
        return self.b - self.a


def value_of(metric: str, better: int, tied: int, num_candidates: int, rank_type: str) -> Fraction:
    """Return the value of one query, rounded so that equal sums are equal."""
    rank = 1 + better + {"optimistic": Fraction(0), "realistic": Fraction(tied, 2), "pessimistic": tied}[rank_type]
    return Fraction(round(2**32 * rank_metrics_reference.of_query(metric, rank, num_candidates)), 2**32)


def mean(values: Sequence[Fraction]) -> Fraction:
    return sum(values, Fraction(0)) / len(values)


def effective_number(labels: Sequence[object]) -> Fraction:
    """Return how many clusters of one size would be worth those that these labels name."""
    sizes = Counter(labels).values()
    return Fraction(sum(sizes)) ** 2 / sum(size**2 for size in sizes)


def variance_and_freedom(queries: Sequence[Query]) -> tuple[Fraction, Fraction] | None:
    """Return the variance of the mean change and its degrees of freedom, from all pairs of queries."""
    sides = sorted({query.side for query in queries})
    means = {side: mean([query.change for query in queries if query.side == side]) for side in sides}
    residual = [query.change - means[query.side] for query in queries]
    units = effective_number([query.unit for query in queries])
    if units < 2:
        return None
    correction = units / (units - 1)
    pairs = [(i, j) for i in range(len(queries)) for j in range(len(queries))]
    total = sum(correction * residual[i] * residual[j] for i, j in pairs if queries[i].unit == queries[j].unit)
    more, spread = Fraction(0), Fraction(0)
    for side in sides if queries[0].key is not None else ():
        keys = effective_number([query.key for query in queries if query.side == side])
        if keys < 2:
            return None
        of_keys = of_both = Fraction(0)
        for i, j in pairs:
            if queries[i].side == queries[j].side == side and queries[i].key == queries[j].key:
                of_keys += keys / (keys - 1) * residual[i] * residual[j]
                if queries[i].unit == queries[j].unit:
                    of_both += correction * residual[i] * residual[j]
        more += of_keys - of_both
        spread += of_keys**2 / (keys - 1)
    variance = total + max(more, Fraction(0))
    freedom = units - 1
    if spread:
        freedom = min(freedom, variance**2 / spread)
    return variance / len(queries) ** 2, freedom


def flip_probability(queries: Sequence[Query]) -> Fraction:
    """Return the share of all exchanges of the runs by unit with a ratio of difference to error as large or larger."""
    units = sorted({query.unit for query in queries})
    num_as_large, seen = 0, ratio_of(queries, dict.fromkeys(units, 1))
    exchanges = [dict(zip(units, signs, strict=True)) for signs in product((1, -1), repeat=len(units))]
    for signs in exchanges:
        num_as_large += ratio_of(queries, signs) >= seen
    return Fraction(num_as_large, len(exchanges))


def ratio_of(queries: Sequence[Query], signs: dict[int, int]) -> Fraction:
    """Return the squared sum of changes over its variance about 0."""
    change = [signs[query.unit] * query.change for query in queries]
    variance = more = Fraction(0)
    for i, one in enumerate(queries):
        for j, two in enumerate(queries):
            if one.unit == two.unit:
                variance += change[i] * change[j]
            if one.key is not None and (one.side, one.key) == (two.side, two.key):
                more += change[i] * change[j] * (one.unit != two.unit)
    variance += max(more, Fraction(0))
    return sum(change, Fraction(0)) ** 2 / variance if variance else Fraction(0)


def holm(p_values: Sequence[float], alpha: float) -> set[int]:
    """Return which hypotheses Holm's procedure rejects at a level: step down until one fails."""
    rejected: set[int] = set()
    left = set(range(len(p_values)))
    while left:
        smallest = min(left, key=lambda index: p_values[index])
        if p_values[smallest] * len(left) > alpha:
            break
        rejected.add(smallest)
        left.remove(smallest)
    return rejected
