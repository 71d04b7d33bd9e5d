"""A report -> the keys, shapes and names of PyKEEN's `RankBasedMetricResults`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from attrs import frozen

from pbgeval.metrics.names import resolve
from pbgeval.ranking import RankType
from pbgeval.report.pykeen_form import OF_LAST_CUTOFF, Item, Value, frame_of, items_of
from pbgeval.report.report import Report

if TYPE_CHECKING:
    import pandas


@frozen(eq=False)
class RankBasedMetricResults:
    """The figures of an evaluation by PyKEEN's keys; all of them, also by ours, are in `report`."""

    report: Report
    hits_at: tuple[int, ...]
    macro: bool = False  # every query key weighs alike

    @property
    def figures(self) -> Mapping[str, Value]:
        """What the keys are taken from, by the report's own keys."""
        figures: Mapping[str, Value] = self.report.document["macro_metrics" if self.macro else "metrics"]
        return figures

    @property
    def data(self) -> dict[tuple[str, str, str], float]:
        """Figures by (side, rank type, metric), of the sides that were evaluated; NaN where one is undefined."""
        return dict(self._items())

    def _items(self) -> Iterator[Item]:
        return items_of(self.figures, self.hits_at)

    def get_metric(self, name: str) -> Value:
        """Return a figure by any of its names, PyKEEN's or ours; without side and rank type, both and realistic.

        Raises:
            KeyError: no such metric; the message names the nearest.
        """
        figures = self.figures
        if name.rpartition(".")[2] in (f"{prefix}k" for prefix in OF_LAST_CUTOFF) and self.hits_at:
            name = f"{name[:-1]}{self.hits_at[-1]}"
        return figures[resolve(name, RankType.REALISTIC.value, figures.keys())]

    def to_flat_dict(self) -> dict[str, float]:
        """Return `side.rank_type.metric` -> value."""
        return {".".join(key): value for key, value in self._items()}

    def to_dict(self) -> dict[str, dict[str, dict[str, float]]]:
        """Return side -> rank type -> metric -> value."""
        nested: dict[str, dict[str, dict[str, float]]] = {}
        for (side, rank_type, metric), value in self._items():
            nested.setdefault(side, {}).setdefault(rank_type, {})[metric] = value
        return nested

    def to_df(self) -> pandas.DataFrame:
        """Return a row per figure: Side, Rank_type, Metric, Value.

        Raises:
            OutputError: pandas, which PyKEEN brings along, is not installed.
        """
        return frame_of(self._items())
