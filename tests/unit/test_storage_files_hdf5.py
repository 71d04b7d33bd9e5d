import os
import subprocess
import sys

import h5py
import numpy as np
import pytest

from pbgeval.errors import StorageError
from pbgeval.storage.hdf5 import open_hdf5

HOLD_OPEN = """
import sys, h5py
with h5py.File(sys.argv[1], "r+", locking=True) as file:
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.attrs["format_version"] = np.int64(1)
        file["values"] = np.arange(10_000)
    return tmp_path / "x.h5"


def open_fault(path):
    with pytest.raises(StorageError) as info, open_hdf5(path):
        pass
    (line,) = info.value.faults
    assert "\n" not in line
    assert line.startswith(f"{path}: expected ")
    return line


def version_fault(path):
    with open_hdf5(path) as file, pytest.raises(StorageError) as info:
        file.check_format_version()
    (line,) = info.value.faults
    return line


def last_value(file):
    row = np.empty(1, np.int64)
    file.require("values").read_into(row, 9_999)
    return row[0]


def test_a_file_is_opened_for_reading_only(path):
    before = path.read_bytes()
    with open_hdf5(path) as file:
        file.check_format_version()

        assert 9_999 == last_value(file)
    assert path.read_bytes() == before


def test_a_file_that_another_process_holds_open_for_writing_is_read(path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD_OPEN, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(BlockingIOError):
            h5py.File(path, "r", locking=True)
        with open_hdf5(path) as file:
            assert 9_999 == last_value(file)
    finally:
        holder.communicate()
    assert holder.returncode == 0


def test_a_reader_does_not_block_a_writer(path):
    write = "import sys, h5py\nwith h5py.File(sys.argv[1], 'r+', locking=True) as file: file['more'] = 1"
    with open_hdf5(path) as file:
        assert 9_999 == last_value(file)
        subprocess.run([sys.executable, "-c", write, str(path)], check=True)


def test_a_missing_file_is_named(tmp_path):
    assert "no such file" in open_fault(tmp_path / "none.h5")


def test_a_directory_in_place_of_a_file_is_said_to_be_one(tmp_path):
    assert "found a directory" in open_fault(tmp_path)


@pytest.mark.parametrize("content", [b"", b"hello", b"lhs rel rhs\n" * 1000])
def test_a_file_of_another_format_is_refused(tmp_path, content):
    path = tmp_path / "x.h5"
    path.write_bytes(content)

    assert f"found another format of {len(content)} bytes" in open_fault(path)


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.99])
def test_a_truncated_file_is_refused_with_both_sizes(path, kept):
    size = path.stat().st_size
    os.truncate(path, int(size * kept))
    line = open_fault(path)

    assert "truncated" in line
    assert f"complete HDF5 file of {size} bytes" in line
    assert f" of {int(size * kept)} bytes" in line


def test_a_file_without_permission_is_refused(path):
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read every file")

    assert "no permission" in open_fault(path)


def test_the_format_version_must_be_there(path):
    with h5py.File(path, "r+") as file:
        del file.attrs["format_version"]

    assert "attribute format_version: expected 1, found none" in version_fault(path)


@pytest.mark.parametrize("found", [2, 0, 1.0, "1", [1, 1]])
def test_another_format_version_is_refused(path, found):
    with h5py.File(path, "r+") as file:
        file.attrs["format_version"] = found

    assert f"{path}: attribute format_version: expected 1, found " in version_fault(path)


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8, ">i8"])
def test_the_format_version_may_have_any_integer_type(path, dtype):
    with h5py.File(path, "r+") as file:
        file.attrs["format_version"] = np.array(1, dtype)
    with open_hdf5(path) as file:
        file.check_format_version()


def test_a_missing_dataset_is_named_with_what_is_there(path):
    with h5py.File(path, "r+") as file:
        file.create_group("folder")
    with open_hdf5(path) as file:
        for name in ("other", "folder", "values/more"):
            with pytest.raises(StorageError, match=f"expected a dataset {name}, found folder, values;"):
                file.require(name)


def test_a_fault_of_ours_while_a_file_is_open_stays_what_it_is(path):
    with pytest.raises(RuntimeError, match="a bug"), open_hdf5(path):
        raise RuntimeError("a bug")
