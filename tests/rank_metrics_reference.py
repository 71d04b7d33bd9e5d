"""The slow truth of rank metrics: one loop over the queries per figure, in fractions where a figure is rational."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import product

from attrs import frozen

NORMAL_75 = 0.6744897501960817


@frozen
class Queries:
    """What metrics are computed from, as plain lists."""

    ranks: Sequence[float]
    num_candidates: Sequence[int]
    weights: Sequence[float] | None = None

    @functools.cached_property
    def shares(self) -> list[Fraction]:
        weights = [1] * len(self.ranks) if self.weights is None else [Fraction(weight) for weight in self.weights]
        total = sum(weights)
        return [Fraction(weight, total) for weight in weights]


# What a query adds to a metric that is a mean over queries: from its rank and its number of candidates.
OF_QUERY: dict[str, Callable[[Fraction, int], Fraction]] = {
    "mean_rank": lambda rank, _: rank,
    "mean_reciprocal_rank": lambda rank, _: 1 / rank,
    "squared_rank": lambda rank, _: rank**2,
}


def of_query(name: str, rank: float | Fraction, num_candidates: int) -> Fraction:
    family, _, cutoff = name.rpartition("_at_")
    if cutoff.isdecimal():
        worth = Fraction(1) if family == "hits" else 1 / Fraction(rank)
        return worth if rank <= int(cutoff) else Fraction(0)
    return OF_QUERY[name](Fraction(rank), num_candidates)


def mean(queries: Queries, name: str) -> Fraction:
    columns = zip(queries.shares, queries.ranks, queries.num_candidates, strict=True)
    return sum((p * of_query(name, rank, num) for p, rank, num in columns), Fraction(0))


def median(values: Sequence[Fraction], shares: Sequence[Fraction]) -> Fraction:
    """Walk along the values in order until more than half lies behind."""
    walked = Fraction(0)
    steps = [(value, share) for value, share in sorted(zip(values, shares, strict=True)) if share]
    for place, (value, share) in enumerate(steps):
        walked += share
        if walked > Fraction(1, 2):
            return value
        if walked == Fraction(1, 2):
            return (value + steps[place + 1][0]) / 2
    raise AssertionError("shares add up to 1")


def median_rank(queries: Queries) -> Fraction:
    return median([Fraction(rank) for rank in queries.ranks], queries.shares)


def median_absolute_deviation(queries: Queries) -> float:
    middle = median_rank(queries)
    distances = [abs(Fraction(rank) - middle) for rank in queries.ranks]
    return float(median(distances, queries.shares)) / (NORMAL_75 if queries.weights is None else 0.67449)


def geometric_mean_rank(queries: Queries) -> float:
    return math.prod(rank ** float(p) for p, rank in zip(queries.shares, queries.ranks, strict=True))


def variance(queries: Queries) -> Fraction:
    return mean(queries, "squared_rank") - mean(queries, "mean_rank") ** 2


BASE: dict[str, Callable[[Queries], Fraction | float | int]] = {
    "count": lambda queries: len(queries.ranks),
    "geometric_mean_rank": geometric_mean_rank,
    "median_rank": median_rank,
    "inverse_arithmetic_mean_rank": lambda queries: 1 / mean(queries, "mean_rank"),
    "inverse_geometric_mean_rank": lambda queries: 1 / geometric_mean_rank(queries),
    "harmonic_mean_rank": lambda queries: 1 / mean(queries, "mean_reciprocal_rank"),
    "inverse_median_rank": lambda queries: 1 / median_rank(queries),
    "standard_deviation": lambda queries: math.sqrt(variance(queries)),
    "variance": variance,
    "median_absolute_deviation": median_absolute_deviation,
}
UP = {"adjusted_mean_rank_index": "mean_rank", "adjusted_geometric_mean_rank_index": "geometric_mean_rank"}
UP |= {"adjusted_inverse_harmonic_mean_rank": "mean_reciprocal_rank"}
UP |= {f"adjusted_hits_at_{k}": f"hits_at_{k}" for k in (1, 3, 10)}
Z = {"z_arithmetic_mean_rank": "mean_rank", "z_geometric_mean_rank": "geometric_mean_rank"}
Z |= {"z_inverse_harmonic_mean_rank": "mean_reciprocal_rank", **{f"z_hits_at_{k}": f"hits_at_{k}" for k in (1, 3, 10)}}


def value(name: str, queries: Queries) -> float:
    """Return a metric; the levels by chance that some need are means over single queries."""
    if name in BASE:
        return float(BASE[name](queries))
    if name == "adjusted_arithmetic_mean_rank":
        return float(mean(queries, "mean_rank") / chance("mean_rank", queries)[0])
    if name not in UP | Z:
        return float(mean(queries, name))
    base = UP[name] if name in UP else Z[name]
    expectation, squared_deviation = chance(base, queries)
    above = (BASE[base](queries) if base in BASE else mean(queries, base)) - expectation
    if name in UP:
        return float(above / (1 - expectation)) if expectation != 1 else 0.0
    sign = -1 if base in ("mean_rank", "geometric_mean_rank") else 1
    return sign * float(above) / math.sqrt(squared_deviation) if squared_deviation else 0.0


def chance(base: str, queries: Queries) -> tuple[Fraction | float, Fraction | float]:
    """Return expectation and variance of a base metric, from the moments of each query's own term."""
    if base == "geometric_mean_rank":
        return _chance_of_product(queries)
    expectation = squared_deviation = Fraction(0)
    for p, num_candidates in zip(queries.shares, queries.num_candidates, strict=True):
        middle, deviation = _chance_of_query(base, num_candidates)
        expectation += p * middle
        squared_deviation += p**2 * deviation
    return expectation, squared_deviation


@functools.cache
def _chance_of_query(base: str, num_candidates: int) -> tuple[Fraction, Fraction]:
    values = [of_query(base, rank, num_candidates) for rank in range(1, num_candidates + 1)]
    middle = sum(values, Fraction(0)) / num_candidates
    return middle, sum((of**2 for of in values), Fraction(0)) / num_candidates - middle**2


def _chance_of_product(queries: Queries) -> tuple[float, float]:
    """Return the moments of a product of independent factors: products of theirs."""
    first = second = 1.0
    is_constant = True
    for p, num_candidates in zip(map(float, queries.shares), queries.num_candidates, strict=True):
        first *= math.fsum(rank**p for rank in range(1, num_candidates + 1)) / num_candidates
        second *= math.fsum(rank ** (2 * p) for rank in range(1, num_candidates + 1)) / num_candidates
        is_constant &= num_candidates == 1 or p == 0
    return (1.0, 0.0) if is_constant else (first, second - first**2)


def moments_by_enumeration(
    value_of: Callable[[Sequence[int]], float], num_candidates: Sequence[int]
) -> tuple[float, float]:
    """Return mean and variance of a figure over every combination of ranks."""
    values = [value_of(ranks) for ranks in product(*(range(1, num + 1) for num in num_candidates))]
    middle = math.fsum(values) / len(values)
    return middle, math.fsum((of - middle) ** 2 for of in values) / len(values)
