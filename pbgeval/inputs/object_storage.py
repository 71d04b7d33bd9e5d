"""URLs of a config -> local folders that stand for them, in a scratch folder of this run; a config that names those.

Small files are copied before anything is opened, and so is a file of edges by name, whole. Buckets and partitions are
copied when they are needed (`storage/object_folder.py`). At the end nothing is left, unless the run is killed: then
the next one of any config removes it, and the same one uses it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from attrs import asdict, evolve, field, frozen

from pbgeval.config import EvalConfig, names_file_of_edges
from pbgeval.config.memory import parse_memory
from pbgeval.errors import EvalError, StorageError
from pbgeval.storage.checkpoint import model_path, read_checkpoint_version
from pbgeval.storage.object_folder import ObjectFolder
from pbgeval.storage.objects import find_object, is_url, list_objects
from pbgeval.storage.scratch import Scratch, scratch_folder

_NAMES = re.compile(r"entity_names_.*\.json")
_OF_ENTITIES = re.compile(r"entity_count_.*\.txt|dynamic_rel_count\.txt|dynamic_rel_names\.json")
_SHARE_OF_FREE = 2  # without a limit, copies take at most this part of what is free


@contextmanager
def local_copies(config: EvalConfig, output: Path | None) -> Iterator[EvalConfig]:
    """Yield a config in which every URL is replaced by a local folder or file; faults name the URLs.

    Args:
        config: checked.
        output: the output directory, if it was said; workers of a group that share it share the copies of their host.

    Raises:
        EvalError: faults of objects, and those of the context.
    """
    if not any(is_url(path) for path in _paths(config)):
        yield config
        return
    parent = Path(config.scratch_path or tempfile.gettempdir()).absolute()
    prefix = f"pbgeval-{os.getuid()}-"
    with scratch_folder(parent / f"{prefix}{_digest(config, output)}", f"{prefix}*") as folder, ExitStack() as held:
        limit = config.scratch_limit
        most = shutil.disk_usage(folder).free // _SHARE_OF_FREE if limit is None else parse_memory(limit)
        copies = _Copies(config, Scratch(folder, most), held)
        try:
            yield copies.of_config()
        except EvalError as error:
            raise type(error)(*(copies.with_urls(fault) for fault in error.faults)) from error


def _paths(config: EvalConfig) -> list[str]:
    """Return the paths that may be URLs."""
    edges = [*config.edge_paths, *config.filter_paths, *config.train_paths]
    return [config.entity_path, config.checkpoint_path, *edges]


def _digest(config: EvalConfig, output: Path | None) -> str:
    """Return a name for a run's folder: other runs do not take its room."""
    said = repr((config, None if output is None else str(output.absolute())))
    return hashlib.sha256(said.encode()).hexdigest()[:16]


@frozen(eq=False)
class _Copies:
    """Makes what stands for each URL of a config."""

    config: EvalConfig
    scratch: Scratch
    held: ExitStack  # copies that stay for the whole run
    local_of: dict[str, str] = field(factory=dict)

    def of_config(self) -> EvalConfig:
        """Return the config with local paths.

        Raises:
            StorageError: the faults of all URLs.
        """
        config, faults = self.config, list[str]()

        def local(url: str, copied: Callable[[str], str]) -> str:
            if is_url(url) and url not in self.local_of:
                try:
                    self.local_of[url] = copied(url)
                except StorageError as error:
                    faults.extend(fault for fault in error.faults if fault not in faults)
            return self.local_of.get(url, url)

        checkpoint_path = local(config.checkpoint_path, self._checkpoint)
        entity_path = local(config.entity_path, self._entities)
        edge_paths = [local(url, self._edges) for url in config.edge_paths]
        filter_paths = [local(url, self._edges) for url in config.filter_paths]
        train_paths = [local(url, self._edges) for url in config.train_paths]
        if faults:
            raise StorageError(*faults)
        return evolve(
            config,
            checkpoint_path=checkpoint_path,
            entity_path=entity_path,
            edge_paths=edge_paths,
            filter_paths=filter_paths,
            train_paths=train_paths,
        )

    def with_urls(self, fault: str) -> str:
        """Name in a fault what the user knows: a URL in place of the folder that stands for it."""
        for url, local in self.local_of.items():
            fault = fault.replace(local, url)
        return fault

    def _folder(self, url: str, is_small: Callable[[str], object]) -> ObjectFolder:
        """Make the folder that stands for a prefix, with copies of its small files."""
        url = url.rstrip("/")
        objects = list_objects(url)
        listing = json.dumps([url, {name: asdict(of) for name, of in objects.items()}], sort_keys=True)
        path = self.scratch.folder / hashlib.sha256(listing.encode()).hexdigest()[:16] / url.rpartition("/")[2]
        folder = ObjectFolder(path, url, self.scratch, objects)
        folder.write()
        self._hold(folder, is_small)
        return folder

    def _hold(self, folder: ObjectFolder, is_small: Callable[[str], object]) -> None:
        for name in folder.objects:
            if is_small(name):
                self.held.enter_context(folder.copy_of(folder.path / name).held())

    def _checkpoint(self, url: str) -> str:
        folder = self._folder(url, {"checkpoint_version.txt"}.__contains__)
        model = model_path(folder.path, read_checkpoint_version(folder.path))
        self._hold(folder, {model.name}.__contains__)
        return str(folder.path)

    def _entities(self, url: str) -> str:
        needs_names = _needs_names(self.config)
        folder = self._folder(
            url, lambda name: _OF_ENTITIES.fullmatch(name) or (needs_names and _NAMES.fullmatch(name))
        )
        return str(folder.path)

    def _edges(self, url: str) -> str:
        if not (names_file_of_edges(url) or url.endswith(".npy")):
            return str(self._folder(url, lambda name: False).path)
        of = find_object(url)
        place = hashlib.sha256(json.dumps(asdict(of), sort_keys=True).encode()).hexdigest()[:16]
        path = self.scratch.folder / place / url.rpartition("/")[2]
        self.held.enter_context(self.scratch.held(of, path))
        return str(path)


def _needs_names(config: EvalConfig) -> bool:
    """Whether something asks for the names of entities, which may be large."""
    asked: Mapping[str, object] = {
        "restrictions": config.restrict_entities or config.head_candidates or config.tail_candidates,
        "tables of the best": config.save_topk,
        "types": config.taxonomy_path,
        "edges by name": any(names_file_of_edges(path) for path in _paths(config)),
    }
    return any(asked.values())
