"""A config file and overrides -> a checked `EvalConfig` with absolute paths, or every fault at once."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import attrs
from attrs import frozen

from pbgeval.config.checks import find_faults
from pbgeval.config.faults import Fault, show, wrong_type
from pbgeval.config.fields import TRAINING, default_of, keys_of
from pbgeval.config.models import Given, with_form, with_model_of_path
from pbgeval.config.overrides import Override, OverrideError, apply_override
from pbgeval.config.paths import CONFIG_FOLDER, WORKING_DIRECTORY, Bases, resolve_paths
from pbgeval.config.python_file import run_python_file
from pbgeval.config.schema import EvalConfig
from pbgeval.config.structure import Structured, plain, structure
from pbgeval.errors import ConfigError
from pbgeval.reading import read_bytes


@frozen
class _Document:
    """What a config file says, before types are checked."""

    raw: dict[Any, Any]
    is_ours: bool  # it comes from get_config(), not from a PBG dict


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> EvalConfig:
    """Load a config file, apply `KEY=VALUE` overrides, check everything.

    The file is Python with `get_config()`, which returns an `EvalConfig`, or with PBG's `get_torchbiggraph_config()`,
    which returns a dict; or JSON (a name that ends in .json).

    Raises:
        ConfigError: With all faults, a line each, which starts with the name of the file or with `-p KEY=VALUE`.
    """
    source = Path(os.path.abspath(path))
    working_directory = Path.cwd()
    document = _read_document(source, str(path))
    raw = document.raw
    if _is_in_checkpoint(source):
        raw["checkpoint_path"] = str(source.parent)
    applied, lines = _apply_overrides(raw, overrides)
    ignored = _ignored_keys(document)

    structured = structure(raw)
    bases = [(source.parent, CONFIG_FOLDER)]
    if not document.is_ours:
        bases.insert(0, (working_directory, WORKING_DIRECTORY))
    config, missing = resolve_paths(structured.config, Bases(working_directory, tuple(bases)), applied)
    config, of_model = with_model_of_path(config)
    missing = (*missing, *of_model)
    lines += [_line(fault, source.name, applied) for fault in _all_faults(structured, config, missing)]
    if lines:
        raise ConfigError(*(" ".join(line.split()) for line in lines))
    return attrs.evolve(config, name=_name(source), source=source, ignored=ignored)


def check_config(config: EvalConfig, given: Given | None = None) -> EvalConfig:
    """Check a config that was made in Python; relative paths are relative to the working directory.

    Args:
        config: what was made.
        given: what is handed in, in place of what the config's paths would name.

    Raises:
        ConfigError: With all faults, a line each.
    """
    structured = structure(_plain_dict(config))
    here = Path.cwd()
    given = given or Given()
    bases = Bases(here, ((here, WORKING_DIRECTORY),))
    resolved, missing = resolve_paths(given.blanked(structured.config), bases, [], given.paths)
    resolved, of_model = with_model_of_path(resolved) if given.form is None else with_form(resolved, given.form)
    faults = _all_faults(structured, given.named(resolved), (*missing, *given.faults(config), *of_model))
    resolved = given.named(resolved)
    if faults:
        raise ConfigError(*(" ".join(str(fault).split()) for fault in faults))
    return attrs.evolve(resolved, name=config.name, ignored=config.ignored)


def _all_faults(structured: Structured, config: EvalConfig, missing: Iterable[Fault]) -> list[Fault]:
    """Faults of types, then those of values; a value that only stands in for a faulty one is not blamed."""
    consequences = [*find_faults(config), *missing]
    return [*structured.faults, *(fault for fault in consequences if not structured.is_blank(fault))]


def _read_document(source: Path, shown: str) -> _Document:
    try:
        content = read_bytes(source)
    except FileNotFoundError:
        raise ConfigError(f"{shown}: no such config file") from None
    except IsADirectoryError:
        hint = "; did you mean its config.json?" if (source / "config.json").is_file() else ""
        raise ConfigError(f"{shown}: expected a config file, found a directory{hint}") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{shown}: cannot read the config file: {reason}") from error
    if source.suffix.lower() == ".json":
        return _Document(_read_json(source, content), is_ours=False)
    function, value, copied = run_python_file(source, content)
    is_ours = function == "get_config"
    if not isinstance(value, EvalConfig if is_ours else dict):
        expected = "an EvalConfig" if is_ours else "a dict"
        raise ConfigError(f"{source.name}: {function}(): {wrong_type(expected, value)}")
    assert isinstance(copied, dict)
    return _Document(copied, is_ours)


def _read_json(source: Path, content: bytes) -> dict[Any, Any]:
    try:
        value = json.loads(content.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise ConfigError(f"{source.name}:{error.lineno}:{error.colno}: not valid JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError included
        raise ConfigError(f"{source.name}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{source.name}: expected a JSON object, got {show(value)}")
    return _plain_dict(value)


def _plain_dict(value: object) -> dict[Any, Any]:
    copied = plain(value)
    assert isinstance(copied, dict)
    return copied


def _apply_overrides(raw: dict[Any, Any], overrides: Iterable[str]) -> tuple[list[Override], list[str]]:
    applied: list[Override] = []
    lines: list[str] = []
    for text in overrides:
        try:
            applied.append(apply_override(raw, text))
        except OverrideError as error:
            lines.append(f"-p {text}: {error}")
    return applied, lines


def _ignored_keys(document: _Document) -> tuple[str, ...]:
    """The training-only keys that a config sets; of an `EvalConfig`, those that differ from their defaults."""
    training = {key: spec for key, spec in keys_of(EvalConfig).items() if spec.metadata["group"] == TRAINING}
    present = [key for key in training if key in document.raw]
    if document.is_ours:
        present = [key for key in present if document.raw[key] != default_of(training[key])]
    return tuple(present)


def _line(fault: Fault, file_name: str, applied: Sequence[Override]) -> str:
    """Say who is to blame: the last override that set the faulty key or one that makes it faulty, else the file."""
    for override in reversed(applied):
        if override.path == fault.path:
            return f"-p {override.text}: {fault.message}"
        if any(override.sets(path) for path in (fault.path, *fault.involved)):
            return f"-p {override.text}: {fault}"
    return f"{file_name}: {fault}"


def _is_in_checkpoint(source: Path) -> bool:
    return source.name == "config.json" and (source.parent / "checkpoint_version.txt").is_file()


def _name(source: Path) -> str:
    """The name of a config: its file's, or its checkpoint's, which is more telling than `config`."""
    return source.parent.name if _is_in_checkpoint(source) and source.parent.name else source.stem
