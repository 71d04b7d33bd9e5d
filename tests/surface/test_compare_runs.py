"""`kgeval-dist compare` of more than two runs: each pair as two runs are compared, seeds as groups, every format."""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
import sys
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path

import pytest
from attrs import evolve

from pbgeval import ManyRuns, Report, compare, compare_runs
from pbgeval.errors import ConfigError, OutputError
from pbgeval.metrics.paired import Difference, holm
from pbgeval.metrics.student import two_sided_probability
from pbgeval.report import comparing_many
from pbgeval.report.comparing_many import welch
from pbgeval.report.comparison import KEYS_IGNORED
from pbgeval.report.many_runs import GroupDifference, GroupFigure, GroupPair
from pbgeval.report.run_differences import names_of_unlike
from pbgeval.report.run_overlap import Overlap
from tests.kit.case import TinyCase
from tests.kit.commands import lacking, run_main
from tests.paired_reference import Query
from tests.surface.test_compare import expected_queries, run
from tests.table_readers import on_a_keyboard, rows_of_latex, rows_of_markdown
from tests.unit.test_metrics_paired import check

SCALES = {"a1": 1.0, "a2": 0.9, "b1": 0.3, "b2": 0.2, "c": 0.05}
GROUPS = {"a": ["a1", "a2"], "b": ["b1", "b2"], "c": ["c"]}
ARGUMENTS = ("a=a1", "a=a2", "b=b1", "b=b2", "c")


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TinyCase]:
    """Checkpoints of one graph."""
    folder = tmp_path_factory.mktemp("models")
    sizes = {"partition_sizes": (9, 8), "edges_per_bucket": 9}
    return {name: TinyCase.write(folder / name, scale=scale, **sizes) for name, scale in SCALES.items()}  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def results(cases: dict[str, TinyCase], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of each."""
    folder = tmp_path_factory.mktemp("results")
    for name, case in cases.items():
        run(case, folder / name, "candidates=all", "save_topk=4", graph=cases["a1"])
    return folder


@pytest.fixture(scope="module")
def groups(results: Path) -> ManyRuns:
    return compare_runs({name: [results / run for run in runs] for name, runs in GROUPS.items()})


def mean_queries(of_pairs: Sequence[Sequence[Query]]) -> list[Query]:
    """Return queries whose values are the means of those of several pairs of runs."""
    return [
        each[0]._replace(a=sum(one.a for one in each) / len(each), b=sum(one.b for one in each) / len(each))
        for each in zip(*of_pairs, strict=True)
    ]


def test_runs_without_names_are_compared_as_two_are(results: Path) -> None:
    found = compare_runs([results / name for name in SCALES])

    pairs = {(of.a, of.b): of for of in found.pairs}
    assert len(pairs) == 10
    assert [group.name for group in found.groups] == [*SCALES]
    two = compare(results / "a2", results / "b1")
    of_pair = [of.difference for of in pairs["a2", "b1"].differences]
    assert [of.p_edges for of in pairs["a2", "b1"].differences] == [of.p_value for of in two.differences]
    for one, other in zip(of_pair, two.differences, strict=True):
        assert (one.a, one.b, one.low, one.p_value) == (other.a, other.b, other.low, other.p_value)
    every = [of.difference for pair in found.pairs for of in pair.differences]
    assert [of.p_holm for of in every] == [of.p_holm for of in holm(every)]
    for group in found.groups:
        report = Report.read(results / group.name)
        figures = {of.metric: of for of in group.figures}
        assert figures["mean_reciprocal_rank"].mean == pytest.approx(report["mrr"], abs=1e-9)
        assert figures["hits_at_10"].seed_deviation is None


def test_seeds_of_one_model_count_by_their_mean(results: Path, cases: dict[str, TinyCase], groups: ManyRuns) -> None:
    (pair,) = (of for of in groups.pairs if (of.a, of.b) == ("a", "b"))
    two, edges = compare(results / "a1", results / "b1"), cases["a1"].root / "edges"
    for of in pair.differences:
        of_pairs = [
            [query for _, query in expected_queries([results / a, results / b], edges, of.difference, two)]
            for a, b in (("a1", "b1"), ("a2", "b2"))
        ]
        check(evolve(of.difference, p_value=of.p_edges), mean_queries(of_pairs))
    of_a = groups.groups[0].figures[1]
    seeds = [Report.read(results / name)["mrr"] for name in GROUPS["a"]]
    assert of_a.of_seeds == pytest.approx(seeds, abs=1e-9)
    assert of_a.mean == pytest.approx(statistics.fmean(seeds), abs=1e-9)
    assert of_a.seed_deviation == pytest.approx(statistics.stdev(seeds), rel=1e-6)
    p_values = [(of.p_edges, of.p_seeds, of.difference.p_value) for of in pair.differences]
    assert [p_value for *_, p_value in p_values] == [max(of[:2]) for of in p_values]  # type: ignore[type-var]


def test_groups_of_unlike_size_have_the_same_weight(results: Path, groups: ManyRuns) -> None:
    (pair,) = (of for of in groups.pairs if (of.a, of.b) == ("a", "c"))
    means = {name: [Report.read(results / run)["mrr"] for run in GROUPS[name]] for name in ("a", "c")}

    mrr = pair.differences[1].difference
    assert (mrr.a, mrr.b) == pytest.approx([statistics.fmean(of) for of in means.values()], abs=1e-9)
    assert mrr.difference == pytest.approx(mrr.b - mrr.a, abs=1e-12)
    assert pair.differences[1].p_seeds is None, "a single run has no deviation"


def test_settings_that_differ_are_named_whole(results: Path, groups: ManyRuns) -> None:
    assert groups.settings == ()
    settings = [{"seed": 0, "entities": {"all": {"dimension": of, "partitions": 1}}} for of in (32, 32, 16)]
    assert [*names_of_unlike(settings)] == ["entities.all.dimension"]
    assert [*names_of_unlike([{"a": {"b": 1}}, {"a": None, "c": [1]}])] == ["a", "c"]
    assert KEYS_IGNORED in str(compare_runs([results / "a1", results / "a2", results / "b1"], clusters="edge"))
    assert KEYS_IGNORED not in str(groups)


def test_a_model_alone_has_the_deviation_of_its_seeds(results: Path) -> None:
    done = run_main("compare", "a=a1", "a=a2", cwd=results)

    assert not lacking(done.printed, "deviation over runs", "What two runs have in common")
    assert "p (Holm)" not in done.printed


def test_welch_is_the_test_of_unequal_variances() -> None:
    # Variances of the means: 1/3 and 4/3.
    freedom = (5 / 3) ** 2 / ((1 / 3) ** 2 / 2 + (4 / 3) ** 2 / 2)
    expected = two_sided_probability(2 / math.sqrt(5 / 3), freedom)
    assert welch([1.0, 2.0, 3.0], [2.0, 4.0, 6.0]) == pytest.approx(expected, rel=1e-9)
    assert welch([0.5, 0.5], [0.5, 0.5]) == 1.0
    assert welch([0.5, 0.5], [0.6, 0.6]) == 0.0
    assert welch([0.5], [0.6, 0.7]) is None


def made_pair(a: str, b: str, *, differ: bool) -> GroupPair:
    difference = Difference("mrr", 0.0, 0.0, 0.0, 0.1, 0.0, 0.0, 0.5, 1, p_holm=0.01 if differ else 0.5)
    return GroupPair(a, b, (GroupDifference(difference, 0.5, None),), Overlap(10, None, 0, 0, None, None))


@pytest.mark.parametrize(
    ("unlike", "letters"),
    [
        ([], {"w": "a", "x": "a", "y": "a", "z": "a"}),
        (["wx", "wy", "wz", "xy", "xz", "yz"], {"w": "a", "x": "b", "y": "c", "z": "d"}),
        (["wz"], {"w": "a", "x": "ab", "y": "ab", "z": "b"}),
        (["wy", "wz", "xz"], {"w": "a", "x": "ab", "y": "bc", "z": "c"}),
        (["wx"], {"w": "a", "x": "b", "y": "ab", "z": "ab"}),  # a surer pair in between
    ],
)
def test_two_share_a_letter_exactly_if_they_do_not_differ(unlike: list[str], letters: dict[str, str]) -> None:
    values = {"x": 3.0, "y": 2.0, "w": 4.0, "z": 1.0}
    figures = [(name, GroupFigure("mrr", 1, value, None, None, (), "")) for name, value in values.items()]
    pairs = [made_pair(a, b, differ=f"{a}{b}" in unlike) for a in "wxyz" for b in "wxyz" if a < b]

    assert comparing_many._letters(figures, 0, pairs) == letters


def test_every_format_has_the_figures(results: Path, groups: ManyRuns, tmp_path: Path) -> None:
    forms = ("text", "json", "csv", "md", "latex", "html", "svg")

    texts = {form: run_main("compare", *ARGUMENTS, "--format", form, cwd=results).printed for form in forms}

    written = run_main("compare", *ARGUMENTS, "-o", str(tmp_path / "diagram.svg"), cwd=results)
    assert written.status == 0
    assert (tmp_path / "diagram.svg").read_text() == texts["svg"]
    document = json.loads(texts["json"])
    assert [group["runs"] for group in document["groups"]] == [*GROUPS.values()]
    assert [pair["differences"] for pair in document["pairs"]] == json.loads(
        json.dumps([pair["differences"] for pair in groups.to_dict()["pairs"]])
    )
    rows = list(csv.DictReader(io.StringIO(texts["csv"])))
    assert len(rows) == len(groups.pairs) * len(groups.groups[0].figures)
    assert {row["clusters"] for row in rows} == {groups.clusters}
    assert {(row["side"], row["filter"]) for row in rows} == {(groups.side, groups.filter)}
    assert float(rows[1]["p_holm"]) == groups.pairs[0].differences[1].difference.p_holm
    of_markdown = [[on_a_keyboard(cell) for cell in row] for row in rows_of_markdown(texts["md"])]
    assert of_markdown == rows_of_latex(texts["latex"])
    best, figure = groups.ranked("mrr")[0]
    shown = f"{figure.mean:.4f}"
    assert not any(lacking(texts[form], best.name, shown[:5]) for form in ("text", "md", "latex", "html"))
    drawn = ET.fromstring(texts["svg"])
    assert drawn.tag == "{http://www.w3.org/2000/svg}svg"
    names = [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {*GROUPS} <= {*names}


def test_it_prints_as_the_tables_of_the_command(groups: ManyRuns) -> None:
    assert not lacking(repr(groups), "p, seeds", "rank-biased overlap", "standard error over edges")
    assert "<table>" in groups._repr_html_()
    with pytest.raises(KeyError, match="no metric 'hits@7' in this comparison"):
        groups.ranked("hits@7")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["a1"], "compare needs two results; one was given"),
        (["a1", "b1", "a1"], "a1 is given twice; give each run once"),
        (["a=", "b=b1"], "a=: expected NAME=RUN"),
        (
            ["a1", "b1", "--format", "svg"],
            "--format svg: the diagram is of more than two runs, or of runs with names (NAME=RUN)",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused(arguments: list[str], line: str, results: Path) -> None:
    assert run_main("compare", *arguments, cwd=results).fault == line


def test_a_run_on_other_queries_is_named(results: Path, cases: dict[str, TinyCase], tmp_path: Path) -> None:
    run(cases["c"], tmp_path / "d", "candidates=partition", graph=cases["a1"])

    done = run_main("compare", "a1", "b1", str(tmp_path / "d"), cwd=results)

    assert done.refusal.startswith(f"{tmp_path / 'd'}: cannot be compared with a1: ")


def test_a_missing_package_is_named_before_runs_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "networkx", None)

    with pytest.raises(ConfigError, match=r"networkx is required .*: pip install networkx"):
        compare_runs({"a": ["absent-1", "absent-2"], "b": ["absent-3", "absent-4"]})


def test_reports_that_are_nowhere_are_refused(results: Path) -> None:
    report = evolve(Report.read(results / "a1"), path=None)

    with pytest.raises(OutputError, match="has no output directory; evaluate with output=FOLDER, or use"):
        compare_runs([report, report])
