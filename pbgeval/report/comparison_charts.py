"""Pictures of comparisons: differences with their intervals, and which of several runs differ."""

from __future__ import annotations

import re
from collections.abc import Sequence

from attrs import evolve, frozen

from pbgeval.metrics.paired import Difference
from pbgeval.report.charts import LETTER_WIDTH, RIGHT, WIDTH, Axis, Chart, Line, counted, linear

_ROW = 24.0  # of one name
_LETTERS = 22  # of a name
_WIDER = 80.0  # than other charts
_LETTER_OF_GROUP = re.compile(r"[a-z]|\(\d+\)")


def _axes(label: str, ends: Sequence[float], names: Sequence[str]) -> tuple[Axis, Axis]:
    """Return an axis for values, and one for names from the top."""
    x = linear(label, min(ends), max(ends), 24.0 + LETTER_WIDTH * max(map(len, names)), WIDTH + _WIDER - RIGHT)
    return x, counted("", names, _ROW, _ROW * (len(names) + 1), _ROW)


# Differences by relation -> a point with its interval for each.


def difference_chart(metric: str, whole: Difference, rows: Sequence[tuple[str, Difference]]) -> Chart:
    """Return the differences in a metric with their 95% intervals: of all queries, then by relation, largest first.

    Args:
        metric: what is compared, in words.
        whole: the difference over all queries.
        rows: the name of each relation and its difference.
    """
    rows = [("all queries", whole), *sorted(rows, key=lambda row: -row[1].difference)]
    ends = [0.0, *(end for _, of in rows for end in (of.difference, of.low, of.high) if end is not None)]
    x, y = _axes("B − A, with 95% intervals", ends, [_clipped_name(name) for name, _ in rows])
    zero = [value for value, _ in x.ticks].index(0.0)
    lines = [Line("zero", ((0.0, y.low), (0.0, y.high)))]
    for kind, is_significant in ((0, True), ("open", False)):
        of_kind = [(float(at), of) for at, (_, of) in enumerate(rows) if of.is_significant == is_significant]
        known = [(of.low, of.high, at) for at, of in of_kind if of.low is not None and of.high is not None]
        lines += [
            Line(kind, [point for low, high, at in known for point in ((low, at), (high, at), (0.0, None))]),
            Line(kind, [point for at, of in of_kind for point in ((of.difference, at), (0.0, None))], has_dots=True),
        ]
    return Chart(
        title=f"Difference in {metric} by relation",
        description=f"B − A in {metric} by relation, with 95% intervals; the table has the numbers",
        x=evolve(x, ticks=x.ticks[zero % 2 :: 2]),  # a phone has room for half of them
        y=y,
        lines=lines,
        note="Filled points: significant after correction. Open points: not significant.",
    )


# Any number of runs -> a dot for each, and a bar for each set of runs that do not differ.


@frozen
class Member:
    """A run, or a group of runs, in a diagram."""

    name: str
    value: float
    letters: str  # shared with those that do not differ


def critical_difference_chart(metric: str, members: Sequence[Member]) -> Chart:
    """Return the critical-difference diagram of Demšar (2006): bars join runs that do not differ significantly.

    Args:
        metric: what is compared, in words.
        members: the best first.
    """
    letters = [letters_of(of.letters) for of in members]
    joined = {
        letter: [of.value for of, its in zip(members, letters, strict=True) if letter in its]
        for letter in dict.fromkeys(letter for its in letters for letter in its)
    }
    bars = {letter: sorted(values) for letter, values in joined.items() if len(values) > 1}
    values = [of.value for of in members]
    x, y = _axes(metric, values, [*(_clipped_name(of.name) for of in members), *bars])
    dots = [point for at, value in enumerate(values) for point in ((value, float(at)), (0.0, None))]
    lines = [Line(0, dots, has_dots=True)]
    for at, of_bar in enumerate(bars.values(), len(members)):
        lines.append(Line(2, [(value, float(at)) for value in of_bar], has_dots=True))
    listed = f"{', '.join(bars)}: runs that share this letter do not differ significantly." if bars else ""
    return Chart(
        title=f"Which runs differ in {metric}",
        description=f"Critical-difference diagram of the {metric}: "
        + "; ".join(f"{of.name} {of.value:.4f} {of.letters}".rstrip() for of in members),
        x=evolve(x, ticks=x.ticks[::2]),  # a phone has room for half of them
        y=y,
        lines=lines,
        note=listed or "All runs differ significantly from each other.",
    )


def letters_of(text: str) -> list[str]:
    """Return the letters of a group: a to z, then (27), (28), ..."""
    return _LETTER_OF_GROUP.findall(text)


def _clipped_name(name: str) -> str:
    """Return a name that fits beside a chart; names often differ at their end."""
    half = _LETTERS // 2
    return name if len(name) <= _LETTERS else f"{name[: half - 1]}…{name[-half:]}"
