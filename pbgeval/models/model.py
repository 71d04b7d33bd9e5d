"""Another system's model in our terms: a table of entity vectors, relations' tables, and a formula."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attrs import frozen

from pbgeval.errors import StorageError
from pbgeval.models.formulas import Formula, SideParameters
from pbgeval.storage.arrays import MappedRows, Table
from pbgeval.storage.text import one_line, plural, read_text, text_lines


@frozen(eq=False)
class EmbeddingModel:
    """A model of vectors; its tables are read when they are needed, so it is small and can be sent to workers."""

    label: str  # of the folder or file; for errors
    system: str
    formula: Formula
    entities: Table
    relations: Table
    projection: MappedRows | None = None  # TransR: a row per relation, (entity columns, relation columns) row by row
    entity_labels: Path | None = None  # the file that maps ids to them, if there is one
    relation_labels: Path | None = None

    @property
    def num_entities(self) -> int:
        return self.entities.num_rows

    @property
    def num_relations(self) -> int:
        return self.formula.num_relations(self.relations.num_rows)

    @property
    def dimension(self) -> int:
        return self.entities.dimension

    def entity_names(self) -> Iterator[str] | None:
        """Return the names of the entities, in order, if they have any; nothing is read before they are asked for."""
        return None if self.entity_labels is None else labels_in_order(self.entity_labels, self.num_entities)

    def relation_names(self) -> list[str] | None:
        """Return the names of the relations, if they have any.

        Raises:
            StorageError: the file is of the wrong form.
        """
        return None if self.relation_labels is None else read_labels(self.relation_labels, self.num_relations)

    def parameters(self) -> SideParameters:
        """Read the relations.

        Raises:
            StorageError: a file is gone or truncated.
        """
        relation_RD = self.relations.read_rows(0, self.relations.num_rows)
        if self.projection is None:
            return self.formula.parameters(relation_RD)
        flat = self.projection.read_rows(0, self.projection.num_rows)
        columns = relation_RD.shape[1]
        # As DGL-KE has it, a row vector is multiplied from the left: transposed, it is a matrix times a column.
        matrices = flat.view(flat.shape[0], flat.shape[1] // columns, columns).transpose(1, 2).contiguous()
        return self.formula.parameters(relation_RD, matrices, self.dimension)

    def digests(self) -> dict[str, str]:
        """Return digests of the files, by what they hold."""
        tables = {"entities": self.entities, "relations": self.relations, "projection": self.projection}
        return {name: table.fingerprint() for name, table in tables.items() if table is not None}

    def partition(self, index: int, num_partitions: int) -> Table:
        """Return one of equal parts of the entities: consecutive rows."""
        return self.entities.part(*part_of(self.num_entities, index, num_partitions))


def part_of(num_rows: int, index: int, num_partitions: int) -> tuple[int, int]:
    """Return the first row of a part and one past its last, of parts as equal as can be."""
    return num_rows * index // num_partitions, num_rows * (index + 1) // num_partitions


# Files beside the tables: descriptions and labels. A file of labels has lines `id<TAB>label` in any order, as DGL-KE,
# OpenBioLink and LibKGE write them, or one label per line in the order of the ids.

MAX_DIGITS = 18  # of an id: an int64 holds it


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
    """Yield the labels in the order of their ids; of a file in that order, without holding them in memory.

    Raises:
        StorageError: as `read_labels`.
    """
    num_lines = 0
    for at, (index, _) in enumerate(_lines(path)):
        if index != at:
            yield from read_labels(path, num_labels)
            return
        num_lines += 1
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
    """Return the first of some files that lies in a folder."""
    return next((folder / name for name in names if name and os.path.isfile(folder / name)), None)


def read_object(path: Path, what: str) -> dict[str, Any]:
    """Read a file that holds one JSON object.

    Raises:
        StorageError: it cannot be read, or holds something else.
    """
    try:
        found = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise StorageError(f"{path}: cannot read {what}: {one_line(error)}") from error
    if not isinstance(found, dict):
        raise StorageError(f"{path}: expected a JSON object, found a {type(found).__name__}")
    return found
