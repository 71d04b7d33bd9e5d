"""The file of `relation_groups` -> names of groups and of the relations in each."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from pbgeval.config.faults import show, wrong_type
from pbgeval.errors import ConfigError
from pbgeval.reading import read_bytes

_FORM = 'a JSON object such as {"family": ["parent_of", "child_of"]}'


def read_relation_groups(path: str | Path) -> dict[str, list[str]]:
    """Read named groups of relations; whether the relations exist is for the caller to see.

    A relation may be in several groups, or in none.

    Returns:
        The names of the relations of each group, as the file has them.

    Raises:
        ConfigError: The file cannot be read, is not JSON, or is not an object whose values are lists of strings.
    """
    try:
        groups = json.loads(read_bytes(Path(path)).decode("utf-8-sig"), object_pairs_hook=_without_repeats)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}:{error.lineno}:{error.colno}: not valid JSON: {error.msg}") from error
    except OSError as error:
        raise ConfigError(f"{path}: expected a file that can be read, got: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError included
        raise ConfigError(f"{path}: not valid JSON: {' '.join(str(error).split())}") from error
    if not isinstance(groups, dict) or not groups:
        raise ConfigError(f"{path}: expected {_FORM}, got {show(groups)}")
    for group, names in groups.items():
        _check_group(f"{path}: group {show(group)}", names)
    return groups


def _check_group(where: str, names: object) -> None:
    if not isinstance(names, list):
        raise ConfigError(f"{where}: {wrong_type('a list of names of relations', names)}")
    if not names:
        raise ConfigError(f"{where}: expected at least one relation, got []")
    for index, name in enumerate(names):
        if not isinstance(name, str):
            raise ConfigError(f"{where}: element {index}: {wrong_type('the name of a relation', name)}")


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Refuse a group that is there twice: JSON would keep the last and drop the other."""
    for name, count in Counter(name for name, _ in pairs).items():
        if count > 1:
            raise ValueError(f"the name {show(name)} is there {count} times")
    return dict(pairs)
