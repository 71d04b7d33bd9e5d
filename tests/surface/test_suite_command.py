"""`kgeval-dist suite`: each evaluation is the ordinary one, resumes with the same bytes, reports all faults at once."""

from __future__ import annotations

import csv
import io
import json
import shutil
import signal
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from pbgeval import Report, edge_scorer, evaluate_triples
from pbgeval.errors import ConfigError, EvalError
from pbgeval.report.conditions import warnings_of
from pbgeval.report.summary import chance_verdict
from pbgeval.suite import Suite, SuiteGraph
from tests.clusters import wait_until
from tests.kit.commands import COMMAND, lacking, run_command, run_main
from tests.kit.projects import SUITE_MODELS, write_suite
from tests.table_readers import rows_of_latex

GRAPHS = {"one": 9, "two": 31, "three": 12}  # entities


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a suite that has run undisturbed."""
    folder = tmp_path_factory.mktemp("suite")
    write_suite(folder / "many.yaml", GRAPHS)
    done = run_main("suite", "many.yaml", "--workers", "1", cwd=folder)
    assert done.status == 0, done.err
    assert not lacking(
        done.out, "three, vectors", "3 models on 3 graphs", "average", "suite.json, suite.csv, suite.tex, suite.html"
    )
    return folder


def numbers(folder: Path) -> dict[str, bytes]:
    """Return the bytes of all results and of what the suite wrote."""
    output = folder / "results" / "many"
    paths = [*output.glob("suite.*"), *output.glob("*/*/metrics.json"), *output.glob("*/*/*.csv")]
    return {str(path.relative_to(output)): path.read_bytes() for path in paths}


def test_a_model_that_is_a_path_is_evaluated_as_by_run(finished: Path, tmp_path: Path) -> None:
    config = tmp_path / "eval.py"
    keys = {
        "model": str(finished / "models" / "two"),
        "candidates": "all",
        "edge_paths": [str(finished / "two-test.tsv")],
        "train_paths": [str(finished / "two-train.tsv")],
        "filter_paths": [str(finished / "two-valid.tsv")],
        "hits_at": [1, 3],
    }
    config.write_text(f"from pbgeval import EvalConfig\n\n\ndef get_config():\n    return EvalConfig(**{keys})\n")
    assert run_command(config, "--workers", "1", "--output", "alone").status == 0

    ours = finished / "results" / "many" / "two" / "vectors" / "metrics.json"
    assert ours.read_bytes() == (tmp_path / "alone" / "metrics.json").read_bytes()


def test_a_model_that_a_function_makes_is_evaluated_as_in_python(finished: Path) -> None:
    train, known, test = (finished / f"two-{name}.tsv" for name in ("train", "valid", "test"))
    graph = SuiteGraph.read("two", train=[train], known=[known], test=[test])
    names = [(graph.entities[lhs], graph.relations[rel], graph.entities[rhs]) for lhs, rel, rhs in graph.known]
    assert ["\t".join(edge) for edge in names] == known.read_text(encoding="utf-8").splitlines()

    def score(lhs: Tensor, rel: Tensor, rhs: Tensor) -> Tensor:
        return -((lhs + rel - rhs).abs() % 7).float()

    model = edge_scorer(score, num_entities=graph.num_entities, num_relations=graph.num_relations)
    alone = evaluate_triples(model, graph.test, train=[graph.train], known=[graph.known], hits_at=[1, 3])

    ours = Report.read(finished / "results" / "many" / "two" / "distance").document
    for part in ("metrics", "raw_metrics", "diagnostics", "edge_diagnostics"):
        assert ours[part] == alone.document[part]


def test_the_table_has_every_figure_and_the_average_over_graphs(finished: Path) -> None:
    output = finished / "results" / "many"
    document = json.loads((output / "suite.json").read_text(encoding="utf-8"))
    rows = list(csv.DictReader(io.StringIO((output / "suite.csv").read_text(encoding="utf-8"))))

    runs = [(graph, model) for graph in GRAPHS for model in ("distance", "degree", "vectors")]
    assert [(of["graph"], of["model"]) for of in document["results"]] == runs
    assert [(of["graph"], of["model"]) for of in rows] == runs
    for found, row in zip(document["results"], rows, strict=True):
        report = Report.read(output / found["graph"] / found["model"])
        assert found["metrics"] == {key: report[key] for key in found["metrics"]}
        assert found["digest"] == report.document["provenance"]["digest"]
        assert [float(row[key]) for key in found["metrics"]] == list(found["metrics"].values())
    for model, averages in document["averages"].items():
        names = ("hits_at_3", "mean_rank", "mean_reciprocal_rank")
        assert list(averages) == [f"both.realistic.{name}" for name in names]
        for key, value in averages.items():
            values = [of["metrics"][key] for of in document["results"] if of["model"] == model]
            assert value == pytest.approx(statistics.fmean(values), rel=1e-15)
    head, *of_graphs = rows_of_latex((output / "suite.tex").read_text(encoding="utf-8"))
    assert head[:3] == ["graph", "edges", "distance, MRR"]
    assert [row[0] for row in of_graphs] == [*GRAPHS, "average"]
    page = (output / "suite.html").read_text(encoding="utf-8")
    assert not lacking(page, "3 models on 3 graphs", "distance", "mean rank (lower is better)", "average", *GRAPHS)
    assert "has the best average MRR" in page


def test_warnings_of_every_result_stand_before_the_figures_and_chance_is_marked(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")  # so that no sentence is broken
    output = finished / "results" / "many"
    document = json.loads((output / "suite.json").read_text(encoding="utf-8"))
    page, latex = ((output / f"suite.{kind}").read_text(encoding="utf-8") for kind in ("html", "tex"))
    again = run_main("suite", "many.yaml", "--workers", "1", cwd=finished)

    assert page.index('id="warnings">Before you quote these figures') < page.index('id="results"')
    assert not lacking(again.out, "Before you quote these figures:", "* no better than chance.")
    warnings: dict[str, list[str]] = {}
    marked = set()
    for found in document["results"]:
        report = Report.read(output / found["graph"] / found["model"])
        name, told = f"{found['model']} on {found['graph']}", chance_verdict(report.document)
        for warning in filter(None, [told, *warnings_of(report.document)]):
            warnings.setdefault(warning, []).append(name)
        if told.startswith("no better than chance"):
            marked.add((found["graph"], f"{found['model']}, MRR"))
    assert any("have exactly the score of the true entity" in warning for warning in warnings)
    for warning, names in warnings.items():
        line = f"{', '.join(names)}: {warning}"
        assert f"<li>{line}." in page
        assert f"\n% warning: {line}\n" in latex
        assert f"\n- {line}\n" in again.out
    head, *of_graphs = rows_of_latex(latex)
    cells = {(row[0], name): cell for row in of_graphs for name, cell in zip(head[1:], row[1:], strict=True)}
    assert {place for place, cell in cells.items() if place[1].endswith(", MRR") and cell.endswith("*")} == marked
    assert len(marked) == 2
    for graph, model in marked:
        assert f"<td>{cells[graph, model]}" in page


def test_models_with_other_candidates_are_warned_of_and_none_is_the_best(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    folder = shutil.copytree(finished, tmp_path / "more", ignore=shutil.ignore_patterns("results"))
    model = folder / "models" / "one"
    np.save(model / "entity.npy", np.concatenate([np.load(model / "entity.npy"), np.ones((3, 4), np.float32)]))
    with (model / "entities.tsv").open("a", encoding="utf-8") as labels:
        labels.writelines(f"{index}\tentity {index}\n" for index in range(9, 12))
    done = run_main("suite", "many.yaml", "--workers", "1", cwd=folder)

    warning = "vectors on one: not comparable with distance (15 edges, filtered, 6 to 9 candidates per query, "
    told = "Models are not comparable on one, so none is called the best."
    assert not lacking(done.out, told, f"\n- {warning}")
    output = folder / "results" / "many"
    page, latex = ((output / f"suite.{kind}").read_text(encoding="utf-8") for kind in ("html", "tex"))
    assert not lacking(page, told, f"<li>{warning}")
    assert "has the best" not in page
    assert not lacking(latex, told, f"\n% warning: {warning}")
    found = json.loads((output / "suite.json").read_text(encoding="utf-8"))["results"]
    unlike = [(of["graph"], of["model"]) for of in found if any("not comparable" in told for told in of["warnings"])]
    assert unlike == [("one", "vectors")]


def finished_runs(results: Path) -> dict[Path, int]:
    """Return when each finished evaluation was written."""
    paths = results.glob("*/*/metrics.json")
    return {path: path.stat().st_mtime_ns for path in paths if json.loads(path.read_text(encoding="utf-8"))["complete"]}


def check_that_it_resumes(suite: Path, num_runs: int, killed_after: int) -> None:
    """Kill a suite that has never run, run it again, and check that it goes on."""
    results = suite.parent / "results" / suite.stem
    command = [COMMAND, "suite", suite.name, "--workers", "1", "--quiet"]
    with subprocess.Popen(command, cwd=suite.parent, stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: len(finished_runs(results)) >= killed_after, "the suite does not go on")
        process.send_signal(signal.SIGKILL)
    before = finished_runs(results)
    assert 0 < len(before) < num_runs

    assert run_main("suite", suite.name, "--workers", "1", "--quiet", cwd=suite.parent).status == 0
    after = finished_runs(results)
    assert len(after) == num_runs
    assert {path: after[path] for path in before} == before, "what was finished is not computed again"


@pytest.mark.slow
def test_a_killed_suite_resumes_and_gives_the_same_bytes(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "again"
    folder.mkdir()
    write_suite(folder / "many.yaml", GRAPHS)
    check_that_it_resumes(folder / "many.yaml", num_runs=len(GRAPHS) * 3, killed_after=4)
    assert numbers(folder) == numbers(finished)


def test_a_changed_file_is_refused_and_overwritten_when_asked(finished: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(finished, tmp_path / "changed")
    (folder / "models.py").write_text(SUITE_MODELS + "# changed\n", encoding="utf-8")

    fault = run_main("suite", "many.yaml", "--quiet", cwd=folder).fault
    assert fault.startswith("one, distance: ")
    assert "have changed since this result was made; --overwrite" in fault
    results = Suite.read(folder / "many.yaml").run(workers=1, overwrite=True)
    saved = json.loads((finished / "results" / "many" / "suite.json").read_text(encoding="utf-8"))
    assert [dict(row.metrics) for row in results.rows] == [of["metrics"] for of in saved["results"]]


def test_a_folder_with_the_name_of_a_kind_of_edges_changes_nothing(finished: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(finished, tmp_path / "named")
    for name in ("train", "test"):
        (folder / name).mkdir()
    (folder / "known").write_text("", encoding="utf-8")

    assert run_main("suite", "many.yaml", "--quiet", cwd=folder).status == 0
    assert numbers(folder) == numbers(finished)


def test_all_faults_of_a_file_are_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / "many.yaml").write_text(
        "graph: 1\nsettings: {hits_att: [1]}\nmetrics: mrr\n"
        "graphs:\n  a/b: {test: x.tsv}\n  c: {train: x.tsv}\n  d: {test: y.tsv, testt: y.tsv}\n"
        "models: {m: 3, n: missing.py:f, o: 'models/{graph}'}\n",
        encoding="utf-8",
    )
    with pytest.raises(ConfigError) as raised:
        Suite.read(tmp_path / "many.yaml")

    assert not lacking(
        str(raised.value).replace(f"{tmp_path}/", ""),
        "many.yaml: unknown key 'graph'; expected one of output, settings",
        "many.yaml: graphs: 'a/b': expected a name of letters",
        "many.yaml: graphs: a/b: test: x.tsv: no such file",
        "many.yaml: graphs: c: expected files of edges: test, and optionally train and known",
        "many.yaml: graphs: d: unknown key 'testt'; expected one of train, known, test",
        "many.yaml: models: m: expected a path, or FILE.py:FUNCTION",
        "many.yaml: models: n: missing.py: no such file or folder",
        "many.yaml: models: o: models/c: no such file or folder",
        "many.yaml: metrics: expected a list of names, such as [mrr, hits@10]",
        "hits_att: unknown key",
    )


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (None, "cannot read the file: No such file or directory"),
        (b"graphs: 2026-13-45\n", "not valid YAML: month must be in 1..12"),
        (b"- graphs\n", "expected the keys graphs and models"),
        (b"[" * 5000, "not valid YAML: maximum recursion depth exceeded"),
        (b"\xff\xfe\x00", "not valid YAML: 'utf-8' codec can't decode"),
        (b"\xef\xbb\xbfgraphs: {}\nmodels: {}\n", "graphs: expected at least one entry, NAME: ..."),
    ],
)
def test_what_is_no_suite_is_refused(content: bytes | None, fault: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "many.yaml").write_bytes(content)
    with pytest.raises(ConfigError) as raised:
        Suite.read(tmp_path / "many.yaml")
    assert raised.value.faults[0].startswith(f"{tmp_path / 'many.yaml'}: {fault}")


@pytest.mark.parametrize(
    ("models", "fault"),
    [
        (
            "def other(graph):\n    pass\n",
            "one, distance: models.py: AttributeError: no function distance in this file",
        ),
        ("def distance(graph):\n    return 1 / 0\n", "one, distance: models.py:2: ZeroDivisionError: division by zero"),
        (
            "def distance(graph):\n    pass\n",
            "one, distance: models.py: distance(): expected a model that can have the attribute 'digest', got None",
        ),
    ],
)
def test_what_is_wrong_with_a_function_is_one_line(models: str, fault: str, finished: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(finished, tmp_path / "failing", ignore=shutil.ignore_patterns("results"))
    (folder / "models.py").write_text(models, encoding="utf-8")

    done = run_main("suite", "many.yaml", "--quiet", cwd=folder)
    assert (done.status, done.faults) == (1, [fault])


def test_a_missing_package_is_named_before_anything_is_evaluated(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)

    with pytest.raises(ConfigError, match="jinja2 is required to write a page: pip install jinja2"):
        Suite.read(finished / "many.yaml")


SMALL = "graphs: {g: {test: edges.tsv}}\nmodels: {m: model}\n"


@pytest.mark.parametrize(
    ("keys", "faults"),
    [
        (
            "settings: {hits_at: [1]}\nmetrics: [mrr, hits@4, typo@7]\n",
            ["metrics: no metric 'hits@4' here; add 4 to hits_at", "metrics: no metric 'typo@7' here"],
        ),
        (
            "metrics: [relation.mrr, rank]\n",
            ["metrics: 'relation.mrr': expected side ", "metrics: no metric 'rank' here; nearest"],
        ),
        (
            "settings: {metrics: [mrr]}\n",
            ["metrics: 'hits@10' is left out by metrics (mrr) in settings; add it there, or name other columns here"],
        ),
        (
            "settings: {preset: dglke}\nmetrics: [mrr, hits@10, pooled_hits@20]\n",
            ["metrics: 'pooled_hits@20' is left out by preset dglke in settings; name other columns"],
        ),
        ("settings: {hits_at: 10, seed: x}\n", ["seed: expected an int, got 'x'", "hits_at: expected a list, got 10"]),
    ],
)
def test_metrics_that_no_evaluation_has_are_refused_before_the_first(
    keys: str, faults: list[str], tmp_path: Path
) -> None:
    (tmp_path / "edges.tsv").write_text("a\tr\tb\n", encoding="utf-8")
    (tmp_path / "model").mkdir()
    (tmp_path / "many.yaml").write_text(SMALL + keys, encoding="utf-8")

    with pytest.raises(ConfigError) as raised:
        Suite.read(tmp_path / "many.yaml")
    found = [fault.removeprefix(f"{tmp_path / 'many.yaml'}: ") for fault in raised.value.faults]
    assert [of.startswith(start) for of, start in zip(found, faults, strict=True)] == [True] * len(faults), found


@pytest.mark.parametrize(
    ("settings", "given"),
    [
        ("edge_columns: 'hrt;edges.tsv=hrts', time_window: 0", "edge_columns, time_window"),
        ("known_until: query, breakdowns: [time]", "known_until, breakdowns"),
    ],
)
def test_a_function_gets_no_times_and_the_file_is_refused(settings: str, given: str, tmp_path: Path) -> None:
    (tmp_path / "edges.tsv").write_text("a\tr\tb\t7\n", encoding="utf-8")
    (tmp_path / "model").mkdir()
    (tmp_path / "models.py").write_text(SUITE_MODELS, encoding="utf-8")
    file = tmp_path / "many.yaml"
    file.write_text(f"{SMALL}settings: {{{settings}}}\n", encoding="utf-8")
    assert Suite.read(file).models.keys() == {"m"}, "a path may have times"

    functions = "models: {m: model, f: 'models.py:degree', g: 'models.py:distance'}"
    file.write_text(f"graphs: {{g: {{test: edges.tsv}}}}\n{functions}\nsettings: {{{settings}}}\n", encoding="utf-8")
    with pytest.raises(ConfigError) as raised:
        Suite.read(file)
    assert raised.value.faults == tuple(
        f"{file}: models: {name}: a function in a suite gets no times, but settings ask for them ({given}); remove "
        "this model or these settings (in edge_columns, write _ for s), or evaluate it with evaluate_triples in Python"
        for name in "fg"
    )


def test_settings_that_an_evaluation_refuses_are_left_to_it(tmp_path: Path) -> None:
    (tmp_path / "edges.tsv").write_text("a\tr\tb\n", encoding="utf-8")
    (tmp_path / "model").mkdir()
    (tmp_path / "many.yaml").write_text(f"{SMALL}settings: {{rank_type: middle, preset: none}}\n", encoding="utf-8")

    with pytest.raises(EvalError, match="g, m: rank_type: expected one of"):
        Suite.read(tmp_path / "many.yaml").run()
