"""What `import pbgeval` offers -> a page of Markdown: signatures and docstrings, as `help()` shows them.

`scripts/reference_docs.py` writes it with the other pages of docs/reference.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator

import attrs

import pbgeval
from pbgeval import EntitySchema, EvalConfig, RelationSchema

WIDTH = 120
_COMMENT = re.compile(r"  # (.+)$", re.MULTILINE)
_OF_PYTHON = """\
Made from the docstrings of what `pbgeval` exports. Each name is imported when it is first used, so `import pbgeval`
costs nothing. The README has examples ("From Python", "While a model trains"); keys of `EvalConfig`, `EntitySchema` and
`RelationSchema` are those of [config.md](config.md)."""
# What is asked for first stands first; a test compares with `pbgeval.__all__`.
GROUPS = {
    "An evaluation": (
        "load_config",
        "EvalConfig",
        "EntitySchema",
        "RelationSchema",
        "evaluate",
        "RunOptions",
        "Report",
    ),
    "A model of your own": ("Edges", "edge_scorer", "side_scorer", "batch_scorer", "Scorer"),
    "Two runs": ("compare", "Comparison"),
    "While a model trains": ("Monitor", "ModelSchema", "MonitoredRelation", "ModelTensors"),
}
OF_CONFIG = (EvalConfig, EntitySchema, RelationSchema)  # config.md has their keys


def python_page() -> list[str]:
    """Return the parts of the page."""
    parts = ["# Python", _OF_PYTHON]
    for group, names in GROUPS.items():
        parts.append(f"## {group}")
        for name in names:
            parts += [f"### {name}", "```text\n" + "\n\n".join(_shown(name)) + "\n```"]
    return parts


def _shown(name: str) -> Iterator[str]:
    """Yield an object's signature with its docstring, then its fields, and what it can do."""
    exported = getattr(pbgeval, name)
    has_arguments = exported not in OF_CONFIG and not getattr(exported, "_is_protocol", False)
    yield _described(name, exported, arguments="" if has_arguments else "...")
    if not inspect.isclass(exported) or exported in OF_CONFIG:
        return
    if attrs.has(exported):
        yield textwrap.indent("\n".join(_fields(exported)), "    ")
    elif inspect.isfunction(constructor := vars(exported).get("__init__")) and has_arguments:
        yield textwrap.indent(inspect.getdoc(constructor) or "", "    ")
    for member, value in vars(exported).items():
        function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if member.startswith("_") and member != "__getitem__":
            continue
        if isinstance(value, property):
            yield f"{name}.{member}\n{textwrap.indent(inspect.getdoc(value) or '', '    ')}".rstrip()
        elif inspect.isfunction(function) and function.__doc__:
            yield _described(f"{name}.{member}", function)


def _fields(made: type) -> Iterator[str]:
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


def _described(name: str, what: Callable[..., object], *, arguments: str = "") -> str:
    call = f"{name}({arguments or ', '.join(_arguments(what))})"
    head = textwrap.fill(call, WIDTH, subsequent_indent=8 * " ", break_on_hyphens=False)
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
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        default = parameter.default
        if default is parameter.empty:
            yield f"{stars}{parameter.name}"
        elif default is None or isinstance(default, bool | int | float | str):
            yield f"{parameter.name}={default!r}"
        else:
            yield f"{parameter.name}=..."
