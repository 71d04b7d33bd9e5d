"""What a folder holds -> one page of HTML that needs nothing but itself.

The template escapes whatever it is given. A content security policy allows this page's own style and script, by their
hashes, and nothing else: no name in a result can become code, and nothing is fetched.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from importlib import resources
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from pbgeval.errors import ConfigError
from pbgeval.metrics.names import UnknownMetricError, resolve
from pbgeval.report.page.charts import (
    Chart,
    bucket_table,
    cumulative_chart,
    distribution_table,
    gap_of,
    heat_map,
    ranks_by_side,
    share_chart,
)
from pbgeval.report.page.figures import (
    breakdowns_of,
    data_of,
    diagnostics_of,
    edge_paths_of,
    edges_of,
    estimates_of,
    every_metric,
    headline_of,
    run_of,
    settings_of,
    ties_of,
    types_of,
)
from pbgeval.report.page.tables import DataTable, Source, clipped
from pbgeval.report.report import Report
from pbgeval.report.table import title_of
from pbgeval.report.warnings import warnings_of
from pbgeval.version import __version__

if TYPE_CHECKING:
    from jinja2 import Environment

DEFAULT_METRIC = "mrr"


@frozen(eq=False)
class PageOptions:
    """How a page is made."""

    metric: str = DEFAULT_METRIC  # of the map, by any of its names
    meanings: Mapping[str, str] = field(factory=dict)  # of the keys of a config


def render_page(source: Source, options: PageOptions) -> str:
    """Return the page.

    Raises:
        ConfigError: jinja2 is not installed, or buckets have no such metric.
    """
    style, script = _packaged("page.css"), _packaged("page.js")
    evaluation = {} if source.report is None else evaluation_parts(source.report, options)
    template = _environment().get_template("page.html")
    return template.render(
        name=clipped(source.name),
        version=__version__,
        style=style,
        script=script,
        policy=f"{_NOTHING_ALLOWED}; style-src {_hash(style)}; script-src {_hash(script)}",
        gap=None if source.training is None else gap_of(source.training),
        **{**_NOTHING, **evaluation},
    )


_NOTHING_ALLOWED = "default-src 'none'; base-uri 'none'; form-action 'none'"
_NOTHING: dict[str, Any] = {
    "evaluation": None,
    "progress": None,
    "warnings": [],
    "headline": None,
    "after_headline": [],
    "map": None,
    "buckets": None,
    "distribution": [],
    "ranks": None,
    "breakdowns": [],
    "soundness": [],
    "origin": [],
}


def evaluation_parts(report: Report, options: PageOptions) -> dict[str, Any]:
    """Return what the template shows of an evaluation; parts that the result does not have are left out."""
    document = report.document
    provenance = document.get("provenance") or {}
    parts: dict[str, Any] = {
        "evaluation": {
            "is_complete": document["complete"],
            "digest": provenance.get("digest"),
            "checkpoint": provenance.get("checkpoint_version"),
            "title": title_of(report) if "metrics" in document else None,
            "ranks": document.get("headline"),
            "sample": document.get("sample"),
        },
        "origin": present(settings_of(document, options.meanings), data_of(document), run_of(document)),
    }
    if not document["complete"]:
        parts["progress"] = progress_of(document)
    if "metrics" not in document:
        return parts
    parts["headline"] = headline_of(report)
    parts["after_headline"] = present(*_more_figures(document))
    parts["soundness"] = present(ties_of(document))
    if not document["complete"]:
        return parts
    parts["warnings"] = warnings_of(document)
    parts["soundness"] = present(ties_of(document), diagnostics_of(document), edges_of(document))
    parts["breakdowns"] = breakdowns_of(report)
    return parts | _pictures(report, options.metric)


def _more_figures(document: Mapping[str, Any]) -> list[DataTable | None]:
    return [edge_paths_of(document), types_of(document), estimates_of(document), every_metric(document)]


def _pictures(report: Report, metric: str) -> dict[str, Any]:
    parts: dict[str, Any] = {}
    if report.bucket_rows:
        key = bucket_key(report, metric)
        parts["map"] = heat_map(report.bucket_rows, key)
        parts["buckets"] = bucket_table(report.bucket_rows, key)
    sides = ranks_by_side(report.histogram_rows, report.document["headline"])
    if sides:
        headline = report.document["headline"]
        charts: list[Chart] = [share_chart(sides, headline), cumulative_chart(sides, headline)]
        parts["distribution"] = charts
        parts["ranks"] = distribution_table(sides)
    return parts


def bucket_key(report: Report, metric: str) -> str:
    """Return the column of buckets.csv that a name means.

    Raises:
        ConfigError: there is none.
    """
    keys = [key for key in report.bucket_rows[0] if key.startswith("both.")]
    try:
        return resolve(metric, report.document["headline"], keys)
    except UnknownMetricError as error:
        if metric == DEFAULT_METRIC and keys:  # not asked for, and the run has other metrics
            return keys[0]
        if metric == DEFAULT_METRIC:
            return "both."
        raise ConfigError(f"--metric {metric}: expected a column of buckets.csv: {error}") from error


def progress_of(document: Mapping[str, Any]) -> str:
    """Return how far an unfinished run is, in words."""
    run = document.get("run") or {}
    if "units" not in run:
        return "No unit of work has been reported yet"
    share = 100 * run["units_done"] / max(run["units"], 1)
    return f"{run['units_done']:,} of {run['units']:,} units of work are done ({share:.0f} %)"


def present(*tables: DataTable | None) -> list[DataTable]:
    """Return the tables that have rows."""
    return [table for table in tables if table is not None and table.has_figures]


def _packaged(name: str) -> str:
    return resources.files("pbgeval.report.page").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _environment() -> Environment:
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError:
        raise ConfigError("expected jinja2 to make a page, found none; pip install 'pbgeval[report]'") from None
    return Environment(
        loader=PackageLoader("pbgeval.report", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
