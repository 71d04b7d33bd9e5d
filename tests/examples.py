"""How much is tried of a law: all that it asks for, or a share where it shall be quick.

Use, so that `scripts/test` without `--all` (hypothesis profile `quick`) tries a quarter of the random examples:

    @settings(max_examples=examples(60))

and a third of the combinations of some parameters, with each value of each:

    @pytest.mark.parametrize(("model", "setting"), crossed(MODELS, SETTINGS, quick=3))

or graphs that are smaller, too:

    tiny_graphs(max_edges=among(16, 60))

Laws that name no number of examples follow the profile by themselves. A test file that is run alone tries all.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import settings

ALL = 100  # of a law that names no number: hypothesis's own default
QUICK = 25


def examples(number: int) -> int:
    """Return the share of a number of examples that the profile asks for, at least one."""
    return math.ceil(number * settings().max_examples / ALL)


def among(quick: int, all_: int) -> int:
    """Return the first number where the profile is quick, else the second."""
    return all_ if settings().max_examples >= ALL else quick


def crossed(*factors: Sequence[object], quick: int) -> list[Any]:
    """Return all combinations of values as parameters of a test, all but one in `quick` of them marked slow.

    Those left are diagonals: each value of each factor is among them, if some other factor has `quick` values.

    Args:
        *factors: the values of a parameter each, or tuples of several.
        quick: of so many combinations, one runs without --all.
    """
    parameters = []
    for places in itertools.product(*(range(len(factor)) for factor in factors)):
        values = [factor[at] for factor, at in zip(factors, places, strict=True)]
        flat = itertools.chain.from_iterable(of if isinstance(of, tuple) else (of,) for of in values)
        parameters.append(pytest.param(*flat, marks=[pytest.mark.slow] if sum(places) % quick else []))
    return parameters
