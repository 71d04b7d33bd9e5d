from __future__ import annotations

import shutil
import sys
from pathlib import Path
from unittest import mock

import pytest

from tests.kit.commands import Done, evaluated, lacking, run_main, snapshot
from tests.kit.reports import make_incomplete, marked_up_case, marked_up_result, write_records
from tests.unit.test_report_page import Page


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return marked_up_result(tmp_path_factory.mktemp("report"), output="output")


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def report(*arguments: object, cwd: Path | None = None) -> Done:
    return run_main("report", *map(str, arguments), cwd=cwd or Path())


def is_page(path: Path) -> bool:
    text = path.read_text(encoding="utf-8")
    return text.startswith("<!DOCTYPE html>") and text.rstrip().endswith("</html>")


def test_a_page_is_written_into_the_folder_and_nothing_else_is_touched(folder: Path) -> None:
    before = snapshot(folder)
    assert f"{folder}/report.html\n" == report(folder).printed
    assert is_page(folder / "report.html")
    assert before == {name: of for name, of in snapshot(folder).items() if name != "report.html"}


def test_output_names_a_file_or_a_folder(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()

    for written, arguments in (
        ("other.html", ("-o", tmp_path / "other.html")),
        ("pages/report.html", ("--output", tmp_path / "pages")),
        ("pages/report.tex", ("--format", "latex", "-o", tmp_path / "pages")),
    ):
        assert f"{tmp_path}/{written}\n" == report(folder, *arguments).printed

    assert is_page(tmp_path / "other.html")
    assert (tmp_path / "other.html").read_bytes() == (tmp_path / "pages" / "report.html").read_bytes()
    assert r"\begin{tabular}" in (tmp_path / "pages" / "report.tex").read_text(encoding="utf-8")
    assert not (folder / "report.html").exists()


@pytest.mark.parametrize(("form", "start"), [("md", "# run\n"), ("latex", "% needs \\usepackage{booktabs}\n")])
def test_tables_for_papers_are_printed_and_need_no_library(form: str, start: str, folder: Path) -> None:
    with mock.patch.dict(sys.modules, {"jinja2": None}):
        printed = report(folder, "--format", form).printed
    assert printed.startswith(start)
    assert "mean reciprocal rank" in printed
    assert not (folder / "report.html").exists()


def test_the_metric_of_the_map_is_chosen_by_any_of_its_names_and_the_folder_called_by_its_own(folder: Path) -> None:
    assert report(".", "--metric", "hits@10", cwd=folder).status == 0
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert not lacking(page, "hits@10 of each bucket", "Evaluation report · run</p>")


def test_a_cutoff_that_the_run_did_not_have_comes_from_saved_ranks(tmp_path: Path) -> None:
    case = marked_up_case(tmp_path)
    evaluated(case, "candidates=all", "metrics=mrr")
    evaluated(case, "candidates=all", "hits_at=7", output="seven")
    evaluated(case, "candidates=all", "save_ranks=False", output="without")

    for folder in ("output", "seven"):
        assert report(tmp_path / folder, "--metric", "hits@7").status == 0
    refused = report(tmp_path / "without", "--metric", "hits@7")

    found, expected = (
        Page((tmp_path / folder / "report.html").read_text(encoding="utf-8")).rows["Metrics by bucket"]
        for folder in ("output", "seven")
    )
    assert (found, found[0][-1], refused.status) == (expected, "hits@7", 1)
    assert "no metric 'hits@7' here; add 7 to hits_at" in refused.err


def test_an_unfinished_run_is_shown_with_a_warning(folder: Path) -> None:
    make_incomplete(folder)
    done = report(folder)

    assert (0, [f"warning: {folder}: this evaluation is not complete"]) == (done.status, done.faults)
    assert "This run is not complete" in (folder / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("form", ["html", "md", "latex"])
def test_a_run_without_figures_has_no_report(folder: Path, form: str) -> None:
    make_incomplete(folder, with_metrics=False)
    before = snapshot(folder)

    assert report(folder, "--format", form).fault == (
        f"{folder}: this run is not complete and has no figures yet; if it no longer runs, run the same command again "
        "to resume"
    )
    assert snapshot(folder) == before


def test_a_page_of_an_unfinished_run_goes_when_the_run_is_complete(tmp_path: Path) -> None:
    case = marked_up_case(tmp_path)
    folder = case.root / "output"
    evaluated(case, "candidates=all")
    make_incomplete(folder)
    (folder / "queries.html").write_text("mine")
    assert report(folder).status == 0
    evaluated(case, "candidates=all")

    assert not (folder / "report.html").exists()
    assert (folder / "queries.html").read_text() == "mine"
    assert report(folder).status == 0
    evaluated(case, "candidates=all")
    assert "not complete" not in (folder / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(("arguments", "value"), [((), "0.2550"), (("--metric", "hits@1"), "0.1250")])
def test_an_evaluation_and_the_records_of_its_training_share_a_page(
    arguments: tuple[str, ...], value: str, folder: Path, tmp_path: Path
) -> None:
    assert report(folder, "--monitor", write_records(tmp_path / "monitor"), *arguments).printed
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert not lacking(text, "Metrics, realistic ranks", "Before and after each visit", value)


def test_records_beside_an_evaluation_with_nothing_to_show_are_a_warning_and_alone_a_fault(
    folder: Path, tmp_path: Path
) -> None:
    write_records(folder, metrics={"auc": 0.5})
    alone = write_records(tmp_path / "monitor", metrics={"auc": 0.5})

    (warning,) = report(folder).warnings
    assert "nothing of the training run is shown: expected records of held-out edges with 'mrr'" in warning
    assert report(alone).fault == "expected records of held-out edges with 'mrr', found auc"
    assert report(alone, "--metric", "auc").status == 0
