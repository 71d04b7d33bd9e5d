"""How much is tried of a law: all that it asks for, or a share where it shall be quick.

Use, so that `scripts/test` tries a seventh of the random examples (hypothesis profile `quick`), and a fifth with
`--all` (profile `fifth`):

    @settings(max_examples=examples(60))

and a third of the combinations of some parameters, with each value of each:

    @pytest.mark.parametrize(("model", "setting"), crossed(MODELS, SETTINGS, quick=3))

or, without `--all`, fewer examples and smaller graphs:

    @settings(max_examples=examples(60, quick=2))
    tiny_graphs(max_edges=among(16, 60))

or, of many cases of one kind, each tenth, and fewer where the profile asks for a share:

    CASES[:: every(10)]

Laws that name no number of examples follow the profile by themselves. A test file that pytest runs alone tries all.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import settings

ALL = 100  # of a law that names no number: hypothesis's own default
FIFTH = 20
QUICK = 14


def examples(number: int, *, quick: int | None = None) -> int:
    """Return the share of a number of examples that the profile asks for.

    Two at least: the first is the simplest that there is, often a graph without edges.

    Args:
        number: all examples.
        quick: examples without --all, if a seventh is too many.
    """
    if quick is not None and is_quick():
        return quick
    return max(2, math.ceil(number * settings().max_examples / ALL))


def every(number: int) -> int:
    """Return the step through a list of cases: a number, more where the profile asks for a share of them."""
    return math.ceil(number * ALL / settings().max_examples)


def among(quick: int, all_: int) -> int:
    """Return the first number where the profile is quick, else the second."""
    return quick if is_quick() else all_


def is_quick() -> bool:
    return settings().max_examples <= QUICK


def crossed(*factors: Sequence[object], quick: int, thorough: int = 1) -> list[Any]:
    """Return combinations of values as parameters of a test, all but one in `quick` of all that there are marked slow.

    Those left are diagonals: each value of each factor is among them, if some other factor has `quick` values.

    Args:
        *factors: the values of a parameter each, or tuples of several.
        quick: of so many combinations, one runs without --all; a multiple of `thorough`.
        thorough: of so many, one runs at all, where factors do not depend on each other.
    """
    parameters = []
    for places in itertools.product(*(range(len(factor)) for factor in factors)):
        if sum(places) % thorough:
            continue
        values = [factor[at] for factor, at in zip(factors, places, strict=True)]
        flat = itertools.chain.from_iterable(of if isinstance(of, tuple) else (of,) for of in values)
        parameters.append(pytest.param(*flat, marks=[pytest.mark.slow] if sum(places) % quick else []))
    return parameters
