"""A file that holds a pickle is read without running any of it."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pbgeval.adapters.pickles import Placeholder, StoredTensor, read_saved, read_trusting
from pbgeval.errors import StorageError
from tests.systems_reference import LibkgeCheckpoint
from tests.tiny_checkpoint import run_main

ADVICE = "set trust_pickle"


class Calls:
    """Unpickling calls a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.function, self.arguments


def write_zip(path: Path, data: bytes, **records: bytes) -> Path:
    """Write an archive as torch.save does, with any pickle."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", data)
        archive.writestr("archive/byteorder", "little")
        for name, content in records.items():
            archive.writestr(f"archive/data/{name}", content)
    return path


def test_containers_and_tensors_are_read_and_other_classes_stand_in(tmp_path: Path) -> None:
    table = torch.arange(12.0).view(4, 3)
    saved = {"table": table, "part": table[1:3], "list": [1, 2.5, None, "x"], "set": {1}, "size": table.shape}
    saved["parameter"] = torch.nn.Parameter(table)
    saved["odd"] = OrderedDict(a=torch.arange(3))
    saved["numpy"] = np.float64(3.0), np.arange(3)
    torch.save(saved, tmp_path / "x.pt")

    found: Any = read_saved(tmp_path / "x.pt", ADVICE)

    assert ([1, 2.5, None, "x"], {1}, (4, 3)) == (found["list"], found["set"], found["size"])
    for name, expected in (("table", table), ("part", table[1:3]), ("parameter", table)):
        stored = found[name]
        assert isinstance(stored, StoredTensor)
        assert expected.tolist() == stored.rows().load().tolist() == stored.rows().read_rows(0, len(expected)).tolist()
    assert (3,) == found["odd"]["a"].shape
    assert all(isinstance(one, Placeholder) for one in found["numpy"])


def test_an_object_of_an_unknown_class_keeps_what_it_held_and_does_nothing(tmp_path: Path) -> None:
    LibkgeCheckpoint(tmp_path / "x.pt", "complex")

    found: Any = read_saved(tmp_path / "x.pt", ADVICE)["config"]  # type: ignore[index]

    assert isinstance(found, Placeholder)
    assert ("kge.config.Config", "complex") == (found.type_name, found.state["options"]["model"])  # type: ignore[index]


HOSTILE = {
    "os.system": Calls(os.system, "touch {mark}"),
    "subprocess": Calls(subprocess.Popen, ["touch", "{mark}"]),
    "eval": Calls(eval, "open('{mark}', 'w')"),
    "exec": Calls(exec, "open('{mark}', 'w')"),
    "open": Calls(open, "{mark}", "w"),
    "getattr": Calls(getattr, 1, "__class__"),
    "torch.load": Calls(torch.load, "{mark}"),
    "a class that is called": Calls(Path, "{mark}"),
}


def marked(value: Any, mark: str) -> Any:
    if isinstance(value, Calls):
        return Calls(value.function, *(marked(argument, mark) for argument in value.arguments))
    if isinstance(value, list):
        return [marked(item, mark) for item in value]
    return value.replace("{mark}", mark) if isinstance(value, str) else value


@pytest.mark.parametrize("hidden_in", ["model", "config", "valid_trace"])
@pytest.mark.parametrize("name", list(HOSTILE))
def test_of_a_hostile_pickle_nothing_runs_and_one_line_says_what_it_calls(
    name: str, hidden_in: str, tmp_path: Path
) -> None:
    mark = tmp_path / "it ran"
    hostile = marked(HOSTILE[name], str(mark))
    LibkgeCheckpoint(tmp_path / "x.pt", "complex", more={hidden_in: hostile})

    with pytest.raises(StorageError, match=r"found a pickle that calls .*nothing was run; set trust_pickle") as error:
        read_saved(tmp_path / "x.pt", ADVICE)

    assert 1 == len(error.value.faults)
    assert "\n" not in str(error.value)
    assert not mark.exists()


def test_the_command_refuses_a_hostile_file_in_one_line_and_runs_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "it ran"
    LibkgeCheckpoint(tmp_path / "x.pt", "complex", more={"epoch": Calls(os.system, f"touch '{mark}'")})
    (tmp_path / "eval.py").write_text(
        "from pbgeval import EvalConfig\n"
        "def get_config():\n    return EvalConfig(model='x.pt', candidates='all', edge_paths=['edges.npy'])\n"
    )
    np.save(tmp_path / "edges.npy", np.zeros((1, 3), np.int64))

    done = run_main("--config", "eval.py", cwd=tmp_path)
    converted = run_main("import-model", "x.pt", "--output", "converted", cwd=tmp_path)

    for one in (done, converted):
        assert (1, "", 1) == (one.status, one.out, len(one.faults))
        assert "pickle that calls posix.system: nothing was run" in one.err
        assert "trust_pickle = True" in one.err
        assert "scripts/export_libkge.py" in one.err
    assert not mark.exists()
    assert not (tmp_path / "converted").exists()


def test_a_pickle_that_is_trusted_runs(tmp_path: Path) -> None:
    mark = tmp_path / "it ran"
    torch.save({"x": Calls(open, str(mark), "w")}, tmp_path / "x.pt")

    read_trusting(tmp_path / "x.pt")["x"].close()

    assert mark.exists()


def test_old_ways_to_make_objects_are_refused_too(tmp_path: Path) -> None:
    """INST and OBJ of protocols 0 and 1, and a global of the extension registry."""
    mark = tmp_path / "it ran"
    command = f"touch {mark}"
    inst = b"(S'" + command.encode() + b"'\nios\nsystem\n."
    obj = b"(cos\nsystem\nS'" + command.encode() + b"'\no."
    for data in (inst, obj):
        with pytest.raises(StorageError, match=r"calls os\.system: nothing was run"):
            read_saved(write_zip(tmp_path / "x.pt", data), ADVICE)
    with pytest.raises(StorageError, match="expected a pickle that can be read"):
        read_saved(write_zip(tmp_path / "x.pt", b"\x82\x01."), ADVICE)
    assert not mark.exists()


def test_state_cannot_be_set_on_what_may_be_called(tmp_path: Path) -> None:
    """BUILD on an allowed function, with a dict and with slots."""
    for state in (b"}S'_function'\ncos\nsystem\ns", b"(N}S'_function'\ncos\nsystem\nst"):
        data = b"ccollections\nOrderedDict\n" + state + b"b."
        with pytest.raises(StorageError):
            read_saved(write_zip(tmp_path / "x.pt", data), ADVICE)


def tensor_of(
    *, first: bytes = b"I0\n", shape: bytes = b"(I2\nI2\nt", stride: bytes = b"(I2\nI1\nt", count: bytes = b"I16\n"
) -> bytes:
    """A pickle of a tensor by hand, without its end."""
    return b"ctorch._utils\n_rebuild_tensor_v2\n((Vstorage\nctorch\nFloatStorage\nV0\nVcpu\n" + (
        count + b"tQ" + first + shape + stride + b"tR"
    )


VALUES = np.arange(16, dtype=np.float32).tobytes()


@pytest.mark.parametrize(
    "state",
    [
        b"(Vpath\nV{other}\nVoffset\nI0\nVdtype\nV<f4\nVshape\n(I2\nI2\ntd",
        b"(V{other}\nI0\nV<f4\n(I2\nI2\ntt",
        b"(N(Vpath\nV{other}\ndt",
    ],
)
def test_a_tensor_cannot_be_pointed_at_another_file(state: bytes, tmp_path: Path) -> None:
    """BUILD on a tensor that lies in the file, in each form of a state."""
    (tmp_path / "secret").write_bytes(VALUES)
    data = tensor_of() + state.replace(b"{other}", str(tmp_path / "secret").encode()) + b"b."

    with pytest.raises(StorageError, match="expected a pickle that can be read"):
        read_saved(write_zip(tmp_path / "x.pt", data, **{"0": VALUES}), ADVICE)


@pytest.mark.parametrize(
    "wrong",
    [
        {"shape": b"(I-2\nI-2\nt"},
        {"shape": b"(F2.0\nF2.0\nt"},
        {"shape": b"(I01\nI2\nt"},
        {"shape": b"V12\n", "stride": b"V12\n"},
        {"first": b"F1.0\n"},
        {"first": b"I-1\n"},
        {"stride": b"(I2\nNt"},
        {"count": b"F4.5\n"},
        {"count": b"V16\n"},
    ],
)
def test_a_tensor_of_no_whole_numbers_is_refused(wrong: dict[str, bytes], tmp_path: Path) -> None:
    right = read_saved(write_zip(tmp_path / "x.pt", tensor_of() + b".", **{"0": VALUES}), ADVICE)
    assert isinstance(right, StoredTensor)

    with pytest.raises(StorageError, match=r"no whole numbers|without a name or a size"):
        read_saved(write_zip(tmp_path / "x.pt", tensor_of(**wrong) + b".", **{"0": VALUES}), ADVICE)


def doubled(levels: int) -> bytes:
    """A tuple of the same tuple twice, and so on."""
    return b")" + b"".join(b"q%ch%c\x86" % (level, level) for level in range(1, levels))


def deep_of_lists(levels: int) -> bytes:
    """A tuple as deep, made of lists that are remembered when they are empty, and filled later."""
    size = b"ctorch\nSize\nq\x000)q\x010"
    return size + b"]q\x02h\x01a0h\x00h\x02\x85Rq\x010" * levels + b"h\x01"


@pytest.mark.parametrize(
    "program",
    [
        b"Nr\x00\xff\xff\x7f.",  # remembered as number 2^31: Python makes room for all before it
        b"Np2000000000\n.",
        b"}" + b")" + b"\x85" * 400_000 + b"Ns.",  # a key so deep that its hash overflows the stack
        b"()" + b"\x85" * 400_000 + b"\x91.",
        b"}" + deep_of_lists(3000) + b"Ns.",
        b"]" * 3000 + b"a" * 2999 + b".",
        b"}" + doubled(60) + b"Ns.",  # a key of 2^60 parts
        doubled(60) + b"Q.",
        b"ctorch\ndevice\n" + doubled(60) + b"\x85R.",
    ],
)
def test_a_program_that_would_end_the_process_is_refused_before_it_begins(program: bytes, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"remembered as number|values too deep") as error:
        read_saved(write_zip(tmp_path / "x.pt", program), ADVICE)

    assert 1 == len(error.value.faults)


def test_what_python_pickles_is_never_too_deep(tmp_path: Path) -> None:
    """Shared parts, long lists and nesting as an options file has it."""
    options: Any = {"a": 1}
    for _ in range(60):
        options = {"section": options, "list": [options["a"]] if "a" in options else []}
    saved = {"options": options, "trace": [{"epoch": epoch, "of": options} for epoch in range(500)]}
    for protocol in range(2, 6):
        torch.save(saved, tmp_path / "x.pt", pickle_protocol=protocol)
        assert saved == read_saved(tmp_path / "x.pt", ADVICE)


def storage(dtype: str, key: str, count: int, tail: bytes) -> bytes:
    """A pickle of one tensor by hand: storage, offset, shape, stride."""
    persistent = f"(Vstorage\nctorch\n{dtype}\nV{key}\nVcpu\nI{count}\nt".encode()
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + persistent + b"Q" + tail + b"tR."


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "expected a pickle that can be read"),
        (b"garbage", "expected a pickle that can be read"),
        (storage("FloatStorage", "0", 99, b"I0\n(I2\nI2\nt(I2\nI1\nt"), "tensor 0 is larger than its record"),
        (storage("FloatStorage", "9", 4, b"I0\n(I2\nI2\nt(I2\nI1\nt"), "data/9"),
        (storage("FloatStorage", "0", 4, b"I3\n(I2\nI2\nt(I2\nI1\nt"), "a tensor beyond its storage"),
        (storage("FloatStorage", "0", 4, b"I0\n(I2\nI2\nt(I1\nI2\nt"), "not next to each other"),
        (storage("NoStorage", "0", 4, b"I0\n(I2\nI2\nt(I2\nI1\nt"), "storage"),
    ],
)
def test_a_damaged_file_is_one_line(data: bytes, fault: str, tmp_path: Path) -> None:
    path = write_zip(tmp_path / "x.pt", data, **{"0": np.arange(4, dtype=np.float32).tobytes()})

    with pytest.raises(StorageError, match=fault) as error:
        read_saved(path, ADVICE)

    assert 1 == len(error.value.faults)


def test_the_pickle_by_hand_is_right(tmp_path: Path) -> None:
    data = storage("FloatStorage", "0", 4, b"I0\n(I2\nI2\nt(I2\nI1\nt")
    path = write_zip(tmp_path / "x.pt", data, **{"0": np.arange(4, dtype=np.float32).tobytes()})

    found = read_saved(path, ADVICE)

    assert isinstance(found, StoredTensor)
    assert [[0.0, 1.0], [2.0, 3.0]] == found.rows().load().tolist()


def test_files_that_are_no_archives_are_named(tmp_path: Path) -> None:
    (tmp_path / "text.pt").write_text("x")
    (tmp_path / "old.pt").write_bytes(pickle.dumps({"a": 1}))
    with zipfile.ZipFile(tmp_path / "other.pt", "w") as archive:
        archive.writestr("readme", "x")

    for name, fault in (("text", "1.6 or later"), ("old", "1.6 or later"), ("other", "without data.pkl")):
        with pytest.raises(StorageError, match=fault):
            read_saved(tmp_path / f"{name}.pt", ADVICE)
    with pytest.raises(StorageError, match="No such file"):
        read_saved(tmp_path / "absent.pt", ADVICE)


def test_a_compressed_record_is_refused(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    torch.save({"a": torch.zeros(64, 64)}, buffer)
    with zipfile.ZipFile(buffer) as source, zipfile.ZipFile(tmp_path / "x.pt", "w", zipfile.ZIP_DEFLATED) as target:
        for name in source.namelist():
            target.writestr(name, source.read(name))

    with pytest.raises(StorageError, match="is compressed"):
        read_saved(tmp_path / "x.pt", ADVICE)


def test_a_compressed_pickle_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """Of a few kilobytes it may make gigabytes."""
    with zipfile.ZipFile(tmp_path / "x.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"(" + b"N0" * 1_000_000 + b"N.")

    with pytest.raises(StorageError, match=r"data\.pkl is compressed"):
        read_saved(tmp_path / "x.pt", ADVICE)


@pytest.mark.parametrize(
    ("offset", "value", "fault"),
    [(6, 251, "zip file version 25.1"), (8, 1, "is compressed or encrypted"), (10, 99, "is compressed or encrypted")],
)
def test_an_archive_that_needs_more_than_reading_is_refused(
    offset: int, value: int, fault: str, tmp_path: Path
) -> None:
    """In the directory of the archive: the version that is needed, flags, the way of compression."""
    data = bytearray(write_zip(tmp_path / "x.pt", pickle.dumps({}, 2)).read_bytes())
    data[data.index(b"PK\x01\x02") + offset] = value
    (tmp_path / "x.pt").write_bytes(data)

    with pytest.raises(StorageError, match=fault):
        read_saved(tmp_path / "x.pt", ADVICE)


def test_the_old_format_is_refused_and_nothing_of_it_runs(tmp_path: Path) -> None:
    """Of torch before 1.6: pickles one after another, without an archive; and an archive within an archive."""
    mark = tmp_path / "it ran"
    torch.save({"x": Calls(open, str(mark), "w")}, tmp_path / "x.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(StorageError, match=r"1\.6 or later"):
        read_saved(tmp_path / "x.pt", ADVICE)
    assert not mark.exists()
    inner = write_zip(tmp_path / "inner.zip", pickle.dumps(Calls(open, str(mark), "w"), 2)).read_bytes()
    with zipfile.ZipFile(tmp_path / "x.pt", "w") as archive:
        archive.writestr("outer/inner.zip", inner)
    with pytest.raises(StorageError, match=r"without data\.pkl"):
        read_saved(tmp_path / "x.pt", ADVICE)
    assert not mark.exists()


def test_a_type_of_numbers_that_numpy_lacks_is_named(tmp_path: Path) -> None:
    torch.save(torch.zeros(2, 2, dtype=torch.bfloat16), tmp_path / "x.pt")

    with pytest.raises(StorageError, match=r"storage torch\.BFloat16Storage: nothing was run; set trust_pickle"):
        read_saved(tmp_path / "x.pt", ADVICE)


def test_a_tensor_that_is_no_table_is_refused(tmp_path: Path) -> None:
    torch.save([torch.zeros(3), torch.zeros(2, 2, dtype=torch.int64)], tmp_path / "x.pt")

    for stored in read_saved(tmp_path / "x.pt", ADVICE):  # type: ignore[attr-defined]
        with pytest.raises(StorageError, match="expected a tensor of vectors"):
            stored.rows()
