"""Read JSON that others may have written, edited or damaged: what cannot be read is a `ValueError`, whatever it is."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from pbgeval.errors import StorageError
from pbgeval.storage.text import MAX_SMALL_BYTES, read_text, show, unreadable

MAX_DEPTH = 64  # lists and objects within each other; Python's readers and writers of JSON call themselves for each


def parse_json(text: str | bytes) -> Any:  # noqa: ANN401 (what the text says)
    """Parse JSON of finite numbers in which an object has each name once.

    Raises:
        ValueError: it is none, or not UTF-8.
    """
    text = text.decode("utf-8") if isinstance(text, bytes) else text
    try:
        found = json.loads(text, object_pairs_hook=once_each, parse_float=_finite, parse_constant=_no_number)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    level = [found]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level for inner in _inner(outer)]
        if not level:
            return found
    raise ValueError(_TOO_DEEP)


_TOO_DEEP = f"more than {MAX_DEPTH} lists and objects within each other"


def _inner(value: Any) -> list[Any]:  # noqa: ANN401 (any JSON)
    """Return the lists and objects directly within a value."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [part for part in parts if isinstance(part, dict | list)]


def _finite(digits: str) -> float:
    if not math.isfinite(number := float(digits)):
        raise ValueError(f"{digits[:40]}, a number beyond float64")
    return number


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name}, which is no number of JSON")


def read_object(path: Path, what: str) -> dict[str, Any]:
    """Read a file that holds one JSON object.

    Raises:
        StorageError: it cannot be read, or holds something else.
    """
    with unreadable(path, f"cannot read {what}", "", (OSError, ValueError)):
        if os.path.getsize(path) > MAX_SMALL_BYTES:
            raise ValueError(f"more than {MAX_SMALL_BYTES >> 20} MB")
        found = parse_json(read_text(path))
    if not isinstance(found, dict):
        raise StorageError(f"{path}: expected a JSON object, found a {type(found).__name__}")
    return found


class RepeatedNameError(ValueError):
    """A name stands twice in a JSON object, so that readers may differ in what it means."""


def once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the values of a JSON object by their names.

    Raises:
        RepeatedNameError: a name stands twice.
    """
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise RepeatedNameError(f"the name {show(name)} occurs twice")
        found[name] = value
    return found


def digest_of(settings: Mapping[str, Any]) -> str:
    """Return the digest of what is ready for JSON: of a run, all that can change a number, and nothing else."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:32]


def differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """Return the keys whose values differ, in order."""
    return sorted(key for key in {*a, *b} if a.get(key) != b.get(key))
