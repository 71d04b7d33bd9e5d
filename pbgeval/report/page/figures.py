"""A report -> the tables of its metrics: the headline, every metric, edge paths, breakdowns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import frozen

from pbgeval.metrics.breakdowns import BREAKDOWN_FILES, GROUP_COLUMNS
from pbgeval.report.page.source import Row
from pbgeval.report.page.tables import Column, DataTable, fitting, left_out
from pbgeval.report.report import Report
from pbgeval.report.table import headline_rows, number, sides_of

MOST_BYTES = {"relation": 2_500_000}  # of a breakdown's table on the page
MOST_BYTES_OF_OTHERS = 250_000
UNDEFINED = "–"

_TITLES = {
    "relation": "Metrics by relation",
    "entity_types": "Metrics by entity types",
    "cardinality": "Metrics by cardinality of the relation",
    "relation_frequency": "Metrics by frequency of the relation",
    "entity_frequency": "Metrics by frequency of the entity",
    "groups": "Metrics by group of relations",
}
_GROUPS = {
    "relation": "relations",
    "entity_types": "pairs of types",
    "cardinality": "cardinalities",
    "relation_frequency": "quantiles",
    "entity_frequency": "quantiles",
    "groups": "groups",
}
_HEADS = {"relation_id": "id", "lhs_type": "left type", "rhs_type": "right type", "entity_side": "side"}
_SHORT = {
    "count": "queries",
    "mean_reciprocal_rank": "MRR",
    "mean_rank": "mean rank",
    "adjusted_mean_rank_index": "AMRI",
    "query_auc": "AUC per query",
}


@frozen
class Cell:
    """One figure, as text; empty where there is no such thing."""

    value: str
    error: str = ""  # ± standard error
    interval: str = ""


@frozen(eq=False)
class Headline:
    """A row per metric, a cell per side."""

    sides: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]

    @property
    def has_intervals(self) -> bool:
        return any(cell.interval for _, cells in self.rows for cell in cells)


def headline_of(report: Report) -> Headline:
    """Return the usual metrics of the headline's rank type."""
    metrics = report.document["metrics"]
    sides = sides_of(metrics)
    rows = headline_rows(metrics, report.document["headline"])
    return Headline(
        tuple(sides),
        tuple((name, tuple(cell_of_side(report, f"{side}.{key}") for side in sides)) for name, key in rows),
    )


def cell_of_side(report: Report, key: str) -> Cell:
    """Return a metric with what is known of its error."""
    value, interval = report.document["metrics"].get(key), report.intervals.get(key)
    text = UNDEFINED if value is None else number(key, value)
    if interval is None:
        return Cell(text)
    error = interval.get("standard_error")
    low, high = (number(key, interval[end]) for end in ("low", "high"))
    return Cell(text, "" if error is None else f"± {error:.1g}", f"{low} to {high}")


def every_metric(document: Mapping[str, Any]) -> DataTable:
    """Return a row per key of metrics.json."""
    intervals = document.get("intervals") or {}
    columns: dict[str, Mapping[str, Any]] = {"value": document["metrics"]}
    for title, key in (
        ("raw", "raw_metrics"),
        ("by query key", "macro_metrics"),
        ("by relation", "relation_macro_metrics"),
    ):
        if document.get(key):
            columns[title] = document[key]
    for title, end in (("standard error", "standard_error"), ("low", "low"), ("high", "high")):
        if any(end in interval for interval in intervals.values()):
            columns[title] = {key: interval.get(end) for key, interval in intervals.items()}
    keys = sorted({key for values in columns.values() for key in values})
    rows = [(key, *(_exact(values.get(key)) for values in columns.values())) for key in keys]
    note = "By query key, by relation: macro averages, in which every key or every relation weighs the same. "
    return DataTable(
        "every-metric",
        "Every metric",
        (Column("metric", is_number=False), *(Column(title) for title in columns)),
        fitting(rows, MOST_BYTES_OF_OTHERS),
        note if {"by query key", "by relation"} & columns.keys() else "",
    )


def _exact(value: float | None) -> str:
    """Return a figure with as many digits as a reader may want to copy."""
    return UNDEFINED if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


def edge_paths_of(document: Mapping[str, Any]) -> DataTable | None:
    """Return a row per edge path; None where there is one."""
    paths = document.get("edge_paths") or []
    if len(paths) < 2:
        return None
    usual = headline_rows(document["metrics"], document["headline"])
    shown = [(name, f"both.{key}") for name, key in usual if f"both.{key}" in document["metrics"]]
    rows = [
        (of["path"], f"{of['num_edges']:,}", *(_text(key, of["metrics"].get(key)) for _, key in shown)) for of in paths
    ]
    columns = (Column("edge path", is_number=False), Column("edges"), *(Column(name) for name, _ in shown))
    return DataTable("edge-paths", "Metrics by edge path", columns, fitting(rows, MOST_BYTES_OF_OTHERS))


def estimates_of(document: Mapping[str, Any]) -> DataTable | None:
    """Return what sampled candidates tell of whole partitions; None where it was not asked for."""
    estimates = document.get("estimates")
    if not estimates:
        return None
    rows = []
    for key, value in estimates["metrics"].items():
        interval = estimates["intervals"].get(key) or {}
        ends = (interval.get(end) for end in ("standard_error", "low", "high"))
        rows.append((key, *(_exact(figure) for figure in (value, *ends))))
    columns = (Column("metric", is_number=False), *map(Column, ("estimate", "standard error", "low", "high")))
    note = "What the metrics would be against all entities of the partition, from uniform draws; 95 % intervals."
    return DataTable("estimates", "Estimates for whole partitions", columns, tuple(rows), note)


def types_of(document: Mapping[str, Any]) -> DataTable | None:
    """Return the figures of queries for entity types; None where no taxonomy was given."""
    types = document.get("types")
    if not types:
        return None
    rows = [(key, _exact(value)) for key, value in types["metrics"].items()]
    note = f"{types['num_queries']:,} queries have an NDCG, {types['num_undefined']:,} have none."
    columns = (Column("metric", is_number=False), Column("value"))
    return DataTable("types", "Queries for entity types", columns, fitting(rows, MOST_BYTES_OF_OTHERS), note)


def breakdowns_of(report: Report) -> list[DataTable]:
    """Return the tables of breakdowns, each with its most frequent groups first where not all fit."""
    return [
        _breakdown(name, report.tables[file], report.document["headline"])
        for name, file in BREAKDOWN_FILES.items()
        if report.tables.get(file)
    ]


def _breakdown(name: str, rows: Sequence[Row], headline: str) -> DataTable:
    groups = [column for column in GROUP_COLUMNS[name] if column in rows[0]]
    shown = _shown(rows[0], headline)
    count = f"both.{headline}.count"
    if name == "relation" and count in rows[0]:
        rows = sorted(rows, key=lambda row: -(row[count] or 0))
    cells = (
        (*(str(row[column]) for column in groups), *(_text(key, row.get(key)) for key, _ in shown)) for row in rows
    )
    fit = fitting(cells, MOST_BYTES.get(name, MOST_BYTES_OF_OTHERS))
    return DataTable(
        f"by-{name.replace('_', '-')}",
        _TITLES[name],
        (
            *(Column(_HEADS.get(column, column), is_number=column == "relation_id") for column in groups),
            *(Column(title) for _, title in shown),
        ),
        fit,
        left_out(len(fit), len(rows), _GROUPS[name], BREAKDOWN_FILES[name]),
    )


def _shown(keys: Iterable[str], headline: str) -> list[tuple[str, str]]:
    """Return the columns of figures that are worth their width, and their titles."""
    present = dict.fromkeys(keys)
    cutoffs = [key for key in present if key.startswith(f"both.{headline}.hits_at_")]
    wanted = [f"both.{headline}.count", f"both.{headline}.mean_reciprocal_rank"]
    wanted += [f"{side}.{headline}.mean_reciprocal_rank" for side in ("head", "tail")]
    wanted += [*cutoffs, f"both.{headline}.mean_rank", f"both.{headline}.adjusted_mean_rank_index", "both.query_auc"]
    wanted += [key for key in present if "ndcg" in key]
    return [(key, short_title(key)) for key in wanted if key in present]


def short_title(key: str) -> str:
    """Return what a column is called: the metric, and the side if it is one of them alone."""
    side, metric = key.partition(".")[0], key.rpartition(".")[2]
    title = _SHORT.get(metric, metric.replace("_", " "))
    return title if side == "both" else f"{title}, {side}"


def _text(key: str, value: float | None) -> str:
    return UNDEFINED if value is None else number(key, value)
