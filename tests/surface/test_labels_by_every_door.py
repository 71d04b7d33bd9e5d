"""The same file of labels gives the same names, or the same error, wherever labels are taken."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas
import pytest

from pbgeval import Report
from pbgeval.integrations.openbiolink import _numbered_by_file
from pbgeval.models.topk import read_topk
from tests.kit.commands import Done, run_main
from tests.kit.names import buckets_in, names_of, write_tsv
from tests.kit.refusals import fault_of
from tests.systems_reference import DglkeFolder

NAMES = ['"q"', "a, b", "NA", " left", "caf\u00e9", "6"]
RELATIONS = ["s", '"r"']
ARRAYS = ("entity.npy", "relation.npy", "model.json")


def lines(path: Path, labels: list[str]) -> None:
    path.write_text("".join(f"{at}\t{label}\n" for at, label in enumerate(labels)), encoding="utf-8")


def by_pandas(path: Path, labels: list[str]) -> None:
    frame = pandas.DataFrame({"id": range(len(labels)), "label": labels})
    delimiter = "," if ".csv" in path.name else "\t"
    frame.sample(frac=1, random_state=0).to_csv(path, index=False, sep=delimiter, compression="gzip")


def alone(path: Path, labels: list[str]) -> None:
    path.write_text("".join(f"{label}\n" for label in labels), encoding="utf-8")


# By the names of the files of entities and of relations: how they are written.
WRITERS: dict[tuple[str, str], Callable[[Path, list[str]], None]] = {
    ("entities.tsv", "relations.tsv"): alone,
    ("entity_ids.del", "relation_ids.del"): lines,
    ("entity_to_id.tsv.gz", "relation_to_id.tsv.gz"): by_pandas,
    ("entidx2name.csv.gz", "relidx2relname.csv.gz"): by_pandas,
}


class Doors:
    """A folder with files of labels, edges by name and a model of arrays without labels in `arrays`."""

    def __init__(self, root: Path, files: tuple[str, str], num_entities: int) -> None:
        self.root, self.entities, self.relations = root, *files
        (root / "arrays").mkdir()
        for name, rows in (("entity", num_entities), ("relation", len(RELATIONS))):
            np.save(root / "arrays" / f"{name}.npy", np.arange(4.0 * rows, dtype=np.float32).reshape(rows, 4))
        (root / "arrays" / "model.json").write_text('{"model": "complex"}')

    def run(self, output: str, settings: dict[str, object]) -> Done:
        edges = {"candidates": "all", "edge_paths": ["edges.tsv"]}
        (self.root / "eval.json").write_text(json.dumps({"model": "arrays", **edges, **settings}))
        command = ("--config", "eval.json", "--workers", "1", "--quiet", "--output", output)
        return run_main(*command, cwd=self.root)

    def in_place(self) -> Done:
        shutil.copytree(self.root / "arrays", self.root / "labelled")
        for name in (self.entities, self.relations):
            shutil.copy(self.root / name, self.root / "labelled" / name)
        return self.run("in_place", {"model": "labelled"})

    def by_options(self) -> Done:
        options = {"entity_labels": f"../{self.entities}", "relation_labels": f"../{self.relations}"}
        return self.run("by_options", {"model_options": options})

    def by_dictionary_path(self) -> Done:
        return self.run("by_dictionary_path", {"dictionary_path": "."})

    def by_import_model(self) -> Done:
        labels = ("--entities", self.entities, "--relations", self.relations)
        edges = ("--edges", "edges.tsv=edges.tsv", "--unknown", "refuse")
        return run_main(
            "import-model", "arrays", "--quiet", "--output", "by_import_model", *edges, *labels, cwd=self.root
        )

    def by_import_graph(self) -> Done:
        edges = ("--edges", "edges.tsv=edges.tsv", "--unknown", "refuse")
        return run_main(
            "import-graph", "--quiet", "--output", "by_import_graph", "--dictionary", ".", *edges, cwd=self.root
        )


COMMANDS = ("in_place", "by_options", "by_dictionary_path", "by_import_model", "by_import_graph")


@pytest.mark.parametrize("files", WRITERS, ids=lambda files: files[0])
def test_every_door_gives_an_entity_the_same_number(files: tuple[str, str], tmp_path: Path) -> None:
    doors = Doors(tmp_path, files, len(NAMES))
    for name, labels in zip(files, (NAMES, RELATIONS), strict=True):
        WRITERS[files](tmp_path / name, labels)
    write_tsv(tmp_path / "edges.tsv", [(name, RELATIONS[at % 2], NAMES[0]) for at, name in enumerate(NAMES)])
    expected = [(at, at % 2, 0) for at in range(len(NAMES))]

    for door in COMMANDS:
        done: Done = getattr(doors, door)()
        assert (door, done.status, done.err) == (door, 0, "")
        (folder,) = {path.parent for path in (tmp_path / door).rglob("edges_0_0.h5")}
        assert (door, buckets_in(folder)[0, 0]) == (door, expected)

    assert list(_numbered_by_file(tmp_path / files[0]).items()) == [(name, at) for at, name in enumerate(NAMES)]
    write_tsv(tmp_path / "test.tsv", [(NAMES[0], "s", NAMES[1])])
    ranking = tmp_path / "ranking.txt"
    ranking.write_text(f"{NAMES[0]}\ts\t{NAMES[1]}\nHeads: \nTails: {NAMES[4]}\t1\n", encoding="utf-8")
    ranked = read_topk(ranking, tmp_path / "test.tsv", names_of=names_of, entities=tmp_path / files[0])
    assert ranked.num_entities == len(NAMES)


FAULTS = {
    "three columns": ("entities.tsv", "0\ta\n1\tb\tc\n2\td\n", ":2: expected id<TAB>label, found '1\\tb\\tc'"),
    "no id": ("entity_ids.del", "0\ta\nb\n2\tc\n", ":2: expected id<TAB>label, found 'b'"),
    "an id again": ("entities.tsv", "0\ta\n1\tb\n1\tc\n", ":3: id 1 has a label already, in line 2; give each id one"),
    "an id beyond": ("entities.tsv", "0\ta\n1\tb\n7\tc\n", ":3: expected ids from 0 to 2, found 7"),
    "a label again": (
        "entities.tsv",
        "0\ta\n1\tb\n2\ta\n",
        ":3: expected each label once, found 'a' again, as in line 1",
    ),
    "a label alone again": ("entities.tsv", "a\na\nb\n", ":2: expected each label once, found 'a' again, as in line 1"),
    "commas": ("entities.tsv", "0,a\n1,b\n2,c\n", ":1: expected id<TAB>label or a label alone, found '0,a'"),
    "quotation marks": ("entities.tsv", 'id\tlabel\n0\ta\n1\t"b\n2\tc\n', ":3: expected CSV, in which a label"),
    "no UTF-8": ("entities.tsv", b"0\ta\n1\t\xff\n2\tc\n", ":2: expected UTF-8 text, found byte 0xff"),
}


@pytest.mark.parametrize("edges", ["edges.tsv", "edges.npy"])
def test_names_of_dictionary_path_are_those_of_tables_lists_and_restrictions(edges: str, tmp_path: Path) -> None:
    doors = Doors(tmp_path, ("entities.tsv", "relations.tsv"), len(NAMES))
    alone(tmp_path / "entities.tsv", NAMES)
    alone(tmp_path / "relations.tsv", RELATIONS)
    ids = [(0, 0, 1), (3, 1, 4), (5, 1, 2)]
    write_tsv(tmp_path / "edges.tsv", [(NAMES[head], RELATIONS[rel], NAMES[tail]) for head, rel, tail in ids])
    np.save(tmp_path / "edges.npy", np.array(ids))
    settings = {"dictionary_path": ".", "edge_paths": [edges], "save_topk": 2}

    done = doors.run("named", {**settings, "breakdowns": ["relation"], "restrict_relations": [RELATIONS[1]]})

    assert done.status == 0, done.err
    report = Report.read(tmp_path / "named")
    assert "no effect" not in done.err
    assert [row["relation"] for row in report.table("relations")] == [RELATIONS[1]]
    listed = {row["candidate"] for row in report.top(head=NAMES[3], relation=RELATIONS[1])}
    assert len(listed) == 2
    assert listed < {*NAMES}
    assert doors.run("wrong", {**settings, "restrict_relations": ["t"]}).status == 1


@pytest.mark.parametrize("others_are_there", [False, True])
@pytest.mark.parametrize("edges", ["edges.tsv", "edges.npy"])
def test_names_of_options_are_those_of_tables_lists_and_restrictions(
    edges: str, tmp_path: Path, *, others_are_there: bool
) -> None:
    """Files of labels that lie in the model's folder, in another order, give way to those that options name."""
    doors = Doors(tmp_path, ("of_entities.txt", "of_relations.txt"), len(NAMES))
    alone(tmp_path / "of_entities.txt", NAMES)
    alone(tmp_path / "of_relations.txt", RELATIONS)
    if others_are_there:
        alone(tmp_path / "arrays" / "entities.tsv", NAMES[::-1])
        alone(tmp_path / "arrays" / "relations.tsv", RELATIONS[::-1])
    ids = [(0, 0, 1), (3, 1, 4), (5, 1, 2)]
    write_tsv(tmp_path / "edges.tsv", [(NAMES[head], RELATIONS[rel], NAMES[tail]) for head, rel, tail in ids])
    np.save(tmp_path / "edges.npy", np.array(ids))
    (tmp_path / "groups.json").write_text(json.dumps({"mine": [RELATIONS[1]]}))
    options = {"entity_labels": "../of_entities.txt", "relation_labels": "../of_relations.txt"}
    settings = {"model_options": options, "edge_paths": [edges], "save_topk": 2, "relation_groups": "groups.json"}

    done = doors.run("named", {**settings, "breakdowns": ["relation", "groups"]})

    assert done.status == 0, done.err
    report = Report.read(tmp_path / "named")
    assert [(row["relation"], row["count"]) for row in report.table("relations")] == [("s", 2), ('"r"', 4)]
    assert [(row["group"], row["count"]) for row in report.table("relation_groups")] == [("mine", 4)]
    assert {row["candidate"] for row in report.top(head=NAMES[3], relation=RELATIONS[1])} < {*NAMES}
    assert doors.run("restricted", {**settings, "restrict_relations": [RELATIONS[1]]}).status == 0
    restricted = Report.read(tmp_path / "restricted").table("relations")
    assert [(row["relation"], row["count"]) for row in restricted] == [('"r"', 4)]


@pytest.mark.parametrize("edges", ["edges.tsv", "edges.npy"])
def test_names_of_dictionary_path_are_those_of_relations_of_matrices(edges: str, tmp_path: Path) -> None:
    """Relations whose operator has a matrix are not dynamic: their names are those of the settings of a run."""
    doors = Doors(tmp_path, ("entities.tsv", "relations.tsv"), len(NAMES))
    DglkeFolder(tmp_path / "model", "TransR", num_entities=len(NAMES), num_relations=len(RELATIONS))
    alone(tmp_path / "entities.tsv", NAMES)
    alone(tmp_path / "relations.tsv", RELATIONS)
    write_tsv(tmp_path / "edges.tsv", [(NAMES[0], RELATIONS[0], NAMES[1]), (NAMES[3], RELATIONS[1], NAMES[4])])
    np.save(tmp_path / "edges.npy", np.array([(0, 0, 1), (3, 1, 4)]))
    settings = {"model": "model", "dictionary_path": ".", "edge_paths": [edges], "breakdowns": ["relation"]}

    done = doors.run("named", settings)

    assert done.status == 0, done.err
    assert [row["relation"] for row in Report.read(tmp_path / "named").table("relations")] == RELATIONS
    alone(tmp_path / "relations.tsv", [*RELATIONS, "t"])
    fault = doors.run("wrong", settings).err
    assert "dictionary_path: " in fault
    assert "relations.tsv:3: expected ids from 0 to 1, found 2" in fault


@pytest.mark.parametrize("kind", FAULTS)
def test_every_door_refuses_a_file_with_the_same_words(kind: str, tmp_path: Path) -> None:
    name, content, fault = FAULTS[kind]
    doors = Doors(tmp_path, (name, "relations.tsv"), 3)
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    alone(tmp_path / "relations.tsv", RELATIONS)
    write_tsv(tmp_path / "edges.tsv", [("a", "s", "b")])
    write_tsv(tmp_path / "ranking.txt", [("a", "s", "b"), ("Heads: ",), ("Tails: ",)])

    found = {door: getattr(doors, door)().fault for door in COMMANDS}
    found["openbiolink"] = fault_of(lambda: _numbered_by_file(path))
    found["topk"] = fault_of(
        lambda: read_topk(tmp_path / "ranking.txt", tmp_path / "edges.tsv", names_of=names_of, entities=path)
    )

    told = {door: text.partition(name)[2] for door, text in found.items()}
    assert set(told.values()) == {told["topk"]}, told
    assert told["topk"].startswith(fault)
