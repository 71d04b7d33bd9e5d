"""The tables of a result as CSV files: floats shortest round-trip, and texts that no spreadsheet runs."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from io import TextIOWrapper
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pbgeval.errors import OutputError
from pbgeval.metrics.breakdown_names import BREAKDOWN_FILES, GROUP_COLUMNS
from pbgeval.storage.text import cell_of, name_of, open_input, reason_of

MAX_DIGITS = 19  # of a count or a time: int64
_TEXT_COLUMNS = {"edge_path", "side", "rank_type", *chain.from_iterable(GROUP_COLUMNS.values())} - {
    "relation_id",
    *GROUP_COLUMNS["time"],
}
_COUNT_COLUMNS = {"relation_id", "lhs_partition", "rhs_partition", "num_edges", "count"}
_EDGE_COLUMNS = {"lower_edge", "upper_edge"}  # of a bin of ranks
_NEEDED = {  # columns that readers rely on
    "buckets.csv": ("edge_path", "lhs_partition", "rhs_partition", "num_edges"),
    "rank_histogram.csv": ("side", "rank_type", "lower_edge", "upper_edge", "count"),
    **{BREAKDOWN_FILES[name]: columns[:1] for name, columns in GROUP_COLUMNS.items()},
    BREAKDOWN_FILES["relation"]: ("relation", "relation_id"),
}


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as CSV; an undefined value is an empty cell, floats are written shortest round-trip.

    Texts are written so that no spreadsheet runs them (`cell_of`).
    """
    first = next(iter(rows), {})
    lines: list[str] = []
    # Python 3.11 quotes the characters of the line end alone: "\r" needs quotes, too.
    writer = csv.writer(SimpleNamespace(write=lines.append), lineterminator="\r\n")
    writer.writerow(first)
    writer.writerows(
        [cell_of(value) if isinstance(value, str) else value for value in map(row.get, first)] for row in rows
    )
    return "".join(f"{line[:-2]}\n" for line in lines)


def read_csv(path: Path, cell: str = "") -> tuple[Mapping[str, Any], ...]:
    """Return the rows of a CSV file of an output directory: text, numbers, None where a cell is empty; () if absent.

    Args:
        path: of the file.
        cell: a word without quotes; only lines with such a cell between others are read. Empty: all are.

    Raises:
        OutputError: it is not as it was written.
    """
    try:
        with TextIOWrapper(open_input(path), encoding="utf-8", newline="") as file:
            names = next(csv.reader(file), [])
            reader = csv.reader(line for line in file if f",{cell}," in line) if cell else csv.reader(file)
            if names and (missing := set(_NEEDED.get(path.name, ())) - set(names)):
                raise ValueError(f"no column {min(missing)}")
            parsers = [_parser(name) for name in names]
            return tuple(
                {name: parse(cell) for name, parse, cell in zip(names, parsers, cells, strict=True)} for cells in reader
            )
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, csv.Error) as error:
        raise OutputError(
            f"{path}: expected a table as an evaluation writes it, got: {reason_of(error)}; evaluate again, or remove "
            "the file"
        ) from error


def _parser(column: str) -> Callable[[str], str | int | float | None]:
    if column in _TEXT_COLUMNS:
        return name_of
    return _count if column in _COUNT_COLUMNS else _edge if column in _EDGE_COLUMNS else _number


def _number(cell: str) -> int | float | None:
    if cell.isdecimal():
        return _count(cell)
    if not cell:
        return None
    if not math.isfinite(number := float(cell)):
        raise ValueError(f"{cell} in place of a finite number")
    return number


def _count(cell: str) -> int:
    if not cell.isdecimal() or len(cell) > MAX_DIGITS:
        raise ValueError(f"{cell[:40] or 'nothing'} in place of a count")
    return int(cell)


def _edge(cell: str) -> float:
    if not cell or not 0 < (number := float(cell)) < math.inf:
        raise ValueError(f"{cell or 'nothing'} in place of a rank")
    return number
