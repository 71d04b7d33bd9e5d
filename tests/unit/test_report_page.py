from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
import shutil
from collections import Counter
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from pbgeval.report import figures
from pbgeval.report import page as report_page
from pbgeval.report.page import Source, markdown, read_source
from pbgeval.report.rendering import save
from pbgeval.report.report import Report
from tests.kit import pbg_files
from tests.kit.case import TinyCase
from tests.kit.commands import evaluated, lacking
from tests.kit.reports import MARKUP, large_result, long_name, make_incomplete, marked_up_result

VOID = {"meta", "input", "wbr"}
END_TAG_LEFT_OUT = {"th", "td", "tr"}


class Page(HTMLParser):
    """What stands in a page: elements, their ids, texts of cells, and what refers to what."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        self.text = "".join(self.texts)
        self.rows = {unescape(name): rows_of_table(table) for name, table in _TABLE.findall(text)}
        self.verbatim = dict(re.findall("<(style|script)>(.*?)</", text, re.DOTALL))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID | END_TAG_LEFT_OUT:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert tag in END_TAG_LEFT_OUT or tag == self.open.pop()

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & {*self.open}:
            self.texts.append(data)

    def values(self, name: str) -> list[str]:
        return [value for _, attribute, value in self.attributes if attribute == name]


_TABLE = re.compile(r'<table[^>]* aria-label="(.*?)"[^>]*>(.*?)</table>', re.DOTALL)


def rows_of_table(table: str) -> list[list[str]]:
    """Return the texts of all cells; their end tags are left out."""
    cells = [re.split(r"<t[hd]\b[^>]*>", row)[1:] for row in re.split(r"<tr\b[^>]*>", table)[1:]]
    texts = [[unescape(re.sub(r"<[^>]*>", "", cell)).strip("\n") for cell in row] for row in cells]
    return [[text.replace("\u00a0", " ") for text in row] for row in texts]


def page_of(folder: Path, **options: Any) -> Page:
    return Page(text_of(folder, **options))


def text_of(folder: Path, **options: Any) -> str:
    return report_page.page_of(Source(folder.name, Report.read(folder)), **options).render()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return marked_up_result(tmp_path_factory.mktemp("report"))


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(finished, tmp_path / finished.name))


def test_every_element_is_closed_and_every_reference_leads_somewhere(finished: Path) -> None:
    page = page_of(finished)

    assert page.open == []
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    targets = [value.removeprefix("#") for value in page.values("href")]
    targets += [*page.values("for"), *page.values("aria-labelledby"), *page.values("data-tools")]
    assert len(targets) > 10
    assert [target for target in targets if target not in ids] == []


def test_the_page_refers_to_nothing_outside_itself(finished: Path) -> None:
    page = page_of(finished)

    assert ({address[:1] for address in page.values("href")}, page.values("src")) == ({"#"}, [])
    assert not {"link", "img", "iframe", "object", "embed", "base"} & page.tags.keys()
    assert not re.search(r"https?:|url\(|@import|fetch\(|XMLHttp|innerHTML|eval\(", "".join(page.verbatim.values()))


def test_the_policy_allows_the_page_s_own_style_and_script_alone(finished: Path) -> None:
    page = page_of(finished)

    [policy] = [value for tag, name, value in page.attributes if (tag, name) == ("meta", "content") and "src" in value]
    allowed = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert allowed["default-src"] == "'none'"
    for kind, text in page.verbatim.items():
        assert allowed[f"{kind}-src"] == f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
    assert (page.tags["script"], page.tags["style"], page.values("style")) == (1, 1, [])
    assert [name for _, name, _ in page.attributes if name.startswith("on")] == []


def test_names_full_of_markup_are_text(finished: Path) -> None:
    page = page_of(finished)

    assert page.tags["img"] + page.tags["b"] + page.tags["i"] == 0
    assert set(MARKUP) == {row[0] for row in page.rows["Metrics by relation"][1:]}
    assert page.text.count("<i>out & put") >= 2, "title and heading"


def test_the_headline_has_the_figures_of_the_document(finished: Path) -> None:
    document = json.loads((finished / "metrics.json").read_text(encoding="utf-8"))
    [heads, *rows] = page_of(finished).rows["By hidden side"]

    assert heads == ["metric", "both", "head", "tail"]
    shown = {row[0]: row[1:] for row in rows}
    for name, key in (("mean rank", "mean_rank"), ("hits@1", "hits_at_1")):
        keys = [f"{side}.realistic.{key}" for side in ("both", "head", "tail")]
        values, errors = ([document[of][key] for key in keys] for of in ("metrics", "standard_errors"))
        decimals = max(map(figures.decimals_of, errors))  # a row has those of its smallest error
        expected = [figures.with_error(*of, decimals) for of in zip(values, errors, strict=True)]
        assert expected == shown[name]


def test_every_key_of_the_document_is_in_a_table(finished: Path) -> None:
    document = json.loads((finished / "metrics.json").read_text(encoding="utf-8"))
    rows = page_of(finished).rows["Every metric"][1:]

    assert sorted(document["metrics"]) == sorted(row[0] for row in rows)
    assert [row[0] for row in rows[:2]] == ["both.realistic.count", "both.realistic.mean_reciprocal_rank"]
    assert all(
        float(row[1].replace(",", "")) == pytest.approx(document["metrics"][row[0]], rel=1e-5, abs=1e-12)
        for row in rows
        if document["metrics"][row[0]] is not None
    )


def as_text(folder: Path) -> tuple[str, str]:
    """Return what is printed at the end of a run, and the tables in Markdown."""
    return repr(Report.read(folder)), markdown(read_source(folder, None, "mrr", print))


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("error", "told", "name"),
    [
        ("0.04", "Target ±0.04 reached after 2,000 of 2,006 edges.", "interval, corrected for repeated looks: "),
        ("0.0001", "Target ±0.0001 not reached: all edges were evaluated.", ""),
    ],
)
def test_whether_the_target_was_reached_is_said_everywhere(tmp_path: Path, error: str, told: str, name: str) -> None:
    case = TinyCase.write(tmp_path, partition_sizes=(40, 39), edges_per_bucket=500, candidates="partition")
    document = evaluated(case, f"target_error={error}")
    text = page_of(tmp_path / "output").text.replace("\u00a0", " ")
    edges = "A sample of 2,000 of 2,006 edges, " if name else "2,006 edges, "

    assert (document["num_edges"] < 2006) == bool(name)
    shown = as_text(tmp_path / "output")
    assert [told in of and edges in of for of in shown] == [True, True]
    assert (told in text, "95% interval" in text, name in text) == (True, False, True)


@pytest.mark.slow
def test_relation_queries_have_a_range_of_candidates_of_their_own(tmp_path: Path) -> None:
    document = evaluated(
        TinyCase.write(tmp_path, partition_sizes=(9, 8), candidates="partition"), "relation_prediction=True"
    )
    shown, of_sides = repr(Report.read(tmp_path / "output")), document["diagnostics"]

    ends = [f"{of_sides[side]['num_candidates'][end]:,}" for side in ("both", "relation") for end in ("min", "max")]
    told = "{} to {} candidates per query (relations: {} to {})".format(*ends)
    assert told in " ".join(shown.split())
    alone, queries = (of_sides["relation"][f"num_queries{of}"] for of in ("_without_competitors", ""))
    assert alone > 0
    assert f"{alone:,} of {queries:,} relation queries have no competitor: their rank is 1." in shown


def test_several_edge_paths_have_a_table_and_a_line_on_the_terminal(tmp_path: Path) -> None:
    case = TinyCase.write(tmp_path, partition_sizes=(9, 8))
    shutil.copytree(tmp_path / "edges", tmp_path / "more")
    document = evaluated(case, "edge_paths=edges,more")
    page = page_of(tmp_path / "output")

    [heads, *rows] = page.rows["Metrics by edge path"]
    at = heads.index("hits@10")
    expected = [(of["path"], f"{of['metrics']['both.realistic.hits_at_10']:.4f}") for of in document["edge_paths"]]
    assert [(row[0], row[at]) for row in rows] == expected
    [first, second] = (f"{of['metrics']['both.realistic.mean_reciprocal_rank']:.4f}" for of in document["edge_paths"])
    assert f"edges: MRR {first}; more: MRR {second}" in repr(Report.read(tmp_path / "output")).splitlines()
    assert "Each cell stands for 2 edge paths: the mean, weighted by edges." in page.text


def test_a_run_without_edges_has_a_page(tmp_path: Path) -> None:
    case = TinyCase.write(tmp_path, partition_sizes=(9, 8))
    for lhs, rhs in itertools.product(range(2), repeat=2):
        pbg_files.write_edges(tmp_path / "edges", (lhs, rhs), [], [], [])
    evaluated(case)
    page = page_of(tmp_path / "output")

    assert page.open == []
    assert not lacking(page.text + str(page.values("aria-label")), "no queries", "no bucket has ranked queries")
    assert {"–", "0"} >= {cell for row in page.rows["By hidden side"][1:] for cell in row[1:]}


@pytest.mark.parametrize(
    ("with_metrics", "said", "tables"),
    [
        (True, "12 of 40 units of work are done (30%)", {"By hidden side", "Every metric"}),
        (False, "This run is not complete and has no figures yet", set()),
    ],
)
def test_an_unfinished_run_says_so_and_shows_what_there_is(
    with_metrics: bool, said: str, tables: set[str], folder: Path
) -> None:
    make_incomplete(folder, with_metrics=with_metrics)
    page = page_of(folder)

    assert said in page.text
    assert said in markdown(Source("run", Report.read(folder)))
    assert with_metrics == ("edges so far" in page.text)
    assert tables | {"Settings", "Digests of the data"} <= page.rows.keys()
    assert with_metrics == ("By hidden side" in page.rows)
    assert "Metrics by relation" not in page.rows


def test_rows_that_do_not_fit_are_left_out_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "MAX_BYTES", {"relation": 5_000})
    text = text_of(large_result(tmp_path, num_relations=60, num_partitions=1))
    rows = Page(text).rows["Metrics by relation"][1:]

    start = text.index('<table id="by-relation-table"')
    body = text[text.index("<tbody>", start) + len("<tbody>\n") : text.index("</tbody>", start)]
    assert 3_500 < len(body.encode()) <= 5_000, "the estimate is not below what is written, and not far above"
    assert [long_name(at) for at in range(len(rows))] == [row[0] for row in rows]
    assert f"{len(rows)} of 60 relations are shown; relations.csv has all." in text


@pytest.mark.slow
def test_a_large_result_stays_below_six_megabytes_and_says_what_is_left_out(tmp_path: Path) -> None:
    text = text_of(large_result(tmp_path, num_relations=12_000, num_partitions=130))
    page = Page(text)

    assert len(text.encode()) < 6_000_000
    assert 5_000 < len(page.rows["Metrics by relation"]) < 12_000
    assert "16,900 buckets with edges are shown; buckets.csv has all." in page.text
    assert sum("cell" in value.split() for value in page.values("class")) == 44 * 44, "130 partitions, three to a cell"


def relative_luminance(colour: str) -> float:
    """WCAG's, of #rrggbb."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_values_in_cells_and_lines_of_charts_contrast_with_what_is_behind(scheme: str, finished: Path) -> None:
    [light, dark] = re.findall(r":root \{(.*?)\}", page_of(finished).verbatim["style"], re.DOTALL)
    colours = dict(re.findall(r"--([\w-]+): (#\w{6})", light if scheme == "light" else dark))

    def contrast(first: str, second: str) -> float:
        values = sorted(relative_luminance(colours[name]) + 0.05 for name in (first, second))
        return values[1] / values[0]

    assert all(contrast(f"level-{level}", "on-low" if level < 5 else "on-high") >= 4.5 for level in range(9))
    assert all(contrast("page", name) >= 4.5 for name in ("text", "quiet", "link", "kind-0", "kind-1", "kind-2"))
    assert contrast("warning", "warning-text") >= 4.5


def test_a_new_file_without_an_ending_gets_that_of_a_page(tmp_path: Path) -> None:
    (tmp_path / "there").touch()
    (tmp_path / "folder").mkdir()

    written = [save("text", "report.html", tmp_path / name) for name in ("mail", "there", "v1.2", "folder")]

    assert written == [f"{tmp_path}/{name}" for name in ("mail.html", "there", "v1.2", "folder/report.html")]
    assert all(Path(path).read_text() == "text" for path in written)
