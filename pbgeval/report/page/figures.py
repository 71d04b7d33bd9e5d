"""A report -> the tables of its metrics: the headline, every metric, edge paths, breakdowns."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import frozen

from pbgeval.metrics.breakdowns import BREAKDOWN_FILES, GROUP_COLUMNS
from pbgeval.report.page.tables import Column, DataTable, Row, fitting, left_out
from pbgeval.report.report import Report
from pbgeval.report.table import SIDES, headline_rows, number, sides_of
from pbgeval.stats.ranks import RankType

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


# metrics.json -> what its reader should know before quoting a figure: ties, leakage, who competed.

_NUM_COMPETITORS = (("min", "fewest candidates"), ("mean", "mean number of candidates"), ("max", "most candidates"))
_DIAGNOSTICS = {
    "num_queries": "ranked queries",
    "num_queries_outside": "queries outside the restrictions, not ranked",
    "num_queries_without_competitors": "queries without competitors",
    "num_queries_topped_up": "queries whose list was topped up by draws",
    "num_copies_excluded": "copies of the true entity excluded",
    "num_known_excluded": "known answers excluded",
    "num_tied_queries": "queries with ties",
    "tied_share": "share of queries with ties",
    "mean_num_ties": "mean number of ties",
    "num_undefined_losses": "undefined losses",
}
_EDGES = {
    "num_edges": "evaluated edges",
    "num_repeated": "of them repeat another one",
    "num_in_training": "of them are also in train_paths",
    "num_entities": "entities of evaluated edges",
    "num_entities_unseen": "of them are in no training edge",
}


def diagnostics_of(document: Mapping[str, Any]) -> DataTable:
    """Return a row per diagnostic, a column per side."""
    by_side = document["diagnostics"]
    sides = [side for side in SIDES if side in by_side]
    rows = [
        (name, *(_count(by_side[side]["num_candidates"].get(key)) for side in sides)) for key, name in _NUM_COMPETITORS
    ]
    known = {key for side in sides for key in by_side[side]}
    rows += [
        (name, *(_count(by_side[side].get(key)) for side in sides))
        for key, name in _DIAGNOSTICS.items()
        if key in known
    ]
    columns = (Column("queries", is_number=False), *map(Column, sides))
    note = "The true entity is one of its candidates."
    return DataTable("diagnostics", "Competition and ties", columns, tuple(rows), note)


def ties_of(document: Mapping[str, Any]) -> DataTable | None:
    """Return how far ties move the figures: each metric under each rank type; None where a report has one type."""
    metrics = document["metrics"]
    types = [of.value for of in RankType if any(key.split(".")[1] == of.value for key in metrics)]
    headline = document["headline"]
    names = [
        key.rpartition(".")[2]
        for key in metrics
        if key.startswith(f"both.{headline}.") and key.rpartition(".")[2].startswith(("mean_", "hits_at_"))
    ]
    if len(types) < 2 or not names:
        return None
    names.sort(key=lambda name: (name.startswith("hits_at_"), len(name), name))
    rows = []
    for name in names:
        values = [metrics.get(f"both.{of}.{name}") for of in types]
        cells = (UNDEFINED if value is None else number(name, value) for value in values)
        rows.append((short_title(f"both.{name}"), *cells))
    columns = (Column("both sides", is_number=False), *map(Column, types))
    note = (
        "Optimistic: the true entity comes first among candidates of the same score; pessimistic: last; realistic: the "
        "mean of the two ranks. Where the columns agree, ties do not matter."
    )
    return DataTable("ties", "What ties can change", columns, tuple(rows), note)


def edges_of(document: Mapping[str, Any]) -> DataTable | None:
    """Return what evaluated edges share with each other and with training edges; None where nobody looked."""
    edges = document.get("edge_diagnostics")
    if not edges:
        return None
    rows = tuple((name, _count(edges.get(key))) for key, name in _EDGES.items())
    unknown = any(edges.get(key) is None for key in _EDGES)
    note = f"{UNDEFINED}: no train_paths were given, so nobody can tell." if unknown else ""
    return DataTable(
        "edges", "Repeated and leaked edges", (Column("edges", is_number=False), Column("number")), rows, note
    )


def _count(value: float | None) -> str:
    if value is None:
        return UNDEFINED
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}" if value < 1000 else f"{value:,.1f}"


# metrics.json -> where its figures come from: settings, data, and the run.

MOST_ENTRIES = 64  # of a list or a mapping that are told one by one
MOST_SETTING_BYTES = 150_000  # of each table


def settings_of(document: Mapping[str, Any], meanings: Mapping[str, str]) -> DataTable | None:
    """Return a row per setting that can change a number.

    Args:
        document: the content of metrics.json.
        meanings: what each key of a config means.
    """
    settings = (document.get("provenance") or {}).get("settings")
    if not settings:
        return None
    rows = [(name, text, meanings.get(name.partition(".")[0], "")) for name, text in flat(settings)]
    columns = tuple(Column(title, is_number=False) for title in ("setting", "value", "meaning"))
    return DataTable("settings", "Settings", columns, fitting(_without_repeats(rows), MOST_SETTING_BYTES), _NOTE)


_NOTE = "All that can change a number; metrics.json has the lists that are too long for this table."


def data_of(document: Mapping[str, Any]) -> DataTable | None:
    """Return a row per file with its digest."""
    data = (document.get("provenance") or {}).get("data")
    if not data:
        return None
    columns = tuple(Column(title, is_number=False) for title in ("data", "digest"))
    return DataTable("data", "Digests of the data", columns, fitting(flat(data), MOST_SETTING_BYTES))


def run_of(document: Mapping[str, Any]) -> DataTable | None:
    """Return a row per fact of the run, which may differ between equal runs."""
    run = document.get("run")
    if not run:
        return None
    columns = tuple(Column(title, is_number=False) for title in ("run", "value"))
    return DataTable("run", "The run", columns, fitting(flat(run), MOST_SETTING_BYTES))


def flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:  # noqa: ANN401 (any JSON)
    """Yield (dotted name, text) of every leaf of JSON; of a long list or mapping how many entries it has."""
    if isinstance(value, dict | list) and len(value) > MOST_ENTRIES:
        yield name, f"{len(value):,} entries"
    elif isinstance(value, dict) and value:
        for key, of_key in value.items():
            yield from flat(of_key, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and any(isinstance(entry, dict | list) for entry in value):
        for at, entry in enumerate(value):
            yield from flat(entry, f"{name}.{at}" if name else str(at))
    elif isinstance(value, list):
        yield name, ", ".join(map(_leaf, value)) or "none"
    else:
        yield name, _leaf(value)


def _leaf(value: Any) -> str:  # noqa: ANN401 (any JSON)
    if isinstance(value, str):
        return value
    return "none" if value is None or value == {} else json.dumps(value)


def _without_repeats(rows: Iterable[tuple[str, str, str]]) -> Iterator[tuple[str, str, str]]:
    """Leave the meaning out where the row before has the same."""
    before = ""
    for name, text, meaning in rows:
        yield name, text, "" if meaning == before else meaning
        before = meaning
