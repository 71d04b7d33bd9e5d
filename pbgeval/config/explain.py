"""The declarations of all keys -> the text of `kgeval-dist --help-config`."""

from __future__ import annotations

import difflib
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from pbgeval.config.schema import (
    GROUPS,
    OF_MODEL,
    TRAINING_KEYS,
    EntitySchema,
    EvalConfig,
    RelationSchema,
    default_of,
    keys_of,
    types_of,
)
from pbgeval.errors import ConfigError

_WIDTH = 80
_REQUIRED, _REQUIRED_BUT_OF_MODEL = "required", "required (not with model)"
_INTRODUCTION = """\
Config keys by group, with type, default and meaning. A config file is YAML, TOML or JSON with these keys; \
or Python with get_config(), which returns a dict of them or a pbgeval.EvalConfig, or with PyTorch-BigGraph's \
get_torchbiggraph_config(), which returns a dict. \
On the command line, -p KEY=VALUE overrides a key. Separate the items of a list with commas (hits_at=1,10), \
write none to unset a key, and use dots for nested keys (entities.user.num_partitions=4, \
relations.0.operator=diagonal). To search, add a word: kgeval-dist --help-config candidates."""

_OF_TRAINING = "training only (accepted and ignored):"

_NESTED: Mapping[str, tuple[type[attrs.AttrsInstance], str]] = {
    "entities": (EntitySchema, "entities.NAME."),
    "relations": (RelationSchema, "relations.INDEX."),
}


@attrs.frozen
class ExplainedKey:
    """A key as the documentation shows it."""

    name: str  # with its path: entities.NAME.dimension
    group: str
    type: str  # in words
    default: str  # as it is written on the command line; "required" if there is none
    help: str

    @property
    def is_required(self) -> bool:
        """Whether a config must set it, at least without `model`."""
        return self.default in (_REQUIRED, _REQUIRED_BUT_OF_MODEL)

    def __str__(self) -> str:
        """Write the entry of the key in the listing."""
        value = self.default if self.is_required else f"default {self.default}"
        body = textwrap.fill(self.help, _WIDTH - 6, break_on_hyphens=False)
        return f"  {self.name}: {self.type}, {value}\n{textwrap.indent(body, ' ' * 6)}"


def help_config(search: str = "") -> str:
    """Explain every key, or those whose name or meaning contains a text.

    Raises:
        ConfigError: there is none.
    """
    text = search.lower().replace("-", "_")
    found = [key for key in explained_keys() if text in f"{key.name} {key.help}".lower().replace("-", "_")]
    if not found:
        near = difflib.get_close_matches(text, [key.name for key in explained_keys()], n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "kgeval-dist --help-config lists all keys"
        raise ConfigError(f"--help-config {search}: no config key contains this text; {hint}")
    entries_of = {group: [str(key) for key in found if key.group == group] for group in GROUPS}
    listed = ["\n".join([f"{group}:", *entries]) for group, entries in entries_of.items() if entries]
    training = f"{_OF_TRAINING}\n{textwrap.indent(textwrap.fill(', '.join(TRAINING_KEYS), _WIDTH - 2), '  ')}"
    parts = listed if search else [textwrap.fill(_INTRODUCTION, _WIDTH), *listed, training]
    return "\n\n".join(parts) + "\n"


def meanings() -> dict[str, str]:
    """Return the help text of each key of a config."""
    return {name: spec.metadata["help"] for name, spec in keys_of(EvalConfig).items()}


def explained_keys(
    schema: type[attrs.AttrsInstance] = EvalConfig, prefix: str = "", group: str | None = None
) -> Iterator[ExplainedKey]:
    """Yield every key, as declared; the keys of `entities` and `relations` follow those, in the same group."""
    for name, spec in keys_of(schema).items():
        yield ExplainedKey(
            f"{prefix}{name}",
            group or spec.metadata["group"],
            _type_name(types_of(schema)[name]),
            _REQUIRED_BUT_OF_MODEL if not prefix and name in OF_MODEL else _write(default_of(spec)),
            spec.metadata["help"],
        )
        if name in _NESTED and not prefix:
            yield from explained_keys(*_NESTED[name], spec.metadata["group"])


def _write(default: object) -> str:
    if isinstance(default, list):
        return ",".join(map(str, default)) or "empty"
    return _REQUIRED if default is attrs.NOTHING else "none" if default is None else repr(default)


def _type_name(type_: Any) -> str:  # noqa: ANN401 (any annotation)
    origin, arguments = typing.get_origin(type_), typing.get_args(type_)
    if origin is types.UnionType:
        return " or ".join("none" if option is types.NoneType else _type_name(option) for option in arguments)
    if origin is list:
        return f"list of {_type_name(arguments[0])}"
    return f"dict of {_type_name(arguments[1])} by name" if origin is dict else str(type_.__name__)
