"""Results, a comparison, records of training -> what one page of HTML shows; tables; model cards."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import evolve, frozen

from pbgeval.errors import ConfigError, DataError, OutputError
from pbgeval.metrics.names import UnknownMetricError, resolve, split
from pbgeval.report.charts import (
    Chart,
    bucket_table,
    cumulative_chart,
    distribution_table,
    heat_map,
    ranks_by_side,
    share_chart,
)
from pbgeval.report.conditions import cautions_of, interval_name, tags_of, title_of, warnings_of
from pbgeval.report.figures import (
    POPULARITY_TITLE,
    Tile,
    breakdowns_of,
    capital,
    diagnostics_of,
    edge_paths_of,
    edges_of,
    ends_of,
    every_metric,
    final_table,
    headline_of,
    is_sure,
    name_of,
    origin_of,
    popularity_of,
    short_title,
    ties_of,
    ties_sentence,
    tiles_of,
    topk_of,
)
from pbgeval.report.rendering import render, save, templates
from pbgeval.report.report import Report
from pbgeval.report.summary import doubts_of, sentence_of
from pbgeval.report.tables import (
    NEEDS_BOOKTABS,
    DataTable,
    clipped,
    escape_markdown,
    in_latex,
    latex_warnings,
    to_markdown,
    without,
)
from pbgeval.results.output import PAGE, refuse_others
from pbgeval.results.result import BUCKETS, METRICS, Result, histogram_rows, no_result, section_of
from pbgeval.storage.text import plural, without_secrets
from pbgeval.storage.writing import output_faults, write_atomically

# Modules of training are imported where they are used: the page of an evaluation starts faster without them.
if TYPE_CHECKING:
    from pbgeval.monitor.curves import Curves

DEFAULT_METRIC = "mrr"
WARNINGS = "Before you quote these figures"
MAX_ROWS = 20  # of a breakdown in a paper
_HITS = re.compile("hits_at_([1-9][0-9]{0,11})")
_NO_FIGURES = (
    "this run is not complete and has no figures yet; if it no longer runs, run the same command again to resume"
)
_TOO_MUCH = ("id", "MRR, head", "MRR, tail", "AMRI", "AUC per query")  # columns, for the width of a page of paper


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
    def warnings(self) -> list[str]:
        """What to know before the figures of an evaluation are quoted."""
        return [] if self.report is None else warnings_of(self.report.document)

    @property
    def title(self) -> str:
        """What was evaluated, and how far, in words."""
        if self.report is None:
            return "Held-out edges during training"
        so_far = title_of(self.report.document) if "metrics" in self.report.document else ""
        return so_far if self.is_complete else " ".join(filter(None, [_progress(self.report.document), so_far]))


def read_source(folder: Path, monitor: Path | None, metric: str, warn: Callable[[str], None]) -> Source:
    """Read whatever a folder has.

    Args:
        folder: an output directory, or one of a monitor's records.
        monitor: the records of the training run; None: those in `folder`.
        metric: of the training run, by any of its names.
        warn: is told of what is left out.

    Raises:
        OutputError: neither an evaluation nor records of training, or nothing that has figures.
    """
    has_records = any(folder.glob("training_stats*.json"))
    has_result = (folder / METRICS).exists()
    if not has_result and not has_records:
        raise OutputError(f"{folder}: {no_result(folder, f'{METRICS} or training_stats.json')}")
    result = Report.read(folder) if has_result else None
    training = None
    if monitor is not None or has_records:
        # Where an evaluation is what was asked for, records may have nothing to show.
        records = monitor or folder
        needed = result is None or monitor is not None
        from pbgeval.monitor.curves import TRAINING_METRICS, both_names, pbg_name, read_curves

        name = pbg_name(metric)
        if name is None and needed:
            raise ConfigError(
                f"--metric {metric}: expected one of {', '.join(map(both_names, TRAINING_METRICS))} for the records of "
                "a training run"
            )
        try:
            training = read_curves(records, name or "mrr", warn)
        except DataError as error:
            if needed:
                raise
            warn(f"{records}: nothing of the training run is shown: {error}")
    if training is None and result is not None and "metrics" not in result.document:
        raise OutputError(f"{folder}: {_NO_FIGURES}")
    return Source(folder.resolve().name, result, training)


@frozen(eq=False)
class Notice:
    """Lines that must not be overlooked."""

    lines: Sequence[str]
    tone: str = "warning"  # or neutral, good


@frozen(eq=False)
class Section:
    """A part of the page: what is shown, and tables that are folded below it."""

    anchor: str
    title: str
    shown: Sequence[str | Notice | Chart | DataTable]
    folded: Sequence[DataTable] = ()
    sortable: bool = False  # the tables that are shown
    layout: str = "columns"  # in a wide window; "roomy": in a very wide one; "wide": one below the other


@frozen(eq=False)
class Page:
    """All that the template writes."""

    kind: str  # what page this is
    name: str  # of what was read
    title: str
    tags: Sequence[str]  # the conditions of the figures
    tiles: Sequence[Tile]  # the figures in large type
    sections: Sequence[Section]
    notice: Notice | None = None
    digest: str = ""
    lead: str = ""  # the result in a sentence

    def render(self) -> str:
        """Return the page.

        Raises:
            ConfigError: jinja2 is not installed.
        """
        sections = [section for section in self.sections if section.shown or section.folded]
        return render("page.html", "page.js", page=self, sections=sections)

    def write(self, output: Path | str) -> str:
        """Write the page as `save` does.

        Raises:
            OutputError: it cannot be written, or the folder has a report.html that is not ours.
        """
        return save(self.render(), PAGE, output)


SVG_STYLE = (  # of a drawing outside of a page: the light colors of page.css
    "text{font:14px sans-serif;fill:#1b1f24}.tick{font-size:13px;fill:#515a65}.axis{stroke:#d5dbe3}"
    ".bar-0{fill:#1f5fa8}.bar-2{fill:#5c6670}.line-0,.line-2{fill:none;stroke:#5c6670;stroke-width:2}"
)


def svg_of(chart: Chart) -> str:
    """Return a chart as a file of its own, without its title and legend.

    Raises:
        ConfigError: jinja2 is not installed.
    """
    drawing = templates().get_template("parts.html").module.drawing(chart, SVG_STYLE)  # type: ignore[attr-defined]
    return f"{str(drawing).strip()}\n"


def page_of(source: Source, metric: str = DEFAULT_METRIC, meanings: Mapping[str, str] | None = None) -> Page:
    """Return the page of an evaluation, of a training run, or of both.

    Args:
        source: what it is made of.
        metric: of the map of buckets, by any of its names.
        meanings: of the keys of a config.

    Raises:
        ConfigError: buckets have no such metric.
    """
    report, curves, name = source.report, source.training, clipped(source.name)
    if report is None:
        assert curves is not None  # as `Source` says
        from pbgeval.report.training import describe_lists, training_tiles, verdicts_of

        finished = sum(row.is_finished for row in curves.passes)
        section, (lead, *verdict) = _visits(curves), verdicts_of(curves)
        return Page(
            "Training monitor",
            name,
            "Held-out edges during training",
            [*filter(None, [plural(finished, "epoch"), plural(len(curves.teeth), "bucket"), describe_lists(curves)])],
            training_tiles(curves),
            [evolve(section, shown=section.shown[1:])],  # the verdict stands above the figures
            Notice(verdict, _tone(curves)) if verdict else None,
            lead=lead,
        )
    sections = _evaluation(report, metric, meanings or {})
    if curves is not None:
        sections.insert(-1, _visits(curves))
    return Page(
        "Evaluation report",
        name,
        name_of(report) or name,
        tags_of(report.document),
        tiles_of(report),
        sections,
        None if source.is_complete else Notice([_progress(report.document)]),
        section_of(report.document, "provenance").get("digest", ""),
        sentence_of(report.document) if report.document["complete"] else "",
    )


def warnings_section(warnings: Sequence[str]) -> Section:
    """Return a section of warnings; without any, nothing is shown."""
    return Section("warnings", WARNINGS, [Notice(warnings)] if warnings else (), layout="wide")


def _visits(curves: Curves) -> Section:
    from pbgeval.report.training import passes_of, training_charts, verdicts_of

    table = passes_of(curves)
    of_training = (
        " Training: as many training edges of the same buckets, ranked after the visit. Train−held out: "
        "training − after, which grows where a model overfits to its training edges."
    )
    means = (
        "Held-out edges are ranked before and after each visit of the trainer to their bucket. Figures of an epoch are "
        f"means over its held-out edges.{of_training if 'training' in table.columns else ''}"
    )
    return Section(
        "gap",
        "Before and after each visit",
        (
            Notice(verdicts_of(curves), _tone(curves)),
            *training_charts(curves),
            evolve(table, note=f"{means} {table.note}".strip()),
        ),
        sortable=True,
    )


def _tone(curves: Curves) -> str:
    return "warning" if curves.is_bad else "good" if curves.is_sound else "neutral"


def _evaluation(report: Report, metric: str, meanings: Mapping[str, str]) -> list[Section]:
    """Return the sections of an evaluation; parts that the result does not have are left out."""
    document = report.document
    origin = Section("origin", "Provenance", (), _with_rows(*origin_of(report, meanings)))
    if "metrics" not in document:
        return [origin]
    warnings, headline, table = warnings_of(document), document["headline"], headline_of(document)
    ties = ties_sentence(document)
    sides = (
        "Head: the left entity is hidden and ranked. Tail: the right entity is. Both: all of these queries."
        f"{' Relation: the relation is hidden.' if 'relation' in table.columns else ''}"
    )
    candidates = _with_rows(diagnostics_of(document)) if document["complete"] else []
    candidates = [evolve(of, note=f"{of.note} {ties}".strip()) for of in candidates]
    sections = [
        warnings_section([*map(capital, warnings)]),
        Section(
            "headline",
            f"Metrics, {headline} ranks",
            (
                evolve(table, note=f"{sides} {table.note}".strip()),
                *(candidates if ties else _with_rows(ties_of(document))),
            ),
            _with_rows(edge_paths_of(document), every_metric(document)),
        ),
    ]
    if document["complete"]:
        ranks = ranks_by_side(histogram_rows(report.rows, headline), headline)
        charts = (share_chart(ranks, headline), cumulative_chart(ranks, headline)) if ranks else ()
        sections += [
            Section("ranks", "Distribution of ranks", charts, [distribution_table(ranks)] if ranks else ()),
            *(
                Section(table.anchor, table.title, [table], sortable=True, layout="wide")
                for table in breakdowns_of(report, fewer_decimals=1)
            ),
            Section("popularity", POPULARITY_TITLE, popularity_of(document), layout="wide"),
            Section("top-k", "First k candidates", topk_of(document), layout="wide"),
            Section("soundness", "Ties and leakage", [*(() if ties else candidates), *_with_rows(edges_of(document))]),
            *_buckets(report, metric),
        ]
    return [*sections, origin]


def _buckets(report: Report, metric: str) -> list[Section]:
    """Return the map of buckets by a metric; a cutoff of hits that the run lacks comes from saved ranks, if it has any.

    Raises:
        ConfigError: buckets have no such metric.
    """
    rows = report.rows.get(BUCKETS)
    if not rows:
        return []
    cutoff = _HITS.fullmatch(split(metric).metric)
    cutoffs = report.document["provenance"].get("settings", {}).get("hits_at", ())
    if cutoff and int(cutoff[1]) not in cutoffs and report.path is not None:
        from pbgeval.storage.row_files import find_ranks  # here: it imports h5py, which few pages need

        if find_ranks(report.path):
            rows = report.recompute(hits_at=[int(cutoff[1])]).rows[BUCKETS]
    keys = [key for key in rows[0] if key.startswith("both.")]
    try:
        key = resolve(metric, report.document["headline"], keys)
    except UnknownMetricError as error:
        if metric != DEFAULT_METRIC:
            raise ConfigError(f"--metric {metric}: expected a column of buckets.csv: {error}") from error
        key = keys[0] if keys else "both."  # not asked for, and the run has other metrics, or none
    chart = heat_map(rows, key)
    return [Section("buckets", "Buckets", [chart], _with_rows(bucket_table(rows, key)))] if chart else []


def _progress(document: Mapping[str, Any]) -> str:
    """Return how far an unfinished run is, in words."""
    progress = document.get("progress")
    if progress is None:
        return f"{capital(_NO_FIGURES)}."
    share = 100 * progress["units_done"] / max(progress["units"], 1)
    done = f"{progress['units_done']:,} of {progress['units']:,} units of work are done ({share:.0f}%)"
    return f"This run is not complete: {done}. All figures are of these."


def _with_rows(*tables: DataTable) -> list[DataTable]:
    return [table for table in tables if table.rows]


# Tables for papers


def markdown(source: Source) -> str:
    """Return tables in GitHub's Markdown."""
    warnings = "\n".join(f"- {escape_markdown(warning)}." for warning in source.warnings)
    parts = [
        f"# {escape_markdown(clipped(source.name))}",
        escape_markdown(f"{capital(source.title)}."),
        *([f"## {WARNINGS}", warnings] if warnings else []),
        *(
            part
            for table in tables_of(source)
            for part in (f"## {escape_markdown(table.title)}", to_markdown(table), escape_markdown(table.note))
        ),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def latex(source: Source) -> str:
    r"""Return tables in LaTeX, for a document with \usepackage{booktabs}."""
    parts = [NEEDS_BOOKTABS, *latex_warnings(source.warnings)]
    for table in tables_of(source):
        parts.append(in_latex(table, f"{table.title}. {capital(source.title)}."))
    return "\n".join(parts)


def tables_of(source: Source) -> list[DataTable]:
    """Return the tables that papers have: the headline, the first rows of breakdowns, the passes of training."""
    tables: list[DataTable] = []
    if source.report is not None and "metrics" in source.report.document:
        document = source.report.document
        tables = [headline_of(document, for_papers=True)]
        sure = [short_title(key) for key in document["metrics"] if key.startswith("both.") and is_sure(document, key)]
        for table in breakdowns_of(source.report):
            note = f"The first {MAX_ROWS} rows; the CSV file has all." if len(table.rows) > MAX_ROWS else ""
            tables.append(without(evolve(table, rows=table.rows[:MAX_ROWS], note=note), [*_TOO_MUCH, *sure]))
    if source.training is not None:
        from pbgeval.report.training import passes_of

        tables.append(passes_of(source.training))
    return tables


# Files for a model's repository on the Hugging Face Hub; nothing is uploaded.
#
# `.eval_results/<task>.yaml` has the keys of the Hub's format (hub-docs, docs/hub/eval-results.md); its texts are JSON
# strings, which YAML reads. `evaluation.md` is a section for the model card.

RESULTS, CARD = ".eval_results", "evaluation.md"
MARK = "Written by pbgeval."  # in files that are ours to replace


_HUB_NAME = "[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?"
_ADDRESS = re.compile(r"https?://(?:[^\s/?#]*@)?[\w\[]\S*", re.IGNORECASE)


def _check_addresses(dataset: str, task: str, source: str | None) -> None:
    """Refuse what the Hub does not take.

    Raises:
        ConfigError: see above.
    """
    address = source or ""
    shown = without_secrets(address, address)
    is_name = re.fullmatch(f"{_HUB_NAME}/{_HUB_NAME}", dataset)
    if not is_name or re.search(r"--|\.\.", dataset) or dataset.endswith((".git", ".ipynb")):
        raise ConfigError(f"dataset {dataset!r}: expected OWNER/NAME of a dataset on the Hub")
    if not re.fullmatch(_HUB_NAME, task) or task.endswith((".yaml", ".yml")):
        raise ConfigError(
            f"task {task!r}: expected letters, digits, '.', '_' and '-', without .yaml and without '.' or '-' at an end"
        )
    if source is not None and not (_ADDRESS.fullmatch(address) and address.isprintable()):
        raise ConfigError(f"source {shown!r}: expected an address that starts with https:// and a host, without spaces")
    if address != without_secrets(address):
        raise ConfigError(f"source: expected an address without a user and a query, which all would see, got {shown}")


def publish(
    report: Result, folder: Path, dataset: str, *, task: str = "default", metric: str = "mrr", source: str | None = None
) -> list[Path]:
    """Write both files into a copy of the model's repository; return their paths.

    Args:
        report: of a finished run.
        folder: of the copy.
        dataset: the benchmark's dataset on the Hub, OWNER/NAME.
        task: of the benchmark, as its eval.yaml calls it.
        metric: the value that the leaderboard shows, by any of its names.
        source: address of what backs the result, for example of a repository that has the result's folder.

    Raises:
        ConfigError: dataset, task, metric or source is not what the Hub takes.
        OutputError: the run is not finished, the metric has no value, or a file cannot be written.
    """
    if not report.document.get("complete"):
        raise OutputError(f"{report.path}: this evaluation is not complete; finish it first")
    _check_addresses(dataset, task, source)
    figures, headline = report.document["metrics"], report.document["headline"]
    try:
        key = resolve(metric, headline, figures.keys())
    except UnknownMetricError as error:
        raise ConfigError(str(error.args[0])) from None
    if figures[key] is None:
        raise OutputError(f"{metric}: this result has no value for it")
    title = title_of(report.document)
    table = final_table(report.document)
    ends = ends_of(report.document["intervals"].get(key))
    interval = f"{interval_name(report.document)} {' to '.join(ends)}".replace("\u00a0", " ") if ends else ""
    caution, warnings = cautions_of(report.document), warnings_of(report.document)
    entry: dict[str, object] = {
        "dataset": {"id": dataset, "task_id": task},
        "value": figures[key],
        **({"date": report.run["started"][:10]} if "started" in report.run else {}),
        **({} if source is None else {"source": {"url": source, "name": "pbgeval result"}}),
        "notes": "; ".join(
            filter(
                None,
                [
                    f"{key}: {title}",
                    interval,
                    caution,
                    *doubts_of(report.document),
                    f"digest {report.document['provenance']['digest']}",
                ],
            )
        ),
    }
    notes = [table.note, f"{key}: {interval}." if interval else "", f"{capital(caution)}." if caution else ""]
    parts = [
        "## Evaluation",
        f"{capital(title)}. {MARK}",
        escape_markdown(sentence_of(report.document)),
        to_markdown(table),
        *map(escape_markdown, notes),
        "\n".join(f"- Warning: {escape_markdown(warning)}." for warning in warnings),
    ]
    texts = {
        folder / RESULTS / f"{task}.yaml": f"# {MARK}\n- {_yaml(entry, '  ')[2:]}",
        folder / CARD: "\n\n".join(filter(None, parts)) + "\n",
    }
    for path in texts:
        refuse_others(path, MARK, "one that publish has written, and may hold more")
    for path, text in texts.items():
        with output_faults(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    return list(texts)


def _yaml(entry: Mapping[str, object], indent: str) -> str:
    return "".join(
        f"{indent}{key}:\n{_yaml(value, indent + '  ')}"
        if isinstance(value, Mapping)
        else f"{indent}{key}: {json.dumps(value)}\n"
        for key, value in entry.items()
    )
