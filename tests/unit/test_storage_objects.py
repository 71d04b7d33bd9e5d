"""Objects: copied whole, or read in place as files of the same content are; changes and faults are one line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest
import torch
from fsspec.implementations.memory import MemoryFile

from pbgeval.errors import StorageError
from pbgeval.storage import checkpoint, objects
from pbgeval.storage.checkpoint import open_embeddings
from pbgeval.storage.edges import EdgeBlock, find_buckets
from pbgeval.storage.objects import (
    ObjectFolder,
    RemoteObject,
    copy_object,
    find_object,
    list_objects,
    object_faults,
    read_object_folder,
)
from pbgeval.storage.text import without_secrets
from tests.kit import pbg_files
from tests.kit.refusals import fault_of

PLACE = "memory://store/prefix"


@pytest.fixture(autouse=True)
def store() -> Iterator[fsspec.AbstractFileSystem]:
    system = fsspec.filesystem("memory")
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]


def put(name: str, content: bytes) -> RemoteObject:
    fsspec.filesystem("memory").pipe(f"/store/prefix/{name}", content)
    return find_object(f"{PLACE}/{name}")


def put_all(folder: Path) -> None:
    for path in folder.iterdir():
        put(path.name, path.read_bytes())


def in_place(path: Path) -> Path:
    """What stands for all objects that there are, none of them copied."""
    folder = ObjectFolder(PLACE, list_objects(PLACE))
    folder.write(path)
    assert folder == read_object_folder(path)
    return path


@pytest.mark.parametrize("size", [0, 1, 6, 7, 8, 27, 28, 29, 1000])
def test_a_copy_holds_the_bytes_of_its_object_whatever_its_size(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "_RANGE_BYTES", 7)
    content = np.random.default_rng(size).bytes(size)

    copy_object(put("object", content), tmp_path / "copy")
    assert content == (tmp_path / "copy").read_bytes()


@pytest.mark.parametrize("layout", pbg_files.LAYOUTS.values(), ids=list(pbg_files.LAYOUTS))
def test_buckets_in_place_have_the_edges_and_fingerprints_of_files(tmp_path: Path, layout: object) -> None:
    for number, bucket in enumerate([(0, 0), (0, 1), (1, 1)]):
        rows = np.arange(50 + 1000 * number)
        pbg_files.write_edges(tmp_path / "edges", bucket, rows, rows % 3, rows[::-1], layout=layout)
    put_all(tmp_path / "edges")

    of_files, of_objects = (
        [
            (bucket, file.bucket, file.num_edges, file.rows_per_chunk, file.fingerprint(), *lists_of(file.read(3, 40)))
            for bucket, file in find_buckets(folder, 2, 2).items()
        ]
        for folder in (tmp_path / "edges", in_place(tmp_path / "objects"))
    )
    assert (of_files, []) == (of_objects, list((tmp_path / "objects").glob("*.h5")))


def lists_of(block: EdgeBlock) -> list[list[int]]:
    return [column.tolist() for column in (block.lhs, block.rel, block.rhs)]


def test_rows_in_place_are_those_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "_RANGE_BYTES", 4 * 16 * 3000)  # of 3,000 rows
    rows = np.random.default_rng(0).standard_normal((10_000, 16)).astype(np.float32)
    pbg_files.write_embeddings(tmp_path / "files", "user", 0, rows, version=1)
    put_all(tmp_path / "files")
    file, found = (
        open_embeddings(folder, "user", 0, 1, dimension=16, num_rows=10_000)
        for folder in (tmp_path / "files", in_place(tmp_path / "objects"))
    )

    assert torch.equal(torch.from_numpy(rows), found.load())
    for start, stop in ((0, 10_000), (5, 5), (2999, 3001), (9_999, 10_000)):
        assert torch.equal(file.read_rows(start, stop), found.read_rows(start, stop))
    assert file.fingerprint() == found.fingerprint()


def test_a_network_that_fails_while_an_object_is_read_in_place_is_no_damage_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pbg_files.write_embeddings(tmp_path / "files", "user", 0, np.ones((40_000, 16), np.float32), version=1)
    put_all(tmp_path / "files")
    found = open_embeddings(in_place(tmp_path / "objects"), "user", 0, 1, dimension=16, num_rows=40_000)
    readinto = MemoryFile.readinto

    def lost(self: MemoryFile, into: memoryview) -> int:
        if len(into) > 10_000:
            raise ConnectionResetError("Connection reset by peer")
        return readinto(self, into)

    monkeypatch.setattr(MemoryFile, "readinto", lost, raising=False)

    assert (
        f"{PLACE}/embeddings_user_0.v1.h5: the endpoint does not answer: Connection reset by peer; check "
        "the network, for s3:// also AWS_ENDPOINT_URL"
    ) == fault_of(lambda: found.read_rows(0, 40_000), StorageError)


@pytest.mark.parametrize(
    ("num_partitions", "fault"),
    [
        (2, r"expected only edges_<l>_<r>.h5 .* found edges_0_2.h5"),
        (3, r"edges_0_1.h5: expected an HDF5 file that can be opened"),
    ],
)
def test_the_faults_of_objects_in_place_are_those_of_files(tmp_path: Path, num_partitions: int, fault: str) -> None:
    put("edges_0_2.h5", pbg_files.write_edges(tmp_path, (0, 2), [0], [0], [0]).read_bytes())
    put("edges_0_1.h5", b"no HDF5")

    with pytest.raises(StorageError, match=fault):
        find_buckets(in_place(tmp_path / "objects"), num_partitions, num_partitions)


@pytest.mark.parametrize("bug", [KeyError("size"), AttributeError("ls"), AssertionError()])
def test_a_mistake_of_ours_is_no_fault_of_the_user_s(bug: Exception) -> None:
    with pytest.raises(type(bug)), object_faults("s3://bucket/key"):
        raise bug


@pytest.mark.parametrize(
    ("module", "name", "fault"),
    [
        ("botocore.exceptions", "NoCredentialsError", "needs credentials"),
        ("aiohttp.client_exceptions", "ClientPayloadError", "cannot read or write the object"),
    ],
)
def test_what_s3_s_libraries_raise_is_one_line(module: str, name: str, fault: str) -> None:
    kind = getattr(pytest.importorskip(module), name)

    with pytest.raises(StorageError, match=f"s3://bucket/key: {fault}: "), object_faults("s3://bucket/key"):
        raise kind


@pytest.mark.parametrize("url", ["s3://key:SECRETPW@bucket/x", "s3://bucket/x?X-Amz-Date=1:2&X-Amz-Signature=SECRETPW"])
def test_what_libraries_say_holds_no_secret(url: str) -> None:
    said = f"wrong bucket {url.partition('//')[2]!r}: SECRETPW is in {url}" + " " * 300

    with pytest.raises(StorageError) as error, object_faults(url):
        raise ValueError(said if "@" in url else said.replace("SECRETPW is", "it is"))

    assert "SECRETPW" not in str(error.value)
    assert "bucket/x" in str(error.value)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (
            "fil:///x/y",
            "fil:///x/y: this URL cannot be used: Protocol not known: fil; use s3://, gs://, abfs:// or file:///",
        ),
        ("reference://x/y", "reference://x/y: this URL cannot be used: "),
        ("file://out/x", "file://out/x: expected an absolute path: file:///folder"),
        ("http://me:pw@host/x", "http://host/x: copy it here; URLs are s3://, gs://, abfs:// or file:///"),
    ],
)
def test_a_url_that_means_nothing_is_one_line(url: str, message: str) -> None:
    with pytest.raises(StorageError, match=re.escape(message)):
        objects.read_object(url)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ftp://me:p@ss@host/key: expected", "ftp://host/key: expected"),
        ("https://host/key?X-Amz-Signature=1f&a=b: expected", "https://host/key: expected"),
        ("s3://bucket/a@b: expected", "s3://bucket/a@b: expected"),
        ("what? https://host/key, or not?", "what? https://host/key, or not?"),
        ("zip://x::s3://k:SECRET@b/a.zip: no", "zip://x::s3://b/a.zip: no"),
        ("zip://x.tsv?sig=SECRET::s3://k:SECRET@b/a.zip", "zip://x.tsv::s3://b/a.zip"),
        ("simplecache::zip://*::https://b/a.zip?token=SECRET", "simplecache::zip://*::https://b/a.zip"),
        ("zip:/x::s3:/k:SECRET@b/a.zip: no such file", "zip:/x::s3:/b/a.zip: no such file"),
        ("s3://k:SE/CR+ET@b/a", "s3://b/a"),
        ("s3://k:SE@CRET@b/a", "s3://b/a"),
        ("s3://SECRET@b/a,gs://k:SECRET@c/d", "s3://b/a,gs://c/d"),
        ("'abfs://c@SECRET/a?sv=2020-08-04T10:20;SECRET&sig=a,SECRET%3D': no", "'abfs://SECRET/a': no"),
        ("https://b/a?X-Amz-Signature=12;SECRET, and more", "https://b/a, and more"),
        ("https://b/a#access_token=SECRET", "https://b/a"),
        ("http://host:8080/a@b", "http://host:8080/a@b"),
        ("s3://bucket/a#b", "s3://bucket/a#b"),
        ("first s3://k:SECRET@b\nsecond s3://k:SECRET@b", "first s3://b\nsecond s3://b"),
    ],
)
def test_passwords_and_signatures_of_urls_are_left_out(text: str, expected: str) -> None:
    assert without_secrets(text) == expected


def test_secrets_of_known_urls_are_left_out_wherever_they_stand() -> None:
    urls = ("zip://x::s3://key:SEC RET@b/a.zip", "https://b/a?sig=OTHER&se=2030")

    assert without_secrets("cannot use key:SEC RET@b, nor SEC RET, OTHER", *urls) == "cannot use b, nor , "
