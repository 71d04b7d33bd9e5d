"""Tables of edges -> tables that number relations and entities, and the files that hold them.

`relations` (name, id, lhs_type, rhs_type) and `entities` (type, name, part, row), types by their index in a tuple.
Entities of a type stand in one order, by degree or at random, and are dealt out from it: entity k is in partition
k mod P at random, and to and fro by degree; its row is k div P. So partitions are of equal size but for one entity.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import chain, islice
from pathlib import Path

import numpy as np
from attrs import frozen

from pbgeval.errors import ConfigError, DataError, StorageError
from pbgeval.importing.engine import Engine, quoted
from pbgeval.models.labels import (
    OF_RELATIONS,
    check_distinct,
    labels_beside,
    labels_by_type,
    labels_in_order,
    read_labels,
)
from pbgeval.notation import ENTITY_TYPE, MAX_PARTITIONS
from pbgeval.storage import checkpoint_files
from pbgeval.storage.entities import entity_names_path, read_entity_count, read_entity_names, read_relation_names
from pbgeval.storage.names_digests import NamesDigests
from pbgeval.storage.text import listed, one_line, rows, unreadable

# A file `relation<TAB>left type<TAB>right type` -> the entity types of each relation, in the order of their ids.


@frozen
class RelationTypes:
    """Which types relations connect."""

    listed: tuple[tuple[str, str, str], ...] = ()  # (relation, left type, right type), in the order of their ids
    other: tuple[str, str] | None = (ENTITY_TYPE, ENTITY_TYPE)  # of relations not listed; None: there must be none
    path: Path | None = None  # where this was read

    @property
    def entity_types(self) -> tuple[str, ...]:
        """All types, by name."""
        pairs = [(lhs, rhs) for _, lhs, rhs in self.listed] + ([self.other] if self.other else [])
        return tuple(sorted({name for pair in pairs for name in pair}))

    @classmethod
    def read(cls, path: Path) -> RelationTypes:
        """Read a file; a relation `*` says the types of all that are not listed.

        Raises:
            StorageError: a line is not of that form; names it.
        """
        listed: dict[str, tuple[str, str]] = {}
        for number, line, fields in rows(path):
            if len(fields) != 3 or not all(fields) or any("/" in name for name in fields[1:]):
                raise StorageError(
                    f"{path}:{number}: expected relation<TAB>left type<TAB>right type (types without /), got "
                    f"{one_line(line)!r}"
                )
            if fields[0] in listed:
                raise StorageError(f"{path}:{number}: the relation {one_line(fields[0])!r} occurs twice")
            listed[fields[0]] = (fields[1], fields[2])
        other = listed.pop("*", None)
        if not listed and other is None:
            raise StorageError(f"{path}: there are no relations in this file")
        return cls(tuple((name, *types) for name, types in listed.items()), other, path)


@frozen
class Partitioning:
    """How entities of each type are dealt to partitions."""

    num_partitions: int = 1
    of_type: tuple[tuple[str, int], ...] = ()  # where another number
    by_degree: bool = False  # else at random
    seed: int = 0

    def of(self, entity_type: str) -> int:
        """Return the number of partitions of a type."""
        return dict(self.of_type).get(entity_type, self.num_partitions)

    def check(self, entity_types: tuple[str, ...]) -> None:
        """Refuse what PyTorch-BigGraph's buckets cannot express.

        Raises:
            ConfigError: a type is not there, or two types have unlike numbers of partitions, neither being 1.
        """
        counts = {name: self.of(name) for name in entity_types}
        found = ", ".join(f"{name} {count}" for name, count in counts.items())
        for name, _ in self.of_type:
            if name not in entity_types:
                raise ConfigError(f"--partitions {name}: no such entity type; the types are {', '.join(entity_types)}")
        if len(set(counts.values()) - {1}) > 1:
            raise ConfigError(f"--partitions: all types with more than one partition need the same number, got {found}")


def partition_counts(texts: Sequence[str]) -> tuple[int, tuple[tuple[str, int], ...]]:
    """Read `N` and `TYPE=N`: the number of partitions of all types, and of some.

    Raises:
        ConfigError: one is neither.
    """
    counts = {"": 1}  # by type; "": of all others
    for text in texts:
        name, _, number = text.rpartition("=")
        if not (number.isascii() and number.isdigit() and len(number) <= 18 and int(number) >= 1):
            raise ConfigError(f"--partitions {text}: expected a number >= 1, or TYPE=NUMBER")
        if int(number) > MAX_PARTITIONS:
            raise ConfigError(f"--partitions {text}: expected at most {MAX_PARTITIONS:,}")
        counts[name] = int(number)
    return counts.pop(""), tuple(counts.items())


NAMES_AT_A_TIME = 1 << 18
ENTITIES = "CREATE TABLE entities (type INTEGER, name VARCHAR, part INTEGER, row INTEGER)"

Sizes = dict[str, list[int]]  # entities of each partition, by type


def make_relations(engine: Engine, tables: Sequence[str], types: RelationTypes) -> None:
    """Number relations: those listed in their order, then all others by name.

    Raises:
        StorageError: an edge has a relation whose types are not given.
    """
    names = dict.fromkeys(name for name, _, _ in types.listed)
    found = " UNION ".join(f"SELECT rel AS name FROM {table}" for table in tables)
    unlisted = [
        name for (name,) in engine.run(f"SELECT DISTINCT name FROM ({found}) ORDER BY name") if name not in names
    ]
    if unlisted and types.other is None:
        raise StorageError(
            f"{types.path}: the types of {listed(unlisted)} are missing; add them, or a line for all others: "
            "*<TAB>left type<TAB>right type"
        )
    number_relations(engine, [*names, *unlisted], types)


def number_relations(engine: Engine, names: Sequence[str], types: RelationTypes) -> None:
    """Make the table of some relations; their place is their number."""
    engine.run("CREATE TABLE relations (name VARCHAR, id INTEGER, lhs_type INTEGER, rhs_type INTEGER)")
    if not names:
        return
    known = {name: (lhs, rhs) for name, lhs, rhs in types.listed}
    pairs = [pair for name in names if (pair := known.get(name, types.other)) is not None]
    if len(pairs) < len(names):
        missing = [name for name in names if name not in known]
        raise StorageError(f"{types.path}: the types of {listed(missing)} are missing; add them")
    entity_types = types.entity_types
    lhs, rhs = (np.array([entity_types.index(pair[side]) for pair in pairs]) for side in (0, 1))
    engine.insert("relations", {"name": np.array(names, object), "id": np.arange(len(names)), "lhs": lhs, "rhs": rhs})


def make_entities(engine: Engine, tables: Sequence[str], types: RelationTypes, partitioning: Partitioning) -> Sizes:
    """Number the entities of some tables of edges.

    Raises:
        ConfigError: a type has more partitions than entities.
        DataError: a type has no entity.
    """
    ends = " UNION ALL ".join(
        f"SELECT {side}_type AS type, {side} AS name FROM {table} JOIN relations ON relations.name = rel"
        for table in tables
        for side in ("lhs", "rhs")
    )
    num_names, text_bytes = engine.row(
        f"SELECT approx_count_distinct(name), coalesce(avg(strlen(name)), 0) FROM ({ends})"
    )
    engine.run("CREATE TABLE degrees (type INTEGER, name VARCHAR, degree BIGINT)")
    for condition in engine.parts_of_groups("name", int(num_names), float(text_bytes)):
        engine.run(
            f"INSERT INTO degrees SELECT type, name, count(*) FROM ({ends}) WHERE {condition} GROUP BY type, name"
        )
    engine.run(ENTITIES)
    sizes: Sizes = {}
    for index, entity_type in enumerate(types.entity_types):
        count = partitioning.of(entity_type)
        num_entities = int(engine.row(f"SELECT count(*) FROM degrees WHERE type = {index}")[0])
        if not num_entities:
            raise DataError(f"{types.path}: the edges have no entity of type {entity_type}; remove the type")
        if count > num_entities:
            raise ConfigError(
                f"--partitions {count}: type {entity_type} has only {num_entities} entities; use fewer partitions"
            )
        _deal(engine, index, count, partitioning)
        found = dict(engine.run(f"SELECT part, count(*) FROM entities WHERE type = {index} GROUP BY part"))
        sizes[entity_type] = [int(found[part]) for part in range(count)]
    engine.run("DROP TABLE degrees")
    return sizes


# White space of Unicode, and what is printed as nothing.
_BLANKS = "".join(
    map(chr, (*range(9, 14), 32, 133, 160, 5760, *range(8192, 8204), 8232, 8233, 8239, 8287, 12288, 65279))
)


def plain_form(column: str) -> str:
    """Return what a name is but for its Unicode form, and white space at its ends."""
    return f"trim(nfc_normalize({column}), {quoted(_BLANKS)})"


def names_that_look_alike(engine: Engine) -> list[str]:
    """Count the names of the dictionaries that differ only in their Unicode form or in white space at their ends.

    Returns:
        A warning for entities, and one for relations, where there are such names.
    """
    warnings = []
    for table, kind in (("entities", "type"), ("relations", "0")):
        engine.run(
            f"CREATE TABLE unusual AS SELECT {kind} AS type, {plain_form('name')} AS form FROM {table} "
            f"WHERE {plain_form('name')} <> name"
        )
        num_unusual, text_bytes = engine.row("SELECT count(*), coalesce(avg(strlen(form)), 0) FROM unusual")
        total, pairs = 0, []
        for condition in engine.parts_of_groups("form", int(num_unusual), float(text_bytes)) if num_unusual else ():
            count, pair = engine.row(
                "SELECT coalesce(sum(copies), 0), min([low, high]) FROM (SELECT count(*) AS copies, min(name) AS low, "
                f"max(name) AS high FROM (SELECT {kind} AS type, name, {plain_form('name')} AS form FROM {table}) "
                f"SEMI JOIN unusual USING (type, form) WHERE {condition} GROUP BY type, form HAVING count(*) > 1)"
            )
            total += int(count)
            pairs += [] if pair is None else [pair]
        engine.run("DROP TABLE unusual")
        if total:
            low, high = min(pairs)
            warnings.append(
                f"{total:,} names of {table} differ from each other only in Unicode form or white space at their ends, "
                f"for example {low!a} and {high!a}; they count as different {table}"
            )
    return warnings


def _deal(engine: Engine, index: int, count: int, partitioning: Partitioning) -> None:
    """Deal the entities of a type to partitions: sorted in a table of their own, as a window would not be spilled."""
    order, part = f"md5({quoted(f'{partitioning.seed}:')} || name), name", f"k % {count}"
    if partitioning.by_degree:
        order = "degree DESC, name"
        part = f"CASE WHEN (k // {count}) % 2 = 0 THEN k % {count} ELSE {count - 1} - k % {count} END"
    engine.run(f"CREATE TABLE sorted AS SELECT name FROM degrees WHERE type = {index} ORDER BY {order}")
    engine.run(
        f"INSERT INTO entities SELECT {index}, name, {part}, k // {count} FROM (SELECT name, rowid AS k FROM sorted)"
    )
    engine.run("DROP TABLE sorted")


def write_dictionaries(engine: Engine, folder: Path, types: RelationTypes, sizes: Sizes) -> NamesDigests:
    """Write counts and names of entities and relations; return the names' digests. Memory follows a block of names.

    Raises:
        OutputError: they cannot be written.
    """
    engine.run("CREATE TABLE ordered AS SELECT type, part, name FROM entities ORDER BY type, part, row")
    blocks = engine.blocks("ordered", ["name"], NAMES_AT_A_TIME)
    names = chain.from_iterable(block["name"].tolist() for block in blocks)
    of_entities = {
        entity_type: [
            checkpoint_files.write_entities(folder, entity_type, part, size, islice(names, size))
            for part, size in enumerate(sizes[entity_type])
        ]
        for entity_type in types.entity_types
    }
    engine.run("DROP TABLE ordered")
    relations = [str(row[0]) for row in engine.run("SELECT name FROM relations ORDER BY id")]
    return NamesDigests(of_entities, checkpoint_files.write_relations(folder, len(relations), relations))


# The folder of entities of an earlier import, ours or PyTorch-BigGraph's -> the tables of `dictionaries`.

_NAMES_FILE = re.compile(r"entity_names_(.+)_(0|[1-9][0-9]*)\.json")


def read_dictionaries(
    engine: Engine,
    folder: Path,
    types: RelationTypes | None,
    relations: Sequence[str] | None = None,
    made_of: Path | None = None,
    label_files: Sequence[Path] = (),
    *,
    numbered: Sizes | None = None,
) -> tuple[RelationTypes, Sizes]:
    """Read what an earlier import, or PyTorch-BigGraph's, wrote into its folder of entities.

    Args:
        engine: that gets the tables.
        folder: with `entity_names_<type>_<part>.json` and `dynamic_rel_names.json`.
        types: of relations; None where there is one type.
        relations: their names, in the order of their ids; None: those of the folder.
        made_of: the model whose labels the folder has, for errors.
        label_files: of which the folder was made, for errors.
        numbered: sizes of partitions by type, where the names are the numbers of rows; the folder has no files of them.

    Raises:
        StorageError: a file is missing, damaged, or does not fit the others.
    """
    numbered = numbered or {}
    found = {name: len(parts) for name, parts in numbered.items()}
    if types is None or not set(types.entity_types) <= found.keys():
        found = _named_partitions(folder) | found
    if types is None:
        if len(found) != 1:
            raise ConfigError(
                f"{folder} has entities of the types {', '.join(found)}; name the types of each relation with --types"
            )
        (only,) = found
        types = RelationTypes(other=(only, only))
    if missing := [name for name in types.entity_types if name not in found]:
        raise StorageError(f"{folder} has no names of entities of type {listed(missing)}, only of {listed([*found])}")
    names = read_relation_names(folder) if relations is None else relations
    if names is None and types.listed and types.other is None:
        names = [name for name, _, _ in types.listed]  # PyTorch-BigGraph names no relations that are not dynamic
    if names is None:
        raise StorageError(
            f"{folder / 'dynamic_rel_names.json'}: no such file; it has the names of the relations, a JSON list in the "
            "order of their ids. Or list all relations with --types, in the order of your config's relations"
        )
    number_relations(engine, names, types)
    engine.run(ENTITIES)
    sizes = {
        name: _load_numbers(engine, index, numbered[name])
        if name in numbered
        else [_load_names(engine, folder, name, index, part) for part in range(found[name])]
        for index, name in enumerate(types.entity_types)
    }
    for table, key in (("entities", "type, name"), ("relations", "name")):
        again = engine.run(f"SELECT name FROM {table} GROUP BY {key} HAVING count(*) > 1 ORDER BY name LIMIT 7")
        if again:
            for path in label_files:
                check_distinct(path)
            raise StorageError(
                f"{made_of or folder}: these names of {table} occur more than once: "
                f"{listed([str(row[0]) for row in again])}"
            )
    Partitioning(of_type=tuple((name, len(parts)) for name, parts in sizes.items())).check(types.entity_types)
    return types, sizes


def is_of_labels(folder: Path) -> bool:
    """Tell whether a folder has files of labels in place of an entity folder's dictionaries."""
    return not any(folder.glob("entity_names_*.json")) and labels_beside(folder, OF_RELATIONS) is not None


def write_labels(
    folder: Path, target: Path, sizes: Mapping[str, Sequence[int] | None], num_relations: int | None
) -> tuple[Path, ...]:
    """Write the dictionaries that a folder's files of labels stand for.

    Args:
        folder: with a file of labels for each entity type, and of relations.
        target: the folder to be written.
        sizes: entities of each partition, by type; None: one partition of as many as have a label.
        num_relations: how many relations there are; None: as many as have a label.

    Returns:
        The files of labels.

    Raises:
        StorageError: a file is missing or not as it should be.
    """
    files, relations = labels_by_type(folder, [*sizes]), labels_beside(folder, OF_RELATIONS)
    if missing := [name for name in sizes if name not in files]:
        raise StorageError(f"{folder} has no file of labels for the entities of type {listed(missing)}; add it")
    for name, of_parts in sizes.items():
        if of_parts is None:
            read = read_labels(files[name])
            names, of_parts = iter(read), [len(read)]
        else:
            names = labels_in_order(files[name], sum(of_parts))
        for part, size in enumerate(of_parts):
            checkpoint_files.write_entities(target, name, part, size, islice(names, size))
    if relations is not None:
        labels = read_labels(relations, num_relations)
        checkpoint_files.write_relations(target, len(labels), labels)
    return (*files.values(), *([] if relations is None else [relations]))


def _named_partitions(folder: Path) -> dict[str, int]:
    """Count the partitions whose names a folder holds, by type."""
    with unreadable(folder, "cannot read this entity folder"):
        names = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    parts: dict[str, set[int]] = {}
    for match in filter(None, map(_NAMES_FILE.fullmatch, names)):
        parts.setdefault(match[1], set()).add(int(match[2]))
    if not parts:
        raise StorageError(f"{folder}: no file entity_names_<type>_<partition>.json, only {listed(names)}")
    for entity_type, numbers in parts.items():
        if (absent := min(set(range(max(numbers) + 2)) - numbers)) < len(numbers):
            raise StorageError(f"{entity_names_path(folder, entity_type, absent)}: no such file")
    return {entity_type: len(numbers) for entity_type, numbers in parts.items()}


def _load_numbers(engine: Engine, index: int, sizes: Sequence[int]) -> list[int]:
    """Add the entities of a type whose names are the numbers of rows, from partition to partition."""
    start = 0
    for part, size in enumerate(sizes):
        engine.run(
            f"INSERT INTO entities SELECT {index}, CAST({start} + row AS VARCHAR), {part}, row "
            f"FROM range({size}) t(row)"
        )
        start += size
    return list(sizes)


def _load_names(engine: Engine, folder: Path, entity_type: str, index: int, part: int) -> int:
    path = entity_names_path(folder, entity_type, part)
    names = read_entity_names(folder, entity_type, part) or []
    count = read_entity_count(folder, entity_type, part)
    if count is not None and count != len(names):
        raise StorageError(f"{path}: {len(names)} names, but the entity count beside it is {count}")
    for start in range(0, len(names), NAMES_AT_A_TIME):
        block = names[start : start + NAMES_AT_A_TIME]
        try:
            "".join(block).encode()
        except UnicodeEncodeError:
            raise StorageError(f"{path}: a name has a lone surrogate, which UTF-8 cannot encode") from None
        columns = {"name": np.array(block, object), "row": np.arange(start, start + len(block))}
        engine.insert("entities", columns, f"{index}, name, {part}, row")
    return len(names)
