import subprocess
import sys

import h5py
import numpy as np
import pytest

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


def last_value(file):
    row = np.empty(1, np.int64)
    file.require("values").read_into(row, 9_999)
    return row[0]


def test_a_file_that_another_process_holds_open_for_writing_is_read(path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD_OPEN, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(BlockingIOError):
            h5py.File(path, "r", locking=True)
        with open_hdf5(path) as file:
            assert last_value(file) == 9_999
    finally:
        holder.communicate()
    assert holder.returncode == 0


def test_a_reader_does_not_block_a_writer(path):
    write = "import sys, h5py\nwith h5py.File(sys.argv[1], 'r+', locking=True) as file: file['more'] = 1"
    with open_hdf5(path) as file:
        assert last_value(file) == 9_999
        subprocess.run([sys.executable, "-c", write, str(path)], check=True)


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8, ">i8"])
def test_a_file_is_opened_for_reading_only_and_its_version_may_have_any_integer_type(path, dtype):
    with h5py.File(path, "r+") as file:
        file.attrs["format_version"] = np.array(1, dtype)
    before = path.read_bytes()
    with open_hdf5(path) as file:
        file.check_format_version()
        assert last_value(file) == 9_999

    assert path.read_bytes() == before


def test_a_fault_of_ours_while_a_file_is_open_stays_what_it_is(path):
    with pytest.raises(RuntimeError, match="a bug"), open_hdf5(path):
        raise RuntimeError("a bug")
