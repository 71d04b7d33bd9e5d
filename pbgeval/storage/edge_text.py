"""A text file of edges, plain or gzip -> the names of its edges, or the first line that is wrong.

These are the rules for every file of edges, in every command. Files that may be larger than memory are read by DuckDB
(`importing/edge_files.py`), which takes the first line, and every fault, from here;
`tests/contracts/test_edges_by_every_door.py` and `tests/laws/test_one_reader_of_edges.py` hold the two together.

Fields of a `.csv` file may be quoted, as RFC 4180 says; in any other file a quotation mark is a letter like others.
Blank lines are passed over, and so are comments.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from typing import TypeAlias

from attrs import define, field, frozen

from pbgeval.errors import DataError, EvalError, StorageError
from pbgeval.storage.edge_columns import HEADER_WORDS, NO_RELATION, ColumnForm, is_csv
from pbgeval.storage.text import (
    LONE_RETURN,
    check_whole,
    did_you_mean,
    listed,
    names_file_of_edges,
    one_line,
    open_input,
    text_blocks,
    unknown_extension,
    unreadable,
)

PARQUET_MAGIC = b"PAR1"
ENDS_AND_RELATION = ("lhs", "rel", "rhs")
MAX_LINE_BYTES = 2_000_000  # with its end; DuckDB reads no longer ones
TOO_LONG = "a line is longer than 2 MB; is this a file of edges?"
NO_EDGES = "{}: there are no edges in this file"

Names: TypeAlias = tuple[Sequence[str], Sequence[str], Sequence[str]]  # left ends, relations, right ends


def magic_of_edges(path: Path) -> bytes:
    """Return the first four bytes of a file of edges: its name may say less.

    Raises:
        StorageError: it cannot be read, or its name says that it is none.
        DataError: it is empty.
    """
    near = "" if path.exists() else did_you_mean(path, os.path.isfile)
    with unreadable(path, "cannot read this file of edges", near), open_input(path) as file:
        magic = file.read(4)
    if not names_file_of_edges(path):
        raise StorageError(unknown_extension(path))
    if not magic:
        raise DataError(NO_EDGES.format(path))
    if magic != PARQUET_MAGIC and path.suffix.lower() in (".parquet", ".pq"):
        raise StorageError(f"{path}: not a Parquet file, or not complete")
    return magic


@frozen
class EdgeText:
    """A text file of edges and its columns."""

    path: Path
    form: ColumnForm
    header: tuple[str, ...] | None = None  # None: it has none
    places: Mapping[str, int] = field(factory=dict)  # the column of each of ours

    @classmethod
    def open(cls, path: Path, form: ColumnForm, lines: Iterable[str] | None = None) -> EdgeText:
        """Look at the first line, and at the header of a file that has one.

        Args:
            path: the file.
            form: how it is read.
            lines: of the file, at least its first one that is neither blank nor a comment; None: they are read.

        Raises:
            StorageError: the file cannot be read, has other columns, or a header that names one twice.
        """
        opened = cls(path, form, places=form.places())
        with opened.damage_first():
            line, first = opened._first(opened._blocks() if lines is None else [(1, list(lines))])
            if form.names is None:
                if first and len(first) != opened.width:
                    raise opened._ragged(line, first)
                return opened
        names = form.chosen()
        if len({*first}) != len(first) - max(first.count("") - 1, 0):
            raise StorageError(f"{path}:{line}: the header has a column twice: {listed(first)}")
        if not {*names.values()} <= {*first}:
            raise StorageError(
                f"{path}:{line}: expected a header with columns {listed([*names.values()])}, found {listed(first)}"
                f"{form.advice(f'name them with {form.flag} HEAD,RELATION,TAIL')}"
            )
        return cls(path, form, tuple(first), {ours: first.index(theirs) for ours, theirs in names.items()})

    @classmethod
    def num_columns(cls, path: Path, form: ColumnForm) -> int:
        """Return how many columns the first line has.

        Raises:
            StorageError: it cannot be read.
        """
        opened = cls(path, form)
        with opened.damage_first():
            return len(opened._first(opened._blocks())[1])

    @property
    def width(self) -> int:
        """The number of columns."""
        return len(self.form.order if self.header is None else self.header)

    def names(self, warn: Callable[[str], object]) -> Iterator[Names]:
        """Yield the names of all edges, in blocks. What is wrong with a name is raised at the end.

        Args:
            warn: is told at the end what is doubtful about the file.

        Raises:
            StorageError: a line cannot be read, has other columns than the first, or ends unlike the others.
            DataError: there is no edge, or a name is empty.
        """
        reading = _Reading(self)
        with self.damage_first():
            for first, lines in self._blocks():
                columns = reading.columns(first, lines)
                if columns[0]:
                    yield columns
            reading.finish(warn)

    def first_fault(self) -> EvalError | None:
        """Return what is wrong with the file; None if these rules find nothing."""
        try:
            for _ in self.names(lambda _: None):
                pass
        except EvalError as found:
            return found
        return None

    def place_of(self, row: int) -> str:
        """Name an edge for a message: by its line."""
        for at, (line, _) in enumerate(self._records(self._blocks()), -(self.header is not None)):
            if at == row:
                return f"{self.path}:{line}"
        return f"{self.path}: edge {row}"

    def fault_in(self, line: int, fields: Sequence[str]) -> EvalError | None:
        """Return what is wrong with the fields of a line; None if they are an edge."""
        if len(fields) != self.width:
            return self._ragged(line, fields)
        empty = next((name for name in ENDS_AND_RELATION if name in self.places and not fields[self.places[name]]), "")
        return DataError(f"{self.path}:{line}: {empty} is empty") if empty else None

    def goes_on(self, where: str = "") -> StorageError:
        """Return the error for a quoted field of several lines, where there are comments."""
        flag = self.form.flag_of("comment")
        return StorageError(
            f"{self.path}{where}: a quoted field goes on in the next line, which {flag} does not allow; remove the "
            f"comments from the file and leave out {flag}"
        )

    @contextmanager
    def damage_first(self) -> Iterator[None]:
        """Of a compressed file that is cut off or damaged, that is the fault, and not what its lines are like."""
        try:
            yield
        except EvalError:
            check_whole(self.path)
            raise

    def _blocks(self) -> Iterator[tuple[int, list[str]]]:
        """Yield (number of the first line, lines with their ends).

        Raises:
            StorageError: a line is too long or has a carriage return within it, or some lines end in CRLF and others
                in LF. Lines before it are yielded.
        """
        num_lines = num_crlf = 0
        for first, lines in text_blocks(self.path, keep_ends=True):
            text = "".join(lines)
            last = text.endswith("\r")  # the file's end, which stands for CRLF
            crlf = text.count("\r\n") + last
            if text.count("\r") != crlf or len(text) > MAX_LINE_BYTES // 4:  # letters have up to four bytes
                for at, line in enumerate(lines):
                    fault = _fault_of_line(line)
                    if fault:
                        yield first, lines[:at]
                        raise StorageError(f"{self.path}:{first + at}: {fault}")
            num_lines, num_crlf = num_lines + text.count("\n") + last, num_crlf + crlf
            yield first, lines
        if 0 < num_crlf < num_lines:
            raise StorageError(f"{self.path}: some lines end in CRLF and others in LF; end all of them alike")

    def _records(self, blocks: Iterable[tuple[int, list[str]]]) -> Iterator[tuple[int, list[str]]]:
        cutter = _Cutter(self)
        for first, lines in blocks:
            yield from cutter.records(first, lines)
        cutter.finish()

    def _first(self, blocks: Iterable[tuple[int, list[str]]]) -> tuple[int, list[str]]:
        """Return the first line that is neither blank nor a comment: its number, and its fields; none of no lines."""
        return next(self._records(blocks), (1, []))

    def _ragged(self, line: int, found: Sequence[str]) -> StorageError:
        form = self.form
        if found[0].startswith("#") and form.comment is None:
            return self.miscounted(
                f":{line}",
                self.width,
                len(found),
                f"set {form.flag_of('comment')} '#' if lines that begin with # are comments",
            )
        named = [name for name in found if name.casefold() in HEADER_WORDS]
        if self.header is None and len(named) in (2, 3):
            names = ",".join(named if len(named) == 3 else [named[0], "", named[1]])
            advice = f"if this is a header, set {form.flag} {names}"
            return self.miscounted(f":{line}", self.width, len(found), advice)
        return self.miscounted(f":{line}", self.width, len(found))

    def miscounted(self, where: str, expected: int, found: int, advice: str = "") -> StorageError:
        """Return the error for a line with too many or too few columns."""
        form = self.form
        if found == 1 and not is_csv(self.path) and form.delimiter is None:
            advice = advice or (
                "columns must be separated by tabs; name the file .csv if commas separate them, or set "
                f"{form.flag_of('delimiter')}"
            )
        advice = advice or f"set {form.flag} to the columns of the file{' (ht: no relation)' if found == 2 else ''}"
        columns = f"{expected} columns {form.separated(self.path)}"
        return StorageError(f"{self.path}{where}: expected {columns}, found {found}{form.advice(advice)}")


def _fault_of_line(line: str) -> str:
    if len(line.encode()) > MAX_LINE_BYTES:
        return TOO_LONG
    return LONE_RETURN if "\r" in line.removesuffix("\n").removesuffix("\r") else ""


_INSIDE = re.compile('([^"]*(?:""[^"]*)*)("?)')  # of a quoted field; then the mark that ends it, in this line or not


@define
class _Cutter:
    """Cuts lines into fields; a quoted field may go on in the next line."""

    text: EdgeText
    _fields: list[str] = field(factory=list, init=False)
    _begun: list[str] | None = field(default=None, init=False)  # the parts of a quoted field that is open
    _num_bytes: int = field(default=0, init=False)  # of the lines of this record
    _line: int = field(default=0, init=False)  # where the last quoted field begins
    _is_csv: bool = field(init=False)
    _delimiter: str = field(init=False)
    _opening: re.Pattern[str] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._is_csv = is_csv(self.text.path)
        self._delimiter = self.text.form.delimiter_in(self.text.path)
        self._opening = re.compile('"' if self._delimiter == " " else ' *"')

    @property
    def is_open(self) -> bool:
        """Whether a quoted field goes on in the next line."""
        return self._begun is not None

    def records(self, first: int, lines: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
        """Yield (number of its last line, fields) of every line that is no comment and not blank.

        Raises:
            StorageError: quotation marks are wrong.
        """
        comment = self.text.form.comment
        for number, line in enumerate(lines, first):
            if comment is not None and line.startswith(comment):
                continue
            body = line.removesuffix("\n").removesuffix("\r")
            if not (body or self.is_open):
                continue
            if not self._is_csv or ('"' not in line and not self.is_open):
                yield number, body.split(self._delimiter)
                continue
            if comment is not None and line.count('"') % 2:  # blank lines and comments in it would be left out
                raise self.text.goes_on(f":{number}")
            fields = self._cut(number, line, len(body))
            if fields is not None:
                yield number, fields

    def finish(self) -> None:
        """Take note that there are no more lines.

        Raises:
            StorageError: a quoted field is open.
        """
        if self.is_open:
            raise self._wrong(self._line, "the quotation mark before a field has none behind it")

    def _cut(self, number: int, line: str, end: int) -> list[str] | None:
        """Return the fields of a record that ends in this line, which has so many letters; None if it goes on."""
        self._num_bytes += len(line.encode())
        if self._num_bytes > MAX_LINE_BYTES:
            raise StorageError(f"{self.text.path}:{number}: {TOO_LONG}")
        at = 0
        while True:
            opening = None if self.is_open else self._opening.match(line, at, end)
            if opening is not None:
                if opening.end() > at + 1:
                    raise self._wrong(number, "spaces before a quoted field")
                self._begun, self._line, at = [], number, opening.end()
            if self._begun is None:
                stop = line.find(self._delimiter, at, end)
                stop = end if stop < 0 else stop
                self._fields.append(line[at:stop])
                at = stop
            else:
                inside = _INSIDE.match(line, at)
                assert inside is not None  # it matches anything
                self._begun.append(inside[1])
                if not inside[2]:
                    return None
                self._fields.append("".join(self._begun).replace('""', '"'))
                self._begun, at = None, inside.end()
                if at < end and line[at] != self._delimiter:
                    raise self._wrong(number, f"{line[at : at + 1]!r} behind a quoted field")
            if at >= end:
                fields, self._fields, self._num_bytes = self._fields, [], 0
                return fields
            at += 1

    def _wrong(self, line: int, what: str) -> StorageError:
        return StorageError(f"{self.text.path}:{line}: wrong quotation marks (RFC 4180): {what}")


def looks_like_header(names: Mapping[str, str]) -> bool:
    """Return whether the names of an edge are words that headers have."""
    return sum(name.strip().casefold() in HEADER_WORDS for name in names.values()) >= 2


def taken_for_edge(names: Mapping[str, str], form: ColumnForm) -> str:
    """Return the warning about a first edge that looks like a header, if no other edge has a name of it."""
    columns = ",".join([names["lhs"], names.get("rel", ""), names["rhs"]])
    return (
        f"{one_line(columns.replace(',,', ', ').replace(',', ', '))} looks like a header, but is read as an edge"
        f"{form.advice(f'if it is one, set {form.flag} {one_line(columns)}')}"
    )


def _is_used_again(names: Mapping[str, str], columns: Mapping[str, Sequence[str]], start: int) -> bool:
    ends = {names["lhs"], names["rhs"]}
    used = any(not ends.isdisjoint(columns[name][start:]) for name in ("lhs", "rhs"))
    return used or ("rel" in names and names["rel"] in columns["rel"][start:])


@define
class _Reading:
    """The state of reading a file. Faults of names are reported at its end, because those of lines come first."""

    text: EdgeText
    num_edges: int = 0
    fault: EvalError | None = None  # of the first name that is wrong
    cutter: _Cutter = field(init=False)
    is_after_header: bool = field(init=False)
    likely_header: tuple[int, dict[str, str]] | None = None  # line and names of an edge that may be one

    def __attrs_post_init__(self) -> None:
        self.cutter = _Cutter(self.text)
        self.is_after_header = self.text.header is None

    def columns(self, first: int, lines: Sequence[str]) -> Names:
        """Return the names of some lines."""
        at_once = self._cut_at_once(lines) if self.num_edges and not self.cutter.is_open else None
        found = self._cut_by_line(first, lines) if at_once is None else at_once
        if self.likely_header is not None and _is_used_again(self.likely_header[1], found, 0 if self.num_edges else 1):
            self.likely_header = None
        self.num_edges += len(found["lhs"])
        relations = found.get("rel") or [NO_RELATION] * len(found["lhs"])
        return found["lhs"], relations, found["rhs"]

    def finish(self, warn: Callable[[str], object]) -> None:
        self.cutter.finish()
        text = self.text
        if not self.num_edges:
            raise DataError(NO_EDGES.format(text.path))
        if self.fault is not None:
            raise self.fault
        if self.likely_header is not None:
            line, names = self.likely_header
            warn(f"{text.path}:{line}: {taken_for_edge(names, text.form)}")

    @property
    def _names(self) -> list[str]:
        return [name for name in ENDS_AND_RELATION if name in self.text.places]

    def _cut_at_once(self, lines: Sequence[str]) -> dict[str, list[str]] | None:
        """Return the columns of lines that are all alike, with no empty name; None if they need a closer look."""
        form, width, path = self.text.form, self.text.width, self.text.path
        delimiter = form.delimiter_in(path)
        if form.comment is not None:
            lines = [line for line in lines if not line.startswith(form.comment)]
        text = "".join(lines)
        if (is_csv(path) and '"' in text) or {*map(str.count, lines, repeat(delimiter))} != {width - 1}:
            return None
        text = text.replace("\r", "") if "\r" in text else text  # `_blocks` has found them at ends only
        words = text.removesuffix("\n").replace("\n", delimiter).split(delimiter)
        columns = {name: words[self.text.places[name] :: width] for name in self._names}
        return columns if all(map(all, columns.values())) else None

    def _cut_by_line(self, first: int, lines: Sequence[str]) -> dict[str, list[str]]:
        columns: dict[str, list[str]] = {name: [] for name in self._names}
        for number, fields in self.cutter.records(first, lines):
            if not self.is_after_header:
                self.is_after_header = True
                continue
            fault = self.text.fault_in(number, fields)
            if isinstance(fault, StorageError):
                raise fault
            self.fault = self.fault or fault
            names = {name: fields[self.text.places[name]] for name in columns}
            if not self.num_edges and not columns["lhs"] and self.text.header is None and looks_like_header(names):
                self.likely_header = number, names
            for name, value in names.items():
                columns[name].append(value)
        return columns
