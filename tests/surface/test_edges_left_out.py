"""Edges that an import leaves out are refused, or stand in every result: by whichever door they came."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from pbgeval import Report
from pbgeval.errors import EvalError
from pbgeval.evaluation import evaluate
from pbgeval.storage.left_out import LEFT_OUT, LeftOut
from tests.kit.commands import Done, metrics_of, run_main
from tests.kit.names import write_tsv
from tests.kit.refusals import fault_of

ENTITIES, RELATIONS = "abcde", "rs"
TEST = [("a", "r", "b"), ("new", "s", "a"), ("c", "s", "d"), ("b", "t", "new"), ("e", "r", "a")]
VALID = [("b", "r", "a"), ("other", "r", "a")]
DOORS = ("import-graph", "import-model", "text")


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of arrays with labels, edges as text, and both imports of them."""
    tmp_path = tmp_path_factory.mktemp("imported")
    source = np.random.default_rng(0)
    for name, labels in (("entity", ENTITIES), ("relation", RELATIONS)):
        np.save(tmp_path / f"{name}.npy", source.normal(size=(len(labels), 4)).astype(np.float32))
    (tmp_path / "model.json").write_text('{"model": "complex"}')
    (tmp_path / "entities.tsv").write_text("".join(f"{name}\n" for name in ENTITIES))
    (tmp_path / "relations.tsv").write_text("".join(f"{name}\n" for name in RELATIONS))
    write_tsv(tmp_path / "test.tsv", TEST)
    write_tsv(tmp_path / "valid.tsv", VALID)
    edges = ("--edges", "test=test.tsv", "--edges", "valid=valid.tsv")
    labels = ("--entities", "entities.tsv", "--relations", "relations.tsv")
    (tmp_path / "tables").mkdir()
    for name in ("entity.npy", "relation.npy", "model.json"):
        shutil.copy(tmp_path / name, tmp_path / "tables" / name)
    assert run_main("import-model", "tables", "--output", "converted", *edges, *labels, cwd=tmp_path).status == 0
    graph = ("import-graph", "--quiet", "--output", "graph", "--dictionary", ".")
    assert run_main(*graph, *edges, cwd=tmp_path).printed == ""
    return tmp_path


@pytest.fixture
def folder(imported: Path, tmp_path: Path) -> Path:
    """The same, for a test to change."""
    return shutil.copytree(imported, tmp_path, dirs_exist_ok=True)


def run(folder: Path, door: str, *overrides: str, test: str = "test", valid: str = "valid") -> Done:
    """Evaluate the edges as they came through a door; the result goes to a folder of its name."""
    places = {"import-graph": "graph/{}", "import-model": "converted/{}", "text": "{}.tsv"}
    edges = {"edge_paths": [places[door].format(test)], "filter_paths": [places[door].format(valid)]}
    (folder / "eval.json").write_text(json.dumps({"model": ".", "candidates": "all", **edges}))
    options = [part for text in overrides for part in ("-p", text)]
    command = ("--config", "eval.json", "--workers", "1", "--overwrite", "--output", f"out_{door}", *options)
    return run_main(*command, cwd=folder)


@pytest.mark.parametrize("door", DOORS)
def test_evaluated_edges_that_were_left_out_are_refused(door: str, folder: Path) -> None:
    done = run(folder, door)

    assert (done.status, done.out) == (1, "")
    assert "2 of 5 edges" in done.faults[-1]
    assert "1 unknown entity and 1 unknown relation" in done.faults[-1]
    assert "-p unknown=skip" in done.faults[-1]


def test_left_out_edges_that_are_accepted_stand_in_the_result_by_every_door(folder: Path) -> None:
    documents = []
    for door in DOORS:
        done = run(folder, door, "unknown=skip")

        assert "3 edges (2 more were left out, as their names are unknown), filtered" in done.out
        told = [line for line in done.warnings if "skipped" in line]
        assert ["2 of 5 edges are skipped" in told[0], "1 of 2 known edges are skipped" in told[1]] == [True, True]
        assert "imports left out 1 known edge with unknown names" in " ".join(done.warnings)
        document = metrics_of(folder / f"out_{door}")
        assert document["left_out"] == {"edge_paths": [2], "filter_paths": [1], "train_paths": []}
        documents.append({key: document[key] for key in ("num_edges", "left_out", "metrics", "raw_metrics")})
    assert documents[0] == documents[1] == documents[2]


def test_python_pages_verify_and_recompute_know_what_was_left_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert run(folder, "import-graph", "unknown=skip", "save_ranks=true").status == 0
    config = folder / "eval.json"
    with pytest.raises(EvalError, match=r"the import left out 2 of 5 edges .* or accept it with unknown='skip'"):
        evaluate(config, output=folder / "python", workers=1)
    report = evaluate(config, overrides=["unknown=skip"], output=folder / "python", workers=1)
    told = "3 edges (2 more were left out, as their names are unknown)"
    assert told in str(report)
    again = Report.read(folder / "out_import-graph").recompute(hits_at=[2])
    assert (told in str(again), again.document["left_out"]) == (True, report.document["left_out"])

    assert run_main("report", "out_import-graph", cwd=folder).status == 0
    assert "2 more were left out" in (folder / "out_import-graph" / "report.html").read_text(encoding="utf-8")
    verify = ("verify", "out_import-graph", "eval.json")
    assert run_main(*verify, "-p", "unknown=skip", "-p", "save_ranks=true", cwd=folder).status == 0
    (folder / "graph" / "test" / LEFT_OUT).unlink()
    done = run_main(*verify, "-p", "save_ranks=true", cwd=folder)
    assert (done.status, "data.left_out" in done.err) == (1, True)


def test_compare_says_what_was_left_out(folder: Path) -> None:
    accepted = ("unknown=skip", "save_ranks=true")
    for door in DOORS:
        assert run(folder, door, *accepted).status == 0
    done = run_main("compare", "out_import-graph", "out_import-model", cwd=folder)
    told = "mports left out 2 evaluated edges of A and {} of B, as their names are unknown"
    assert (done.status, f"I{told.format(2)}." in " ".join(done.out.split())) == (0, True)

    # The same edges, of which nothing was left out: the queries are the same.
    for name, edges in (("known", [TEST[0], TEST[2], TEST[4]]), ("fewer", TEST[:1])):
        write_tsv(folder / f"{name}.tsv", edges)
    assert run(folder, "text", *accepted, test="known").status == 0
    done = run_main("compare", "out_import-graph", "out_text", cwd=folder)
    assert (done.status, f"I{told.format(0)}." in " ".join(done.out.split())) == (0, True)
    assert run_main("compare", "out_text", "out_text", cwd=folder).out.count("left out") == 0

    assert run(folder, "text", *accepted, test="fewer").status == 0
    done = run_main("compare", "out_import-graph", "out_text", cwd=folder)
    assert (done.status, f"edge_paths[0] (i{told.format(0)})" in done.fault) == (1, True)


def test_restrictions_say_of_how_many_edges_the_evaluated_ones_are(folder: Path) -> None:
    done = run(folder, "text", "unknown=skip", "restrict_relations=rel:0", "save_ranks=true")

    told = "2 edges (of 3 before restrictions; 2 more were left out, as their names are unknown), filtered"
    assert (done.status, told in " ".join(done.out.split())) == (0, True)
    document = metrics_of(folder / "out_text")
    assert (document["num_edges"], document["num_edges_before_restrictions"]) == (2, 3)
    assert told in " ".join(str(Report.read(folder / "out_text").recompute(hits_at=[2])).split())
    assert run(folder, "text", "unknown=skip").status == 0
    assert "num_edges_before_restrictions" not in metrics_of(folder / "out_text")


def test_inspect_shows_what_was_left_out(folder: Path) -> None:
    done = run_main("inspect", "graph", cwd=folder)

    assert done.status == 0
    told = [line.split(None, 2)[2] for line in done.out.splitlines() if line.strip().startswith("left out")]
    assert told == ["2 of 5 edges: 1 unknown entity and 1 unknown relation", "1 of 2 edges: 1 unknown entity"]


def test_a_folder_without_a_note_is_evaluated_as_before(folder: Path) -> None:
    for name in ("test", "valid"):
        (folder / "graph" / name / LEFT_OUT).unlink()

    done = run(folder, "import-graph")

    assert (done.status, "3 edges, filtered" in done.out, done.warnings) == (0, True, [])
    document = metrics_of(folder / "out_import-graph")
    assert ("left_out" in document, "left_out" in document["provenance"]["data"]) == (False, False)


def test_an_import_that_leaves_nothing_out_writes_no_note(folder: Path) -> None:
    write_tsv(folder / "known.tsv", TEST[:1])
    graph = ("import-graph", "--quiet", "--output", "whole", "--dictionary", ".", "--edges", "test=known.tsv")
    assert run_main(*graph, cwd=folder).printed == ""

    assert LeftOut.read(folder / "whole" / "test") is None
    assert LeftOut.read(folder / "graph" / "test") == LeftOut(5, 2, 1, 1)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"num_read": 5}', json.dumps(dict.fromkeys(LeftOut.__annotations__, -1)), "[" * 10**5]
)
def test_a_damaged_note_is_one_line(text: str, folder: Path) -> None:
    path = folder / "graph" / "test" / LEFT_OUT
    path.write_text(text)

    assert re.match(rf"{path}: (cannot read|expected) ", fault_of(lambda: LeftOut.read(path.parent)))
    assert re.search("left_out.json: (cannot read|expected) ", run(folder, "import-graph").fault)
