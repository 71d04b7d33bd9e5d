"""Files of edges (text, plain, gzip or zstd; Parquet) -> a table of their columns in the engine.

Every line that is not as it should be is a fault with its number; nothing is guessed, skipped or filled in.
"""

from __future__ import annotations

import csv
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from attrs import field, frozen

from pbgeval.errors import ConfigError, DataError, EvalError, StorageError, raise_first
from pbgeval.importing.columns import ENDS_BY_NAME, HEADER_WORDS, RELATIONS_BY_NAME, TYPES, ColumnForm, is_csv
from pbgeval.importing.engine import Engine, file_literal, first_line, quoted
from pbgeval.storage.text import (
    GZIP,
    LONE_RETURN,
    ZSTD,
    check_compressed,
    did_you_mean,
    has_mixed_line_ends,
    is_lone_return,
    listed,
    names_file_of_edges,
    one_line,
    open_input,
    text_lines,
    unknown_extension,
    unreadable,
)

NO_RELATION = "edge"  # what the relation is called where the files have none, and nobody else names it

# A Parquet file of edges -> what the engine reads, and what is wrong with it.

PARQUET_MAGIC = b"PAR1"
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
# Fields of a `.csv` file may be quoted, as RFC 4180 says; in any other file a quotation mark is a letter like others.
# Blank lines are passed over, and so are comments, of which the engine reads a copy without them.

_NEVER, _NO_DELIMITER = "\x01", "\x02"  # in no file: nothing is a missing value; a line is one field
_LINE = re.compile(r"CSV Error on Line: (\d+)")
_COUNTS = re.compile(r"Expected Number of Columns: (\d+) Found: (\d+)")


@frozen
class TextEdges:
    """A text file and its columns."""

    path: Path
    form: ColumnForm
    magic: bytes
    header: tuple[str, ...] | None = None  # None: it has none
    chosen: Mapping[str, str] = field(factory=dict)  # the column of each of ours: c0, c1, ...

    @classmethod
    def open(cls, engine: Engine, path: Path, form: ColumnForm, magic: bytes) -> TextEdges:
        """Look at the first line, and at the header of a file that has one.

        Raises:
            StorageError: the file cannot be read, has other columns, or a header that names one twice.
        """
        opened = cls(path, form, magic, chosen=form.chosen())
        line, first = opened._first(engine)
        if form.names is None:
            if first and len(first) != opened.width:
                check_compressed(path, magic)  # of a damaged file, this is the fault
                raise opened._ragged(line, first)
            return opened
        raise_first(
            StorageError,
            (
                len({*first}) != len(first) - max(first.count("") - 1, 0),
                f"{path}:{line}: the header has a column twice: {listed(first)}",
            ),
            (
                not {*form.chosen().values()} <= {*first},
                f"{path}:{line}: expected a header with columns {listed([*form.chosen().values()])}, found "
                f"{listed(first)}; name them with {form.flag} HEAD,RELATION,TAIL",
            ),
        )
        places = {ours: f"c{first.index(theirs)}" for ours, theirs in form.chosen().items()}
        return cls(path, form, magic, tuple(first), places)

    @property
    def width(self) -> int:
        """The number of columns."""
        return len(self.form.order if self.header is None else self.header)

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
        check_compressed(self.path, self.magic)
        columns, by = [f"c{at}" for at in range(self.width)], self.form.delimiter_in(self.path)
        quote, has_header = '"' if is_csv(self.path) else "", self.header is not None
        if self.form.comment is None:
            yield _text(self.path, self.compression, columns, by, quote, has_header=has_header)
            return
        if quote:
            self._check_fields_end_in_their_lines(engine)
        copy = engine.folder / "without_comments"
        try:
            engine.run_unguarded(
                f"COPY ({self._lines()}) TO {quoted(copy)} "
                f"(FORMAT csv, HEADER false, DELIMITER {quoted(_NO_DELIMITER)}, QUOTE '', ESCAPE '', "
                f"NULLSTR {quoted(_NEVER)})"
            )
            yield _text(copy, "none", columns, by, quote, has_header=has_header)
        finally:
            copy.unlink(missing_ok=True)

    def _check_fields_end_in_their_lines(self, engine: Engine) -> None:
        """Refuse quoted fields of several lines: one that begins like a comment, or is blank, would be left out.

        Raises:
            StorageError: there is such a field.
        """
        marks = "length(line) - length(replace(line, '\"', ''))"
        if engine.run_unguarded(f"SELECT 1 FROM ({self._lines()}) WHERE ({marks}) % 2 = 1 LIMIT 1"):
            comment = self.form.flag_of("comment")
            raise StorageError(
                f"{self.path}: a quoted field goes on in the next line, which {comment} does not allow; remove the "
                f"comments from the file and leave out {comment}"
            )

    def _lines(self) -> str:
        """Return a query for all lines but blank ones and comments."""
        comment = "" if self.form.comment is None else f" WHERE NOT starts_with(line, {quoted(self.form.comment)})"
        return f"SELECT line FROM {_text(self.path, self.compression, ['line'], _NO_DELIMITER, '')}{comment}"

    def column(self, ours: str) -> str:
        """Return a column as text."""
        return f"CAST({self.chosen[ours]} AS VARCHAR)"

    def place_of(self, row: int) -> str:
        """Name a row for a message: by its line, where the file can be read once more."""
        start = row + (self.header is not None)
        lines = (f"{self.path}:{line}" for line, _ in itertools.islice(self._records(), start, None))
        return next(lines, f"{self.path}: edge {row}")

    def fault(self, error: Exception) -> EvalError:
        """Return the error for the line that the engine could not read.

        The engine's own line is taken where the file cannot be read once more (zstd).
        """
        try:
            for line, fields in self._records():
                if len(fields) != self.width:
                    return self._ragged(line, fields)
            if self.compression != "zstd" and has_mixed_line_ends(self.path):
                return StorageError(f"{self.path}: some lines end in CRLF and others in LF; end all of them alike")
        except StorageError as found:  # not UTF-8, damaged, or with a lone CR: it names the line
            return found
        at, counts = _LINE.search(str(error)), _COUNTS.search(str(error))
        where = f":{at[1]}" if at and self.form.comment is None else ""
        if counts:
            return self._miscounted(where, int(counts[1]), int(counts[2]))
        if "maximum line size" in str(error).lower():
            return StorageError(f"{self.path}{where}: a line is longer than 2 MB; is this a file of edges?")
        is_unlike = "state machine" in str(error)
        fault = "the lines have different forms or line ends" if is_unlike else one_line(first_line(error))
        return StorageError(f"{self.path}{where}: {'not UTF-8 text' if 'unicode' in str(error).lower() else fault}")

    def _ragged(self, line: int, found: Sequence[str]) -> StorageError:
        if found[0].startswith("#") and self.form.comment is None:
            advice = f"set {self.form.flag_of('comment')} '#' if lines that begin with # are comments"
            return self._miscounted(f":{line}", self.width, len(found), advice)
        named = [name for name in found if name.casefold() in HEADER_WORDS]
        if self.header is None and len(named) in (2, 3):
            names = ",".join(named if len(named) == 3 else [named[0], "", named[1]])
            advice = f"if this is a header, set {self.form.flag} {names}"
            return self._miscounted(f":{line}", self.width, len(found), advice)
        return self._miscounted(f":{line}", self.width, len(found))

    def _miscounted(self, where: str, expected: int, found: int, advice: str = "") -> StorageError:
        flag, delimiter = self.form.flag, self.form.flag_of("delimiter")
        if found == 1 and not is_csv(self.path) and self.form.delimiter is None:
            advice = advice or (
                f"columns must be separated by tabs; name the file .csv if commas separate them, or set {delimiter}"
            )
        advice = advice or f"set {flag} to the columns of the file{' (ht: no relation)' if found == 2 else ''}"
        columns = f"{expected} columns {self.form.separated(self.path)}"
        return StorageError(f"{self.path}{where}: expected {columns}, found {found}; {advice}")

    def _first(self, engine: Engine) -> tuple[int, list[str]]:
        """Return the first line that is neither blank nor a comment: its number, and its fields; none of no lines."""
        import duckdb

        if self.compression != "zstd":
            return next(self._records(), (1, []))
        check_compressed(self.path, self.magic)
        try:
            lines = engine.run_unguarded(f"{self._lines()} LIMIT 1")
        except duckdb.Error as error:
            raise self.fault(error) from error
        return next(self._fields((1, str(line)) for (line,) in lines), (1, []))

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        """Return (number of its last line, fields) of every line that is no comment and not blank; nothing of zstd.

        Raises:
            StorageError: a line cannot be read.
        """
        lines: Iterable[tuple[int, str]] = () if self.compression == "zstd" else text_lines(self.path)
        comment = self.form.comment
        return self._fields(of for of in lines if comment is None or not of[1].startswith(comment))

    def _fields(self, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, list[str]]]:
        number, delimiter = 0, self.form.delimiter_in(self.path)

        def texts() -> Iterator[str]:
            nonlocal number
            for at, line in lines:
                number = at
                yield f"{line}\n"

        if is_csv(self.path):
            try:
                for fields in csv.reader(texts(), delimiter=delimiter, strict=True):
                    if fields:
                        yield number, fields
            except csv.Error as error:
                is_lone = is_lone_return(error)
                what = LONE_RETURN if is_lone else f"wrong quotation marks (RFC 4180): {one_line(error)}"
                raise StorageError(f"{self.path}{f':{number}' if is_lone else ''}: {what}") from error
            return
        for at, line in lines:
            if "\r" in line:
                raise StorageError(f"{self.path}:{at}: {LONE_RETURN}")
            if line:
                yield at, line.split(delimiter)


def _text(
    path: Path, compression: str, columns: Sequence[str], delimiter: str, quote: str, *, has_header: bool = False
) -> str:
    named = ", ".join(f"{quoted(name)}: 'VARCHAR'" for name in columns)
    return (
        f"read_csv({file_literal(path)}, auto_detect = false, header = {str(has_header).lower()}, "
        f"delim = {quoted(delimiter)}, quote = {quoted(quote)}, escape = {quoted(quote)}, columns = {{{named}}}, "
        f"nullstr = {quoted(_NEVER)}, strict_mode = true, compression = {quoted(compression)}, "
        "hive_partitioning = false)"
    )


# Any file -> a table.

OpenedEdges = ParquetEdges | TextEdges
_EMPTY = "{}: there are no edges in this file"


def open_edges(engine: Engine, path: Path, form: ColumnForm) -> OpenedEdges:
    """Look at what can be wrong with a file before all of it is read.

    Raises:
        StorageError: the file cannot be read, or has other columns than the form says.
        DataError: it is empty.
    """
    near = "" if path.exists() else did_you_mean(path, os.path.isfile)
    with unreadable(path, "cannot read this file of edges", near), open_input(path) as file:
        magic = file.read(4)
    if not names_file_of_edges(path):
        raise StorageError(unknown_extension(path))
    if not magic:
        raise DataError(_EMPTY.format(path))
    if magic == PARQUET_MAGIC:
        return ParquetEdges.open(engine, path, form)
    if path.suffix.lower() in (".parquet", ".pq"):
        raise StorageError(f"{path}: not a Parquet file, or not complete")
    return TextEdges.open(engine, path, form, magic)


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
    kept = [name for name in ("lhs", "rel", "rhs", *TYPES) if name in (*columns, "rel")]
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
        raise DataError(_EMPTY.format(path))
    empty = {name: (f"coalesce({name}, '') = ''", f"{name} is empty") for name in ("lhs", "rel", "rhs")}
    wrong = empty | {
        "weight": ("weight IS NULL OR NOT isfinite(weight)", "the weight is not a finite number"),
        "time": ("time IS NULL", "the time is not an integer from 0 to 2^63 - 1"),
    }
    for condition, fault in (wrong[name] for name in columns):  # in the first such row
        row = engine.row(f"SELECT min(rowid) FROM {table} WHERE rowid >= {before} AND ({condition})")[0]
        if row is not None:
            raise DataError(f"{opened.place_of(int(row) - before)}: {fault}")
    return _header_taken_for_edge(engine, table, opened, before)


def _converted(opened: OpenedEdges, ours: str) -> str:
    # trim: a bare cast is moved into the engine's reader, which then fails where this one gives NULL.
    column = opened.column(ours)
    if ours == "time":  # a bare cast would round
        column = f"CASE WHEN regexp_full_match(trim({column}), '[0-9]+') THEN {column} END"
    return column if ours not in TYPES else f"TRY_CAST(trim({column}) AS {TYPES[ours]})"


def _header_taken_for_edge(engine: Engine, table: str, opened: OpenedEdges, first: int) -> list[str]:
    """Warn of a first line of words that headers have, and that no other edge has."""
    if isinstance(opened, ParquetEdges) or opened.header is not None:
        return []
    names = [name for name in ("lhs", "rel", "rhs") if name in opened.form.columns]
    (values,) = engine.run(f"SELECT {', '.join(names)} FROM {table} WHERE rowid = {first}")
    words = {name: str(value) for name, value in zip(names, values, strict=True)}
    if sum(word.strip().casefold() in HEADER_WORDS for word in words.values()) < 2:
        return []
    ends = [quoted(words["lhs"]), quoted(words["rhs"])]
    again = [f"{name} IN ({', '.join(ends)})" for name in ("lhs", "rhs")]
    again += [f"rel = {quoted(words['rel'])}"] if "rel" in words else []
    if engine.run(f"SELECT 1 FROM {table} WHERE rowid > {first} AND ({' OR '.join(again)}) LIMIT 1"):
        return []
    columns = ",".join([words["lhs"], words.get("rel", ""), words["rhs"]])
    return [
        f"{opened.place_of(0)}: {one_line(columns.replace(',,', ', ').replace(',', ', '))} looks like a header, but is "
        f"read as an edge; if it is one, set {opened.form.flag} {one_line(columns)}"
    ]


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
