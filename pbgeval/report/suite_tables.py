"""Results of several models on several graphs -> one table with an average row, JSON, CSV and one page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from attrs import asdict, frozen

from pbgeval.errors import ConfigError
from pbgeval.metrics.names import SCORE_METRICS, UnknownMetricError, resolve
from pbgeval.metrics.registry import find_metric
from pbgeval.notation import grouped
from pbgeval.report.conditions import joint_warnings, title_of, warnings_of
from pbgeval.report.figures import Tile, short_title, text_of
from pbgeval.report.page import Page, Section, warnings_section
from pbgeval.report.run_differences import describe_left_out
from pbgeval.report.summary import NO_BETTER, chance_verdict
from pbgeval.report.tables import NEEDS_BOOKTABS, DataTable, latex_warnings, one_line, to_latex
from pbgeval.results.csv_tables import to_csv
from pbgeval.results.result import Result, section_of, settings_of
from pbgeval.storage.text import json_text, listed, plural
from pbgeval.storage.writing import write_atomically

AVERAGE = "average"
FILES = ("suite.json", "suite.csv", "suite.tex", "suite.html")
AT_CHANCE = "*"  # behind a figure
STATIC = "Figures called time-aware are of this filter; every result also has those of the static filter."
TIME_AWARE = "time_filtered."  # before the key of a figure of the time-aware filter
NOT_COMPARABLE = "not comparable with"  # the name of a model follows


@frozen
class SuiteRow:
    """The figures of a model on a graph."""

    graph: str
    model: str
    digest: str  # of the run
    filter: str  # raw, filtered
    headline: str  # rank type
    num_edges: int  # evaluated
    metrics: Mapping[str, float | None]  # by key of metrics.json
    warnings: tuple[str, ...] = ()  # what to know before the figures are quoted
    time_window: int | None = None  # of the time-aware figures; None: there are none

    @classmethod
    def from_report(
        cls,
        graph: str,
        model: str,
        report: Result,
        metrics: Sequence[str],
        first: tuple[str, Result] | None = None,
    ) -> SuiteRow:
        """Take some metrics of a result, by any of their names: those of the time-aware filter, where there are any.

        Args:
            graph: its name.
            model: its name.
            report: the result.
            metrics: names of figures.
            first: another model of this graph and its result, under whose conditions the figures are to hold.

        Raises:
            ConfigError: the result has no such metric.
        """
        document = report.document
        found = document["metrics"]
        try:
            keys = [resolve(name, document["headline"], found.keys()) for name in metrics]
        except UnknownMetricError as error:
            raise ConfigError(f"metrics: {error.args[0]}") from None
        in_time = {f"{TIME_AWARE}{key}": value for key, value in section_of(document, "time_filtered_metrics").items()}
        keys = [timed if (timed := f"{TIME_AWARE}{key}") in in_time else key for key in keys]
        return cls(
            graph,
            model,
            document["provenance"]["digest"],
            document["filter"],
            document["headline"],
            document["num_edges"],
            {key: {**found, **in_time}[key] for key in keys},
            tuple(
                filter(None, [comparability_warning(first, report), chance_verdict(document), *warnings_of(document)])
            ),
            settings_of(document).get("time_window") if in_time.keys() & {*keys} else None,
        )

    @property
    def is_at_chance(self) -> bool:
        """Whether the model is no better than chance on this graph."""
        return any(warning.startswith(NO_BETTER) for warning in self.warnings)

    @property
    def differs_from_first(self) -> bool:
        """Whether other edges were evaluated than with the first model of this graph, or other candidates competed."""
        return any(warning.startswith(NOT_COMPARABLE) for warning in self.warnings)

    def cell(self, key: str) -> str:
        """Return a figure as tables show it, with a mark where the model is no better than chance."""
        return text_of(key, self.metrics[key]) + AT_CHANCE * self.is_at_chance

    @property
    def filter_name(self) -> str:
        """Which known answers do not compete."""
        if self.time_window is not None:
            return f"Time-aware filter, window {self.time_window:,}"
        return "Filtered" if self.filter == "filtered" else "Unfiltered"


@frozen(eq=False)
class SuiteResults:
    """All results of a suite: a row for each graph and model."""

    name: str
    rows: tuple[SuiteRow, ...]

    @property
    def metrics(self) -> list[str]:
        """Keys of metrics.json, in the order of the suite."""
        return list(self.rows[0].metrics)

    @property
    def graphs(self) -> list[str]:
        """In the order of the suite."""
        return list(dict.fromkeys(row.graph for row in self.rows))

    @property
    def models(self) -> list[str]:
        """In the order of the suite."""
        return list(dict.fromkeys(row.model for row in self.rows))

    def average(self, model: str, key: str) -> float | None:
        """Return the mean of a metric over all graphs, each of the same weight; None if a graph has no value."""
        values = [row.metrics[key] for row in self.rows if row.model == model]
        known = [value for value in values if value is not None]
        return fmean(known) if len(known) == len(values) else None

    def table(self) -> DataTable:
        """Return the table: a row for each graph, and the average."""
        by_name = {(row.graph, row.model): row for row in self.rows}
        columns = [(model, key) for model in self.models for key in self.metrics]
        rows = [
            (
                graph,
                f"{by_name[graph, self.models[0]].num_edges:,}",
                *(by_name[graph, model].cell(key) for model, key in columns),
            )
            for graph in self.graphs
        ]
        average = (AVERAGE, "", *(text_of(key, self.average(model, key)) for model, key in columns))
        return DataTable(
            f"{plural(len(self.models), 'model')} on {plural(len(self.graphs), 'graph')}",
            ("graph", "edges", *(f"{model}, {_title(key)}" for model, key in columns)),
            [*rows, average],
            " ".join(
                filter(
                    None,
                    [
                        f"{self._conditions()}. Every graph has the same weight in the average.",
                        self._comparability_note(),
                        *self._notes(),
                    ],
                )
            ),
            "suite",
        )

    @property
    def warnings(self) -> list[str]:
        """What to know before the figures are quoted, each after the models and graphs that it holds for."""
        return joint_warnings([(f"{row.model} on {row.graph}", row.warnings) for row in self.rows])

    def _notes(self) -> list[str]:
        """Return what the names of figures and the mark behind them mean, where there are such."""
        return [
            *([STATIC] if any(row.time_window is not None for row in self.rows) else []),
            *([f"{AT_CHANCE} {NO_BETTER}."] if any(row.is_at_chance for row in self.rows) else []),
        ]

    def _comparability_note(self) -> str:
        """Return on which graphs figures of models must not be compared; empty if on none."""
        graphs = list(dict.fromkeys(row.graph for row in self.rows if row.differs_from_first))
        return f"Models are not comparable on {listed(graphs)}, so none is called the best." if graphs else ""

    def _conditions(self) -> str:
        by_filter = grouped((row.filter_name, row.graph) for row in self.rows)
        told = [
            name + ("" if len({*graphs}) == len(self.graphs) else f" on {listed([*dict.fromkeys(graphs)])}")
            for name, graphs in by_filter.items()
        ]
        return f"{'; '.join(told)}; {' or '.join(dict.fromkeys(row.headline for row in self.rows))} ranks"

    def to_dict(self) -> dict[str, Any]:
        """Return all of it, ready for JSON."""
        return {
            "name": self.name,
            "results": [asdict(row) for row in self.rows],
            "averages": {model: {key: self.average(model, key) for key in self.metrics} for model in self.models},
        }

    def page(self) -> Page:
        """Return the page of all results."""
        first = self.metrics[0]
        tiles = [
            Tile(model, text_of(first, self.average(model, first)), (f"average {_title(first)}",))
            for model in self.models
        ]
        runs = [(row.graph, row.model, f"{row.graph}/{row.model}", row.digest) for row in self.rows]
        columns = ("graph", "model", "folder", "digest")
        origin = DataTable("The runs", columns, runs, anchor="runs", kinds="llll", wide=columns[2:])
        return Page(
            "Suite",
            self.name,
            self.table().title,
            [self._conditions()],
            tiles,
            [
                warnings_section(self.warnings),
                Section("results", "All results", [*map(self._table_of, self.metrics), *self._notes()]),
                Section("origin", "Provenance", [origin], sortable=True, layout="wide"),
            ],
            lead=self.sentence(),
        )

    def _table_of(self, key: str) -> DataTable:
        """Return a metric alone: a row for each graph, a column for each model."""
        by_name = {(row.graph, row.model): row.cell(key) for row in self.rows}
        rows = [(graph, *(by_name[graph, model] for model in self.models)) for graph in self.graphs]
        average = (AVERAGE, *(text_of(key, self.average(model, key)) for model in self.models))
        title, better = _title(key), " (lower is better)" if _direction(key) < 0 else ""
        anchor = f"results-{self.metrics.index(key)}"
        return DataTable(f"{title}{better}", ("graph", *self.models), [*rows, average], anchor=anchor)

    def sentence(self) -> str:
        """Return which model has the best average of the first metric, and on how many graphs it is the best.

        No model is the best where figures of a graph hold under different conditions.
        """
        if unlike := self._comparability_note():
            return unlike
        key, sign = self.metrics[0], _direction(self.metrics[0])
        averages = {model: value for model in self.models if (value := self.average(model, key)) is not None}
        if len(self.models) < 2 or len(averages) < len(self.models):
            return ""
        best = max(averages, key=lambda model: sign * averages[model])
        values = {(row.graph, row.model): sign * (row.metrics[key] or 0.0) for row in self.rows}
        won = sum(values[graph, best] == max(values[graph, model] for model in self.models) for graph in self.graphs)
        told = f"{best} has the best average {_title(key)} ({text_of(key, averages[best])})"
        return f"{told} and is best on {won:,} of {plural(len(self.graphs), 'graph')}."

    def write(self, output: Path) -> list[Path]:
        """Write JSON, CSV, a LaTeX table and the page into a folder; return the files.

        Raises:
            OutputError: a file cannot be written.
        """
        rows = [{**asdict(row), **row.metrics} for row in self.rows]
        for row in rows:
            del row["metrics"], row["warnings"]
        document, table, latex, page = paths = [output / name for name in FILES]
        write_atomically(document, json_text(self.to_dict()))
        write_atomically(table, to_csv(rows))
        shown = self.table()
        write_atomically(
            latex,
            "\n".join(
                [
                    f"% {one_line(shown.title)}. {one_line(shown.note)}",
                    NEEDS_BOOKTABS,
                    *latex_warnings(self.warnings),
                    f"{to_latex(shown)}\n",
                ]
            ),
        )
        write_atomically(page, self.page().render())
        return paths


def comparability_warning(first: tuple[str, Result] | None, report: Result) -> str:
    """Return that a result has other edges, filters or candidates than the first one of its graph; empty if it has not.

    All have the settings of the suite. Counts tell of candidates. Where models number entities alike, digests tell of
    known answers, too. Else edges left out of both may not be the same.
    """
    if first is None:
        return ""
    model, both = first[0], [first[1].document, report.document]
    counts = [
        (of["filter"], of["num_edges"], {side: found["num_candidates"] for side, found in of["diagnostics"].items()})
        for of in both
    ]
    if counts[0] != counts[1]:
        means = [text_of("", of["both"]["mean"]) for *_, of in counts]
        a, b = (f"{title_of(of)}, {mean} on average" for of, mean in zip(both, means, strict=True))
        return f"{NOT_COMPARABLE} {model} ({a}): {b}"
    a, b = (of["provenance"] for of in both)
    if "evaluated" not in a or "evaluated" not in b:  # entities are features, which have no numbers
        return ""
    of_a, of_b = a["evaluated"], b["evaluated"]
    if of_a["edges"] != of_b["edges"]:
        told = describe_left_out(a["data"], b["data"])
        return f"{NOT_COMPARABLE} {model} (A; this model is B): {told}" if told else ""
    if of_a["rows"] == of_b["rows"] and of_a.get("known") != of_b.get("known"):
        return f"{NOT_COMPARABLE} {model}: the same queries have different known answers"
    return ""


def _direction(key: str) -> int:
    """Return 1 where higher is better, and where neither is; else -1."""
    name = key.rpartition(".")[2]
    metric = find_metric(name) or next((of for of in SCORE_METRICS if of.name == name), None)
    return (metric.direction if metric else None) or 1


def _title(key: str) -> str:
    name = key.removeprefix(TIME_AWARE)
    return short_title(key) if name == key else f"time-aware {short_title(name)}"
