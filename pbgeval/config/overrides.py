"""`KEY=VALUE` texts of the command line -> changes of a config's plain values.

KEY is dotted: `relations.0.operator`, `entities.user.num_partitions`. VALUE is read by the type of the key;
text that cannot be read stays text, so that structuring reports it like any other value of the wrong type.
"""

from __future__ import annotations

import types
import typing
from typing import Any

import attrs
from attrs import frozen

from pbgeval.config.faults import KeyPath, is_within, show, unknown_key
from pbgeval.config.fields import keys_of
from pbgeval.config.schema import EvalConfig

_BOOLS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_NONE = frozenset({"", "none", "null"})


class OverrideError(Exception):
    """An override that cannot be applied; the message says why."""


@frozen
class Override:
    """One `KEY=VALUE` that was applied."""

    text: str
    path: KeyPath

    def sets(self, path: KeyPath) -> bool:
        """Tell whether the value at `path` comes from this override."""
        return is_within(path, self.path)


def apply_override(raw: dict[Any, Any], text: str) -> Override:
    """Change `raw` in place as `KEY=VALUE` says.

    Raises:
        OverrideError: If the text has no `=`, the key is unknown, or an index or entity type does not exist.
    """
    key, equals, value = text.partition("=")
    if not equals:
        raise OverrideError("expected KEY=VALUE, found no '='")
    path, type_ = _resolve(key.strip())
    owner: Any = raw
    for depth, part in enumerate(path[:-1]):
        owner = _step(owner, part, path[: depth + 1])
    if isinstance(owner, list):
        _step(owner, path[-1], path)
    elif not isinstance(owner, dict):
        raise OverrideError(f"cannot set a key of {show(owner)}")
    owner[path[-1]] = _read(value, type_)
    return Override(text, path)


def _resolve(key: str) -> tuple[KeyPath, object]:
    """Find the place that a dotted key names, and its type."""
    head, *rest = key.split(".")
    if head not in keys_of(EvalConfig):
        raise OverrideError(unknown_key(head, keys_of(EvalConfig)))
    type_ = typing.get_type_hints(EvalConfig)[head]
    if typing.get_origin(type_) is dict:
        entity_type = ".".join(rest[:-1])  # the name may have dots; keys of an entity type have none
        return _resolve_nested((head, entity_type), rest[-1:], typing.get_args(type_)[1], f"{head}.NAME.KEY=VALUE")
    element = _element_type(type_)
    if element is not None and attrs.has(element):
        return _resolve_nested((head, *map(_index, rest[:-1])), rest[-1:], element, f"{head}.INDEX.KEY=VALUE")
    if element is not None and len(rest) == 1:
        return (head, _index(rest[0])), element
    if rest:
        raise OverrideError(f"{head} has no key {'.'.join(rest)!r}")
    return (head,), type_


def _resolve_nested(
    owner: KeyPath, last: list[str], schema: type[attrs.AttrsInstance], form: str
) -> tuple[KeyPath, object]:
    if len(owner) != 2 or owner[1] == "" or not last:
        raise OverrideError(f"set a nested key: {form}")
    if last[0] not in keys_of(schema):
        raise OverrideError(unknown_key(last[0], keys_of(schema)))
    return (*owner, last[0]), typing.get_type_hints(schema)[last[0]]


def _element_type(type_: object) -> Any:  # noqa: ANN401 (a type, or None)
    required = _without_none(type_)
    return typing.get_args(required)[0] if typing.get_origin(required) is list else None


def _index(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise OverrideError(f"expected an index, a number from 0, got {show(text)}")
    return int(text)


def _step(owner: object, part: str | int, path: KeyPath) -> object:
    if isinstance(owner, dict) and part in owner:
        return owner[part]
    if isinstance(owner, list) and isinstance(part, int):
        if part < len(owner):
            return owner[part]
        raise OverrideError(f"index out of range; {path[0]} has {len(owner)} elements, numbered from 0")
    if isinstance(owner, dict) and len(path) == 2:
        raise OverrideError(f"unknown entity type; expected one of {', '.join(map(str, owner))}")
    raise OverrideError(f"{path[0]} is not set by the config file, or not as it should be")


def _read(text: str, type_: object) -> object:
    """Read a value by its type; text that cannot be read is returned as it is."""
    required = _without_none(type_)
    if type_ != required and text.strip().lower() in _NONE:
        # An empty list is no unset key: a restriction to nothing must not pass as none at all.
        return [] if typing.get_origin(required) is list and not text.strip() else None
    if typing.get_origin(required) is list:
        element = typing.get_args(required)[0]
        return [_read(item, element) for item in text.split(",")] if text else []
    if required is bool:
        return _BOOLS.get(text.strip().lower(), text)
    if required is int or required is float:
        try:
            return required(text)
        except ValueError:
            return text
    return text


def _without_none(type_: object) -> object:
    """Drop `None` from a union of one type and None."""
    if typing.get_origin(type_) is types.UnionType:
        return next(option for option in typing.get_args(type_) if option is not types.NoneType)
    return type_
