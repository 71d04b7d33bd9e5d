"""`kgeval-dist topk`: the table, the file, and faults in one line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.kit.commands import lacking, run_main
from tests.unit.test_adapters_topk import RANKING, TEST, written


@pytest.fixture
def flags(tmp_path: Path) -> list[str]:
    written(tmp_path / "test.tsv", TEST + "e\tlikes\tf\n")
    written(tmp_path / "ranking.txt", RANKING)
    return ["topk", "--test", "test.tsv", "--ranking", "ranking.txt"]


def test_the_table_has_values_where_they_are_known_and_bounds_elsewhere(tmp_path: Path, flags: list[str]) -> None:
    printed = run_main(*flags, "-k", "1", cwd=tmp_path).printed
    lines = [line.replace("│", " ").split() for line in printed.splitlines()]
    assert ["hits@1", "0.2500", "to", "0.5000", "0.0000", "to", "0.5000", "0.5000"] in lines
    unranked = "1 evaluated edges that the file lacks: not ranked"
    assert not lacking(printed, unranked, "2 queries whose list does not hold the true entity")


def test_the_file_is_a_report_with_intervals_and_reasons(tmp_path: Path, flags: list[str]) -> None:
    from pbgeval.report.report import Report

    assert run_main(*flags, "--output", "out/metrics.json", cwd=tmp_path).status == 0

    report = Report.read(tmp_path / "out")
    # heads: 1.5 of 8 (realistic), and 1 to 8; tails: 2 to 8, and 1
    low, high = (1 / 1.5 + 1 / 8 + 1 / 8 + 1) / 4, (1 / 1.5 + 1 + 1 / 2 + 1) / 4
    assert None is report["mrr"]
    assert report.intervals["both.realistic.mean_reciprocal_rank"] == {
        "low": pytest.approx(low),
        "high": pytest.approx(high),
    }
    assert report["tail.hits@1"] == 0.5
    assert "neither grows nor falls" in report.document["refused"]["both.realistic.variance"]
    assert (
        report.document["num_edges"],
        report.document["num_queries"],
        report.document["lists"]["num_entities"],
        report.document["lists"]["longest"],
        report.document["lists"]["num_missing"],
    ) == (3, 4, 8, 3, 1)


@pytest.mark.parametrize(("absent", "expected"), [("last", (1 / 1.5 + 1 / 8 + 1 / 8 + 1) / 4), ("zero", 2.5 / 6)])
def test_a_convention_gives_one_number(tmp_path: Path, flags: list[str], absent: str, expected: float) -> None:
    assert run_main(*flags, "--absent", absent, "--output", "metrics.json", cwd=tmp_path).status == 0

    document = json.loads((tmp_path / "metrics.json").read_text())
    assert document["metrics"]["both.realistic.mean_reciprocal_rank"] == pytest.approx(expected)
    assert ({}, absent) == (document["intervals"], document["provenance"]["settings"]["absent"])


def test_edges_have_the_forms_that_imports_take(tmp_path: Path, flags: list[str]) -> None:
    expected = run_main(*flags, "--known", "test.tsv", cwd=tmp_path).printed
    edges = [line.split("\t") for line in (tmp_path / "test.tsv").read_text().splitlines()]
    written(tmp_path / "test.csv", "# ours\n" + "".join(f'{tail};"{head}";likes;917\n' for head, _, tail in edges))
    names = ("head", "relation", "tail")
    pq.write_table(pa.table(dict(zip(names, zip(*edges, strict=True), strict=True))), tmp_path / "test.parquet")

    text = ("--test", "test.csv", "--edge-columns", "csv=thr_", "--delimiter", ";", "--comment", "#")
    found = run_main("topk", "--ranking", "ranking.txt", *text, "--known", "test.parquet", cwd=tmp_path)

    assert (found.printed, found.err) == (expected, "")


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        ("test=hrtw", "--edge-columns: weight has no effect here; write _ for its letter, or leave its name out"),
        ("known=hrt_", "known.tsv:1: expected 4 columns separated by tabs, found 3"),
    ],
)
def test_columns_are_those_of_the_files(tmp_path: Path, flags: list[str], columns: str, line: str) -> None:
    written(tmp_path / "known.tsv", TEST)

    (fault,) = run_main(*flags, "--known", "known.tsv", "--edge-columns", columns, cwd=tmp_path).faults

    assert fault.startswith(line)


def test_what_looks_like_a_header_is_warned_of(tmp_path: Path, flags: list[str]) -> None:
    written(tmp_path / "known.tsv", f"head\trelation\ttail\n{TEST}")

    assert run_main(*flags, "--known", "known.tsv", cwd=tmp_path).err == (
        "warning: known.tsv:1: head, relation, tail looks like a header, but is read as an edge; if it is one, set "
        "--edge-columns head,relation,tail\n"
    )


def test_text_needs_no_duckdb_and_parquet_says_so(
    tmp_path: Path, flags: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    pq.write_table(pa.table({"h": ["a"], "r": ["likes"], "t": ["b"]}), tmp_path / "known.parquet")

    assert run_main(*flags, cwd=tmp_path).status == 0
    assert run_main(*flags, "--known", "known.parquet", cwd=tmp_path).faults == [
        "duckdb is required to read text or Parquet edges: pip install duckdb"
    ]
