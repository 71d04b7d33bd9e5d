"""URLs of a config -> local folders that stand for them, in a scratch folder of this run; a config that names those.

What a run needs is copied before anything is opened, as far as `scratch_limit` allows: small files and files of edges
whole, then buckets, then partitions. What is beyond the limit is read in place (`storage/objects.py`), as often as it
is needed. At the end the folder is removed; that of a run that was killed, by the next run.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from attrs import define

from pbgeval.cluster.signals import ended_by_signals
from pbgeval.cluster.team import Team
from pbgeval.config import EvalConfig
from pbgeval.errors import EvalError, Faults, OutputError, StorageError
from pbgeval.inputs.opening import edge_paths, with_edge_paths
from pbgeval.storage.checkpoint_paths import read_checkpoint_version
from pbgeval.storage.objects import (
    ObjectFolder,
    RemoteObject,
    copy_object,
    find_object,
    list_objects,
)
from pbgeval.storage.text import is_url, names_file_of_edges, parse_memory, without_secrets
from pbgeval.storage.writing import make_folder, private_folder

_SHARE_OF_FREE = 2  # without a limit, copies take at most this part of what is free
_VERSION = "checkpoint_version.txt"


@contextmanager
def local_copies(config: EvalConfig, team: Team | None = None, *, read_in_place: bool = False) -> Iterator[EvalConfig]:
    """Yield a config in which every URL is replaced by a local folder or file; faults name the URLs.

    Args:
        config: checked.
        team: of the workers that do this at the same time; those of a host share its copies.
        read_in_place: copy only what has to be whole.

    Raises:
        EvalError: faults of objects, and those of the context.
        IncompleteError: a signal has ended it.
    """
    urls = urls_of(config)
    if not urls:
        yield config
        return
    team, prefix = team or Team(), f"pbgeval-{os.getuid()}-"
    secret = team.broadcast_object(secrets.token_hex(8))
    folder = Path(config.scratch_path or tempfile.gettempdir()).absolute() / f"{prefix}{secret}"
    local_of = {url: str(folder / str(index) / _name(url)) for index, url in enumerate(urls)}
    try:
        with ExitStack() as used:
            with team.together():
                made = used.enter_context(private_folder(folder, f"{prefix}{'[0-9a-f]' * 16}"))
            with team.together():
                if made:
                    _copy(config, local_of, folder, read_in_place)
            places = {"checkpoint_path": config.checkpoint_path, "entity_path": config.entity_path}
            places = {key: local_of.get(path, path) for key, path in places.items()}
            had_effect = {"scratch_path": None, "scratch_limit": None}  # so that none of them is warned of
            yield with_edge_paths(config, lambda path: local_of.get(path, path), **places, **had_effect)
    except EvalError as error:
        faults = error.faults
        for url, local in local_of.items():  # what the user knows in place of what stands for it
            faults = tuple(fault.replace(local, url.rstrip("/")) for fault in faults)
        raise type(error)(*(without_secrets(fault, *urls) for fault in faults)) from error


def urls_of(config: EvalConfig) -> list[str]:
    """Return the URLs among the paths that may be some, each once."""
    return list(dict.fromkeys(filter(is_url, [config.checkpoint_path, config.entity_path, *edge_paths(config)])))


def _name(url: str) -> str:
    """Return what a URL's copy is called, which results show."""
    name = without_secrets(url).rstrip("/").rpartition("/")[2]
    return name if name.strip(".") else "objects"


def _copy(config: EvalConfig, local_of: dict[str, str], folder: Path, read_in_place: bool) -> None:
    """Make what stands for each URL.

    Raises:
        StorageError: the faults of all URLs; or what has to be whole exceeds the limit.
        OutputError: a copy cannot be written.
    """
    free, limit = shutil.disk_usage(folder).free, config.scratch_limit
    room = _Room(folder.parent, free // _SHARE_OF_FREE if limit is None else parse_memory(limit))
    large, faults = list[tuple[RemoteObject, Path]](), Faults()
    with ended_by_signals():
        for url, local in local_of.items():
            with faults.noted(StorageError):
                large.extend(_copy_small(config, url.rstrip("/"), Path(local), room))
        faults.raise_any(StorageError)
        for of, path in [] if read_in_place else sorted(large, key=lambda pair: pair[1].name):  # buckets come first
            room.copy(of, path)


@define
class _Room:
    """The bytes that copies may still take."""

    place: Path  # for messages: that of the scratch folder
    num_bytes: int

    def copy(self, of: RemoteObject, path: Path) -> bool:
        """Copy an object where there is room for it; tell whether there is."""
        if of.size > self.num_bytes:
            return False
        self.num_bytes -= of.size
        try:
            copy_object(of, path)
        except OutputError as error:
            raise OutputError(
                f"{self.place}: cannot write a copy of {of.url} ({of.size} bytes): "
                f"{getattr(error.__cause__, 'strerror', error)}; choose another scratch_path or set scratch_limit"
            ) from error
        return True

    def copy_whole(self, of: RemoteObject, path: Path) -> None:
        """Copy an object that cannot be read in place."""
        if not self.copy(of, path):
            raise StorageError(
                f"{of.url}: no room for a copy of its {of.size} bytes ({self.num_bytes} are left for copies); "
                "raise scratch_limit, or choose a scratch_path with more room"
            )


def _copy_small(config: EvalConfig, url: str, path: Path, room: _Room) -> Iterator[tuple[RemoteObject, Path]]:
    """Make what stands for a URL, with copies of its small files; yield the other objects that a run needs."""
    if names_file_of_edges(url) or url.endswith(".npy"):
        make_folder(path.parent)
        room.copy_whole(find_object(url), path)
        return
    objects = list_objects(url)
    ObjectFolder(without_secrets(url), objects).write(path)
    if _VERSION in objects:
        room.copy_whole(objects[_VERSION], path / _VERSION)
    version = read_checkpoint_version(path)
    types = "|".join(map(re.escape, config.used_entity_types))
    large = re.compile(rf"edges_[0-9]+_[0-9]+\.h5|embeddings_({types})_[0-9]+\.v{version}\.h5")
    has_named_edges = any(map(names_file_of_edges, edge_paths(config)))
    lists = config.restrict_entities or config.head_candidates or config.tail_candidates
    names = r"|entity_names_.*\.json" if lists or config.save_topk or has_named_edges else ""  # which may be large
    small = re.compile(
        rf"model\.v{version}\.h5|entity_count_.*\.txt|dynamic_rel_count\.txt|dynamic_rel_names\.json|left_out\.json"
        rf"|names_digests\.json{names}"
    )
    for name, of in objects.items():
        if small.fullmatch(name):
            room.copy_whole(of, path / name)
        elif large.fullmatch(name):
            yield of, path / name
