"""A text file of edges, plain, gzip or zstd -> what the engine reads, and which line is wrong.

Fields of a `.csv` file are separated by commas and may be quoted, as RFC 4180 says; any other file's by tabs, and a
quotation mark is a letter like others. Blank lines are passed over.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from attrs import frozen

from pbgeval.errors import EvalError, StorageError
from pbgeval.importing.edge_form import ColumnForm
from pbgeval.importing.engine import Engine, file_literal, first_line, quoted
from pbgeval.reading import GZIP, ZSTD, check_compressed, text_lines
from pbgeval.storage.text_files import listed, one_line

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
            columns = tuple(f"c{at}" for at in range(len(form.order)))
            return cls(path, compression, columns, has_header=False, form=form)
        lines = cls(path, compression, ("line",), has_header=False, form=form)
        try:
            first = engine.rows_unguarded(f"SELECT line FROM {lines._source(_NO_DELIMITER, '')} LIMIT 1")
        except duckdb.Error as error:
            raise lines.fault(error) from error
        header = next((fields for _, fields in lines._fields([row[0] for row in first])), [])
        if len(set(header)) != len(header):
            raise StorageError(f"{path}:1: expected a header that names each column once, found {listed(header)}")
        return cls(path, compression, tuple(header), has_header=True, form=form)

    @property
    def is_csv(self) -> bool:
        """Whether fields are separated by commas, and may be quoted."""
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

    def check(self, engine: Engine, columns: Sequence[str]) -> None:
        """Refuse a file whose header lacks columns.

        Raises:
            StorageError: it does.
        """
        missing = [column for column in columns if column not in self.columns]
        if missing:
            raise StorageError(
                f"{self.path}:1: expected a header with columns {listed(list(columns))}, found "
                f"{listed(list(self.columns))}; name them by {self.form.names_flag} HEAD,RELATION,TAIL"
            )

    def place_of(self, row: int) -> str:
        """Name a row for a message: by its line, where the file can be read once more."""
        if self.compression == "zstd":
            return f"{self.path}: edge {row}"
        for at, (line, _) in enumerate(self._records()):
            if at == row + self.has_header:
                return f"{self.path}:{line}"
        return f"{self.path}: edge {row}"

    def fault(self, error: Exception) -> EvalError:
        """Say which line the engine could not read, and why.

        The engine's own line is taken where the file cannot be read once more (zstd).
        """
        try:
            if self.compression != "zstd":
                for line, fields in self._records():
                    if len(fields) != len(self.columns):
                        return self._ragged(line, len(self.columns), len(fields))
        except StorageError as found:  # not UTF-8, or damaged: it names the line
            return found
        except csv.Error as found:
            return StorageError(f"{self.path}: expected quotes as in RFC 4180, found: {one_line(found)}")
        return self._fault_of_engine(error)

    def _fault_of_engine(self, error: Exception) -> StorageError:
        text = str(error)
        line, counts = _LINE.search(text), _COUNTS.search(text)
        where = f"{self.path}:{line[1]}" if line else f"{self.path}"
        if line and counts:
            return self._ragged(int(line[1]), int(counts[1]), int(counts[2]))
        if "unicode" in text.lower():
            return StorageError(f"{where}: expected UTF-8 text, found other bytes")
        return StorageError(f"{where}: expected lines of one form, all ended alike, found: {first_line(error)}")

    def _ragged(self, line: int, expected: int, found: int) -> StorageError:
        by = "commas" if self.is_csv else "tabs"
        return StorageError(
            f"{self.path}:{line}: expected {expected} columns separated by {by}, found {found}; is "
            f"{self.form.order_flag} that of the file?"
        )

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        """Yield (number of its last line, fields) of every line that is not blank."""
        return self._fields(f"{line}\n" for _, line in text_lines(self.path))

    def _fields(self, lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
        if self.is_csv:
            reader = csv.reader(lines, delimiter=",", strict=True)
        else:
            reader = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        for fields in reader:
            if fields:
                yield reader.line_num, fields
