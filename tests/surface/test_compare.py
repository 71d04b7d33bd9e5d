"""`kgeval-dist compare`: figures by a slow reference from files, refusals that say what differs, every format."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import h5py
import pytest

from pbgeval import Comparison, Report, compare
from pbgeval.errors import ConfigError, OutputError
from pbgeval.metrics.paired import Difference
from pbgeval.notation import ENDS, Side
from pbgeval.report.comparison import KEYS_IGNORED, MEANING_OF_P, names_of_folders, sentence_of_two
from pbgeval.report.figures import decimals_of, name_of
from pbgeval.report.run_differences import describe_difference
from pbgeval.results import saved_run
from pbgeval.storage.row_files import find_ranks
from tests.kit.case import TinyCase
from tests.kit.commands import Done, evaluated, lacking, metrics_of, run_main
from tests.kit.reports import rows_of, write_rows
from tests.paired_reference import Query, value_of
from tests.saved_ranks import read_ranks
from tests.table_readers import on_a_keyboard, rows_of_latex, rows_of_markdown
from tests.unit.test_metrics_paired import check

CHUNK = 5  # TinyCase's num_batch_negs


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> tuple[TinyCase, TinyCase]:
    """Two checkpoints of one graph."""
    folder = tmp_path_factory.mktemp("models")
    return tuple(
        TinyCase.write(folder / name, partition_sizes=(9, 8), edges_per_bucket=9, scale=scale)
        for name, scale in (("one", 1.0), ("two", 0.3))
    )


def run(case: TinyCase, output: Path, *overrides: str, graph: TinyCase | None = None) -> Path:
    """Evaluate the first case's edges, or another's."""
    paths = [f"edge_paths={(graph or case).root / 'edges'}", "save_ranks=True", "hits_at=1,10"]
    evaluated(case, *paths, *overrides, output=output)
    return output


def runs(cases: Sequence[TinyCase], folder: Path, *overrides: str) -> tuple[Path, Path]:
    return run(cases[0], folder / "a", *overrides), run(cases[1], folder / "b", *overrides, graph=cases[0])


def command(folder: Path, *arguments: str) -> Done:
    return run_main("compare", *arguments, cwd=folder)


def test_of_a_setting_that_is_a_table_the_entries_are_told_that_differ() -> None:
    typed = {"all": {"dimension": 64, "num_partitions": 1}, "user": {"dimension": 8}}

    told = describe_difference("entities", {"all": {"dimension": 1, "num_partitions": 1}}, typed)

    assert told == 'entities.all.dimension: A 1, B 64; entities.user: A null, B {"dimension": 8}'


# Columns of ranks files, and what the filter takes from them.
COUNTS = {"better": "excluded_better", "tied": "excluded_tied", "num_candidates": "num_excluded"}


def expected_queries(
    folders: Sequence[Path], edges: Path, difference: Difference, comparison: Comparison, *, dynamic: bool = False
) -> list[tuple[int, Query]]:
    """Return (relation, query) of all ranked queries, from the files."""
    settings = metrics_of(folders[0])["provenance"]["settings"]
    by_chunk, num_slices = "num_batch_negs" in settings, settings.get("workers", 1)  # 1: a bucket is one window
    found, edge_number, unit = [], 0, 0
    for path_index, bucket in find_ranks(folders[0]):
        ranks = [read_ranks(folder, path_index, bucket) for folder in folders]
        with h5py.File(edges / f"edges_{bucket.lhs}_{bucket.rhs}.h5") as file:
            lhs, rel, rhs = (file[name][:].tolist() for name in ("lhs", "rel", "rhs"))
        seen: Counter[tuple[int, int]] = Counter()  # edges of each group of chunks
        units: dict[tuple[int, ...], int] = {}
        for row in range(len(rel)):
            group = (row // -(-len(rel) // num_slices), 0 if dynamic else rel[row])
            chunk = (*group, seen[group] // CHUNK) if by_chunk else (row,)
            seen[group] += 1
            for hidden in ENDS:
                columns = [of.columns[hidden] for of in ranks]
                if columns[0]["num_candidates"][row] and comparison.side in ("both", hidden.label):
                    values = []
                    for of in columns:
                        counts = (
                            int(of[name][row]) - (comparison.filter == "filtered") * int(of[excluded][row])
                            for name, excluded in COUNTS.items()
                        )
                        values.append(value_of(difference.metric, *counts, comparison.rank_type))
                    is_user = dynamic or rel[row] != (3 if hidden is Side.RHS else 2)  # tags are in one partition
                    known = (hidden.other.pick(lhs, rhs)[row], hidden.other.pick(*bucket) if is_user else 0)
                    its_unit = units.setdefault(chunk, unit + len(units))
                    found.append((rel[row], Query(hidden.label, edge_number, its_unit, (rel[row], known), *values)))
            edge_number += 1
        unit += len(units)
    return found


def assert_expected(folders: Sequence[Path], edges: Path, found: Comparison, *, dynamic: bool = False) -> None:
    for number, difference in enumerate(found.differences):
        queries = expected_queries(folders, edges, difference, found, dynamic=dynamic)
        assert len(queries) == found.num_queries
        assert {rel for rel, _ in queries} == {relation.relation_id for relation in found.relations}
        check(difference, [query for _, query in queries])
        for relation in found.relations:
            check(relation.differences[number], [query for rel, query in queries if rel == relation.relation_id])


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("overrides", "arguments"),
    [
        (["candidates=all", "filter_paths=edges"], {}),
        (["candidates=all", "filter_paths=edges"], {"filter": "raw", "rank_type": "worst", "side": "tail"}),
        (["candidates=partition"], {"side": "head", "metrics": ["hits@2", "mr"]}),
        (["candidates=sampled"], {}),
        (["candidates=sampled", "pbg_semantics=True"], {"rank_type": "pessimistic"}),
        (["candidates=all", "sample_edges=30"], {}),
    ],
    ids=["all", "raw tails", "partition heads", "sampled", "pbg", "sample of edges"],
)
def test_the_figures_are_those_of_a_slow_reference(
    cases: tuple[TinyCase, TinyCase], overrides: list[str], arguments: dict[str, object], tmp_path: Path
) -> None:
    folders = runs(
        cases,
        tmp_path,
        *(text.replace("edges", f"{cases[0].root}/edges") if "paths" in text else text for text in overrides),
    )

    found = compare(*folders, **arguments)  # type: ignore[arg-type] - of many types

    names = ["knows", "likes", "has", "marks"]
    assert dict(enumerate(names)) == {of.relation_id: of.relation for of in found.relations}
    assert_expected(folders, cases[0].root / "edges", found)
    reports = [Report.read(folder) for folder in folders]
    for difference in found.differences:
        if found.filter == reports[0].document["filter"] and not difference.metric.endswith("_2"):
            key = f"{found.side}.{found.rank_type}.{difference.metric}"
            figures = [report[key] for report in reports]
            assert figures == pytest.approx([difference.a, difference.b], abs=1e-9)  # reciprocals are rounded to 2^-32


@pytest.mark.one_case
@pytest.mark.parametrize("candidates", ["sampled", "partition"])
def test_dynamic_relations_share_chunks_and_have_differences_of_their_own(candidates: str, tmp_path: Path) -> None:
    cases = [
        TinyCase.write(tmp_path / name, dynamic=True, partition_sizes=(9, 8), edges_per_bucket=9, scale=scale)
        for name, scale in (("one", 1.0), ("two", 0.3))
    ]
    folders = runs(cases, tmp_path, f"candidates={candidates}", "hits_at=1")

    found = compare(*folders)

    assert {"sampled": "chunk", "partition": "edge"}[candidates] == found.unit
    assert_expected(folders, cases[0].root / "edges", found, dynamic=True)


def test_blocks_make_no_difference(
    cases: tuple[TinyCase, TinyCase], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = runs(cases, tmp_path, "candidates=all")
    whole = compare(*folders)
    monkeypatch.setattr(saved_run, "ROWS_AT_A_TIME", 3)

    parts = compare(*folders)

    for one, two in zip(whole.differences, parts.differences, strict=True):
        assert (one.a, one.b, one.difference) == (two.a, two.b, two.difference)
        assert (one.p_value, one.standard_error) == pytest.approx((two.p_value, two.standard_error), rel=1e-9)
    assert len(whole.relations) == len(parts.relations)


def test_a_run_does_not_differ_from_itself(cases: tuple[TinyCase, TinyCase], tmp_path: Path) -> None:
    folder = run(cases[0], tmp_path / "a", "candidates=partition")

    found = compare(folder, Report.read(folder))

    assert {(of.difference, of.low, of.p_value, of.p_holm) for of in found.differences} == {(0.0, 0.0, 1.0, 1.0)}
    assert found["mrr"] == found["mean_reciprocal_rank"]
    with pytest.raises(KeyError, match="no metric 'hits@7' in this comparison"):
        found["hits@7"]


UNLIKE = [
    (["candidates=partition"], "relations[0] and 3 more: candidates: A all, B partition"),
    (["restrict_relations=knows"], 'restrict_relations: A null, B ["knows"]'),
    (["sample_edges=30"], "sample_edges: A null, B 30"),
    (["tail_candidates=user:0:1,tag:0:2"], "tail_candidates: A null, B"),
    (["filter_paths="], "A is filtered, B is not; compare with --filter raw"),
    (
        ["filter_paths=edges"],
        "filter_paths differ: the same queries have other known answers; evaluate both on",
    ),
]


def test_names_are_not_broken_off_a_terminal(
    cases: tuple[TinyCase, TinyCase], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    names = [str(run(cases[0], tmp_path / name, "candidates=partition")) for name in ("long_name_of_a_run_" * 8, "b")]

    sentence, _, title, *lines = command(tmp_path, *names).out.splitlines()
    assert (names[0] in title, max(map(len, [sentence, *lines])) < 300) == (True, True)


def test_two_runs_with_names_are_compared_as_two(
    cases: tuple[TinyCase, TinyCase], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # so that no sentence is broken
    found = compare(*runs(cases, tmp_path, "candidates=partition"))

    done = {form: command(tmp_path, "dot=a", "cos=b", "--format", form).printed for form in ("text", "md", "latex")}
    plain = command(tmp_path, "a", "b", "--format", "text").printed

    told = sentence_of_two(found, ["dot (A)", "cos (B)"])
    assert done["text"].splitlines()[0] == told  # before the tables
    assert plain.splitlines()[0] == sentence_of_two(found, "AB")
    assert done["text"].splitlines()[3:] == plain.splitlines()[3:]
    assert not lacking(done["text"], "A: dot, a (", "B: cos, b (", "by relation")
    for swapped in (("B=a", "cos=b"), ("dot=a", "A=b")):
        told_so = "tables call the first run A and the second B; give them other names"
        assert command(tmp_path, *swapped).refusal.strip() == f"{' '.join(swapped)}: {told_so}"
    assert command(tmp_path, "A=a", "cos=b").printed.startswith(sentence_of_two(found, ["A", "cos (B)"])[:20])
    for form in ("md", "latex"):
        assert not lacking(done[form], told[:20], "Lower is better for", "n.s.: the interval leaves out 0")
    assert KEYS_IGNORED not in done["text"]
    [of_edges] = {
        command(tmp_path, *of, "--clusters", "edge").printed.count(KEYS_IGNORED) for of in (("a", "b"), ("x=a", "y=b"))
    }
    assert of_edges == 1
    lines = done["latex"].splitlines()
    captions, notes = ([line for line in lines if line.startswith(of)] for of in (r"\caption", r"\footnotesize"))
    assert [len(captions), len(notes)] == [2, 2]
    assert ("n.s.: the interval" in captions[0], "n.s.: the interval" in notes[0]) == (False, True)
    assert lines[0] == r"% needs \usepackage{booktabs}"
    labels = [line for line in lines if line.startswith(r"\label")]
    assert labels == [r"\label{tab:all-metrics}", r"\label{tab:relation-differences}"]


def test_a_folder_called_results_has_the_one_around_it_in_its_name() -> None:
    assert names_of_folders(["demo/results", "demo/cos"]) == ["demo/results", "cos"]
    assert names_of_folders(["a/run", "b/run"]) == ["a/run", "b/run"]
    assert names_of_folders(["a/results", "b/a/results"]) == ["a/results", "b/a/results"]


@pytest.mark.one_case
@pytest.mark.parametrize(("overrides", "line"), UNLIKE, ids=[line.partition(":")[0] for _, line in UNLIKE])
def test_what_differs_is_said(
    cases: tuple[TinyCase, TinyCase], overrides: list[str], line: str, tmp_path: Path
) -> None:
    known = tmp_path / "known"
    shutil.copytree(cases[0].root / "edges", known)
    with h5py.File(known / "edges_0_0.h5", "r+") as file:
        file["lhs"][0] = (int(file["lhs"][0]) + 1) % 6
    usual = ["candidates=all", f"filter_paths={known}"]
    run(cases[0], tmp_path / "a", *usual)
    run(cases[1], tmp_path / "b", *usual, *overrides, graph=cases[0])

    done = command(tmp_path, "a", "b")

    assert done.refusal.startswith("b: cannot be compared with a: ")
    assert not overrides[0].startswith("filter_paths") or len(done.faults) == 1
    assert any(line in fault for fault in done.faults), done.err
    assert sum("; evaluate both on the same graph" in fault for fault in done.faults) <= 1


def test_other_partitions_are_the_only_thing_that_is_said(cases: tuple[TinyCase, TinyCase], tmp_path: Path) -> None:
    one = TinyCase.write(tmp_path / "one", partition_sizes=(17,), edges_per_bucket=9)
    run(cases[0], tmp_path / "a", "candidates=all")
    run(one, tmp_path / "b", "candidates=all")

    assert command(tmp_path, "a", "b").fault == (
        "b: cannot be compared with a: they split the graph differently (user: 2 and 1 partitions), so queries cannot "
        "be paired; evaluate both with the same number of partitions"
    )


def test_lists_drawn_with_another_seed_are_other_candidates(cases: tuple[TinyCase, TinyCase], tmp_path: Path) -> None:
    run(cases[0], tmp_path / "a", "candidates=sampled")
    run(cases[1], tmp_path / "b", "candidates=sampled", "seed=4", graph=cases[0])

    assert ": seed: A 0, B 4;" in command(tmp_path, "a", "b").err


def test_entities_of_another_checkpoint_are_found_edge_by_edge(
    cases: tuple[TinyCase, TinyCase], tmp_path: Path
) -> None:
    folders = runs(cases, tmp_path, "candidates=all")
    with h5py.File(folders[1] / "ranks" / "0" / "ranks_0_1.h5", "r+") as file:
        file["tail/num_candidates"][2] += 1

    expected = "b/ranks/0/ranks_0_1.h5: tail, row 2: expected the query of a, ranked among as many candidates"
    assert expected in command(tmp_path, "a", "b").fault


def test_figures_that_only_one_run_has_filtered_are_compared_raw(
    cases: tuple[TinyCase, TinyCase], tmp_path: Path
) -> None:
    run(cases[0], tmp_path / "a", "candidates=all", f"train_paths={cases[0].root / 'edges'}")
    run(cases[1], tmp_path / "b", "candidates=all", graph=cases[0])

    compared = command(
        tmp_path, "a", "b", "--filter", "raw", "--format", "json"
    ).out  # all edges leak in a, which is a warning
    assert json.loads(compared)["filter"] == "raw"


def test_a_run_without_ranks_and_an_unfinished_one_are_named(cases: tuple[TinyCase, TinyCase], tmp_path: Path) -> None:
    folders = runs(cases, tmp_path, "candidates=partition")
    shutil.rmtree(folders[1] / "ranks")
    advice = "evaluate again with save_ranks=True (-p save_ranks=True), and --overwrite (in Python: overwrite=True)"
    assert f"b: this result has no ranks; {advice}" == command(tmp_path, "a", "b").fault
    (folders[0] / "metrics.json").write_text(json.dumps(metrics_of(folders[0]) | {"complete": False}))

    unfinished = "a: expected a finished run, found an unfinished one; evaluate again"
    assert unfinished == command(tmp_path, "a", "b").fault
    assert command(tmp_path, "b", "c").fault == "c: no such output directory; give the output directory of a run"


def test_what_differs_is_said_before_ranks_are_asked_for(cases: tuple[TinyCase, TinyCase], tmp_path: Path) -> None:
    run(cases[0], tmp_path / "a", "candidates=all", f"train_paths={cases[0].root / 'edges'}")
    run(cases[1], tmp_path / "b", "candidates=sampled", "pbg_semantics=true", "save_ranks=False", graph=cases[0])

    faults = command(tmp_path, "a", "b").faults

    *unlike, without_ranks = faults
    assert unlike
    assert all(fault.startswith("b: cannot be compared with a: ") for fault in unlike)
    assert without_ranks.startswith("b: this result has no ranks; evaluate again with save_ranks=True")
    assert any("A all, B sampled" in fault for fault in unlike), unlike
    with pytest.raises(OutputError) as refused:
        compare(tmp_path / "a", tmp_path / "b")
    assert len(refused.value.faults) == len(faults)


@pytest.mark.parametrize(
    ("folder", "fault"),
    [
        ("case/eval.py", "case/eval.py: this is a config file; give the output directory of its run"),
        ("results", "results: no metrics.json in this folder; did you mean 'results/one' or 'results/two'?"),
        ("reslts", "reslts: no such output directory; did you mean 'results'?"),
        ("results/one/metrics.json", "results/one/metrics.json: this is a file; give its folder, 'results/one'"),
        ("case", "case: no metrics.json in this folder; give the output directory of a run"),
    ],
)
@pytest.mark.parametrize("command_name", ["compare", "report"])
def test_a_path_that_is_no_output_directory_is_told_from_one(
    command_name: str, folder: str, fault: str, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        (tmp_path / "results" / name).mkdir(parents=True)
        (tmp_path / "results" / name / "metrics.json").write_text("{}")
    (tmp_path / "case").mkdir()
    (tmp_path / "case" / "eval.py").write_text("")

    more, instead = {"compare": (["x"], "no metrics.json")}.get(
        command_name, ([], "no metrics.json or training_stats.json")
    )
    assert fault.replace("no metrics.json", instead) == run_main(command_name, folder, *more, cwd=tmp_path).fault


def test_raw_figures_are_advised_only_where_that_helps(cases: tuple[TinyCase, TinyCase], tmp_path: Path) -> None:
    run(cases[0], tmp_path / "a", "candidates=all", f"train_paths={cases[0].root / 'edges'}")
    run(cases[1], tmp_path / "b", "candidates=partition", graph=cases[0])

    faults = command(tmp_path, "a", "b").faults

    assert faults[-1] == (
        "b: cannot be compared with a: A is filtered, B is not; evaluate both on the same graph with the same settings"
    )
    assert (len(faults) > 1, "--filter raw" in " ".join(faults)) == (True, False)


def test_a_result_that_was_moved_says_what_its_model_and_edges_were_called(
    cases: tuple[TinyCase, TinyCase], tmp_path: Path
) -> None:
    folders = runs(cases, tmp_path)
    moved = shutil.copytree(folders[0], tmp_path / "sent" / "by" / "mail")

    here, there = (compare(folder, folders[1], clusters="edge") for folder in (folders[0], moved))
    assert here.a_model.endswith("one/checkpoint, version 3")
    assert there.a_model == here.a_model
    assert [name_of(Report.read(of)).partition(" on ")[2] for of in (folders[0], moved)] == ["one, edges"] * 2


@pytest.mark.slow
def test_every_format_has_the_figures(cases: tuple[TinyCase, TinyCase], tmp_path: Path) -> None:
    folders = runs(cases, tmp_path, "candidates=all")
    first, *rest = rows_of(folders[0] / "relations.csv")
    write_rows(folders[0] / "relations.csv", [first | {"relation": "[bold]a_b|c & 5%"}, *rest])
    found = compare(*folders)

    texts = {name: command(tmp_path, "a", "b", "--format", name) for name in ("text", "json", "csv", "md", "latex")}
    filed = command(tmp_path, "a", "b", "--format", "json", "-o", "compare.json", "--metric", "hits@1")
    written = command(tmp_path, "a", "b", "--output", "compare.txt")
    page = command(tmp_path, "a", "b", "--format", "html")
    by_name = {".html": page, ".md": texts["md"], ".tex": texts["latex"], ".csv": texts["csv"]}
    for suffix, done in by_name.items():
        assert command(tmp_path, "a", "b", "-o", f"named{suffix}").status == 0
        assert done.printed == (tmp_path / f"named{suffix}").read_text(encoding="utf-8")
    unknown = command(tmp_path, "a", "b", "-o", "named.pdf")
    ends = ".txt, .json, .csv, .md, .tex, .html, .svg"
    assert unknown.refusal.strip() == f"named.pdf: expected a file that ends in one of {ends}, or --format"
    assert not (tmp_path / "named.pdf").exists()
    assert found.a_model.endswith("one/checkpoint, version 3")
    assert all(found.b_model in text for text in (page.out.replace("<wbr>", ""), texts["md"].out.replace("\\_", "_")))
    assert json.loads(json.dumps(found.to_dict() | {"a": "a", "b": "b"})) == json.loads(texts["json"].out)
    of_csv = list(csv.DictReader(io.StringIO(texts["csv"].out)))
    assert len(found.differences) * (1 + len(found.relations)) == len(of_csv)
    assert str(found["mrr"].p_value) == of_csv[1]["p_value"]
    told = ("run_a", "run_b", "side", "filter", "rank_type", "unit", "clusters")
    assert {tuple(row[name] for name in told) for row in of_csv} == {
        ("a", "b", "both", "raw", "realistic", "edge", "key")
    }
    of_column = [of.standard_error for of in found.differences if of.metric != "mean_rank" and of.standard_error]
    decimals = max(4, 1 + max(map(decimals_of, of_column)))
    value = f"{found['mrr'].difference:+.{decimals}f}".replace("-", "−")
    assert not lacking(page.out, value, "[bold]a_b|c &amp; 5%", "Difference in MRR by relation", "</html>")
    assert not lacking(texts["md"].out, value, r"| \[bold\]a\_b\|c &amp; 5% |")
    # A bare bracket would be the length of the row before.
    assert not lacking(texts["latex"].out, value.replace("−", "$-$"), r"{[}bold{]}a\_b\textbar{}c \& 5\% & ")
    rows_but_mean_rank = rows_of_markdown(texts["md"].out)[2 : 1 + len(found.differences)]
    # A, B, B − A, their interval
    figures = [end for row in rows_but_mean_rank for cell in row[1:5] for end in cell.split(" to ")]
    assert {len(end.partition(".")[2]) for end in figures} == {decimals}
    of_markdown = [[on_a_keyboard(cell) for cell in row] for row in rows_of_markdown(texts["md"].out)]
    assert of_markdown == rows_of_latex(texts["latex"].out)
    unbroken = " ".join(texts["text"].printed.split())
    assert not lacking(unbroken, value, "[bold]a_b|c", "differ significantly in", *MEANING_OF_P)
    assert [of["metric"] for of in json.loads((tmp_path / "compare.json").read_text())["differences"]] == ["hits_at_1"]
    assert (filed.out, written.out, (tmp_path / "compare.txt").read_text()) == (
        "compare.json\n",
        "compare.txt\n",
        texts["text"].out,
    )


def test_a_side_that_was_not_ranked_is_refused(cases: tuple[TinyCase, TinyCase], tmp_path: Path) -> None:
    folder = run(cases[0], tmp_path / "a", "candidates=all", "disable_lhs_negs=True")
    with pytest.raises(ConfigError, match="side: expected tail, which were ranked, got 'head'"):
        compare(folder, folder, side="head")
