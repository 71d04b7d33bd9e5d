from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from pbgeval.stats.series import (
    NUM_DIRECT,
    harmonic,
    harmonic_squares,
    log_power_moments,
    mean_reciprocal,
)

SIZES = [1, 2, 3, NUM_DIRECT - 1, NUM_DIRECT, NUM_DIRECT + 1, 2 * NUM_DIRECT, 1000, 20_000]
POWERS = [1e-13, 1e-8, 1e-3, 0.1, 1 / 3, 0.5, 0.9, 1.0]
FAR = 10**10
TOLERANCE = 2e-15  # relative: a few roundings


def log_mean_power(num_G, power_G):
    return log_power_moments(num_G, power_G)[0]


def log_power_spread(num_G, power_G):
    return log_power_moments(num_G, power_G)[1]


def one(function, *arguments):
    return float(function(*(np.array([argument]) for argument in arguments))[0])


@pytest.mark.parametrize("num", SIZES)
def test_harmonic_numbers_are_sums_of_fractions(num):
    for power, function in ((1, harmonic), (2, harmonic_squares)):
        expected = math.fsum(1 / j**power for j in range(1, num + 1))  # rounded terms: 1e-16 each

        assert expected == pytest.approx(one(function, num), rel=TOLERANCE, abs=0.0)


def test_few_terms_are_rounded_once():
    expected = [float(sum((Fraction(1, j) for j in range(1, num + 1)), Fraction(0))) for num in range(NUM_DIRECT + 2)]

    assert expected == pytest.approx([one(harmonic, num) for num in range(NUM_DIRECT + 2)], rel=3e-16, abs=0.0)


@pytest.mark.parametrize(
    ("function", "arguments", "expected"),
    [
        # DeTemple's bounds for H_1, and the midpoint rule's for H_2, differ by less than a rounding here.
        *(
            (harmonic, (num,), math.log(num + 0.5) + 0.5772156649015329 + 1 / (24 * (num + 1) ** 2))
            for num in (10**6, 10**8, FAR)
        ),
        *((harmonic_squares, (num,), math.pi**2 / 6 - 1 / (num + 0.5)) for num in (10**6, 10**8, FAR)),
        *((log_mean_power, (num, 1.0), math.log(Fraction(num + 1, 2))) for num in (10**6, FAR)),
        *((log_mean_power, (num, 2.0), math.log(Fraction((num + 1) * (2 * num + 1), 6))) for num in (10**6, FAR)),
        # variance / mean^2 of 1..c
        *((log_power_spread, (num, 1.0), math.log1p(Fraction(num - 1, 3 * (num + 1)))) for num in (10**6, FAR)),
    ],
)
def test_far_out_sums_lie_between_known_bounds_or_have_a_closed_form(function, arguments, expected):
    assert expected == pytest.approx(one(function, *arguments), rel=TOLERANCE, abs=0.0)


@pytest.mark.parametrize(
    ("first", "last"),
    [
        (1, 1),
        (1, 2),
        (2, 7),
        (19, 22),
        (20, 21),
        (21, 21),
        (21, 40),
        (40, 1000),
        (1, 5000),
        (9000, 9001),
        (FAR, FAR + 4),
    ],
)
def test_means_of_reciprocals_are_those_of_fractions(first, last):
    total = sum((Fraction(1, j) for j in range(first, last + 1)), Fraction(0))

    assert float(total / (last - first + 1)) == pytest.approx(one(mean_reciprocal, first, last), rel=TOLERANCE, abs=0.0)


@pytest.mark.parametrize("power", [*POWERS, 1.5, 2.0])
def test_logarithms_of_a_mean_power_and_of_its_spread_are_those_of_the_sums(power):
    """Relative errors are small however near 0 they are: excesses over 1 are added up, not powers."""
    for num in SIZES:
        excess_J = [math.expm1(power * math.log(j)) for j in range(1, num + 1)]
        mean = math.fsum(excess_J) / num
        variance = math.fsum((excess - mean) ** 2 for excess in excess_J) / num

        assert math.log1p(mean) == pytest.approx(one(log_mean_power, num, power), rel=TOLERANCE, abs=0.0)
        if power in POWERS:
            spread = math.log1p(variance / (1 + mean) ** 2)
            assert spread == pytest.approx(one(log_power_spread, num, power), rel=4 * TOLERANCE, abs=0.0)


def test_tiny_powers_far_out_give_the_moments_of_the_logarithm():
    """L(a) / a tends to the mean of ln j, which lgamma gives, (L(2a) - 2 L(a)) / a^2 to its variance."""
    power = 1e-12
    mean = math.lgamma(FAR + 1) / FAR

    assert mean == pytest.approx(one(log_mean_power, FAR, power) / power, rel=1e-10, abs=0.0)
    assert one(log_power_spread, FAR, power) / power**2 == pytest.approx(1.0, rel=1e-7)  # up to ln^2 c / c


def test_arrays_of_unlike_sizes_are_computed_at_once():
    num_G, power_G = np.array([1, 5, 40, 10**9]), np.array([0.5, 1e-9, 1.0, 0.25])

    assert [one(log_mean_power, *pair) for pair in zip(num_G, power_G, strict=True)] == log_mean_power(
        num_G, power_G
    ).tolist()
    assert (harmonic(np.array([])).tolist(), log_power_spread(np.array([]), np.array([])).tolist()) == ([], [])
