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
from pbgeval.report.figures import final_table, title_of
from pbgeval.report.output import refuse_others
from pbgeval.report.report import Report
from pbgeval.report.tables import to_markdown
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
    title = title_of(report)
    entry: dict[str, object] = {
        "dataset": {"id": dataset, "task_id": task},
        "value": figures[key],
        **({"date": report.run["started"][:10]} if "started" in report.run else {}),
        **({} if source is None else {"source": {"url": source, "name": "pbgeval result"}}),
        "notes": f"{key}: {title}; digest {report.document['provenance']['digest']}",
    }
    card = f"## Evaluation\n\n{title}. {MARK}\n\n{to_markdown(final_table(report))}\n"
    texts = {folder / RESULTS / f"{task}.yaml": f"# {MARK}\n- {_yaml(entry, '  ')[2:]}", folder / CARD: card}
    for path in texts:
        refuse_others(path, MARK, "one that publish has written, and may hold more")
    for path, text in texts.items():
        with output_faults(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    return list(texts)


def _yaml(entry: Mapping[str, object], indent: str) -> str:
    lines = []
    for key, value in entry.items():
        if isinstance(value, Mapping):
            lines.append(f"{indent}{key}:\n{_yaml(value, indent + '  ')}")
        else:
            lines.append(f"{indent}{key}: {json.dumps(value)}\n")
    return "".join(lines)
