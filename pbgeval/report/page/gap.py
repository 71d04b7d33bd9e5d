"""Curves of a training run -> what is drawn and told of the gap before and after each visit."""

from __future__ import annotations

import math
from collections.abc import Sequence

from attrs import frozen

from pbgeval.report.page.chart import Axis, Chart, Line, counted, vertical
from pbgeval.report.page.tables import Column, DataTable, fitting
from pbgeval.report.training_curves import METRICS, Curves
from pbgeval.report.training_words import PASS_COLUMNS, Z, cells_of_pass, verdict_of

MOST_BYTES = 200_000


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
    passes = DataTable("passes", "Passes", columns, fitting(cells, MOST_BYTES))
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
