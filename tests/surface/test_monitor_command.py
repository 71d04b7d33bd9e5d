from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from unittest import mock

import pytest

from tests.tiny_checkpoint import Done, run_main

BEFORE, AFTER = 0.25, 0.5


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """Five passes over two buckets, as PyTorch-BigGraph writes them; the folder's name is full of markup."""
    folder = tmp_path / "<b>run & co"
    folder.mkdir()
    lines = []
    for index in range(10):
        figures = [{"count": 8, "metrics": {"mrr": value, "r1": 0.125}} for value in (BEFORE, AFTER)]
        place = {"lhs_partition": index % 2, "rhs_partition": 0, "index": index, "stats": {"count": 9, "metrics": {}}}
        of_pass = {"epoch_idx": index // 2, "edge_path_idx": 0, "edge_chunk_idx": 0}
        lines.append({**place, "eval_stats_before": figures[0], "eval_stats_after": figures[1], **of_pass})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "training_stats.json").write_text(text, encoding="utf-8")
    return folder


def run(*arguments: object) -> Done:
    return run_main("monitor", *map(str, arguments), cwd=Path())


def test_a_table_and_a_picture_are_made(records: Path) -> None:
    done = run(records)

    assert 0 == done.status, done.err
    assert 5 == len(re.findall(r"0\.2500.*0\.5000.*0\.2500", done.out))
    assert b"\x89PNG" == (records / "training_curves.png").read_bytes()[:4]


def test_the_same_records_give_the_same_bytes(records: Path, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        assert 0 == run(records / "training_stats.json", "--metric", "r1", "--output", folder).status

    first, second = ({path.name: path.read_bytes() for path in folder.iterdir()} for folder in folders)
    assert {"training_curves.png"} == first.keys()
    assert first == second


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["--metric", "mean"],
            "Invalid value for '--metric': 'mean' is not one of 'mrr', 'pos_rank'",
        ),
        (["--metric", "auc"], "expected records of held-out edges with 'auc', found mrr, r1"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(arguments: list[str], line: str, records: Path) -> None:
    done = run(records, *arguments)

    assert (1, 1) == (done.status, len(done.faults))
    assert done.err.startswith(line)


def test_a_folder_without_records_is_one_line(tmp_path: Path) -> None:
    done = run(tmp_path)

    [line] = done.err.splitlines()
    assert 1 == done.status
    assert "training_stats.json" in line


def test_without_matplotlib_the_table_is_shown_and_the_extra_named(records: Path) -> None:
    with mock.patch.dict(sys.modules, {"matplotlib": None, "matplotlib.figure": None}):
        done = run(records)

    assert 1 == done.status
    assert "0.5000" in done.out
    assert ["expected matplotlib to draw, found none; pip install 'pbgeval[monitor]'"] == done.err.splitlines()
