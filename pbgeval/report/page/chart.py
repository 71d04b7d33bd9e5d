"""Series of numbers -> lengths of a picture: bars and lines between two axes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from attrs import frozen

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
