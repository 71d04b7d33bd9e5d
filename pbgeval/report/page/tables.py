"""Rows of figures -> tables of text, short enough for a page."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from attrs import frozen

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
