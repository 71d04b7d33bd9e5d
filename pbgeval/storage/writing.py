"""The one module that writes files: a temporary name, fsync, rename; and a run's scratch arrays.

A reader sees the old file or the new one, never half of one; a run that is killed leaves at most a temporary file.
Every open, write, fsync and rename goes through `system`, which tests replace by one that fails.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np
from attrs import frozen

from pbgeval.errors import OutputError


class System:
    """The calls of the operating system by which files are written."""

    def open(self, path: Path, flags: int) -> int:
        """Open a file; a new one has the permissions that the umask leaves."""
        return os.open(path, flags | os.O_CLOEXEC, 0o666)

    write = staticmethod(os.write)  # where the file stands; returns how many bytes
    write_at = staticmethod(os.pwrite)  # at a place of the file; returns how many bytes
    rename = staticmethod(os.replace)  # replacing what had the name
    link = staticmethod(os.link)  # a second name, which must be free: atomic on network file systems too

    def sync(self, file: int) -> None:
        """Wait until what was written is on the disk."""
        os.fsync(file)  # looked up at each call: tests that stop no machine replace it


system = System()

_REMOVED = ".removed"
_TEMPORARY_NAME = re.compile(r"\..+\.[0-9a-f]{12}")
_SCRATCH_NAME = re.compile(rf"[0-9a-f]{{12}}(?:{re.escape(_REMOVED)})?")  # a team's nonce


Content = str | bytes | memoryview
Check = Callable[[], None]


@contextmanager
def output_faults(path: Path, purpose: str = "write this file", advice: str = "") -> Iterator[None]:
    """Turn what the system raises about output into an `OutputError`.

    Raises:
        OutputError: something cannot be made or written (permissions, a full disk).
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            advice = "; make room or choose another output"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            advice = advice or "; choose another output"
        raise OutputError(f"{path}: cannot {purpose}: {error.strerror or error}{advice}") from error


def opened(path: Path, flags: int) -> AbstractContextManager[int]:
    """Open a file by `system`; the context is its descriptor, which is closed at the end."""
    return _closed(system.open(path, flags | os.O_WRONLY))


@contextmanager
def _closed(descriptor: int) -> Iterator[int]:
    """Yield a descriptor, and close it at the end."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def new_file(path: Path, check: Check | None = None, *, exclusive: bool = False) -> Iterator[int]:
    """Yield the descriptor of a file that takes its name at the end, durably; what fails leaves no file.

    Args:
        path: replaced if it exists; its folder is made if it does not, unless there is a check.
        check: is called when all is on the disk, just before the file takes its name, and may raise: a process that
            was stopped or cut off meanwhile must not write over, or bring back, what others have taken over.
        exclusive: leave a file that exists alone, and raise FileExistsError.

    Raises:
        OutputError: the folder cannot be made or the file not written (permissions, a full disk).
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")
    with output_faults(path):
        if check is None:
            path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with opened(temporary, os.O_CREAT | os.O_EXCL) as descriptor:
                yield descriptor
                system.sync(descriptor)
            if check is not None:
                check()
            if exclusive:
                system.link(temporary, path)
            else:
                system.rename(temporary, path)
                _sync_folder(path.parent)
        finally:
            with suppress(FileNotFoundError, NotADirectoryError):
                temporary.unlink()


def is_temporary(path: Path) -> bool:
    """Tell whether a file has a name as `new_file` gives it until it is whole."""
    return _TEMPORARY_NAME.fullmatch(path.name) is not None


def write_atomically(path: Path, content: Content | Iterable[Content], check: Check | None = None) -> None:
    """Write a file, as `new_file` does: its content, or the parts of it. Text becomes UTF-8."""
    with new_file(path, check) as descriptor:
        for part in [content] if isinstance(content, Content) else content:
            # Names from JSON may hold lone surrogates, which are no UTF-8.
            write_all(descriptor, part.encode("utf-8", "backslashreplace") if isinstance(part, str) else part)


def create_exclusively(path: Path, content: str) -> bool:
    """Write a text file if it does not exist; return whether this process wrote it.

    Raises:
        OutputError: the folder cannot be made or the file not written (permissions, a full disk).
    """
    try:
        with new_file(path, exclusive=True) as descriptor:
            write_all(descriptor, content.encode())
    except OutputError as error:
        cause = error.__cause__
        if isinstance(cause, FileExistsError) and cause.filename2 is not None:  # of the link, not of a folder
            return False
        raise
    return True


def make_folder(path: Path) -> None:
    """Make a folder, and those above it, where there is none.

    Raises:
        OutputError: it cannot be made.
    """
    with output_faults(path, "make this folder"):
        path.mkdir(parents=True, exist_ok=True)


def append_line(path: Path, line: str) -> None:
    """Add a line at the end of a text file of this process alone, in one piece; its folder must be there.

    Raises:
        OutputError: it cannot be written.
    """
    with output_faults(path), opened(path, os.O_CREAT | os.O_APPEND) as descriptor:
        write_all(descriptor, f"{line}\n".encode())


def write_all(descriptor: int, data: bytes | memoryview, offset: int | None = None) -> None:
    """Write all of some bytes, at a place of the file or where it stands."""
    whole = memoryview(data).cast("B")
    start = 0
    while start < len(whole):
        rest = whole[start:]
        start += system.write(descriptor, rest) if offset is None else system.write_at(descriptor, rest, offset + start)


def write_new(path: Path, blocks: Iterable[bytes]) -> None:
    """Write a scratch file that only this user may read, block by block; there must be none of its name.

    Raises:
        OutputError: it cannot be written (permissions, a full disk).
    """
    with output_faults(path), opened(path, os.O_CREAT | os.O_EXCL) as descriptor:
        os.fchmod(descriptor, 0o600)
        for block in blocks:
            write_all(descriptor, block)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Make a folder for temporary files of a run; it is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="pbgeval-") as folder:
        yield Path(folder)


@contextmanager
def private_folder(path: Path, siblings: str) -> Iterator[bool]:
    """Use a folder that only this user may enter; yield whether this process made it, which then removes it.

    Every process that uses it has a lock on it. Folders beside it that a run made and no process uses, because
    the run was killed, are removed.

    Args:
        path: a name that others cannot guess, in a folder that is there.
        siblings: a pattern of the names that such folders have.

    Raises:
        OutputError: it cannot be made or locked, or is another user's.
    """
    for other in path.parent.glob(siblings):
        descriptor = _open_own_folder(other)
        if descriptor is not None:
            with _closed(descriptor), suppress(OSError):  # it is in use, or this file system cannot tell
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.listdir(descriptor):  # an empty one may just be in the making, and stays
                    shutil.rmtree(other, ignore_errors=True)
    with ExitStack() as at_end:
        with output_faults(path, "make this folder"):
            made = False
            with suppress(FileExistsError):
                path.mkdir(mode=0o700)
                made = True
                # What cannot be removed now, the next run removes.
                at_end.callback(shutil.rmtree, path, ignore_errors=True)
            descriptor = _open_own_folder(path)
            if descriptor is None:
                raise OutputError(f"{path}: this folder belongs to another user; set scratch_path")
            fcntl.flock(at_end.enter_context(_closed(descriptor)), fcntl.LOCK_SH)
        yield made


def _open_own_folder(path: Path) -> int | None:
    """Open a folder that is this user's; None for a link, a file, a pipe, what is another user's, or nothing."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    if os.fstat(descriptor).st_uid == os.getuid():
        return descriptor
    os.close(descriptor)
    return None


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a folder beside `path` that takes its name at the end; a failure in between leaves no folder.

    An empty folder of that name is replaced.

    Raises:
        OutputError: the folder cannot be made or take its name.
    """
    path = path.absolute()
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")
    try:
        with output_faults(path, "make this folder"):
            temporary.mkdir(parents=True)
        yield temporary
        with output_faults(path, "make this folder"):
            system.rename(temporary, path)
            _sync_folder(path.parent)
    finally:
        if temporary.exists():
            shutil.rmtree(temporary)


def check_empty(folder: Path) -> None:
    """Refuse a folder for `new_folder` that has something in it.

    Raises:
        OutputError: it has, or is a file.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OutputError(f"{folder}: the folder is not empty; choose a new or empty one")


def rename_folder(source: Path, target: Path) -> None:
    """Rename a folder; an empty one that has the new name is replaced."""
    system.rename(source, target)


def remove_folder(path: Path) -> None:
    """Remove a folder of scratch files, with all that is in it."""
    shutil.rmtree(path)


def files_below(folder: Path, inside: Collection[str]) -> list[str]:
    """Return the paths within a folder of all that is not a real folder: links are not followed.

    Args:
        folder: need not be there.
        inside: the folders in it that are entered; another one is returned by its name.
    """
    found: list[str] = []
    for place, folders, names in os.walk(folder, onerror=_raise):
        here = Path(place).relative_to(folder)
        others = [
            name
            for name in folders
            if (here == Path() and name not in inside) or os.path.islink(os.path.join(place, name))
        ]
        folders[:] = [name for name in folders if name not in others]
        found += [(here / name).as_posix() for name in (*names, *others)]
    return found


def _raise(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def remove_files(folder: Path, names: Iterable[str]) -> None:
    """Remove files by their paths within a folder, if they are there, and the folders in it that are left empty."""
    for name in (names := list(names)):
        with suppress(FileNotFoundError, NotADirectoryError):
            (folder / name).unlink()
    _remove_emptied(folder, names)


def _remove_emptied(folder: Path, names: Iterable[str]) -> None:
    emptied = {folder / parent for name in names for parent in Path(name).parents if parent != Path()}
    for place in sorted(emptied, key=lambda path: len(path.parts), reverse=True):
        remove_if_empty(place)


def remove_if_empty(folder: Path) -> None:
    """Remove a folder if it exists and is empty."""
    with suppress(OSError):
        folder.rmdir()


def remove_empty_folders(folder: Path) -> None:
    """Remove the empty folders in a folder, and itself if nothing else is in it; links are not followed."""
    for place, _, _ in os.walk(folder, topdown=False):
        remove_if_empty(Path(place))


def remove_scratch(folder: Path) -> None:
    """Remove a folder of scratch folders; each is renamed atomically, so a concurrent reader sees all of it or nothing.

    A file of many that is missing would be taken for one that was never written. Only folders with a name as runs give
    it go, and the folder itself if nothing else is in it.
    """
    if folder.is_symlink() or not folder.is_dir():
        return
    for scratch in [
        path
        for path in folder.iterdir()
        if _SCRATCH_NAME.fullmatch(path.name) and path.suffix != _REMOVED and path.is_dir() and not path.is_symlink()
    ]:
        with suppress(FileNotFoundError):  # another process was faster
            scratch.rename(scratch.with_name(scratch.name + _REMOVED))
    for removed in folder.glob(f"*{_REMOVED}"):
        if _SCRATCH_NAME.fullmatch(removed.name) and not removed.is_symlink():
            shutil.rmtree(removed)
    remove_if_empty(folder)


@frozen
class ScratchFolder:
    """A folder of raw arrays that a run needs only while it lasts; many workers write, each its own files.

    An array is named; what a worker appends to a name goes to that worker's file, and `read` joins those of all.
    The folder is the run's own: the worker that made it removes it, and no other worker makes it again.
    """

    path: Path
    writer: int  # this worker
    num_writers: int

    def make(self) -> None:
        """Make the folder within one that is there; one worker does, before others use it.

        Raises:
            OutputError: it cannot be made; the one that should hold it has been removed.
        """
        with output_faults(self.path, "make this folder"):
            self.path.mkdir()

    def append(self, name: str, values: np.ndarray) -> None:
        """Add values at the end of this worker's part of an array.

        Raises:
            OutputError: the folder cannot be written (permissions, a full disk).
        """
        if values.size:
            with self.file(f"{name}.{self.writer}", os.O_CREAT | os.O_APPEND) as descriptor:
                write_all(descriptor, np.ascontiguousarray(values).data.cast("B"))

    @contextmanager
    def file(self, name: str, flags: int = 0) -> Iterator[int]:
        """Open a file of the folder for writing; yield its descriptor.

        Raises:
            OutputError: it cannot be written (permissions, a full disk).
        """
        with output_faults(self.path / name, "write this scratch file"), opened(self.path / name, flags) as descriptor:
            yield descriptor

    def read(self, name: str, dtype: np.dtype | type) -> np.ndarray:
        """Return what all workers appended to an array, in order of worker; empty if none did."""
        parts = [np.empty(0, dtype)]
        for writer in range(self.num_writers):  # no list of so many files
            with suppress(FileNotFoundError):
                parts.append(np.fromfile(self.path / f"{name}.{writer}", dtype))
        return np.concatenate(parts)


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable."""
    with _closed(os.open(folder, os.O_RDONLY)) as descriptor:
        system.sync(descriptor)
