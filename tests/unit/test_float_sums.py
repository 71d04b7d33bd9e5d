"""Sums of float64 values are those of additions in one order, which is told here by a loop."""

from __future__ import annotations

from math import fsum, inf, isinf

import numpy as np
import pytest

from pbgeval.stats.float_sums import float_sum


def added_in_order(values: list[float]) -> float:
    """64 rows of as many columns as needed, row by row; the columns' sums exactly. A single column is added exactly."""
    if len(values) <= 64:
        return fsum(values)
    num_columns = (len(values) + 63) // 64
    sums = [0.0] * num_columns
    for place, value in enumerate(values):
        sums[place % num_columns] += value
    return fsum(sums)


@pytest.mark.parametrize("num", [0, 1, 2, 63, 64, 65, 1000, 100_003])
def test_values_are_added_in_one_order(num: int) -> None:
    generator = np.random.Generator(np.random.PCG64(num))
    values = generator.standard_normal(num) * 2.0 ** generator.integers(-30, 30, num)

    assert float_sum(values) == added_in_order(values.tolist())
    assert float_sum(values) == pytest.approx(fsum(values.tolist()), rel=1e-12, abs=1e-3)


def test_integers_infinities_and_views_are_added() -> None:
    assert float_sum(np.array([2**52, 1, -(2**52)])) == 1.0
    assert isinf(float_sum(np.array([1.0, inf])))
    assert float_sum(np.arange(10.0)[::3]) == 18.0
