"""Describe the form of a JSON document, and find where one differs, as readers of edited and damaged files need it.

Keys that a description does not name are passed over, unless it says of which form they are.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from attrs import field, frozen

from pbgeval.storage.text import one_line

MAX_COUNT = 2**63 - 1
MAX_NUMBER = 1.7976931348623157e308  # of float64
MAX_SHOWN = 40  # characters of a value


@frozen
class Leaf:
    """A value without parts."""

    name: str
    fits: Callable[[Any], bool]


@frozen
class Items:
    """A list."""

    of: Shape


@frozen
class Keys:
    """An object."""

    required: Mapping[str, Shape] = field(factory=dict)
    optional: Mapping[str, Shape] = field(factory=dict)
    others: Shape | None = None  # of the keys that are not named; None: any value
    pattern: str = ".*"  # of the names of the others


@frozen
class OrNull:
    """A value, or null."""

    of: Shape


Shape: TypeAlias = Leaf | Items | Keys | OrNull


def misfits(value: Any, shape: Shape, place: str = "") -> Iterator[str]:  # noqa: ANN401 (any JSON)
    """Yield what is not as expected, and where."""
    if isinstance(shape, OrNull):
        if value is not None:
            yield from misfits(value, shape.of, place)
    elif isinstance(shape, Leaf):
        if not shape.fits(value):
            yield _misfit(shape.name, place, value)
    elif isinstance(shape, Items):
        if not isinstance(value, list):
            yield _misfit("a list", place, value)
            return
        for index, item in enumerate(value):
            yield from misfits(item, shape.of, f"{place}[{index}]")
    elif not isinstance(value, dict):
        yield _misfit("an object", place, value)
    else:
        yield from _misfits_of_keys(value, shape, f"{place}." if place else "")


def _misfits_of_keys(value: dict[str, Any], shape: Keys, prefix: str) -> Iterator[str]:
    yield from (f"expected {prefix}{key}, found nothing" for key in shape.required if key not in value)
    for key, of_key in {**shape.required, **shape.optional}.items():
        if key in value:
            yield from misfits(value[key], of_key, f"{prefix}{key}")
    if shape.others is None:
        return
    for key in value.keys() - shape.required.keys() - shape.optional.keys():
        if not re.fullmatch(shape.pattern, key, re.DOTALL):
            yield f"expected a name that this version writes in {prefix.removesuffix('.')}, found {_clipped(key)}"
        yield from misfits(value[key], shape.others, f"{prefix}{_clipped(key)}")


def _misfit(name: str, place: str, value: object) -> str:
    kinds: dict[type, str] = {dict: "an object", list: "a list"}
    found = kinds.get(type(value)) or _clipped(json.dumps(value))
    return f"expected {name}{f' at {place}' if place else ''}, found {found}"


def _clipped(text: str) -> str:
    line = one_line(text)
    return line if len(line) <= MAX_SHOWN else f"{line[: MAX_SHOWN - 3]}..."


def _is_number(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) <= MAX_NUMBER and math.isfinite(value)  # type: ignore[arg-type]


def one_of(*names: str) -> Leaf:
    """Return the form of a text that is one of some."""
    return Leaf(" or ".join(names), lambda value: isinstance(value, str) and value in names)


TEXT = Leaf("a text", lambda value: isinstance(value, str))
FLAG = Leaf("true or false", lambda value: isinstance(value, bool))
NUMBER = Leaf("a number", _is_number)
COUNT = Leaf("a whole number", lambda value: type(value) is int and 0 <= value <= MAX_COUNT)
POSITIVE = Leaf("a whole number from 1", lambda value: type(value) is int and 1 <= value <= MAX_COUNT)
