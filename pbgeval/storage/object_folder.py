"""A folder that stands for a prefix of object storage -> its objects, as buckets and partitions are.

Such a folder is in a scratch folder and says by a manifest what lies at its prefix. Small files have been copied into
it; headers and fingerprints of large ones are read from the objects; their bytes are copied when they are asked for,
and the copy may go again once nobody reads it. Readers of local folders need not know: paths in it are those that
copies have.
"""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from attrs import asdict, frozen
from torch import Tensor

from pbgeval.errors import StorageError
from pbgeval.files import create_exclusively
from pbgeval.notation import Bucket
from pbgeval.storage.checkpoint import EmbeddingFile, embedding_path, embeddings_of_header, missing_fault
from pbgeval.storage.edges import BucketFile, EdgeBlock, bucket_of_header, open_buckets
from pbgeval.storage.files_hdf5 import Hdf5File, open_hdf5_stream
from pbgeval.storage.fingerprint import blocks_of, fingerprint_of
from pbgeval.storage.objects import RemoteObject, open_object, read_ranges
from pbgeval.storage.scratch import Scratch

MANIFEST = ".pbgeval-objects.json"


@frozen
class ObjectFolder:
    """What the manifest of a folder says; `read_object_folder` reads it."""

    path: Path
    url: str
    scratch: Scratch
    objects: Mapping[str, RemoteObject]  # by name

    def write(self) -> None:
        """Make the folder and its manifest, unless it is there.

        Raises:
            OutputError: it cannot be written.
        """
        said = {
            "url": self.url,
            "scratch": str(self.scratch.folder),
            "limit_bytes": self.scratch.limit_bytes,
            "objects": {name: asdict(of) for name, of in self.objects.items()},
        }
        create_exclusively(self.path / MANIFEST, json.dumps(said, sort_keys=True))

    def copy_of(self, path: Path) -> ObjectCopy:
        """Return the copy that a path of the folder names, there or not."""
        return ObjectCopy(self.objects[path.name], path, self.scratch)

    @contextmanager
    def header(self, path: Path) -> Iterator[Hdf5File]:
        """Open an object as HDF5, for its header; faults call it `path`.

        Raises:
            StorageError: it cannot be read.
        """
        with open_object(self.objects[path.name]) as stream, open_hdf5_stream(stream, path) as file:
            yield file


def read_object_folder(path: Path) -> ObjectFolder | None:
    """Return what a folder stands for, None for one that is itself."""
    try:
        said = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    scratch = Scratch(Path(said["scratch"]), said["limit_bytes"])
    return ObjectFolder(path, said["url"], scratch, {name: RemoteObject(**of) for name, of in said["objects"].items()})


@frozen
class ObjectCopy:
    """An object and where its copy lies while it is needed."""

    of: RemoteObject
    path: Path
    scratch: Scratch

    @contextmanager
    def held(self) -> Iterator[None]:
        """Have the copy there while the context lasts; its faults are those of `Scratch.hold`."""
        with self.scratch.held(self.of, self.path):
            yield

    def fetch(self) -> None:
        """Make the copy ahead of its use, if there is room at once; it stays until others need the room."""
        os.close(self.scratch.hold(self.of, self.path, patience=0))

    def fingerprint(self) -> str:
        """Return the fingerprint of the object, which is that of a file of the same content."""
        return fingerprint_of(self.of.size, read_ranges(self.of, blocks_of(self.of.size)))


@frozen
class RemoteBucket:
    """A bucket's object whose header has been checked: what a `BucketFile` is."""

    file: BucketFile  # where the copy will be
    copy: ObjectCopy

    @property
    def path(self) -> Path:
        return self.file.path

    @property
    def bucket(self) -> Bucket:
        return self.file.bucket

    @property
    def num_edges(self) -> int:
        return self.file.num_edges

    @property
    def rows_per_chunk(self) -> int:
        return self.file.rows_per_chunk

    def read(self, start: int, stop: int) -> EdgeBlock:
        with self.copy.held():
            return self.file.read(start, stop)

    def fingerprint(self) -> str:
        return self.copy.fingerprint()


@frozen
class RemoteRows:
    """A partition's object whose header has been checked: what an `EmbeddingFile` is."""

    file: EmbeddingFile  # where the copy will be
    copy: ObjectCopy

    @property
    def num_rows(self) -> int:
        return self.file.num_rows

    @property
    def dimension(self) -> int:
        return self.file.dimension

    @property
    def num_bytes(self) -> int:
        return self.file.num_bytes

    def load(self) -> Tensor:
        """Return all rows; where they are mapped from the copy, it stays as long as they do."""
        with ExitStack() as held:
            held.callback(os.close, self.copy.scratch.hold(self.copy.of, self.copy.path))
            rows = self.file.load()
            if self.file.is_mapped:
                weakref.finalize(rows, held.pop_all().close)
        return rows

    def read_rows(self, start: int, stop: int) -> Tensor:
        with self.copy.held():
            return self.file.read_rows(start, stop)

    def fingerprint(self) -> str:
        return self.copy.fingerprint()


def find_remote_buckets(folder: ObjectFolder, num_lhs: int, num_rhs: int) -> dict[Bucket, RemoteBucket]:
    """Open the header of every bucket's object of a folder, as `find_buckets` does with files.

    Raises:
        StorageError: as `find_buckets`.
    """

    def opening(path: Path, bucket: Bucket) -> RemoteBucket:
        with folder.header(path) as file:
            return RemoteBucket(bucket_of_header(file, bucket), folder.copy_of(path))

    return open_buckets(folder.path, sorted(folder.objects), num_lhs, num_rhs, opening)


def open_remote_embeddings(
    folder: ObjectFolder, entity_type: str, partition: int, version: int, *, dimension: int, num_rows: int | None
) -> RemoteRows:
    """Check the header of a partition's object, as `open_embeddings` does with a file.

    Raises:
        StorageError: as `open_embeddings`.
    """
    path = embedding_path(folder.path, entity_type, partition, version)
    if path.name not in folder.objects:
        raise StorageError(missing_fault(path, sorted(folder.objects), entity_type, partition, version))
    with folder.header(path) as file:
        header = embeddings_of_header(file, entity_type, partition, dimension=dimension, num_rows=num_rows)
    return RemoteRows(header, folder.copy_of(path))
