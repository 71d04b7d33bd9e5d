"""Faults of a configuration -> one line each: where, what was expected, what was found."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from attrs import field, frozen

from pbgeval.config.schema import EvalConfig
from pbgeval.errors import ConfigError
from pbgeval.storage.json_files import RepeatedNameError, once_each
from pbgeval.storage.text import one_line, read_bytes, show

# A place in a config: names of keys, indices of lists, names of entity types.
KeyPath: TypeAlias = tuple[str | int, ...]


def _path(key: str | KeyPath) -> KeyPath:
    return (key,) if isinstance(key, str) else key


def _paths(keys: Iterable[str | KeyPath]) -> tuple[KeyPath, ...]:
    return tuple(map(_path, keys))


@frozen
class Fault:
    """One thing that is wrong with a config. A key that is no part of another may be a text."""

    path: KeyPath = field(converter=_path)  # the key that the user should look at
    message: str  # expected, found, what to do
    involved: tuple[KeyPath, ...] = field(default=(), converter=_paths)  # other keys whose values make it a fault

    def __str__(self) -> str:
        """Write the place, as `entities['user'].num_partitions` or `relations[1].operator`, then the message."""
        parts = (
            f"[{part!r}]" if isinstance(part, int) or (at == 1 and self.path[0] == "entities") else f".{part}"
            for at, part in enumerate(self.path)
        )
        return f"{''.join(parts).removeprefix('.')}: {self.message}"


Check: TypeAlias = Callable[[EvalConfig], Iterator[Fault]]


def read_json(content: bytes, where: object) -> Any:  # noqa: ANN401 (what the text says)
    """Return what JSON of UTF-8 says, with or without a byte order mark.

    Raises:
        ConfigError: It is no JSON, or a name occurs twice; says where.
    """
    try:
        return json.loads(content.decode("utf-8-sig"), object_pairs_hook=once_each)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where}:{error.lineno}:{error.colno}: not valid JSON: {error.msg}") from error
    except RepeatedNameError as error:
        raise ConfigError(f"{where}: {one_line(error)}") from error
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError included
        raise ConfigError(f"{where}: not valid JSON: {one_line(error)}") from error


def rule(key: str, is_wrong: Callable[[EvalConfig], object], message: str, *involved: str) -> Check:
    """Make a check of one key.

    Args:
        key: the key that the user should look at.
        is_wrong: tells whether its value is wrong.
        message: may name `{found}` and `{length}` of the key, and `{config.KEY}`.
        involved: other keys whose values make it wrong.
    """

    def check(config: EvalConfig) -> Iterator[Fault]:
        if is_wrong(config):
            value = getattr(config, key)
            length = len(value) if isinstance(value, list) else None
            yield Fault(key, message.format(config=config, found=show(value), length=length), involved)

    return check


def is_within(path: KeyPath, outer: KeyPath) -> bool:
    """Check whether `path` is `outer` or lies inside it."""
    return path[: len(outer)] == outer


def wrong_type(expected: str, value: object) -> str:
    """Return the message for a value of the wrong type."""
    return f"expected {expected}, got {show(value)}{'' if value is None else f' ({type(value).__name__})'}"


def not_one_of(choices: Iterable[str], value: object) -> str:
    """Return the message for a value that is not one of the choices."""
    return f"expected one of {', '.join(choices)}, got {show(value)}"


# A file of named groups of relations.


def read_relation_groups(path: str | Path) -> dict[str, list[str]]:
    """Read the named groups of relations of the key `relation_groups`.

    A relation may be in several groups, or in none. Whether the relations exist is not checked.

    Returns:
        The names of the relations of each group, as the file has them.

    Raises:
        ConfigError: The file cannot be read, is not JSON, or is not an object whose values are lists of strings.
    """
    try:
        groups = read_json(read_bytes(Path(path)), path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the file: {error.strerror or error}") from error
    if not isinstance(groups, dict) or not groups:
        raise ConfigError(
            f'{path}: expected a JSON object such as {{"family": ["parent_of", "child_of"]}}, got {show(groups)}'
        )
    for group, names in groups.items():
        where = f"{path}: group {show(group)}"
        if not isinstance(names, list):
            raise ConfigError(f"{where}: {wrong_type('a list of names of relations', names)}")
        if not names:
            raise ConfigError(f"{where}: needs at least one relation")
        for index, name in enumerate(names):
            if not isinstance(name, str):
                raise ConfigError(f"{where}: element {index}: {wrong_type('the name of a relation', name)}")
    return groups
