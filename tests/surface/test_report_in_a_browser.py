from __future__ import annotations

import itertools
import re
import shutil
from pathlib import Path

import pytest

from pbgeval import Report, compare, compare_runs
from pbgeval.config.explain import meanings
from pbgeval.monitor.curves import Curves, PassRow, read_curves
from pbgeval.monitor.gap_test import BucketVisit
from pbgeval.monitor.records import PassKey
from pbgeval.notation import Bucket
from pbgeval.report.comparison_pages import comparison_page, many_runs_page
from pbgeval.report.page import Source, page_of
from pbgeval.report.paired_runs import CompareOptions
from pbgeval.report.queries import QueryPage
from pbgeval.report.suite_tables import SuiteResults, SuiteRow
from tests.browsers import Show, Shown
from tests.kit import pbg_files
from tests.kit.case import TinyCase
from tests.kit.commands import evaluated
from tests.kit.reports import (
    MARKUP,
    large_result,
    long_name,
    make_incomplete,
    marked_up_result,
    write_records,
)

pytestmark = pytest.mark.browser

RELATIONS = "by-relation-table"
SAME_QUERIES = ("candidates=all", "save_ranks=True")
QUERIES, MRR = 1, 2  # columns of relations


def write_page(folder: Path, *, records: Path | None = None) -> Path:
    """Write the page of a folder into it."""
    report = Report.read(folder) if (folder / "metrics.json").exists() else None
    training = None if records is None else read_curves(records, "mrr", pytest.fail)
    text = page_of(Source(folder.name, report, training), "mrr", meanings()).render()
    (folder / "report.html").write_text(text, encoding="utf-8")
    return folder / "report.html"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page of each kind of folder."""
    root = tmp_path_factory.mktemp("pages")
    records = write_records(root / "monitor")
    sampled = marked_up_result(root / "sampled", "sample_edges=60")
    every = "relation,entity_types,cardinality,relation_frequency,entity_frequency"
    exact = marked_up_result(root / "exact", "candidates=all", "train_paths=edges", f"breakdowns={every}")
    just_begun = Path(shutil.copytree(exact, root / "just_begun"))
    make_incomplete(just_begun, with_metrics=False)
    empty = TinyCase.write(root / "empty")
    for lhs, rhs in itertools.product(range(3), repeat=2):
        pbg_files.write_edges(empty.root / "edges", (lhs, rhs), [], [], [])
    evaluated(empty)
    compared = root / "compared.html"
    others = [marked_up_result(root / name, *SAME_QUERIES, f"comparator={name}") for name in ("dot", "cos")]
    compared.write_text(comparison_page(compare(*others)).render(), encoding="utf-8")
    several = root / "several.html"
    third = marked_up_result(root / "squared_l2", *SAME_QUERIES, "comparator=squared_l2")
    several.write_text(many_runs_page(compare_runs([*others, third])).render(), encoding="utf-8")
    suite = root / "suite.html"
    rows = [
        SuiteRow.from_report(graph, model, Report.read(folder), ["mrr", "hits@10"])
        for graph in ("one", long_name("graph"))
        for model, folder in zip(("dot", "cos", "model_" * 12), [*others, third], strict=True)
    ]
    suite.write_text(SuiteResults("many", tuple(rows)).page().render(), encoding="utf-8")
    lists = [
        marked_up_result(root / name, "candidates=all", "save_topk=5", f"comparator={name}", output="lists")
        for name in ("dot", "cos")
    ]
    queries, moved = (
        QueryPage.of_run(Report.read(lists[0])),
        QueryPage.of_two([("", of) for of in lists], CompareOptions()),
    )
    few = {"queries": queries.render(12), "moved": moved.render(12), "all": queries.render()}  # axe looks at each row
    for name, text in few.items():
        (root / f"{name}.html").write_text(text, encoding="utf-8")
    return {
        "all queries": root / "all.html",
        "queries": root / "queries.html",
        "moved queries": root / "moved.html",
        "comparison": compared,
        "suite": suite,
        "several runs": several,
        "sampled": write_page(sampled),
        "exact, with its training": write_page(exact, records=records),
        "just begun": write_page(just_begun),
        "monitor": write_page(records, records=records),
        "no edges": write_page(empty.root / "output"),
    }


KINDS = [
    "queries",
    "moved queries",
    "comparison",
    "several runs",
    "suite",
    "sampled",
    "exact, with its training",
    "just begun",
    "monitor",
    "no edges",
]


def wait_for_queries(shown: Shown) -> None:
    """Wait until a page of queries has unpacked them."""
    shown.page.wait_for_function("document.getElementById('tools')?.hidden !== true")


def open_all(shown: Shown) -> None:
    """Unfold what is folded, and what is folded in it."""
    wait_for_queries(shown)
    for _ in range(2):
        shown.page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
        shown.page.wait_for_timeout(50)  # what was folded is made when it is opened


# Colours depend on the scheme alone, and what fits on the width alone: see test_widths_change_no_colour.
@pytest.mark.parametrize("kind", KINDS)
def test_pages_are_accessible_complain_of_nothing_and_fit_a_phone(
    kind: str, pages: dict[str, Path], show: Show
) -> None:
    shown = show(pages[kind], scheme="dark", width=1280)
    open_all(shown)

    assert shown.accessibility_faults() == []
    shown.page.emulate_media(color_scheme="light")
    for width in (1280, 768, 390):
        shown.page.set_viewport_size({"width": width, "height": 800})
        assert shown.page.evaluate("document.documentElement.scrollWidth") <= width
    if "suite" not in kind:  # its names are long
        is_cut = "of => of.offsetWidth > of.parentElement.offsetWidth"
        cut = f"[...document.querySelectorAll('table.compact')].filter({is_cut}).map(of => of.id)"
        assert shown.page.evaluate(cut) == [], "on a phone no column is cut"
    assert shown.accessibility_faults() == []
    assert shown.complaints == []
    assert [pages[kind].as_uri()] == shown.requests, "nothing else is asked for"


def test_widths_change_no_colour(pages: dict[str, Path]) -> None:
    """Of style and script nothing else asks for the width or the scheme, and rules for a width name no colour."""
    for path in pages.values():
        text = path.read_text(encoding="utf-8")
        rules = dict(re.findall(r"@media ([^{]*?) *\{(.*?)\n\}", text, re.DOTALL))
        assert rules.keys() == {
            "print",
            "(prefers-color-scheme: dark)",
            "(min-width: 62.5rem)",
            "(min-width: 40.01rem) and (max-width: 73rem)",
            "(max-width: 40rem)",
        }
        assert not any("color" in rule or "--" in rule for of, rule in rules.items() if "scheme" not in of)
        assert not re.search(r"@container|matchMedia|innerWidth|clientWidth|offsetWidth|ResizeObserver|onresize", text)


def test_pictures_have_an_extent_and_every_part_is_inside(pages: dict[str, Path], show: Show) -> None:
    page = show(pages["exact, with its training"]).page
    outside = page.evaluate(
        """() => [...document.querySelectorAll('svg[role=img]')].flatMap(picture => {
            const box = picture.getBoundingClientRect();
            return [...picture.querySelectorAll('rect, polyline, text, circle')].filter(part => {
                const of = part.getBoundingClientRect();
                return of.left < box.left - 1 || of.right > box.right + 1
                    || of.top < box.top - 1 || of.bottom > box.bottom + 1;
            }).map(part => part.outerHTML);
        })"""
    )

    assert outside == []
    boxes = [picture.bounding_box() or {} for picture in page.locator("svg[role=img]").all()]
    assert len(boxes) == 6, "map, two of ranks, three of training"
    assert min(box[extent] for box in boxes for extent in ("width", "height")) > 150
    assert page.locator("svg .cell").count() == 9


def test_a_click_sorts_by_number_highest_first_and_again_lowest_first(pages: dict[str, Path], show: Show) -> None:
    shown = show(pages["sampled"])
    head = shown.page.locator(f"#{RELATIONS} thead th").nth(MRR)

    def rows() -> list[tuple[float, str]]:
        return list(zip(map(float, shown.column(RELATIONS, MRR)), shown.column(RELATIONS, 0), strict=True))

    expected = sorted(rows())
    for order, of_order in (("descending", expected[::-1]), ("ascending", expected)):
        head.locator("button").click()
        assert (of_order, order) == (rows(), head.get_attribute("aria-sort"))
    assert shown.page.locator(f"#{RELATIONS} [aria-sort]").count() == 1
    assert (
        shown.page.locator("#by-relation-tools [role=status]").text_content() == "4 of 4 rows, sorted by MRR, ascending"
    )


def test_differences_with_their_signs_and_errors_sort_as_numbers(tmp_path: Path, show: Show) -> None:
    gaps = (0.25, -0.5, 0.125, None)
    rows = tuple(
        PassRow(PassKey(epoch), 0.5, None if gap is None else 0.5 + gap, None, 0.01, "undecided", ())
        for epoch, gap in enumerate(gaps)
    )
    shown = show(Path(page_of(Source("run", None, Curves("mrr", rows, {}))).write(tmp_path)))

    shown.page.locator("#passes-table thead button").nth(3).click()

    assert shown.column("passes-table", 3) == ["+0.250 ± 0.010", "+0.125 ± 0.010", "−0.500 ± 0.010", "–"]


@pytest.mark.parametrize(("width", "num_buckets"), [(1100, 2), (768, 1)])
def test_all_columns_of_a_training_run_are_in_view(width: int, num_buckets: int, tmp_path: Path, show: Show) -> None:
    rows = tuple(
        PassRow(PassKey(epoch), 0.25, 0.5, 0.75, 0.01, "undecided", (Bucket(0, 0),), 0.02) for epoch in range(5)
    )
    curves = Curves("mrr", rows, {(0, bucket): {0: BucketVisit(10, 0.25, 0.5)} for bucket in range(num_buckets)})
    table = show(Path(page_of(Source("run", None, curves)).write(tmp_path)), width=width).page.locator("#passes-table")
    assert table.evaluate("table => table.parentElement.scrollWidth - table.parentElement.clientWidth") == 0
    assert table.locator("thead th").count() == 6 + num_buckets


def test_on_a_phone_the_names_stay_in_view_and_pictures_are_as_wide_as_the_page(
    pages: dict[str, Path], show: Show
) -> None:
    page = show(pages["exact, with its training"], width=390).page
    table = page.locator(f"#{RELATIONS}")
    heads = table.locator("thead th:visible").all_text_contents()
    assert heads == ["relation", "queries", "MRR", "hits@10"], "the others follow when they are asked for"
    assert table.evaluate("table => table.parentElement.scrollWidth - table.parentElement.clientWidth") == 0
    assert table.evaluate("table => table.offsetWidth / table.parentElement.clientWidth") == 1, "no room is unused"
    page.locator(f".scroll:has(#{RELATIONS}) ~ .more-columns").click()
    name = table.locator("tbody th").first
    before = name.bounding_box()
    table.evaluate("table => { table.parentElement.scrollLeft = 150; }")

    assert table.evaluate("table => table.parentElement.scrollLeft") == 150
    assert name.bounding_box() == before
    assert table.locator("thead th").nth(MRR).text_content() == "MRR"
    boxes = [picture.bounding_box() or {} for picture in page.locator("svg.chart").all()]
    assert {(box["x"], box["width"]) for box in boxes} == {(16, 390 - 2 * 16)}


LINES = """cell => {
  const range = document.createRange(), texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT), lines = [];
  for (let last = -Infinity; texts.nextNode();) {
    [...texts.currentNode.data].forEach((letter, at) => {
      range.setStart(texts.currentNode, at);
      range.setEnd(texts.currentNode, at + 1);
      const { bottom, width } = range.getBoundingClientRect();
      if (width && bottom > last + 3) lines.push("");
      if (width) { lines.push(lines.pop() + letter); last = bottom; }
    });
  }
  return lines;
}"""


def test_on_a_phone_paths_of_runs_break_after_slashes_and_names_of_facts_do_not(
    pages: dict[str, Path], tmp_path: Path, show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    for comparator in ("dot", "cos"):
        marked_up_result(tmp_path / "results_of_a_month", *SAME_QUERIES, f"comparator={comparator}", output=comparator)
    monkeypatch.chdir(tmp_path)
    long = Path("results_of_a_month/dot").rename("results_of_a_month/filtered_by_training")
    page = comparison_page(compare(long, "results_of_a_month/cos")).render()
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    shown = show(tmp_path / "page.html", width=390)
    folder = shown.page.locator("section:has(#origin) td").first
    assert folder.evaluate(LINES) == ["results_of_a_month/", "filtered_by_training"]

    shown = show(pages["sampled"], width=390)
    open_all(shown)
    names = shown.page.locator("#run-table th[scope=row]:visible").all()
    lines = [name.evaluate(LINES) for name in names if len(name.inner_text()) <= 18]
    assert {"edge_folders", "reproducible"} <= {text for text, *_ in lines}
    assert [more for _, *more in lines if more] == []


def test_the_keyboard_alone_searches_and_sorts(tmp_path: Path, show: Show) -> None:
    shown = show(write_page(large_result(tmp_path, num_relations=30, num_partitions=1)))
    page = shown.page
    focused = "document.activeElement.id || document.activeElement.textContent"
    for _ in range(100):
        page.keyboard.press("Tab")
        if page.evaluate(focused) == "by-relation-search":
            break
    page.keyboard.type("nationality")
    assert len(shown.column(RELATIONS, 0)) == 15
    assert page.get_by_role("button", name="Show all 30 rows").is_visible()

    page.keyboard.press("Tab")  # the table's own region, which scrolls
    page.keyboard.press("Tab")
    assert page.evaluate(focused) == "relation"
    for key, order in (("Enter", "ascending"), ("Space", "descending")):
        page.keyboard.press(key)
        assert order == page.locator(f"#{RELATIONS} th").first.get_attribute("aria-sort")
        assert page.evaluate(focused) == "relation", "the focus stays"
    outline = page.evaluate("Object.assign({}, getComputedStyle(document.activeElement))")
    assert (outline["outlineColor"] != "rgba(0, 0, 0, 0)", outline["outlineStyle"] != "none") == (True, True)


def test_a_large_table_shows_some_rows_finds_any_and_shows_all_when_asked(tmp_path: Path, show: Show) -> None:
    shown = show(write_page(large_result(tmp_path, num_relations=1_000, num_partitions=70)))
    page = shown.page
    status = page.locator("#by-relation-tools [role=status]")
    assert (status.text_content(), len(shown.column(RELATIONS, 0))) == ("15 of 1,000 rows", 15)

    page.locator("#by-relation-search").fill("<987>")
    assert [long_name(987)] == shown.column(RELATIONS, 0)
    assert status.text_content() == "1 of 1,000 rows"
    page.locator("#by-relation-search").fill("nothing has this name")
    assert (status.text_content(), shown.column(RELATIONS, 0)) == ("0 of 1,000 rows", [])
    page.locator("#by-relation-search").fill("")
    button = page.locator(f"#{RELATIONS} thead button").first
    button.click()
    button.click()
    expected = [long_name(999 - at) for at in range(15)]
    assert shown.column(RELATIONS, 0) == expected, "of all, not of those that were shown"
    page.get_by_role("button", name="Show all 1,000 rows").click()
    assert (len(shown.column(RELATIONS, 0)), page.locator("svg .cell").count()) == (1_000, 35 * 35)
    assert shown.complaints == []


def test_the_keyboard_alone_goes_from_a_relation_to_the_candidates_of_a_query(
    pages: dict[str, Path], show: Show
) -> None:
    shown = show(pages["all queries"])
    wait_for_queries(shown)
    page = shown.page
    focused = "document.activeElement.textContent"
    names = page.locator("#tree > details > summary .subject").all_text_contents()
    assert sorted(names) == sorted(MARKUP), "as text, whatever it says"

    page.locator("#search").focus()
    page.keyboard.type("bold")
    assert page.locator("#status").text_content() == "1 relation, 140 queries"
    for _ in range(4):  # three choices, then the tree
        page.keyboard.press("Tab")
    assert MARKUP[3] in page.evaluate(focused)
    page.keyboard.press("Enter")
    page.locator(".inside summary").first.wait_for()  # what unfolds is made a moment after it opens
    page.keyboard.press("Tab")
    assert re.fullmatch(r".*answer: user:\d:\d+rank [\d.]+", page.evaluate(focused))
    page.keyboard.press("Enter")
    page.locator(".inside .inside tbody tr").first.wait_for()
    rows = page.locator(".inside .inside tbody tr").count()
    assert rows >= 5
    ranks = [float(text.split()[1]) for text in page.locator(".inside summary .figure").all_text_contents()]
    assert ranks == sorted(ranks, reverse=True)

    page.locator("#queries").select_option("first")
    page.locator("#tree > details > summary").click()
    best = [float(text.split()[1]) for text in page.locator(".inside summary .figure").all_text_contents()]
    assert best == sorted(best)
    page.get_by_role("button", name="Show").click()
    assert page.locator(".inside summary").count() == 100
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
    assert shown.complaints == []


def test_without_scripts_everything_is_there(pages: dict[str, Path], show: Show) -> None:
    page = show(pages["exact, with its training"], scripts=False).page

    assert page.locator(f"#{RELATIONS} tbody tr:visible").count() == 4
    assert page.locator("input:visible, button:visible").count() == 0, "nothing that would do nothing"
