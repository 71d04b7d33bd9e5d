"""The declarations of all keys -> the text of `kgeval-dist --help-config`."""

from __future__ import annotations

import textwrap
import types
import typing
from collections.abc import Iterator
from typing import Any

import attrs

from pbgeval.config.fields import GROUPS, default_of, keys_of
from pbgeval.config.schema import EntitySchema, EvalConfig, RelationSchema

_WIDTH = 100
_INTRODUCTION = """\
Keys of a config file, by group: type, default, meaning. A config file is Python with get_config(), which \
returns a pbgeval.EvalConfig, or with PyTorch-BigGraph's get_torchbiggraph_config(), which returns a dict; or JSON. \
On the command line: -p KEY=VALUE, with lists by comma (hits_at=1,10), none for an unset key, \
and dots into nested keys (entities.user.num_partitions=4, relations.0.operator=diagonal)."""


def help_config() -> str:
    """Explain every key."""
    parts = [textwrap.fill(_INTRODUCTION, _WIDTH)]
    for group in GROUPS:
        entries = [entry for name, entry in _entries() if name == group]
        parts.append("\n".join([f"{group}:", *entries]))
    return "\n\n".join(parts) + "\n"


def meanings() -> dict[str, str]:
    """Return the help text of each key of a config."""
    return {name: spec.metadata["help"] for name, spec in keys_of(EvalConfig).items()}


def _entries() -> Iterator[tuple[str, str]]:
    """Group and text of each key; the keys of `entities` and `relations` follow those, in the same group."""
    yield from _entries_of(EvalConfig, "")


def _entries_of(schema: type[attrs.AttrsInstance], prefix: str) -> Iterator[tuple[str, str]]:
    hints = typing.get_type_hints(schema)
    nested: dict[str, tuple[type[attrs.AttrsInstance], str]] = {
        "entities": (EntitySchema, "entities.NAME."),
        "relations": (RelationSchema, "relations.INDEX."),
    }
    for name, spec in keys_of(schema).items():
        default = default_of(spec)
        value = "required" if default is attrs.NOTHING else f"default {_write(default)}"
        heading = f"  {prefix}{name}: {_type_name(hints[name])}, {value}"
        body = textwrap.fill(spec.metadata["help"], _WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)
        yield spec.metadata["group"], f"{heading}\n{body}"
        if not prefix and name in nested:
            group = spec.metadata["group"]
            yield from ((group, entry) for _, entry in _entries_of(*nested[name]))


def _write(default: object) -> str:
    if isinstance(default, list):
        return ",".join(map(str, default)) or "empty"
    return "none" if default is None else repr(default)


def _type_name(type_: Any) -> str:  # noqa: ANN401 (any annotation)
    origin, arguments = typing.get_origin(type_), typing.get_args(type_)
    if origin is types.UnionType:
        return " or ".join("none" if option is types.NoneType else _type_name(option) for option in arguments)
    if origin is list:
        return f"list of {_type_name(arguments[0])}"
    if origin is dict:
        return f"dict of {_type_name(arguments[1])} by name"
    return str(type_.__name__)
