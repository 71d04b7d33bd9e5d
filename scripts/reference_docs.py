"""The code's own declarations -> pages of docs/reference: config keys, metrics, command line, Python.

    .venv/bin/python -m scripts.reference_docs            # writes them
    .venv/bin/python -m scripts.reference_docs FOLDER     # elsewhere

`tests/surface/test_reference_docs.py` fails where the committed pages are not what this writes.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import attrs
import typer
from typer.core import TyperGroup
from typer.testing import CliRunner

import pbgeval
from pbgeval import EntitySchema, EvalConfig, RelationSchema
from pbgeval.cli import app
from pbgeval.config.explain import ExplainedKey, explained_keys
from pbgeval.config.schema import GROUPS
from pbgeval.metrics.registry import Definition
from pbgeval.report.metric_list import DIRECTIONS, K, listed_metrics, synonyms_of

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "reference"
COMMAND = "kgeval-dist"
WIDTH = 100  # of help texts
PROSE_WIDTH = 140
PYTHON_WIDTH = 120
_MADE = "<!-- Made by python -m scripts.reference_docs: change the code that it is made from, not this page. -->"
_OF_CONFIG = """\
Made from `pbgeval/config/schema.py`; `kgeval-dist --help-config` prints the same. A config file is Python with
`get_config()`, which returns a `pbgeval.EvalConfig`, or with PyTorch-BigGraph's `get_torchbiggraph_config()`, which
returns a dict; or JSON. On the command line `-p KEY=VALUE` overrides a key: lists by comma (`hits_at=1,10`), `none` for
an unset key, dots into nested keys (`entities.user.num_partitions=4`, `relations.0.operator=diagonal`)."""
_OF_METRICS = """\
Made from `pbgeval/metrics/registry.py`; `kgeval-dist metrics` prints the same, `kgeval-dist
metrics NAME` one of them, by any of its names. [metrics.md](../metrics.md) says what is behind them: rank types,
filters, averages, samples."""
_LETTERS = f"""\
r: rank; C: number of candidates, the true entity included; p: share of the query's weight (1/n without weights); M, E,
sd: the metric named, its expectation and standard deviation by chance; H₁: harmonic number. Families stand
with k = {K}. Keys of `metrics.json` are `<side>.<rank type>.<metric>`, or `<side>.<metric>` for those that know no
ranks."""
_OF_COMMANDS = """\
Made from `pbgeval/cli.py`: what `--help` prints. Exit status: 0 complete; 1 a
fault of the input, a line each on stderr; 75 incomplete: the same command goes on."""
_COMMENT = re.compile(r"  # (.+)$", re.MULTILINE)
_OF_PYTHON = """\
Made from the docstrings of what `pbgeval` exports. Each name is imported when it is first used, so `import pbgeval`
costs nothing. The README has examples ("From Python", "While a model trains"); keys of `EvalConfig`, `EntitySchema` and
`RelationSchema` are those of [config.md](config.md)."""
# What is asked for first stands first; a test compares with `pbgeval.__all__`.
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
    "While a model trains": ("Monitor", "ModelSchema", "MonitoredRelation", "ModelTensors"),
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
    return {name: f"{_MADE}\n\n" + "\n\n".join(map(_filled, parts)).rstrip() + "\n" for name, parts in made.items()}


def _config() -> list[str]:
    keys = list(explained_keys())
    parts = ["# Config keys", _OF_CONFIG]
    for group in GROUPS:
        rows = [_config_row(key) for key in keys if key.group == group]
        parts += [f"## {group.capitalize()}", _table(("key", "type", "default", "meaning"), rows)]
    return parts


def _config_row(key: ExplainedKey) -> tuple[str, ...]:
    default = key.default if key.default in ("required", "empty", "none") else f"`{key.default}`"
    return f"`{key.name}`", key.type, default, _escaped(key.help)


def _metrics() -> list[str]:
    heads = ("metric", "definition", "range, better", "by chance", "synonyms", "source")
    return ["# Metrics", _OF_METRICS, _LETTERS, _table(heads, map(_metric_row, listed_metrics()))]


def _metric_row(metric: Definition) -> tuple[str, ...]:
    better = ", ".join(filter(None, [metric.range.text, DIRECTIONS[metric.direction]]))
    synonyms = ", ".join(synonyms_of(metric))
    cells = (f"`{metric.name}`", metric.formula, better, metric.chance.text, synonyms, metric.source)
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
    """Return the parts of the page."""
    parts = ["# Python", _OF_PYTHON]
    for group, names in EXPORTED.items():
        parts.append(f"## {group}")
        for name in names:
            parts += [f"### {name}", "```text\n" + "\n\n".join(_object(name)) + "\n```"]
    return parts


def _object(name: str) -> Iterator[str]:
    """Yield an object's signature with its docstring, then its fields, and what it can do."""
    exported = getattr(pbgeval, name)
    has_arguments = exported not in WITH_KEYS and not getattr(exported, "_is_protocol", False)
    yield _callable(name, exported, arguments="" if has_arguments else "...")
    if not inspect.isclass(exported) or exported in WITH_KEYS:
        return
    if attrs.has(exported):
        yield textwrap.indent("\n".join(_fields_of(exported)), "    ")
    elif inspect.isfunction(constructor := vars(exported).get("__init__")) and has_arguments:
        yield textwrap.indent(inspect.getdoc(constructor) or "", "    ")
    for member, value in vars(exported).items():
        function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if member.startswith("_") and member != "__getitem__":
            continue
        if isinstance(value, property):
            yield f"{name}.{member}\n{textwrap.indent(inspect.getdoc(value) or '', '    ')}".rstrip()
        elif inspect.isfunction(function) and function.__doc__:
            yield _callable(f"{name}.{member}", function)


def _fields_of(made: type) -> Iterator[str]:
    """Yield what a class is made of: names, types, plain defaults, and the comments that say what that is."""
    source = inspect.cleandoc(inspect.getsource(made))
    (tree,) = ast.parse(source).body
    assert isinstance(tree, ast.ClassDef)
    for node in tree.body:
        if not isinstance(node, ast.AnnAssign) or "init=False" in ast.unparse(node):
            continue
        declared = f"{ast.unparse(node.target)}: {ast.unparse(node.annotation)}"
        if isinstance(node.value, ast.Constant | ast.Tuple):
            declared += f" = {ast.unparse(node.value)}"
        lines = source.splitlines()[max(node.lineno - 2, 0) : node.end_lineno]
        above = [lines[0].strip().removeprefix("# ")] if lines[0].strip().startswith("#") else []
        yield "  # ".join([declared, *above, *_COMMENT.findall("\n".join(lines[1:]))])


def _callable(name: str, what: Callable[..., object], *, arguments: str = "") -> str:
    call = f"{name}({arguments or ', '.join(_arguments(what))})"
    head = textwrap.fill(call, PYTHON_WIDTH, subsequent_indent=8 * " ", break_on_hyphens=False)
    return f"{head}\n{textwrap.indent(inspect.getdoc(what) or '', '    ')}".rstrip()


def _arguments(what: Callable[..., object]) -> Iterator[str]:
    """Yield arguments with their defaults, without types: those stand in the docstrings."""
    is_keyword_only = False
    for parameter in inspect.signature(what).parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not is_keyword_only:
            is_keyword_only = True
            yield "*"
        stars = "*" * (parameter.kind is parameter.VAR_POSITIONAL) + "**" * (parameter.kind is parameter.VAR_KEYWORD)
        default = parameter.default
        if default is parameter.empty:
            yield f"{stars}{parameter.name}"
        elif default in (None, ()) or isinstance(default, bool | int | float | str):
            yield f"{parameter.name}={default!r}"
        else:
            yield f"{parameter.name}=..."


def _filled(part: str) -> str:
    """Return a paragraph in lines; what is none (a heading, a table, a block) as it is."""
    if part.startswith(("#", "|", "```")):
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
