"""Files of edges (text with tabs or commas, plain, gzip or zstd; Parquet) -> a table of their columns in the engine.

Every line that is not as it should be is a fault with its number; nothing is guessed, skipped or filled in.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from pbgeval.errors import DataError, EvalError, StorageError
from pbgeval.importing.edge_form import ColumnForm
from pbgeval.importing.edge_parquet import PARQUET_MAGIC, ParquetEdges
from pbgeval.importing.edge_text import TextEdges
from pbgeval.importing.engine import Engine
from pbgeval.reading import open_input

_EMPTY = "{}: expected at least one edge, found none"


class OpenedFile(Protocol):
    """A file whose form is known."""

    @property
    def source(self) -> str:
        """What stands after FROM."""

    def check(self, engine: Engine, columns: Sequence[str]) -> None:
        """Refuse a file that lacks columns."""

    def place_of(self, row: int) -> str:
        """Name a row for a message."""

    def fault(self, error: Exception) -> EvalError:
        """Say what the engine found wrong with the file."""


def load_edges(engine: Engine, table: str, path: Path, form: ColumnForm) -> int:
    """Add the edges of a file to a table, which is made if need be: `lhs`, `rel`, `rhs` as text, `weight` as float64.

    Returns:
        The number of edges.

    Raises:
        StorageError: the file cannot be read, or is not as its name and the form say; names the line.
        DataError: it holds no edge, an empty name, or a weight that is no finite number.
        OutputError: the disk is full.
    """
    magic = _first_bytes(path)
    if not magic:
        raise DataError(_EMPTY.format(path))
    opened: OpenedFile = ParquetEdges(path, form) if magic == PARQUET_MAGIC else TextEdges.of(engine, path, form, magic)
    if path.suffix in (".parquet", ".pq") and magic != PARQUET_MAGIC:
        raise StorageError(f"{path}: expected a Parquet file, found another format; is it whole?")
    given = form.chosen()
    if magic == PARQUET_MAGIC and form.names is None:
        given = {name: name for name in form.columns}
    opened.check(engine, list(given.values()))
    chosen = ", ".join(_converted(ours, theirs) for ours, theirs in given.items())
    types = ", ".join(f"{name} {'DOUBLE' if name == 'weight' else 'VARCHAR'}" for name in form.columns)
    engine.run(f"CREATE TABLE IF NOT EXISTS {table} ({types})")
    before = engine.num_rows(table)
    _read(engine, f"INSERT INTO {table} BY NAME SELECT {chosen} FROM {opened.source}", opened)
    num_edges = engine.num_rows(table) - before
    if not num_edges:
        raise DataError(_EMPTY.format(path))
    _check_values(engine, table, before, opened, form)
    return num_edges


def _converted(ours: str, theirs: str) -> str:
    # trim: a bare cast is moved into the engine's reader, which then fails where this one gives NULL.
    kind = "TRY_CAST(trim(CAST({} AS VARCHAR)) AS DOUBLE)" if ours == "weight" else "CAST({} AS VARCHAR)"
    return kind.format('"' + theirs.replace('"', '""') + '"') + f" AS {ours}"


def _first_bytes(path: Path) -> bytes:
    try:
        with open_input(path) as file:
            return file.read(4)
    except OSError as error:
        raise StorageError(
            f"{path}: expected a file of edges that can be read, found: {error.strerror or error}"
        ) from error


def _read(engine: Engine, query: str, opened: OpenedFile) -> None:
    import duckdb

    try:
        engine.run_unguarded(query)
    except (duckdb.OutOfMemoryException, duckdb.FatalException) as error:
        with engine.faults():
            raise error from None
    except duckdb.IOException as error:
        if str(engine.folder) in str(error) or "write" in str(error).lower():
            with engine.faults():
                raise error from None
        raise opened.fault(error) from error
    except duckdb.Error as error:
        raise opened.fault(error) from error


def _check_values(engine: Engine, table: str, first: int, opened: OpenedFile, form: ColumnForm) -> None:
    """Refuse the first row whose values are no edge."""
    wrong = [(name, f"coalesce({name}, '') = ''", "a name", "nothing") for name in ("lhs", "rel", "rhs")]
    if form.has_weight:
        wrong.append(("weight", "weight IS NULL OR NOT isfinite(weight)", "a finite number", "something else"))
    for name, condition, expected, found in wrong:
        row = engine.row(f"SELECT min(rowid) FROM {table} WHERE rowid >= {first} AND ({condition})")[0]
        if row is not None:
            raise DataError(f"{opened.place_of(int(row) - first)}: expected {expected} as {name}, found {found}")
