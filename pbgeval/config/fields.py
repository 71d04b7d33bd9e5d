"""How a key is declared: its default, the group it is listed in, its help text; and how declarations are read back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
from attrs import field

GRAPH, MODEL, EVALUATION, OUTPUT = "graph", "model", "evaluation", "output"
TRAINING = "training only (ignored)"
GROUPS = (GRAPH, MODEL, EVALUATION, OUTPUT, TRAINING)

NOT_A_KEY = {"not_a_key": True}  # metadata of a field that no config file sets


def about(group: str, text: str) -> dict[str, str]:
    """Metadata of a key: the group it is listed in and its help text."""
    return {"group": group, "help": text}


def required(group: str, text: str) -> dict[str, object]:
    """Metadata of a key that a config must set; in Python it may be blank where a model or edges are handed in."""
    return {**about(group, text), "required": True}


def key(default: object, group: str, text: str) -> Any:  # noqa: ANN401 (attrs takes the type from the annotation)
    """A key with an immutable default."""
    return field(default=default, metadata=about(group, text))


def keys_of(schema: type[attrs.AttrsInstance]) -> dict[str, attrs.Attribute[Any]]:
    """The keys that a config file may set in a schema class, in order."""
    return {name: spec for name, spec in attrs.fields_dict(schema).items() if "not_a_key" not in spec.metadata}


def default_of(spec: attrs.Attribute[Any]) -> object:
    """The default of a key; `attrs.NOTHING` if a config must set it."""
    if "required" in spec.metadata:
        return attrs.NOTHING
    factory: Callable[[], object] | None = getattr(spec.default, "factory", None)
    return spec.default if factory is None else factory()
