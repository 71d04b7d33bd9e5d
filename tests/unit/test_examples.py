"""What a quick run leaves out of a law: never a value of a parameter, and never the last example."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings

from tests.examples import crossed, examples


def left(parameters: list[Any]) -> list[tuple[Any, ...]]:
    return [of.values for of in parameters if not of.marks]


@pytest.mark.parametrize(("sizes", "quick"), [((8, 6), 3), ((5, 4, 2), 3), ((2, 7, 2), 2), ((2, 2), 2), ((3, 4), 3)])
def test_all_combinations_are_there_and_a_quick_run_has_each_value(sizes: tuple[int, ...], quick: int) -> None:
    factors = [[f"{name}{at}" for at in range(size)] for name, size in zip("abc", sizes, strict=False)]

    parameters = crossed(*factors, quick=quick)

    num_combinations = 1
    for size in sizes:
        num_combinations *= size
    assert num_combinations == len({of.values for of in parameters}) == len(parameters)
    assert num_combinations / quick - 1 < len(left(parameters)) < num_combinations / quick + 1
    assert {value for of in factors for value in of} == {value for values in left(parameters) for value in values}
    assert {"slow"} == {mark.name for of in parameters for mark in of.marks}


def test_values_may_be_tuples_and_one_factor_is_thinned() -> None:
    assert [("a", 1, "c"), ("b", 2, "d")] == left(crossed([("a", 1), ("b", 2)], ["c", "d"], quick=2))
    assert [(0,), (3,), (6,)] == left(crossed(range(8), quick=3))


@pytest.mark.parametrize(("profile", "expected"), [("local", [1, 3, 60, 250]), ("quick", [1, 1, 15, 63])])
def test_a_profile_decides_how_many_examples_are_tried(profile: str, expected: list[int]) -> None:
    before = settings.get_current_profile_name()
    settings.load_profile(profile)
    try:
        found = [examples(number) for number in (1, 3, 60, 250)]
    finally:
        settings.load_profile(before)

    assert expected == found
