"""Paths as a config gives them -> absolute paths of directories and files that exist."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

import attrs
from attrs import frozen

from pbgeval.config.faults import Fault, KeyPath, show
from pbgeval.config.overrides import Override
from pbgeval.config.schema import EvalConfig

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
