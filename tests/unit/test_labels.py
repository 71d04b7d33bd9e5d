"""Files of labels are read in every form that their writers give them, and each fault is named with its line."""

from __future__ import annotations

import csv
import gzip
import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pbgeval.models.labels import labels_in_order, read_labels
from pbgeval.models.opening import open_model
from tests.examples import examples
from tests.kit.commands import REPOSITORY
from tests.kit.refusals import fault_of
from tests.pykeen_models import NUM_ENTITIES, NUM_RELATIONS, Diagonal, with_vectors
from tests.systems_reference import DglkeFolder, LibkgeCheckpoint
from tests.unit.test_adapters_systems import let_import_libkge

# What pandas must put into quotes, or could take for something else when it reads it again.
LABELS = [
    *('"q"', '"', '""', 'a "b" c', "tab\there", "two\nlines", "a, b", "", "NA", "null", "nan", "None", "1", "1.0"),
    *(
        " before",
        "after ",
        "a\x85b",
        "a\u2028b",
        "\u00e9",
        "e\u0301",
        "'",
        "#",
        "\\",
        "\ufeffx",
        "a\x0bb",
        "\r\n",
        "0,a",
    ),
]
Read = Callable[[Path, int], list[str]]
READERS: list[Read] = [read_labels, lambda path, number: [*labels_in_order(path, number)]]


def write_as_pykeen(path: Path, labels: list[str]) -> None:
    """Write as PyKEEN's `TriplesFactory.to_path_binary` does."""
    frame = pandas.DataFrame([(label, at) for at, label in enumerate(labels)], columns=["label", "id"])
    frame.sort_values("id").set_index("id").to_csv(path, sep="\t")


def write_as_ogb(path: Path, labels: list[str]) -> None:
    frame = pandas.DataFrame({"ent idx": range(len(labels)), "ent name": labels})
    frame.to_csv(path, index=False, compression="gzip")


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(
    ("write", "name"), [(write_as_pykeen, "entity_to_id.tsv.gz"), (write_as_ogb, "entidx2name.csv.gz")]
)
def test_labels_that_pandas_wrote_are_read_back(
    read: Read, write: Callable[[Path, list[str]], None], name: str, tmp_path: Path
) -> None:
    write(tmp_path / name, LABELS)

    assert read(tmp_path / name, len(LABELS)) == LABELS


@settings(max_examples=examples(60))
@given(
    labels=st.lists(st.text(st.characters(exclude_categories=["Cs"])), unique=True, min_size=1),
    with_commas=st.booleans(),
)
def test_any_labels_that_are_quoted_by_the_rules_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, labels: list[str], with_commas: bool
) -> None:
    path = tmp_path_factory.mktemp("labels") / ("labels.csv" if with_commas else "labels.tsv")
    delimiter = "," if with_commas else "\t"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
        writer.writerows([("id", "label"), *enumerate(labels)])

    assert read_labels(path) == labels


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("labels.tsv", '0\t"q"\n1\ta "b"\n', ['"q"', 'a "b"']),  # no header: as DGL-KE and LibKGE write it
        ("labels.tsv", '"q"\nNA\n', ['"q"', "NA"]),
        ("labels.tsv", "id\tlabel\r\n1\tb\r\n0\ta\r\n", ["a", "b"]),
        ("labels.tsv", "\ufeffid\tlabel\n0\ta\n1\tb", ["a", "b"]),
        ("entity_ids.del", "1\tlabel\n0\t", ["", "label"]),
        ("entity_ids.del", "0\ta\n1\tb\n\n", ["a", "b"]),
        ("labels.csv", '0,"a, b"\n1,c\n', ["a, b", "c"]),
        ("labels.csv", "ent idx,ent name\n0,a\n1,b\n", ["a", "b"]),
    ],
)
def test_the_form_follows_from_the_name_and_the_first_line(
    read: Read, name: str, text: str, expected: list[str], tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(text.encode())
    (tmp_path / "packed").mkdir()
    packed = tmp_path / "packed" / f"{name}.gz"
    packed.write_bytes(gzip.compress(text.encode()))

    assert [read(path, 2) for path in (tmp_path / name, packed)] == [expected, expected]


FAULTS = {
    "JSON": (
        "entity2id.json",
        '{"a": 0, "b": 1}\n',
        ": expected lines of text, an id and a label or labels alone, not",
    ),
    "three columns": ("labels.tsv", "0\ta\n1\tb\tc\n", ":2: expected id<TAB>label, found '1\\tb\\tc'"),
    "no id": ("labels.tsv", "0\ta\nb\tc\n", ":2: expected id<TAB>label, found 'b\\tc'"),
    "a negative id": ("labels.tsv", "0\ta\n-1\tb\n", ":2: expected id<TAB>label, found '-1\\tb'"),
    "an id of many digits": ("labels.tsv", "9" * 5000 + "\ta\n", ":1: expected "),
    "label and id": ("labels.tsv", "a\t0\nb\t1\n", ":1: expected id<TAB>label, found 'a\\t0'"),
    "ids from 1": (
        "labels.tsv",
        "1\ta\n2\tb\n",
        ":2: expected ids from 0 to 1, found 2; there are 2 labels for 2 ids",
    ),
    "an id beyond": ("labels.tsv", "0\ta\n7\tb\n", ":2: expected ids from 0 to 1, found 7"),
    "an id again": ("labels.tsv", "0\ta\n0\tb\n", ":2: id 0 has a label already, in line 1"),
    "too few": ("labels.tsv", "0\ta\n", ": 1 label for 2 ids, and none for id 1"),
    "too many": ("labels.tsv", "a\nb\nc\n", ":3: expected ids from 0 to 1, found 2; there are 3 labels"),
    "commas": ("labels.tsv", "0,a\n1,b\n", ":1: expected id<TAB>label or a label alone, found '0,a'; put tabs between"),
    "no tab in .del": ("entity_ids.del", "a\nb\n", ":1: expected id<TAB>label, found 'a'"),
    "a quotation mark that ends nowhere": ("labels.tsv", 'id\tlabel\n0\t"a\n1\tb\n', ":2: expected CSV"),
    "text behind a quotation mark": ("labels.csv", 'id,label\n0,a\n1,"b"c\n', ":3: expected CSV"),
    "a CR in a label": ("labels.tsv", "0\ta\n1\tb\rc\n", ":2: a carriage return (CR) within the line; end lines with"),
    "lines that end in CR": ("labels.tsv", "0\ta\r1\tb\r", ":1: a carriage return (CR) within the line"),
    "CSV with a header that ends in CR": ("labels.tsv", "id\tlabel\r0\ta\r1\tb\r", ":1: a carriage return (CR) within"),
    "a CR in the first line of CSV": ("labels.csv", "0,a\rc\n1,b\n", ":1: a carriage return (CR) within the line"),
    "pandas' own index": ("labels.csv", ",ent idx,ent name\n0,0,a\n1,1,b\n", ":2: expected id,label, found '0,0,a'"),
}


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_is_named_with_its_line(read: Read, kind: str, tmp_path: Path) -> None:
    name, text, fault = FAULTS[kind]
    (tmp_path / name).write_bytes(text.encode())

    assert fault_of(lambda: read(tmp_path / name, 2)).startswith(f"{tmp_path / name}{fault}")


def test_equal_labels_are_refused_where_labels_are_looked_up_and_shown_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "labels.tsv"
    path.write_text("0\ta\n1\tb\n2\ta\n", encoding="utf-8")

    assert (
        fault_of(lambda: read_labels(path, 3)) == f"{path}:3: expected each label once, found 'a' again, as in line 1"
    )
    assert [*labels_in_order(path, 3)] == ["a", "b", "a"]


# DGL-KE records what is between the columns.


def dglke_with(folder: Path, delimiter: str, written: str) -> DglkeFolder:
    """Write a folder whose config records a delimiter, with labels that have one."""
    model = DglkeFolder(folder, "DistMult", num_entities=3, num_relations=2)
    arguments = json.loads((folder / "config.json").read_text()) | {"delimiter": delimiter}
    (folder / "config.json").write_text(json.dumps(arguments))
    (folder / "entities.tsv").write_text("".join(f"{at}{written}{name}\n" for at, name in enumerate(["a", '"b"', "c"])))
    (folder / "relations.tsv").write_text(f"1{written}s\n0{written}r\n")
    return model


@pytest.mark.parametrize("delimiter", ["\t", ",", ";", "|", " ", "::"])
def test_the_delimiter_that_dglke_recorded_is_used(delimiter: str, tmp_path: Path) -> None:
    model = open_model(dglke_with(tmp_path, delimiter, delimiter).folder)

    assert ([*(model.entity_names() or [])], model.relation_names()) == (["a", '"b"', "c"], ["r", "s"])


def test_labels_with_another_delimiter_than_dglke_recorded_are_refused(tmp_path: Path) -> None:
    model = open_model(dglke_with(tmp_path, "\t", ",").folder)

    fault = fault_of(lambda: [*(model.entity_names() or [])])
    assert fault == f"{tmp_path / 'entities.tsv'}:1: expected id<TAB>label, found '0,a'"


# LibKGE's packaged checkpoints have the labels in themselves.


def packaged(path: Path, meta: dict[str, Any], section: str = "meta") -> Path:
    dataset = {"num_entities": 3, "num_relations": 2, section: meta}
    return LibkgeCheckpoint(path, "complex", num_entities=3, num_relations=2, more={"dataset": dataset}).path


@pytest.mark.parametrize("section", ["meta", "dataset.meta"])
def test_a_packaged_checkpoint_has_its_labels(section: str, tmp_path: Path) -> None:
    meta = {"entity_ids": ["a", "b\tc", ""], "relation_ids": ["r", "s"], "entity_strings": ["A", None, "A"]}
    path = packaged(tmp_path / "x.pt", meta, section)
    (tmp_path / "entity_ids.del").write_text("0\tx\n1\ty\n2\tz\n")  # of another data set: the checkpoint's own count

    model = open_model(path)

    assert ([*(model.entity_names() or [])], model.relation_names()) == (["a", "b\tc", ""], ["r", "s"])


@pytest.mark.parametrize(
    ("meta", "fault"),
    [
        ({"entity_ids": ["a", "b"]}, "dataset: meta: entity_ids: 2 labels for 3 ids"),
        ({"entity_ids": ["a", "b", "a"]}, "dataset: meta: entity_ids: expected each label once, found 'a' again"),
        ({"entity_ids": ["a", "b", 3]}, "dataset: meta: entity_ids: expected a list of texts"),
        ({"relation_ids": {"a": 1}}, "dataset: meta: relation_ids: expected a list of texts, found dict"),
    ],
)
def test_labels_of_a_packaged_checkpoint_are_checked(meta: dict[str, Any], fault: str, tmp_path: Path) -> None:
    path = packaged(tmp_path / "x.pt", meta)

    assert fault_of(lambda: open_model(path)).startswith(f"{path}: {fault}")


def test_the_export_scripts_keep_every_label_and_say_what_is_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    for folder in (tmp_path / "saved", out):
        folder.mkdir()
    write_as_pykeen(tmp_path / "saved" / "entity_to_id.tsv.gz", LABELS)
    write_as_pykeen(tmp_path / "saved" / "relation_to_id.tsv.gz", LABELS[::-1])
    runpy.run_path(str(REPOSITORY / "pbgeval" / "examples" / "export_pykeen.py"))["write_labels"](
        tmp_path / "saved", out
    )
    assert [read_labels(out / f"{table}.tsv") for table in ("entities", "relations")] == [LABELS, LABELS[::-1]]

    path = packaged(tmp_path / "x.pt", {"entity_ids": ['"q"', "a\tb", "c\nd"], "relation_ids": ["", "NA"]})
    export = runpy.run_path(str(REPOSITORY / "pbgeval" / "examples" / "export_libkge.py"))["main"]
    let_import_libkge(monkeypatch)
    export(str(path), str(tmp_path / "exported"))
    said = capsys.readouterr().out.splitlines()
    assert {*said[0].removesuffix(f" to {tmp_path / 'exported'}").removeprefix("wrote ").split(", ")} == {
        file.name for file in (tmp_path / "exported").iterdir()
    }
    assert said[1:] == [
        f"next: kgeval-dist import-model {tmp_path / 'exported'} --output converted --edges test=test.tsv"
    ]
    model = open_model(tmp_path / "exported")
    assert ([*(model.entity_names() or [])], model.relation_names()) == (['"q"', "a\tb", "c\nd"], ["", "NA"])


@pytest.mark.parametrize("has_labels", [True, False])
def test_a_model_of_pykeen_is_exported_with_the_next_command(
    has_labels: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out = with_vectors(Diagonal()), tmp_path / "my models"
    torch.save(model, tmp_path / "trained_model.pkl")
    triples = tmp_path / "training_triples"
    if has_labels:
        triples.mkdir()
        write_as_pykeen(triples / "entity_to_id.tsv.gz", [f"e{number}" for number in range(NUM_ENTITIES)])
        write_as_pykeen(triples / "relation_to_id.tsv.gz", [f"r{number}" for number in range(NUM_RELATIONS)])

    export = runpy.run_path(str(REPOSITORY / "pbgeval" / "examples" / "export_pykeen.py"))["main"]
    export(str(tmp_path / "trained_model.pkl"), str(out))

    labels = ", entities.tsv, relations.tsv" if has_labels else ""
    assert capsys.readouterr().out.splitlines() == [
        f"wrote model.json, entity.npy, relation.npy{labels} to {out}",
        *([] if has_labels else [f"no labels in {triples}: edges need numbers of rows"]),
        f"next: kgeval-dist import-model '{out}' --output converted --edges test=test.tsv",
    ]
    assert open_model(out).num_entities == NUM_ENTITIES


def test_options_name_files_of_labels_by_type(tmp_path: Path) -> None:
    for name, num_rows in (("user", 2), ("item", 3), ("relation", 1)):
        np.save(tmp_path / f"{name}.npy", np.ones((num_rows, 4), np.float32))
    (tmp_path / "mapping").mkdir()
    write_as_ogb(tmp_path / "mapping" / "item_entidx2name.csv.gz", ["x", '"y"', "z"])
    (tmp_path / "kinds.csv").write_text("rel idx,rel name\n0,rates\n")
    options = {
        "model": "distmult",
        "entities": {"user": "user.npy", "item": "item.npy"},
        "relations": "relation.npy",
        "relation_types": [["rates", "user", "item"]],
        "entity_labels": {"item": "mapping/item_entidx2name.csv.gz"},
    }

    model = open_model(tmp_path, options)

    assert [[*(model.entity_names(name) or [])] for name in ("user", "item")] == [["0", "1"], ["x", '"y"', "z"]]
    absent = options | {"entity_labels": {"item": "mapping/no.csv"}}
    assert "mapping/no.csv: no such file, which entity_labels names" in fault_of(lambda: open_model(tmp_path, absent))
    other = options | {"entity_labels": {"shop": "kinds.csv"}}
    assert "entity_labels: shop is none of the entity types" in fault_of(lambda: open_model(tmp_path, other))
