"""Represent another system's model: tables of vectors and a formula."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from attrs import frozen

from pbgeval.errors import StorageError
from pbgeval.models.formulas import Formula, SideParameters, TwoOperators
from pbgeval.notation import ENTITY_TYPE, Side
from pbgeval.storage.arrays import Table
from pbgeval.storage.text import one_line, plural, read_text, text_lines, unreadable

TypedRelations: TypeAlias = tuple[tuple[str, str, str], ...]  # name, left type, right type of each relation


@frozen(eq=False)
class EmbeddingModel:
    """A model of vectors. Tables are read on demand, so a model is cheap to send to workers."""

    label: str  # of the folder or file; for errors
    system: str
    formula: Formula | TwoOperators
    tables: Mapping[str, Table]  # of entity vectors, by entity type
    # Of relations, a row each: `relations`; `projection` of TransR, (entity columns, relation columns) row by row;
    # `source` and `destination` of two operators.
    parameter_tables: Mapping[str, Table] = {}
    entity_labels: Mapping[str, Path | Iterable[object]] = {}  # files, names, or a range where rows are named by number
    relation_labels: Path | tuple[str, ...] | None = None  # the file that maps ids to them, or names
    relation_types: TypedRelations = ()  # (): all of the one type
    # Where edges have other numbers than a table's rows: numbers -> rows, -1 for none.
    rows_of_ids: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {}

    @property
    def entities(self) -> Table:
        """The table of a model whose entities are of one type."""
        (table,) = self.tables.values()
        return table

    @property
    def num_entities(self) -> int:
        return sum(table.num_rows for table in self.tables.values())

    @property
    def num_relations(self) -> int:
        if self.relation_types or isinstance(self.formula, TwoOperators):
            return len(self.relation_types)
        return self.formula.num_relations(self.parameter_tables["relations"].num_rows)

    @property
    def dimension(self) -> int:
        return next(iter(self.tables.values())).dimension

    @property
    def dynamic(self) -> bool:
        """Whether relations are dynamic: all but those of types, or whose operator acts on candidates too."""
        return self.formula.dynamic and not self.relation_types

    def tables_of(self, entity_types: Sequence[str]) -> Mapping[str, Table]:
        """Return the tables by a config's entity types; a single table takes any name."""
        return {name: self.entities if len(self.tables) == 1 else self.tables[name] for name in entity_types}

    def entity_names(self, entity_type: str | None = None) -> Iterator[str] | None:
        """Return the names of the entities in order, read lazily; None if there are none."""
        name = next(iter(self.tables)) if len(self.tables) == 1 or entity_type is None else entity_type
        labels = self.entity_labels.get(name)
        if labels is None:
            return None
        return labels_in_order(labels, self.tables[name].num_rows) if isinstance(labels, Path) else map(str, labels)

    def relation_names(self) -> list[str] | None:
        """Return the names of the relations, if they have any.

        Raises:
            StorageError: the file is of the wrong form.
        """
        if self.relation_types:
            return [name for name, _, _ in self.relation_types]
        if isinstance(self.relation_labels, Path):
            return read_labels(self.relation_labels, self.num_relations)
        return None if self.relation_labels is None else list(self.relation_labels)

    def parameters(self) -> SideParameters:
        """Read the relations.

        Raises:
            StorageError: a file is gone or truncated.
        """
        read = {name: table.read_rows(0, table.num_rows) for name, table in self.parameter_tables.items()}
        sides = self.formula.parameters(read, self.dimension, self.num_relations)
        return sides if self.dynamic or isinstance(self.formula, TwoOperators) else {Side.RHS: sides[Side.RHS]}

    def digests(self) -> dict[str, str]:
        """Return the fingerprint of each table."""
        several = len(self.tables) > 1
        tables = {f"entities {name}" if several else "entities": table for name, table in self.tables.items()}
        return {name: table.fingerprint() for name, table in {**tables, **self.parameter_tables}.items()}


def of_one_type(
    label: str,
    system: str,
    formula: Formula,
    entities: Table,
    parameter_tables: Mapping[str, Table],
    entity_labels: Path | None = None,
    relation_labels: Path | None = None,
) -> EmbeddingModel:
    """Make a model whose entities are of one type."""
    labels = {} if entity_labels is None else {ENTITY_TYPE: entity_labels}
    return EmbeddingModel(label, system, formula, {ENTITY_TYPE: entities}, parameter_tables, labels, relation_labels)


def part_of(num_rows: int, index: int, num_partitions: int) -> tuple[int, int]:
    """Return the row range of one of several parts of nearly equal size."""
    return num_rows * index // num_partitions, num_rows * (index + 1) // num_partitions


# Files beside the tables: descriptions and labels. A file of labels has lines `id<TAB>label` in any order, as DGL-KE,
# OpenBioLink and LibKGE write them, or one label per line in the order of the ids.

MAX_DIGITS = 18  # of an id: an int64 holds it
MAX_OBJECT_BYTES = 32 << 20  # of a file of JSON


def read_labels(path: Path, num_labels: int) -> list[str]:
    """Return the labels in the order of their ids, whatever the order of the lines.

    Args:
        path: the file, UTF-8.
        num_labels: how many there must be.

    Raises:
        StorageError: it cannot be read, a line is of the wrong form, or ids are missing or repeated.
    """
    labels: dict[int, str] = {}
    for number, (index, label) in enumerate(_lines(path), 1):
        if index in labels:
            raise StorageError(f"{path}:{number}: id {index} has a label already; give each id one label")
        labels[index] = label
    missing = next((index for index in range(num_labels) if index not in labels), None)
    if missing is not None or len(labels) != num_labels:
        without = "" if missing is None else f", and none for id {missing}"
        raise StorageError(f"{path}: {plural(len(labels), 'label')} for {num_labels} rows of vectors{without}")
    return [labels[index] for index in range(num_labels)]


def labels_in_order(path: Path, num_labels: int) -> Iterator[str]:
    """Yield the labels in the order of their ids, streaming if the file has that order.

    Raises:
        StorageError: as `read_labels`.
    """
    num_lines = 0
    for num_lines, (index, _) in enumerate(_lines(path), 1):
        if index != num_lines - 1:
            yield from read_labels(path, num_labels)
            return
    if num_lines != num_labels:
        raise StorageError(
            f"{path}: {plural(num_lines, 'label')} for {num_labels} rows of vectors; write one label per row"
        )
    yield from (label for _, label in _lines(path))


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    has_ids = False
    for number, text in text_lines(path):
        index, tab, label = text.partition("\t")
        has_ids = has_ids or (number == 1 and bool(tab))
        if not has_ids and not tab:
            yield number - 1, text
        elif has_ids and tab and index.isascii() and index.isdigit() and len(index) <= MAX_DIGITS:
            yield int(index), label
        else:
            form = "id<TAB>label" if has_ids else "one label, without a tab, as in the lines before"
            raise StorageError(f"{path}:{number}: expected {form}, found {one_line(text)}")


def existing_file(folder: Path, *names: str) -> Path | None:
    """Return the first of the named files that exists in a folder."""
    return next((folder / name for name in names if name and os.path.isfile(folder / name)), None)


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
