"""A file that holds a pickle is read without running any of it."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import zipfile
from collections import OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pbgeval.errors import StorageError
from pbgeval.models import pickles
from pbgeval.models.opening import open_model
from pbgeval.models.pickles import StandIn, read_pickle, read_saved, read_trusting, stored_rows
from tests.kit.commands import run_main
from tests.kit.refusals import fault_of
from tests.systems_reference import LibkgeCheckpoint

ADVICE = "set trust_pickle"


class Calls:
    """Unpickling calls a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.function, self.arguments


def write_zip(path: Path, data: bytes, *, byteorder: str = "little", **records: bytes) -> Path:
    """Write an archive as torch.save does, with any pickle."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", data)
        archive.writestr("archive/byteorder", byteorder)
        archive.writestr("archive/version", "3\n")
        for name, content in records.items():
            archive.writestr(f"archive/data/{name}", content)
    return path


def refusal(path: Path) -> str:
    """The one line that says what is wrong with a file."""
    return fault_of(lambda: read_tables(path), StorageError)


def read_tables(path: Path) -> Any:
    """Read a file, and look for the numbers of a tensor if that is what it holds."""
    found = read_saved(path, ADVICE)
    return stored_rows(path, found) if isinstance(found, torch.Tensor) else found


def test_containers_and_tensors_are_read_and_other_classes_stand_in(tmp_path: Path) -> None:
    table = torch.arange(12.0).view(4, 3)
    saved = {"table": table, "part": table[1:3], "list": [1, 2.5, None, "x"], "set": {1}, "size": table.shape}
    saved |= {"parameter": torch.nn.Parameter(table), "double": table.double(), "half": table.half()}
    saved |= {"odd": OrderedDict(a=torch.arange(3)), "numpy": (np.float64(3.0), np.arange(3)), "frozen": frozenset({2})}
    saved["default"] = defaultdict(list, {"a": 1})
    torch.save(saved, tmp_path / "x.pt")

    found: Any = read_saved(tmp_path / "x.pt", ADVICE)

    assert (found["list"], found["set"], found["size"]) == ([1, 2.5, None, "x"], {1}, (4, 3))
    assert (found["frozen"], found["default"], found["odd"]["a"].shape) == (frozenset({2}), {"a": 1}, (3,))
    for name in ("table", "part", "parameter", "double", "half"):
        assert found[name].is_meta  # nothing of it has been read
        rows = stored_rows(tmp_path / "x.pt", found[name])
        assert rows.load().tolist() == rows.read_rows(0, rows.num_rows).tolist() == saved[name].tolist()
    assert all(isinstance(one, StandIn) for one in found["numpy"])


HOSTILE = {
    "os.system": Calls(os.system, "touch {mark}"),
    "subprocess": Calls(subprocess.Popen, ["touch", "{mark}"]),
    "eval": Calls(eval, "open('{mark}', 'w')"),
    "exec": Calls(exec, "open('{mark}', 'w')"),
    "open": Calls(open, "{mark}", "w"),
    "getattr": Calls(getattr, 1, "__class__"),
    "import": Calls(__import__, "antigravity"),
    "torch.load": Calls(torch.load, "{mark}"),
    "a class that is called": Calls(Path, "{mark}"),
    "what torch makes tensors of other types with": Calls(
        torch._tensor._rebuild_from_type_v2, eval, torch.Tensor, ("open('{mark}', 'w')",), None
    ),
    "what torch wraps tensors with": Calls(torch._utils._rebuild_parameter_with_state, Calls(eval, "1"), 1, {}, {}),
}


def marked(value: Any, mark: str) -> Any:
    if isinstance(value, Calls):
        return Calls(value.function, *(marked(argument, mark) for argument in value.arguments))
    if isinstance(value, list | tuple):
        return type(value)(marked(item, mark) for item in value)
    return value.replace("{mark}", mark) if isinstance(value, str) else value


@pytest.mark.parametrize("hidden_in", ["model", "config", "valid_trace"])
@pytest.mark.parametrize("name", list(HOSTILE))
def test_of_a_hostile_pickle_nothing_runs_and_one_line_says_so(name: str, hidden_in: str, tmp_path: Path) -> None:
    mark = tmp_path / "it ran"
    LibkgeCheckpoint(tmp_path / "x.pt", "complex", more={hidden_in: marked(HOSTILE[name], str(mark))})


    assert refusal(tmp_path / "x.pt").endswith(": nothing was run; set trust_pickle")
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

    for one in (done, run_main("import-model", "x.pt", "--output", "converted", cwd=tmp_path)):
        assert (one.status, one.out, len(one.faults)) == (1, "", 1)
        assert "GLOBAL posix.system whose module posix is blocked.: nothing was run" in one.err
        assert "trust_pickle = True" in one.err
        assert "scripts/export_libkge.py" in one.err
        assert "weights_only" not in one.err
    assert not mark.exists()
    assert not (tmp_path / "converted").exists()


def test_a_pickle_that_is_trusted_runs(tmp_path: Path) -> None:
    mark = tmp_path / "it ran"
    torch.save({"x": Calls(open, str(mark), "w")}, tmp_path / "x.pt")

    read_trusting(tmp_path / "x.pt")["x"].close()

    assert mark.exists()


@pytest.mark.parametrize(
    "program",
    [
        b"(S'touch {mark}'\nios\nsystem\n.",  # INST
        b"(cos\nsystem\nS'touch {mark}'\no.",  # OBJ
        b"\x82\x01.",  # a global of the extension registry
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x0ctouch {mark}\x85R.",  # a global from the stack
        b"ccollections\nOrderedDict\n}S'__class__'\ncos\nsystem\nsb.",
        b"cmine.module\nMine\n)\x81}X\x05\x00\x00\x00stateK\x01sb(tR.",  # an object is called
    ],
)
def test_other_ways_to_call_are_refused_too(program: bytes, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    refusal(write_zip(tmp_path / "x.pt", program.replace(b"{mark}", str(mark).encode())))
    assert not mark.exists()


def tensor_of(
    dtype: str = "Float",
    *,
    key: int = 0,
    num_values: int = 4,
    first: int = 0,
    shape: object = (2, 2),
    stride: object = (2, 1),
) -> bytes:
    """A pickle of one tensor, by hand."""
    storage = f"(X\x07\x00\x00\x00storagectorch\n{dtype}Storage\nX\x01\x00\x00\x00{key}X\x03\x00\x00\x00cpu".encode()
    count, *place = (pickle.dumps(part, 2)[2:-1] for part in (num_values, first, shape, stride))
    further = b"\x89ccollections\nOrderedDict\n)R"
    return (
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(" + storage + count + b"tQ" + b"".join(place) + further + b"tR."
    )


VALUES = np.arange(4, dtype=np.float32).tobytes()


def test_a_tensor_by_hand_is_read(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "x.pt", tensor_of(), **{"0": VALUES, "1": VALUES})
    found: Any = read_saved(path, ADVICE)
    assert stored_rows(path, found).load().tolist() == [[0.0, 1.0], [2.0, 3.0]]


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_values": 99},
        {"num_values": 99, "shape": (30, 3), "stride": (3, 1)},
        {"num_values": 2**61},
        {"num_values": 4.5},
        {"key": 9},
        {"first": 3},
        {"first": -1},
        {"first": 1.0},
        {"shape": (3, 3), "stride": (3, 1)},
        {"shape": (-2, -2)},
        {"shape": (2.0, 2.0)},
        {"shape": "22"},
        {"shape": (2**62, 2**62), "stride": (1, 1)},
        {"stride": (1, 2)},
        {"stride": (0, 0)},
        {"stride": (2, None)},
        {"dtype": "No"},
        {"dtype": "Double"},
        {"dtype": "ComplexFloat"},
        {"dtype": "Long", "num_values": 2, "shape": (1, 2)},
        {"shape": (4,), "stride": (1,)},
        {"shape": (0, 2)},
    ],
)
def test_a_tensor_that_is_not_within_its_record_or_no_table_is_refused(wrong: dict[str, Any], tmp_path: Path) -> None:
    refusal(write_zip(tmp_path / "x.pt", tensor_of(**wrong), **{"0": VALUES, "1": VALUES}))


def test_files_that_are_no_archives_of_torch_are_named(tmp_path: Path) -> None:
    (tmp_path / "text.pt").write_text("x")
    (tmp_path / "plain.pt").write_bytes(pickle.dumps({"a": 1}))
    torch.save({"a": 1}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    (tmp_path / "tar.pt").write_bytes(b"x" * 257 + b"ustar" + b"x" * 300)
    write_zip(tmp_path / "inner.zip", b"N.")
    with zipfile.ZipFile(tmp_path / "other.pt", "w") as archive:
        archive.writestr("outer/inner.zip", (tmp_path / "inner.zip").read_bytes())

    for name in ("text", "plain", "old", "tar", "other"):
        assert "expected tensors and plain values of torch.save (1.6 or later), found: " in refusal(
            tmp_path / f"{name}.pt"
        )
    assert "No such file" in refusal(tmp_path / "absent.pt")
    (tmp_path / "folder.pt").mkdir()
    assert "Is a directory" in refusal(tmp_path / "folder.pt")


def test_a_model_with_compiled_code_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(write_zip(tmp_path / "x.pt", b"N."), "a") as archive:
        archive.writestr("archive/constants.pkl", b"N.")
    assert "torchscript" in refusal(tmp_path / "x.pt")


@pytest.mark.parametrize("record", ["data.pkl", "data/0"])
def test_a_compressed_record_is_refused_before_it_is_read(record: str, tmp_path: Path) -> None:
    """Of a few kilobytes it may make gigabytes, and a table in it cannot be mapped."""
    buffer = io.BytesIO()
    torch.save({"a": torch.zeros(64, 64)}, buffer)
    with zipfile.ZipFile(buffer) as source, zipfile.ZipFile(tmp_path / "x.pt", "w") as target:
        for name in source.namelist():
            kind = zipfile.ZIP_DEFLATED if name.endswith(record) else zipfile.ZIP_STORED
            target.writestr(name, source.read(name), kind)

    assert f"{record} is compressed or encrypted" in refusal(tmp_path / "x.pt")


@pytest.mark.parametrize("name", ["data.pkl", "DATA.PKL", "Data.Pkl"])
def test_a_pickle_is_not_read_where_it_is_large(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a list within a list, a byte takes a hundred in memory; torch finds a record in capitals too."""
    with zipfile.ZipFile(tmp_path / "x.pt", "w") as archive:
        archive.writestr(f"archive/{name}", b"\x80\x02" + b"]" * 5000 + b".")
        archive.writestr("archive/version", "3\n")
    monkeypatch.setattr(pickles, "MAX_PICKLE_BYTES", 4000)

    assert "found: a pickle of more than 0 MB: nothing was run; " in refusal(tmp_path / "x.pt")


DEEP = b"\x85" * 400_000  # tuples of one
LEVELS = {
    "plain": DEEP,
    "beside others": b"N\x86" * 400_000,
    "by marks": b"(" * 400_000 + b")" + b"t" * 400_000,
    "after a mark that is taken back": b"(0\x85" * 400_000,
    "from the memo": b"q\x010h\x01\x85" * 400_000,
    "in a list": b"\x85" * 99 + b"q\x010](h\x01e\x85\x85",
}


@pytest.mark.parametrize("form", list(LEVELS))
@pytest.mark.parametrize("is_archive", [False, True])
def test_tuples_of_many_levels_do_not_end_the_process(form: str, is_archive: bool, tmp_path: Path) -> None:
    """A name that is such a tuple is hashed, without a limit of Python's."""
    data = b"\x80\x02}" + (b"" if form == "by marks" else b")") + LEVELS[form] + b"Ns."
    if is_archive:
        fault = refusal(write_zip(tmp_path / "x.pt", data))
    else:
        (tmp_path / "x").write_bytes(data)
        fault = fault_of(lambda: read_pickle(tmp_path / "x"))

    assert "found: tuples of many levels: nothing was run; " in fault


def test_numbers_of_big_endian_machines_are_refused(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "x.pt", tensor_of(), byteorder="big", **{"0": VALUES})
    assert "numbers of big-endian machines" in refusal(path)


def test_nothing_stays_allowed_afterwards(tmp_path: Path) -> None:
    before = set(torch.serialization.get_safe_globals())
    LibkgeCheckpoint(tmp_path / "x.pt", "complex")
    open_model(tmp_path / "x.pt")
    torch.save({"x": Calls(eval, "1")}, tmp_path / "x.pt")
    refusal(tmp_path / "x.pt")
    assert set(torch.serialization.get_safe_globals()) == before
