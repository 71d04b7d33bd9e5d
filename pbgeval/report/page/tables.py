"""Rows of figures -> tables of text, short enough for a page."""

from __future__ import annotations

import csv
import html
from collections.abc import Iterable, Mapping, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from pbgeval.errors import OutputError
from pbgeval.metrics.breakdowns import BREAKDOWN_FILES, GROUP_COLUMNS
from pbgeval.monitor.curves import Curves
from pbgeval.report.output import BUCKETS, HISTOGRAM, METRICS
from pbgeval.report.report import Report
from pbgeval.storage.text import name_of, open_input

CELL_BYTES = 6  # of the tags around a cell
ROW_BYTES = 16
LONGEST_TEXT = 500  # characters of a name; the files have it whole


@frozen
class Column:
    """What stands at the head of a column."""

    title: str
    is_number: bool = True


@frozen(eq=False)
class DataTable:
    """A table of text; the first cell of a row says whose figures follow."""

    anchor: str  # of letters, digits and dashes
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""  # below it: what was left out, what the figures mean

    @property
    def has_figures(self) -> bool:
        return bool(self.rows)


def fitting(rows: Iterable[Sequence[str]], num_bytes: int) -> tuple[tuple[str, ...], ...]:
    """Return the first rows, as many as fit into so many bytes of HTML, with names clipped."""
    chosen: list[tuple[str, ...]] = []
    for row in rows:
        cells = tuple(clipped(cell) for cell in row)
        num_bytes -= ROW_BYTES + sum(CELL_BYTES + len(html.escape(cell).encode()) for cell in cells)
        if num_bytes < 0:
            break
        chosen.append(cells)
    return tuple(chosen)


def clipped(text: str) -> str:
    """Return a name of a length that can be read."""
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"


def left_out(shown: int, total: int, what: str, file: str) -> str:
    """Return the note on rows that did not fit; empty where all did."""
    return "" if shown == total else f"{shown:,} of {total:,} {what} are shown; {file} has all."


# An output directory -> all that its report tells: metrics.json, and the tables beside it.

Row = Mapping[str, Any]
_TEXT = {"edge_path", "side", "rank_type", *(name for names in GROUP_COLUMNS.values() for name in names)}
_WHOLE = ("complete", "filter", "headline", "num_edges", "num_queries", "metrics", "diagnostics", "intervals")


@frozen(eq=False)
class Source:
    """What a page is made of. At least one of the two is there."""

    name: str  # of the folder
    report: Report | None  # with the rows of its tables
    training: Curves | None = None

    @property
    def is_complete(self) -> bool:
        """Whether nothing is going to be added; records of a training run do not tell."""
        return self.report is None or bool(self.report.document["complete"])

    @property
    def has_metrics(self) -> bool:
        """Whether an evaluation has got as far as to have figures."""
        return self.report is not None and "metrics" in self.report.document


def read_result(folder: Path) -> Report:
    """Read a result with its tables; those of an unfinished run, which has none, are empty.

    Raises:
        OutputError: there is no result, or a file is not as it was written.
    """
    report = Report.read(folder)
    document = report.document
    missing = [key for key in (_WHOLE if document.get("complete") else ("complete",)) if key not in document]
    if missing:
        raise OutputError(
            f"{folder / METRICS}: expected the result of an evaluation, found none of the keys "
            f"{', '.join(missing)}; evaluate again"
        )
    if not document["complete"]:
        return report
    tables = {name: read_table(folder / name) for name in BREAKDOWN_FILES.values()}
    return evolve(
        report,
        bucket_rows=read_table(folder / BUCKETS),
        histogram_rows=read_table(folder / HISTOGRAM),
        tables={name: rows for name, rows in tables.items() if rows},
    )


def read_table(path: Path) -> tuple[Row, ...]:
    """Return the rows of a CSV file of an output directory: text, numbers, None where a cell is empty; () if absent.

    Raises:
        OutputError: it is not as it was written.
    """
    try:
        with TextIOWrapper(open_input(path), encoding="utf-8", newline="") as file:
            reader = csv.reader(file)
            names = next(reader, [])
            parsers = [name_of if name in _TEXT else _number for name in names]
            return tuple(
                {name: parse(cell) for name, parse, cell in zip(names, parsers, cells, strict=True)} for cells in reader
            )
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, csv.Error) as error:
        raise OutputError(
            f"{path}: expected a table as an evaluation writes it, got: {error}; evaluate again, or remove the file"
        ) from error


def _number(cell: str) -> int | float | None:
    if cell.isdecimal():
        return int(cell)
    return float(cell) if cell else None
