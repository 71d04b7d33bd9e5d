"""Represent another system's model: tables of vectors and a formula."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from attrs import frozen

from pbgeval.models.formulas import Formula, SideParameters, TwoOperators
from pbgeval.models.labels import labels_in_order, read_labels
from pbgeval.notation import ENTITY_TYPE, Side
from pbgeval.storage.arrays import Table

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

    def labels_of(self, entity_type: str | None) -> Path | Iterable[object] | None:
        """Return where the names of a type come from; a single table takes any name."""
        return self.entity_labels.get(self._table_name(entity_type))

    def _table_name(self, entity_type: str | None) -> str:
        return next(iter(self.tables)) if len(self.tables) == 1 or entity_type is None else entity_type

    def entity_names(self, entity_type: str | None = None) -> Iterator[str] | None:
        """Return the names of the entities in order, read lazily; None if there are none."""
        labels, table = self.labels_of(entity_type), self.tables[self._table_name(entity_type)]
        if labels is None:
            return None
        return labels_in_order(labels, table.num_rows) if isinstance(labels, Path) else map(str, labels)

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

    @property
    def numbers_relations(self) -> bool:
        """Whether relations are named by the numbers of their rows."""
        return self.relation_labels == tuple(map(str, range(self.num_relations)))

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
    entity_labels: Path | tuple[str, ...] | None = None,
    relation_labels: Path | tuple[str, ...] | None = None,
) -> EmbeddingModel:
    """Make a model whose entities are of one type."""
    labels: Mapping[str, Path | Iterable[object]] = {} if entity_labels is None else {ENTITY_TYPE: entity_labels}
    return EmbeddingModel(label, system, formula, {ENTITY_TYPE: entities}, parameter_tables, labels, relation_labels)


def part_of(num_rows: int, index: int, num_partitions: int) -> tuple[int, int]:
    """Return the row range of one of several parts of nearly equal size."""
    return num_rows * index // num_partitions, num_rows * (index + 1) // num_partitions
