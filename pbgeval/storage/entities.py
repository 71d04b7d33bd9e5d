"""Entity folder -> numbers and names of entities and relations.

Names are never needed to evaluate: where they are absent the answer is None. Counts must be right where they exist.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from pbgeval.errors import StorageError
from pbgeval.reading import read_small_text
from pbgeval.storage.text_files import one_line

_COUNT = re.compile(r"[0-9]{1,18}")  # fits int64


def entity_count_path(entity_path: Path, entity_type: str, partition: int) -> Path:
    """Where the number of entities of one partition is written."""
    return entity_path / f"entity_count_{entity_type}_{partition}.txt"


def read_entity_count(entity_path: Path, entity_type: str, partition: int) -> int | None:
    """Return the number of entities of a partition, None if its file is absent.

    Raises:
        StorageError: the file cannot be read or does not hold a number.
    """
    return _read_count(entity_count_path(entity_path, entity_type, partition))


def read_dynamic_relation_count(entity_path: Path) -> int:
    """Return the number of relations of a graph whose relations are dynamic.

    Raises:
        StorageError: the file is absent, cannot be read or does not hold a number.
    """
    path = entity_path / "dynamic_rel_count.txt"
    count = _read_count(path)
    if count is None:
        raise StorageError(
            f"{path}: expected the number of relations (dynamic_relations is set), found no such file;"
            " check entity_path"
        )
    return count


def read_entity_names(entity_path: Path, entity_type: str, partition: int) -> list[str] | None:
    """Return the names of a partition's entities in the order of their rows, None if their file is absent.

    Raises:
        StorageError: the file cannot be read or is not a JSON list of strings.
    """
    return _read_names(entity_path / f"entity_names_{entity_type}_{partition}.json")


def read_relation_names(entity_path: Path) -> list[str] | None:
    """Return the names of the relations in the order of their indices, None if their file is absent.

    PBG's importer writes this file whether relations are dynamic or not.

    Raises:
        StorageError: the file cannot be read or is not a JSON list of strings.
    """
    return _read_names(entity_path / "dynamic_rel_names.json")


def _read_count(path: Path) -> int | None:
    text = read_small_text(path)
    if text is None:
        return None
    if not _COUNT.fullmatch(text.strip()):
        raise StorageError(f"{path}: expected a non-negative integer, found {text[:40]!r}; write the count again")
    return int(text)


def _read_names(path: Path) -> list[str] | None:
    text = read_small_text(path)
    if text is None:
        return None
    try:
        names = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StorageError(f"{path}: expected a JSON list of names, found: {one_line(error)}") from error
    if not isinstance(names, list):
        raise StorageError(f"{path}: expected a JSON list of names, found a JSON {type(names).__name__}")
    for row, name in enumerate(names):
        if not isinstance(name, str):
            raise StorageError(f"{path}: row {row}: expected a name in quotes, found {one_line(json.dumps(name))}")
    return names
