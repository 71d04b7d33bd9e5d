"""Figures of one pass after the other -> the pass whose model to keep, and so whether training may end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from pbgeval.errors import ConfigError
from pbgeval.metrics import names
from pbgeval.metrics.registry import find_metric, known_rank_metrics
from pbgeval.monitor.records import Values

CUTOFFS = (1, 3, 5, 10, 50)
RELATIVE_DELTA = 0.002  # share of the best value below which an improvement does not count
_HIGHER_IS_BETTER = {"query_auc": 1, "loss": -1}


Compared: TypeAlias = tuple[int, int, frozenset[tuple[Any, int]]]  # edge path, chunk, and by bucket the edges


class MeasuredPass(Protocol):
    """A pass, and what it must share with others to be compared with them."""

    @property
    def compared(self) -> Compared: ...


AnyPass = TypeVar("AnyPass", bound=MeasuredPass)


def comparable(passes: Sequence[AnyPass]) -> list[AnyPass]:
    """Return the passes that can be compared with the last whole one, this one included.

    A pass is not whole if another one over the same path and chunk measured the same edges and further buckets.
    """
    measured = {of.compared for of in passes}
    parts = {a for a in measured for b in measured if a[:2] == b[:2] and a[2] < b[2]}
    last = next((of.compared for of in reversed(passes) if of.compared not in parts), None)
    return [of for of in passes if of.compared == last]


def last_improvement(
    values: Sequence[float | None], direction: int, relative_delta: float = RELATIVE_DELTA
) -> int | None:
    """Return the position of the last value that improved on the best one before; None: no value is known.

    Args:
        values: of each pass, in order; None, NaN and infinity improve nothing.
        direction: 1: higher is better; -1: lower.
        relative_delta: of the best value that improved so far: what does not exceed it is no improvement.
    """
    best, best_at = None, None
    for at, value in enumerate(values):
        if value is None or not math.isfinite(value):
            continue
        if best is None or direction * (value - best) > relative_delta * abs(best):
            best, best_at = value, at
    return best_at


def best_pass(figures: Sequence[Values], metric: str, headline: str, relative_delta: float) -> int | None:
    """Return the position of the last pass that improved a metric; None: no pass has the metric.

    A pass without the metric (diverged, nothing held out) improves nothing.

    Args:
        figures: flat metrics of each pass, in order.
        metric: any name of it, `mrr` or `both.realistic.hits_at_10`.
        headline: the rank type that a name without one means.
        relative_delta: as for `last_improvement`; not negative.

    Raises:
        ConfigError: no such metric, one that is neither better high nor low, or an argument out of range.
    """
    if relative_delta < 0:
        raise ConfigError(f"should_stop: expected relative_delta >= 0, got {relative_delta}")
    name = names.parse(metric, headline).metric
    found = find_metric(name)
    direction = _HIGHER_IS_BETTER.get(name, None if found is None else found.direction)
    if direction is None:
        nearest = names.nearest_names(
            metric, names.parse(metric, headline), [] if found else [of.name for of in known_rank_metrics(CUTOFFS)]
        )
        what = "is neither better high nor better low" if found else f"is not a metric of the monitor{nearest}"
        raise ConfigError(f"should_stop: '{metric}' {what}")
    keys = {key for values in figures for key in values}
    try:
        key = names.resolve(metric, headline, keys) if keys else ""
    except names.UnknownMetricError as error:
        raise ConfigError(f"should_stop: {error}") from error
    return last_improvement([values.get(key) for values in figures], direction, relative_delta)
