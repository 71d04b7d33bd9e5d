from __future__ import annotations

import math
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


def test_a_table_is_printed_and_a_page_is_written(records: Path) -> None:
    done = run(records)

    assert done.status == 0, done.err
    assert len(re.findall(r"0\.[23]\d+ +0\.5\d+ +\+0\.2\d+", done.out)) == 5
    assert done.out.splitlines()[-1] == f"{records}/report.html"
    page = (records / "report.html").read_text(encoding="utf-8")
    assert "<h1>Held-out edges during training</h1>" in page
    report = run_main("report", str(records), "-o", str(records / "same.html"), cwd=Path())
    assert (report.status, (records / "same.html").read_text(encoding="utf-8")) == (0, page), "one page for one run"
    (records / "report.html").write_text("<p>my thesis</p>")
    assert (
        run(records).err
        == f"{records}/report.html: this file is not a page of kgeval-dist; choose another file (--output)\n"
    )
    assert (records / "report.html").read_text() == "<p>my thesis</p>"


def test_without_jinja_the_table_is_shown_and_the_extra_named(records: Path) -> None:
    with mock.patch.dict(sys.modules, {"jinja2": None}):
        done = run(records)

    assert done.status == 1
    assert "0.5025" in done.out
    assert done.err.splitlines() == ["jinja2 is required to write a page: pip install jinja2"]


def test_a_folder_without_records_is_told_who_writes_them(tmp_path: Path) -> None:
    assert run(tmp_path).fault == (
        f"{tmp_path}: no training_stats.json in this folder; a Monitor writes it to its output folder, and "
        "PyTorch-BigGraph to the checkpoint when it trains with eval_fraction above 0"
    )


@pytest.mark.parametrize("command", ["monitor", "report"])
def test_a_training_that_diverged_at_once_is_said_to_have(command: str, tmp_path: Path) -> None:
    records = write_records(tmp_path / "run", metrics={"loss": math.nan, "mrr": 1.0, "auc": 0.0})

    assert run_main(command, str(records), cwd=Path()).fault == (
        "the model diverged in epoch 0, bucket (0, 0): scores are NaN or infinite, or a vector is zero under cos, so "
        "there are no figures; train again with a lower learning rate"
    )
