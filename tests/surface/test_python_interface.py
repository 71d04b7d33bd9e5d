"""What a Python user has: public names, `evaluate` and `evaluate_triples`, and everything that a report gives."""

from __future__ import annotations

import inspect
import io
import json
import pickle
import re
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pandas as pd
import pytest
import torch
from rich.console import Console

import pbgeval
from pbgeval import (
    Edges,
    EntitySchema,
    EvalConfig,
    EvalError,
    Observer,
    RelationSchema,
    Report,
    edge_scorer,
    evaluate,
    evaluate_triples,
    load_config,
)
from pbgeval.cluster import resources
from pbgeval.errors import OutputError
from pbgeval.inputs import protocol
from pbgeval.report.figures import name_of
from pbgeval.report.page import latex, markdown, page_of, read_source
from pbgeval.results import document
from pbgeval.storage.writing import system
from pbgeval.worker import run
from tests.kit.case import TinyCase
from tests.kit.commands import REPOSITORY, writes_nothing
from tests.kit.refusals import fault_of

NAMES = """
Comparison Edges EntitySchema EvalConfig EvalError ManyRuns ModelSchema ModelTensors Monitor MonitoredRelation Observer
RelationSchema Report ScoredModel Scorer Side SuiteGraph Team TensorBoardSink __version__ batch_scorer compare
compare_runs edge_scorer evaluate evaluate_files evaluate_triples from_ranks from_scores load_config read_history
side_scorer
"""
CANDIDATES = {
    "all": ["candidates=all", "filter_paths=edges", "breakdowns=relation,entity_types"],
    "partition": ["candidates=partition"],
    "sampled": ["candidates=sampled", "sample_edges=60"],
}
SCORER = edge_scorer(lambda lhs, rel, rhs: torch.sin(lhs + 3.0 * rel - 2.0 * rhs), num_entities=9, num_relations=2)
TRAIN, TEST = np.array([[0, 0, 1], [1, 0, 2], [3, 1, 4]]), [[0, 0, 2], [5, 1, 6]]


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> TinyCase:
    return TinyCase.write(tmp_path_factory.mktemp("case"), partition_sizes=(9, 8), edges_per_bucket=11)


@pytest.fixture(scope="module", params=CANDIDATES)
def reports(request: pytest.FixtureRequest, case: TinyCase) -> tuple[Report, Report]:
    """Return a report as it comes from an evaluation, and read back from its files."""
    output = case.root / f"output_{request.param}"
    report = evaluate(case.config, overrides=_local(case, request.param), output=output, workers=1)
    return report, Report.read(output)


def figures_of(report: Report) -> dict[str, Any]:
    """Return the document without the digest, which is another at each evaluation of a function."""
    return {**report.document, "provenance": None}


def _local(case: TinyCase, candidates: str) -> list[str]:
    paths = {"filter_paths=edges": f"filter_paths={case.root / 'edges'}"}
    return [paths.get(text, text) for text in CANDIDATES[candidates]]


# Names


def test_the_public_names_are_these_and_all_can_be_imported() -> None:
    assert sorted(pbgeval.__all__) == NAMES.split()
    assert all(getattr(pbgeval, name) is not None for name in NAMES.split())


# evaluate, evaluate_triples


def test_triples_have_the_figures_of_the_same_edges_in_memory(tmp_path: Path) -> None:
    edges = pbgeval.Edges(TEST, known=[TRAIN])
    expected = evaluate(EvalConfig(candidates="all", hits_at=[2]), model=SCORER, edges=edges)
    of_dict = evaluate({"candidates": "sampled"}, overrides=["candidates=all", "hits_at=2"], model=SCORER, edges=edges)
    assert of_dict.document["metrics"] == expected.document["metrics"]

    found = evaluate_triples(SCORER, torch.tensor(TEST), known=[TRAIN], hits_at=[2])
    raw = evaluate_triples(SCORER, TEST, output=tmp_path / "raw", metrics=["mrr"])

    assert found.document["metrics"] == expected.document["metrics"]
    assert (found.path, found.document["filter"]) == (None, "filtered")
    assert raw["mrr"] == raw.raw["mrr"] == found.raw["mrr"]
    assert (tmp_path / "raw" / "metrics.json").exists()


def test_a_title_counts_edges_in_memory_and_names_a_folder_of_edges(case: TinyCase, tmp_path: Path) -> None:
    evaluate_triples(SCORER, TEST, output=tmp_path / "array")
    evaluate(case.config, output=tmp_path / "folder", workers=1)

    titles = [name_of(Report.read(tmp_path / name)).partition(" on ")[2] for name in ("array", "folder")]
    assert titles == ["2 edges in memory", f"{case.root.name}, edges"]


def test_names_of_relations_are_read_from_entity_path(tmp_path: Path) -> None:
    (tmp_path / "dynamic_rel_names.json").write_text('["likes", "knows"]')

    found = evaluate_triples(SCORER, TEST, entity_path=str(tmp_path), breakdowns=["relation"])

    assert [row["relation"] for row in found.table("relations").rows] == ["likes", "knows"]


def test_training_triples_are_known_and_counted() -> None:
    known = [TRAIN, TEST[:1]]
    found, trained = evaluate_triples(SCORER, TEST, known=known), evaluate_triples(SCORER, TEST, train=known)

    assert trained.document["metrics"] == found.document["metrics"]
    assert "1 of 2 evaluated edges is also in train" in " ".join(repr(trained).split())
    assert "also in train" not in repr(found)
    assert "popularity" in evaluate_triples(SCORER, TEST, train=known, breakdowns=["popularity"]).document


def test_metrics_of_lists_are_found_by_name() -> None:
    report = evaluate_triples(SCORER, TEST, train=[TRAIN], topk_metrics=True, hits_at=[1, 3])

    assert report.topk == report.document["topk_metrics"]["macro_metrics"]
    assert 0.0 < (report.topk["recall@3"] or 0.0) <= 1.0
    assert report.topk["tail.MRR@3"] == report.topk["tail.mrr_at_3"]
    with pytest.raises(KeyError, match=r"with topk_metrics = True, report\.topk\['recall@3'\]"):
        report["recall@3"]
    with pytest.raises(KeyError, match=r"nearest: .*recall_at_3"):
        report.topk["recall@5"]
    with pytest.raises(OutputError, match="topk_metrics: this report has none; evaluate with topk_metrics"):
        _ = evaluate_triples(SCORER, TEST).topk


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        ({"precision": "exact", "pbg_semantics": True}, "precision: 'exact' is not defined for pbg_semantics = True"),
        ({"num_uniform_negs": -5}, "num_uniform_negs: expected an int >= 0, got -5"),
        ({"filter_paths": None}, "filter_paths: expected a list, got None"),
    ],
)
def test_a_config_of_a_file_that_was_changed_is_checked(
    case: TinyCase, keys: dict[str, Any], fault: str, tmp_path: Path
) -> None:
    changed = attrs.evolve(load_config(case.config), **keys)

    with writes_nothing(tmp_path):
        assert fault_of(lambda: evaluate(changed, output=tmp_path / "output", workers=1)).startswith(fault)


@pytest.mark.parametrize(
    ("arguments", "settings", "fault"),
    [
        (
            (SCORER, [[0, 0]]),
            {},
            r"edges: expected integers of shape \(edges, 3\): head, relation, tail; or .*, got int64 of shape",
        ),
        (
            (SCORER, [[0, 0.5, 1]]),
            {},
            "edges: expected integers of shape .* got float64 .*; if these are row ids, use .astype",
        ),
        (
            (SCORER, "test.tsv"),
            {},
            r"edges: .*; pass row ids, not names or a path \(evaluate_files takes files of edges by name\)$",
        ),
        (
            (SCORER, TEST),
            {"known": [Path("a.tsv")]},
            r"known edges: .*\(evaluate_files takes files of edges by name\)$",
        ),
        ((SCORER, TEST), {"labels": ["a", "b"]}, "^labels: expected a path, got list; give a folder with entities.tsv"),
        ((SCORER, TEST), {"output": 3}, "^output: expected a path, got int$"),
        ((SCORER, np.zeros((3, 9), int)), {}, r"edges: expected integers of shape .*; transpose it: \.T"),
        ((SCORER, TEST[:0]), {}, "^test: there are no edges to evaluate$"),
        ((SCORER, [[0, 0, 9]]), {}, r"edges: row 0, tail: expected an id in 0..8"),
        ((SCORER, TEST), {"known": TRAIN}, r"known edges: expected a list of arrays, got one array; write \[array\]"),
        (
            (SCORER, TEST),
            {"breakdowns": ["popularity"]},
            r"set train_paths \(for arrays: train=\[\.\.\.\]\), or remove",
        ),
        ((SCORER, TEST), {"known": [[[0, 0, -1]]]}, r"known edges: row 0, tail: expected an id in 0..8"),
        ((SCORER, TEST), {"save_topk": 3}, r"save_topk: give output=\.\.\., the folder that the lists go to"),
        ((SCORER, TEST), {"valid": [TRAIN]}, r"valid: unknown key; give the triples to filter out, .*known=\[valid\]"),
        ((SCORER, TEST), {"filtered": True}, r"filtered: unknown key; give .*, train=\[train\] and known=\[valid\]"),
        ((SCORER, TEST), {"knwon": [TRAIN]}, "knwon: unknown key; did you mean 'known'"),
        ((SCORER, TEST), {"hit_at": [1], "seeed": 3}, "hit_at: unknown key; did you mean 'hits_at'"),
        ((torch.nn.Linear(2, 1), TEST), {}, "Linear without num_entities; edge_scorer or batch_scorer make one"),
        (("nowhere", TEST), {}, "nowhere"),
    ],
)
def test_triples_that_cannot_be_ranked_are_refused_in_a_line(arguments, settings, fault) -> None:
    with pytest.raises(EvalError, match=fault) as refused:
        evaluate_triples(*arguments, **settings)
    assert all(len(line.splitlines()) == 1 for line in refused.value.faults)


@pytest.mark.parametrize(
    ("schema", "keys", "lines"),
    [
        (EvalConfig, {"candidate": "all"}, ["candidate: unknown key; did you mean 'candidates'?"]),
        (EvalConfig, {"lr": 0.1}, ["lr: only PyTorch-BigGraph's training uses this key; remove it"]),
        (
            EntitySchema,
            {"num_partition": 4},
            ["num_partition: unknown key; did you mean 'num_partitions'?", "num_partitions: this key is required"],
        ),
        (RelationSchema, {"lhs": "user"}, ["name, rhs: this key is required"]),
    ],
)
def test_a_wrong_keyword_of_a_schema_is_a_plain_line(schema, keys, lines) -> None:
    with pytest.raises(EvalError) as refused:
        schema(**keys)

    assert [*refused.value.faults] == lines
    assert "self" not in inspect.signature(schema).parameters, "as attrs made it"
    assert set(inspect.signature(schema).parameters) == set(attrs.fields_dict(schema))


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({"workers": 0}, "^workers 0: the number of processes must be at least 1; leave it out to use all cores$"),
        ({"overrides": ["seed=3"]}, "overrides change a config file"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(case: TinyCase, arguments, fault) -> None:
    with pytest.raises(EvalError, match=fault):
        evaluate(load_config(case.config), **arguments)


# Reports


@pytest.mark.parametrize(
    ("edges", "words"),
    [
        (Edges(TEST, train=[TEST]), "2 of 2 evaluated edges are also in train"),
        (Edges(np.empty((0, 3), int)), "no edges to evaluate, so the figures are undefined"),
    ],
)
def test_what_to_know_before_quoting_a_figure_is_said_wherever_figures_are(edges, words, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("entity", "relation"):
        np.save(folder / f"{name}.npy", np.random.default_rng(3).standard_normal((9, 4)).astype(np.float32))
    (folder / "model.json").write_text('{"model": "distmult"}')
    told: list[str] = []
    observer = Observer()
    observer.warn = told.append

    made, again = (
        evaluate(EvalConfig(candidates="all"), model=folder, edges=edges, output=tmp_path / "out", observer=observer)
        for _ in range(2)
    )

    source = read_source(tmp_path / "out", None, "mrr", told.append)
    shown = (repr(made), repr(again), made._repr_html_(), markdown(source), latex(source))
    assert all(words in " ".join(text.split()) for text in (*told, *shown))
    assert f">{words[0].upper()}{words[1:]}" in page_of(source).render()
    assert len(told) == 2


@pytest.mark.one_case
def test_a_report_read_back_is_the_one_that_was_returned(reports: tuple[Report, Report]) -> None:
    made, found = reports

    assert (found.document, found.run) == (made.document, json.loads(json.dumps(made.run)))
    assert sorted(found.tables) == sorted(made.tables)
    for name in made.tables:
        first, second = ([*of.table(name), of.table(name).columns, repr(of.table(name))] for of in (made, found))
        assert first == second
    assert (repr(found), found.path) == (repr(made), made.path)


def test_raw_and_macro_figures_have_the_names_of_all_others(reports: tuple[Report, Report]) -> None:
    for report in reports:
        document = report.document
        raw, macro = document.get("raw_metrics", document["metrics"]), document["macro_metrics"]
        assert report.raw["MRR"] == raw["both.realistic.mean_reciprocal_rank"]
        assert report.macro["tail.hits@10"] == macro["tail.realistic.hits_at_10"]
        for figures, section, title in (
            (report.raw, raw, "Unfiltered"),
            (report.macro, macro, "Macro average over query keys"),
            (report.relation_macro, document["relation_macro_metrics"], "Macro average over relations"),
        ):
            first, _, table = repr(figures).partition("\n")
            shown = len(re.findall(r"[\d,.]+ (?=│)|– (?=│)", table))  # each cell of a figure
            assert (first, figures) == (f"{title}: {shown} of {len(figures)} figures, realistic ranks", section)
        with pytest.raises(KeyError, match="no metric 'mmr'"):
            report.raw["mmr"]


def test_tables_become_data_frames_and_text_and_html(reports: tuple[Report, Report]) -> None:
    report = reports[1]
    table = report.table("relations")
    frame = table.to_pandas()

    assert list(frame.columns) == list(table.columns)
    assert frame["relation"].tolist() == [row["relation"] for row in table] == ["knows", "likes", "has", "marks"]
    for row in (*table, table.rows[0]):
        assert (row["tail.mrr"], row["MRR"]) == (
            row["tail.realistic.mean_reciprocal_rank"],
            row["both.realistic.mean_reciprocal_rank"],
        )
    with pytest.raises(KeyError, match=r"no metric 'tail\.mmr' here; nearest: "):
        table.rows[0]["tail.mmr"]
    assert pd.api.types.is_float_dtype(frame["both.realistic.mean_reciprocal_rank"])
    assert len(report.table("rank_histogram").to_pandas()) == len(report.table("rank_histogram")) > 0
    for shown, words in ((table, ["relation", "knows", "MRR"]), (report, ["reciprocal", "realistic"])):
        console = Console(width=120, record=True, file=io.StringIO())
        console.print(shown)
        assert all(word in repr(shown) and word in shown._repr_html_() for word in words)
        assert [line.rstrip() for line in console.export_text().rstrip().splitlines()] == repr(
            shown
        ).rstrip().splitlines()


@pytest.mark.parametrize(
    ("name", "near"),
    [("relation", "relations"), ("bucket", "buckets"), ("groups", None), ("loss", None)],
)
def test_a_table_that_is_not_there_is_named_with_those_that_are(reports: tuple[Report, Report], name, near) -> None:
    with pytest.raises(
        EvalError, match=f"no table '{name}' in this report: expected one of buckets, rank_h"
    ) as refused:
        reports[0].table(name)
    assert str(refused.value).endswith(f"; did you mean '{near}'?") == (near is not None)
    with pytest.raises(EvalError, match=r"buckets, relation_groups; did you mean 'relation_groups'\?$"):
        Report({}, rows={"buckets": [], "relation_groups": []}).table("groups")  # by the name of a breakdown


def test_names_in_html_are_text(case: TinyCase) -> None:
    rows = [{"relation": "<b>&", "relation_id": 0, "lhs_type": "a", "rhs_type": "a", "both.realistic.count": 3}]
    report = Report({"metrics": {}, "headline": "realistic"}, rows={"relations": rows})

    assert '<td style="text-align: left">&lt;b&gt;&amp;</td>' in report.table("relations")._repr_html_()


# Ranks that are saved by default


BOUNDS = [
    ({}, "none", True),
    ({}, "false", False),
    ({"MAX_QUERIES_SAVED": 99}, "none", False),
    ({"MAX_QUERIES_SAVED": 99}, "true", True),
    ({"MAX_BUCKETS_SAVED": 3}, "none", False),
    ({"MAX_SAMPLED_BUCKETS_SAVED": 3}, "none", False),
]


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("candidates", "bounds", "save_ranks", "saved"),
    [(name, *of) for name, of in zip([*CANDIDATES] * 2, BOUNDS, strict=True)],
)
def test_ranks_are_saved_where_there_are_few(  # 100 queries in 4 buckets
    case: TinyCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, candidates, bounds, save_ranks, saved
) -> None:
    for name, value in bounds.items():
        monkeypatch.setattr(protocol, name, value)
    overrides = [*_local(case, candidates), f"save_ranks={save_ranks}"]

    report = evaluate(case.config, overrides=overrides, output=tmp_path / "output", workers=1)

    assert saved == (tmp_path / "output" / "ranks").exists()
    digest = evaluate(case.config, overrides=overrides[:-1], output=tmp_path / "again", workers=1)
    assert report.document == digest.document


def test_an_evaluation_in_memory_writes_nothing_that_must_outlast_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "sync", None)  # a call of it is a fault

    assert evaluate_triples(SCORER, TEST).path is None


def test_a_small_graph_is_ranked_by_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several would spin while they wait for each other: the first call took seconds where others used the cores."""
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(resources, "num_cores", lambda: 2)
    small = evaluate_triples(SCORER, TEST)
    monkeypatch.setattr(run, "MAX_MULTIPLICATIONS_OF_ONE_THREAD", 0)
    large = evaluate_triples(SCORER, TEST)

    assert [of.run["workers"][0]["threads"] for of in (small, large)] == [1, 2]
    assert (figures_of(small), torch.get_num_threads()) == (figures_of(large), before)


def test_what_is_computed_when_it_is_read_is_what_is_computed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    later = evaluate_triples(SCORER, TEST, train=[TRAIN])
    monkeypatch.setattr(document, "MAX_QUERIES_KEPT", 0)
    at_once = evaluate_triples(SCORER, TEST, train=[TRAIN])
    names = list(later.tables)

    copied = pickle.loads(pickle.dumps(later))

    assert [type(of.document) for of in (at_once, copied)] == [dict, dict]
    assert figures_of(copied) == figures_of(later) == figures_of(at_once)
    for name in at_once.tables:
        assert list(copied.table(name)) == list(later.table(name)) == list(at_once.table(name))
    assert (list(later.tables), list(copied.tables), list(at_once.tables)) == (names, names, names)


# Documentation


def test_documented_imports_are_of_public_modules() -> None:
    pages = [path for path in (REPOSITORY / "docs").rglob("*.md") if path.parent.name != "decisions"]
    imported = re.compile(r"^ *(?:from|import) (pbgeval[.\w]*)", re.MULTILINE)
    public = re.compile(r"pbgeval(\.integrations\.\w+)?")

    assert [
        f"{path.name}: {module}"
        for path in (REPOSITORY / "README.md", *pages)
        for module in imported.findall(path.read_text(encoding="utf-8"))
        if not public.fullmatch(module)
    ] == []


def test_a_wrong_number_of_workers_is_named_as_the_argument(case: TinyCase, tmp_path: Path) -> None:
    with pytest.raises(EvalError, match=r"\(in Python: workers=2000\): "):
        evaluate(case.config, output=tmp_path / "output", workers=2000)
