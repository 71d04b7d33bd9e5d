"""The result of an evaluation, as `metrics.json` holds it, with metrics by any of their names."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from attrs import field, frozen

from pbgeval.errors import OutputError
from pbgeval.metrics.names import resolve
from pbgeval.metrics.registry import metric_key
from pbgeval.notation import Bucket
from pbgeval.stats.ranks import RankType
from pbgeval.storage.text import read_text

if TYPE_CHECKING:
    import pandas


# Figures of a report -> (side, rank type, metric, value) by PyKEEN's keys, and the data frame of them.

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


SCHEMA_VERSION = 1


@frozen(eq=False)
class Report:
    """A finished evaluation."""

    document: Mapping[str, Any]  # the content of metrics.json
    bucket_rows: tuple[Mapping[str, Any], ...] = ()  # of buckets.csv; empty when read back from a file
    histogram_rows: Sequence[Mapping[str, Any]] = ()  # of rank_histogram.csv
    tables: Mapping[str, tuple[Mapping[str, Any], ...]] = field(factory=dict)  # of breakdowns, by file name
    path: Path | None = None  # the output directory

    def __getitem__(self, name: str) -> float | int | None:
        """Return a metric: `report["mrr"]`, `report["both.realistic.hits@10"]`; None where it is undefined.

        Raises:
            KeyError: no such metric; the message names the nearest.
        """
        metrics: Mapping[str, float | int | None] = self.document["metrics"]
        return metrics[resolve(name, self.document["headline"], metrics.keys())]

    @property
    def intervals(self) -> Mapping[str, Mapping[str, float]]:
        """Standard error and 95 % interval of the metrics that are estimated."""
        intervals: Mapping[str, Mapping[str, float]] = self.document["intervals"]
        return intervals

    def to_dict(self) -> dict[str, Any]:
        """Return a copy of the content of metrics.json."""
        copy: dict[str, Any] = json.loads(self.to_json())
        return copy

    def to_json(self) -> str:
        """Return the content of metrics.json: sorted keys, shortest round-trip floats, no NaN."""
        return json.dumps(self.document, sort_keys=True, indent=2, allow_nan=False) + "\n"

    def to_df(self, *, macro: bool = False) -> pandas.DataFrame:
        """Return the rank metrics that PyKEEN knows as its data frame: Side, Rank_type, Metric (its keys), Value.

        Args:
            macro: the averages in which every query key weighs alike.

        Raises:
            OutputError: pandas is not installed, or there are no macro averages.
        """
        figures = self.document["macro_metrics" if macro else "metrics"]
        if figures is None:
            raise OutputError("macro_metrics: expected averages over query keys, found none in this report")
        return frame_of(items_of(figures, cutoffs_of(figures)))

    def recompute(
        self,
        *,
        hits_at: Iterable[int] | None = None,
        filter: str | None = None,  # noqa: A002 - the word of metrics.json
        headline: str | None = None,
        edge_paths: Sequence[str | PathLike[str]] | None = None,
        keep: Callable[[int, Bucket, np.ndarray, np.ndarray, np.ndarray], np.ndarray] | None = None,
        breakdowns: Sequence[str] = (),
        relation_groups: Mapping[str, Iterable[int]] | None = None,
        metrics: Sequence[str] | None = None,
    ) -> Report:
        """Compute other figures of this run, or those of a part of its edges, from the ranks of `save_ranks`.

        Nothing is scored. Without arguments the metrics are this report's to the bit, but for what needs scores:
        `auc` is None, `loss` and `intervals` are left out, and so are diagnostics that ranks files do not hold (None).
        An edge counts if it was ranked on at least one side: files do not tell edges that nobody may rank on either
        side from edges that the run dropped, so `num_edges`, `num_queries_outside` and frequencies of query keys
        leave out the former too.

        Args:
            hits_at: cut-offs of hits at k; default: those of the run.
            filter: "raw" or "filtered"; default: as here. Filtered figures have raw ones beside them.
            headline: a rank type; default: as here.
            edge_paths: folders of the evaluated edges, in the order of the run. What follows needs them, and so do
                the macro averages, which are None without.
            keep: (index of the edge path, bucket, lhs, rel, rhs) -> bool, all arrays with an element per edge, int64,
                entities as rows of their partitions: only edges where it is true count. It is asked once per edge.
            breakdowns: of relation, entity_types, groups. Relations are called as in relations.csv of the run; those
                that it does not have, by their ids.
            relation_groups: ids of the relations of each group.
            metrics: families or names, as the key of the config; default: as here, and hits at `hits_at`.

        Raises:
            ValueError: an argument is wrong in itself, or lacks another.
            OutputError: there is no output directory, it has no ranks, those of another run, or no filtered ones.
            StorageError: a file is missing or damaged, or edges are not those of the run.
            DataError: an id in the edges is out of range.
        """
        # By name, as that module makes reports and so imports this one.
        recomputing = import_module("pbgeval.report.recompute")
        query = recomputing.ReportQuery(
            hits_at=hits_at,
            filter=filter,
            headline=headline,
            edge_paths=edge_paths,
            keep=keep,
            breakdowns=breakdowns,
            relation_groups=relation_groups,
            metrics=metrics,
        )
        report: Report = recomputing.recompute(self, query)
        return report

    @classmethod
    def read(cls, folder: Path | str) -> Report:
        """Read a result back from its output directory.

        Raises:
            OutputError: there is no metrics.json, or it is not one of ours.
        """
        path = Path(folder) / "metrics.json"
        try:
            document = json.loads(read_text(path))
        except OSError as error:
            raise OutputError(f"{path}: expected a result of pbgeval, got: {error.strerror or error}") from error
        except (ValueError, RecursionError) as error:
            raise OutputError(f"{path}: expected a result of pbgeval, got no JSON: {error}") from error
        if not isinstance(document, dict) or "schema_version" not in document:
            raise OutputError(f"{path}: expected a result of pbgeval, got other JSON")
        version = document["schema_version"]
        if version != SCHEMA_VERSION:
            raise OutputError(f"{path}: expected schema_version {SCHEMA_VERSION}, got {version}")
        return cls(document, path=Path(folder))
