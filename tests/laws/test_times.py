"""Filters that go by time: every count is the reference's, and with all times alike they are the filter without."""

from __future__ import annotations

import dataclasses
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from pbgeval import Report, edge_scorer, evaluate, evaluate_triples, load_config
from pbgeval.notation import Bucket
from pbgeval.report.figures import breakdowns_of
from tests.examples import among, crossed, examples
from tests.kit.case import TinyCase
from tests.kit.commands import flags, run_command, run_main
from tests.kit.graphs import TinyGraph, edge_lists, tiny_graphs
from tests.kit.loops import loops_used
from tests.kit.on_disk import write_graph
from tests.kit.refusals import fault_of
from tests.laws.competition import expected_cases, of_label, rank_figures
from tests.laws.expected import LABELS
from tests.laws.test_evaluation_equals_reference import (
    LONG,
    POLICIES,
    all_rules,
    assert_equal,
    protocols,
    quick,
    timed,
)
from tests.laws.test_hidden_relations import KNOWN, SCORERS, TEST
from tests.laws.test_order_does_not_matter import SMALL_BLOCKS, with_constants
from tests.unit.test_storage_candidates import write as write_candidates


def slow(value: str | None) -> Any:
    return pytest.param(value, marks=pytest.mark.slow)


def without_times(report: Report) -> dict[str, Any]:
    """All figures but those of the time-aware filter, and counts of edges, which used times tell apart."""
    left_out = ("time_filtered_metrics", "provenance", "edge_diagnostics")
    return {key: value for key, value in report.document.items() if key not in left_out}


def figures_of(report: Report, part: str) -> dict[str, Any]:
    return {key: value for key, value in report.document[part].items() if not key.endswith((".auc", ".loss"))}


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("candidates", "comparator"), crossed(POLICIES, ["dot", "cos", "l2", "squared_l2", "l1"], quick=8, thorough=2)
)
@settings(quick, max_examples=examples(4, quick=2))
@given(st.data())
def test_a_window_of_all_times_and_one_time_are_the_filter_without(candidates, comparator, data):
    """To the last bit, for every kernel: what leaves answers out of rounded scores reads what was counted."""
    graph = data.draw(tiny_graphs(comparator=comparator, max_edges=among(10, 30), max_partitions=3))
    rules, sampled = data.draw(all_rules(graph, data.draw(st.booleans()))), data.draw(st.booleans())
    protocol = data.draw(protocols(candidates, pbg=not sampled))
    rules = dataclasses.replace(data.draw(timed([graph], rules)), window=None, until_query=False)
    now = [{bucket: [7] * len(times) for bucket, times in path.items()} for path in rules.times]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        if data.draw(st.booleans()):
            stack.enter_context(loops_used(True))
        keys = protocol.settings() | rules.settings(graph, protocol.sides) | {"sample_edges": 4 if sampled else None}
        any_times = write_graph(graph, Path(folder) / "any", **keys)
        one_time = write_graph(graph, Path(folder) / "one", **keys | {"times": now})
        reports = [
            evaluate(config, output=Path(folder) / str(number), workers=1, device="cpu")
            for number, config in enumerate(
                [
                    any_times,
                    evolve(any_times, time_window=LONG),
                    evolve(one_time, time_window=0, known_until=None if rules.observed else "query"),
                ]
            )
        ]
    expected = figures_of(reports[0], "metrics")
    for report in reports[1:]:
        assert without_times(report) == without_times(reports[0])
        assert figures_of(report, "time_filtered_metrics") == expected


@pytest.mark.parametrize("candidates", ["all", slow("partition"), slow("sampled")])
@settings(quick, max_examples=examples(10, quick=2))
@given(st.data())
def test_rows_by_time_are_the_references(candidates, data):
    graph = data.draw(tiny_graphs(exact=True, max_edges=16, max_partitions=2))
    rules, protocol = data.draw(all_rules(graph, restricted=True)), data.draw(protocols(candidates, pbg=False))
    rules, width = data.draw(timed([graph], rules, latest=9)), data.draw(st.sampled_from([1, 3, LONG]))
    cases = expected_cases([graph], protocol, rules)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        with_constants(stack, {"ranking.sampled_lists.WINDOW_ROWS": protocol.window_rows})
        keys = protocol.settings() | rules.settings(graph, protocol.sides) | {"breakdowns": ["time"], "time_bin": width}
        report = evaluate(write_graph(graph, Path(folder), **keys), output=Path(folder) / "out", workers=1)
        read = Report.read(Path(folder) / "out").rows["time"]
    assert [*map(dict, read)] == [*map(dict, report.rows["time"])]
    assert [table.title for table in breakdowns_of(report)] == ["Metrics by time"] * bool(read)
    rows = {row["time_from"]: row for row in read}
    ranked = [case for case in cases if not case.is_outside]
    assert {rules.times[0][case.bucket][case.row] // width * width for case in ranked} <= rows.keys()
    for start, row in rows.items():
        assert row["time_until"] == start + width
        for label in [*(LABELS[side] for side in protocol.sides), "both"]:
            of_bin = [case for case in cases if rules.times[0][case.bucket][case.row] // width == start // width]
            assert_equal(rank_figures([case.judged(filtered=True) for case in of_label(of_bin, label)]), row, label)


@pytest.mark.parametrize("candidates", POLICIES)
@settings(quick, max_examples=examples(10, quick=2))
@given(st.data())
def test_edges_of_the_future_change_no_figure(candidates, data):
    """Known edges later than every query: of all sections, only what tells of training alone may count them."""
    graph = data.draw(tiny_graphs(exact=True, max_edges=16, max_partitions=2))
    rules = data.draw(all_rules(graph, restricted=True))
    rules = dataclasses.replace(data.draw(timed([graph], rules, latest=9)), until_query=True, observed=False)
    protocol = data.draw(protocols(candidates, pbg=False))
    later = {bucket: data.draw(edge_lists_of(graph, bucket)) for bucket in graph.buckets}
    times = {bucket: [10] * len(edges) for bucket, edges in later.items()}
    num_evaluated_and_filter = 1 + len(rules.filter_edges)
    both = dataclasses.replace(
        rules,
        filter_edges=[*rules.filter_edges, later],
        train_edges=[*rules.train_edges, later],
        times=[*rules.times[:num_evaluated_and_filter], times, *rules.times[num_evaluated_and_filter:], times],
    )
    more = {"breakdowns": ["relation", "entity_types", "time"], "time_bin": 3, "compute_loss": candidates != "all"}
    more |= {"save_topk": 2} if candidates == "all" else {}
    figures = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        with_constants(stack, {"ranking.sampled_lists.WINDOW_ROWS": protocol.window_rows})
        for number, of in enumerate((rules, both)):
            keys = protocol.settings() | of.settings(graph, protocol.sides) | more
            config = write_graph(graph, Path(folder) / str(number), **keys)
            report = evaluate(config, output=Path(folder) / f"out{number}", workers=1, device="cpu")
            document = {key: value for key, value in report.document.items() if key not in ABOUT_TRAINING}
            figures.append((document, {name: [*map(dict, rows)] for name, rows in report.rows.items()}))
    assert figures[0] == figures[1]


ABOUT_TRAINING = ("provenance", "edge_diagnostics", "run")


def edge_lists_of(graph: TinyGraph, bucket: tuple[int, int]) -> st.SearchStrategy[list[Any]]:
    sizes = {entity_type: [len(table) for table in tables] for entity_type, tables in graph.embeddings.items()}
    return edge_lists(bucket, graph.relations, sizes, 40)


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"type_constraint": "observed"}, "type_constraint: 'observed' takes entities from known edges of all times"),
        ({"breakdowns": ["popularity"]}, "breakdowns[0]: 'popularity' counts training edges of all times"),
    ],
)
def test_what_would_leak_the_future_is_refused(settings: dict[str, Any], fault: str) -> None:
    """Of (0, 0, ?) at time 0, entity 4 is observed at time 9 only: rank 3 of 3 with it, 2 of 2 without it."""
    scorer = edge_scorer(lambda lhs, rel, rhs: (lhs * 0 + rhs).float(), num_entities=5, num_relations=1)
    test, known = [[0, 0, 2, 0]], [[1, 0, 3, 0], [3, 0, 4, 9]]

    def rank(**keys: Any) -> tuple[Any, Any]:
        report = evaluate_triples(scorer, test, train=[known], disable_lhs_negs=True, **keys)
        return report["mean_rank"], report.document["diagnostics"]["both"]["num_candidates"]["max"]

    assert (rank(type_constraint="observed"), rank(known_until="query")) == ((3, 3), (3, 5))
    assert fault_of(lambda: rank(known_until="query", **settings)).startswith(fault)


def timed_case(root: Path, **more: Any) -> TinyCase:
    """A graph whose evaluated edges, of one file, are also known, at one of a few times each."""
    case = TinyCase.write(root, dynamic=True, partition_sizes=(9,), edges_per_bucket=20, **more)
    case.give_times()
    case.write_config(filter_paths=["edges"])
    return case


@pytest.mark.parametrize("precision", ["float32", slow("exact")])
def test_given_candidates_are_filtered_by_time(precision: str, tmp_path: Path) -> None:
    """Lists that name all entities twice: as many compete as among all, twice."""
    case = timed_case(tmp_path / "case")
    every = np.tile(np.arange(9), (20, 2))
    write_candidates(tmp_path / "given", Bucket(0, 0), head=every, tail=every)
    asked = {"time_window": 2, "known_until": "query", "precision": precision, "metrics": ["rank"]}
    config = evolve(load_config(case.config), candidates="all", **asked)
    whole = evaluate(config, output=tmp_path / "all", workers=1)
    with ExitStack() as stack:
        with_constants(stack, SMALL_BLOCKS)
        given = evaluate(evolve(config, candidate_path=str(tmp_path / "given")), output=tmp_path / "lists", workers=1)

    for part in ("metrics", "raw_metrics", "time_filtered_metrics"):
        for side in ("head", "tail"):
            doubled = 2 * whole.document[part][f"{side}.realistic.mean_rank"] - 1
            assert doubled == pytest.approx(given.document[part][f"{side}.realistic.mean_rank"], rel=1e-12)


@pytest.mark.parametrize("candidates", [slow("all"), slow("partition"), "sampled"])
def test_a_loss_leaves_out_what_is_known_until_the_query(candidates: str, tmp_path: Path) -> None:
    """Of edges in order of time: the loss of the last is that without times, of the first that without known edges."""
    case = timed_case(tmp_path / "case")
    config = evolve(load_config(case.config), candidates=candidates, compute_loss=candidates != "all")
    reports = [
        evaluate(evolve(config, known_until=until), output=tmp_path / str(until), workers=1)
        for until in (None, "query")
    ]
    assert reports[0].raw == reports[1].raw
    assert reports[0].document["metrics"] != reports[1].document["metrics"]
    if candidates != "all":
        assert reports[0]["loss"] <= reports[1]["loss"]  # more compete


def imported(folder: Path, text: str, *arguments: str) -> Any:
    folder.mkdir(exist_ok=True)
    (folder / "edges.tsv").write_text(text)
    return run_main("import-graph", "--output", "out", "--edges", "all=edges.tsv", *arguments, cwd=folder)


def test_a_column_of_text_or_parquet_becomes_times(tmp_path: Path) -> None:
    lines = [("a", "r", "b", "0.5", " 12"), ("b", "r", "a", "1", "9223372036854775807"), ("a", "r", "a", "2", "0")]
    plain = "".join("\t".join(line) + "\n" for line in lines)
    named = "from\tvia\tto\tmuch\twhen\n" + plain
    for name, text, columns in (("plain", plain, "hrtws"), ("named", named, "from,via,to,,when")):
        assert imported(tmp_path / name, text, "--edge-columns", columns).status == 0
        with h5py.File(tmp_path / name / "out" / "all" / "edges_0_0.h5") as file:
            assert (file["time"].dtype, [12, 2**63 - 1, 0]) == (np.int64, file["time"][:].tolist())
            assert (name == "plain") == ("weight" in file)


@pytest.mark.parametrize("time", ["", "-1", "1.5", "1e3", "today", "9223372036854775808"])
def test_a_time_that_is_no_integer_is_refused_with_its_line(time: str, tmp_path: Path) -> None:
    done = imported(tmp_path / "case", f"a\tr\tb\t3\na\tr\tc\t{time}\n", "--edge-columns", "hrts")
    assert done.refusal.strip().splitlines()[-1:] == ["edges.tsv:2: the time is not an integer from 0 to 2^63 - 1"]


ASKED = ("time_window=0", "known_until=query", "breakdowns=time")


def refused(case: TinyCase, *overrides: str) -> str:
    [line] = {*run_command(case, "--workers", "1", "--quiet", *flags(overrides)).refusal.splitlines()}
    return line  # the edges may be evaluated and known


@pytest.mark.parametrize("asked", ASKED)
def test_bad_times_are_refused_in_a_line(asked: str, tmp_path: Path) -> None:
    case = timed_case(tmp_path / "case")
    path = case.edges(0, 0)
    overrides = (asked, "time_bin=2")
    not_integer = "expected an integer from 0 to 2^63 - 1, got"
    for values, fault in (
        (None, "expected a dataset time, found lhs, rel, rhs; check the path"),
        (np.arange(20.0), "dataset time: expected integers, found float64; write the file again"),
        (np.arange(19), "dataset time: expected 20 rows (as many as rel), found 19; write the file again"),
        (7 - np.arange(20), f"time of row 8: {not_integer} -1; count times from the first one"),
        (np.full(20, 2**63, np.uint64), f"dataset time: row 0: expected an integer up to 2^63 - 1, got {2**63}"),
    ):
        with h5py.File(path, "r+") as file:
            file.pop("time", None)
            if values is not None:
                file["time"] = values
        assert f"edges_0_0.h5: {fault}" in refused(case, *overrides)


def test_known_edges_need_times_only_where_a_filter_goes_by_them(tmp_path: Path) -> None:
    case = timed_case(tmp_path / "case")
    known = TinyCase.write(tmp_path / "known", dynamic=True, partition_sizes=(9,), edges_per_bucket=20, seed=2)
    case.write_config(filter_paths=[str(known.root / "edges")])
    assert "known/edges/edges_0_0.h5: expected a dataset time" in refused(case, "time_window=3")
    assert run_command(case, "--workers", "1", "-p", "breakdowns=time", "-p", "time_bin=2").status == 0


@pytest.mark.parametrize(
    ("overrides", "fault"),
    [
        (("time_window=-1",), "time_window=-1: expected an int >= 0, got -1"),
        (("time_bin=0",), "time_bin=0: expected an int >= 1, got 0"),
        (("known_until=test",), "known_until=test: expected one of query, got 'test'"),
        (
            ("known_until=query", "filter_paths="),
            "has no effect without known edges; set filter_paths (for arrays: known=[...]) or train_paths (for arrays: "
            "train=[...])",
        ),
        (
            ("time_window=0", "filter_paths="),
            "has no effect without known edges; set filter_paths (for arrays: known=[...]) or train_paths (for arrays: "
            "train=[...])",
        ),
        (("breakdowns=time",), "'time' needs time_bin; set it, or remove 'time'"),
    ],
)
def test_settings_of_time_are_refused_in_a_line(overrides: tuple[str, ...], fault: str, tmp_path: Path) -> None:
    assert fault in refused(timed_case(tmp_path / "case"), *overrides)


def test_arrays_without_times_are_refused() -> None:
    expected = "expected integers of shape (edges, 4): head, relation, tail, time, got no fourth column; add the times"
    for test, known, name in ((TEST[:, :3], KNOWN, "edges"), (TEST, KNOWN[:, :3], "known edges")):
        fault = fault_of(
            lambda test=test, known=known: evaluate_triples(SCORERS["edges"], test, known=[known], time_window=0)
        )
        assert fault == f"{name}: {expected}"
