"""Bad input of files by name and of the other commands: a line, and nothing written."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from unittest import mock

import duckdb
import h5py
import pytest

from pbgeval.storage import writing as files
from tests.kit.faults import (
    CASE,
    GRAPH,
    IMPORT,
    MONITOR,
    NAMED,
    NAMED_ALOUD,
    NOTHING,
    REPORT,
    SMALL,
    TOPK,
    TYPES_COMMAND,
    Fault,
    World,
    check,
    copy,
    fault,
    remove,
    rows_of,
    setting,
    write,
)
from tests.kit.reports import write_records


def zstd(root: Path) -> None:
    lines = "SELECT unnest(['a\tr\tb', 'b\tr', 'c\tr\ta'])"
    duckdb.sql(f"COPY ({lines}) TO '{root / 'x.tsv.zst'}' (FORMAT csv, HEADER false, DELIMITER '|', COMPRESSION zstd)")


def imported(name: str) -> tuple[str, ...]:
    """The arguments of an import of this file alone."""
    return ("import-graph", "--quiet", "--output", "graph", "--edges", f"train={name}")


COMPARE = World(Path.mkdir, ("compare", "a", "b"))
WORLDS = {
    "CASE": CASE,
    "SMALL": SMALL,
    "IMPORT": IMPORT,
    "NAMED": NAMED,
    "TOPK": TOPK,
    "TYPES_COMMAND": TYPES_COMMAND,
    "REPORT": REPORT,
    "MONITOR": MONITOR,
    "NOTHING": NOTHING,
    "COMPARE": COMPARE,
}
IMPORTED = [
    fault(
        "train.tsv:1166: cannot read this text file: Compressed file ended…",
        write("train.tsv", gzip.compress(GRAPH.encode() * 500)[:60]),
        world=IMPORT,
    ),
    fault("…expected a number >= 1…", args=("--partitions", "9" * 5000), world=IMPORT),
    fault(
        "e.parquet: expected columns lhs, rel, rhs or head, relation, tail or subject, predicate, object, found h, "
        "rel, rhs; name them with --edge-columns…",
        lambda root: duckdb.sql("SELECT 1 AS h, 2 AS rel, 3 AS rhs").write_parquet(f"{root}/e.parquet"),
        args=imported("e.parquet"),
        world=NOTHING,
    ),
    fault(
        "e.parquet: row 1: rel is empty",
        lambda root: duckdb.sql("SELECT * FROM (VALUES (1, 2, 3), (1, NULL, 3)) t(lhs, rel, rhs)").write_parquet(
            f"{root}/e.parquet"
        ),
        args=imported("e.parquet"),
        world=NOTHING,
    ),
    fault(
        "x.tsv.zst:2: expected 3 columns separated by tabs, found 2;…", zstd, args=imported("x.tsv.zst"), world=NOTHING
    ),
]


def without_vectors(root: Path) -> None:
    with h5py.File(root / "checkpoint" / "embeddings_user_0.v3.h5", "r+") as file:
        del file["embeddings"]


UNKNOWN = "user/0/1\tr0\tnew\nnew\tr1\tuser/0/0\nuser/0/0\tr9\tuser/0/0\n"
FROM_REL_TO = 'SELECT * FROM (VALUES (1, 2, 3)) t("from", rel, "to")'
BY_NAME = [
    fault(
        "{root}/edges.tsv: 3 of 53 edges have names that are not in {root}/entity (1 unknown entity and 1 unknown "
        "relation, for example entity 'new' of type user); correct the names, or leave these edges out with unknown="
        "'skip' (-p unknown=skip); the columns are read as head, relation, tail (edge_columns changes this)",
        lambda root: (root / "edges.tsv").write_text((root / "edges.tsv").read_text() + UNKNOWN),
        world=NAMED,
    ),
    fault(
        "{root}/edges.tsv: 1 of 51 edges have names that are not in {root}/entity (1 unknown entity, for example "
        "entity 'user/0/0x' of type user; did you mean 'user/0/0'?); correct the names, or …",
        lambda root: (root / "edges.tsv").write_text(
            (root / "edges.tsv").read_text().rstrip("\n") + "\nuser/0/0x\tr0\tuser/0/1\n"
        ),
        world=NAMED,
    ),
    fault(
        "{root}/edges.parquet: expected columns lhs, rel, rhs or head, relation, tail or subject, predicate, object, "
        "found from, rel, to; name them with edge_columns HEAD,RELATION,TAIL",
        lambda root: duckdb.sql(FROM_REL_TO).write_parquet(f"{root}/edges.parquet"),
        p="edge_paths=edges.parquet",
        world=NAMED,
    ),
    *(
        fault(
            f"{{root}}/cut.tsv.gz:…cannot read this text file: {found}…",
            lambda root, spoil=spoil: (root / "cut.tsv.gz").write_bytes(
                spoil(gzip.compress((root / "edges.tsv").read_bytes() * 50))
            ),
            p=f"{key}=cut.tsv.gz",
            world=NAMED,
        )
        for spoil, found in (
            (lambda packed: packed[:-9], "Compressed file ended"),
            (lambda packed: packed[:-8] + bytes([packed[-8] ^ 1]) + packed[-7:], "CRC check failed"),
        )
        for key in ("edge_paths", "filter_paths", "train_paths")
    ),
    *(
        fault(
            f"{{root}}/names{message}",
            copy("entity", "names"),
            remove(f"names/{name}"),
            p="dictionary_path=names",
            world=NAMED,
        )
        for name, message in (
            (
                "dynamic_rel_names.json",
                ": expected the names of all 5 relations in relations.tsv, …or dynamic_rel_names.json, found none; "
                "set dictionary_path (in Python, evaluate_files: labels) to their folder",
            ),
            (
                "entity_names_user_0.json",
                "/entity_names_user_0.json: no such file; edges by name need …: set dictionary_path to their folder",
            ),
        )
    ),
    fault(
        "{root}/names: names of 9, 9 entities of type user (by partition), but the checkpoint has 9, 8 vectors; set "
        "dictionary_path to the names of this checkpoint",
        copy("entity", "names"),
        write("names/entity_names_user_1.json", json.dumps([f"user/1/{row}" for row in range(9)])),
        write("names/entity_count_user_1.txt", "9\n"),
        p="dictionary_path=names",
        world=NAMED,
    ),
    fault("…embeddings_user_0…", without_vectors, world=NAMED_ALOUD),  # found before text is read
    fault(
        "relations: expected each name once, as edges are given by name, found knows again…",
        setting(relations=lambda of: [{**relation, "name": "knows"} for relation in of["relations"]]),
        world=NAMED,
        dynamic=False,
    ),
]

COMMANDS = [
    fault(
        "other.h5: expected a folder of edges or entities, a checkpoint…",
        lambda root: h5py.File(root / "other.h5", "w"),
        args=("inspect", "other.h5"),
        world=NOTHING,
    ),
    fault(
        "run is an evaluation; use kgeval-dist report run",
        args=("monitor", "run"),
        world=World(REPORT.make, ()),
    ),
    *(
        fault(f"…{message}…", *damage, args=("report", ".", *arguments), world=NOTHING)
        for damage, arguments, message in (
            (
                (write_records,),
                ("--metric", "hits@3"),
                "--metric hits@3: expected one of mrr, pos_rank, r1 (hits@1), r10 (hits@10), r50 (hits@50), auc, loss",
            ),
            (
                (lambda root: write_records(root, metrics={"auc": 0.5}),),
                (),
                "expected records of held-out edges with 'mrr', found auc",
            ),
        )
    ),
]


ROWS = [
    *rows_of(Path(__file__).with_name("command_faults.txt"), WORLDS),
    *IMPORTED,
    *BY_NAME,
    *COMMANDS,
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.lines[0][:70])
def test_a_fault_is_its_lines_and_nothing_is_written(row: Fault, tmp_path: Path) -> None:
    check(row, tmp_path / "case")


@pytest.mark.parametrize(
    ("module", "row"),
    [
        (
            "duckdb",
            fault(
                "duckdb is required to read text or Parquet edges: pip install duckdb",
                world=NAMED,
            ),
        ),
        ("jinja2", fault("jinja2 is required to write a page: pip install jinja2", world=REPORT)),
    ],
)
def test_a_library_that_is_missing_is_named(
    module: str, row: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)

    check(row, tmp_path / "case")


@pytest.mark.parametrize("world", [IMPORT, NAMED])
def test_a_full_disk_while_buckets_are_written(world: World, tmp_path: Path) -> None:
    with mock.patch.object(files.System, "write_at", side_effect=OSError(28, "No space left on device")):
        check(fault("…No space left on device…", world=world), tmp_path / "case")
