"""A finished report -> files for a model's repository on the Hugging Face Hub; nothing is uploaded.

`.eval_results/<task>.yaml` has the keys of the Hub's format (hub-docs, docs/hub/eval-results.md); its texts are JSON
strings, which YAML reads. `evaluation.md` is a section for the model card.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from pbgeval.errors import ConfigError, OutputError
from pbgeval.metrics.names import UnknownMetricError, resolve
from pbgeval.report.conditions import cautions_of, interval_name, title_of
from pbgeval.report.figures import capital, decimals_of, final_table, rounded
from pbgeval.report.output import refuse_others
from pbgeval.report.report import Report
from pbgeval.report.tables import escape_markdown, to_markdown
from pbgeval.storage.text import without_secrets
from pbgeval.storage.writing import output_faults, write_atomically

RESULTS, CARD = ".eval_results", "evaluation.md"
MARK = "Written by pbgeval."  # in files that are ours to replace
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
_TASK = re.compile(r"[\w.-]+")


def publish(
    report: Report, folder: Path, dataset: str, *, task: str = "default", metric: str = "mrr", source: str | None = None
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
    if not _REPOSITORY.fullmatch(dataset):
        raise ConfigError(f"dataset {dataset!r}: expected OWNER/NAME of a dataset on the Hub")
    if not _TASK.fullmatch(task):
        raise ConfigError(f"task {task!r}: expected letters, digits, '.', '_' and '-'")
    if source is not None and not source.startswith(("https://", "http://")):
        raise ConfigError(f"source {source!r}: expected an address that starts with https://")
    if source is not None and source != without_secrets(source):
        shown = without_secrets(source, source)
        raise ConfigError(f"source: expected an address without a user and a query, which all would see, got {shown}")
    figures, headline = report.document["metrics"], report.document["headline"]
    try:
        key = resolve(metric, headline, figures.keys())
    except UnknownMetricError as error:
        raise ConfigError(str(error.args[0])) from None
    if figures[key] is None:
        raise OutputError(f"{metric}: this result has no value for it")
    title, interval, table = title_of(report), _interval(report, key), final_table(report)
    caution = cautions_of(report.document)
    told = [f"{key}: {title}", interval, caution, f"digest {report.document['provenance']['digest']}"]
    entry: dict[str, object] = {
        "dataset": {"id": dataset, "task_id": task},
        "value": figures[key],
        **({"date": report.run["started"][:10]} if "started" in report.run else {}),
        **({} if source is None else {"source": {"url": source, "name": "pbgeval result"}}),
        "notes": "; ".join(filter(None, told)),
    }
    notes = [table.note, f"{key}: {interval}." if interval else ""]
    notes += [f"{capital(caution)}." if caution else ""]
    parts = ["## Evaluation", f"{capital(title)}. {MARK}", to_markdown(table), *map(escape_markdown, notes)]
    card = "\n\n".join(filter(None, parts)) + "\n"
    texts = {folder / RESULTS / f"{task}.yaml": f"# {MARK}\n- {_yaml(entry, '  ')[2:]}", folder / CARD: card}
    for path in texts:
        refuse_others(path, MARK, "one that publish has written, and may hold more")
    for path, text in texts.items():
        with output_faults(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    return list(texts)


def _interval(report: Report, key: str) -> str:
    """Return the interval of a figure in words; empty where there is none."""
    interval = report.intervals.get(key) or {}
    if not interval.get("standard_error"):
        return ""
    low, high = (rounded(interval[end], decimals_of(interval["standard_error"])) for end in ("low", "high"))
    return f"{interval_name(report.document)} {low} to {high}".replace("\u00a0", " ")


def _yaml(entry: Mapping[str, object], indent: str) -> str:
    lines = []
    for key, value in entry.items():
        if isinstance(value, Mapping):
            lines.append(f"{indent}{key}:\n{_yaml(value, indent + '  ')}")
        else:
            lines.append(f"{indent}{key}: {json.dumps(value)}\n")
    return "".join(lines)
