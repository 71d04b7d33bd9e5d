"""`KEY=VALUE` texts of the command line -> changes of a config's plain values.

KEY is dotted: `relations.0.operator`, `entities.user.num_partitions`. VALUE is read by the type of the key;
text that cannot be read stays text, so that structuring reports it like any other value of the wrong type.
"""

from __future__ import annotations

import os
import re
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from attrs import frozen

from pbgeval.config.faults import Fault, KeyPath, is_within, show, unknown_key
from pbgeval.config.schema import EvalConfig, keys_of

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


# Paths as a config gives them -> absolute paths of directories and files that exist.

# A base directory, and what it is called in a fault.
WORKING_DIRECTORY, CONFIG_FOLDER = "the working directory", "the config's folder"

_IS: Mapping[str, Callable[[str], bool]] = {
    "directory": os.path.isdir,
    "file": os.path.isfile,
    "file or directory": os.path.exists,
}
_MAY_BE_URLS = ("entity_path", "edge_paths", "checkpoint_path", "filter_paths", "train_paths")
_ARRAYS = ".npy"  # the end of the name of edges in one file, which a model of another system has
_NAMED_EDGES = re.compile(r"\.(tsv|txt|csv)(\.(gz|zst))?$|\.(parquet|pq)$", re.IGNORECASE)


def is_url(path: str) -> bool:
    """Tell a URL such as s3://bucket/prefix from a local path."""
    return "://" in path


def names_file_of_edges(path: str) -> bool:
    """Tell by its name whether a path of edges is a file of text or Parquet, not a folder of buckets."""
    return _NAMED_EDGES.search(path) is not None


@frozen
class Bases:
    """Where relative paths start: each place is tried in turn."""

    working_directory: Path
    of_file: tuple[tuple[Path, str], ...]  # for paths that the config file gives

    def of(self, path: KeyPath, overrides: Sequence[Override]) -> tuple[tuple[Path, str], ...]:
        """The bases for the path that is the value at `path`."""
        if any(override.sets(path) for override in overrides):
            return ((self.working_directory, WORKING_DIRECTORY),)
        return self.of_file


def resolve_paths(
    config: EvalConfig, bases: Bases, overrides: Sequence[Override], given: Collection[str] = ()
) -> tuple[EvalConfig, tuple[Fault, ...]]:
    """Make the paths of what is to be read absolute.

    Args:
        config: with paths as they were written.
        bases: where relative ones start.
        overrides: of the command line.
        given: keys that need name nothing, as it is handed in.

    Returns:
        The config with absolute paths, and a fault for each directory or file that was not found.
    """
    faults: list[Fault] = []

    def absolute(path: KeyPath, value: str, what: str = "directory") -> str:
        if is_url(value):
            if path[0] not in _MAY_BE_URLS:
                faults.append(Fault(path, f"expected a local {what}, got the URL {show(value)}; copy it here"))
            return value
        tried = list(_places(value, bases.of(path, overrides)))
        for place, _ in tried:
            if _IS[what](place):
                return place
        faults.append(Fault(path, _not_found(what, value, tried)))
        return value

    def each(key: str, values: Sequence[str]) -> list[str]:
        return [absolute((key, index), value, kind(value)) for index, value in enumerate(values)]

    def kind(value: str) -> str:
        if names_file_of_edges(value):
            return "file or directory"  # whoever calls a folder of buckets test.tsv may
        return "file" if of_model and value.endswith(_ARRAYS) else "directory"

    def unless_of_model(key: str, value: str) -> str:
        return value if not value and (of_model or key in given) else absolute((key,), value)

    of_model = config.model is not None or "checkpoint_path" in given
    candidates, groups, taxonomy = config.candidate_path, config.relation_groups, config.taxonomy_path
    dictionary, scratch = config.dictionary_path, config.scratch_path
    resolved = attrs.evolve(
        config,
        entity_path=unless_of_model("entity_path", config.entity_path),
        edge_paths=each("edge_paths", config.edge_paths),
        checkpoint_path=unless_of_model("checkpoint_path", config.checkpoint_path),
        model=None if config.model is None else absolute(("model",), config.model, "file or directory"),
        filter_paths=each("filter_paths", config.filter_paths),
        train_paths=each("train_paths", config.train_paths),
        candidate_path=None if candidates is None else absolute(("candidate_path",), candidates),
        relation_groups=None if groups is None else absolute(("relation_groups",), groups, "file"),
        dictionary_path=None if dictionary is None else absolute(("dictionary_path",), dictionary),
        taxonomy_path=None if taxonomy is None else absolute(("taxonomy_path",), taxonomy, "file"),
        scratch_path=None if scratch is None else absolute(("scratch_path",), scratch),
    )
    return resolved, tuple(faults)


def _places(value: str, bases: Sequence[tuple[Path, str]]) -> Iterator[tuple[str, str]]:
    """The absolute paths that a value may mean, each once, with the name of its base ("" for an absolute value)."""
    if not value:
        return
    seen: set[str] = set()
    for base, label in bases:
        place = os.path.abspath(base / value)
        if place not in seen:
            seen.add(place)
            yield place, "" if os.path.isabs(value) else f" (in {label})"


def _not_found(what: str, value: str, tried: Sequence[tuple[str, str]]) -> str:
    if not tried:
        return f"expected a {what}, got {show(value)}"
    if len(tried) == 1:
        place, label = tried[0]
        return f"expected a {what}; {place}{label} {'is none' if os.path.exists(place) else 'does not exist'}"
    return f"expected a {what}; found none at {' nor at '.join(place + label for place, label in tried)}"
