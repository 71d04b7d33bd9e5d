"""`kgeval-dist import-graph`: what it prints and writes, and faults in one line that leave nothing behind."""

from __future__ import annotations

import gzip
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import h5py
import numpy as np
import pytest

from pbgeval.storage import writing as files
from tests.edges_by_name import write_edges_by_name
from tests.imported_graph import buckets_in, names_in, relations_in, unknown_in
from tests.tiny_checkpoint import Done, TinyCase, run_command, run_main

GRAPH = b"a\tr\tb\nb\tr\tc\nc\ts\ta\na\tr\tb\n"


def imported(folder: Path, *flags: str, edges: bytes = GRAPH, name: str = "train.tsv") -> Done:
    """Import a file with these bytes."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(edges)
    return run_main("import-graph", "--output", "graph", "--edges", f"train={name}", *flags, cwd=folder)


def test_an_import_says_what_it_wrote(tmp_path: Path) -> None:
    (tmp_path / "test.tsv").write_text("a\tr\tz\nb\ts\tc\nb\tt\tc\n", encoding="utf-8")

    flags = ("--edges", "test=test.tsv", "--dictionary-of", "train", "--partitions", "2", "--max-memory", "500MB")
    done = imported(tmp_path, *flags)

    assert 0 == done.status
    assert [
        "graph/entity: 3 entities of type all in 2 partitions of 1 to 2",
        "graph/train: 4 edges in 3 buckets, 1 of them repeat another",
        "graph/test: 1 edges in 1 buckets",
        "graph/test/unknown.tsv: 2 edges left out, whose 1 entities, 1 relations are unknown",
    ] == done.out.splitlines()
    assert {("entity:all", "z"): 1, ("relation", "t"): 1} == unknown_in(tmp_path / "graph" / "test" / "unknown.tsv")
    document = json.loads((tmp_path / "graph" / "import.json").read_text())
    assert {"num_read": 3, "num_written": 1, "num_left_out": 2, "num_repeated": 0} == {
        key: document["edges"]["test"][key] for key in ("num_read", "num_written", "num_left_out", "num_repeated")
    }
    assert {"entity", "train", "test", "import.json"} == set(os.listdir(tmp_path / "graph"))
    assert [] == [name for name in os.listdir(tmp_path) if name.startswith(".")]


def test_a_later_import_reuses_the_dictionaries(tmp_path: Path) -> None:
    first = imported(tmp_path, "--partitions", "2", "--quiet")
    (tmp_path / "later.tsv").write_bytes(b"c\tr\tb\nnew\tr\ta\n")

    flags = ("--output", "later", "--edges", "test=later.tsv", "--entities", "graph/entity")
    done = run_main("import-graph", *flags, cwd=tmp_path)

    assert (0, "", "") == (first.status, first.out, first.err)
    assert 0 == done.status, done.err
    names = names_in(tmp_path / "graph" / "entity", {"all": 2})["all"]
    places = {name: (part, row) for part, of_part in enumerate(names) for row, name in enumerate(of_part)}
    (left, lhs), (right, rhs) = places["c"], places["b"]
    assert {(left, right): [(lhs, relations_in(tmp_path / "graph" / "entity").index("r"), rhs)]} == buckets_in(
        tmp_path / "later" / "test"
    )
    assert not (tmp_path / "later" / "entity").exists()


def test_edges_written_as_text_and_imported_have_the_figures_of_the_original(tmp_path: Path) -> None:
    case = TinyCase.write(tmp_path, dynamic=True)
    write_edges_by_name(case)
    flags = ("--output", "graph", "--edges", "edges=edges.tsv", "--entities", "entity")
    assert 0 == run_main("import-graph", *flags, cwd=tmp_path).status
    assert buckets_in(tmp_path / "edges") == buckets_in(tmp_path / "graph" / "edges")

    figures = []
    for output, path in (("original", "edges"), ("imported", "graph/edges")):
        done = run_command(case, "--workers", "1", "--output", output, "-p", f"edge_paths={path}")
        assert 0 == done.status, done.err
        document = json.loads((tmp_path / output / "metrics.json").read_text())
        figures.append((document["metrics"], document["num_edges"], document["diagnostics"]))
    assert figures[0] == figures[1]


def test_what_is_written_tells_nothing_of_when(tmp_path: Path) -> None:
    """Else the digest of an evaluation would change with every import of the same files."""
    assert 0 == imported(tmp_path, "--order", "hrtw", edges=b"a\tr\tb\t1\n").status

    with h5py.File(tmp_path / "graph" / "train" / "edges_0_0.h5") as file:
        times = {name: h5py.h5g.get_objinfo(file[name].id).mtime for name in file}

    assert dict.fromkeys(("lhs", "rel", "rhs", "weight"), 0) == times


def parquet(path: Path, query: str) -> bytes:
    duckdb.sql(query).write_parquet(str(path))
    return path.read_bytes()


TEXT_FAULTS = {
    "ragged": (b"a\tr\tb\n\nb\tr\n", "train.tsv:3: expected 3 columns separated by tabs, found 2"),
    "too many columns": (b"a\tr\tb\tx\n", "train.tsv:1: expected 3 columns separated by tabs, found 4"),
    "empty": (b"", "train.tsv: expected at least one edge, found none"),
    "blank": (b"\n\n", "train.tsv: expected at least one edge, found none"),
    "latin-1": ("a\tr\tb\ncaf\xe9\tr\tb\n".encode("latin-1"), "train.tsv:2: expected UTF-8 text, found byte 0xe9"),
    "utf-16": ("a\tr\tb\n".encode("utf-16"), "train.tsv:1: expected UTF-8 text, found byte 0xff"),
    "no name": (b"a\tr\tb\n\nb\t\ta\n", "train.tsv:3: expected a name as rel, found nothing"),
    "cut gzip": (
        gzip.compress(GRAPH * 500)[:60],
        "train.tsv:1166: expected a text file that can be read, found: Compressed file ended",
    ),
    "line ends": (b"a\tr\tb\r\nb\tr\ta\nc\tr\ta\r\n", "train.tsv: expected lines of one form, all ended alike, found:"),
}


@pytest.mark.parametrize("fault", TEXT_FAULTS)
def test_a_fault_of_a_file_is_one_line_and_leaves_nothing(tmp_path: Path, fault: str) -> None:
    content, message = TEXT_FAULTS[fault]

    done = imported(tmp_path, "--quiet", edges=content)

    assert (1, "", 1) == (done.status, done.out, done.err.count("\n")), done.err
    assert done.err.startswith(message), done.err
    assert ["train.tsv"] == os.listdir(tmp_path)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--partitions", "4"], "--partitions 4: expected at most 3, the entities of type all"),
        (["--partitions", "0"], "--partitions 0: expected a number >= 1, or TYPE=NUMBER"),
        (["--partitions", "user=2"], "--partitions user: expected one of the types all"),
        (["--order", "hrx"], "--order hrx: expected h, r and t once each"),
        (["--order", "hrtw"], "train.tsv:1: expected 4 columns separated by tabs, found 3"),
        (["--columns", "a,r,x"], "train.tsv:1: expected a header with columns a, r, x, found a, r, b"),
        (["--columns", "a,r"], "--columns a,r: expected the names of three columns"),
        (
            ["--balance", "none"],
            "Invalid value for '--balance': 'none' is not one of 'random', 'degree'",
        ),
        (["--dictionary-of", "test"], "--dictionary-of test: expected one of train"),
        (["--edges", "test"], "--edges test: expected NAME=FILE"),
        (["--edges", "entity=train.tsv"], "--edges entity: expected the name of a folder"),
        (["--edges", "test=none.tsv"], "none.tsv: expected a file of edges that can be read, found: No such file"),
        (["--entities", "none"], "none: expected a folder of entities, found: No such file or directory"),
        (["--entities", "."], ".: expected entity_names_<type>_<partition>.json, found train.tsv"),
        (["--max-memory", "much"], "expected an amount of memory such as '800MB'"),
        (["--types", "train.tsv"], "train.tsv:4: expected each relation once, got 'a' again"),
    ],
)
def test_a_fault_of_a_flag_is_one_line_and_leaves_nothing(tmp_path: Path, flags: list[str], message: str) -> None:
    done = imported(tmp_path, "--quiet", *flags)

    assert (1, "", 1) == (done.status, done.out, done.err.count("\n")), done.err
    assert done.err.startswith(message), done.err
    assert ["train.tsv"] == os.listdir(tmp_path)


def test_relations_whose_types_nobody_says_are_named(tmp_path: Path) -> None:
    tmp_path.joinpath("types.tsv").write_text("r\tuser\titem\n", encoding="utf-8")

    done = imported(tmp_path, "--quiet", "--types", "types.tsv")

    assert done.err.startswith("types.tsv: expected the types of every relation, found none of s; add them")


def test_types_with_unlike_partitions_are_refused(tmp_path: Path) -> None:
    tmp_path.joinpath("types.tsv").write_text("*\tuser\titem\n", encoding="utf-8")

    done = imported(tmp_path, "--quiet", "--types", "types.tsv", "--partitions", "user=3", "--partitions", "2")

    assert "--partitions: expected 1 or the same number for every type, got item 2, user 3\n" == done.err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "edges.parquet: expected columns lhs, rel, rhs, found h, rel, rhs; name them by --columns"),
        (b"PAR1 and then something else", "edges.parquet: expected a Parquet file that can be read, found:"),
        (b"a\tr\tb\n", "edges.parquet: expected a Parquet file, found another format; is it whole?"),
    ],
)
def test_a_fault_of_parquet_is_one_line(tmp_path: Path, content: bytes | None, message: str) -> None:
    content = content or parquet(tmp_path / "edges.parquet", "SELECT 1 AS h, 2 AS rel, 3 AS rhs")

    done = imported(tmp_path, "--quiet", edges=content, name="edges.parquet")

    assert (1, 1) == (done.status, done.err.count("\n")), done.err
    assert done.err.startswith(message), done.err
    assert ["edges.parquet"] == os.listdir(tmp_path)


def test_a_ragged_line_of_zstd_is_named(tmp_path: Path) -> None:
    lines = "SELECT unnest(['a\tr\tb', 'b\tr', 'c\tr\ta'])"
    duckdb.sql(f"COPY ({lines}) TO '{tmp_path / 'x.zst'}' (FORMAT csv, HEADER false, DELIMITER '|', COMPRESSION zstd)")

    done = imported(tmp_path, "--quiet", edges=(tmp_path / "x.zst").read_bytes(), name="x.zst")

    assert done.err.startswith("x.zst:2: expected 3 columns separated by tabs, found 2;"), done.err
    assert (1, ["x.zst"]) == (done.err.count("\n"), os.listdir(tmp_path))


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        (b'h,r,t\n"a\nb",r,c\nb,r\n', "x.csv:4: expected 3 columns separated by commas, found 2"),
        (b'h,r,t\na,r,"c\n', "x.csv: expected quotes as in RFC 4180, found: unexpected end of data"),
        (b"h,r,h\na,r,c\n", "x.csv:1: expected a header that names each column once, found h, r, h"),
    ],
)
def test_a_fault_of_csv_is_one_line(tmp_path: Path, edges: bytes, message: str) -> None:
    done = imported(tmp_path, "--quiet", "--columns", "h,r,t", edges=edges, name="x.csv")

    assert (1, 1) == (done.status, done.err.count("\n")), done.err
    assert done.err.startswith(message), done.err


def test_a_missing_name_in_parquet_is_named_by_its_row(tmp_path: Path) -> None:
    query = "SELECT * FROM (VALUES (1, 2, 3), (1, NULL, 3)) t(lhs, rel, rhs)"

    done = imported(tmp_path, "--quiet", edges=parquet(tmp_path / "e.parquet", query), name="e.parquet")

    assert "e.parquet: row 1: expected a name as rel, found nothing\n" == done.err


@pytest.mark.parametrize("weight", ["nan", "-inf", "x", ""])
def test_a_weight_that_is_no_finite_number_is_named_by_its_line(tmp_path: Path, weight: str) -> None:
    edges = f"a\tr\tb\t1\nb\tr\ta\t{weight}\n".encode()

    done = imported(tmp_path, "--quiet", "--order", "hrtw", edges=edges)

    assert "train.tsv:2: expected a finite number as weight, found something else\n" == done.err


def test_a_folder_with_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "graph").mkdir()
    (tmp_path / "graph" / "mine").touch()

    done = imported(tmp_path)

    assert done.err.startswith("graph: expected a new or empty folder, found one with files; choose another")
    assert ["mine"] == os.listdir(tmp_path / "graph")


def test_a_disk_that_is_full_while_buckets_are_written_is_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(files.System):
        def write_at(self, descriptor: int, data: memoryview, offset: int) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "system", Full())

    done = imported(tmp_path, "--quiet")

    assert (1, 1) == (done.status, done.err.count("\n")), done.err
    assert "No space left on device" in done.err
    assert ["train.tsv"] == os.listdir(tmp_path)


def start(folder: Path, num_edges: int, most_bytes: int | None = None) -> subprocess.Popen[str]:
    """Start an import of many edges, of which no file may be longer than some bytes."""
    ids = np.random.default_rng(0).integers(1 << 40, size=(num_edges, 2)).tolist()
    (folder / "train.tsv").write_text("".join(f"{head}\tr\t{tail}\n" for head, tail in ids), encoding="utf-8")

    def limit() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background jobs ignore it
        if most_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))

    command = [sys.executable, "-m", "pbgeval", "import-graph", "--output", "graph", "--edges", "train=train.tsv"]
    return subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=limit
    )


def test_scratch_files_that_find_no_room_are_one_line_and_leave_nothing(tmp_path: Path) -> None:
    process = start(tmp_path, 200_000, most_bytes=1 << 20)
    _, err = process.communicate(timeout=120)

    assert 1 == process.returncode, err
    (fault,) = [line for line in err.splitlines() if "expected" in line]
    assert "make room" in fault
    assert "Traceback" not in err
    assert ["train.tsv"] == os.listdir(tmp_path)


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_an_import_that_is_ended_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    process = start(tmp_path, 400_000)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("dictionaries"):
            break
    time.sleep(0.1)  # somewhere in the step; where, makes no difference
    process.send_signal(number)
    _, err = process.communicate(timeout=120)

    assert 75 == process.returncode, err
    assert "Traceback" not in err
    assert ["train.tsv"] == os.listdir(tmp_path)
