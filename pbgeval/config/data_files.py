"""A config file that is data (JSON, YAML or TOML) -> its plain values."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pbgeval.config.faults import read_json
from pbgeval.errors import ConfigError, required
from pbgeval.storage.text import show

Values = dict[Any, Any]


def is_data(source: Path) -> bool:
    """Tell whether a config file is data, by its name; any other is Python."""
    return source.suffix.lower() in _READERS


def read_data(source: Path, content: bytes) -> Values:
    """Return the values of a config file that is data.

    Raises:
        ConfigError: It is not of the format that its name says, or its values have no names; says where.
    """
    expected, read = _READERS[source.suffix.lower()]
    values = read(content, source.name)
    if not isinstance(values, dict):
        raise ConfigError(f"{source.name}: expected {expected}, got {show(values)}")
    return values


def read_yaml(content: bytes, where: str, purpose: str = "a YAML config") -> object:
    """Return what YAML says.

    Raises:
        ConfigError: PyYAML is not installed, or it is no YAML; says where.
    """
    with required(ConfigError, f"{where}: PyYAML is required to read {purpose}", "pyyaml"):
        import yaml
    try:
        return yaml.safe_load(content.decode("utf-8-sig"))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = "" if mark is None else f":{mark.line + 1}:{mark.column + 1}"
        raise ConfigError(f"{where}{place}: not valid YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # UnicodeDecodeError included
        raise ConfigError(f"{where}: not valid YAML: {' '.join(str(error).split())}") from error


def _read_toml(content: bytes, where: str) -> object:
    try:
        return tomllib.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:  # TOMLDecodeError and UnicodeDecodeError included
        raise ConfigError(f"{where}: not valid TOML: {' '.join(str(error).split())}") from error


_READERS: Mapping[str, tuple[str, Callable[[bytes, str], object]]] = {
    ".json": ("a JSON object", read_json),
    ".yaml": ("keys with values", read_yaml),
    ".yml": ("keys with values", read_yaml),
    ".toml": ("keys with values", _read_toml),
}
