"""Read small files of JSON: descriptions of models and what training recorded."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from pbgeval.errors import StorageError
from pbgeval.storage.text import read_text, unreadable

MAX_OBJECT_BYTES = 32 << 20


def read_object(path: Path, what: str) -> dict[str, Any]:
    """Read a file that holds one JSON object.

    Raises:
        StorageError: it cannot be read, or holds something else.
    """
    with unreadable(path, f"cannot read {what}", "", (OSError, ValueError, RecursionError)):
        if os.path.getsize(path) > MAX_OBJECT_BYTES:
            raise ValueError(f"more than {MAX_OBJECT_BYTES >> 20} MB")
        found = json.loads(read_text(path), object_pairs_hook=once_each)
    if not isinstance(found, dict):
        raise StorageError(f"{path}: expected a JSON object, found a {type(found).__name__}")
    return found


def once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the values of a JSON object by their names.

    Raises:
        ValueError: a name stands twice, so that readers may differ in what it means.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name that stands twice")
    return found
