"""URL of object storage -> the objects below it, their bytes, and whether they are still the same.

The only module that knows fsspec, which is imported when a URL is used: whoever has local paths needs none of it.
Whatever a file system's library raises about an object becomes a `StorageError` of one line: it is about the user's
bucket, key, credentials or network.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import IO, Any

from attrs import frozen

from pbgeval.errors import StorageError
from pbgeval.storage.text_files import one_line

INSTALL = "pip install 'pbgeval[s3]'"
_LIBRARY_ERRORS = (
    ("botocore.exceptions", "BotoCoreError"),
    ("botocore.exceptions", "ClientError"),
    ("aiohttp.client_exceptions", "ClientError"),
)
_HEADER_BLOCK_BYTES = 1 << 17  # of a header, whose pieces lie close together
_VERSIONS = ("ETag", "etag", "md5Hash", "content_md5", "LastModified", "last_modified", "mtime", "created")
_NO_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "ProfileNotFound")
_environment_of: dict[type, dict[str, str]] = {}  # in which the kept file systems of a kind were made
_NO_ENDPOINT = ("EndpointConnectionError", "ConnectTimeoutError", "ConnectionClosedError", "ClientConnectorError")


def is_url(path: str) -> bool:
    """Tell a URL such as s3://bucket/prefix from a local path."""
    return "://" in path


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
    with object_faults(url):
        system, path = _file_system(url)
        found = system.ls(path, detail=True, refresh=True)
    place = path.rstrip("/")
    objects = {
        str(info["name"]).rpartition("/")[2]: info
        for info in found
        if info["type"] == "file" and str(info["name"]).rstrip("/") != place
    }
    if not objects:
        raise StorageError(f"{url}: expected objects below this prefix, found none; check bucket and prefix")
    return {name: _object(f"{url}/{name}", info) for name, info in sorted(objects.items())}


def find_object(url: str) -> RemoteObject:
    """Return one object as it is now.

    Raises:
        StorageError: there is none, or it cannot be looked at.
    """
    with object_faults(url):
        system, path = _file_system(url)
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
    with object_faults(of.url):
        system, path = _file_system(of.url)
        starts, stops = [start for start, _ in ranges], [stop for _, stop in ranges]
        blocks: list[bytes] = system.cat_ranges([path] * len(ranges), starts, stops, on_error="raise")
    for (start, stop), block in zip(ranges, blocks, strict=True):
        if len(block) != stop - start:
            check_unchanged(of)
            raise StorageError(
                f"{of.url}: expected {stop - start} bytes from byte {start} on, found {len(block)}; try it again"
            )
    return blocks


@contextmanager
def open_object(of: RemoteObject) -> Iterator[IO[bytes]]:
    """Open an object for small reads at any place; what reading raises is left to the reader.

    Raises:
        StorageError: it cannot be opened.
    """
    with object_faults(of.url):
        system, path = _file_system(of.url)
        file: IO[bytes] = system.open(path, "rb", block_size=_HEADER_BLOCK_BYTES, cache_type="blockcache")
    with file:
        yield file


@contextmanager
def object_faults(url: str) -> Iterator[None]:
    """Turn what a file system's library raises about an object into a `StorageError`.

    Wrap single calls in it. Errors that are neither Python's of files, values and imports nor S3's are bugs.
    """
    try:
        yield
    except _errors_of_reading() as error:
        raise StorageError(f"{url}: {_fault(error)}") from error


def _errors_of_reading() -> tuple[type[Exception], ...]:
    """Return Python's own, and those of the libraries that have been imported."""
    loaded = ((sys.modules.get(module), name) for module, name in _LIBRARY_ERRORS)
    of_libraries = [getattr(module, name) for module, name in loaded if module is not None]
    return (OSError, ValueError, ImportError, *of_libraries)


def _file_system(url: str) -> tuple[Any, str]:
    """Return the file system of a URL for the environment as it is now, and the path in it.

    fsspec keeps file systems by their arguments, S3's endpoint and credentials come from the environment: whoever
    mends a variable and tries again in the same process would be answered by the old settings.
    """
    from fsspec.core import url_to_fs  # here: only URLs need it

    system, path = url_to_fs(url)
    kind, environment = type(system), dict(os.environ)
    if _environment_of.setdefault(kind, environment) != environment:
        _environment_of[kind] = environment
        kind.clear_instance_cache()
        system, path = url_to_fs(url)
    return system, str(path)


def _object(url: str, info: Mapping[str, Any]) -> RemoteObject:
    version = next((info[key] for key in _VERSIONS if info.get(key)), "")
    if isinstance(version, datetime):
        version = version.timestamp()  # as listings of some file systems have it, which look at one object otherwise
    return RemoteObject(url, int(info["size"]), str(version).strip('"'))


def _fault(error: Exception) -> str:
    """Say what is wrong, by the kind of the error or, of libraries that may not be there, by its name."""
    reason, names = one_line(error), {kind.__name__ for kind in type(error).__mro__}
    if isinstance(error, ImportError):
        return f"expected the packages that read it, found: {reason}; {INSTALL}"
    if isinstance(error, FileNotFoundError):
        return f"expected an object or prefix of that name, found: {reason}; check bucket and key"
    if names & set(_NO_CREDENTIALS):
        return f"expected credentials, found: {reason}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile"
    if isinstance(error, PermissionError):
        return f"expected credentials that may read it, found: {reason}; check them and the bucket's policy"
    if isinstance(error, ConnectionError | TimeoutError) or names & set(_NO_ENDPOINT):
        return f"expected an endpoint that answers, found: {reason}; check the network and AWS_ENDPOINT_URL"
    return f"expected an object that can be read, found: {reason}; check URL, credentials and network"
