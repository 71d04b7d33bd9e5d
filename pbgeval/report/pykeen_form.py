"""Figures of a report -> (side, rank type, metric, value) by PyKEEN's keys, and the data frame of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from pbgeval.errors import OutputError
from pbgeval.metrics.registry import metric_key
from pbgeval.ranking import RankType

if TYPE_CHECKING:
    import pandas

SIDES = ("head", "tail", "both")
COLUMNS = ("Side", "Rank_type", "Metric", "Value")
# PyKEEN's own keys, but for hits at k. It has one key for adjusted hits at any k, and so the last one's value.
METRICS = (
    "arithmetic_mean_rank",
    "inverse_arithmetic_mean_rank",
    "geometric_mean_rank",
    "inverse_geometric_mean_rank",
    "harmonic_mean_rank",
    "inverse_harmonic_mean_rank",
    "median_rank",
    "inverse_median_rank",
    "standard_deviation",
    "variance",
    "median_absolute_deviation",
    "count",
    "adjusted_arithmetic_mean_rank",
    "adjusted_arithmetic_mean_rank_index",
    "adjusted_geometric_mean_rank_index",
    "adjusted_inverse_harmonic_mean_rank",
    "z_arithmetic_mean_rank",
    "z_geometric_mean_rank",
    "z_inverse_harmonic_mean_rank",
)
OF_LAST_CUTOFF = ("adjusted_hits_at_", "z_hits_at_")
_HITS = "both.realistic.hits_at_"

Value = float | int | None
Item: TypeAlias = tuple[tuple[str, str, str], float]


def cutoffs_of(figures: Mapping[str, Value]) -> list[int]:
    """Return the k of hits at k that a report has, in order."""
    return sorted(int(key.removeprefix(_HITS)) for key in figures if key.startswith(_HITS))


def items_of(figures: Mapping[str, Value], hits_at: Sequence[int]) -> Iterator[Item]:
    """Yield (side, rank type, metric) and value, of the sides that were evaluated; NaN where one is undefined.

    Args:
        figures: by the report's own keys.
        hits_at: the k of hits at k, the last of which stands for adjusted hits.
    """
    names = {metric: metric_key(metric) for metric in METRICS}
    names |= {f"hits_at_{cutoff}": f"hits_at_{cutoff}" for cutoff in hits_at}
    if hits_at:
        names |= {f"{prefix}k": f"{prefix}{hits_at[-1]}" for prefix in OF_LAST_CUTOFF}
    for name, ours in names.items():
        for rank_type in RankType:
            for side in SIDES:
                key = f"{side}.{rank_type.value}.{ours}"
                if key in figures:
                    value = figures[key]
                    yield (side, rank_type.value, name), float("nan") if value is None else value


def frame_of(items: Iterable[Item]) -> pandas.DataFrame:
    """Return a row per figure: Side, Rank_type, Metric, Value.

    Raises:
        OutputError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError:
        raise OutputError("expected pandas for a data frame, found none; pip install 'pbgeval[pykeen]'") from None
    rows: list[tuple[Any, ...]] = [(*key, value) for key, value in items]
    return pandas.DataFrame(rows, columns=list(COLUMNS))
