"""Another system's model in our terms: a table of entity vectors, relations' tables, and a formula."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from attrs import frozen

from pbgeval.models.formulas import Formula, SideParameters
from pbgeval.models.labels import labels_in_order, read_labels
from pbgeval.storage.arrays import MappedRows, Table


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
            StorageError: the file is not as it should be.
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
