"""Entity folder -> numbers and names of entities and relations.

Names are never needed to evaluate: where they are absent the answer is None. Counts must be right where they exist.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
from attrs import define, field

from pbgeval.errors import StorageError
from pbgeval.notation import distinct
from pbgeval.storage.text import one_line, read_small_text, unreadable

_COUNT = re.compile(r"[0-9]{1,18}")  # fits int64


def entity_count_path(entity_path: Path, entity_type: str, partition: int) -> Path:
    """Return the path of the entity count of one partition."""
    return entity_path / f"entity_count_{entity_type}_{partition}.txt"


def entity_names_path(entity_path: Path, entity_type: str, partition: int) -> Path:
    """Return the path of the entity names of one partition."""
    return entity_path / f"entity_names_{entity_type}_{partition}.json"


def read_entity_count(entity_path: Path, entity_type: str, partition: int) -> int | None:
    """Return the number of entities of a partition, None if its file is absent.

    Raises:
        StorageError: the file cannot be read or does not hold a number.
    """
    return _read_count(entity_count_path(entity_path, entity_type, partition))


def read_dynamic_relation_count(entity_path: Path, advice: str = "") -> int:
    """Return the number of relations of a graph whose relations are dynamic; `advice` is told where it is absent.

    Raises:
        StorageError: the file is absent, cannot be read or does not hold a number.
    """
    path = entity_path / "dynamic_rel_count.txt"
    count = _read_count(path)
    if count is None:
        raise StorageError(
            f"{path}: no such file, but dynamic_relations = True needs the number of relations; check entity_path or"
            f" dynamic_relations{advice}"
        )
    return count


def read_entity_names(entity_path: Path, entity_type: str, partition: int, size: int | None = None) -> list[str] | None:
    """Return the names of a partition's entities in the order of their rows, None if their file is absent.

    Raises:
        StorageError: the file cannot be read or is not a JSON list of strings, of the size given.
    """
    path = entity_names_path(entity_path, entity_type, partition)
    names = _read_names(path)
    if size is not None and names is not None and len(names) != size:
        raise StorageError(
            f"{path}: expected {size} names, one per entity, found {len(names)}; check that the names belong to this"
            " graph"
        )
    return names


def read_relation_names(entity_path: Path) -> list[str] | None:
    """Return the names of the relations in the order of their indices, None if their file is absent.

    PBG's importer writes this file whether relations are dynamic or not.

    Raises:
        StorageError: the file cannot be read or is not a JSON list of strings.
    """
    return _read_names(entity_path / "dynamic_rel_names.json")


def _read_count(path: Path) -> int | None:
    text = read_small_text(path)
    if text is not None and not _COUNT.fullmatch(text.strip()):
        raise StorageError(f"{path}: expected a non-negative integer, found {text[:40]!r}; write the count again")
    return None if text is None else int(text)


def _read_names(path: Path) -> list[str] | None:
    text = read_small_text(path, max_bytes=None)
    if text is None:
        return None
    with unreadable(path, "expected a JSON list of names, found", "", (ValueError, RecursionError)):
        names = json.loads(text)
    if not isinstance(names, list):
        raise StorageError(f"{path}: expected a JSON list of names, found a JSON {type(names).__name__}")
    for row, name in enumerate(names):
        if not isinstance(name, str):
            raise StorageError(f"{path}: row {row}: expected a name in quotes, found {one_line(json.dumps(name))}")
    return names


# (entity type, partition, row) -> the word that a table shows: the entity's name, or `type:partition:row`.
#
# Names of a large graph do not fit in memory: only those of some partitions are kept.

BUDGET_BYTES = 256 * 2**20


@define
class EntityLabels:
    """Names of entities, read when they are first asked for."""

    entity_path: Path
    sizes: Mapping[tuple[str, int], int]  # entities by (type, partition)
    budget_bytes: int = BUDGET_BYTES  # of names kept for the next call; those in hand come on top
    # Of a model whose types are one partition each: the names of a type in order of the rows, None if there are none.
    of_model: Callable[[str], Iterable[str] | None] | None = None
    _kept: dict[tuple[str, int], list[str] | None] = field(factory=dict, init=False)  # oldest first

    def look_up(self, entity_type: str, partitions: np.ndarray, rows: np.ndarray) -> list[str]:
        """Return the labels of some entities of one type.

        Args:
            entity_type: their type.
            partitions: int64 (n).
            rows: int64 (n), in their partitions.

        Raises:
            StorageError: a file of names cannot be read, is no list of names, or has not one per entity.
        """
        labels = [""] * len(rows)
        for partition in distinct(partitions).tolist():
            names = self._names(entity_type, partition)
            for position in np.flatnonzero(partitions == partition).tolist():
                row = int(rows[position])
                labels[position] = f"{entity_type}:{partition}:{row}" if names is None else names[row]
        return labels

    def _names(self, entity_type: str, partition: int) -> list[str] | None:
        key = entity_type, partition
        if key not in self._kept:
            of_model = None if self.of_model is None else self.of_model(entity_type)
            names = (
                read_entity_names(self.entity_path, entity_type, partition, self.sizes[key])
                if of_model is None
                else [*of_model]
            )
            # JSON may hold lone surrogates, which are no UTF-8.
            self._kept[key] = names and [name.encode("utf-8", "backslashreplace").decode() for name in names]
        names = self._kept[key] = self._kept.pop(key)
        while len(self._kept) > 1 and (
            sum(sys.getsizeof(name) for kept in self._kept.values() for name in kept or ()) > self.budget_bytes
        ):
            del self._kept[next(iter(self._kept))]
        return names
