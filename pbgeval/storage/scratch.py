"""Object, and the bytes that scratch may take -> a local copy that stays as long as it is held.

A scratch folder is one run's on one host; all of its processes use it at the same time, so everything is agreed on by
locks of files, which end with the process that has them:

    users           shared by every process that uses the folder: who gets it alone is the last one, and removes all
    room            whoever takes, makes or removes a copy
    a copy          shared by whoever holds it: who gets it alone may remove it
    .a-copy.part    alone by whoever writes it: others wait for that lock instead of downloading the same object
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from attrs import frozen

from pbgeval.errors import OutputError, StorageError
from pbgeval.files import make_folder, put_reserved_file, remove_folder, reserve_file, write_reserved
from pbgeval.storage.objects import RemoteObject, check_unchanged, read_ranges

PART = ".part"
PATIENCE_SECONDS = 60.0  # for copies that other workers hold only while they read
_USERS, _ROOM = "users", "room"
_RANGE_BYTES = 8 << 20  # of one request
_RANGES_AT_A_TIME = 4


@frozen
class Scratch:
    """The copies of a run on this host."""

    folder: Path
    limit_bytes: int  # of all copies together

    @contextmanager
    def held(self, of: RemoteObject, path: Path) -> Iterator[Path]:
        """Have a copy there while the context lasts.

        Raises:
            StorageError: as `hold`.
        """
        descriptor = self.hold(of, path)
        try:
            yield path
        finally:
            os.close(descriptor)

    def hold(self, of: RemoteObject, path: Path, patience: float = PATIENCE_SECONDS) -> int:
        """Have a copy of an object at a path of the folder; return a descriptor: until it is closed, the copy stays.

        Args:
            of: the object.
            path: where its copy is or will be.
            patience: seconds to wait while copies in use leave no room.

        Raises:
            StorageError: the object has changed or cannot be read; or the copies in use leave no room for it.
            OutputError: the folder cannot be written.
        """
        deadline = time.monotonic() + patience
        while True:
            with self._locked():
                descriptor = _taken(path)
                if descriptor is not None:
                    return descriptor
                part = path.with_name(f".{path.name}{PART}")
                writer = None if _is_free(part) else _opened(part)
                missing = 0 if writer is not None else self._make_room(of.size)
                if writer is None and not missing:
                    descriptor = reserve_file(part, of.size)
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
            if descriptor is not None:
                self._download(of, descriptor, part, path)
                return descriptor
            if writer is not None:
                _wait_for(writer)
            elif of.size > self.limit_bytes or time.monotonic() >= deadline:
                raise self._too_small(of, missing)
            else:
                time.sleep(0.05)

    def _download(self, of: RemoteObject, descriptor: int, part: Path, path: Path) -> None:
        """Fill a file that is locked; it takes its name when it is whole, and is held from then on."""
        with ExitStack() as undoing:
            undoing.callback(self._drop, descriptor, part)
            for start in range(0, of.size, _RANGE_BYTES * _RANGES_AT_A_TIME):
                stop = min(start + _RANGE_BYTES * _RANGES_AT_A_TIME, of.size)
                ranges = [(first, min(first + _RANGE_BYTES, stop)) for first in range(start, stop, _RANGE_BYTES)]
                for (first, _), block in zip(ranges, read_ranges(of, ranges), strict=True):
                    write_reserved(descriptor, part, block, first)
            check_unchanged(of)
            with self._locked():
                put_reserved_file(descriptor, part, path)
                fcntl.flock(descriptor, fcntl.LOCK_SH)
            undoing.pop_all()

    def _drop(self, descriptor: int, part: Path) -> None:
        """Remove what is not whole."""
        with self._locked():
            part.unlink(missing_ok=True)
        os.close(descriptor)

    def _make_room(self, num_bytes: int) -> int:
        """Remove copies that nobody holds, least recently used ones first; return the bytes that are missing still."""
        found = [(path.stat(), path) for path in self._copies()]
        missing = sum(status.st_size for status, _ in found) + num_bytes - self.limit_bytes
        for status, path in sorted(found, key=lambda of: (of[0].st_mtime_ns, of[1])):
            if missing <= 0:
                break
            if _is_free(path):
                missing -= status.st_size
        return max(missing, 0)

    def bytes_beside(self, paths: Collection[Path]) -> int:
        """Return the bytes of the copies that are there and not at these paths."""
        with self._locked():
            return sum(path.stat().st_size for path in self._copies() if path not in paths and path.suffix != PART)

    def _copies(self) -> list[Path]:
        """Return copies, and those that are being made, without what describes them."""
        found = (path for path in self.folder.glob("*/**/*") if path.is_file())
        return [path for path in found if not path.name.startswith(".") or path.name.endswith(PART)]

    def _too_small(self, of: RemoteObject, missing: int) -> StorageError:
        return StorageError(
            f"{of.url}: expected room for its copy of {of.size} bytes below {self.folder}, found {missing} bytes too "
            f"few beside the copies in use; set scratch_limit to at least {self.limit_bytes + missing} (now "
            f"{self.limit_bytes}) or use fewer workers"
        )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        descriptor = os.open(self.folder / _ROOM, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


@contextmanager
def scratch_folder(folder: Path, siblings: str) -> Iterator[Path]:
    """Use a folder of copies together with the run's other processes of this host; the last one removes it.

    Args:
        folder: made where there is none. What a run that was killed left in it is used again.
        siblings: a pattern of the names of such folders beside it; those that nobody uses any more are removed.

    Raises:
        OutputError: it cannot be made, or is another user's.
    """
    for other in sorted(folder.parent.glob(siblings)):
        if other != folder:
            _remove_if_last(other, _opened(other / _USERS))
    users = _join(folder)
    try:
        yield folder
    finally:
        _remove_if_last(folder, users)


def _join(folder: Path) -> int:
    while True:
        make_folder(folder)
        status = os.lstat(folder)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            raise OutputError(f"{folder}: expected a folder of this user's, found another's; set scratch_path")
        try:
            descriptor = os.open(folder / _USERS, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:  # its last user has just removed it
            continue
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        with suppress(FileNotFoundError):
            if os.stat(folder / _USERS).st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        os.close(descriptor)


def _remove_if_last(folder: Path, users: int | None) -> None:
    """Remove a folder of copies, and close its file of users, unless others use it."""
    if users is None:
        return
    try:
        with suppress(BlockingIOError):
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if folder.is_dir():
                remove_folder(folder)
    finally:
        os.close(users)


def _opened(path: Path) -> int | None:
    try:
        return os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None


def _taken(path: Path) -> int | None:
    """Hold a copy that is there."""
    descriptor = _opened(path)
    if descriptor is not None:
        fcntl.flock(descriptor, fcntl.LOCK_SH)  # at once: nobody has one alone but within the lock of the room
        os.utime(path)
    return descriptor


def _is_free(path: Path) -> bool:
    """Remove a copy that nobody holds, or a part that nobody writes; tell whether it is gone."""
    descriptor = _opened(path)
    if descriptor is None:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def _wait_for(writer: int) -> None:
    try:
        fcntl.flock(writer, fcntl.LOCK_SH)
    finally:
        os.close(writer)
