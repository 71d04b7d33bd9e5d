"""URL of object storage -> the objects below it: listed, copied, read in place, written; whether they are the same.

The only module that knows fsspec, which is imported when a URL is used: local paths do not need it.
Whatever a file system's library raises about an object becomes a `StorageError` of one line: it is about the user's
bucket, key, credentials or network.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from attrs import asdict, field, frozen

from pbgeval.errors import EvalError, StorageError, install
from pbgeval.storage.hdf5 import Hdf5File, open_hdf5
from pbgeval.storage.json_files import parse_json
from pbgeval.storage.text import (
    blocks_of,
    fingerprint,
    fingerprint_of,
    one_line,
    read_bytes,
    unreadable,
    without_secrets,
)
from pbgeval.storage.writing import make_folder, write_new

_LISTING = ".objects.json"  # in a folder that stands for a prefix
_LIBRARY_ERRORS = (
    ("botocore.exceptions", "BotoCoreError"),
    ("botocore.exceptions", "ClientError"),
    ("aiohttp.client_exceptions", "ClientError"),
    ("azure.core.exceptions", "AzureError"),
    ("google.auth.exceptions", "GoogleAuthError"),
    ("gcsfs.retry", "HttpError"),
)
_HEADER_BYTES = 1 << 17  # are kept while an object is read in place: most headers of HDF5 lie there
_RANGE_BYTES = 8 << 20  # of one request
_RANGES_AT_A_TIME = 4
_VERSIONS = ("ETag", "etag", "md5Hash", "content_md5", "LastModified", "last_modified", "mtime", "created")
# What is wrong, by the kind of the error or, for optional libraries, by its name.
_FAULTS: tuple[tuple[tuple[type[Exception], ...], tuple[str, ...], str], ...] = (
    (
        (ImportError,),
        (),
        f"a package is required for this URL ({{}}): {install('fsspec s3fs')}; gcsfs for gs://, adlfs for abfs://",
    ),
    ((FileNotFoundError,), ("ResourceNotFoundError",), "no object or prefix of that name: {}; check bucket and key"),
    (
        (),
        (
            *("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "ProfileNotFound"),
            *("ClientAuthenticationError", "GoogleAuthError"),
        ),
        "needs credentials: {}; set those of its tools, for s3:// AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    ),
    ((PermissionError,), (), "the credentials do not allow it: {}; check them and the bucket's policy"),
    (
        (ConnectionError, TimeoutError),
        (
            *("EndpointConnectionError", "ConnectTimeoutError", "ConnectionClosedError", "ClientConnectorError"),
            *("ServiceRequestError", "ServiceResponseError"),
        ),
        "the endpoint does not answer: {}; check the network, for s3:// also AWS_ENDPOINT_URL",
    ),
    ((Exception,), (), "cannot read or write the object: {}; check URL, credentials and network"),
)


@frozen
class RemoteObject:
    """An object as a listing had it."""

    url: str
    size: int  # bytes
    version: str  # changes when the content does: of S3 the ETag


def list_objects(url: str) -> dict[str, RemoteObject]:
    """Return the objects directly below a prefix, by the last component of their keys.

    Raises:
        StorageError: there is none, or they cannot be listed.
    """
    with _located(url) as (system, path):
        found = system.ls(path, detail=True, refresh=True)
    objects = {
        str(info["name"]).rpartition("/")[2]: info
        for info in found
        if info["type"] == "file" and str(info["name"]).rstrip("/") != path.rstrip("/")
    }
    if not objects:
        raise StorageError(f"{url}: no objects below this prefix; check bucket and prefix")
    return {name: _object(f"{url}/{name}", info) for name, info in sorted(objects.items())}


def find_object(url: str) -> RemoteObject:
    """Return one object as it is now.

    Raises:
        StorageError: there is none, or it cannot be looked at.
    """
    with _located(url) as (system, path):
        return _object(url, system.info(path, refresh=True))


def check_unchanged(known: RemoteObject) -> None:
    """Look at an object again.

    Raises:
        StorageError: it is another one than it was, or gone.
    """
    now = find_object(known.url)
    if (now.size, now.version) != (known.size, known.version):
        raise StorageError(
            f"{known.url}: expected the object of the start ({known.size} bytes, version {one_line(known.version)}),"
            f" found another ({now.size} bytes, version {one_line(now.version)}); it changed during the run: start"
            " it again"
        )


def read_ranges(of: RemoteObject, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """Return ranges of an object's bytes (start, stop), without empty ones; where possible all are read at once.

    Raises:
        StorageError: it cannot be read, or is shorter than it was.
    """
    ranges = [(start, stop) for start, stop in ranges if start < stop]
    with _located(of.url) as (system, path):
        starts, stops = [start for start, _ in ranges], [stop for _, stop in ranges]
        blocks: list[bytes] = system.cat_ranges([path] * len(ranges), starts, stops, on_error="raise")
    for (start, stop), block in zip(ranges, blocks, strict=True):
        if len(block) != stop - start:
            check_unchanged(of)
            raise StorageError(
                f"{of.url}: expected {stop - start} bytes from byte {start} on, found {len(block)}; try it again"
            )
    return blocks


def copy_object(of: RemoteObject, path: Path) -> None:
    """Copy an object into a file that only this user may read.

    Raises:
        StorageError: it cannot be read, or has changed since it was listed.
        OutputError: the copy cannot be written (a full disk).
    """
    ranges = [(start, min(start + _RANGE_BYTES, of.size)) for start in range(0, of.size, _RANGE_BYTES)]
    groups = (ranges[first : first + _RANGES_AT_A_TIME] for first in range(0, len(ranges), _RANGES_AT_A_TIME))
    write_new(path, (block for group in groups for block in read_ranges(of, group)))
    check_unchanged(of)


def put_object(content: Path | bytes, url: str) -> None:
    """Write a file's content, or bytes, as an object, in place of one that is there.

    Raises:
        StorageError: it cannot be written.
    """
    with _located(url) as (system, key):
        if getattr(system, "auto_mkdir", True) is False:  # of local folders, which objects do without
            system.makedirs(key.rpartition("/")[0], exist_ok=True)
        if isinstance(content, bytes):
            system.pipe_file(key, content)
        else:
            system.put_file(str(content), key)


def remove_object(url: str) -> None:
    """Remove an object, if there is one.

    Raises:
        StorageError: it cannot be removed.
    """
    with _located(url) as (system, key), suppress(FileNotFoundError):
        system.rm_file(key)


def names_below(url: str) -> set[str]:
    """Return the last components of what is directly below a prefix, of objects and prefixes.

    Raises:
        StorageError: they cannot be listed.
    """
    with _located(url) as (system, path), suppress(FileNotFoundError):
        return {str(name).rstrip("/").rpartition("/")[2] for name in system.ls(path, detail=False, refresh=True)}
    return set()


def read_object(url: str) -> bytes | None:
    """Return the content of a small object, None where there is none.

    Raises:
        StorageError: it cannot be read.
    """
    with _located(url) as (system, key), suppress(FileNotFoundError):
        return bytes(system.cat_file(key))
    return None


@contextmanager
def open_hdf5_at(path: Path, of: RemoteObject | None) -> Iterator[Hdf5File]:
    """Open a file or, where there is an object, that one in place; faults call it `path`.

    Raises:
        StorageError: it cannot be read, or the object has changed, also while the context lasted.
    """
    if of is None:
        with open_hdf5(path) as file:
            yield file
        return
    with _located(of.url) as (system, key):
        stream = system.open(key, "rb", block_size=_HEADER_BYTES, cache_type="first")
    try:
        with stream, open_hdf5(path, stream=stream) as file:
            yield file
    except _errors_of_libraries(EvalError) as error:
        check_unchanged(of)  # says it better where it is gone, another one, or the network does not answer
        cause = error.__cause__ if isinstance(error, EvalError) else error
        if isinstance(cause, _errors_of_libraries(ConnectionError, TimeoutError)):  # nothing is wrong with the file
            raise _fault(of.url, cause) from cause
        raise
    check_unchanged(of)


@frozen
class Hdf5Source:
    """A file of HDF5, or an object that is read in its place."""

    path: Path
    of: RemoteObject | None = field(default=None, kw_only=True)  # None: the file itself is read

    def fingerprint(self) -> str:
        """Return a short text that changes with the content; an object has that of a file with the same content."""
        of = self.of
        return fingerprint(self.path) if of is None else fingerprint_of(of.size, read_ranges(of, blocks_of(of.size)))


@frozen
class ObjectFolder:
    """The contents of the listing file in a folder that stands for a URL prefix."""

    url: str
    objects: Mapping[str, RemoteObject]  # by name

    def write(self, path: Path) -> None:
        """Make the folder.

        Raises:
            OutputError: it cannot be written.
        """
        make_folder(path)
        write_new(path / _LISTING, [json.dumps(asdict(self)).encode()])

    def in_place(self, path: Path) -> RemoteObject | None:
        """Return the object that a path of the folder stands for, None where it has been copied."""
        return None if path.exists() else self.objects.get(path.name)


def read_object_folder(path: Path) -> ObjectFolder | None:
    """Return the prefix that a folder stands for; None for an ordinary folder."""
    faults = (OSError, ValueError, TypeError, KeyError, AttributeError)
    with (
        unreadable(path / _LISTING, "cannot read the list of a folder of objects", "; remove the folder", faults),
        suppress(FileNotFoundError, NotADirectoryError),
    ):
        said = parse_json(read_bytes(path / _LISTING))
        return ObjectFolder(said["url"], {name: RemoteObject(**of) for name, of in said["objects"].items()})
    return None


@contextmanager
def object_faults(url: str) -> Iterator[None]:
    """Turn what a file system's library raises about an object into a `StorageError`.

    Wrap single calls in it. Errors that are neither Python's of files, values and imports nor S3's are bugs.
    """
    try:
        yield
    except _errors_of_libraries(OSError, ValueError, ImportError) as error:
        raise _fault(url, error) from error


@contextmanager
def _located(url: str) -> Iterator[tuple[Any, str]]:
    """Yield the file system of a URL for the environment as it is now, and the path in it, within `object_faults`.

    fsspec caches file systems by their arguments, but S3 takes its endpoint and credentials from the environment:
    without this, a variable that is corrected in the same process would have no effect.
    """
    with object_faults(url):
        from fsspec.core import url_to_fs  # here: only URLs need it

        is_http = url.startswith(("http://", "https://"))  # whose listings have neither sizes nor versions
        if url.startswith("file://") and not url.startswith("file:///"):
            raise StorageError(f"{url}: expected an absolute path: file:///folder")
        if is_http:
            raise StorageError(f"{without_secrets(url, url)}: copy it here; URLs are s3://, gs://, abfs:// or file:///")
        try:
            system, path = url_to_fs(url)
        except (ValueError, TypeError) as error:  # no such kind, or one that needs more than a URL
            text = without_secrets(f"{url}: this URL cannot be used: {one_line(error)}", url)
            raise StorageError(f"{text}; use s3://, gs://, abfs:// or file:///") from error
        environment = dict(os.environ)
        if getattr(system, "environment_of_pbgeval", environment) != environment:
            type(system).clear_instance_cache()
            system, path = url_to_fs(url)
        system.environment_of_pbgeval = environment  # in which it was made
        yield system, str(path)


def _errors_of_libraries(*others: type[Exception]) -> tuple[type[Exception], ...]:
    """Return those of the libraries that have been imported, and others."""
    loaded = ((sys.modules.get(module), name) for module, name in _LIBRARY_ERRORS)
    return (*others, *(getattr(module, name) for module, name in loaded if module is not None))


def _object(url: str, info: Mapping[str, Any]) -> RemoteObject:
    version = next((info[key] for key in _VERSIONS if info.get(key)), "")
    # Some file systems have a datetime of one object, but its timestamp in listings.
    text = str(version.timestamp() if isinstance(version, datetime) else version)
    return RemoteObject(url, int(info["size"]), text.strip('"'))


def _fault(url: str, error: Exception) -> StorageError:
    names = {kind.__name__ for kind in type(error).__mro__}
    text = one_line(without_secrets(str(error), url))
    fault = next(what.format(text) for kinds, known, what in _FAULTS if isinstance(error, kinds) or names & {*known})
    return StorageError(f"{without_secrets(url, url)}: {fault}")
