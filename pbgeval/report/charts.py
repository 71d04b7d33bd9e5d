"""Pictures of the page: boxes and lines between two axes, as lengths of the picture's own coordinates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
from attrs import frozen

from pbgeval.notation import grouped
from pbgeval.report.figures import rounded, short_title, text_of
from pbgeval.report.tables import DataTable, fitting, left_out
from pbgeval.results.result import Row
from pbgeval.results.shape import SIDES

WIDTH, HEIGHT = 520.0, 300.0  # a phone shows these at two thirds of their size, with larger letters
LEFT, RIGHT, TOP, BOTTOM = 70.0, 26.0, 34.0, 54.0
_TICKS = 5


@frozen
class Axis:
    """Values from low to high, along a length from `start` to `end`; of a logarithmic axis they are logarithms."""

    label: str
    low: float
    high: float
    start: float
    end: float
    ticks: tuple[tuple[float, str], ...] = ()  # values that are told, and their texts

    def at(self, value: float) -> float:
        """Return where a value stands in the picture."""
        span = self.high - self.low
        return self.start + (self.end - self.start) * ((value - self.low) / span if span else 0.5)


@frozen
class Box:
    """A bar of a histogram or a cell of a map, in values of the axes."""

    style: str  # classes of CSS
    x: tuple[float, float]
    y: tuple[float, float]
    title: str
    text: str = ""  # in it


@frozen
class Line:
    """Connected points; where y is None the line has a gap."""

    kind: int | str  # the end of its class of CSS
    points: Sequence[tuple[float, float | None]]
    has_dots: bool = False


@frozen
class Label:
    """The name of a line or of bars, beside them, in the picture's own coordinates."""

    kind: int  # the end of its class of CSS
    text: str
    x: float
    y: float
    anchor: str  # start, middle, end: which part of the text stands at x


@frozen(eq=False)
class Chart:
    """What is drawn, and the words beside it."""

    title: str
    description: str
    x: Axis
    y: Axis
    legend: Sequence[tuple[str, str]] = ()  # class of CSS and name
    ramp: Sequence[str] = ()  # lowest, middle and highest value of the colors of a map
    boxes: Sequence[Box] = ()
    lines: Sequence[Line] = ()
    labels: Sequence[Label] = ()
    note: str = ""
    style: str = "chart"

    @property
    def width(self) -> float:
        """Of the whole picture."""
        return self.x.end + RIGHT

    @property
    def bottom(self) -> float:
        """Where the axis across the picture is."""
        return max(self.y.start, self.y.end)

    def path(self, line: Line) -> str:
        """Return a line in the words of SVG."""
        parts, pen = [], "M"
        for x, y in line.points:
            if y is not None:
                parts.append(f"{pen}{self.x.at(x):.1f},{self.y.at(y):.1f}")
            pen = "M" if y is None else "L"
        return " ".join(parts)


def linear(label: str, low: float, high: float, start: float = HEIGHT - BOTTOM, end: float = TOP) -> Axis:
    """Return an axis that begins and ends with round numbers; it goes up unless told where to start and end."""
    width = (high - low if high > low else abs(high) or 1.0) / _TICKS
    power = 10.0 ** math.floor(math.log10(width))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= width * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    last = max(last, first + 1)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return Axis(
        label,
        first * step,
        last * step,
        start,
        end,
        tuple((at * step, rounded(at * step, decimals)) for at in range(first, last + 1)),
    )


def decades(label: str, highest: float) -> Axis:
    """Return a logarithmic axis from 1 to the highest value, which is above 1."""
    high = math.log10(highest)
    step = -(-int(high + 1e-9) // 7) or 1
    return Axis(
        label,
        0.0,
        high,
        LEFT,
        WIDTH - RIGHT,
        tuple((float(power), f"{10**power:,}") for power in range(0, int(high + 1e-9) + 1, step)),
    )


def counted(label: str, names: Sequence[str], start: float, end: float, room: float) -> Axis:
    """Return an axis of one thing after the other, and as many of their names as fit if each takes so much room."""
    num = max(len(names), 1)
    return Axis(
        label,
        -0.5,
        num - 0.5,
        start,
        end,
        tuple((float(at), names[at]) for at in range(0, len(names), math.ceil(room * num / abs(end - start)))),
    )


# Names beside lines and bars, so that nobody has to match colors.

LETTER_WIDTH = 10.5  # of a letter on a phone
_ABOVE, _BELOW = 8.0, 20.0  # from a line to the foot of its name


def line_labels(names: Sequence[str], lines: Sequence[Line], x: Axis, y: Axis, at: float) -> list[Label]:
    """Return the name of each line near a place, where the other lines leave most room.

    The highest line has its name above it and the lowest one below it.

    Args:
        names: of the lines.
        lines: the same points across for all of them.
        x: the axis across.
        y: the axis upwards.
        at: the place, a value of the axis across.
    """
    heights = {kind: value for kind, line in enumerate(lines) if (value := _nearest(line, at)) is not None}
    ranked = sorted(heights, key=lambda kind: -heights[kind])
    labels = []
    for place, kind in enumerate(ranked):
        above = heights[ranked[place - 1]] - heights[kind] if place else math.inf
        below = heights[kind] - heights[ranked[place + 1]] if place + 1 < len(ranked) else math.inf
        is_above = (place == 0 or above > below) and y.at(heights[kind]) - _ABOVE > y.end
        width, start = LETTER_WIDTH * len(names[kind]), x.at(at)
        anchor = "end" if start + width > x.end or (is_above and start - width >= x.start) else "start"
        left, right = (start - width, start) if anchor == "end" else (start, start + width)
        covered = [value for of, value in lines[kind].points if value is not None and left - 1 <= x.at(of) <= right + 1]
        ends = [y.at(value) for value in (*covered, heights[kind])]
        labels.append(Label(kind, names[kind], start, min(ends) - _ABOVE if is_above else max(ends) + _BELOW, anchor))
    return labels


def _nearest(line: Line, at: float) -> float | None:
    known = [(abs(x - at), value) for x, value in line.points if value is not None]
    return min(known)[1] if known else None


def _widest_gap(lines: Sequence[Line]) -> float:
    """Return where the lines are farthest apart."""

    def gap(column: Sequence[tuple[float, float | None]]) -> float:
        heights = sorted(value or 0.0 for _, value in column)
        return min((high - low for low, high in pairwise(heights)), default=0.0)

    columns = list(zip(*(line.points for line in lines), strict=True))
    return float(max(columns, key=gap)[0][0])


def bar_labels(names: Sequence[str], boxes: Sequence[Box], x: Axis, y: Axis) -> list[Label]:
    """Return the name of each kind of bars, above the bar that stands out most from its neighbors."""
    bars = [(int(box.style[-1]), x.at(box.x[0]), x.at(box.x[1]), y.at(box.y[1])) for box in boxes]
    labels: list[Label] = []
    for kind, name in enumerate(names):
        half = LETTER_WIDTH * len(name) / 2
        places = []
        for of, left, right, top in bars:
            center = min(max((left + right) / 2, x.start + half), x.end - half)
            others = [height for _, start, end, height in bars if start < center + half and end > center - half]
            is_free = all(abs(label.x - center) > half + LETTER_WIDTH * len(label.text) / 2 for label in labels)
            if of == kind and is_free and others:
                places.append((min(others) - top, -min(others), center))
        if places:
            _, height, center = max(places)
            labels.append(Label(kind, name, center, -height - _ABOVE, "middle"))
    return labels


# Rows of rank_histogram.csv -> how ranks are distributed, on a logarithmic axis.

_BAR = 0.86  # share of a bin's width that its bars take
_POINTS_PER_DECADE = 40  # of the cumulative lines


@frozen(eq=False)
class SideRanks:
    """The ranks of one side's queries: how often each occurs, in ascending order."""

    side: str
    rank_K: np.ndarray  # float64
    count_K: np.ndarray  # int64

    def num_below(self, ranks: np.ndarray) -> np.ndarray:
        """Return how many queries rank below each of these ranks, int64."""
        return np.concatenate([[0], np.cumsum(self.count_K)])[np.searchsorted(self.rank_K, ranks, side="left")]


def ranks_by_side(rows: Iterable[Row], rank_type: str) -> list[SideRanks]:
    """Return the ranks of each side that has queries."""
    pairs: dict[str, list[tuple[float, int]]] = {side: [] for side in SIDES}
    for row in rows:
        if row["rank_type"] == rank_type and row["count"]:
            pairs[row["side"]].append((row["lower_edge"], row["count"]))
    columns = {side: [*zip(*sorted(of_side), strict=True)] for side, of_side in pairs.items() if of_side}
    return [
        SideRanks(side, np.array(ranks, np.float64), np.array(counts, np.int64))
        for side, (ranks, counts) in columns.items()
    ]


def bin_edges(sides: Sequence[SideRanks]) -> list[int]:
    """Return powers of two from 1 to the first above the highest rank: bins of equal width on a logarithmic axis."""
    return [1 << power for power in range(1 + max(int(of.rank_K[-1]) for of in sides).bit_length())]


def share_chart(sides: Sequence[SideRanks], rank_type: str) -> Chart:
    """Return bars: of each side, the share of its queries in each bin of ranks."""
    edges = bin_edges(sides)
    shares = [np.diff(of.num_below(np.array(edges))) / of.count_K.sum() for of in sides]
    bins = [
        (low + (1 - _BAR) / 2 * (high - low), _BAR * (high - low) / len(sides))  # where its bars begin, and their width
        for low, high in pairwise(map(math.log10, edges))
    ]
    boxes = [
        Box(
            f"bar-{kind}",
            (left + kind * width, left + kind * width + width),
            (0.0, float(share_B[at])),
            f"{of.side}, {_bin_name(edges, at)}: {100 * float(share_B[at]):.2f}%",
        )
        for at, (left, width) in enumerate(bins)
        for kind, (of, share_B) in enumerate(zip(sides, shares, strict=True))
    ]
    x = decades("rank of the true entity", float(edges[-1]))
    y = linear("share of queries", 0.0, max(float(share_B.max()) for share_B in shares))
    return Chart(
        title="How the ranks are distributed",
        description=f"Histogram of {rank_type} ranks on a logarithmic axis; the table below has the numbers",
        x=x,
        y=y,
        boxes=boxes,
        labels=bar_labels([of.side for of in sides], boxes, x, y),
    )


def cumulative_chart(sides: Sequence[SideRanks], rank_type: str) -> Chart:
    """Return lines: of each side, the share of its queries with a rank of at most k, which is hits at k."""
    x = decades("k", float(bin_edges(sides)[-1]))
    logs = np.append(np.arange(0.0, x.high, 1 / _POINTS_PER_DECADE), x.high)
    ranks = np.nextafter(10.0**logs * (1 + 1e-12), np.inf)  # an integer that the power misses by rounding counts
    y = linear("share of queries ranked at most k", 0.0, 1.0)
    lines = [
        Line(kind, tuple(zip(logs.tolist(), (of.num_below(ranks) / of.count_K.sum()).tolist(), strict=True)))
        for kind, of in enumerate(sides)
    ]
    return Chart(
        title="Hits at every k",
        description=f"Share of queries whose {rank_type} rank is at most k; the table below has the numbers",
        x=x,
        y=y,
        lines=lines,
        labels=line_labels([of.side for of in sides], lines, x, y, _widest_gap(lines)),
    )


def distribution_table(sides: Sequence[SideRanks]) -> DataTable:
    """Return the numbers of both charts: queries of each bin and side, their share, and the share up to its end."""
    edges = bin_edges(sides)
    below = [of.num_below(np.array(edges)).tolist() for of in sides]
    rows = [
        [
            _bin_name(edges, at),
            *(
                cell
                for of in below
                for cell in (
                    f"{of[at + 1] - of[at]:,}",
                    f"{(of[at + 1] - of[at]) / of[-1]:.4f}",
                    f"{of[at + 1] / of[-1]:.4f}",
                )
            ),
        ]
        for at in range(len(edges) - 1)
    ]
    return DataTable(
        "Numbers of both charts",
        ("rank", *(f"{of.side}, {what}" for of in sides for what in ("queries", "share", "cumulative"))),
        rows,
        anchor="rank-distribution",
    )


def _bin_name(edges: Sequence[int], at: int) -> str:
    """Ranks are multiples of one half, so the bin [1, 2) holds 1 and 1.5."""
    return f"{edges[at]:,} to below {edges[at + 1]:,}"


# Rows of buckets.csv -> a map of a metric over pairs of partitions, coarser where there are many.

MAX_CELLS = 64  # a side
MAX_LABELLED = 8  # cells a side that have their value in them
NUM_LEVELS = 9
MAX_BUCKET_BYTES = 400_000  # of the table
_EXTENT, _LARGEST = 448.0, 76.0  # of the map, and of a cell
_TICK_WIDTH, _TICK_HEIGHT = 34.0, 18.0


def heat_map(rows: Sequence[Row], key: str) -> Chart | None:
    """Return the map of a column.

    Where there are several edge paths, or blocks of buckets, a cell is the mean weighted by edges. None where there are
    no buckets or the column is not among theirs.

    Args:
        rows: of buckets.csv.
        key: one of its columns.
    """
    if not rows or key not in rows[0]:
        return None
    nums = [1 + max(row[name] for row in rows) for name in ("lhs_partition", "rhs_partition")]
    block = -(-max(nums) // MAX_CELLS)
    places = grouped(((row["lhs_partition"] // block, row["rhs_partition"] // block), row) for row in rows)
    means = {place: _mean(of, key) for place, of in sorted(places.items())}
    known = [mean for mean in means.values() if mean is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    left, right = (  # what a cell is called: a partition, or from which to which
        [
            str(first) if block == 1 or first == num - 1 else f"{first} to {min(first + block, num) - 1}"
            for first in range(0, num, block)
        ]
        for num in nums
    )
    num_cells = max(len(left), len(right))
    size = min(_LARGEST, _EXTENT / num_cells)
    boxes = [
        Box(
            "cell none" if mean is None else f"cell level-{level_of(mean, low, high)}",
            (rhs - 0.5, rhs + 0.5),
            (lhs - 0.5, lhs + 0.5),
            f"left partition {left[lhs]}, right partition {right[rhs]}: {text_of(key, mean)}, "
            f"{sum(row['num_edges'] for row in places[lhs, rhs]):,} edges",
            text_of(key, mean) if mean is not None and num_cells <= MAX_LABELLED else "",
        )
        for (lhs, rhs), mean in means.items()
    ]
    metric, paths = short_title(key), len({row["edge_path"] for row in rows})
    cells = [f"up to {block} by {block} buckets"] * (block > 1) + [f"{paths} edge paths"] * (paths > 1)
    spread = f"from {text_of(key, low)} to {text_of(key, high)}; the table has the numbers"
    described = f"{metric} by left and right partition: {len(known)} of {len(means)} cells have a value, {spread}"
    return Chart(
        title=f"{metric} of each bucket",
        description=described if known else f"{metric} by bucket: no bucket has ranked queries",
        x=counted("right partition", right, LEFT, LEFT + size * len(right), _TICK_WIDTH),
        y=counted("left partition", left, TOP, TOP + size * len(left), _TICK_HEIGHT),
        legend=[("none", "no ranked queries")] if len(known) < len(means) else [],
        ramp=(text_of(key, low), text_of(key, (low + high) / 2), text_of(key, high)) if high > low else (),
        boxes=boxes,
        note=f"Each cell stands for {' of '.join(cells)}: the mean, weighted by edges." if cells else "",
        style="map",
    )


def _mean(rows: Sequence[Row], key: str) -> float | None:
    known = [row for row in rows if row[key] is not None and row["num_edges"]]
    weight = sum(row["num_edges"] for row in known)
    return sum(row["num_edges"] * row[key] for row in known) / weight if weight else None


def level_of(value: float, low: float, high: float) -> int:
    """Return in which of `NUM_LEVELS` equal parts of [low, high] a value lies; the middle one where all are equal."""
    return NUM_LEVELS // 2 if high <= low else min(NUM_LEVELS - 1, int(NUM_LEVELS * ((value - low) / (high - low))))


def bucket_table(rows: Sequence[Row], key: str) -> DataTable:
    """Return the figures of a map, a row per bucket with edges, the largest first where not all fit."""
    with_edges = sorted((row for row in rows if row["num_edges"]), key=lambda row: -row["num_edges"])
    several = len({row["edge_path"] for row in rows}) > 1
    cells = (
        (
            f"{row['lhs_partition']}, {row['rhs_partition']}",
            *([row["edge_path"]] if several else []),
            f"{row['num_edges']:,}",
            text_of(key, row.get(key)),
        )
        for row in with_edges
    )
    fit = fitting(cells, MAX_BUCKET_BYTES)
    return DataTable(
        "Metrics by bucket",
        ("left, right", *(["edge path"] if several else []), "edges", short_title(key)),
        fit,
        left_out(len(fit), len(with_edges), "buckets with edges", "buckets.csv"),
        "by-bucket",
        "llrr" if several else "lrr",
    )
