from __future__ import annotations

from fractions import Fraction
from itertools import accumulate, pairwise
from math import floor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pbgeval.inputs.edge_sample import EdgeSample, allocate, doubling_rounds, make_strata, random_positions
from pbgeval.notation import Bucket
from pbgeval.ranking.draws import DrawStream

sizes = st.lists(st.one_of(st.just(0), st.integers(0, 9), st.integers(0, 10**12)), min_size=1, max_size=12)
offsets = st.integers(0, (1 << 64) - 1)


def population_of(of):
    return [(i // 4, Bucket(i % 4, i % 3), size) for i, size in enumerate(of)]


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
    if num_draws >= total:
        assert tuple(of) == allocated
    else:  # so that over all offsets the mean is the share
        ends = [
            floor(Fraction(end * num_draws, total) + Fraction(offset, 1 << 64)) for end in accumulate(of, initial=0)
        ]
        assert tuple(after - before for before, after in pairwise(ends)) == allocated


@pytest.mark.parametrize(
    ("size", "first", "rounds"),
    [(9000, 2000, (2000, 4000, 8000, 9000)), (4000, 2000, (2000, 4000)), (3, 2000, (3,)), (0, 2000, (0,))],
)
def test_rounds_double_until_they_are_the_population(size, first, rounds):
    assert doubling_rounds(size, first) == rounds


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 16, 17, 100, 1001, 70_000])
def test_a_random_order_has_every_number_once(size):
    stream = DrawStream(size)

    whole = random_positions(stream, size, 0, size)

    assert (list(range(size)), whole[size // 3 : size // 2].tolist(), 0) == (
        sorted(whole.tolist()),
        random_positions(stream, size, size // 3, size // 2).tolist(),
        len(random_positions(stream, size, size, size)),
    )
    huge = random_positions(stream, 10**11 + 7, 10**10, 10**10 + 5000)  # computed where it is asked for
    assert (len(np.unique(huge)), 0 <= huge.min() < huge.max() < 10**11 + 7) == (5000, True)
    assert abs(huge.mean() / 10**11 - 0.5) < 5 * 12**-0.5 / 5000**0.5


def test_every_unit_is_drawn_with_the_same_probability_whatever_its_bucket():
    of, num_draws, num_seeds = [7, 1, 0, 30, 12, 3, 50, 2], 21, 600
    counts = {(path_index, bucket): np.zeros(size) for path_index, bucket, size in population_of(of)}
    for seed in range(num_seeds):
        sample = EdgeSample.of_size(population_of(of), num_draws, seed)
        for path_index, bucket, _ in sample.population:
            counts[path_index, bucket][sample.draw(path_index, bucket)[0]] += 1

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
            drawn, first_cluster = sample.draw(path_index, bucket, round_number)
            units = drawn.tolist()
            assert sorted(set(units)) == units
            assert not seen[path_index, bucket] & set(units)
            assert set(range(size)) >= set(units)
            seen[path_index, bucket] |= set(units)
            clusters |= {first_cluster + j: stratum_of[path_index, bucket] for j in range(len(units))}
        strata += [clusters[cluster] for cluster in sorted(clusters)]
        design = sample.design(round_number)
        assert (design.stratum_N.tolist(), sorted(clusters), len(strata)) == (
            strata,
            list(range(len(strata) - len(clusters), len(strata))),
            sample.round_totals[round_number - 1],
        )
        assert sum(of) == sample.num_units == design.population_G.sum()

    assert sample.round_totals[-1] == sample.num_units
    assert all(len(seen[path_index, bucket]) == size for path_index, bucket, size in sample.population)


POPULATION = [(0, Bucket(0, 0), 1000), (0, Bucket(0, 1), 50), (1, Bucket(0, 0), 300)]
FROZEN = [
    [[68, 100, 629, 737, 748, 765, 823, 924, 990], [47], [53, 101]],
    [[88, 106, 143, 515, 715, 727, 799, 862, 958], [5, 27, 28], []],
]


def drawn_by(sample: EdgeSample, *rounds: int) -> list[list[list[int]]]:
    return [[sample.draw(*place, number)[0].tolist() for *place, _ in sample.population] for number in rounds]


def test_frozen_units():
    """Frozen: these may never change, or results of different versions do not compare."""
    assert drawn_by(EdgeSample.of_rounds(POPULATION, 7, 12), 1, 2) == FROZEN
