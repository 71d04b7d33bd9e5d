"""A folder for scratch files -> tables of any size, in DuckDB (decision 0019); what fails becomes one line.

Tables live in a database file; what sorts and joins need beyond the memory limit is spilled beside it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import define, field

from pbgeval.cluster.liveness import repeated
from pbgeval.cluster.resources import num_cores
from pbgeval.errors import ConfigError, OutputError, required
from pbgeval.progress import Observer
from pbgeval.storage.text import one_line

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

ROWS_AT_A_TIME = 1 << 20
ENGINE_SHARE = 0.75  # of the memory that is allowed; the rest is for this process and blocks of rows
GROUPS_SHARE = 0.25  # of the engine's memory, for the groups of one statement: it fails with more, and spills too late
BYTES_PER_GROUP = 64  # beside the text of its key, rounded up
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_POLL_SECONDS = 0.5


def quoted(text: object) -> str:
    """Return a literal of SQL."""
    return "'" + str(text).replace("'", "''") + "'"


def file_literal(path: Path) -> str:
    """Return a path as a literal that stands for this file alone, whatever signs of patterns are in it."""
    return quoted(re.sub(r"([*?\[])", r"[\1]", str(path.absolute())))


@define(eq=False)
class Engine:
    """An open database. Use as a context; the folder is its own."""

    folder: Path
    memory_bytes: int | None  # of the whole process; None: DuckDB's default, most of the host's
    observer: Observer
    _connection: DuckDBPyConnection = field(init=False)

    def __enter__(self) -> Engine:
        with required(ConfigError, "duckdb is required to read text or Parquet edges", "duckdb"):
            import duckdb
        with self.faults():
            self.folder.mkdir(parents=True, exist_ok=True)
            # Nothing is fetched from anywhere: what is not built into the library is not used.
            options: dict[str, Any] = {
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
                "temp_directory": str(self.folder / "spilled"),
                "preserve_insertion_order": True,  # rows keep the order of their file
                "threads": num_cores(),
                **({} if self.memory_bytes is None else {"memory_limit": f"{int(ENGINE_SHARE * self.memory_bytes)}B"}),
            }
            self._connection = duckdb.connect(str(self.folder / "tables.duckdb"), config=options)
            # In Jupyter without ipywidgets it is off, and DuckDB refuses to set it to anything.
            if self._connection.execute("SELECT current_setting('enable_progress_bar')").fetchall() == [(True,)]:
                self._connection.execute("SET enable_progress_bar = false")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import duckdb

        # What went wrong is on its way already; closing writes once more, and a full disk is still full.
        with suppress(*(() if kind is None else (duckdb.Error,))):
            self._connection.close()

    def run(self, query: str) -> list[tuple[Any, ...]]:
        """Execute a statement; return the few rows of a query.

        Raises:
            OutputError: the disk is full, or memory too small.
        """
        with self.faults():
            return self.run_unguarded(query)

    def run_unguarded(self, query: str) -> list[tuple[Any, ...]]:
        """Execute a statement that reads the user's files; the caller handles errors in them."""
        with (
            repeated(
                lambda: self.observer.advanced(min(max(self._connection.query_progress(), 0) / 100, 1)), _POLL_SECONDS
            ),
            _interruptible(),
        ):
            return self._connection.execute(query).fetchall()

    def row(self, query: str) -> tuple[Any, ...]:
        """Return the only row of a query."""
        (row,) = self.run(query)
        return row

    def insert(self, table: str, columns: dict[str, np.ndarray], selected: str = "*") -> None:
        """Add rows to a table from arrays of one length."""
        with self.faults(), _interruptible():
            self._connection.register("handed_in", columns)
            try:
                self._connection.execute(f"INSERT INTO {table} SELECT {selected} FROM handed_in")
            finally:
                self._connection.unregister("handed_in")

    def parts_of_groups(self, key: str, num_groups: int, text_bytes: float = 0.0) -> list[str]:
        """Return conditions that cut rows in parts by a key, so that the groups of one part stay in memory.

        Args:
            key: a column; all rows of a group have the same.
            num_groups: about how many groups there are at most.
            text_bytes: of a group's key, in the mean.
        """
        size, unit = str(self.row("SELECT current_setting('memory_limit')")[0]).split()
        room = GROUPS_SHARE * float(size) * _UNITS[unit]
        num_parts = max(1, math.ceil(num_groups * (BYTES_PER_GROUP + text_bytes) / room))
        return [f"hash({key}) % {num_parts} = {part}" for part in range(num_parts)]

    def num_rows(self, table: str) -> int:
        """Return the number of rows of a table."""
        return int(self.row(f"SELECT count(*) FROM {table}")[0])

    def blocks(
        self, table: str, columns: Sequence[str], rows_at_a_time: int = ROWS_AT_A_TIME
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yield a table of which nothing was ever deleted, in the order in which it was filled, in blocks of rows."""
        for start in range(0, self.num_rows(table), rows_at_a_time):
            with self.faults(), _interruptible():
                yield self._connection.execute(
                    f"SELECT {', '.join(columns)} FROM {table} "
                    f"WHERE rowid >= {start} AND rowid < {start + rows_at_a_time} ORDER BY rowid"
                ).fetchnumpy()

    @contextmanager
    def faults(self) -> Iterator[None]:
        """Turn what the engine raises about memory and disk into an `OutputError`."""
        import duckdb

        try:
            yield
        except duckdb.OutOfMemoryException as error:
            raise OutputError(
                f"{self.folder.parent}: the import ran out of memory or disk: {first_line(error)}; raise max_memory "
                "(--max-memory) or free disk space"
            ) from error
        except (duckdb.IOException, duckdb.FatalException, OSError) as error:
            raise OutputError(
                f"{self.folder.parent}: cannot write scratch files: {first_line(error)}; free disk space or choose "
                "another folder (--output)"
            ) from error


@contextmanager
def _interruptible() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # a signal's own exception is lost within the engine
        if str(error) == "Query interrupted":
            raise KeyboardInterrupt from error
        raise


def first_line(error: Exception) -> str:
    """Return what an error says first, without the name of its kind."""
    text = str(error).strip().partition("\n")[0]
    return one_line(text.partition("Error: ")[2] or text)
