"""Figures of one pass after the other -> whether training may end."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from pbgeval.errors import ConfigError
from pbgeval.metrics import names
from pbgeval.metrics.registry import find_metric
from pbgeval.training_stats.records import Values

_HIGHER_IS_BETTER = {"query_auc": 1, "loss": -1}


@frozen
class Progress:
    """How a metric has fared over the passes so far."""

    best: int | None  # position of the last pass that improved it; None: none has it
    stalled: int  # passes since


def progress_of(figures: Sequence[Values], metric: str, headline: str, relative_delta: float) -> Progress:
    """Tell which pass was the best, and for how many nothing has improved.

    A pass improves a metric if it is better than the best of those that improved it before by more than
    `relative_delta` of that value. A pass without the metric (diverged, nothing held out) improves nothing.

    Args:
        figures: flat metrics of each pass, in order.
        metric: any name of it, `mrr` or `both.realistic.hits_at_10`.
        headline: the rank type that a name without one means.
        relative_delta: not negative.

    Raises:
        ConfigError: no such metric, one that is neither better high nor low, or an argument out of range.
    """
    if relative_delta < 0:
        raise ConfigError(f"should_stop: expected relative_delta >= 0, got {relative_delta}")
    direction = _direction(metric, headline)
    key, best, best_at = None, None, None
    for at, values in enumerate(figures):
        value = None
        if values:
            key = key or _resolve(metric, headline, values)
            value = values.get(key)
        if value is not None and (best is None or direction * (value - best) > relative_delta * abs(best)):
            best, best_at = value, at
    return Progress(best_at, len(figures) - (0 if best_at is None else best_at + 1))


def has_stalled(figures: Sequence[Values], metric: str, headline: str, patience: int, relative_delta: float) -> bool:
    """Tell whether the last `patience` passes, at least 1, have not improved a metric; the rest as `progress_of`."""
    if patience < 1:
        raise ConfigError(f"should_stop: expected patience >= 1, got {patience}")
    return progress_of(figures, metric, headline, relative_delta).stalled >= patience


def _direction(metric: str, headline: str) -> int:
    name = names.parse(metric, headline).metric
    found = find_metric(name)
    direction = _HIGHER_IS_BETTER.get(name, None if found is None else found.direction)
    if direction is None:
        raise ConfigError(f"should_stop: expected a metric that is better high or low, got '{metric}'")
    return direction


def _resolve(metric: str, headline: str, values: Values) -> str:
    try:
        return names.resolve(metric, headline, values)
    except names.UnknownMetricError as error:
        raise ConfigError(f"should_stop: {error}") from error
