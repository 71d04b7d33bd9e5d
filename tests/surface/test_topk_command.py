"""`kgeval-dist topk`: the table, the file, and faults in one line."""

from __future__ import annotations

import json
from pathlib import Path

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
