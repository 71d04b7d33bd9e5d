"""No name in a table of ours is a formula to a spreadsheet, and each can be read back."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbgeval import Report
from pbgeval.results.csv_tables import to_csv
from pbgeval.storage.text import name_of
from tests.examples import examples
from tests.kit.case import RELATIONS, TinyCase
from tests.kit.commands import flags, run_command, run_main
from tests.kit.names import write_tsv

FORMULAS = ("=HYPERLINK(1)", "+1", "-cmd", "@SUM(1)", "\tx", "\rx", "\nx", "'quoted", "''", "=", "\uff1d1", "-'", "'=1")
NUMBER = re.compile(r"-?[0-9.]+(e[-+]?[0-9]+)?|-inf")
DANGEROUS = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")


@settings(max_examples=examples(200))
@given(st.one_of(st.sampled_from(FORMULAS), st.text(), st.text("=+-@\t\r\n'\uff1da")))
def test_a_table_has_names_as_texts_and_numbers_as_numbers(name: str) -> None:
    table = to_csv([{"relation": name, "z": -1.5, "n": -2, "none": None}])
    (row,) = csv.DictReader(io.StringIO(table, newline=""))
    cell = row.pop("relation")
    assert (name_of(cell), row) == (name, {"z": "-1.5", "n": "-2", "none": ""})
    assert not cell.startswith(DANGEROUS)
    assert cell == name or name.startswith((*DANGEROUS, "'"))


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> TinyCase:
    """Relations with names of formulas, entities too, and a result of them."""
    relations = [{**relation, "name": name} for relation, name in zip(RELATIONS, FORMULAS, strict=False)]
    names = [f"{FORMULAS[at % len(FORMULAS)]}{at}" for at in range(9)]
    root = tmp_path_factory.mktemp("case")
    case = TinyCase.write(
        root, partition_sizes=(9,), num_tags=3, relations=relations, edge_paths=["=edges"], candidates="all"
    )
    (root / "edges").rename(root / "=edges")
    (root / "entity" / "entity_names_user_0.json").write_text(json.dumps(names))
    for name in ("a", "b"):
        done = run_command(
            case, "--workers", "1", "--quiet", "--output", name, *flags(["save_ranks=True", "save_topk=3"])
        )
        assert (done.status, done.err) == (0, "")
    return case


def cells_of(path: Path, delimiter: str = ",") -> list[str]:
    with path.open(newline="", encoding="utf-8") as file:
        return [cell for row in csv.reader(file, delimiter=delimiter) for cell in row]


def test_no_cell_of_any_table_is_a_formula(case: TinyCase) -> None:
    tables = [*(case.root / "a").rglob("*.csv"), *(case.root / "a").rglob("*.tsv")]
    assert {"relations.csv", "buckets.csv", "topk_0_0.tsv"} <= {path.name for path in tables}
    for path in tables:
        cells = cells_of(path, "\t" if path.suffix == ".tsv" else ",")
        assert [cell for cell in cells if cell.startswith(DANGEROUS) and not NUMBER.fullmatch(cell)] == []
    assert "'=HYPERLINK(1)" in cells_of(case.root / "a" / "relations.csv")
    assert "'=edges" in cells_of(case.root / "a" / "buckets.csv")


def test_our_own_readers_have_the_names(case: TinyCase) -> None:
    report = Report.read(case.root / "a")
    assert [row["relation"] for row in report.rows["relations"]] == list(FORMULAS[:4])
    assert {row["edge_path"] for row in report.rows["buckets"]} == {"=edges"}
    again = Report.read(case.root / "a").recompute(edge_paths=[case.root / "=edges"], breakdowns=["relation"])
    assert [row["relation"] for row in again.rows["relations"]] == list(FORMULAS[:4])


def test_a_comparison_has_texts_too(case: TinyCase) -> None:
    done = run_main("compare", "a", "b", "--format", "csv", cwd=case.root)
    assert done.status == 0, done.err
    found = {row["relation"] for row in csv.DictReader(io.StringIO(done.out, newline=""))} - {""}
    assert {name_of(cell) for cell in found} == set(FORMULAS[:4])
    assert not any(cell.startswith(DANGEROUS) for cell in found)


def test_what_an_import_does_not_know_is_listed_as_texts(tmp_path: Path) -> None:
    write_tsv(tmp_path / "train.tsv", [("a", "r", "b")])
    write_tsv(tmp_path / "test.tsv", [("a", "r", "b"), ("=cmd", "r", "'a"), ("a", "-r", "b")])
    files = ("--edges", "train=train.tsv", "--edges", "test=test.tsv", "--dictionary-of", "train")
    done = run_main("import-graph", *files, "--output", "graph", cwd=tmp_path)
    assert done.status == 0, done.err
    names = {line.split("\t")[1] for line in (tmp_path / "graph/test/unknown.tsv").read_text().splitlines()[1:]}
    assert names == {"'=cmd", "''a", "'-r"}
