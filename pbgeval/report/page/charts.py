"""Series of numbers -> lengths of a picture: bars and lines between two axes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from attrs import frozen

from pbgeval.monitor.curves import METRICS, Curves
from pbgeval.report.page.figures import UNDEFINED, short_title
from pbgeval.report.page.tables import Column, DataTable, Row, fitting, left_out
from pbgeval.report.table import SIDES, number
from pbgeval.report.training import PASS_COLUMNS, Z, cells_of_pass, verdict_of

WIDTH, HEIGHT = 680.0, 300.0
LEFT, RIGHT, TOP, BOTTOM = 78.0, 34.0, 14.0, 54.0
_TICKS = 5


@frozen
class Tick:
    """A label of an axis, and where it stands on it."""

    at: float
    text: str


@frozen
class Bar:
    """A bar of a histogram."""

    x: float
    y: float
    width: float
    height: float
    kind: int  # of the legend
    title: str


@frozen
class Line:
    """Connected points; a gap in them begins another line of the same kind."""

    kind: int
    points: tuple[tuple[float, float], ...]
    has_dots: bool = False

    @property
    def path(self) -> str:
        return " ".join(f"{x:.1f},{y:.1f}" for x, y in self.points)


@frozen(eq=False)
class Chart:
    """What is drawn. Lengths are those of the picture's own coordinates."""

    title: str
    description: str
    x_label: str
    y_label: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    legend: tuple[str, ...]  # the names of kinds 0, 1, ...
    bars: tuple[Bar, ...] = ()
    lines: tuple[Line, ...] = ()
    width: float = WIDTH
    height: float = HEIGHT
    left: float = LEFT
    right: float = WIDTH - RIGHT
    top: float = TOP
    bottom: float = HEIGHT - BOTTOM


@frozen
class Axis:
    """Values from low to high, along a length that begins at `start`; of a logarithmic axis they are logarithms."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        span = self.high - self.low
        return self.start + (self.end - self.start) * ((value - self.low) / span if span else 0.5)


def horizontal(low: float, high: float) -> Axis:
    """Return an axis across the picture."""
    return Axis(low, high, LEFT, WIDTH - RIGHT)


def vertical(low: float, high: float) -> tuple[Axis, tuple[Tick, ...]]:
    """Return an axis that begins and ends with round numbers, and its labels."""
    step = _round_step((high - low) / _TICKS if high > low else (abs(high) or 1.0) / _TICKS)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    last = max(last, first + 1)
    axis = Axis(first * step, last * step, HEIGHT - BOTTOM, TOP)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    ticks = (Tick(axis.at(at * step), f"{at * step:,.{decimals}f}") for at in range(first, last + 1))
    return axis, tuple(ticks)


def decades(highest: float) -> tuple[Axis, tuple[Tick, ...]]:
    """Return a logarithmic axis from 1 to the end of the decade of the highest value, and its labels."""
    last = max(1, math.ceil(math.log10(highest) - 1e-9)) if highest > 1 else 1
    axis = horizontal(0.0, float(last))
    step = -(-last // 7)
    return axis, tuple(Tick(axis.at(power), f"{10**power:,}") for power in range(0, last + 1, step))


def counted(num: int, labels: Sequence[str]) -> tuple[Axis, tuple[Tick, ...]]:
    """Return an axis of the numbers 0..num-1, and as many of their labels as there is room for."""
    axis = horizontal(-0.5, max(num, 1) - 0.5)
    step = -(-max(num, 1) // 12)
    return axis, tuple(Tick(axis.at(at), labels[at]) for at in range(0, num, step))


def _round_step(step: float) -> float:
    """Return the smallest of 1, 2, 5 times a power of ten that is not smaller."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * (1 - 1e-9))


# Rows of rank_histogram.csv -> how ranks are distributed, on a logarithmic axis.

_PER_DECADE = (1, 2, 5)
_POINTS_PER_DECADE = 40  # of the cumulative lines


@frozen(eq=False)
class SideRanks:
    """The ranks of one side's queries: how often each occurs, in ascending order."""

    side: str
    rank_K: np.ndarray  # float64
    count_K: np.ndarray  # int64

    @property
    def total(self) -> int:
        return int(self.count_K.sum())

    def num_below(self, ranks: np.ndarray) -> np.ndarray:
        """Return how many queries rank below each of these ranks, int64."""
        sums = np.concatenate([[0], np.cumsum(self.count_K)])
        below: np.ndarray = sums[np.searchsorted(self.rank_K, ranks, side="left")]
        return below


def ranks_by_side(rows: Sequence[Row], rank_type: str) -> list[SideRanks]:
    """Return the ranks of each side that has queries."""
    found = []
    for side in SIDES:
        mine = sorted(
            (row["lower_edge"], row["count"])
            for row in rows
            if row["side"] == side and row["rank_type"] == rank_type and row["count"]
        )
        if mine:
            found.append(
                SideRanks(
                    side,
                    np.array([rank for rank, _ in mine], dtype=np.float64),
                    np.array([count for _, count in mine], dtype=np.int64),
                )
            )
    return found


def bin_edges(highest: float) -> list[int]:
    """Return 1, 2, 5, 10, 20, ... up to the first that is above the highest rank."""
    edges = [1]
    while edges[-1] <= highest:
        at = len(edges)
        edges.append(_PER_DECADE[at % 3] * 10 ** (at // 3))
    return edges


def share_chart(sides: Sequence[SideRanks], rank_type: str) -> Chart:
    """Return bars: of each side, the share of its queries in each bin of ranks."""
    highest = max(float(of.rank_K[-1]) for of in sides)
    edges = bin_edges(highest)
    x, x_ticks = decades(float(edges[-1]))
    shares = [np.diff(of.num_below(np.array(edges))) / of.total for of in sides]
    y, y_ticks = vertical(0.0, max(float(share.max()) for share in shares))
    bars = []
    for at, (low, high) in enumerate(pairwise(edges)):
        left, right = x.at(math.log10(low)) + 1, x.at(math.log10(high)) - 1
        width = (right - left) / len(sides)
        for kind, (of, share_B) in enumerate(zip(sides, shares, strict=True)):
            top = y.at(float(share_B[at]))
            title = f"{of.side}, {_bin_name(low, high)}: {100 * float(share_B[at]):.2f} %"
            bars.append(Bar(left + kind * width, top, width, y.start - top, kind, title))
    return Chart(
        title=f"Share of queries by {rank_type} rank",
        description=f"Histogram of {rank_type} ranks on a logarithmic axis; the table below has the figures",
        x_label="rank",
        y_label="share of queries",
        x_ticks=x_ticks,
        y_ticks=y_ticks,
        legend=tuple(of.side for of in sides),
        bars=tuple(bars),
    )


def cumulative_chart(sides: Sequence[SideRanks], rank_type: str) -> Chart:
    """Return lines: of each side, the share of its queries with a rank of at most k, which is hits at k."""
    highest = max(float(of.rank_K[-1]) for of in sides)
    x, x_ticks = decades(highest)
    y, y_ticks = vertical(0.0, 1.0)
    logs = np.linspace(0.0, x.high, 1 + math.ceil(_POINTS_PER_DECADE * x.high))
    ranks = 10.0**logs * (1 + 1e-12)  # an integer that the power misses by rounding counts
    lines = []
    for kind, of in enumerate(sides):
        shares = of.num_below(np.nextafter(ranks, np.inf)) / of.total
        lines.append(
            Line(kind, tuple((x.at(float(log)), y.at(float(share))) for log, share in zip(logs, shares, strict=True)))
        )
    return Chart(
        title="Hits at k, for every k",
        description=f"Share of queries whose {rank_type} rank is at most k; the table below has figures",
        x_label="k",
        y_label="share of queries",
        x_ticks=x_ticks,
        y_ticks=y_ticks,
        legend=tuple(of.side for of in sides),
        lines=tuple(lines),
    )


def distribution_table(sides: Sequence[SideRanks]) -> DataTable:
    """Return the figures of both charts: of each bin and side the queries, their share, and the share up to its end."""
    edges = bin_edges(max(float(of.rank_K[-1]) for of in sides))
    counts = [np.diff(of.num_below(np.array(edges))) for of in sides]
    rows = []
    for at, (low, high) in enumerate(pairwise(edges)):
        cells = [_bin_name(low, high)]
        for of, count_B in zip(sides, counts, strict=True):
            upto = int(count_B[: at + 1].sum())
            cells += [f"{int(count_B[at]):,}", f"{count_B[at] / of.total:.4f}", f"{upto / of.total:.4f}"]
        rows.append(tuple(cells))
    columns = [Column("rank", is_number=False)]
    for of in sides:
        columns += [Column(f"{of.side}, {what}") for what in ("queries", "share", "share so far")]
    return DataTable("rank-distribution", "Distribution of ranks", tuple(columns), tuple(rows))


def _bin_name(low: int, high: int) -> str:
    """Ranks are multiples of one half, so the bin [1, 2) holds 1 and 1.5."""
    return f"{low:,} to below {high:,}"


# Rows of buckets.csv -> a map of a metric over pairs of partitions, coarser where there are many.

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
class MapTick:
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
    ticks: tuple[MapTick, ...]
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


def _ticks(down: int, across: int, size: float, block: int) -> tuple[MapTick, ...]:
    step_across, step_down = (math.ceil(length / size) for length in (_TICK_WIDTH, _TICK_HEIGHT))
    on_top = [
        MapTick(_LEFT + size * (at + 0.5), _TOP - 6, str(at * block), "middle") for at in range(0, across, step_across)
    ]
    beside = [MapTick(_LEFT - 8, _TOP + size * (at + 0.5), str(at * block), "end") for at in range(0, down, step_down)]
    return (*on_top, *beside)


def _description(metric: str, key: str, means: Sequence[float], num_cells: int) -> str:
    if not means:
        return f"{metric} by bucket: no bucket has ranked queries"
    low, high = number(key, min(means)), number(key, max(means))
    return (
        f"{metric} by left and right partition: {len(means)} of {num_cells} cells have a value, from {low} to {high}; "
        "the table below has the figures"
    )


# Curves of a training run -> what is drawn and told of the gap before and after each visit.

MOST_GAP_BYTES = 200_000


@frozen(eq=False)
class Gap:
    """What a page says of a training run."""

    metric: str
    verdict: str
    levels: Chart
    gap: Chart
    passes: DataTable


def gap_of(curves: Curves) -> Gap:
    """Return charts and table of all passes."""
    name = METRICS[curves.metric]
    rows = curves.passes
    x, x_ticks = counted(len(rows), [str(row.key.epoch) for row in rows])
    series = {
        "held out, before": [_finite(row.before) for row in rows],
        "held out, after": [_finite(row.after) for row in rows],
        "training edges, after": [_finite(row.training) for row in rows],
    }
    shown = {label: values for label, values in series.items() if any(value is not None for value in values)}
    known = [value for values in shown.values() for value in values if value is not None]
    y, y_ticks = vertical(min(known, default=0.0), max(known, default=1.0))
    levels = Chart(
        title=f"{name} by pass",
        description=f"{name} of held-out edges before and after each pass; the table below has the figures",
        x_label="epoch",
        y_label=name,
        x_ticks=x_ticks,
        y_ticks=y_ticks,
        legend=tuple(shown),
        lines=tuple(line for kind, values in enumerate(shown.values()) for line in _lines(kind, values, x, y)),
    )
    cells = [cells_of_pass(row) for row in rows]
    last = len(PASS_COLUMNS) - 1
    columns = tuple(Column(title, is_number=at not in (0, last)) for at, title in enumerate(PASS_COLUMNS))
    passes = DataTable("passes", "Passes", columns, fitting(cells, MOST_GAP_BYTES))
    return Gap(name, verdict_of(curves), levels, _gap_chart(curves, name), passes)


def _gap_chart(curves: Curves, name: str) -> Chart:
    rows = curves.passes
    x, x_ticks = counted(len(rows), [str(row.key.epoch) for row in rows])
    gaps = [_finite(row.gap) for row in rows]
    halves = [Z * (_finite(row.gap_error) or 0.0) for row in rows]
    bars = [
        (at, gap - half, gap + half) for at, (gap, half) in enumerate(zip(gaps, halves, strict=True)) if gap is not None
    ]
    y, y_ticks = vertical(min([0.0, *(low for _, low, _ in bars)]), max([0.0, *(high for _, _, high in bars)]))
    lines = [Line(2, ((x.start, y.at(0.0)), (x.end, y.at(0.0))))]
    lines += _lines(0, gaps, x, y)
    lines += [Line(0, ((x.at(at), y.at(low)), (x.at(at), y.at(high)))) for at, low, high in bars if high > low]
    told = "after − before, with 95 % intervals" if any(halves) else "after − before"
    return Chart(
        title=f"Gap of the {name}: {told}",
        description=f"Gap of the {name}, {told}, by pass; the table below has the figures",
        x_label="epoch",
        y_label="gap",
        x_ticks=x_ticks,
        y_ticks=y_ticks,
        legend=(),
        lines=tuple(lines),
    )


def _finite(value: float | None) -> float | None:
    """PyTorch-BigGraph writes NaN where a model diverged."""
    return value if value is not None and math.isfinite(value) else None


def _lines(kind: int, values: Sequence[float | None], x: Axis, y: Axis) -> list[Line]:
    """Return a line per run of known values."""
    lines: list[Line] = []
    points: list[tuple[float, float]] = []
    for at, value in enumerate([*values, None]):
        if value is not None:
            points.append((x.at(at), y.at(value)))
        elif points:
            lines.append(Line(kind, tuple(points), has_dots=True))
            points = []
    return lines
