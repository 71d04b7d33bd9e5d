from __future__ import annotations

import re
import sys
from pathlib import Path
from unittest import mock

import pytest

from tests.kit.commands import Done, run_main
from tests.kit.reports import write_records


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """Records of five passes over two buckets; the folder's name is full of markup."""
    return write_records(tmp_path / "<b>run & co")


def run(*arguments: object) -> Done:
    return run_main("monitor", *map(str, arguments), cwd=Path())


def test_a_table_and_a_picture_are_made(records: Path) -> None:
    done = run(records)

    assert 0 == done.status, done.err
    assert 5 == len(re.findall(r"0\.[23]\d+.*0\.5\d+.*0\.2\d+", done.out))
    assert b"\x89PNG" == (records / "training_curves.png").read_bytes()[:4]


def test_the_same_records_give_the_same_bytes(records: Path, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        assert 0 == run(records / "training_stats.json", "--metric", "r1", "--output", folder).status

    first, second = ({path.name: path.read_bytes() for path in folder.iterdir()} for folder in folders)
    assert {"training_curves.png"} == first.keys()
    assert first == second


def test_only_its_own_picture_is_replaced(records: Path) -> None:
    picture = records / "training_curves.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n a figure of my thesis")

    refused = run(records)

    assert refused.status == 1
    assert (
        "training_curves.png: this file is not a picture of kgeval-dist monitor; give another --output" in refused.err
    )
    assert picture.read_bytes() == b"\x89PNG\r\n\x1a\n a figure of my thesis"
    picture.unlink()
    assert run(records).status == run(records, "--metric", "r1").status == 0


def test_without_matplotlib_the_table_is_shown_and_the_extra_named(records: Path) -> None:
    with mock.patch.dict(sys.modules, {"matplotlib": None, "matplotlib.figure": None}):
        done = run(records)

    assert 1 == done.status
    assert "0.5025" in done.out
    assert ["expected matplotlib to draw, found none; pip install 'pbgeval[monitor]'"] == done.err.splitlines()
