"""`KEY=VALUE` texts of the command line -> changes of a config's plain values.

KEY is dotted: `relations.0.operator`, `entities.user.num_partitions`. VALUE is read by the type of the key;
text that cannot be read stays text, so that structuring reports it like any other value of the wrong type.
"""

from __future__ import annotations

import json
import os
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import attrs

from pbgeval.config.faults import Fault, KeyPath
from pbgeval.config.schema import TRAINING_KEYS, EvalConfig, keys_of, types_of, unknown_key, without_none
from pbgeval.errors import ConfigError
from pbgeval.storage.text import edge_file_type, is_url, names_file_of_edges, nearest_path, show, unknown_extension

_BOOLS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_NONE = frozenset({"", "none", "null"})
# Of any kind (JSON, or text) where the type is dict or object.
_READERS: Mapping[object, Callable[[str], Any]] = {int: int, float: float, dict: json.loads, object: json.loads}


def apply_override(raw: dict[Any, Any], text: str, *, adds_types: bool = False) -> KeyPath:
    """Change `raw` in place as `KEY=VALUE` says; return the place.

    Args:
        raw: the plain values of a config.
        text: what to change.
        adds_types: whether an entity type that `raw` lacks is added, as a model says which types there are.

    Raises:
        ConfigError: If the text has no `=`, the key is unknown, or an index or entity type does not exist.
    """
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError("expected KEY=VALUE, for example -p candidates=all")
    path, type_ = _resolve(key.strip())
    owner: Any = raw
    if adds_types and path[0] == "entities":
        raw["entities"] = {path[1]: {"num_partitions": 1}} | (raw.get("entities") or {})
    for depth, part in enumerate(path[:-1]):
        if type_ is object and isinstance(owner, dict):
            owner.setdefault(part, {})
        owner = _step(owner, part, path[: depth + 1])
    if isinstance(owner, list):
        _step(owner, path[-1], path)
    elif not isinstance(owner, dict):
        raise ConfigError(f"cannot set a key of {show(owner)}")
    owner[path[-1]] = _read(value, type_)
    return path


def _resolve(key: str) -> tuple[KeyPath, object]:
    """Find the place that a dotted key names, and its type."""
    head, *rest = key.split(".")
    if head not in keys_of(EvalConfig) and head not in TRAINING_KEYS:
        raise ConfigError(unknown_key(head, keys_of(EvalConfig)))
    type_ = types_of(EvalConfig).get(head, str)
    container = typing.get_origin(without_none(type_))
    element = typing.get_args(without_none(type_))[-1] if container in (list, dict) else None
    if element is not None and attrs.has(element):
        of_list = container is list
        # The name of an entity type may have dots; its keys have none.
        owner: KeyPath = tuple(map(_index, rest[:-1])) if of_list else (".".join(rest[:-1]),)
        if len(owner) != 1 or owner[0] == "":
            raise ConfigError(f"{head} has nested keys: write {head}.{'INDEX' if of_list else 'NAME'}.KEY=VALUE")
        if rest[-1] not in keys_of(element):
            raise ConfigError(unknown_key(rest[-1], keys_of(element)))
        return (head, *owner, rest[-1]), types_of(element)[rest[-1]]
    if element is object and rest and all(rest):  # the name of an entity type may have dots
        return (head, *filter(None, (rest[0], ".".join(rest[1:])))), element
    if element is not None and len(rest) == 1:
        return (head, _index(rest[0])), element
    if rest:
        raise ConfigError(f"{head} has no key {'.'.join(rest)!r}")
    return (head,), type_


def _index(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise ConfigError(f"expected an index (0, 1, ...), got {show(text)}")
    return int(text)


def _step(owner: object, part: str | int, path: KeyPath) -> object:
    if isinstance(owner, dict) and part in owner:
        return owner[part]
    if isinstance(owner, list) and isinstance(part, int):
        if part < len(owner):
            return owner[part]
        raise ConfigError(f"{path[0]} has {len(owner)} elements, numbered from 0")
    if isinstance(owner, dict) and len(path) == 2:
        raise ConfigError(
            f"unknown entity type; expected one of {', '.join(map(str, owner))}"
            if owner
            else f"{path[0]} is empty; set it in the config file: {{{part!r}: {{'num_partitions': 1}}}}"
        )
    raise ConfigError(f"{path[0]} is not set by the config file, or has the wrong form")


def _read(text: str, type_: object) -> object:
    """Read a value by its type; text that cannot be read is returned as it is."""
    required = without_none(type_)
    word = text.strip().lower()
    kind = typing.get_origin(required) or required
    if kind is dict and word in _NONE:
        return {}
    if type_ != required and word in _NONE:
        # An empty list is no unset key: a restriction to nothing must not pass as none at all.
        return [] if kind is list and not word else None
    if kind is list:
        items = [] if word == "[]" or word in _NONE else text.split(",")
        return [_read(item, typing.get_args(required)[0]) for item in items]
    if kind is bool:
        return _BOOLS.get(word, text)
    with suppress(ValueError, RecursionError):
        return _READERS.get(kind, str)(text)
    return text


# Paths as a config gives them -> absolute paths of directories and files that exist.

Bases: TypeAlias = Sequence[tuple[Path, str]]  # directories to try in turn, each with what it is called in a fault
WORKING_DIRECTORY, CONFIG_FOLDER = "the working directory", "the config's folder"

_IS: Mapping[str, Callable[[str], bool]] = {
    "directory": os.path.isdir,
    "file": os.path.isfile,
    "file or directory": os.path.exists,
}
_PATHS = {
    "entity_path": "directory",
    "edge_paths": "directory",
    "checkpoint_path": "directory",
    "model": "file or directory",
    "filter_paths": "directory",
    "train_paths": "directory",
    "candidate_path": "directory",
    "relation_groups": "file",
    "dictionary_path": "directory",
    "scratch_path": "directory",
}
_OF_MODEL = ("entity_path", "checkpoint_path")  # which may be empty where there is a model
_MAY_BE_URLS = ("entity_path", "edge_paths", "checkpoint_path", "filter_paths", "train_paths")
_ARRAYS = ".npy"  # the end of the name of edges in one file, which a model of another system has


def resolve_paths(
    config: EvalConfig, bases_of: Callable[[KeyPath], Bases], *, has_model: bool
) -> tuple[EvalConfig, list[Fault]]:
    """Make the paths of what is to be read absolute.

    Args:
        config: with paths as they were written.
        bases_of: where the relative path at a place in the config may start.
        has_model: whether another system's model stands for a checkpoint.

    Returns:
        The config with absolute paths, and a fault for each directory or file that was not found.
    """
    faults: list[Fault] = []

    def absolute(path: KeyPath, value: str, what: str) -> str:
        if is_url(value):
            if path[0] not in _MAY_BE_URLS:
                faults.append(Fault(path, f"must be a local {what}, but {show(value)} is a URL; copy it here"))
            return value
        tried: dict[str, str] = {}  # absolute paths that the value may mean, with the names of their bases
        for base, label in bases_of(path) if value else ():
            tried.setdefault(
                os.path.abspath(base / value), "" if os.path.isabs(value) else f" ({value}, relative to {label})"
            )
        is_of_edges = len(path) > 1
        found = next(filter(_IS[what], tried), None) or next(
            filter(names_file_of_edges, tried if is_of_edges and what == "directory" else ()), None
        )
        if found is None:
            faults.append(Fault(path, _not_found(what, value, tried, may_be_file=is_of_edges)))
        return value if found is None else found

    resolved: dict[str, Any] = {}
    for key, what in _PATHS.items():
        value = getattr(config, key)
        if isinstance(value, list):
            resolved[key] = [
                absolute((key, index), one, _kind_of_edges(one, has_model=has_model)) for index, one in enumerate(value)
            ]
        elif value is not None and (value or key not in _OF_MODEL or not has_model):
            resolved[key] = absolute((key,), value, what)
    return attrs.evolve(config, **resolved), faults


def _kind_of_edges(value: str, *, has_model: bool) -> str:
    if names_file_of_edges(value):
        return "file or directory"  # a folder of buckets may be called test.tsv
    return "file" if has_model and value.endswith(_ARRAYS) else "directory"


def _not_found(what: str, value: str, tried: Mapping[str, str], *, may_be_file: bool) -> str:
    if not tried:
        return f"expected the path of a {what}, got {show(value)}"
    places = [place + label for place, label in tried.items()]
    if len(tried) == 1 and os.path.exists(next(iter(tried))):
        if may_be_file and os.path.splitext(value)[1]:
            path = next(iter(tried))
            return unknown_extension(path).replace(path, places[0], 1)
        return f"{places[0]} is not a {what}"
    is_meant = _IS[what]
    if may_be_file and what == "directory" and os.path.splitext(value)[1]:  # edges in a file with a slip in its name
        what, is_meant = "file or directory", lambda place: os.path.isdir(place) or bool(edge_file_type(place))
    near = next(filter(None, (nearest_path(place, is_meant) for place in tried)), None)
    hint = f"; did you mean {os.path.join(os.path.dirname(value), near)!r}?" if near else ""
    return f"no such {what}: {' or '.join(places)}{hint}"
