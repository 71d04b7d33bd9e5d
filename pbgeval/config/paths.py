"""Paths as a config gives them -> absolute paths of directories that exist."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs
from attrs import frozen

from pbgeval.config.faults import Fault, KeyPath, show
from pbgeval.config.overrides import Override
from pbgeval.config.schema import EvalConfig

# A base directory, and what it is called in a fault.
WORKING_DIRECTORY, CONFIG_FOLDER = "the working directory", "the config's folder"


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
    config: EvalConfig, bases: Bases, overrides: Sequence[Override]
) -> tuple[EvalConfig, tuple[Fault, ...]]:
    """Make the paths of directories to read absolute.

    Returns:
        The config with absolute paths, and a fault for each directory that was not found.
    """
    faults: list[Fault] = []

    def absolute(path: KeyPath, value: str) -> str:
        tried = list(_places(value, bases.of(path, overrides)))
        for place, _ in tried:
            if os.path.isdir(place):
                return place
        faults.append(Fault(path, _not_found(value, tried)))
        return value

    resolved = attrs.evolve(
        config,
        entity_path=absolute(("entity_path",), config.entity_path),
        edge_paths=[absolute(("edge_paths", index), value) for index, value in enumerate(config.edge_paths)],
        checkpoint_path=absolute(("checkpoint_path",), config.checkpoint_path),
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


def _not_found(value: str, tried: Sequence[tuple[str, str]]) -> str:
    if not tried:
        return f"expected a directory, got {show(value)}"
    if len(tried) == 1:
        place, label = tried[0]
        return f"expected a directory; {place}{label} {'is none' if os.path.exists(place) else 'does not exist'}"
    return f"expected a directory; found none at {' nor at '.join(place + label for place, label in tried)}"
