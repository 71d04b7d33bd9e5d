from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from pbgeval import edge_scorer, evaluate_triples
from pbgeval.monitor.curves import Curves, PassRow
from pbgeval.monitor.records import PassKey
from pbgeval.notation import Bucket
from pbgeval.report.figures import SURE_HITS, UNDEFINED, headline_of
from pbgeval.report.page import MAX_ROWS, Source, latex, markdown
from pbgeval.report.report import Report
from pbgeval.report.tables import DataTable, escape_latex, escape_markdown, to_latex
from tests.kit.reports import MARKUP, large_result, marked_up_result
from tests.table_readers import on_a_keyboard, rows_of_latex, rows_of_markdown

NASTY = [
    *MARKUP,
    "plain",
    "",
    "a_b_c *d* ~~e~~ `f` __g__",
    "1. x",
    "x | y || z",
    "&lt; &#60; &amp;amp;",
    "\\_ \\\\ \\| \\",
    "http://example.invalid/a_b?c=d&e=f www.example.invalid a@example.invalid",
    "$x$ \\(y\\) \\[z\\]",
    "--- -- - ,, , ``quoted'' ?` !`",
    "![a](b) [c]: d <e@f.g> <http://h>",
    "été 東京 ±–−…",
]


@pytest.mark.parametrize("text", NASTY)
def test_markdown_shows_any_name_as_it_is(text: str) -> None:
    assert [["name"], [text.strip()]] == rows_of_markdown(f"| name |\n|---|\n| {escape_markdown(text)} |")


def test_a_name_with_line_ends_and_controls_stays_on_its_line() -> None:
    for escape in (escape_markdown, escape_latex):
        assert escape("a\nb\rc\x00d\u2028e") == "a b c d e"


# An independent reading of the escapes: each is one letter.
def test_an_interpreter_of_tex_shows_any_name_as_it_is() -> None:
    names = [*NASTY, "[2em] after the end of a row", "a\\\\b & c", "^^41 %comment"]
    rows = [[name, str(number)] for number, name in enumerate(names)]
    found = rows_of_latex(to_latex(DataTable("", ("name", "number"), rows)))

    assert [["name", "number"], *([on_a_keyboard(name), number] for name, number in rows)] == found


def decimals(text: str) -> int:
    return len(text.partition(".")[2])


def test_a_metric_has_three_decimals_or_more_and_its_errors_and_sides_as_many() -> None:
    random = np.random.default_rng(3)
    test, vectors = random.integers(0, [30, 2, 30], (80, 3)), torch.from_numpy(random.normal(size=(30, 4)))
    scorer = edge_scorer(lambda h, r, t: (vectors[h] * vectors[t]).sum(-1) + r, num_entities=30, num_relations=2)
    document = evaluate_triples(scorer, test).document

    of_papers = {name: cells for name, *cells in headline_of(document, for_papers=True).rows}

    assert " ± " in of_papers["mean reciprocal rank"][0]
    found = {
        name: {decimals(figure) for cell in cells for figure in cell.split(" ± ")} for name, cells in of_papers.items()
    }
    assert found.pop("mean rank") == {1}  # its errors are from 0.1 to 1
    assert set(map(frozenset, found.values())) == {frozenset({3})}
    key = "head.realistic.mean_reciprocal_rank"
    value, error = (f"{of[key]:.3f}" for of in (document["metrics"], document["standard_errors"]))
    assert of_papers["mean reciprocal rank"][1] == f"{value} ± {error}"


def test_hits_that_no_query_can_miss_are_not_in_papers(tmp_path: Path) -> None:
    test = [(number % 7, 0, number % 5) for number in range(35)]
    scorer = edge_scorer(lambda h, _, t: (3 * h + 5 * t).remainder(11).float(), num_entities=7, num_relations=1)
    report = evaluate_triples(scorer, test, hits_at=[3, 6, 7, 50], output=tmp_path / "out")
    document = report.document

    table = headline_of(document, for_papers=True)

    assert [name for name, *_ in table.rows if name.startswith("hits")] == ["hits@3", "hits@6"]
    assert SURE_HITS in table.note.splitlines()
    assert [document["metrics"][f"both.realistic.hits_at_{k}"] for k in (7, 50)] == [1.0, 1.0]
    relations = rows_of_markdown(markdown(Source("run", Report.read(tmp_path / "out"))))
    assert {"hits@3", "hits@6"} == {cell for row in relations for cell in row[1:] if cell.startswith("hits")}
    assert [name for name, *_ in headline_of(document).rows if name.startswith("hits")][2:] == ["hits@7", "hits@50"]
    fewer = {**document, "diagnostics": document["diagnostics"] | {"tail": {"num_candidates": {"max": 3}}}}
    cells = {name: of_sides for name, *of_sides in headline_of(fewer, for_papers=True).rows}  # both, head, tail
    assert [cell == UNDEFINED for cell in cells["hits@3"]] == [False, False, True]
    assert SURE_HITS not in headline_of(evaluate_triples(scorer, test, hits_at=[3]).document, for_papers=True).note


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Source:
    folder = marked_up_result(tmp_path_factory.mktemp("report"), "sample_edges=60")
    return Source(folder.name, Report.read(folder))


def test_an_interpreter_of_tex_reads_the_cells_that_markdown_has(finished: Source) -> None:
    expected = [[on_a_keyboard(cell) for cell in row] for row in rows_of_markdown(markdown(finished))]

    assert rows_of_latex(latex(finished)) == expected


def test_long_tables_are_cut_and_say_so(tmp_path: Path) -> None:
    source = Source("many", Report.read(large_result(tmp_path, num_relations=MAX_ROWS + 5, num_partitions=1)))

    assert sum("nationality" in row[0] for row in rows_of_markdown(markdown(source))) == MAX_ROWS
    assert f"The first {MAX_ROWS} rows; the CSV file has all." in latex(source)


def test_the_passes_of_a_training_run_are_a_table() -> None:
    row = PassRow(PassKey(3), 0.25, 0.5, None, 0.125, "bucket_overfitting", (Bucket(0, 0),))
    rows = rows_of_markdown(markdown(Source("run", None, Curves("mrr", (row,), {}))))

    assert rows[0] == ["epoch", "before", "after", "gap", "diverged", "bucket overfitting"]
    assert rows[-1] == ["3", "0.2500", "0.5000", "+0.25 ± 0.12", "1", "yes"]
