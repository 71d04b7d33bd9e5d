from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from math import ceil, floor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pbgeval.notation import Bucket
from pbgeval.ranking.draws import DrawStream
from pbgeval.ranking.edge_sample import EdgeSample, RandomOrder, allocate, doubling_rounds, make_strata

sizes = st.lists(st.one_of(st.just(0), st.integers(0, 9), st.integers(0, 10**12)), min_size=1, max_size=12)
offsets = st.integers(0, (1 << 64) - 1)


def population_of(of):
    return [(i // 4, Bucket(i % 4, i % 3), size) for i, size in enumerate(of)]


def everything(sample: EdgeSample, round_number: int) -> dict[tuple[int, Bucket], set[int]]:
    return {
        (path_index, bucket): set(sample.draw(path_index, bucket, round_number).units_U.tolist())
        for path_index, bucket, _ in sample.population
    }


@given(sizes, st.integers(0, 40))
def test_strata_are_neighbouring_buckets_that_each_expect_two_draws(of, num_draws):
    strata = make_strata(of, num_draws)

    assert list(range(len(of))) == [index for stratum in strata for index in stratum]
    shares = [Fraction(sum(of[i] for i in stratum) * num_draws, sum(of) or 1) for stratum in strata]
    assert len(strata) == 1 or min(shares) >= 2
    if sum(of) and num_draws >= 2:  # none is joined without need: each is the shortest run but for the last, the rest
        for stratum in strata[:-1]:
            assert sum(of[i] for i in stratum[:-1]) * num_draws < 2 * sum(of)


@given(sizes, st.integers(0, 10**6), offsets)
def test_draws_are_shared_out_exactly_and_in_proportion(of, num_draws, offset):
    allocated = allocate(of, num_draws, offset)

    total = sum(of)
    assert min(num_draws, total) == sum(allocated)
    if num_draws < total:
        before = Fraction(0)
        for size, drawn in zip(of, allocated, strict=True):
            share, after = Fraction(size * num_draws, total), before + Fraction(size * num_draws, total)
            assert floor(share) <= drawn <= min(ceil(share), size)
            assert floor(after + Fraction(offset, 1 << 64)) - floor(before + Fraction(offset, 1 << 64)) == drawn
            before = after
    else:
        assert tuple(of) == allocated


def test_the_mean_allocation_over_offsets_is_the_proportional_one():
    """Offsets on a grid that each breakpoint lies on: the mean is exact."""
    of, num_draws = [3, 1, 7, 9, 5], 10
    grid = [(index << 64) // 25 + 1 for index in range(25)]

    means = [Fraction(sum(column), 25) for column in zip(*(allocate(of, num_draws, at) for at in grid), strict=True)]

    assert [Fraction(size * num_draws, 25) for size in of] == means


@given(sizes, st.integers(1, 60), offsets)
def test_doubled_allocations_only_add(of, first, offset):
    strata = make_strata(of, min(first, sum(of)))
    totals = [sum(of[i] for i in stratum) for stratum in strata]

    rounds = [allocate(totals, drawn, offset) for drawn in doubling_rounds(sum(of), first)]

    assert tuple(totals) == rounds[-1]
    for earlier, later in pairwise(rounds):
        assert all(before <= after for before, after in zip(earlier, later, strict=True))


def test_rounds_double_until_they_are_the_population():
    assert (doubling_rounds(9000, 2000), doubling_rounds(4000, 2000)) == ((2000, 4000, 8000, 9000), (2000, 4000))
    assert (doubling_rounds(3, 2000), doubling_rounds(0, 2000)) == ((3,), (0,))
    with pytest.raises(ValueError, match="at least 1 unit, got 0"):
        doubling_rounds(10, 0)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 16, 17, 100, 1001, 70_000])
def test_a_random_order_has_every_number_once(size):
    order = RandomOrder(DrawStream(size), size)

    whole = order.positions(0, size)

    assert (list(range(size)), whole[size // 3 : size // 2].tolist(), 0) == (
        sorted(whole.tolist()),
        order.positions(size // 3, size // 2).tolist(),
        len(order.positions(size, size)),
    )


def test_a_random_order_of_a_huge_range_is_computed_where_it_is_asked_for():
    size = 10**11 + 7
    found = RandomOrder(DrawStream(3), size).positions(10**10, 10**10 + 5000)

    assert len(np.unique(found)) == 5000
    assert 0 <= found.min() < found.max() < size
    assert abs(found.mean() / size - 0.5) < 5 * 12**-0.5 / 5000**0.5


def test_every_unit_is_drawn_with_the_same_probability_whatever_its_bucket():
    of, num_draws, num_seeds = [7, 1, 0, 30, 12, 3, 50, 2], 21, 600
    counts = {(path_index, bucket): np.zeros(size) for path_index, bucket, size in population_of(of)}
    for seed in range(num_seeds):
        sample = EdgeSample.of_size(population_of(of), num_draws, seed)
        for path_index, bucket, _ in sample.population:
            counts[path_index, bucket][sample.draw(path_index, bucket).units_U] += 1

    expected = num_seeds * num_draws / sum(of)
    drawn = np.concatenate(list(counts.values()))
    assert num_seeds * num_draws == drawn.sum()
    assert np.abs(drawn - expected).max() < 4.5 * (expected * (1 - num_draws / sum(of))) ** 0.5


@given(st.lists(st.integers(0, 60), min_size=1, max_size=12), st.integers(1, 30), st.integers(0, 5))
def test_rounds_draw_every_unit_once_and_number_the_clusters_through(of, first, seed):
    sample = EdgeSample.of_rounds(population_of(of), seed, first)
    seen = {(path_index, bucket): set() for path_index, bucket, _ in sample.population}
    stratum_of = {sample.population[at][:2]: number for number, stratum in enumerate(sample.strata) for at in stratum}
    strata = []

    for round_number in range(1, sample.num_rounds + 1):
        clusters = {}
        for path_index, bucket, size in reversed(sample.population):  # in any order of the buckets
            drawn = sample.draw(path_index, bucket, round_number)
            units = drawn.units_U.tolist()
            assert sorted(set(units)) == units
            assert not seen[path_index, bucket] & set(units)
            assert set(range(size)) >= set(units)
            seen[path_index, bucket] |= set(units)
            clusters |= {drawn.first_cluster + j: stratum_of[path_index, bucket] for j in range(len(units))}
        strata += [clusters[cluster] for cluster in sorted(clusters)]
        design = sample.design(round_number)
        assert (design.stratum_U.tolist(), sorted(clusters), len(strata)) == (
            strata,
            list(range(len(strata) - len(clusters), len(strata))),
            sample.round_totals[round_number - 1],
        )
        assert sum(of) == sample.num_units == design.population_H.sum()

    assert sample.is_complete(sample.num_rounds)
    assert all(len(seen[path_index, bucket]) == size for path_index, bucket, size in sample.population)


def test_one_round_draws_exactly_what_was_asked_for():
    population = population_of([100, 20, 3, 400, 0, 77])

    assert sum(len(units) for units in everything(EdgeSample.of_size(population, 50, 0), 1).values()) == 50
    for more in (600, 601):
        whole = EdgeSample.of_size(population, more, 0)
        assert whole.is_complete()
        assert [set(range(size)) for *_, size in population] == list(everything(whole, 1).values())


def test_seeds_draw_differently_and_the_same_seed_alike():
    population = population_of([100, 20, 3, 400, 0, 77])
    first, second, again = (everything(EdgeSample.of_size(population, 50, seed), 1) for seed in (0, 1, 0))

    assert first == again
    assert first != second


FROZEN = [
    [[68, 100, 629, 737, 748, 765, 823, 924, 990], [47], [53, 101]],
    [[88, 106, 143, 515, 715, 727, 799, 862, 958], [5, 27, 28], []],
]


def test_frozen_units():
    """Frozen: these may never change, or results of different versions do not compare."""
    sample = EdgeSample.of_rounds([(0, Bucket(0, 0), 1000), (0, Bucket(0, 1), 50), (1, Bucket(0, 0), 300)], 7, 12)

    assert [
        [sample.draw(path_index, bucket, round_number).units_U.tolist() for path_index, bucket, _ in sample.population]
        for round_number in (1, 2)
    ] == FROZEN


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ValueError, match="at least 1 unit, got 0"):
        EdgeSample.of_size(population_of([3]), 0, 0)
    with pytest.raises(ValueError, match="stands twice"):
        EdgeSample.of_size([(0, Bucket(0, 0), 3), (0, Bucket(0, 0), 4)], 2, 0)
