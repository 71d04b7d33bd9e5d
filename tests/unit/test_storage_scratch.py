"""Copies of objects: whole, made once, bounded, kept while they are held, removed at the end."""

from __future__ import annotations

import fcntl
import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest

from pbgeval.errors import OutputError, StorageError
from pbgeval.storage import scratch as scratch_module
from pbgeval.storage.edges import find_buckets
from pbgeval.storage.fingerprint import fingerprint
from pbgeval.storage.object_folder import (
    ObjectFolder,
    find_remote_buckets,
    open_remote_embeddings,
    read_object_folder,
)
from pbgeval.storage.objects import RemoteObject, find_object, list_objects, object_faults
from pbgeval.storage.scratch import Scratch, scratch_folder
from tests import pbg_files

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


def scratch_of(folder: Path, limit_bytes: int) -> Scratch:
    folder.mkdir(exist_ok=True)
    return Scratch(folder, limit_bytes)


def copies(scratch: Scratch) -> list[str]:
    """The names of all files of copies, those that are being made too."""
    return sorted(path.name for path in (scratch.folder / "0").rglob("*"))


def used(scratch: Scratch, of: RemoteObject) -> bytes:
    """Hold a copy for a moment; return what it holds."""
    with scratch.held(of, scratch.folder / "0" / of.url.rpartition("/")[2]) as path:
        return path.read_bytes()


def test_a_copy_holds_the_bytes_of_its_object_whatever_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratch_module, "_RANGE_BYTES", 7)
    scratch = scratch_of(tmp_path / "scratch", 10_000)

    for size in (0, 1, 6, 7, 8, 27, 28, 29, 1000):
        content = np.random.default_rng(size).bytes(size)
        assert content == used(scratch, put(f"of_{size}", content))


def test_copies_that_were_used_longest_ago_go_first_and_all_stay_below_the_limit(tmp_path: Path) -> None:
    scratch = scratch_of(tmp_path / "scratch", 30)
    a, b, c, d = (put(name, name.encode() * 10) for name in "abcd")

    for of in (a, b, c, a, d):
        used(scratch, of)

    assert ["a", "c", "d"] == copies(scratch)


def test_a_copy_that_is_held_is_not_removed_for_another(tmp_path: Path) -> None:
    scratch = scratch_of(tmp_path / "scratch", 25)
    a, b, c = (put(name, name.encode() * 10) for name in "abc")

    with scratch.held(a, scratch.folder / "0" / "a"):
        used(scratch, b)
        used(scratch, c)
        assert ["a", "c"] == copies(scratch)


def test_where_held_copies_leave_no_room_the_fault_says_what_is_missing(tmp_path: Path) -> None:
    scratch = scratch_of(tmp_path / "scratch", 25)
    a, b = put("a", b"a" * 20), put("b", b"b" * 10)

    with scratch.held(a, scratch.folder / "0" / "a"), pytest.raises(StorageError) as raised:
        scratch.hold(b, scratch.folder / "0" / "b", patience=0)

    assert (
        f"{PLACE}/b: expected room for its copy of 10 bytes below {scratch.folder}, found 5 bytes too few beside the "
        "copies in use; set scratch_limit to at least 30 (now 25) or use fewer workers"
    ) == str(raised.value)


def test_whoever_finds_no_room_waits_until_another_lets_go(tmp_path: Path) -> None:
    scratch = scratch_of(tmp_path / "scratch", 25)
    a, b = put("a", b"a" * 20), put("b", b"b" * 10)
    descriptor = scratch.hold(a, scratch.folder / "0" / "a")
    release = threading.Timer(0.3, os.close, [descriptor])
    release.start()

    assert b"b" * 10 == used(scratch, b)

    release.join()
    assert ["b"] == copies(scratch)


def test_an_object_that_several_want_at_the_same_time_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch, of = scratch_of(tmp_path / "scratch", 100), put("a", b"a" * 20)
    reads, all_wait = [], threading.Event()
    read_ranges = scratch_module.read_ranges

    def slow(of: RemoteObject, ranges: list[tuple[int, int]]) -> list[bytes]:
        reads.append(of)
        all_wait.wait(0.5)
        return read_ranges(of, ranges)

    monkeypatch.setattr(scratch_module, "read_ranges", slow)
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.append(used(scratch, of))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert ([of], [b"a" * 20] * 4) == (reads, found)


def test_an_object_that_has_changed_since_it_was_listed_is_a_fault_and_leaves_no_copy(tmp_path: Path) -> None:
    scratch = scratch_of(tmp_path / "scratch", 100)
    old = put("a", b"old one")
    new = put("a", b"new one")

    with pytest.raises(StorageError) as raised:
        used(scratch, old)

    assert old.version != new.version
    assert str(raised.value).startswith(f"{PLACE}/a: expected the object of the start (7 bytes, version {old.version})")
    assert "it changed during the run: start it again" in str(raised.value)
    assert [] == copies(scratch)


@pytest.mark.parametrize("content", [b"a", None], ids=["shorter", "gone"])
def test_an_object_that_is_shorter_or_gone_is_a_fault_and_leaves_no_copy(
    tmp_path: Path, store: fsspec.AbstractFileSystem, content: bytes | None
) -> None:
    scratch, old = scratch_of(tmp_path / "scratch", 100), put("a", b"old one")
    if content is None:
        store.rm("/store/prefix/a")
    else:
        put("a", content)

    with pytest.raises(StorageError, match=f"{PLACE}/a: expected"):
        used(scratch, old)

    assert [] == copies(scratch)


def test_what_a_killed_writer_left_is_made_anew(tmp_path: Path) -> None:
    scratch, of = scratch_of(tmp_path / "scratch", 10), put("a", b"a" * 10)
    (scratch.folder / "0").mkdir()
    (scratch.folder / "0" / ".a.part").write_bytes(b"half")
    (scratch.folder / "0" / ".b.part").write_bytes(b"of another object")

    assert b"a" * 10 == used(scratch, of)
    assert ["a"] == copies(scratch)


def test_the_last_process_that_uses_a_folder_removes_it(tmp_path: Path) -> None:
    folder = tmp_path / "pbgeval-1"
    with scratch_folder(folder, "pbgeval-*"):
        with scratch_folder(folder, "pbgeval-*"):
            (folder / "copy").write_text("of a copy")
        assert "of a copy" == (folder / "copy").read_text()
    assert [] == list(tmp_path.iterdir())


def test_a_folder_that_nobody_uses_any_more_goes_with_the_next_run_and_one_in_use_stays(tmp_path: Path) -> None:
    for name in ("pbgeval-left", "pbgeval-used", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "users").touch()
    with (tmp_path / "pbgeval-used" / "users").open() as users:
        fcntl.flock(users, fcntl.LOCK_SH)
        with scratch_folder(tmp_path / "pbgeval-new", "pbgeval-*"):
            assert ["other", "pbgeval-new", "pbgeval-used"] == sorted(path.name for path in tmp_path.iterdir())


def test_a_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "pbgeval-1").symlink_to(tmp_path / "elsewhere")

    with (
        pytest.raises(OutputError, match="expected a folder of this user's"),
        scratch_folder(tmp_path / "pbgeval-1", "x"),
    ):
        pass

    assert [] == list((tmp_path / "elsewhere").iterdir())


def folder_of(tmp_path: Path, limit_bytes: int = 10**6) -> ObjectFolder:
    """What stands for all objects that there are, as another process reads it."""
    folder = ObjectFolder(
        tmp_path / "scratch" / "0" / "prefix", PLACE, scratch_of(tmp_path / "scratch", limit_bytes), list_objects(PLACE)
    )
    folder.write()
    read = read_object_folder(folder.path)
    assert folder == read
    return read


def test_buckets_of_objects_have_the_headers_edges_and_fingerprints_of_files(tmp_path: Path) -> None:
    for number, (bucket, layout) in enumerate(zip([(0, 0), (0, 1), (1, 1)], pbg_files.LAYOUTS.values(), strict=False)):
        rows = np.arange(50 + number)
        pbg_files.write_edges(tmp_path / "edges", bucket, rows, rows % 3, rows[::-1], layout=layout)
    for path in (tmp_path / "edges").iterdir():
        put(path.name, path.read_bytes())
    files, folder = find_buckets(tmp_path / "edges", 2, 2), folder_of(tmp_path)

    found = find_remote_buckets(folder, 2, 2)

    assert list(files) == list(found)
    assert [] == [path for path in folder.path.iterdir() if path.suffix == ".h5"]  # headers need no copy
    for bucket, file in files.items():
        one = found[bucket]
        expected = (bucket, file.num_edges, file.rows_per_chunk, file.fingerprint())
        assert expected == (one.bucket, one.num_edges, one.rows_per_chunk, one.fingerprint())
        for name in ("lhs", "rel", "rhs"):
            assert getattr(file.read(3, 40), name).tolist() == getattr(one.read(3, 40), name).tolist()


def test_the_faults_of_a_folder_of_objects_are_those_of_a_folder(tmp_path: Path) -> None:
    pbg_files.write_edges(tmp_path / "edges", (0, 2), [0], [0], [0])
    (tmp_path / "edges" / "edges_0_1.h5").write_bytes(b"no HDF5")
    for path in (tmp_path / "edges").iterdir():
        put(path.name, path.read_bytes())
    folder = folder_of(tmp_path)

    with pytest.raises(StorageError, match=r"expected only edges_<l>_<r>.h5 .* found edges_0_2.h5"):
        find_remote_buckets(folder, 2, 2)
    with pytest.raises(StorageError, match=r"edges_0_1.h5: expected an HDF5 file that can be opened"):
        find_remote_buckets(folder, 3, 3)


def test_rows_that_are_mapped_from_a_copy_hold_it_as_long_as_they_are_used(tmp_path: Path) -> None:
    for partition in range(2):
        rows = np.random.default_rng(partition).standard_normal((40, 16)).astype(np.float32)
        pbg_files.write_embeddings(tmp_path / "files", "user", partition, rows, version=1)
    sizes = []
    for path in (tmp_path / "files").iterdir():
        put(path.name, path.read_bytes())
        sizes.append(path.stat().st_size)
    folder = folder_of(tmp_path, max(sizes))  # room for one
    sources = [open_remote_embeddings(folder, "user", part, 1, dimension=16, num_rows=40) for part in range(2)]
    name = "embeddings_user_{}.v1.h5"

    first = sources[0].load()
    with pytest.raises(StorageError, match="expected room for its copy"):
        sources[1].copy.fetch()
    expected = first.clone()
    del first
    gc.collect()
    second = sources[1].load()

    assert name.format(1) in copies(folder.scratch)
    assert name.format(0) not in copies(folder.scratch)
    assert not np.array_equal(expected, second)
    del second
    assert np.array_equal(expected[5:9], sources[0].read_rows(5, 9))
    assert fingerprint(tmp_path / "files" / name.format(1)) == sources[1].fingerprint()


def test_a_partition_that_is_missing_is_named_with_what_is_there(tmp_path: Path) -> None:
    put("embeddings_user_0.v3.h5", b"")
    folder = folder_of(tmp_path)

    with pytest.raises(StorageError, match=r"embeddings_user_0.v2.h5: expected this file .* found it in version 3;"):
        open_remote_embeddings(folder, "user", 0, 2, dimension=4, num_rows=None)


def test_the_fingerprint_of_an_object_is_that_of_a_file_of_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, size in (("empty", 0), ("small", 1000), ("large", 700_001)):
        content = np.random.default_rng(size).bytes(size)
        (tmp_path / name).write_bytes(content)
        put(name, content)
    folder = folder_of(tmp_path)

    for name in ("empty", "small", "large"):
        assert fingerprint(tmp_path / name) == folder.copy_of(folder.path / name).fingerprint()


def test_a_folder_that_is_itself_stands_for_none(tmp_path: Path) -> None:
    assert read_object_folder(tmp_path) is None
    assert read_object_folder(tmp_path / "nothing") is None


@pytest.mark.parametrize("bug", [KeyError("size"), AttributeError("ls"), AssertionError()])
def test_a_mistake_of_ours_is_no_fault_of_the_user_s(bug: Exception) -> None:
    with pytest.raises(type(bug)), object_faults("s3://bucket/key"):
        raise bug


@pytest.mark.parametrize("module", ["botocore.exceptions", "aiohttp.client_exceptions"])
def test_what_s3_s_libraries_raise_is_one_line(module: str) -> None:
    library = pytest.importorskip(module)
    error = library.NoCredentialsError() if module.startswith("botocore") else library.ClientPayloadError("cut")

    with pytest.raises(StorageError, match=r"^s3://bucket/key: expected "), object_faults("s3://bucket/key"):
        raise error
