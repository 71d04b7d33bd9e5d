"""`evaluate_files`: three files of edges by name, with a scoring function or a model on disk."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import torch

from pbgeval import Report, edge_scorer, evaluate, evaluate_files, evaluate_triples
from pbgeval import evaluation as driver
from pbgeval.errors import ConfigError, EvalError, LaunchError, OutputError
from pbgeval.results.saved_queries import SavedQueries
from pbgeval.storage.topk import escaped, unescaped
from tests.kit.commands import writes_nothing
from tests.kit.refusals import faults_of

NUM_ENTITIES, NUM_RELATIONS = 9, 2
SCORER = edge_scorer(
    lambda lhs, rel, rhs: (lhs * 7 + rel * 3 + rhs * 5).remainder(11).float(),
    num_entities=NUM_ENTITIES,
    num_relations=NUM_RELATIONS,
)
EDGES = {
    "test": [(0, 0, 1), (2, 1, 8), (5, 0, 5)],
    "train": [(0, 0, 2), (1, 1, 3), (2, 1, 8)],
    "valid": [(0, 0, 7), (4, 0, 5)],
}
FILES = {"train": "train.tsv", "valid": ["valid.tsv"]}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with files of edges by name, names and a model of vectors."""
    monkeypatch.chdir(tmp_path)
    labels = {
        "entities": [f"entity {index}" for index in range(NUM_ENTITIES)],
        "relations": [f"relation {index}" for index in range(NUM_RELATIONS)],
    }
    for name, ids in EDGES.items():
        lines = (f"entity {lhs}\trelation {rel}\tentity {rhs}\n" for lhs, rel, rhs in ids)
        Path(f"{name}.tsv").write_text("".join(lines))
    for place in ("names", "mine"):
        Path(place).mkdir()
        for name, of in labels.items():
            Path(place, f"{name}.tsv").write_text("".join(f"{label}\n" for label in of))
    source = np.random.default_rng(3)
    for name, number in (("entity", NUM_ENTITIES), ("relation", NUM_RELATIONS)):
        np.save(f"mine/{name}.npy", source.normal(size=(number, 4)).astype(np.float32))
    Path("mine/model.json").write_text('{"model": "distmult"}')
    return tmp_path


def of_ids(model: object, **settings: object) -> Report:
    return evaluate_triples(model, EDGES["test"], train=[EDGES["train"]], known=[EDGES["valid"]], **settings)


def test_a_function_has_the_figures_of_the_same_edges_by_id_and_writes_nothing(folder: Path) -> None:
    with writes_nothing(folder):
        report = evaluate_files(SCORER, "test.tsv", **FILES, labels="names", breakdowns=["relation"])

    expected = of_ids(SCORER)
    assert report.document["metrics"] == expected.document["metrics"]
    assert report.document["edge_diagnostics"] == expected.document["edge_diagnostics"]
    assert [row["relation"] for row in report.table("relations")] == ["relation 0", "relation 1"]
    assert report.path is None


def test_a_model_on_disk_has_its_names_beside_it_or_elsewhere(folder: Path) -> None:
    with writes_nothing(folder):
        report = evaluate_files(folder / "mine", Path("test.tsv"), **FILES)
    Path("mine/entities.tsv").rename("elsewhere.tsv")
    elsewhere = evaluate_files("mine", "test.tsv", **FILES, labels=folder / "names")

    expected = of_ids("mine").document["metrics"]
    assert (report.document["metrics"], elsewhere.document["metrics"]) == (expected, expected)


def test_an_output_has_names_and_the_same_run_finds_its_edges_there(folder: Path) -> None:
    evaluate_files(SCORER, "test.tsv", labels="names", output="done", save_topk=2)
    imported = sorted(Path("done/imported").rglob("*.h5"))
    evaluate_files(SCORER, "test.tsv", labels="names", output="done", save_topk=2, overwrite=True)

    assert imported == sorted(Path("done/imported").rglob("*.h5")) != []
    lines = Path("done/topk/0/topk_0_0.tsv").read_text(encoding="utf-8").splitlines()
    rows = [row for row in csv.DictReader(lines, delimiter="\t") if (row["side"], row["row"]) == ("tail", "1")]
    assert [(row["head"], row["relation"], row["tail"]) for row in rows] == [("entity 2", "relation 1", "entity 8")] * 2
    assert {row["candidate"] for row in rows} < {f"entity {index}" for index in range(NUM_ENTITIES)}


@pytest.mark.parametrize("settings", [{}, {"dictionary_path": "names"}])
def test_a_header_that_is_read_as_an_edge_is_told_of_where_its_names_are_unknown(settings: dict[str, str]) -> None:
    Path("test.tsv").write_text(f"head\trelation\ttail\n{Path('test.tsv').read_text()}")

    fault, hint = faults_of(partial(evaluate_files, SCORER, "test.tsv", labels="names", **settings))

    assert "1 of 4 edges have names that are not in " in fault
    advice = "looks like a header, but is read as an edge; if it is one, set edge_columns head,relation,tail"
    assert hint.endswith(f"test.tsv:1: head, relation, tail {advice}")
    assert (
        evaluate_files(SCORER, "test.tsv", labels="names", edge_columns="head,relation,tail").document["num_edges"] == 3
    )


def test_a_report_shows_the_best_candidates_of_a_query_by_name(folder: Path) -> None:
    report = evaluate_files(SCORER, "test.tsv", **FILES, labels="names", output="done", save_topk=5)
    found = Report.read("done").top(head="entity 0", relation="relation 0", k=4)

    scores = {index: float((index * 5) % 11) for index in range(NUM_ENTITIES)}  # of (0, 0, index)
    best = sorted(scores, key=lambda index: (-scores[index], index))[:4]
    assert [(row["place"], row["candidate"], row["score"]) for row in found] == [
        (place, f"entity {index}", scores[index]) for place, index in enumerate(best, 1)
    ]
    assert [row["candidate"] for row in found if row["known"]] == [f"entity {at}" for at in best if at in (2, 7)]
    assert [row["candidate"] for row in found if row["is_true"]] == [f"entity {at}" for at in best if at == 1]
    assert repr(found).splitlines()[0].strip() == "entity 0, relation 0, ?"
    better = sum(scores[index] > scores[1] for index in range(NUM_ENTITIES) if index not in (1, 2, 7))
    tied = sum(scores[index] == scores[1] for index in range(NUM_ENTITIES) if index not in (1, 2, 7))
    rank = f"Answer: entity 1, rank {1 + better + tied / 2:g} of {NUM_ENTITIES - 2}"
    rank += ", tied with 1 other" if tied == 1 else f", tied with {tied} others" if tied else ""
    is_listed = 1 in best
    assert f"{rank}{'' if is_listed else ' (not in this list)'}. Known answers do not compete." in repr(found)
    assert len(report.top(tail="entity 8", relation="relation 1")) == 5
    with pytest.warns(match="this list has 5 candidates, not 20; save_topk sets how many"):
        assert len(report.top(tail="entity 8", relation="relation 1", k=20)) == 5
    with pytest.raises(ValueError, match="give the known entity: head or tail"):
        report.top(relation="relation 0")
    with pytest.raises(ValueError, match="give head or tail, not both"):
        report.top(head="entity 0", tail="entity 1", relation="relation 0")
    for query, message in (
        ({"head": "entity 0", "relation": "relation 1"}, "no evaluated edge has head 'entity 0' and relation "),
        (
            {"head": "entity 0", "relation": "relation 1"},
            "; tested relations of 'entity 0': 'relation 0'; to ask this, evaluate a file with one edge of them",
        ),
        ({"head": "entity 0", "relation": "r"}, "; no list has the name 'r'"),
        ({"tail": "entity8", "relation": "relation 1"}, "; no list has the name 'entity8'; did you mean 'entity 8'?"),
        ({"head": np.str_("X"), "relation": np.str_("Y")}, "has head 'X' and relation 'Y'; no list has the name 'X'; "),
        ({"head": "X", "relation": "relation 0"}, "no list has the name 'X'; names are, for example, 'entity 0'"),
        ({"head": 0, "relation": 0}, "no list has the name 'all:0:0'; names are, for example, 'entity 0'"),
    ):
        with pytest.raises(OutputError, match=re.escape(message)):
            report.top(**query)
    [path] = Path("done/topk/0").glob("*.tsv")
    path.write_text(path.read_text().replace("\tplace\t", "\tplaces\t"))
    with pytest.raises(OutputError, match=r"topk_0_0\.tsv: expected saved lists, got: other columns; evaluate again"):
        report.top(head="entity 0", relation="relation 0")


def by_time(lhs: torch.Tensor, rel: torch.Tensor, rhs: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
    return ((lhs * 7 + rel * 3 + rhs * 5) * (time + 1)).remainder(11).float()


TIMED = edge_scorer(by_time, num_entities=NUM_ENTITIES, num_relations=NUM_RELATIONS, takes_time=True)
AT_TIMES = [(0, 0, 1, 0), (0, 0, 2, 13), (0, 0, 4, 1), (0, 0, 2, 1)]


def test_queries_of_unlike_times_have_lists_and_ranks_of_their_own(folder: Path) -> None:
    settings: dict[str, Any] = {"train": [[(0, 0, 7, 1)]], "labels": "names", "save_topk": 9, "save_ranks": True}
    report = evaluate_triples(TIMED, AT_TIMES, output="done", **settings)

    for time in (0, 1, 13):
        found = report.top(head="entity 0", relation="relation 0", time=np.int64(time))
        scores = {index: float(index * 5 * (time + 1) % 11) for index in range(NUM_ENTITIES)}
        best = sorted(scores, key=lambda index: (-scores[index], index))
        assert [(row["candidate"], row["score"]) for row in found] == [(f"entity {at}", scores[at]) for at in best]
        answers = [tail for *_, tail, when in AT_TIMES if when == time]
        assert {row["candidate"] for row in found if row["is_true"]} == {f"entity {answer}" for answer in answers}
        assert repr(found).splitlines()[0].strip() == f"entity 0, relation 0, ? at time {time}"
        others = [scores[index] for index in range(NUM_ENTITIES) if index not in (1, 2, 4, 7)]
        for answer in answers:
            better, tied = (sum(of(score, scores[answer]) for score in others) for of in (float.__gt__, float.__eq__))
            assert f"entity {answer}, rank {1 + better + tied / 2:g} of 6" in repr(found)
    of_one_time = report.top(tail="entity 1", relation="relation 0")
    assert repr(of_one_time).splitlines()[0].strip() == "?, relation 0, entity 1 at time 0"
    what = "head 'entity 0' and relation 'relation 0'"
    for options, message in (
        ({}, f"{what}: this query has 3 times, each with a list of its own; give time: 0, 1, 13"),
        ({"time": 5}, f"no evaluated edge has {what} at time 5; times of this query: 0, 1, 13"),
    ):
        with pytest.raises(OutputError, match=re.escape(message)):
            report.top(head="entity 0", relation="relation 0", **options)
    asked = {
        (query.head, query.tail, query.time, tuple(of.name for of in query.candidates if of.is_true))
        for query in SavedQueries.read(report).lists(range(8))
    }
    assert asked == {
        ("entity 0", f"entity {tail}", str(time), (end,))
        for *_, tail, time in AT_TIMES
        for end in ("entity 0", f"entity {tail}")
    }


def test_lists_are_of_a_time_where_known_answers_are(folder: Path) -> None:
    settings: dict[str, Any] = {"train": [[(0, 0, 7, 1)]], "output": "done", "save_topk": 9, "save_ranks": True}
    report = evaluate_triples(SCORER, AT_TIMES, **settings, known_until="query")
    known = {
        time: {row["candidate"] for row in report.top(head=0, relation=0, time=time) if row["known"] or row["is_true"]}
        for time in (0, 1, 13)
    }
    later = {f"all:0:{tail}" for tail in (1, 2, 4, 7)}
    assert known == {0: {"all:0:1"}, 1: later, 13: later}
    report = evaluate_triples(SCORER, AT_TIMES, **settings, overwrite=True)
    assert len(report.top(head=0, relation=0)) == 9
    with pytest.raises(OutputError, match="the lists of this run are the same at all times; leave out time"):
        report.top(head=0, relation=0, time=1)
    with pytest.raises(ValueError, match=r"^time: expected an integer, got '1'$"):
        report.top(head=0, relation=0, time="1")


def test_labels_name_everything_at_every_door(folder: Path) -> None:
    """Tables, lists and keys with names; of a function and of a model on disk that has no labels of its own."""
    for name in ("entities", "relations"):
        Path("mine", f"{name}.tsv").unlink()
    tails = sorted({f"entity {tail}" for _, _, tail in EDGES["test"]})
    options: dict[str, Any] = {"labels": Path("names"), "save_topk": 2, "tail_candidates": tails}
    for number, model in enumerate((SCORER, "mine")):
        reports = [
            evaluate_triples(model, EDGES["test"], output=f"triples{number}", **options),
            evaluate_files(model, "test.tsv", output=f"files{number}", **options),
        ]
        found = [
            (
                [row["relation"] for row in report.table("relations")],
                [row["candidate"] for row in report.top(head="entity 0", relation="relation 0")],
                [row["candidate"] for row in report.top(tail="entity 8", relation="relation 1")],
            )
            for report in reports
        ]
        assert found[0] == found[1]
        assert found[0][0] == ["relation 0", "relation 1"]
        assert {*found[0][1]} <= {*tails}


def test_labels_that_are_given_win_over_those_beside_a_model(folder: Path) -> None:
    Path("names/entities.tsv").write_text("".join(f"other {index}\n" for index in range(NUM_ENTITIES)))

    report = evaluate_triples("mine", EDGES["test"], labels="names", output="done", save_topk=2)

    assert report.top(head="other 0", relation="relation 0")
    with pytest.raises(EvalError, match="labels: no such directory: nowhere"):
        evaluate_triples("mine", EDGES["test"], labels="nowhere")
    Path("empty").mkdir()
    with pytest.raises(EvalError, match=r"labels: empty: this folder has neither entities\.tsv nor relations\.tsv"):
        evaluate_triples("mine", EDGES["test"], labels="empty")
    with pytest.raises(EvalError, match="labels: give either labels or entity_path"):
        evaluate_triples("mine", EDGES["test"], labels="names", entity_path="mine")
    Path("names/entities.tsv").write_text("ann\n")
    with pytest.raises(EvalError, match=r"names.entities\.tsv: 1 label for 9 ids, and none for id 1"):
        evaluate_triples("mine", EDGES["test"], labels="names", output="short", save_topk=2)


def test_labels_that_do_not_fit_are_refused_before_anything_is_ranked(folder: Path) -> None:
    calls: list[int] = []

    def score(lhs: torch.Tensor, rel: torch.Tensor, rhs: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return (lhs + rel + rhs).float()

    scorer = edge_scorer(score, num_entities=NUM_ENTITIES, num_relations=NUM_RELATIONS)
    evaluate_triples(scorer, EDGES["test"], labels="names", output="done", save_topk=2)
    num_calls = len(calls)
    Path("names/entities.tsv").write_text("ann\n")

    with pytest.raises(EvalError, match=r"names.entities\.tsv: 1 label for 9 ids, and none for id 1"):
        evaluate_triples(scorer, EDGES["test"], labels="names", output="again", save_topk=2)

    assert len(calls) - num_calls < num_calls  # some, to find out what the function takes


def test_lists_of_no_query_are_told_to_be_empty(folder: Path) -> None:
    report = evaluate_triples(SCORER, [(0, 0, 1)], output="done", save_topk=2, restrict_relations=["rel:1"])

    with pytest.raises(OutputError, match="the saved lists are empty, as no query was evaluated"):
        report.top(head=0, relation=0)


@pytest.mark.parametrize("of_ids", [int, str, np.int64, np.int32, torch.tensor, "all:0:{}".format])
def test_a_report_by_ids_shows_the_best_candidates_by_ids(folder: Path, of_ids: Callable[[int], Any]) -> None:
    report = evaluate_triples(SCORER, [(3, 1, 4), (5, 0, 3)], output="done", save_topk=3)
    relation = of_ids(1) if of_ids not in ("all:0:{}".format,) else "1"

    expected = report.top(head="all:0:3", relation="1")
    assert [*report.top(head=of_ids(3), relation=relation)] == [*expected]
    assert repr(report.top(head=of_ids(3), relation=relation)) == repr(expected)
    assert len(Report.read("done").top(tail=of_ids(4), relation=relation)) == 3


def test_ids_that_mean_no_query_are_refused_with_an_example(folder: Path) -> None:
    report = evaluate_triples(SCORER, [(3, 1, 4), (5, 0, 3)], output="done", save_topk=3)

    for query, message in (
        ({"head": 3, "relation": 0}, "no evaluated edge has head 3 and relation 0; tested relations of 'all:0:3': '1'"),
        ({"head": "ann", "relation": 1}, "'ann' (they are places, for example 'all:0:"),
        (
            {"head": "ann", "relation": 1},
            "give their ids, or evaluate with labels=FOLDER (in a config, dictionary_path)",
        ),
        ({"head": 3, "relation": 7}, "no list has the name '7'; names are, for example, '0'"),
    ):
        with pytest.raises(OutputError, match=re.escape(message)):
            report.top(**query)
    for wrong in (3.0, None, [3]):
        with pytest.raises(ValueError, match="relation: expected a name or an id, got"):
            report.top(head=3, relation=wrong)


def test_an_id_is_the_row_of_its_relation_whatever_names_look_like_it(folder: Path) -> None:
    """Names that are numbers in another order than the ids."""
    Path("numbers").mkdir()
    Path("numbers/dynamic_rel_names.json").write_text('["1", "0"]')
    report = evaluate_triples(SCORER, [(3, 1, 4), (3, 0, 5)], output="done", save_topk=3, entity_path="numbers")

    assert [*report.top(head=3, relation=1)] == [*report.top(head=3, relation="0")]
    assert [*report.top(head=3, relation=0)] == [*report.top(head=3, relation="1")]
    assert [*report.top(head=3, relation=0)] != [*report.top(head=3, relation=1)]


def test_an_id_says_too_little_in_several_partitions(folder: Path) -> None:
    report = evaluate_triples(SCORER, [(3, 1, 4)], output="done", save_topk=3)
    document = json.loads(report.to_json())
    document["provenance"]["settings"]["entities"]["all"]["num_partitions"] = 2
    report = attrs.evolve(report, document=document)

    with pytest.raises(OutputError, match="entity 3: an id alone does not say which partition; write type:partition:"):
        report.top(head=3, relation=1)
    assert report.top(head="all:0:3", relation=1)


def test_without_lists_there_are_no_best_candidates(folder: Path) -> None:
    query = {"head": "entity 0", "relation": "relation 0"}
    with pytest.raises(OutputError, match="this report has no folder, so no saved lists"):
        evaluate_files(SCORER, "test.tsv", labels="names").top(**query)
    with pytest.raises(OutputError, match="no saved lists; evaluate with save_topk=10"):
        evaluate_files(SCORER, "test.tsv", labels="names", output="done").top(**query)


def test_names_with_tabs_and_signs_are_found_as_they_are() -> None:
    for label in ("a\tb", "=1+1", "'quoted", "back\\slash", "back\\\\n", "line\nbreak"):
        assert unescaped(escaped(label)) == label


@pytest.mark.parametrize("arrays", [np.array(EDGES["test"]), torch.tensor(EDGES["test"]), EDGES["test"], None, b"t"])
def test_arrays_are_no_files_of_edges(folder: Path, arrays: Any) -> None:
    kind = "tuple" if isinstance(arrays, list) else type(arrays).__name__
    fault = f"expected a path, got {kind}; evaluate_triples takes arrays of ids$"

    with pytest.raises(ConfigError, match=f"^test: {fault}"):
        evaluate_files(SCORER, arrays)
    for key in ("train", "valid"):
        for given in (arrays, [arrays]) if kind != "tuple" else (arrays,):
            with pytest.raises(ConfigError, match=f"^{key}: {fault}"):
                evaluate_files(SCORER, "test.tsv", labels="names", **{key: given})
    with pytest.raises(ConfigError, match=r"^config: expected a path, got ndarray; give a config file, a dict"):
        evaluate(np.zeros((2, 3), int))  # type: ignore[arg-type]
    assert evaluate_files(SCORER, "test.tsv", train=Path().glob("train.tsv"), labels="names")["count"]  # type: ignore[arg-type]


def test_a_folder_without_names_is_told_the_files_that_have_them(folder: Path) -> None:
    (folder / "csv").mkdir()
    for file in (folder / "names").iterdir():
        file.rename(folder / "csv" / file.with_suffix(".csv").name)

    (fault,) = faults_of(lambda: evaluate_files(SCORER, "test.tsv", labels="csv"), EvalError)
    assert "names of all" in fault
    for told in ("relations.tsv", "dynamic_rel_names.json, found none", "(in Python, evaluate_files: labels)"):
        assert told in fault


def test_what_is_missing_is_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with writes_nothing(folder):
        faults = [
            *faults_of(lambda: evaluate_files(SCORER, "test.tsv"), ConfigError),
            *faults_of(lambda: evaluate_files(SCORER, "tset.tsv", labels="names"), EvalError),
            *faults_of(lambda: evaluate_files(SCORER, "test.tsv", labels="nowhere"), EvalError),
            *faults_of(lambda: evaluate_files(SCORER, "test.tsv", labels="names", tarin="train.tsv"), ConfigError),
        ]
        monkeypatch.setattr(driver, "is_worker_of_a_group", lambda: True)
        faults += faults_of(lambda: evaluate_files(SCORER, "test.tsv", labels="names", output="done"), LaunchError)

    assert [fault.partition(":")[0] for fault in faults] == [
        "labels",
        "edge_paths[0]",
        "labels",
        "tarin",
        "edge_paths",
    ]
