import os
import pickle
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from pbgeval.storage.checkpoint import open_embeddings
from pbgeval.storage.checkpoint_paths import embedding_path, read_checkpoint_version
from pbgeval.storage.objects import open_hdf5_at
from tests.kit.pbg_files import write_embeddings
from tests.kit.refusals import fault_of

VALUES = np.arange(60, dtype=np.float32).reshape(12, 5) / 4  # exact in float16


def open_all(folder, *, dimension=5, num_rows=12, version=3):
    return open_embeddings(folder, "all", 0, version, dimension=dimension, num_rows=num_rows)


@pytest.mark.parametrize(("text", "version"), [(None, 0), (" \n", 0), ("12\n", 12)])
def test_the_version_is_read_and_absent_or_empty_means_0(tmp_path, text, version):
    if text is not None:
        (tmp_path / "checkpoint_version.txt").write_text(text)

    assert read_checkpoint_version(tmp_path) == version


@pytest.mark.parametrize("text", ["v12", "-1", "1.5", "1 2"])
def test_a_version_that_is_no_number_and_a_missing_folder_are_faults(tmp_path, text):
    (tmp_path / "checkpoint_version.txt").write_text(text)

    faults = [fault_of(lambda path=path: read_checkpoint_version(path)) for path in (tmp_path, tmp_path / "none")]
    assert f"checkpoint_version.txt: expected a version such as 12, found {text!r}" in faults[0]
    assert f"{tmp_path / 'none'}: no such folder; check checkpoint_path" in faults[1]


@pytest.mark.parametrize(
    ("dtype", "layout", "is_mapped"),
    [
        ("<f4", {}, True),
        (">f4", {}, False),
        ("<f8", {}, False),
        ("<f2", {}, False),
        ("<f4", {"chunks": (5, 2)}, False),
        ("<f4", {"chunks": (4, 5), "compression": "gzip", "shuffle": True}, False),
        (">f8", {"chunks": (4, 5), "compression": "lzf"}, False),
    ],
)
@pytest.mark.parametrize("num_rows", [12, None])
def test_any_layout_and_float_type_gives_the_same_float32_rows(tmp_path, dtype, layout, is_mapped, num_rows):
    path = write_embeddings(tmp_path, "all", 0, VALUES, version=3, dtype=dtype, layout=layout)
    file = open_all(tmp_path, num_rows=num_rows)
    loaded = file.load()

    assert (path, 12, 5, is_mapped) == (file.path, file.num_rows, file.dimension, file.offset is not None)
    assert (torch.float32, True, VALUES.tolist()) == (loaded.dtype, loaded.is_contiguous(), loaded.tolist())
    assert file == pickle.loads(pickle.dumps(file))


@pytest.mark.parametrize("how", [{"userblock_size": 512}, {"userblock_size": 4096}, {"meta_block_size": 2}])
def test_rows_after_a_block_of_the_users_are_mapped_and_those_that_do_not_start_where_a_tensor_would_are_copied(
    tmp_path, how
):
    with h5py.File(embedding_path(tmp_path, "all", 0, 3), "w", **how) as file:
        file.attrs["format_version"] = 1
        file["embeddings"] = VALUES
        is_aligned = file["embeddings"].id.get_offset() % 64 == 0

    found = open_all(tmp_path)
    assert (found.offset is not None, is_aligned) == ("meta_block_size" not in how,) * 2
    assert VALUES.tolist() == found.load().tolist()


@pytest.mark.parametrize("layout", [{}, {"chunks": (4, 5), "maxshape": (None, 5)}])
def test_no_rows_are_an_empty_tensor(tmp_path, layout):
    write_embeddings(tmp_path, "all", 0, VALUES[:0], version=3, layout=layout)

    assert open_all(tmp_path, num_rows=0).load().shape == (0, 5)


def test_writing_to_mapped_rows_changes_neither_the_file_nor_another_map_that_outlives_it(tmp_path):
    path = write_embeddings(tmp_path, "all", 0, VALUES, version=3)
    path.chmod(0o444)
    before = path.read_bytes()
    one, other = open_all(tmp_path).load(), open_all(tmp_path).load()
    one.zero_()

    assert (path.read_bytes(), Path("/proc/self/maps").read_text().count(str(path))) == (before, 2)
    path.unlink()
    assert VALUES.tolist() == other.tolist()


@pytest.mark.parametrize(
    ("there", "fault"),
    [
        ([], "the checkpoint has no embeddings;"),
        ([("user", 0, 3)], "the checkpoint has embeddings_user_0.v3.h5;"),
        (
            [("all", 0, 12), ("all", 0, 8), ("all", 0, 9), ("all", 1, 3)],
            "the folder has version 8, 9, 12 of these embeddings, but checkpoint_version.txt says 3; write the version"
            " to evaluate into checkpoint_version.txt",
        ),
    ],
)
def test_a_missing_file_is_named_with_what_is_there(tmp_path, there, fault):
    for entity_type, partition, version in there:
        write_embeddings(tmp_path / "here", entity_type, partition, VALUES, version=version)

    line = fault_of(lambda: open_all(tmp_path / "here"))
    assert line.startswith(f"{embedding_path(tmp_path / 'here', 'all', 0, 3)}: no such file; {fault}")


@pytest.mark.parametrize(
    ("is_there", "why"),
    [(False, "no checkpoint_version.txt, which means 0"), (True, "checkpoint_version.txt says 0")],
)
def test_a_missing_version_file_is_named(tmp_path, is_there, why):
    write_embeddings(tmp_path, "all", 0, VALUES, version=3)
    if is_there:
        (tmp_path / "checkpoint_version.txt").write_text("0")

    assert fault_of(lambda: open_all(tmp_path, version=0)) == (
        f"{embedding_path(tmp_path, 'all', 0, 0)}: no such file; the folder has version 3 of these embeddings, but "
        f"{why}; write the version to evaluate into checkpoint_version.txt"
    )


@pytest.mark.parametrize(
    ("values", "how", "expected"),
    [
        (VALUES.ravel(), {}, "dataset embeddings: expected a row of 5 numbers per entity, found shape (60,)"),
        (VALUES.reshape(2, 6, 5), {}, "dataset embeddings: expected a row of 5 numbers per entity, found shape (2, 6"),
        (VALUES, {"dtype": "i4"}, "dataset embeddings: expected floating-point numbers, found int32"),
        (VALUES, {"dtype": "c8"}, "dataset embeddings: expected floating-point numbers, found complex64"),
        (VALUES, {"format_version": None}, "expected 1, found none; if PyTorch-BigGraph did not write the file, set"),
        (VALUES, {"format_version": 2}, "expected 1, found 2"),
    ],
)
def test_a_file_of_another_form_is_refused(tmp_path, values, how, expected):
    write_embeddings(tmp_path, "all", 0, values, version=3, **how)

    assert expected in fault_of(lambda: open_all(tmp_path))


@pytest.mark.parametrize(
    ("values", "layout", "num_bytes", "fault"),
    [
        (VALUES, {}, 2400, "truncated"),
        (VALUES[:7], {}, None, "expected shape (12, 5)"),
        (VALUES, {"chunks": (4, 5)}, None, "the file changed during the run"),
    ],
)
def test_a_file_that_changed_since_its_header_was_read_is_a_fault(tmp_path, values, layout, num_bytes, fault):
    path = write_embeddings(tmp_path, "all", 0, VALUES, version=3)
    file = open_all(tmp_path)
    write_embeddings(tmp_path, "all", 0, values, version=3, layout=layout)
    os.truncate(path, num_bytes or path.stat().st_size)

    assert fault in fault_of(file.load)


def test_rows_of_an_unchanged_file_are_read_without_hdf5_and_those_of_a_changed_one_as_they_are_now(
    tmp_path, monkeypatch
):
    asked = []

    def open_counted(path, of):
        asked.append(path)
        return open_hdf5_at(path, of)

    path = write_embeddings(tmp_path, "all", 0, VALUES, version=3)
    file = open_all(tmp_path)
    monkeypatch.setattr("pbgeval.storage.checkpoint.open_hdf5_at", open_counted)
    assert (file.read_rows(3, 7).tolist(), asked) == (VALUES[3:7].tolist(), [])

    path.unlink()
    with h5py.File(path, "w") as other:  # the rows begin elsewhere
        other["before"] = np.ones(1000)
        other.attrs["format_version"] = 1
        other["embeddings"] = -VALUES
    assert (file.read_rows(3, 7).tolist(), asked) == ((-VALUES[3:7]).tolist(), [path])
