"""Files of edges (text, plain, gzip or zstd; Parquet) -> a table of their columns in the engine.

Every line that is not as it should be is a fault with its number; nothing is guessed, skipped or filled in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from attrs import frozen

from pbgeval.errors import ConfigError, DataError, EvalError, StorageError
from pbgeval.importing.engine import Engine, file_literal, first_line, quoted
from pbgeval.storage.edge_columns import (
    ENDS_BY_NAME,
    NO_RELATION,
    RELATIONS_BY_NAME,
    TYPES,
    ColumnForm,
    is_csv,
)
from pbgeval.storage.edge_text import (
    ENDS_AND_RELATION,
    NO_EDGES,
    PARQUET_MAGIC,
    TOO_LONG,
    EdgeText,
    looks_like_header,
    magic_of_edges,
    taken_for_edge,
)
from pbgeval.storage.text import GZIP, ZSTD, check_whole, listed, one_line

# A Parquet file of edges -> what the engine reads, and what is wrong with it.

_TEXTS = re.compile(r"VARCHAR|ENUM\(.*\)|UUID|DATE|U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?")
# Types of columns whose names are integers -> the numbers below which all integers are exact; None: all of them.
_REALS = {"FLOAT": 1 << 24, "DOUBLE": 1 << 53, "DECIMAL": None}


@frozen
class ParquetEdges:
    """A file whose first bytes are those of Parquet, and its columns."""

    path: Path
    form: ColumnForm
    chosen: Mapping[str, str]  # the file's column of each of ours
    types: Mapping[str, str]  # of the file's columns

    @classmethod
    def open(cls, engine: Engine, path: Path, form: ColumnForm) -> ParquetEdges:
        """Read which columns there are.

        Raises:
            StorageError: the file is damaged, or they are not those of edges.
        """
        import duckdb

        try:
            described = engine.run_unguarded(f"DESCRIBE SELECT * FROM {_parquet(path)}")
        except duckdb.Error as error:
            raise _damaged(path, error) from error
        types = {str(row[0]): str(row[1]) for row in described}
        chosen = _columns_by_name(path, form, [*types]) if form.names is None else form.chosen()
        if not set(chosen.values()) <= set(types):
            raise StorageError(
                f"{path}: expected columns {listed([*chosen.values()])}, found {listed([*types])}; name them with "
                f"{form.flag} HEAD,RELATION,TAIL"
            )
        for ours, theirs in chosen.items():
            kind = types[theirs]
            if ours not in TYPES and not (_TEXTS.fullmatch(kind) or kind.partition("(")[0] in _REALS):
                raise StorageError(f"{path}: column {theirs} holds {one_line(kind)}; names must be text or integers")
        return cls(path, form, chosen, types)

    @contextmanager
    def readable(self, engine: Engine) -> Iterator[str]:
        """Yield what stands after FROM.

        Raises:
            DataError: a name is a number that is no integer.
        """
        for ours, theirs in self.chosen.items():
            if ours != "weight" and self._is_real(theirs):
                column, source = _identifier(theirs), _parquet(self.path, "file_row_number = true")
                wrong = engine.run_unguarded(
                    f"SELECT file_row_number, CAST({column} AS VARCHAR) FROM {source} "
                    f"WHERE {column} IS NOT NULL AND {self._integer(theirs)} IS NULL LIMIT 1"
                )
                for row, value in wrong:
                    raise DataError(
                        f"{self.path}: row {row}: column {theirs} is {value}, but names must be text or integers; "
                        "convert the column"
                    )
        yield _parquet(self.path)

    def _is_real(self, column: str) -> bool:
        return self.types[column].partition("(")[0] in _REALS

    def _integer(self, column: str) -> str:
        """Return a column of reals as text of integers, NULL where it is another number or may have been rounded."""
        name, limit = _identifier(column), _REALS[self.types[column].partition("(")[0]]
        exact = f"{name} = trunc({name})" + ("" if limit is None else f" AND abs({name}) < {limit}")
        return f"CASE WHEN {exact} THEN CAST(CAST({name} AS HUGEINT) AS VARCHAR) END"

    def column(self, ours: str) -> str:
        """Return a column as text."""
        theirs = self.chosen[ours]
        if ours != "weight" and self._is_real(theirs):
            return self._integer(theirs)
        return f"CAST({_identifier(theirs)} AS VARCHAR)"

    def place_of(self, row: int) -> str:
        """Name a row for a message."""
        return f"{self.path}: row {row}"

    def fault(self, error: Exception) -> EvalError:
        """Return the error for what the engine found wrong with the file."""
        return _damaged(self.path, error)


def _parquet(path: Path, *options: str) -> str:
    settings = ", ".join(["hive_partitioning = false", "binary_as_string = true", *options])
    return f"read_parquet({file_literal(path)}, {settings})"


def _damaged(path: Path, error: Exception) -> StorageError:
    return StorageError(f"{path}: cannot read this Parquet file: {first_line(error)}")


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _columns_by_name(path: Path, form: ColumnForm, found: Sequence[str]) -> dict[str, str]:
    """Return which columns hold the edges, by what the field calls them.

    Raises:
        StorageError: none do, or several may.
    """
    theirs = {name.casefold(): name for name in found}
    ends = [pair for pair in ENDS_BY_NAME if set(pair) <= theirs.keys()]
    relations = [name for name in RELATIONS_BY_NAME if name in theirs] if "rel" in form.columns else [""]
    advice = f"name them with {form.flag} HEAD,RELATION,TAIL"
    if not ends or not relations:
        expected = ["lhs, rel, rhs", "head, relation, tail", "subject, predicate, object"]
        if "rel" not in form.columns:
            expected = [", ".join(pair) for pair in ENDS_BY_NAME[:4]]
        raise StorageError(f"{path}: expected columns {' or '.join(expected)}, found {listed(found)}; {advice}")
    if len(ends) > 1 or len(relations) > 1:
        doubtful = [name for pair in ends if len(ends) > 1 for name in pair]
        doubtful += relations if len(relations) > 1 else []
        raise StorageError(f"{path}: columns {listed([theirs[of] for of in doubtful])} may all be meant; {advice}")
    chosen = {"lhs": theirs[ends[0][0]], "rel": theirs.get(relations[0], ""), "rhs": theirs[ends[0][1]]}
    return {ours: chosen.get(ours, theirs.get(ours, ours)) for ours in form.columns}


# A text file of edges, plain, gzip or zstd -> what the engine reads, and which line is wrong.
#
# The rules are those of `storage/edge_text.py`, which reads the same files without the engine. Of comments, the engine
# reads a copy without them.

# In no file: nothing is a missing value; a line is one field.
_NEVER, _NO_DELIMITER = "\x01\x02\x03never\x03\x02\x01", "\x02\x01\x02\x03"
_LINE = re.compile(r"CSV Error on Line: (\d+)")
_COUNTS = re.compile(r"Expected Number of Columns: (\d+) Found: (\d+)")


@frozen
class TextEdges:
    """A text file, as the engine reads it."""

    text: EdgeText
    magic: bytes

    @classmethod
    def open(cls, engine: Engine, path: Path, form: ColumnForm, magic: bytes) -> TextEdges:
        """Look at the first line, and at the header of a file that has one.

        Raises:
            StorageError: the file cannot be read, has other columns, or a header that names one twice.
        """
        opened = cls(EdgeText(path, form), magic)
        lines = opened._first_lines(engine) if magic == ZSTD else None
        return cls(EdgeText.open(path, form, lines), magic)

    @property
    def path(self) -> Path:
        """The file."""
        return self.text.path

    @property
    def form(self) -> ColumnForm:
        """How it is read."""
        return self.text.form

    @property
    def compression(self) -> str:
        """What the engine is told, by the first bytes: names may be anything."""
        return "gzip" if self.magic.startswith(GZIP) else "zstd" if self.magic == ZSTD else "none"

    @contextmanager
    def readable(self, engine: Engine) -> Iterator[str]:
        """Yield what stands after FROM.

        Raises:
            StorageError: the file is compressed and not whole: the engine takes some that were cut off for whole.
        """
        is_odd = check_whole(self.path)  # the engine takes some files that were cut off for whole, and some odd ends
        self._raise_fault_if(is_odd)
        columns, by = [f"c{at}" for at in range(self.text.width)], self.form.delimiter_in(self.path)
        quote, has_header = '"' if is_csv(self.path) else "", self.text.header is not None
        if quote and self.magic != ZSTD:
            self._check_quotes(engine)
        if self.form.comment is None:
            yield _text(self.path, self.compression, columns, by, quote, has_header=has_header)
            return
        if quote:
            self._check_fields_end_in_their_lines(engine)
        copy = engine.folder / "without_comments"
        try:
            engine.run_unguarded(
                f"COPY ({self._lines()}) TO {quoted(copy)} "
                f"(FORMAT csv, HEADER true, DELIMITER {quoted(_NO_DELIMITER)}, QUOTE '', ESCAPE '', "
                f"NULLSTR {quoted(_NEVER)})"
            )
            # The copy's own header is in front so that no byte order mark within the file is at the copy's beginning.
            yield _text(copy, "none", columns, by, quote, has_header=has_header, skip=1)
        finally:
            copy.unlink(missing_ok=True)

    def _raise_fault_if(self, is_doubtful: bool) -> None:
        """Read a file that is doubtful by the rules."""
        found = self.text.first_fault() if is_doubtful else None
        if found is not None:
            raise found

    def _check_quotes(self, engine: Engine) -> None:
        """Refuse spaces around quoted fields, some of which the engine takes for part of the name, and others not.

        Raises:
            StorageError: there are some.
        """
        by = self.form.delimiter_in(self.path)
        pattern = quoted(f'(^|{re.escape(by)}) +"|" +({re.escape(by)}|$)')
        # Within quotes this may be all right, so lines that look like it are read by the rules.
        query = f"SELECT 1 FROM ({self._lines()}) WHERE regexp_matches(line, {pattern}) LIMIT 1"
        self._raise_fault_if(by != " " and bool(engine.run_unguarded(query)))

    def _check_fields_end_in_their_lines(self, engine: Engine) -> None:
        """Refuse quoted fields of several lines: one that begins like a comment, or is blank, would be left out.

        Raises:
            StorageError: there is such a field.
        """
        marks = "length(line) - length(replace(line, '\"', ''))"
        if engine.run_unguarded(f"SELECT 1 FROM ({self._lines()}) WHERE ({marks}) % 2 = 1 LIMIT 1"):
            found = None if self.magic == ZSTD else self.text.first_fault()
            raise found or self.text.goes_on()

    def _lines(self) -> str:
        """Return a query for all lines but blank ones and comments."""
        source = _text(self.path, self.compression, ["line"], _NO_DELIMITER, "")
        comment = "" if self.form.comment is None else f" AND NOT starts_with(line, {quoted(self.form.comment)})"
        return f"SELECT line FROM {source} WHERE line <> ''{comment}"

    def column(self, ours: str) -> str:
        """Return a column as text."""
        return f"CAST(c{self.text.places[ours]} AS VARCHAR)"

    def place_of(self, row: int) -> str:
        """Name a row for a message: by its line, where the file can be read once more."""
        return f"{self.path}: edge {row}" if self.magic == ZSTD else self.text.place_of(row)

    def fault(self, error: Exception) -> EvalError:
        """Return the error for the line that the engine could not read.

        The engine's own line is taken where the file cannot be read once more (zstd).
        """
        found = None if self.magic == ZSTD else self.text.first_fault()
        if found is not None:
            return found
        at, counts = _LINE.search(str(error)), _COUNTS.search(str(error))
        where = f":{at[1]}" if at and self.form.comment is None else ""
        if counts:
            return self.text.miscounted(where, int(counts[1]), int(counts[2]))
        if "maximum line size" in str(error).lower():
            return StorageError(f"{self.path}{where}: {TOO_LONG}")
        is_unlike = "state machine" in str(error)
        fault = "the lines have different forms or line ends" if is_unlike else one_line(first_line(error))
        return StorageError(f"{self.path}{where}: {'not UTF-8 text' if 'unicode' in str(error).lower() else fault}")

    def _first_lines(self, engine: Engine) -> list[str]:
        """Return the first line of a file of zstd that is neither blank nor a comment."""
        import duckdb

        check_whole(self.path)
        try:
            return [str(line) for (line,) in engine.run_unguarded(f"{self._lines()} LIMIT 1")]
        except duckdb.Error as error:
            raise self.fault(error) from error


def _text(
    path: Path,
    compression: str,
    columns: Sequence[str],
    delimiter: str,
    quote: str,
    *,
    has_header: bool = False,
    skip: int = 0,
) -> str:
    named = ", ".join(f"{quoted(name)}: 'VARCHAR'" for name in columns)
    return (
        f"read_csv({file_literal(path)}, auto_detect = false, header = {str(has_header).lower()}, skip = {skip}, "
        f"delim = {quoted(delimiter)}, quote = {quoted(quote)}, escape = {quoted(quote)}, columns = {{{named}}}, "
        f"nullstr = {quoted(_NEVER)}, strict_mode = true, compression = {quoted(compression)}, "
        "hive_partitioning = false)"
    )


# Any file -> a table.

OpenedEdges = ParquetEdges | TextEdges


def open_edges(engine: Engine, path: Path, form: ColumnForm) -> OpenedEdges:
    """Look at what can be wrong with a file before all of it is read.

    Raises:
        StorageError: the file cannot be read, or has other columns than the form says.
        DataError: it is empty.
    """
    magic = magic_of_edges(path)
    return (
        ParquetEdges.open(engine, path, form) if magic == PARQUET_MAGIC else TextEdges.open(engine, path, form, magic)
    )


def load_edges(engine: Engine, table: str, opened: OpenedEdges, relation: str | None = None) -> list[str]:
    """Add the edges of a file to a table, which is made if need be: `lhs`, `rel`, `rhs` as text, and numbers.

    Args:
        engine: that has the table.
        table: its name.
        opened: the file.
        relation: what the relation is called where the file has none.

    Returns:
        What is doubtful about the file.

    Raises:
        StorageError: the file is not as its name and the form say; names the line.
        DataError: it holds no edge, an empty name, a weight that is no finite number, or a time that is no integer.
        ConfigError: it has other columns than the files before it.
        OutputError: the disk is full.
    """
    path, columns = opened.path, opened.form.columns
    kept = [name for name in (*ENDS_AND_RELATION, *TYPES) if name in (*columns, "rel")]
    types = ", ".join(f"{name} {TYPES.get(name, 'VARCHAR')}" for name in kept)
    engine.run(f"CREATE TABLE IF NOT EXISTS {table} ({types})")
    others = [str(row[0]) for row in engine.run(f"DESCRIBE {table}")]
    if others != kept:
        raise ConfigError(
            f"{path}: read with columns {listed(kept)}, but the files before it with {listed(others)}; files of one "
            f"name need the same columns ({opened.form.flag})"
        )
    before = engine.num_rows(table)
    chosen = [f"{_converted(opened, name)} AS {name}" for name in columns]
    chosen += [] if "rel" in columns else [f"{quoted(relation or NO_RELATION)} AS rel"]
    _insert(engine, f"INSERT INTO {table} BY NAME SELECT {', '.join(chosen)} FROM", opened)
    if engine.num_rows(table) == before:
        raise DataError(NO_EDGES.format(path))
    wrong = {name: (f"coalesce({name}, '') = ''", f"{name} is empty") for name in ENDS_AND_RELATION} | {
        "weight": ("weight IS NULL OR NOT isfinite(weight)", "the weight is not a finite number"),
        "time": ("time IS NULL", "the time is not an integer from 0 to 2^63 - 1"),
    }
    conditions = [f"({wrong[name][0]})" for name in columns]
    added = f"FROM {table} WHERE rowid >= {before} AND ({' OR '.join(conditions)})"
    for row, *are_wrong in engine.run(f"SELECT rowid, {', '.join(conditions)} {added} ORDER BY rowid LIMIT 1"):
        name = columns[are_wrong.index(True)]
        raise DataError(f"{opened.place_of(int(row) - before)}: {wrong[name][1]}")
    return _header_taken_for_edge(engine, table, opened, before)


def _converted(opened: OpenedEdges, ours: str) -> str:
    # trim: a bare cast is moved into the engine's reader, which then fails where this one gives NULL.
    column = opened.column(ours)
    if ours == "time":  # a bare cast would round
        column = f"CASE WHEN regexp_full_match(trim({column}), '[0-9]+') THEN {column} END"
    return column if ours not in TYPES else f"TRY_CAST(trim({column}) AS {TYPES[ours]})"


def _header_taken_for_edge(engine: Engine, table: str, opened: OpenedEdges, first: int) -> list[str]:
    """Warn of a first line of words that headers have, and that no other edge has."""
    if isinstance(opened, ParquetEdges) or opened.text.header is not None:
        return []
    columns = [name for name in ENDS_AND_RELATION if name in opened.form.columns]
    (values,) = engine.run(f"SELECT {', '.join(columns)} FROM {table} WHERE rowid = {first}")
    names = {name: str(value) for name, value in zip(columns, values, strict=True)}
    if not looks_like_header(names):
        return []
    ends = [quoted(names["lhs"]), quoted(names["rhs"])]
    again = [f"{name} IN ({', '.join(ends)})" for name in ("lhs", "rhs")]
    again += [f"rel = {quoted(names['rel'])}"] if "rel" in names else []
    if engine.run(f"SELECT 1 FROM {table} WHERE rowid > {first} AND ({' OR '.join(again)}) LIMIT 1"):
        return []
    return [f"{opened.place_of(0)}: {taken_for_edge(names, opened.form)}"]


def _insert(engine: Engine, query: str, opened: OpenedEdges) -> None:
    import duckdb

    try:
        with opened.readable(engine) as source:
            engine.run_unguarded(f"{query} {source}")
    except duckdb.Error as error:
        of_engine = isinstance(error, duckdb.OutOfMemoryException | duckdb.FatalException)
        is_about_scratch = str(engine.folder) in str(error) or "write" in str(error).lower()
        if of_engine or (isinstance(error, duckdb.IOException) and is_about_scratch):
            with engine.faults():
                raise error from None
        raise opened.fault(error) from error
