"""`kgeval-dist import-graph`: what it prints and writes, and faults in one line that leave nothing behind."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from tests.kit.commands import Done, run_main
from tests.kit.names import buckets_in, names_in, relations_in, unknown_in

GRAPH = b"a\tr\tb\nb\tr\tc\nc\ts\ta\na\tr\tb\n"


def imported(folder: Path, *flags: str, edges: bytes = GRAPH, name: str = "train.tsv") -> Done:
    """Import a file with these bytes."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(edges)
    return run_main("import-graph", "--output", "graph", "--edges", f"train={name}", *flags, cwd=folder)


def test_an_import_says_what_it_wrote(tmp_path: Path) -> None:
    (tmp_path / "test.tsv").write_text("a\tr\tz\nb\ts\tc\nb\tt\tc\n", encoding="utf-8")

    flags = ("--edges", "test=test.tsv", "--dictionary-of", "train", "--partitions", "2", "--max-memory", "500MB")
    assert imported(tmp_path, *flags).out.splitlines() == [
        "graph/entity: 3 entities of type all in 2 partitions of 1 to 2",
        "graph/entity: 2 relations",
        "graph/train: 4 edges in 3 buckets, 1 of them duplicates",
        "graph/test: 1 edge in 1 bucket",
        "graph/test/unknown.tsv: 2 edges skipped (1 unknown entity and 1 unknown relation)",
    ]
    assert unknown_in(tmp_path / "graph" / "test" / "unknown.tsv") == {("entity:all", "z"): 1, ("relation", "t"): 1}
    document = json.loads((tmp_path / "graph" / "import.json").read_text())
    assert {
        key: document["edges"]["test"][key] for key in ("num_read", "num_written", "num_left_out", "num_repeated")
    } == {"num_read": 3, "num_written": 1, "num_left_out": 2, "num_repeated": 0}
    assert set(os.listdir(tmp_path / "graph")) == {"entity", "train", "test", "import.json"}
    assert [name for name in os.listdir(tmp_path) if name.startswith(".")] == []


def test_a_fact_at_another_time_is_no_duplicate(tmp_path: Path) -> None:
    done = imported(tmp_path, "--edge-columns", "hrts", edges=b"a\tr\tb\t1\na\tr\tb\t2\na\tr\tb\t2\n")

    assert "graph/train: 3 edges in 1 bucket, 1 of them duplicates" in done.out.splitlines()


def test_a_wrong_order_of_columns_is_warned_of(tmp_path: Path) -> None:
    done = imported(tmp_path, "--edge-columns", "htr")

    assert done.warnings == [
        "3 names are both entities and relations; the columns are read as head, tail, relation (--edge-columns changes "
        "this)"
    ]


def test_a_later_import_reuses_the_dictionaries(tmp_path: Path) -> None:
    assert imported(tmp_path, "--partitions", "2", "--quiet").printed == ""
    (tmp_path / "later.tsv").write_bytes(b"c\tr\tb\nnew\tr\ta\n")

    flags = ("--output", "later", "--edges", "test=later.tsv", "--dictionary", "graph/entity")
    assert run_main("import-graph", *flags, cwd=tmp_path).status == 0
    names = names_in(tmp_path / "graph" / "entity", {"all": 2})["all"]
    places = {name: (part, row) for part, of_part in enumerate(names) for row, name in enumerate(of_part)}
    (left, lhs), (right, rhs) = places["c"], places["b"]
    assert {(left, right): [(lhs, relations_in(tmp_path / "graph" / "entity").index("r"), rhs)]} == buckets_in(
        tmp_path / "later" / "test"
    )
    assert not (tmp_path / "later" / "entity").exists()


def test_relations_that_a_dictionary_does_not_name_are_those_of_the_types(tmp_path: Path) -> None:
    """PyTorch-BigGraph writes no names of relations that are not dynamic."""
    assert imported(tmp_path).status == 0
    entity, names = tmp_path / "graph" / "entity", ["r", "s"]
    (entity / "dynamic_rel_names.json").unlink()
    (tmp_path / "later.tsv").write_text("a\ts\tb\n", encoding="utf-8")
    flags = ("--output", "later", "--edges", "test=later.tsv", "--dictionary", "graph/entity")

    refused = run_main("import-graph", *flags, cwd=tmp_path)
    (tmp_path / "types.tsv").write_text("".join(f"{name}\tall\tall\n" for name in names), encoding="utf-8")
    done = run_main("import-graph", *flags, "--types", "types.tsv", cwd=tmp_path)

    assert (refused.status, done.status) == (1, 0)
    assert "it has the names of the relations, a JSON list in the order of their ids" in refused.err
    ((_, rel, _),) = buckets_in(tmp_path / "later" / "test")[0, 0]
    assert rel == names.index("s")


def test_what_is_written_tells_nothing_of_when(tmp_path: Path) -> None:
    """Else the digest of an evaluation would change with every import of the same files."""
    assert imported(tmp_path, "--edge-columns", "hrtw", edges=b"a\tr\tb\t1\n").status == 0

    with h5py.File(tmp_path / "graph" / "train" / "edges_0_0.h5") as file:
        times = {name: h5py.h5g.get_objinfo(file[name].id).mtime for name in file}

    assert dict.fromkeys(("lhs", "rel", "rhs", "weight"), 0) == times


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


@pytest.mark.slow
def test_scratch_files_that_find_no_room_are_one_line_and_leave_nothing(tmp_path: Path) -> None:
    process = start(tmp_path, 200_000, most_bytes=1 << 20)
    _, err = process.communicate(timeout=120)

    assert process.returncode == 1, err
    (fault,) = [line for line in err.splitlines() if "cannot write scratch files" in line]
    assert "free disk space" in fault
    assert "Traceback" not in err
    assert os.listdir(tmp_path) == ["train.tsv"]


@pytest.mark.slow
def test_an_import_that_is_ended_leaves_nothing(tmp_path: Path) -> None:
    process = start(tmp_path, 400_000)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("numbering entities"):
            break
    time.sleep(0.1)  # somewhere in the step; where, makes no difference
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=120)

    assert process.returncode == 75, err
    assert "Traceback" not in err
    assert os.listdir(tmp_path) == ["train.tsv"]


# Names and lines that are most likely not what the user means: warned of, or counted.


def test_names_that_differ_only_in_unicode_form_or_white_space_are_counted_and_warned_of(tmp_path: Path) -> None:
    names = ["\u00e9", "e\u0301", "b", "b ", "\u00a0b", "\u212bx", "\u00c5x", "A\u030ax", "B", "c d"]
    edges = "".join(f"{name}\t{rel}\ta\n" for name in names for rel in ("r", "r\u200a"))

    assert imported(tmp_path, edges=edges.encode()).warnings == [
        "8 names of entities differ from each other only in Unicode form or white space at their ends, for example "
        r"'A\u030ax' and '\u212bx'; they count as different entities",
        "2 names of relations differ from each other only in Unicode form or white space at their ends, for example "
        r"'r' and 'r\u200a'; they count as different relations",
    ]


def test_unknown_names_that_are_nearly_known_are_counted_and_warned_of(tmp_path: Path) -> None:
    (tmp_path / "test.tsv").write_text("b \tr\tc\nb\tr\tc\ne\u0301\tr\tc\nd\tr\tc\n", encoding="utf-8")
    flags = ("--edges", "test=test.tsv", "--dictionary-of", "train")
    done = imported(tmp_path, *flags, edges=GRAPH + "\u00e9\tr\ta\n".encode())

    assert unknown_in(tmp_path / "graph" / "test" / "unknown.tsv") == {
        ("entity:all", name): 1 for name in ("b ", "d", "e\u0301")
    }
    (warning,) = done.warnings
    assert "2 unknown names would be known but for the Unicode form or white space at an end, for example " in warning
    assert "'b ' instead of 'b'" in warning


HEADERS = (
    *(("Subject", "predicate", "object"), ("h", "r", "t"), ("source", "rel", "target")),
    *(("tail", "x", "head"), (" head", "relation", "x")),
)


@pytest.mark.parametrize("header", HEADERS)
def test_a_first_line_with_the_words_of_a_header_is_warned_of(header: tuple[str, ...], tmp_path: Path) -> None:
    done = imported(tmp_path, edges="\t".join(header).encode() + b"\n1\t2\t3\n")

    assert done.warnings == [
        f"train.tsv:1: {', '.join(header).strip()} looks like a header, but is read as an edge; if it is one, set "
        f"--edge-columns {','.join(header).strip()}"
    ]
    assert buckets_in(tmp_path / "graph" / "train")[0, 0] != []


@pytest.mark.parametrize(
    ("edges", "flags"),
    [
        ("head\trelation\ttail\nhead\tr\tb\n", ()),
        ("head\trelation\ttail\na\tr\thead\n", ()),
        ("head\trelation\ttail\na\trelation\tb\n", ()),
        ("head\tr1\tb\na\tr\tb\n", ()),
        ("head\trelation\ttail\na\tr\tb\n", ("--edge-columns", "head,relation,tail")),
    ],
    ids=["a head again", "a tail again", "a relation again", "one word", "it is one"],
)
def test_what_is_no_header_or_is_read_as_one_is_not_warned_of(
    edges: str, flags: tuple[str, ...], tmp_path: Path
) -> None:
    assert imported(tmp_path, *flags, edges=edges.encode()).warnings == []


def test_columns_are_chosen_by_the_name_of_edges_else_by_the_type_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "valid.csv").write_text("b,a,r\n")
    (tmp_path / "test.csv").write_text("r,a,b\n")
    flags = ["--edges", "valid=valid.csv", "--edges", "test=test.csv", "--dictionary-of", "train"]
    columns = ["--edge-columns", "hrt", "--edge-columns", "csv=thr", "--edge-columns", "test=rht"]
    done = imported(tmp_path, *flags, *columns, edges=b"a\tr\tb\n")

    assert (done.status, done.warnings) == (0, [])
    assert [buckets_in(tmp_path / "graph" / name) for name in ("train", "valid", "test")] == [{(0, 0): [(0, 0, 1)]}] * 3


def test_columns_for_a_name_that_no_edges_have_are_one_line(tmp_path: Path) -> None:
    assert imported(tmp_path, "--edge-columns", "tests=hrt").fault == (
        "--edge-columns tests=hrt: tests is no type of file and no name of edges; choose from tsv, txt, del, csv, "
        "parquet, train"
    )
