"""Sums of what was drawn -> the section `estimates` of metrics.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from pbgeval.metrics.draw_sums import DrawSums, interval_of


@frozen(eq=False)
class Drawn:
    """Sums over all queries whose candidates were sampled, by `head`, `tail` (if enabled) and `both`."""

    raw: Mapping[str, DrawSums]
    filtered: Mapping[str, DrawSums] | None  # None: nothing is filtered


def estimates_section(drawn: Drawn | None) -> dict[str, Any] | None:
    """Return what sampled candidates tell of whole partitions; None where it was not asked for."""
    if drawn is None:
        return None
    section = {"candidates": "partition", **_figures(drawn.raw if drawn.filtered is None else drawn.filtered)}
    return section if drawn.filtered is None else {**section, "raw": _figures(drawn.raw)}


def _figures(sums: Mapping[str, DrawSums]) -> dict[str, Any]:
    estimates = {f"{label}.{name}": estimate for label, of in sums.items() for name, estimate in of.estimates().items()}
    return {
        "metrics": {key: estimate.value for key, estimate in estimates.items()},
        "intervals": {key: interval_of(key, estimate) for key, estimate in estimates.items()},
        "num_queries_without_draws": sums["both"].num_without_draws,
    }
