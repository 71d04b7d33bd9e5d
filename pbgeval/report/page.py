"""What a folder holds -> one page of HTML that needs nothing but itself, or tables for papers.

The template escapes whatever it is given. A content security policy allows this page's own style and script, by their
hashes, and nothing else: no name in a result can become code, and nothing is fetched.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import evolve, frozen

from pbgeval.errors import ConfigError, DataError, OutputError
from pbgeval.metrics.names import UnknownMetricError, resolve
from pbgeval.monitor.curves import METRICS as TRAINING_METRICS
from pbgeval.monitor.curves import Curves, pbg_name, read_curves
from pbgeval.report.charts import (
    Chart,
    bucket_table,
    cumulative_chart,
    distribution_table,
    heat_map,
    ranks_by_side,
    share_chart,
    training_charts,
)
from pbgeval.report.figures import (
    breakdowns_of,
    data_of,
    diagnostics_of,
    edge_paths_of,
    edges_of,
    estimates_of,
    every_metric,
    headline_of,
    passes_of,
    run_of,
    settings_of,
    ties_of,
    title_of,
    types_of,
    verdict_of,
)
from pbgeval.report.report import BUCKETS, HISTOGRAM, METRICS, Report
from pbgeval.report.tables import (
    DataTable,
    clipped,
    escape_latex,
    escape_markdown,
    to_latex,
    to_markdown,
)
from pbgeval.report.warnings import warnings_of
from pbgeval.version import __version__

if TYPE_CHECKING:
    from jinja2 import Environment

DEFAULT_METRIC = "mrr"
MAX_ROWS = 20  # of a breakdown in a paper
_TOO_MUCH = ("id", "MRR, head", "MRR, tail", "AMRI", "AUC per query")  # columns, for the width of a page of paper
_NOTHING_ALLOWED = "default-src 'none'; base-uri 'none'; form-action 'none'"
_KEYS = ("complete", "filter", "headline", "num_edges", "num_queries", "metrics", "diagnostics", "intervals")


@frozen(eq=False)
class Source:
    """What a page is made of. At least one of the two is there."""

    name: str  # of the folder
    report: Report | None  # with the rows of its tables
    training: Curves | None = None

    @property
    def is_complete(self) -> bool:
        """Whether nothing is going to be added; records of a training run do not tell."""
        return self.report is None or bool(self.report.document["complete"])

    @property
    def title(self) -> str:
        """What was evaluated, and how far, in words."""
        if self.report is None:
            return "Held-out edges of a training run"
        so_far = title_of(self.report) if "metrics" in self.report.document else ""
        if self.is_complete:
            return so_far
        return "; ".join(filter(None, [f"Not complete: {_progress(self.report.document)}", so_far]))


def read_source(folder: Path, monitor: Path | None, metric: str, warn: Callable[[str], None]) -> Source:
    """Read whatever a folder has.

    Args:
        folder: an output directory, or one of a monitor's records.
        monitor: the records of the training run; None: those in `folder`.
        metric: of the training run, by any of its names.
        warn: is told of what is left out.

    Raises:
        OutputError: neither an evaluation nor records of training.
    """
    has_records = any(folder.glob("training_stats*.json"))
    has_result = (folder / METRICS).exists()
    if not has_result and not has_records:
        raise OutputError(
            f"{folder}: expected {METRICS} of an evaluation or training_stats.json of a training run, found neither; "
            "give an output directory"
        )
    result = read_result(folder) if has_result else None
    records = monitor or (folder if has_records else None)
    needed = result is None or monitor is not None
    training = None if records is None else _training(records, metric, warn, needed=needed)
    return Source(folder.resolve().name, result, training)


def _training(records: Path, metric: str, warn: Callable[[str], None], *, needed: bool) -> Curves | None:
    """Read the records of a training run; where an evaluation is what was asked for, they may have nothing to show."""
    name = pbg_name(metric)
    if name is None and needed:
        expected = ", ".join(TRAINING_METRICS)
        raise ConfigError(f"--metric {metric}: expected one of {expected} for the records of a training run")
    try:
        return read_curves(records, name or "mrr", warn)
    except DataError as error:
        if needed:
            raise
        warn(f"{records}: nothing of the training run is shown: {error}")
        return None


def read_result(folder: Path) -> Report:
    """Read a result with its tables; those of an unfinished run, which has none, are empty.

    Raises:
        OutputError: there is no result, or a file is not as it was written.
    """
    report = Report.read(folder)
    document = report.document
    missing = [key for key in (_KEYS if document.get("complete") else ("complete",)) if key not in document]
    if missing:
        raise OutputError(
            f"{folder / METRICS}: expected the result of an evaluation, found none of the keys "
            f"{', '.join(missing)}; evaluate again"
        )
    return report


@frozen(eq=False)
class Section:
    """A part of the page: what is shown, and tables that are folded below it."""

    anchor: str
    title: str
    shown: Sequence[str | Sequence[str] | Chart | DataTable]  # paragraphs, warnings, pictures, tables
    folded: Sequence[DataTable] = ()
    sortable: bool = False  # the tables that are shown


def render_page(source: Source, metric: str = DEFAULT_METRIC, meanings: Mapping[str, str] | None = None) -> str:
    """Return the page.

    Args:
        source: what it is made of.
        metric: of the map of buckets, by any of its names.
        meanings: of the keys of a config.

    Raises:
        ConfigError: jinja2 is not installed, or buckets have no such metric.
    """
    environment = _environment()
    sections = [] if source.report is None else _evaluation(source.report, metric, meanings or {})
    if source.training is not None:
        means = "Means of held-out edges over each pass, before and after the visits to their buckets."
        shown = (
            f"{means} Verdict: {verdict_of(source.training)}.",
            *training_charts(source.training),
            passes_of(source.training),
        )
        at = next((at for at, section in enumerate(sections) if section.anchor == "origin"), len(sections))
        sections.insert(at, Section("gap", "Before and after each visit", shown, sortable=True))
    style, script = (
        resources.files("pbgeval.report").joinpath("templates", name).read_text(encoding="utf-8")
        for name in ("page.css", "page.js")
    )
    return environment.get_template("page.html").render(
        name=clipped(source.name),
        version=__version__,
        style=style,
        script=script,
        policy=f"{_NOTHING_ALLOWED}; style-src {_hash(style)}; script-src {_hash(script)}",
        facts=_facts(source.report),
        progress="" if source.report is None or source.is_complete else _progress(source.report.document),
        sections=[section for section in sections if section.shown or section.folded],
    )


def _facts(report: Report | None) -> list[str]:
    """Return what stands above all sections, a paragraph each."""
    if report is None:
        return []
    document, facts = report.document, []
    if "metrics" in document:
        sample = document.get("sample")
        of = f" A sample: {sample['num_units']:,} of {sample['population']:,} {sample['unit']}s." if sample else ""
        facts.append(f"{title_of(report)}; {document['headline']} ranks.{of}")
    provenance = document.get("provenance") or {}
    if provenance.get("digest"):
        version = provenance.get("checkpoint_version")
        facts.append(
            f"Digest {provenance['digest']}" + (f", checkpoint version {version}" if version is not None else "")
        )
    return facts


def _evaluation(report: Report, metric: str, meanings: Mapping[str, str]) -> list[Section]:
    """Return the sections of an evaluation; parts that the result does not have are left out."""
    document, sections = report.document, []
    if "metrics" in document:
        headline, is_complete = document["headline"], document["complete"]
        warnings = warnings_of(document) if is_complete else []
        sections += [Section("warnings", "Before you quote these figures", [warnings])] if warnings else []
        figures = (edge_paths_of(document), types_of(document), estimates_of(document), every_metric(document))
        sides = "Head: the left entity is hidden and ranked; tail: the right one; both: their queries pooled."
        shown = (headline_of(report, with_intervals=True), sides)
        sections.append(Section("headline", f"Headline: {headline} ranks", shown, _with_rows(*figures)))
        soundness = [ties_of(document)]
        if is_complete:
            sections += _buckets(report, metric)
            ranks = ranks_by_side(report.rows.get(HISTOGRAM, ()), headline)
            if ranks:
                charts = share_chart(ranks, headline), cumulative_chart(ranks, headline)
                sections.append(Section("ranks", "Distribution of ranks", charts, [distribution_table(ranks)]))
            for table in breakdowns_of(report):
                sections.append(Section(table.anchor, table.title, [table], sortable=True))
            soundness += [diagnostics_of(document), edges_of(document)]
        sections.append(Section("soundness", "Ties and leakage", _with_rows(*soundness)))
    origin = _with_rows(settings_of(document, meanings), data_of(document), run_of(report))
    return [*sections, Section("origin", "Provenance", (), origin)]


def _buckets(report: Report, metric: str) -> list[Section]:
    rows = report.rows.get(BUCKETS)
    if not rows:
        return []
    key = bucket_key(report, metric)
    chart = heat_map(rows, key)
    return [Section("buckets", "Buckets", [chart], _with_rows(bucket_table(rows, key)))] if chart else []


def bucket_key(report: Report, metric: str) -> str:
    """Return the column of buckets.csv that a name means.

    Raises:
        ConfigError: there is none.
    """
    keys = [key for key in report.rows[BUCKETS][0] if key.startswith("both.")]
    try:
        return resolve(metric, report.document["headline"], keys)
    except UnknownMetricError as error:
        if metric == DEFAULT_METRIC:  # not asked for, and the run has other metrics, or none
            return keys[0] if keys else "both."
        raise ConfigError(f"--metric {metric}: expected a column of buckets.csv: {error}") from error


def _progress(document: Mapping[str, Any]) -> str:
    """Return how far an unfinished run is, in words."""
    progress = document.get("progress")
    if progress is None:
        return "No unit of work has been reported yet"
    share = 100 * progress["units_done"] / max(progress["units"], 1)
    return f"{progress['units_done']:,} of {progress['units']:,} units of work are done ({share:.0f} %)"


def _with_rows(*tables: DataTable) -> list[DataTable]:
    return [table for table in tables if table.rows]


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _environment() -> Environment:
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError:
        raise ConfigError("expected jinja2 to make a page, found none; pip install 'pbgeval[report]'") from None
    return Environment(
        loader=PackageLoader("pbgeval.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


# Tables for papers


def markdown(source: Source) -> str:
    """Return tables in GitHub's Markdown."""
    parts = [f"# {escape_markdown(clipped(source.name))}", escape_markdown(f"{source.title}.")]
    for table in tables_of(source):
        parts += [f"## {escape_markdown(table.title)}", to_markdown(table), escape_markdown(table.note)]
    return "\n\n".join(filter(None, parts)) + "\n"


def latex(source: Source) -> str:
    r"""Return tables in LaTeX, for a document with \usepackage{booktabs}."""
    parts = ["% needs \\usepackage{booktabs}"]
    for table in tables_of(source):
        caption = escape_latex(f"{table.title}. {source.title}. {table.note}".rstrip())
        parts += [r"\begin{table}", r"\centering", rf"\caption{{{caption}}}", rf"\label{{tab:{table.anchor}}}"]
        parts += [to_latex(table), "\\end{table}\n"]
    return "\n".join(parts)


def tables_of(source: Source) -> list[DataTable]:
    """Return the tables that papers have: the headline, the first rows of breakdowns, the passes of training."""
    tables: list[DataTable] = []
    if source.report is not None and "metrics" in source.report.document:
        tables = [headline_of(source.report), *map(_shortened, breakdowns_of(source.report))]
    if source.training is not None:
        tables.append(passes_of(source.training))
    return tables


def _shortened(table: DataTable) -> DataTable:
    kept = [at for at, title in enumerate(table.columns) if title not in _TOO_MUCH]
    rows = [[row[at] for at in kept] for row in table.rows[:MAX_ROWS]]
    return evolve(
        table,
        columns=tuple(table.columns[at] for at in kept),
        kinds="".join(table.kinds[at] for at in kept),
        rows=rows,
        note="" if len(rows) == len(table.rows) else f"The first {len(rows)} rows; the CSV file has all.",
    )
