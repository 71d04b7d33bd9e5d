"""Files of edges (text with tabs or commas, plain, gzip or zstd; Parquet) -> a table of their columns in the engine.

Every line that is not as it should be is a fault with its number; nothing is guessed, skipped or filled in.
"""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from attrs import frozen

from pbgeval.errors import ConfigError, DataError, EvalError, StorageError, raise_first
from pbgeval.importing.engine import Engine, file_literal, first_line, quoted
from pbgeval.storage.text import GZIP, ZSTD, check_compressed, listed, one_line, open_input, text_lines, unreadable

# What the columns of files of edges mean.

COLUMNS = {"h": "lhs", "r": "rel", "t": "rhs", "w": "weight", "s": "time"}
TYPES = {"weight": "DOUBLE", "time": "BIGINT"}  # of the table; others are text
_ENDS = {"h": "head", "r": "relation", "t": "tail"}
_IGNORED = "_"


@frozen
class ColumnForm:
    """Which columns hold what."""

    order: str = "hrt"  # of text without header: h head (lhs), r relation, t tail (rhs), w weight, s time, _ ignored
    # In Parquet, and in the header of text: head, relation, tail[, weight[, time]]; "" stands for no weight.
    names: tuple[str, ...] | None = None
    flag: str = "--edge-columns"  # where the user sets it, for messages

    @classmethod
    def parse(cls, text: str | None, flag: str = "--edge-columns") -> ColumnForm:
        """Read letters such as `hrt`, or names with commas.

        Raises:
            ConfigError: it is neither.
        """
        if text and "," in text:
            return cls(names=tuple(text.split(",")), flag=flag)
        return cls(flag=flag) if text is None else cls(text, flag=flag)

    def __attrs_post_init__(self) -> None:
        used, names = sorted(self.order.replace(_IGNORED, "")), self.names
        raise_first(
            ConfigError,
            (
                len(set(used)) != len(used) or not set("hrt") <= set(used) <= COLUMNS.keys(),
                f"{self.flag} {self.order}: expected h, r and t once each (head, relation, tail), optionally w "
                "(weight) and s (time), and _ for columns to ignore",
            ),
            (
                names is not None and (len(names) not in (3, 4, 5) or len(set(names)) != len(names)),
                f"{self.flag} {','.join(names or ())}: expected the names of three columns, HEAD,RELATION,TAIL, "
                "or four with WEIGHT, or five with TIME after it",
            ),
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of ours, in the order of PBG's files."""
        return tuple(name for name in COLUMNS.values() if name in self.chosen())

    @property
    def reading(self) -> str:
        """Say how the columns are read, for messages about unknown names: the order may be another."""
        columns = "" if self.names is None else f" {', '.join(self.names[:3])}"
        order = [_ENDS[letter] for letter in (self.order if self.names is None else "hrt") if letter in _ENDS]
        return f"the columns{columns} are read as {', '.join(order)} ({self.flag} changes this)"

    def chosen(self) -> dict[str, str]:
        """Return the file's column of each of ours; columns of text without header are c0, c1, ..."""
        if self.names is None:
            return {COLUMNS[letter]: f"c{at}" for at, letter in enumerate(self.order) if letter != _IGNORED}
        given = zip(COLUMNS.values(), self.names, strict=False)
        return {ours: theirs for ours, theirs in given if theirs or ours != "weight" or len(self.names) == 4}


# A Parquet file of edges -> what the engine reads, and what is wrong with it.

PARQUET_MAGIC = b"PAR1"


@frozen
class ParquetEdges:
    """A file whose first bytes are those of Parquet."""

    path: Path

    @property
    def source(self) -> str:
        """What stands after FROM."""
        return f"read_parquet({file_literal(self.path)}, hive_partitioning = false)"

    def read_columns(self, engine: Engine) -> tuple[str, Sequence[str]]:
        """Return what a message expects of the columns, and which there are.

        Raises:
            StorageError: the file is damaged.
        """
        import duckdb

        try:
            described = engine.run_unguarded(f"DESCRIBE SELECT * FROM {self.source}")
        except duckdb.Error as error:
            raise self.fault(error) from error
        return f"{self.path}: expected columns", [str(row[0]) for row in described]

    def place_of(self, row: int) -> str:
        """Name a row for a message."""
        return f"{self.path}: row {row}"

    def fault(self, error: Exception) -> EvalError:
        """Return the error for what the engine found wrong with the file."""
        return StorageError(f"{self.path}: cannot read this Parquet file: {first_line(error)}")


# A text file of edges, plain, gzip or zstd -> what the engine reads, and which line is wrong.
#
# Fields of a `.csv` file are separated by commas and may be quoted, as RFC 4180 says; any other file's by tabs, and a
# quotation mark is a letter like others. Blank lines are passed over.

_NEVER, _NO_DELIMITER = "\x01", "\x02"  # in no file: nothing is a missing value; a line is one field
_LINE = re.compile(r"CSV Error on Line: (\d+)")
_COUNTS = re.compile(r"Expected Number of Columns: (\d+) Found: (\d+)")


@frozen
class TextEdges:
    """A text file and its columns."""

    path: Path
    compression: str
    columns: tuple[str, ...]
    has_header: bool
    form: ColumnForm

    @classmethod
    def of(cls, engine: Engine, path: Path, form: ColumnForm, magic: bytes) -> TextEdges:
        """Open a file; of one with a header, read that.

        Raises:
            StorageError: it is compressed and not whole, or the header cannot be read or names a column twice.
        """
        import duckdb

        compression = "gzip" if magic.startswith(GZIP) else "zstd" if magic == ZSTD else "none"
        check_compressed(path, magic)  # the engine takes some that were cut off, or damaged, for whole
        if form.names is None:
            return cls(path, compression, tuple(f"c{at}" for at in range(len(form.order))), has_header=False, form=form)
        lines = cls(path, compression, ("line",), has_header=False, form=form)
        try:
            first = engine.run_unguarded(f"SELECT line FROM {lines._source(_NO_DELIMITER, '')} LIMIT 1")
        except duckdb.Error as error:
            raise lines.fault(error) from error
        header = next((fields for _, fields in lines._fields([row[0] for row in first])), [])
        if len(set(header)) != len(header):
            raise StorageError(f"{path}:1: the header has a column twice: {listed(header)}")
        return cls(path, compression, tuple(header), has_header=True, form=form)

    @property
    def is_csv(self) -> bool:
        """Return whether fields are separated by commas and may be quoted."""
        return ".csv" in [suffix.lower() for suffix in self.path.suffixes[-2:]]

    @property
    def source(self) -> str:
        """What stands after FROM."""
        return self._source(*((",", '"') if self.is_csv else ("\t", "")))

    def _source(self, delimiter: str, quote: str) -> str:
        columns = ", ".join(f"{quoted(name)}: 'VARCHAR'" for name in self.columns)
        header = str(self.has_header).lower()
        return (
            f"read_csv({file_literal(self.path)}, auto_detect = false, header = {header}, delim = {quoted(delimiter)}, "
            f"quote = {quoted(quote)}, escape = {quoted(quote)}, columns = {{{columns}}}, nullstr = {quoted(_NEVER)}, "
            f"strict_mode = true, compression = {quoted(self.compression)}, hive_partitioning = false)"
        )

    def read_columns(self, engine: Engine) -> tuple[str, Sequence[str]]:
        """Return what a message expects of the columns, and which there are."""
        return f"{self.path}:1: expected a header with columns", self.columns

    def place_of(self, row: int) -> str:
        """Name a row for a message: by its line, where the file can be read once more."""
        lines = (f"{self.path}:{line}" for line, _ in itertools.islice(self._records(), row + self.has_header, None))
        return next(lines, f"{self.path}: edge {row}")

    def fault(self, error: Exception) -> EvalError:
        """Return the error for the line that the engine could not read.

        The engine's own line is taken where the file cannot be read once more (zstd).
        """
        try:
            for line, fields in self._records():
                if len(fields) != len(self.columns):
                    return self._ragged(line, len(self.columns), len(fields))
        except StorageError as found:  # not UTF-8, or damaged: it names the line
            return found
        except csv.Error as found:
            return StorageError(f"{self.path}: wrong quotation marks (RFC 4180): {one_line(found)}")
        at, counts = _LINE.search(str(error)), _COUNTS.search(str(error))
        if at and counts:
            return self._ragged(int(at[1]), int(counts[1]), int(counts[2]))
        unlike = f"the lines have different forms or line ends: {first_line(error)}"
        fault = "not UTF-8 text" if "unicode" in str(error).lower() else unlike
        return StorageError(f"{self.path}{f':{at[1]}' if at else ''}: {fault}")

    def _ragged(self, line: int, expected: int, found: int) -> StorageError:
        advice = (
            "columns must be separated by tabs; name the file .csv if commas separate them"
            if found == 1 and not self.is_csv
            else f"set {self.form.flag} to the columns of the file"
        )
        columns = f"{expected} columns separated by {'commas' if self.is_csv else 'tabs'}"
        return StorageError(f"{self.path}:{line}: expected {columns}, found {found}; {advice}")

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        """Return (number of its last line, fields) of every line that is not blank; nothing of zstd."""
        lines = () if self.compression == "zstd" else text_lines(self.path)
        return self._fields(f"{line}\n" for _, line in lines)

    def _fields(self, lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
        tabs = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        reader = csv.reader(lines, delimiter=",", strict=True) if self.is_csv else tabs
        return ((reader.line_num, fields) for fields in reader if fields)


_EMPTY = "{}: there are no edges in this file"


def load_edges(engine: Engine, table: str, path: Path, form: ColumnForm) -> int:
    """Add the edges of a file to a table, which is made if need be: `lhs`, `rel`, `rhs` as text, and numbers.

    Returns:
        The number of edges.

    Raises:
        StorageError: the file cannot be read, or is not as its name and the form say; names the line.
        DataError: it holds no edge, an empty name, a weight that is no finite number, or a time that is no integer.
        OutputError: the disk is full.
    """
    with unreadable(path, "cannot read this file of edges"), open_input(path) as file:
        magic = file.read(4)
    if not magic:
        raise DataError(_EMPTY.format(path))
    opened = ParquetEdges(path) if magic == PARQUET_MAGIC else TextEdges.of(engine, path, form, magic)
    if path.suffix in (".parquet", ".pq") and magic != PARQUET_MAGIC:
        raise StorageError(f"{path}: not a Parquet file, or not complete")
    has_our_names = magic == PARQUET_MAGIC and form.names is None
    given = {name: name for name in form.columns} if has_our_names else form.chosen()
    expected, found = opened.read_columns(engine)
    if not set(given.values()) <= set(found):
        raise StorageError(
            f"{expected} {listed(list(given.values()))}, found {listed(found)}; name them with {form.flag} "
            "HEAD,RELATION,TAIL"
        )
    chosen = ", ".join(_converted(ours, theirs) for ours, theirs in given.items())
    types = ", ".join(f"{name} {TYPES.get(name, 'VARCHAR')}" for name in form.columns)
    engine.run(f"CREATE TABLE IF NOT EXISTS {table} ({types})")
    before = engine.num_rows(table)
    _read(engine, f"INSERT INTO {table} BY NAME SELECT {chosen} FROM {opened.source}", opened)
    num_edges = engine.num_rows(table) - before
    if not num_edges:
        raise DataError(_EMPTY.format(path))
    empty = {name: (f"coalesce({name}, '') = ''", f"{name} is empty") for name in ("lhs", "rel", "rhs")}
    wrong = empty | {
        "weight": ("weight IS NULL OR NOT isfinite(weight)", "the weight is not a finite number"),
        "time": ("time IS NULL", "the time is not an integer from 0 to 2^63 - 1"),
    }
    for condition, fault in (wrong[name] for name in form.columns):  # in the first such row
        row = engine.row(f"SELECT min(rowid) FROM {table} WHERE rowid >= {before} AND ({condition})")[0]
        if row is not None:
            raise DataError(f"{opened.place_of(int(row) - before)}: {fault}")
    return num_edges


def _converted(ours: str, theirs: str) -> str:
    # trim: a bare cast is moved into the engine's reader, which then fails where this one gives NULL.
    column = f"""CAST("{theirs.replace('"', '""')}" AS VARCHAR)"""
    if ours == "time":  # a bare cast would round
        column = f"CASE WHEN regexp_full_match(trim({column}), '[0-9]+') THEN {column} END"
    return f"{column if ours not in TYPES else f'TRY_CAST(trim({column}) AS {TYPES[ours]})'} AS {ours}"


def _read(engine: Engine, query: str, opened: ParquetEdges | TextEdges) -> None:
    import duckdb

    try:
        engine.run_unguarded(query)
    except duckdb.Error as error:
        of_engine = isinstance(error, duckdb.OutOfMemoryException | duckdb.FatalException)
        is_about_scratch = str(engine.folder) in str(error) or "write" in str(error).lower()
        if of_engine or (isinstance(error, duckdb.IOException) and is_about_scratch):
            with engine.faults():
                raise error from None
        raise opened.fault(error) from error
