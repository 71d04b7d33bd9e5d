"""The folder of entities of an earlier import, ours or PyTorch-BigGraph's -> the tables of `dictionaries`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pbgeval.errors import ConfigError, StorageError
from pbgeval.importing.dictionaries import ENTITIES, NAMES_AT_A_TIME, Sizes, number_relations
from pbgeval.importing.engine import Engine
from pbgeval.importing.relation_types import Partitioning, RelationTypes
from pbgeval.storage.entities import read_entity_count, read_entity_names, read_relation_names
from pbgeval.storage.text_files import listed

_NAMES_FILE = re.compile(r"entity_names_(.+)_(0|[1-9][0-9]*)\.json")


def read_dictionaries(
    engine: Engine, folder: Path, types: RelationTypes | None, relations: Sequence[str] | None = None
) -> tuple[RelationTypes, Sizes]:
    """Read what an earlier import, or PyTorch-BigGraph's, wrote into its folder of entities.

    Args:
        engine: that gets the tables.
        folder: with `entity_names_<type>_<part>.json` and `dynamic_rel_names.json`.
        types: of relations; None where there is one type.
        relations: their names, in the order of their ids; None: those of the folder.

    Raises:
        StorageError: a file is missing, damaged, or does not fit the others.
    """
    found = _named_partitions(folder)
    if types is None:
        if len(found) != 1:
            raise ConfigError(
                f"{folder}: expected entities of one type, found {', '.join(found)}; say by --types what relations "
                "connect"
            )
        (only,) = found
        types = RelationTypes(other=(only, only))
    missing = [name for name in types.entity_types if name not in found]
    if missing:
        raise StorageError(f"{folder}: expected names of entities of type {listed(missing)}, found {listed([*found])}")
    names = read_relation_names(folder) if relations is None else relations
    if names is None:
        raise StorageError(f"{folder / 'dynamic_rel_names.json'}: expected the names of relations, found no such file")
    number_relations(engine, names, types)
    engine.run(ENTITIES)
    sizes = {
        name: [_load_names(engine, folder, name, index, part) for part in range(found[name])]
        for index, name in enumerate(types.entity_types)
    }
    for table, key in (("entities", "type, name"), ("relations", "name")):
        again = engine.rows(f"SELECT name FROM {table} GROUP BY {key} HAVING count(*) > 1 ORDER BY name LIMIT 7")
        if again:
            raise StorageError(
                f"{folder}: expected each name of {table} once, found {listed([str(row[0]) for row in again])} again"
            )
    Partitioning(of_type=tuple((name, len(parts)) for name, parts in sizes.items())).check(types.entity_types)
    return types, sizes


def _named_partitions(folder: Path) -> dict[str, int]:
    """Count the partitions whose names a folder holds, by type."""
    try:
        names = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise StorageError(f"{folder}: expected a folder of entities, found: {error.strerror or error}") from error
    parts: dict[str, set[int]] = {}
    for match in filter(None, map(_NAMES_FILE.fullmatch, names)):
        parts.setdefault(match[1], set()).add(int(match[2]))
    if not parts:
        raise StorageError(f"{folder}: expected entity_names_<type>_<partition>.json, found {listed(names)}")
    for entity_type, numbers in parts.items():
        absent = min(set(range(max(numbers) + 2)) - numbers)
        if absent < len(numbers):
            raise StorageError(f"{folder / f'entity_names_{entity_type}_{absent}.json'}: expected it, found none")
    return {entity_type: len(numbers) for entity_type, numbers in parts.items()}


def _load_names(engine: Engine, folder: Path, entity_type: str, index: int, part: int) -> int:
    path = folder / f"entity_names_{entity_type}_{part}.json"
    names = read_entity_names(folder, entity_type, part) or []
    count = read_entity_count(folder, entity_type, part)
    if count is not None and count != len(names):
        raise StorageError(f"{path}: expected {count} names (the entity count beside it), found {len(names)}")
    for start in range(0, len(names), NAMES_AT_A_TIME):
        block = names[start : start + NAMES_AT_A_TIME]
        if not "".join(block).isprintable() and any(_is_surrogate(name) for name in block):
            raise StorageError(f"{path}: expected names that UTF-8 can write, found a lone surrogate")
        columns = {"name": np.array(block, object), "row": np.arange(start, start + len(block))}
        engine.insert("entities", columns, f"{index}, name, {part}, row")
    return len(names)


def _is_surrogate(name: str) -> bool:
    return any("\ud800" <= letter <= "\udfff" for letter in name)
