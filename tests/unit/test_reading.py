"""Input files: regular ones only, compressed ones whole, text line by line."""

from __future__ import annotations

import gzip
import os
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pbgeval.config import load_config
from pbgeval.config.output_checks import read_relation_groups
from pbgeval.errors import EvalError, StorageError
from pbgeval.importing.dictionaries import RelationTypes
from pbgeval.importing.edge_files import open_edges
from pbgeval.metrics.taxonomy import Taxonomy
from pbgeval.models.labels import read_labels
from pbgeval.models.pickles import read_saved, read_trusting
from pbgeval.models.topk import read_topk
from pbgeval.models.topk_lines import ranked_edges
from pbgeval.models.type_lists import read_type_lists
from pbgeval.monitor.records import read_history
from pbgeval.report.report import Report
from pbgeval.storage.checkpoint_paths import read_checkpoint_version
from pbgeval.storage.edge_columns import ColumnForm
from pbgeval.storage.entities import read_entity_count, read_entity_names
from pbgeval.storage.hdf5 import open_hdf5
from pbgeval.storage.npy_files import open_npy
from pbgeval.storage.text import check_whole, fingerprint, read_small_text, text_lines
from tests.kit.commands import with_peak
from tests.kit.names import names_of

RANDOM = random.Random(7)
NAMES = [f"e{RANDOM.randrange(10**6)}" for _ in range(2000)]
EDGES = "".join(f"{NAMES[at]}\tr{at % 7}\t{NAMES[-at]}\n" for at in range(1500))


def hdf5(path: Path) -> None:
    with open_hdf5(path):
        pass


def lines_of(of: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda path: list(of(path))  # type: ignore[call-overload]


def import_text(path: Path) -> object:
    """Load edges without an engine: what is damaged must be found before it is asked."""
    with open_edges(None, path, ColumnForm()).readable(None):  # type: ignore[arg-type]
        return None


# Each reader of text that may be compressed, and a file that it takes.
COMPRESSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "edges, filter_paths, train_paths, import-graph, import-model": (import_text, EDGES),
    "topk --ranking": (lines_of(ranked_edges), EDGES.replace("\n", "\nHeads: e1\t0.5\t\nTails: \n")),
    "topk --test, --known": (lines_of(names_of), EDGES),
    "topk --entities": (
        lambda path: read_topk(path, path, names_of=names_of, entities=path),
        "".join(f"{name}\n" for name in NAMES),
    ),
    "taxonomy": (Taxonomy.read, "".join(f"t{at}\t{at % 50 + 1}\tt{at - 1}\n" for at in range(1, 1500) if at % 50)),
    "types": (read_type_lists, "".join(f"q{at}\t{name}\n" for at, name in enumerate(NAMES))),
    "types as JSON": (
        lambda path: read_type_lists(path.rename(path.with_suffix(".json"))),
        "[" + ",\n".join(f'{{"id": "q{at}", "type": ["{name}"]}}' for at, name in enumerate(NAMES)) + "]",
    ),
    "import-graph --types": (RelationTypes.read, "".join(f"r{at}\tuser\t{name}\n" for at, name in enumerate(NAMES))),
    "labels": (lambda path: read_labels(path, 2000), "".join(f"{at}\t{name}\n" for at, name in enumerate(NAMES))),
}


@pytest.mark.parametrize("kind", COMPRESSED)
def test_no_gzip_file_that_was_cut_or_damaged_is_read(tmp_path: Path, kind: str) -> None:
    read, text = COMPRESSED[kind]
    packed = gzip.compress(text.encode(), mtime=0)
    rng = random.Random(1)
    cuts = [packed[: rng.randrange(2, len(packed))] for _ in range(23)] + [packed[:-1]]
    bits = [rng.randrange(8 * 10, 8 * len(packed)) for _ in range(14)] + [8 * len(packed) - 1]  # not its date
    flips = [packed[: bit // 8] + bytes([packed[bit // 8] ^ 1 << bit % 8]) + packed[bit // 8 + 1 :] for bit in bits]

    for damaged in [*cuts, *flips, packed + b"something else"]:
        path = tmp_path / "damaged.tsv"
        path.write_bytes(damaged)
        refused(read, path)


def test_gzip_in_several_members_and_with_zeros_behind_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "edges.tsv.gz"
    path.write_bytes(gzip.compress(EDGES[:5000].encode()) + gzip.compress(EDGES[5000:].encode()) + bytes(512))

    check_whole(path)

    assert EDGES.splitlines() == [line for _, line in text_lines(path)]


@pytest.mark.parametrize("content", [b"", b"\x1f", b"a\tr\tb\n"])  # cut off within two bytes, or never compressed
def test_a_file_whose_name_ends_in_gz_is_gzip(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "known.tsv.gz").write_bytes(content)

    assert "no gzip, although its name ends in .gz" in refused(lines_of(text_lines), tmp_path / "known.tsv.gz")


@pytest.mark.skipif(shutil.which("zstd") is None, reason="needs the program zstd")
def test_zstd_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text(EDGES * 20)
    commands = [["zstd", "-q", "-c", *flags, "plain"] for flags in ([], ["--no-check"], ["-B4096", "-1"])]
    whole = [subprocess.run(of, cwd=tmp_path, check=True, stdout=subprocess.PIPE).stdout for of in commands]
    skipped = b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc"
    path = tmp_path / "edges.tsv.zst"
    for content in (*whole, b"".join(whole), skipped + whole[0], whole[1] + skipped):
        path.write_bytes(content)
        check_whole(path)

    rng = random.Random(1)
    cuts = [content[: rng.randrange(4, len(content))] for content in whole for _ in range(24)]
    for damaged in (*cuts, *(content[:-1] for content in whole), whole[0] + b"garbage", whole[0] + skipped[:-1]):
        path.write_bytes(damaged)
        assert "cannot read this text file: zstd data" in refused(import_text, path)


@pytest.mark.parametrize("end", ["", "\n"])
def test_lines_do_not_depend_on_where_blocks_end(tmp_path: Path, end: str) -> None:
    rng = random.Random(3)
    lines = ["x" * rng.choice([0, 1, 7, 1000, 262143, 262144, 600000]) + "ä\r" * (at % 2) for at in range(60)]
    text = "\n".join(lines) + end
    content = f"\ufeff{text}".encode()
    for name, written in (("t", content), ("t.gz", gzip.compress(content))):
        (tmp_path / name).write_bytes(written)
        expected = [line.removesuffix("\r") for line in lines]
        assert list(text_lines(tmp_path / name)) == list(enumerate(expected, 1))
        assert "".join(line for _, line in text_lines(tmp_path / name, keep_ends=True)) == text


@pytest.mark.parametrize("place", [1, 2, 40_000, 100_000])
def test_lines_before_a_fault_are_read_and_the_fault_names_its_line(tmp_path: Path, place: int) -> None:
    content = b"".join(b"line %d\n" % at for at in range(1, 100_001))
    (tmp_path / "t").write_bytes(content.replace(b"line %d\n" % place, b"l\xffne %d\n" % place))
    lines = text_lines(tmp_path / "t")

    assert [next(lines)[0] for _ in range(1, place)] == list(range(1, place))
    with pytest.raises(StorageError, match=f"t:{place}: expected UTF-8 text, found byte 0xff"):
        next(lines)


@pytest.mark.slow
def test_a_line_that_fills_the_memory_is_refused(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "bomb.gz", "wb", compresslevel=1) as file:
        for _ in range(33):
            file.write(bytes(1 << 23))

    fault, peak = with_peak(lambda: refused(lines_of(text_lines), tmp_path / "bomb.gz"))
    assert "text file: a line of more than 268,435,456 bytes" in fault
    assert peak < 300_000_000


KEPT = {  # how lines start
    "topk --entities": b"%d\t",
    "labels": b"%d\t",
    "types": b"%d\t",
    "types as JSON": b"%d ",
    "taxonomy": b"%d\t1\t",
    "import-graph --types": b"%d\ta\t",
}


@pytest.mark.parametrize(("kind", "start"), KEPT.items())
def test_what_is_kept_in_memory_may_not_unpack_to_a_hundred_times_its_size(
    tmp_path: Path, kind: str, start: bytes
) -> None:
    path = tmp_path / "bomb.tsv"
    lines = (start % at + b"x" * 100_000 + b"%d\n" % at for at in range(110))
    path.write_bytes(gzip.compress(b"".join(lines), mtime=0))

    fault, peak = with_peak(lambda: refused(COMPRESSED[kind][0], path))

    assert "0 times as large as the file" in fault
    assert peak < 50_000_000


# Every reader of a file that a user names, and what the file is called.
READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "config": ("eval.py", load_config),
    "config as JSON": ("config.json", load_config),
    "relation_groups": ("groups.json", read_relation_groups),
    "entity count": ("entity_count_all_0.txt", lambda path: read_entity_count(path.parent, "all", 0)),
    "entity names": ("entity_names_all_0.json", lambda path: read_entity_names(path.parent, "all", 0)),
    "checkpoint version": ("checkpoint_version.txt", lambda path: read_checkpoint_version(path.parent)),
    "small text": ("text", read_small_text),
    "edges by name": ("edges.tsv", import_text),
    "arrays": ("entity.npy", open_npy),
    "HDF5": ("edges_0_0.h5", hdf5),
    "file of torch": ("model.pt", lambda path: read_saved(path, "")),
    "trusted file of torch": ("model.pt", read_trusting),
    "ranking": ("ranking", lines_of(ranked_edges)),
    "edges by name, without DuckDB": ("test", lines_of(names_of)),
    "taxonomy": ("taxonomy", Taxonomy.read),
    "types": ("types", read_type_lists),
    "labels": ("labels", lambda path: read_labels(path, 1)),
    "fingerprint": ("file", fingerprint),
    "result": ("metrics.json", lambda path: Report.read(path.parent)),
    "records of training": ("training_stats.json", lambda path: read_history(path, print)),
}


NO_FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a pipe that nobody writes: to open it would wait forever": (os.mkfifo, "a pipe, not a regular file"),
    "what has no end": (lambda path: path.symlink_to("/dev/zero"), "a device, not a regular file"),
    "a disk that is full": (lambda path: path.symlink_to("/dev/full"), "a device, not a regular file"),
    "a folder": (Path.mkdir, ""),
    "a link to itself": (lambda path: path.symlink_to(path.name), ""),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("found", NO_FILES)
@pytest.mark.parametrize("kind", READERS)
def test_what_is_no_regular_file_is_refused(tmp_path: Path, kind: str, found: str) -> None:
    name, read = READERS[kind]
    make, fault = NO_FILES[found]
    make(tmp_path / name)

    assert fault in refused(read, tmp_path / name)


def refused(read: Callable[[Path], object], path: Path) -> str:
    with pytest.raises(EvalError) as error:
        read(path)
    assert str(error.value).startswith(str(path.parent)), error.value
    assert "\n" not in str(error.value)
    return str(error.value)
