"""Rows of buckets.csv -> a map of a metric over pairs of partitions, coarser where there are many."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from attrs import frozen

from pbgeval.report.page.figures import UNDEFINED, short_title
from pbgeval.report.page.source import Row
from pbgeval.report.page.tables import Column, DataTable, fitting, left_out
from pbgeval.report.table import number

MOST_CELLS = 64  # a side
MOST_LABELLED = 12  # cells a side that have their value in them
NUM_LEVELS = 9
MOST_BYTES = 400_000  # of the table
_EXTENT, _SMALLEST, _LARGEST = 600.0, 8.0, 52.0  # of the map, and of a cell
_LEFT, _TOP = 56.0, 34.0
_TICK_WIDTH, _TICK_HEIGHT = 28.0, 13.0


@frozen
class Cell:
    """Some buckets: one, or a block of them."""

    x: float
    y: float
    level: int | None  # 0 is the lowest value; None: nothing to show
    value: str
    title: str  # what it is, in words


@frozen
class Tick:
    """A partition number beside the map."""

    x: float
    y: float
    text: str
    anchor: str


@frozen(eq=False)
class HeatMap:
    """What is drawn. Lengths are those of the picture's own coordinates."""

    metric: str
    width: float
    height: float
    cell: float
    cells: tuple[Cell, ...]
    ticks: tuple[Tick, ...]
    legend: tuple[tuple[int, str], ...]  # level and the value where it begins
    highest: str
    description: str
    block: int  # partitions that a cell stands for, on each side
    note: str  # what a cell is a mean of; empty where it is one bucket
    has_values: bool  # in the cells


@frozen
class _Sum:
    """Edges of some buckets, and of those with a figure the sum weighted by edges."""

    num_edges: int = 0
    weight: int = 0
    weighted: float = 0.0

    def plus(self, num_edges: int, value: float | None) -> _Sum:
        weight = 0 if value is None else num_edges
        return _Sum(self.num_edges + num_edges, self.weight + weight, self.weighted + weight * (value or 0.0))

    @property
    def mean(self) -> float | None:
        return self.weighted / self.weight if self.weight else None


def heat_map(rows: Sequence[Row], key: str) -> HeatMap | None:
    """Return the map of a column.

    Where there are several edge paths, or blocks of buckets, a cell is the mean weighted by edges. None where there are
    no buckets or the column is not among theirs.

    Args:
        rows: of buckets.csv.
        key: one of its columns.
    """
    if not rows or key not in rows[0]:
        return None
    num_left, num_right = (1 + max(row[name] for row in rows) for name in ("lhs_partition", "rhs_partition"))
    block = -(-max(num_left, num_right) // MOST_CELLS)
    sums: dict[tuple[int, int], _Sum] = defaultdict(_Sum)
    for row in rows:
        place = row["lhs_partition"] // block, row["rhs_partition"] // block
        sums[place] = sums[place].plus(row["num_edges"], row[key])
    means = [of.mean for of in sums.values() if of.mean is not None]
    low, high = (min(means), max(means)) if means else (0.0, 0.0)
    down, across = -(-num_left // block), -(-num_right // block)
    size = min(_LARGEST, max(_SMALLEST, _EXTENT / max(down, across)))
    cells = []
    for (lhs, rhs), of in sorted(sums.items()):
        left, right = _span(lhs, block, num_left), _span(rhs, block, num_right)
        level = None if of.mean is None else level_of(of.mean, low, high)
        value = UNDEFINED if of.mean is None else number(key, of.mean)
        what = f"left {left}, right {right}: {value}, {of.num_edges:,} edges"
        cells.append(Cell(_LEFT + size * rhs, _TOP + size * lhs, level, value, what))
    steps = [low + (high - low) * level / NUM_LEVELS for level in range(NUM_LEVELS)]
    legend = tuple((level, number(key, step)) for level, step in enumerate(steps)) if high > low else ()
    return HeatMap(
        metric=short_title(key),
        width=_LEFT + size * across + 8,
        height=_TOP + size * down + 8,
        cell=size,
        cells=tuple(cells),
        ticks=_ticks(down, across, size, block),
        legend=legend,
        highest=number(key, high),
        description=_description(short_title(key), key, means, len(sums)),
        block=block,
        note=_note(block, len({row["edge_path"] for row in rows})),
        has_values=max(down, across) <= MOST_LABELLED,
    )


def level_of(value: float, low: float, high: float) -> int:
    """Return in which of `NUM_LEVELS` equal parts of [low, high] a value lies; the middle one where all are equal."""
    if high <= low:
        return NUM_LEVELS // 2
    return min(NUM_LEVELS - 1, int(NUM_LEVELS * ((value - low) / (high - low))))


def bucket_table(rows: Sequence[Row], key: str) -> DataTable:
    """Return the figures of a map, a row per bucket with edges, the largest first where not all fit."""
    with_edges = [row for row in rows if row["num_edges"]]
    several = len({row["edge_path"] for row in rows}) > 1
    cells = []
    for row in sorted(with_edges, key=lambda row: -row["num_edges"]):
        value = row.get(key)
        place = f"{row['lhs_partition']}, {row['rhs_partition']}"
        figures = f"{row['num_edges']:,}", UNDEFINED if value is None else number(key, value)
        cells.append((place, row["edge_path"], *figures) if several else (place, *figures))
    fit = fitting(cells, MOST_BYTES)
    return DataTable(
        "by-bucket",
        "Metrics by bucket",
        (
            Column("left, right", is_number=False),
            *([Column("edge path", is_number=False)] if several else []),
            Column("edges"),
            Column(short_title(key)),
        ),
        fit,
        left_out(len(fit), len(with_edges), "buckets with edges", "buckets.csv"),
    )


def _span(at: int, block: int, num: int) -> str:
    first, last = at * block, min((at + 1) * block, num) - 1
    return str(first) if first == last else f"{first} to {last}"


def _note(block: int, num_paths: int) -> str:
    parts = [f"up to {block} by {block} buckets"] if block > 1 else []
    parts += [f"{num_paths} edge paths"] if num_paths > 1 else []
    return f"Each cell stands for {' of '.join(parts)}: the mean, weighted by edges." if parts else ""


def _ticks(down: int, across: int, size: float, block: int) -> tuple[Tick, ...]:
    step_across, step_down = (math.ceil(length / size) for length in (_TICK_WIDTH, _TICK_HEIGHT))
    on_top = [
        Tick(_LEFT + size * (at + 0.5), _TOP - 6, str(at * block), "middle") for at in range(0, across, step_across)
    ]
    beside = [Tick(_LEFT - 8, _TOP + size * (at + 0.5), str(at * block), "end") for at in range(0, down, step_down)]
    return (*on_top, *beside)


def _description(metric: str, key: str, means: Sequence[float], num_cells: int) -> str:
    if not means:
        return f"{metric} by bucket: no bucket has ranked queries"
    low, high = number(key, min(means)), number(key, max(means))
    return (
        f"{metric} by left and right partition: {len(means)} of {num_cells} cells have a value, from {low} to {high}; "
        "the table below has the figures"
    )
