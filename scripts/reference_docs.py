"""Write the reference pages from the code: config keys, metrics, commands, Python.

    .venv/bin/python -m scripts.reference_docs            # into docs/reference, as scripts/docs does
    .venv/bin/python -m scripts.reference_docs FOLDER

The pages are not committed.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path

import typer
from typer.core import TyperGroup
from typer.testing import CliRunner

import pbgeval
from pbgeval import EntitySchema, EvalConfig, RelationSchema
from pbgeval.cli import app
from pbgeval.config.explain import ExplainedKey, explained_keys
from pbgeval.config.schema import GROUPS
from pbgeval.metrics.names import DIRECTIONS, listed_metrics, synonyms_of
from pbgeval.metrics.registry import DEFAULT_CUTOFF, Definition

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "reference"
COMMAND = "kgeval-dist"
WIDTH = 100  # of help texts
PROSE_WIDTH = 140
_OF_CONFIG = """\
`kgeval-dist --help-config` prints the same. A config file is Python with `get_config()`, which returns a
`pbgeval.EvalConfig`, or with PyTorch-BigGraph's `get_torchbiggraph_config()`, which returns a dict; or JSON. On the
command line, `-p KEY=VALUE` overrides a key: lists by comma (`hits_at=1,10`), `none` for an unset key, dots into nested
keys (`entities.user.num_partitions=4`, `relations.0.operator=diagonal`)."""
_OF_METRICS = """\
`kgeval-dist metrics` prints the same, and `kgeval-dist metrics NAME` one of them, by any of its names.
[Metrics](../metrics.md) explains rank types, filters, averages and samples."""
_LETTERS = f"""\
r: rank; C: number of candidates, the true entity included; p: share of the query's weight (1/n without weights); M, E,
sd: the metric named, its expectation and standard deviation by chance; H₁: harmonic number. Families stand
with k = {DEFAULT_CUTOFF}. Keys of `metrics.json` are `<side>.<rank type>.<metric>`, or `<side>.<metric>` for those
that know no ranks."""
_OF_COMMANDS = """\
This is the output of `--help`. The exit status is 0 if the result is complete, 1 after an error in the input (one line
each on stderr), and 75 if the result is incomplete: run the same command again to resume."""
_OF_PYTHON = """\
Each name can be imported from `pbgeval`. [Your own model](../guides/own_models.md) and the
[training monitor](../monitor.md) have examples. The keys of `EvalConfig`, `EntitySchema` and `RelationSchema` are the
[config keys](config.md)."""
# The most common names first; all others of `pbgeval.__all__` follow.
EXPORTED = {
    "An evaluation": (
        "load_config",
        "evaluate",
        "Report",
        "EvalConfig",
        "EntitySchema",
        "RelationSchema",
    ),
    "A model of your own": ("Edges", "edge_scorer", "side_scorer", "batch_scorer", "Scorer"),
    "Two runs": ("compare", "Comparison"),
    "While a model trains": ("Monitor", "ModelSchema", "MonitoredRelation", "ModelTensors", "Side"),
}
WITH_KEYS = (EvalConfig, EntitySchema, RelationSchema)  # config.md has their keys

_CODE = re.compile(r"`[^`]*`")


def pages() -> dict[str, str]:
    """Return the text of every page, by file name."""
    made = {
        "config.md": _config(),
        "metrics_list.md": _metrics(),
        "command_line.md": _command_line(),
        "python.md": _python(),
    }
    return {name: "\n\n".join(map(_filled, parts)).rstrip() + "\n" for name, parts in made.items()}


def _config() -> list[str]:
    keys = list(explained_keys())
    parts = ["# Config keys", _OF_CONFIG]
    for group in GROUPS:
        rows = [_config_row(key) for key in keys if key.group == group]
        parts += [f"## {group.capitalize()}", _table(("key", "type", "default", "meaning"), rows)]
    return parts


def _config_row(key: ExplainedKey) -> tuple[str, ...]:
    default = key.default if key.is_required or key.default in ("empty", "none") else f"`{key.default}`"
    return f"`{key.name}`", key.type, default, _escaped(key.help)


def _metrics() -> list[str]:
    heads = ("metric", "definition", "range, better", "by chance", "synonyms", "source")
    return ["# Metrics", _OF_METRICS, _LETTERS, _table(heads, map(_metric_row, listed_metrics()))]


def _metric_row(metric: Definition) -> tuple[str, ...]:
    better = ", ".join(filter(None, [metric.range, DIRECTIONS[metric.direction]]))
    synonyms = ", ".join(synonyms_of(metric))
    cells = (f"`{metric.name}`", metric.formula, better, metric.chance, synonyms, metric.source)
    return tuple(cell.replace("|", "\\|") for cell in cells)


def _command_line() -> list[str]:
    commands = ["", *_commands()]
    parts = ["# Command line", _OF_COMMANDS]
    for name in commands:
        heading = f"{COMMAND} {name}".rstrip()
        parts += [f"## {heading}", f"```text\n{help_of(*name.split())}\n```"]
    return parts


def _commands() -> list[str]:
    """Return the names of all commands, in the order of the help."""
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    return list(group.commands)


def help_of(*command: str) -> str:
    """Return what a command's `--help` prints on a terminal of 100 columns."""
    shown = CliRunner().invoke(app, [*command, "--help"], prog_name=COMMAND, terminal_width=WIDTH, color=False)
    if shown.exit_code != 0:
        raise RuntimeError(f"{COMMAND} {' '.join(command)} --help ended with {shown.exit_code}: {shown.output}")
    return "\n".join(line.rstrip() for line in shown.output.strip().splitlines())


def _python() -> list[str]:
    """Return the parts of the page: a directive of mkdocstrings for each name, which finds it where it is defined."""
    grouped = {name for names in EXPORTED.values() for name in names}
    others = tuple(sorted({*pbgeval.__all__} - grouped - {"__version__"}))
    parts = ["# Python", _OF_PYTHON]
    for group, names in {**EXPORTED, "More": others}.items():
        parts.append(f"## {group}")
        parts += [_directive(name, getattr(pbgeval, name)) for name in names]
    return parts


def _directive(name: str, exported: object) -> str:
    place = f"{getattr(exported, '__module__', '')}.{getattr(exported, '__qualname__', '')}"
    options = [f"heading: pbgeval.{name}", *(["members: false"] if exported in WITH_KEYS else [])]
    return f"::: {place}\n    options:\n" + "\n".join(f"      {option}" for option in options)


def _filled(part: str) -> str:
    """Return a paragraph in lines; what is none (a heading, a table, a block) as it is."""
    if part.startswith(("#", "|", "```", ":::")):
        return part
    return textwrap.fill(part, PROSE_WIDTH, break_long_words=False, break_on_hyphens=False)


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    rule = "|" + "---|" * len(heads)
    return "\n".join(["| " + " | ".join(heads) + " |", rule, *("| " + " | ".join(row) + " |" for row in rows)])


def _escaped(text: str) -> str:
    """Return text for a cell of Markdown: what looks like a tag or a border stands for itself."""
    outside = _CODE.split(text)
    inside = _CODE.findall(text)
    plain = [part.replace("<", "\\<").replace("*", "\\*").replace("_", "\\_") for part in outside]
    joined = plain[0] + "".join(code + part for code, part in zip(inside, plain[1:], strict=True))
    return joined.replace("|", "\\|")


def main(folder: Path) -> None:
    """Write all pages."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")
        print(folder / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
