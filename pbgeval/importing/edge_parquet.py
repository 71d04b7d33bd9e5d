"""A Parquet file of edges -> what the engine reads, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from attrs import frozen

from pbgeval.errors import EvalError, StorageError
from pbgeval.importing.edge_form import ColumnForm
from pbgeval.importing.engine import Engine, file_literal, first_line
from pbgeval.storage.text_files import listed

PARQUET_MAGIC = b"PAR1"


@frozen
class ParquetEdges:
    """A file whose first bytes are those of Parquet."""

    path: Path
    form: ColumnForm

    @property
    def source(self) -> str:
        """What stands after FROM."""
        return f"read_parquet({file_literal(self.path)}, hive_partitioning = false)"

    def check(self, engine: Engine, columns: Sequence[str]) -> None:
        """Refuse a file that lacks columns, or is damaged.

        Raises:
            StorageError: it is.
        """
        import duckdb

        try:
            described = engine.rows_unguarded(f"DESCRIBE SELECT * FROM {self.source}")
        except duckdb.Error as error:
            raise self.fault(error) from error
        found = [str(row[0]) for row in described]
        missing = [column for column in columns if column not in found]
        if missing:
            raise StorageError(
                f"{self.path}: expected columns {listed(list(columns))}, found {listed(found)}; name them by "
                f"{self.form.names_flag} HEAD,RELATION,TAIL"
            )

    def place_of(self, row: int) -> str:
        """Name a row for a message."""
        return f"{self.path}: row {row}"

    def fault(self, error: Exception) -> EvalError:
        """Say what the engine found wrong with the file."""
        return StorageError(
            f"{self.path}: expected a Parquet file that can be read, found: {first_line(error)}; write it again"
        )
