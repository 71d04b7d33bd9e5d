"""What a quick run leaves out of a law: never a value of a parameter, and never the last example."""

from __future__ import annotations

from typing import Any

import pytest

from tests.examples import crossed


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
