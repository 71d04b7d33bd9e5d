import os
import pickle
import subprocess
import sys

import h5py
import numpy as np
import pytest
import torch

from pbgeval.storage.checkpoint import embedding_path, open_embeddings, read_checkpoint_version
from tests.kit.pbg_files import write_checkpoint_version, write_embeddings
from tests.kit.refusals import fault_of

VALUES = np.arange(60, dtype=np.float32).reshape(12, 5) / 4  # exact in float16


def open_all(folder, *, dimension=5, num_rows=12, version=3):
    return open_embeddings(folder, "all", 0, version, dimension=dimension, num_rows=num_rows)


def test_the_version_is_read_and_absent_or_empty_means_0(tmp_path):
    assert read_checkpoint_version(tmp_path) == 0
    (tmp_path / "checkpoint_version.txt").write_text(" \n")
    assert read_checkpoint_version(tmp_path) == 0
    write_checkpoint_version(tmp_path, 12)
    assert read_checkpoint_version(tmp_path) == 12
    path = tmp_path / "none"
    assert f"{path}: no such folder; check checkpoint_path" in fault_of(lambda: read_checkpoint_version(path))


@pytest.mark.parametrize("text", ["v12", "-1", "1.5", "1 2"])
def test_a_version_that_is_no_number_is_a_fault(tmp_path, text):
    (tmp_path / "checkpoint_version.txt").write_text(text)

    assert f"checkpoint_version.txt: expected a version such as 12, found {text!r}" in fault_of(
        lambda: read_checkpoint_version(tmp_path)
    )


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

    assert (path, 12, 5, is_mapped) == (file.path, file.num_rows, file.dimension, file.is_mapped)
    loaded = file.load()
    assert (torch.float32, True) == (loaded.dtype, loaded.is_contiguous())
    assert (VALUES.tolist(), file) == (loaded.tolist(), pickle.loads(pickle.dumps(file)))


@pytest.mark.parametrize("userblock_size", [512, 4096])
def test_a_block_of_the_users_before_the_data_does_not_shift_the_map(tmp_path, userblock_size):
    with h5py.File(embedding_path(tmp_path, "all", 0, 3), "w", userblock_size=userblock_size) as file:
        file.attrs["format_version"] = 1
        file["embeddings"] = VALUES

    assert open_all(tmp_path).is_mapped
    assert VALUES.tolist() == open_all(tmp_path).load().tolist()


def test_rows_that_do_not_start_where_a_tensor_would_are_copied(tmp_path):
    with h5py.File(embedding_path(tmp_path, "all", 0, 3), "w", meta_block_size=2) as file:
        file.attrs["format_version"] = 1
        file["embeddings"] = VALUES
        offset = file["embeddings"].id.get_offset()

    assert offset % 64 != 0
    assert not open_all(tmp_path).is_mapped
    assert VALUES.tolist() == open_all(tmp_path).load().tolist()


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

    assert path.read_bytes() == before
    path.unlink()
    assert VALUES.tolist() == other.tolist()


@pytest.mark.slow
def test_a_large_partition_is_mapped_without_being_read(tmp_path):
    with h5py.File(embedding_path(tmp_path, "all", 0, 3), "w") as file:
        file.attrs["format_version"] = 1
        file.create_dataset("embeddings", (1_000_000, 100), "f4")[-2000:] = 1  # a sparse file of 400 MB
    program = (
        "import resource, sys, pathlib\n"
        "from pbgeval.storage.checkpoint import open_embeddings\n"
        "file = open_embeddings(pathlib.Path(sys.argv[1]), 'all', 0, 3, dimension=100, num_rows=1_000_000)\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "loaded = file.load()\n"
        "assert file.is_mapped and loaded[-1].sum() == 100\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    run = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)

    assert int(run.stdout) < 50_000  # kilobytes


def test_a_missing_file_is_named_with_the_versions_that_are_there(tmp_path):
    for version in (12, 8, 9):
        write_embeddings(tmp_path, "all", 0, VALUES, version=version)
    write_embeddings(tmp_path, "all", 1, VALUES, version=3)
    line = fault_of(lambda: open_all(tmp_path))

    assert line.startswith(
        f"{embedding_path(tmp_path, 'all', 0, 3)}: no such file; the folder has version 8, 9, 12 of it, "
    )
    assert "but the checkpoint is version 3; check checkpoint_version.txt" in line


def test_a_missing_partition_is_named_with_the_embeddings_that_are_there(tmp_path):
    assert "the checkpoint has no embeddings;" in fault_of(lambda: open_all(tmp_path))
    write_embeddings(tmp_path, "user", 0, VALUES, version=3)
    assert "the checkpoint has embeddings_user_0.v3.h5;" in fault_of(lambda: open_all(tmp_path))
    assert "the checkpoint has no embeddings;" in fault_of(lambda: open_all(tmp_path / "none"))


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        (VALUES.ravel(), "f4", "expected a row of 5 numbers per entity, found shape (60,)"),
        (VALUES.reshape(2, 6, 5), "f4", "expected a row of 5 numbers per entity, found shape (2, 6, 5)"),
        (VALUES, "i4", "expected floating-point numbers, found int32"),
        (VALUES, "c8", "expected floating-point numbers, found complex64"),
    ],
)
def test_a_dataset_of_another_form_is_refused(tmp_path, values, dtype, expected):
    write_embeddings(tmp_path, "all", 0, values, version=3, dtype=dtype)

    assert f"dataset embeddings: {expected}" in fault_of(lambda: open_all(tmp_path))


def test_a_file_without_format_version_or_embeddings_is_refused(tmp_path):
    path = write_embeddings(tmp_path, "all", 0, VALUES, version=3, format_version=None)
    assert "expected 1, found none; if PyTorch-BigGraph did not write the file, set the attribute" in fault_of(
        lambda: open_all(tmp_path)
    )
    path = write_embeddings(tmp_path, "all", 0, VALUES, version=3, format_version=2)
    assert "expected 1, found 2" in fault_of(lambda: open_all(tmp_path))
    path = write_embeddings(tmp_path, "all", 0, VALUES, version=3)
    with h5py.File(path, "r+") as file:
        del file["embeddings"]
    assert "expected a dataset embeddings, found optimizer" in fault_of(lambda: open_all(tmp_path))


def test_a_truncated_file_is_one_line_at_the_header_and_at_load(tmp_path):
    path = write_embeddings(tmp_path, "all", 0, np.zeros((1000, 5)), version=3)
    file = open_all(tmp_path, num_rows=1000)
    os.truncate(path, path.stat().st_size // 2)

    assert "truncated" in fault_of(lambda: open_all(tmp_path, num_rows=1000))
    assert "truncated" in fault_of(file.load)


def test_a_file_that_changed_since_its_header_was_read_is_a_fault(tmp_path):
    write_embeddings(tmp_path, "all", 0, VALUES, version=3)
    file = open_all(tmp_path)
    write_embeddings(tmp_path, "all", 0, VALUES[:7], version=3)
    assert "expected shape (12, 5)" in fault_of(file.load)
    write_embeddings(tmp_path, "all", 0, VALUES, version=3, layout={"chunks": (4, 5)})
    assert "the file changed during the run" in fault_of(file.load)
