"""A file that holds a pickle is read without running any of it."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import warnings
import zipfile
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pbgeval.errors import StorageError
from pbgeval.models import pickles
from pbgeval.models.pickles import StandIn, read_pickle, read_saved, read_trusting, stored_rows
from pbgeval.models.saved_tensors import SavedTensor
from tests.hostile_tensors import TOUCHES, Calls
from tests.kit.commands import lacking, run_main
from tests.kit.refusals import fault_of
from tests.systems_reference import LibkgeCheckpoint

ADVICE = "set trust_pickle"


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
    return stored_rows(path, found) if isinstance(found, SavedTensor) else found


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
        assert isinstance(found[name], SavedTensor)  # nothing of it has been read
        rows = stored_rows(tmp_path / "x.pt", found[name])
        assert rows.load().tolist() == rows.read_rows(0, rows.num_rows).tolist() == saved[name].tolist()
    assert all(isinstance(one, StandIn) for one in found["numpy"])


HOSTILE = {
    "os.system": TOUCHES,
    "subprocess": Calls(subprocess.Popen, ["touch", "it_ran"]),
    "eval": Calls(eval, "open('it_ran', 'w')"),
    "exec": Calls(exec, "open('it_ran', 'w')"),
    "open": Calls(open, "it_ran", "w"),
    "getattr": Calls(getattr, 1, "__class__"),
    "import": Calls(__import__, "antigravity"),
    "torch.load": Calls(torch.load, "it_ran"),
    "a class that is called": Calls(Path, "it_ran"),
    "what torch makes tensors of other types with": Calls(
        torch._tensor._rebuild_from_type_v2, eval, torch.Tensor, ("open('it_ran', 'w')",), None
    ),
    "what torch wraps tensors with": Calls(torch._utils._rebuild_parameter_with_state, Calls(eval, "1"), 1, {}, {}),
}


@pytest.fixture(autouse=True)
def _in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("hidden_in", ["model", "config", "valid_trace"])
@pytest.mark.parametrize("name", list(HOSTILE))
def test_of_a_hostile_pickle_nothing_runs_and_one_line_says_so(name: str, hidden_in: str, tmp_path: Path) -> None:
    LibkgeCheckpoint(tmp_path / "x.pt", "complex", more={hidden_in: HOSTILE[name]})

    assert refusal(tmp_path / "x.pt").endswith(": nothing was run; set trust_pickle")
    assert os.listdir() == ["x.pt"]


def test_the_command_refuses_a_hostile_file_in_one_line_and_runs_nothing(tmp_path: Path) -> None:
    LibkgeCheckpoint(tmp_path / "x.pt", "complex", more={"epoch": TOUCHES})

    fault = run_main("import-model", "x.pt", "--output", "converted", cwd=tmp_path).fault

    system = "found: a pickle that calls posix.system: nothing was run"
    assert lacking(fault, system, "trust_pickle = True", "kgeval-dist template export_libkge") == []
    assert ("weights_only" in fault, os.listdir()) == (False, ["x.pt"])


def test_a_pickle_that_is_trusted_runs(tmp_path: Path) -> None:
    torch.save({"x": Calls(open, "it_ran", "w")}, tmp_path / "x.pt")

    read_trusting(tmp_path / "x.pt")["x"].close()

    assert (tmp_path / "it_ran").exists()


@pytest.mark.parametrize(
    "program",
    [
        b"(S'touch it_ran'\nios\nsystem\n.",  # INST
        b"(cos\nsystem\nS'touch it_ran'\no.",  # OBJ
        b"\x82\x01.",  # a global of the extension registry
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x0ctouch it_ran\x85R.",  # a global from the stack
        b"ccollections\nOrderedDict\n}S'__class__'\ncos\nsystem\nsb.",
        b"cmine.module\nMine\n)\x81}X\x05\x00\x00\x00stateK\x01sb(tR.",  # an object is called
    ],
)
def test_other_ways_to_call_are_refused_too(program: bytes, tmp_path: Path) -> None:
    refusal(write_zip(tmp_path / "x.pt", program))
    assert os.listdir() == ["x.pt"]


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
        {"num_values": 2**61},
        {"num_values": 4.5},
        {"key": 9},
        {"first": 3},
        {"first": -1},
        {"shape": (3, 3), "stride": (3, 1)},
        {"shape": (-2, -2)},
        {"shape": "22"},
        {"shape": (2**62, 2**62), "stride": (1, 1)},
        {"stride": (1, 2)},
        {"stride": (2, None)},
        {"dtype": "No"},
        {"dtype": "Double"},
        {"dtype": "ComplexFloat"},
        {"shape": (4,), "stride": (1,)},
        {"shape": (0, 2)},
    ],
)
def test_a_tensor_that_is_not_within_its_record_or_no_table_is_refused(wrong: dict[str, Any], tmp_path: Path) -> None:
    refusal(write_zip(tmp_path / "x.pt", tensor_of(**wrong), **{"0": VALUES, "1": VALUES}))


def zip_in_a_zip(path: Path) -> None:
    inner = write_zip(path.with_suffix(".zip"), b"N.")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("outer/inner.zip", inner.read_bytes())


def compiled(path: Path) -> None:
    with zipfile.ZipFile(write_zip(path, b"N."), "a") as archive:
        archive.writestr("archive/constants.pkl", b"N.")


NO_ARCHIVE = "expected tensors and plain values of torch.save (1.6 or later), found: "


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (lambda path: path.write_text("x"), NO_ARCHIVE),
        (lambda path: path.write_bytes(pickle.dumps({"a": 1})), NO_ARCHIVE),
        (lambda path: torch.save({"a": 1}, path, _use_new_zipfile_serialization=False), NO_ARCHIVE),
        (lambda path: path.write_bytes(b"x" * 257 + b"ustar" + b"x" * 300), NO_ARCHIVE),
        (zip_in_a_zip, NO_ARCHIVE),
        (lambda path: None, "No such file"),
        (Path.mkdir, "Is a directory"),
        (compiled, "torchscript"),
        (
            lambda path: write_zip(path, tensor_of(), byteorder="big", **{"0": VALUES}),
            "numbers of big-endian machines",
        ),
    ],
)
def test_files_that_are_no_archives_of_torch_are_named(
    make: Callable[[Path], object], fault: str, tmp_path: Path
) -> None:
    make(tmp_path / "x.pt")

    assert fault in refusal(tmp_path / "x.pt")


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
@pytest.mark.parametrize("read", [read_tables, read_pickle])
def test_tuples_of_many_levels_do_not_end_the_process(
    form: str, read: Callable[[Path], object], tmp_path: Path
) -> None:
    """A name that is such a tuple is hashed, without a limit of Python's."""
    data = b"\x80\x02}" + (b"" if form == "by marks" else b")") + LEVELS[form] + b"Ns."
    write_zip(tmp_path / "x.pt", data)
    (tmp_path / "x").write_bytes(data)

    fault = fault_of(lambda: read(tmp_path / ("x.pt" if read is read_tables else "x")))
    assert "found: tuples of many levels: nothing was run; " in fault


@pytest.mark.parametrize("make", [lambda of: of.to("meta"), lambda of: of.to_sparse(), lambda of: of.to_sparse_csr()])
@pytest.mark.parametrize("find", [stored_rows, pickles.stored_at])
def test_a_tensor_whose_numbers_are_not_in_the_file_as_they_are_is_refused(
    make: Callable[[torch.Tensor], torch.Tensor], find: Callable[..., object], tmp_path: Path
) -> None:
    path = tmp_path / "x.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the state of CSR in torch
        torch.save(make(torch.ones(4, 3)), path)
    found: Any = read_saved(path, ADVICE)

    fault = fault_of(lambda: find(path, found), StorageError)
    assert "meta, which keeps none; save" in fault or "sparse or nested" in fault


def with_attribute(tensor: torch.Tensor) -> torch.Tensor:
    tensor.note = "of training"  # type: ignore[attr-defined]
    return tensor


@pytest.mark.parametrize(
    "make",
    [
        torch.nn.Parameter,
        lambda of: with_attribute(torch.nn.Parameter(of)),
        with_attribute,
        lambda of: OrderedDict(of=of)["of"],
        lambda of: torch.arange(24.0).view(2, 4, 3)[1] - 12,
        lambda of: torch.cat([of, of])[4:],
    ],
)
def test_every_form_of_a_dense_tensor_is_found_in_its_file(
    make: Callable[[torch.Tensor], torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By any version of torch: none of its unpickling takes part."""
    table = make(torch.arange(12.0).view(4, 3))
    torch.save({"table": table}, tmp_path / "x.pt")
    monkeypatch.setattr(torch, "load", None)
    monkeypatch.setattr(torch.serialization, "_load", None)

    found: Any = read_saved(tmp_path / "x.pt", ADVICE)
    assert stored_rows(tmp_path / "x.pt", found["table"]).load().tolist() == torch.arange(12.0).view(4, 3).tolist()


STORAGE = b"(X\x07\x00\x00\x00storagectorch%s\n%sStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK%ctQ"
PLACE = b"K\x00K\x02K\x02\x86K\x02K\x01\x86"


@pytest.mark.parametrize(
    "program",
    [
        b"ctorch._utils\n_rebuild_tensor\n(" + STORAGE % (b"", b"Float", 4) + PLACE + b"tR.",
        b"ctorch._utils\n_rebuild_tensor_v3\n("
        + STORAGE % (b".storage", b"Untyped", 16)
        + PLACE
        + b"\x89Nctorch\nfloat32\ntR.",
        b"ctorch._utils\n_rebuild_tensor\n(" + STORAGE % (b".cuda", b"Float", 4) + PLACE + b"tR.",
        b"ctorch.nn.parameter\nParameter\nctorch._utils\n_rebuild_tensor\n("
        + STORAGE % (b"", b"Float", 4)
        + PLACE
        + b"tR\x85\x81.",
    ],
)
def test_tensors_as_older_and_newer_torch_writes_them_are_read(program: bytes, tmp_path: Path) -> None:
    path = write_zip(tmp_path / "x.pt", b"\x80\x02" + program, **{"0": VALUES})
    found: Any = read_saved(path, ADVICE)
    assert stored_rows(path, found).load().tolist() == [[0.0, 1.0], [2.0, 3.0]]


def quantized(of: torch.Tensor) -> torch.Tensor:
    return torch.quantize_per_tensor(of, 0.5, 0, torch.qint8)


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (quantized, "found qint8 of shape (4, 3)"),
        (lambda of: torch.nested.nested_tensor([of, of[:1]]), "found float32 of a sparse or nested tensor"),
        (lambda of: of.to_sparse().bfloat16(), "found bfloat16 of a sparse or nested tensor"),
        (lambda of: of.T, "found one whose numbers are not next to each other"),
        (lambda of: torch._neg_view(of), "marked to be negated or conjugated"),
        (lambda of: torch.complex(of, of).conj(), "found complex64 of shape (4, 3)"),
        (lambda of: of.long(), "found int64 of shape (4, 3)"),
    ],
)
def test_a_tensor_that_is_no_table_is_refused_and_the_others_are_read(
    make: Callable[[torch.Tensor], torch.Tensor], fault: str, tmp_path: Path
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what torch calls a prototype
        torch.save({"other": make(torch.ones(4, 3)), "table": torch.ones(2, 2)}, tmp_path / "x.pt")

    found: Any = read_saved(tmp_path / "x.pt", ADVICE)

    assert stored_rows(tmp_path / "x.pt", found["table"]).load().tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert fault in fault_of(lambda: stored_rows(tmp_path / "x.pt", found["other"]), StorageError)


@pytest.mark.parametrize(
    ("program", "fault"),
    [
        (b"cnumpy\ndtype\nN}S'__defaults__'\nN\x85s\x86b.", "a state for function, which has none"),
        (b"c_codecs\nencode\n]R.", "a call whose arguments are no tuple"),
        (b"c__builtin__\nbytearray\n(X\x01\x00\x00\x00aX\x08\x00\x00\x00punycodetR.", "text in another encoding"),
        (b"ctorch._utils\n_rebuild_parameter\n(NNNtR.", "a parameter that is no tensor"),
        (b"ctorch._utils\n_rebuild_meta_tensor_no_storage\n(NK\x01\x85K\x01\x85NtR.", "a tensor of an unknown type"),
        (b"X\x01\x00\x00\x00aQ.", "a reference to what is no storage"),
    ],
)
def test_calls_that_make_neither_values_nor_tensors_are_named(program: bytes, fault: str, tmp_path: Path) -> None:
    assert f"found: {fault}" in refusal(write_zip(tmp_path / "x.pt", b"\x80\x02" + program))


def test_an_archive_with_a_record_twice_is_refused(tmp_path: Path) -> None:
    """One reader would take the first, another the last."""
    path = write_zip(tmp_path / "x.pt", tensor_of(), **{"0": VALUES})
    with warnings.catch_warnings(), zipfile.ZipFile(path, "a") as archive:
        warnings.simplefilter("ignore")
        archive.writestr("archive/data/0", VALUES[::-1])

    assert "found: record archive/data/0 is in another folder, or stands twice" in refusal(path)
