"""Paths of edges that name text or Parquet: the figures of the imported folder, made once, faults in one line."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from pbgeval import Report, compare
from pbgeval.config import load_config
from pbgeval.errors import EvalError
from pbgeval.evaluation import evaluate, plan_evaluation
from pbgeval.inputs import edge_files
from pbgeval.storage import writing as files
from pbgeval.worker import plan as run_plan
from tests.kit.case import TinyCase
from tests.kit.commands import COMMAND, Done, flags, metrics_of, numbers_of, run_command, run_main, run_of
from tests.kit.groups import start_as_mpirun
from tests.kit.names import write_edges_by_name, write_tsv
from tests.kit.refusals import fault_of
from tests.kit.reports import rows_of
from tests.systems_reference import DglkeFolder

Edges = list[tuple[str, str, str]]


@pytest.fixture(params=[False, True], ids=["types", "dynamic"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> TinyCase:
    return named_case(tmp_path, dynamic=request.param)


@pytest.fixture
def dynamic(tmp_path: Path) -> TinyCase:
    return named_case(tmp_path, dynamic=True)


def named_case(root: Path, *, dynamic: bool, **settings: Any) -> TinyCase:
    sizes = {"partition_sizes": (9, 8), "edges_per_bucket": 11}
    made = TinyCase.write(root / "case", dynamic=dynamic, **(sizes | settings))
    write_edges_by_name(made)
    return made


def run(case: TinyCase, *overrides: str, output: str | None = "output") -> Done:
    where = () if output is None else ("--output", output)
    return run_command(case, "--workers", "1", "--quiet", *where, *flags(overrides))


def succeeds(case: TinyCase, *overrides: str, output: str = "output") -> dict[str, str]:
    assert run(case, *overrides, output=output).printed == ""
    return numbers_of(case.root / output)


def refused(case: TinyCase, *overrides: str) -> str:
    """Run; return the only line. Nothing is left."""
    before = sorted(os.listdir(case.root))
    fault = run(case, *overrides).fault
    assert before == sorted(os.listdir(case.root))
    return fault.replace(f"{case.root}/", "")


def edges_of(case: TinyCase) -> Edges:
    return [tuple(line.split("\t")) for line in (case.root / "edges.tsv").read_text().splitlines()]


def import_graph(case: TinyCase, *arguments: str) -> None:
    asked = ("--quiet", "--dictionary", "entity", "--output", "graph")
    assert run_main("import-graph", *asked, *arguments, cwd=case.root).printed == ""


def imported(output: Path) -> list[Path]:
    """The folders of buckets that were made."""
    return sorted(path for path in (output / "imported").glob("*/*") if path.is_dir())


def test_a_plan_counts_the_conversion_and_takes_buckets_that_a_run_has_made(
    dynamic: TinyCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(dynamic.root)
    monkeypatch.setattr(run_plan, "SHORTEST_TOLD", 0.0)
    config = load_config("eval.py", ["edge_paths=edges.tsv"])
    before = sorted(dynamic.root.rglob("*"))

    facts = dict(plan_evaluation(config, 1, "cpu")[1].facts)
    assert re.fullmatch(r"edges by name, about [\d.]+ s; import-graph or .*", facts["convert"])
    assert re.fullmatch(r"about [\d.]+ s to start, then about [\d.]+ s to convert, then a few seconds", facts["time"])
    assert before == sorted(dynamic.root.rglob("*"))

    for output in (None, "named"):
        evaluate(config, output=output, workers=1)
        with mock.patch.object(edge_files, "split_files", side_effect=AssertionError("converted again")):
            plan_evaluation(config, 1, "cpu", output=output)
        shutil.rmtree(output or "results")


# Results


def types_of(case: TinyCase) -> list[str]:
    """The flags of an import of relations between types."""
    if case.settings["dynamic_relations"]:
        return []
    lines = [(relation["name"], relation["lhs"], relation["rhs"]) for relation in case.settings["relations"]]
    write_tsv(case.root / "types.tsv", lines)
    return ["--types", "types.tsv"]


@pytest.mark.one_case
def test_a_file_has_the_results_of_the_folder_that_import_graph_makes_of_it(case: TinyCase) -> None:
    """With weights, which enter the loss."""
    edges = [(*edge, str(0.25 * (at % 5))) for at, edge in enumerate(edges_of(case))]
    files = {"edge_paths": "edges.tsv", "filter_paths": "known.tsv", "train_paths": "train.txt"}
    for name, of_file in zip(files.values(), (edges, edges[::2], edges[1::3]), strict=True):
        write_tsv(case.root / name, of_file)
    import_graph(case, *types_of(case), "--edge-columns=hrtw", *(f"--edges={name}={name}" for name in files.values()))

    columns, loss = "edge_columns=hrtw", "compute_loss=True"
    of_files = succeeds(case, *(f"{key}={name}" for key, name in files.items()), columns, loss)
    of_folders = succeeds(case, *(f"{key}=graph/{name}" for key, name in files.items()), loss, output="of_folders")

    assert of_folders == of_files
    made, expected = ([*imported(case.root / "output")], [case.root / "graph" / name for name in files.values()])
    assert sorted((path.parent.name, path.name, path.read_bytes()) for folder in made for path in folder.iterdir()) == (
        sorted((path.parent.name, path.name, path.read_bytes()) for folder in expected for path in folder.iterdir())
    )


def test_a_model_names_its_entities_and_relations_by_its_own_files(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for name, rows in (("entity", 5), ("relation", 2)):
        np.save(tmp_path / f"{name}.npy", random.normal(size=(rows, 4)).astype(np.float32))
    edges = [("a", "r", "b"), ("c", "s", "a"), ("e", "r", "d")]
    np.save(tmp_path / "edges.npy", [["abcde".index(h), "rs".index(r), "abcde".index(t)] for h, r, t in edges])
    write_tsv(tmp_path / "edges.tsv", edges)

    def run_on(file: str) -> Done:
        options = {"model": "complex", "entities": "entity.npy", "relations": "relation.npy"}
        settings = {"model": ".", "model_options": options, "candidates": "all", "edge_paths": [file]}
        (tmp_path / "eval.json").write_text(json.dumps(settings))
        return run_command(tmp_path / "eval.json", "--workers", "1", "--quiet", "--output", f"of_{file}")

    (tmp_path / "entities.tsv").write_text("a\nb\nc\nd\ne\n")
    (tmp_path / "relations.tsv").write_text("1\ts\n0\tr\n")
    assert [run_on(file).printed for file in ("edges.tsv", "edges.npy")] == ["", ""]
    named, numbered = (metrics_of(tmp_path / f"of_{file}")["metrics"] for file in ("edges.tsv", "edges.npy"))
    assert named == numbered
    assert [row["relation"] for row in rows_of(tmp_path / "of_edges.npy" / "relations.csv")] == ["r", "s"]

    write_tsv(tmp_path / "edges.tsv", [("0", "0", "1")])
    fault = f"edges.tsv has numbers, but the model {tmp_path} has labels (relation '0' is none of them); use its labels"
    assert fault in run_on("edges.tsv").fault


@pytest.mark.parametrize(
    ("edge", "fault"),
    [
        (("0", "0", "28"), "(1 unknown entity, for example entity '28' of type all): {0}/e.npy has 5 rows: ids 0 to 4"),
        (
            ("0", "2", "1"),
            "(1 unknown relation, for example relation '2'): {0}/r.npy has 2 rows: ids 0 to 1; the columns",
        ),
        (None, "entity '9' of type all is missing ({0}/e.npy has 5 rows: ids 0 to 4)"),
        (
            ("a", "has", "b"),
            "edges.tsv has names, but the model folder {0} has no relations.tsv and no entities.tsv, so only row "
            "numbers are known; add these files (one label per line, in the order of the rows), or set dictionary_path "
            "to a folder with them, or use numbers ({0}/r.npy has 2 rows: ids 0 to 1)",
        ),
    ],
)
def test_an_id_beyond_a_table_is_answered_with_its_ids(
    edge: tuple[str, str, str] | None, fault: str, tmp_path: Path
) -> None:
    for name, rows in (("e", 5), ("r", 2)):
        np.save(tmp_path / f"{name}.npy", np.ones((rows, 4), np.float32))
    write_tsv(
        tmp_path / "edges.tsv", [edge or ("9", "0", "9")] if edge is None or "a" in edge else [("0", "1", "2"), edge]
    )
    options = {"model": "complex", "entities": "e.npy", "relations": "r.npy"}
    edges = [str(tmp_path / "edges.tsv")]
    settings = {"model": str(tmp_path), "model_options": options, "edge_paths": edges, "candidates": "all"}
    (tmp_path / "eval.json").write_text(json.dumps(settings))

    with pytest.raises(EvalError) as caught:
        evaluate(tmp_path / "eval.json", output=tmp_path / "out", workers=1)

    assert fault.format(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("labels", "options"),
    [([], "--entities FILE --relations FILE"), (["entities"], "--relations FILE"), (["relations"], "--entities FILE")],
)
def test_the_import_of_a_model_without_labels_names_the_options(
    labels: list[str], options: str, tmp_path: Path
) -> None:
    model = DglkeFolder(tmp_path / "model", "ComplEx")
    rows = {"entities": len(model.entity), "relations": len(model.relation)}
    for name, number in rows.items():
        lines = "".join(f"{name[0]}{row}\n" for row in range(number))
        (model.folder / f"{name}.tsv" if name in labels else tmp_path / f"{name}.txt").write_text(lines)
    write_tsv(tmp_path / "edges.tsv", [("e0", "r1", "e2")])
    command = ["import-model", "model", "--edges", "test=edges.tsv", "--quiet"]

    fault = run_main(*command, "-o", "refused", cwd=tmp_path).fault
    given = options.replace("--entities FILE", "--entities entities.txt")
    given = given.replace("--relations FILE", "--relations relations.txt")
    done = run_main(*command, "-o", "converted", *given.split(), cwd=tmp_path)

    assert f"in the order of the rows), or name them with {options}, or use numbers (" in fault
    assert (done.status, done.faults) == (0, [])


@pytest.mark.slow
def test_every_worker_of_a_group_says_what_is_wrong_with_a_file(dynamic: TinyCase) -> None:
    (dynamic.root / "edges.tsv").write_text("user/0/0\tr0\n", encoding="utf-8")
    command = [COMMAND, "--config", dynamic.config, "--output", "output", "-p", "edge_paths=edges.tsv"]

    workers = start_as_mpirun(command, 2, dynamic.root)
    lines = [worker.communicate(timeout=120)[1].splitlines()[-1] for worker in workers]

    fault = f"{dynamic.root}/edges.tsv:1: expected 3 columns separated by tabs, found 2; set edge_columns"
    assert [line.startswith(fault) for line in lines] == [True, True], lines
    assert [worker.returncode for worker in workers] == [1, 1]
    assert not (dynamic.root / "output").exists()


def test_the_buckets_that_stay_serve_what_is_computed_later(dynamic: TinyCase) -> None:
    succeeds(dynamic, "edge_paths=edges.tsv", "save_ranks=True")
    report = Report.read(dynamic.root / "output")

    again = report.recompute(edge_paths=imported(dynamic.root / "output"), breakdowns=["relation"])
    by_file = report.recompute(edge_paths=[dynamic.root / "edges.tsv"], breakdowns=["relation"])

    assert report["mrr"] == again["mrr"]
    assert again.document == by_file.document
    compared = compare(report, report, edge_paths=[dynamic.root / "edges.tsv"])
    assert compared.to_dict() == compare(report, report).to_dict()
    assert (
        report.document["macro_metrics"]["both.realistic.mean_rank"]
        == again.document["macro_metrics"]["both.realistic.mean_rank"]
    )
    assert [str(row["relation_id"]) for row in again.rows["relations"]] == ["0", "1", "2", "3", "4"]

    (dynamic.root / "edges.tsv").write_text("changed\tsince\tthen\n")
    changed = [dynamic.root / "edges.tsv"]
    faults = [
        fault_of(lambda: report.recompute(edge_paths=changed)),
        fault_of(lambda: compare(report, report, edge_paths=changed)),
    ]
    expected = f"{dynamic.root}/edges.tsv: no run has made buckets of this file as it is now; give the file or the"
    assert [fault.startswith(expected) for fault in faults] == [True, True], faults
    (dynamic.root / "output" / "imported").rename(dynamic.root / "moved")
    gone = fault_of(lambda: compare(report, report, edge_paths=changed))
    assert gone.startswith(f"{dynamic.root}/edges.tsv: the run read its ids from {dynamic.root}/output/imported/"), gone
    assert gone.endswith("/edges.tsv, which is gone; copy that folder, too"), gone
    (dynamic.root / "moved").rename(dynamic.root / "output" / "imported")
    (dynamic.root / "train.tsv").write_text("a\tb\tc\n")
    fault = fault_of(
        lambda: report.recompute(
            edge_paths=imported(dynamic.root / "output"),
            train_paths=[dynamic.root / "train.tsv"],
            breakdowns=["popularity"],
        )
    )
    assert fault.startswith(f"{dynamic.root}/train.tsv: expected a folder of buckets, found a file; number its edges")


# Once


def test_a_run_that_is_ended_while_it_reads_files_is_incomplete(dynamic: TinyCase) -> None:
    with mock.patch(
        "pbgeval.inputs.edge_files.split_files", side_effect=lambda *_: signal.raise_signal(signal.SIGTERM)
    ):
        done = run(dynamic, "edge_paths=edges.tsv")

    assert (done.status, "Traceback" in done.err, imported(dynamic.root / "output")) == (75, False, []), done.err


@pytest.mark.slow
def test_without_an_output_that_is_named_buckets_are_beside_all_outputs_and_serve_the_next_one(
    dynamic: TinyCase,
) -> None:
    for seed in ("0", "1"):
        assert run(dynamic, "edge_paths=edges.tsv", f"seed={seed}", output=None).printed == ""

    results = dynamic.root / "results"
    assert len(imported(results)) == 1
    assert sum(path.name.startswith("eval-") for path in results.iterdir()) == 2
    succeeds(dynamic, "edge_paths=edges.tsv", output="results/named")
    assert imported(results / "named") == []


@pytest.mark.slow
def test_a_run_that_was_ended_goes_on_with_the_buckets_that_it_had(dynamic: TinyCase) -> None:
    whole = succeeds(dynamic, "edge_paths=edges.tsv", output="whole")

    with mock.patch("pbgeval.evaluation.do_work", side_effect=KeyboardInterrupt):
        assert run(dynamic, "edge_paths=edges.tsv").status == 75
    (folder,) = imported(dynamic.root / "output")
    made = folder.stat().st_ino

    assert whole == succeeds(dynamic, "edge_paths=edges.tsv")
    assert "edge_folders" not in run_of(dynamic.root / "output"), "a digest is no name"
    assert [made] == [path.stat().st_ino for path in imported(dynamic.root / "output")]


@pytest.mark.slow
def test_a_file_that_has_changed_is_another_run_and_what_others_have_put_beside_the_buckets_stays(
    dynamic: TinyCase,
) -> None:
    first = succeeds(dynamic, "edge_paths=edges.tsv")
    (made,) = imported(dynamic.root / "output")
    foreign = dynamic.root / "output/imported/0123456789abcdef"
    foreign.mkdir()
    others = [made.parent / "notes.txt", made / "mine.h5", foreign / "import.json", foreign / "edges_0_0.h5"]
    for path in others:
        path.write_text("mine")
    write_tsv(dynamic.root / "edges.tsv", edges_of(dynamic)[1:])

    assert refused(dynamic, "edge_paths=edges.tsv").startswith("output: expected this run (digest ")
    assert (first, [made]) == (numbers_of(dynamic.root / "output"), imported(dynamic.root / "output"))

    for status, more in ((1, ["-p", "no_such_key=1"]), (0, [])):
        arguments = (
            "--workers",
            "1",
            "--quiet",
            "--output",
            "output",
            "--overwrite",
            "-p",
            "edge_paths=edges.tsv",
            *more,
        )
        assert run_command(dynamic, *arguments).status == status
    assert metrics_of(dynamic.root / "output")["num_edges"] == 49
    assert [path.read_text() for path in others] == ["mine"] * 4
    assert not (made / "edges_0_1.h5").exists()


def test_buckets_that_were_made_and_then_lost_are_not_taken_for_empty(dynamic: TinyCase) -> None:
    succeeds(dynamic, "edge_paths=edges.tsv")
    (folder,) = imported(dynamic.root / "output")
    (folder / "edges_0_1.h5").unlink()

    fault = f"{folder.parent.relative_to(dynamic.root)}: 3 of 4 buckets of edges.tsv; remove the folder"
    assert fault == refused(dynamic, "edge_paths=edges.tsv")


@pytest.mark.slow
def test_another_run_of_the_same_files_that_is_faster_does_no_harm(
    dynamic: TinyCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = succeeds(dynamic, "edge_paths=edges.tsv")
    (made,) = imported(dynamic.root / "output")

    class Raced(files.System):
        def rename(self, source: Path, target: Path) -> None:
            if target.name == made.parent.name and not target.exists():
                shutil.copytree(made.parent, target)
            super().rename(source, target)

    monkeypatch.setattr(files, "system", Raced())

    assert succeeds(dynamic, "edge_paths=edges.tsv", output="raced") == expected
    assert [made.parent.name] == [path.name for path in (dynamic.root / "raced" / "imported").iterdir()]
    # What the other one has made may be in use, so it stays where this run is refused.
    assert "max_memory" in run(dynamic, "edge_paths=edges.tsv", "max_memory=20MB", output="late").fault
    assert [made.parent.name] == [path.name for path in (dynamic.root / "late" / "imported").iterdir()]


def test_verify_leaves_no_buckets_behind(dynamic: TinyCase) -> None:
    overrides = (f"edge_paths={dynamic.root}/edges.tsv", "save_ranks=True")
    succeeds(dynamic, *overrides)
    (elsewhere := dynamic.root / "elsewhere").mkdir()

    done = run_main(
        "verify", str(dynamic.root / "output"), str(dynamic.config), *flags(overrides), "--workers", "1", cwd=elsewhere
    )

    assert (done.status, "0 of them differ" in done.out) == (0, True), done.err
    assert list(elsewhere.iterdir()) == []


# Faults


@pytest.mark.slow
def test_known_edges_that_are_unknown_are_left_out_listed_and_said_every_time(dynamic: TinyCase) -> None:
    expected = succeeds(dynamic, "edge_paths=edges.tsv", "filter_paths=edges.tsv", output="expected")
    write_tsv(dynamic.root / "known.tsv", [("new", "r0", "user/0/0"), *edges_of(dynamic), ("new", "r9", "new")])

    for overwrite in ([], ["--overwrite"]):
        overrides = flags(["edge_paths=edges.tsv", "filter_paths=known.tsv"])
        done = run_command(dynamic, "--workers", "1", "--output", "output", *overwrite, *overrides)
        (warning,) = [line for line in done.warnings if "skipped" in line]
        assert "known.tsv: 2 of 52 known edges are skipped: 1 unknown entity and 1 unknown relation; listed in" in (
            warning
        )
        listed = Path(warning.rpartition(" in ")[2])
        assert listed.read_text() == "what\tname\toccurrences\nentity:user\tnew\t1\nrelation\tr9\t1\n"
    found = json.loads(numbers_of(dynamic.root / "output")["metrics.json"])
    assert json.loads(expected["metrics.json"])["metrics"] == found["metrics"]


def test_keys_of_files_have_no_effect_on_folders_and_that_is_said(dynamic: TinyCase) -> None:
    overrides = flags(["dictionary_path=entity", "edge_columns=hrt"])

    done = run_command(dynamic, "--workers", "1", "--output", "output", *overrides)

    keys = "dictionary_path and edge_columns"
    assert f"warning: eval.py: {keys} have no effect where no path of edges names a file of text or Parquet" in done.err


def test_a_model_in_memory_needs_names(dynamic: TinyCase) -> None:
    from pbgeval import EvalConfig
    from pbgeval.models.functions import edge_scorer

    scorer = edge_scorer(lambda lhs, rel, rhs: lhs + rel + rhs, num_entities=17, num_relations=5)
    config = EvalConfig(edge_paths=[str(dynamic.root / "edges.tsv")])

    with pytest.raises(EvalError, match=r"^dictionary_path: edges by name need the names of ids; set it to "):
        evaluate(config, model=scorer)
