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
    GRAPH,
    IMPORT,
    MONITOR,
    NAMED,
    NAMED_ALOUD,
    NOTHING,
    REPORT,
    TOPK,
    TYPES_COMMAND,
    Fault,
    World,
    check,
    copy,
    fault,
    remove,
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


IMPORTED = [
    *(
        fault(f"train.tsv{message}…", write("train.tsv", content), world=IMPORT)
        for content, message in (
            ("a\tr\tb\n\nb\tr\n", ":3: expected 3 columns separated by tabs, found 2"),
            ("a\tr\tb\tx\n", ":1: expected 3 columns separated by tabs, found 4"),
            ("", ": there are no edges in this file"),
            ("\n\n", ": there are no edges in this file"),
            ("a\tr\tb\ncaf\xe9\tr\tb\n".encode("latin-1"), ":2: expected UTF-8 text, found byte 0xe9"),
            ("a\tr\tb\n".encode("utf-16"), ":1: expected UTF-8 text, found byte 0xff"),
            ("a\tr\tb\n\nb\t\ta\n", ":3: rel is empty"),
            (
                gzip.compress(GRAPH.encode() * 500)[:60],
                ":1166: cannot read this text file: Compressed file ended",
            ),
            ("a\tr\tb\r\nb\tr\ta\nc\tr\ta\r\n", ": some lines end in CRLF and others in LF; end all of them alike"),
        )
    ),
    *(
        fault(
            "train.tsv:2: the weight is not a finite number",
            write("train.tsv", f"a\tr\tb\t1\nb\tr\ta\t{weight}\n"),
            args=("--edge-columns", "hrtw"),
            world=IMPORT,
        )
        for weight in ("nan", "-inf", "x", "")
    ),
    *(
        fault(f"{message}…", args=arguments.split(), world=IMPORT)
        for arguments, message in (
            ("--partitions 4", "--partitions 4: type all has only 3 entities; use fewer partitions"),
            ("--partitions 0", "--partitions 0: expected a number >= 1, or TYPE=NUMBER"),
            ("--partitions 10001", "…expected at most 10,000"),
            (f"--partitions {'9' * 5000}", "…expected a number >= 1"),
            ("--partitions user=2", "--partitions user: no such entity type; the types are all"),
            ("--edge-columns hrx", "--edge-columns hrx: expected h, r and t once each"),
            ("--edge-columns hrtw", "train.tsv:1: expected 4 columns separated by tabs, found 3"),
            ("--edge-columns a,r,x", "train.tsv:1: expected a header with columns a, r, x, found a, r, b"),
            ("--edge-columns a,r", "--edge-columns a,r: expected the names of three columns"),
            ("--dictionary-of test", "--dictionary-of test: there are no such edges; choose from train"),
            ("--edges test", "--edges test: expected NAME=FILE"),
            (
                "--edges entity=train.tsv",
                "--edges entity: entity cannot be the name of a folder of edges; choose another",
            ),
            ("--edges test=none.tsv", "none.tsv: cannot read this file of edges: No such file"),
            ("--dictionary none", "none: cannot read this entity folder: No such file or directory"),
            ("--dictionary .", ".: no file entity_names_<type>_<partition>.json, only train.tsv"),
            ("--max-memory much", "…expected an amount of memory such as '800MB'"),
            ("--types train.tsv", "train.tsv:4: the relation 'a' occurs twice"),
        )
    ),
    fault(
        "types.tsv: the types of s are missing; add them, or a line for all others: …",
        write("types.tsv", "r\tuser\titem\n"),
        args=("--types", "types.tsv"),
        world=IMPORT,
    ),
    fault(
        "--partitions: all types with more than one partition need the same number, got item 2, user 3",
        write("types.tsv", "*\tuser\titem\n"),
        args=("--types", "types.tsv", "--partitions", "user=3", "--partitions", "2"),
        world=IMPORT,
    ),
    fault(
        "--edges test: 1 of 2 edges have names that are not in train (1 unknown entity, for example entity 'z' of type "
        "all); --unknown skip leaves such edges out",
        write("test.tsv", "a\tr\tz\nb\ts\tc\n"),
        args=("--edges", "test=test.tsv", "--dictionary-of", "train", "--unknown", "refuse"),
        world=IMPORT,
    ),
    fault(
        "graph: the folder is not empty; choose a new or empty one",
        write("graph/mine", ""),
        world=IMPORT,
    ),
    *(
        fault(message, damage, args=imported("e.parquet"), world=NOTHING)
        for damage, message in (
            (
                lambda root: duckdb.sql("SELECT 1 AS h, 2 AS rel, 3 AS rhs").write_parquet(f"{root}/e.parquet"),
                "e.parquet: expected columns lhs, rel, rhs or head, relation, tail or subject, predicate, object, "
                "found h, rel, rhs; name them with --edge-columns…",
            ),
            (
                lambda root: duckdb.sql(
                    "SELECT * FROM (VALUES (1, 2, 3), (1, NULL, 3)) t(lhs, rel, rhs)"
                ).write_parquet(f"{root}/e.parquet"),
                "e.parquet: row 1: rel is empty",
            ),
            (
                write("e.parquet", "PAR1 and then something else"),
                "e.parquet: cannot read this Parquet file:…",
            ),
            (
                write("e.parquet", "a\tr\tb\n"),
                "e.parquet: not a Parquet file, or not complete",
            ),
        )
    ),
    fault(
        "x.tsv.zst:2: expected 3 columns separated by tabs, found 2;…", zstd, args=imported("x.tsv.zst"), world=NOTHING
    ),
    *(
        fault(
            f"x.csv{message}…",
            write("x.csv", text),
            args=(*imported("x.csv"), "--edge-columns", "h,r,t"),
            world=NOTHING,
        )
        for text, message in (
            ('h,r,t\n"a\nb",r,c\nb,r\n', ":4: expected 3 columns separated by commas, found 2"),
            ('h,r,t\na,r,"c\n', ":2: wrong quotation marks (RFC 4180): the quotation mark before a field has none"),
            ("h,r,h\na,r,c\n", ":1: the header has a column twice: h, r, h"),
        )
    ),
]


def without_vectors(root: Path) -> None:
    with h5py.File(root / "checkpoint" / "embeddings_user_0.v3.h5", "r+") as file:
        del file["embeddings"]


UNKNOWN = "user/0/1\tr0\tnew\nnew\tr1\tuser/0/0\nuser/0/0\tr9\tuser/0/0\n"
FROM_REL_TO = 'SELECT * FROM (VALUES (1, 2, 3)) t("from", rel, "to")'
BY_NAME = [
    *(
        fault(message, write("edges.tsv", content), world=NAMED)
        for content, message in (
            (
                "user/0/0\tr0\tuser/0/1\nuser/0/0\tr0\n",
                "{root}/edges.tsv:2: expected 3 columns separated by tabs, found 2; set edge_columns …",
            ),
            *(
                (
                    f"user/0/0{by}r0{by}user/0/1\n",
                    "{root}/edges.tsv:1: expected 3 columns separated by tabs, found 1; columns must be "
                    "separated by tabs; name the file .csv if commas separate them, or set edge_delimiter",
                )
                for by in (" ", ",")
            ),
            ("", "{root}/edges.tsv: there are no edges in this file…"),
            ("\n", "{root}/edges.tsv: there are no edges in this file…"),
            (b"user/0/0\tr0\tcaf\xe9\n", "{root}/edges.tsv:1: expected UTF-8 text, found byte 0xe9…"),
            (
                "a\tr\tb\n",
                "edges.tsv: none of 1 edges has all of its names in the dictionary {root}/entity; for example, "
                "relation 'r' is missing; the columns are read as head, relation, tail (edge_columns changes this); "
                "is it the dictionary of these edges?",
            ),
        )
    ),
    fault(
        "{root}/edges.tsv: 3 of 53 edges have names that are not in {root}/entity (1 unknown entity and 1 unknown "
        "relation, for example entity 'new' of type user); correct the names, or leave these edges out with unknown = "
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
        fault(f"{message}…", p=override, world=NAMED)
        for override, message in (
            (
                "edge_paths=none.tsv",
                "-p edge_paths=none.tsv: edge_paths[0]: no such file or directory: {root}/none.tsv (none.tsv,",
            ),
            (
                "dictionary_path=nowhere",
                "-p dictionary_path=nowhere: no such directory: {root}/nowhere (nowhere, relative to the w",
            ),
            (
                "edge_columns=hrx",
                "edge_columns hrx: expected h, r and t once each (head, relation, tail; ht where there is no",
            ),
            ("edge_columns=a,r,x", "{root}/edges.tsv:1: expected a header with columns a, r, x, found user/"),
            ("edge_columns=a,r", "edge_columns a,r: expected the names of three columns"),
        )
    ),
    *(
        fault(
            f"edge_columns: no column s (time), which {key} needs; add it, as in 'hrts', or as a fifth name",
            p=f"filter_paths=edges.tsv {settings}{columns}",
            world=NAMED,
        )
        for settings, key in (
            ("time_window=0", "time_window"),
            ("known_until=query", "known_until"),
            ("breakdowns=time time_bin=2", "breakdowns: time"),
        )
        for columns in ("", " edge_columns=hrt_")
    ),
    *(
        fault(
            f"{{root}}/names/{name}: no such file; edges by name need …: set dictionary_path to their folder",
            copy("entity", "names"),
            remove(f"names/{name}"),
            p="dictionary_path=names",
            world=NAMED,
        )
        for name in ("dynamic_rel_names.json", "entity_names_user_0.json")
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

COMPARE = World(Path.mkdir, ("compare", "a", "b"))
RANK_TYPES = "'optimistic', 'realistic', 'pessimistic', 'best', 'avg', 'average', 'worst'"
CHOICES = [
    fault(
        f"Invalid value for '{flag}': '{value}' is not one of {choices}; see kgeval-dist {world.arguments[0]} --help",
        args=(flag, value),
        world=world,
    )
    for world, flag, value, choices in (
        (IMPORT, "--balance", "none", "'random', 'degree'"),
        (TOPK, "--absent", "first", "'bounds', 'last', 'zero'"),
        (TOPK, "--filter", "all", "'producer', 'known', 'none'"),
        (TOPK, "--ties", "worst", "'confidence', 'order'"),
        (TOPK, "--rank-type", "x", RANK_TYPES),
        (TYPES_COMMAND, "--gain", "cubic", "'linear', 'exponential'"),
        (TYPES_COMMAND, "--discount", "log", "'jk', 'standard'"),
        (COMPARE, "--side", "up", "'head', 'tail', 'relation', 'both', 'lhs', 'rhs'"),
        (COMPARE, "--rank-type", "expected", RANK_TYPES),
        (COMPARE, "--filter", "some", "'raw', 'filtered'"),
        (COMPARE, "--clusters", "relation", "'key', 'edge'"),
        (COMPARE, "--format", "xml", "'text', 'json', 'csv', 'md', 'latex', 'html', 'svg'"),
        (REPORT, "--format", "pdf", "'html', 'md', 'latex'"),
    )
]
COMMANDS = [
    *(
        fault(f"{message}…", args=arguments.split(), world=TOPK)
        for arguments, message in (("--known absent.tsv", "absent.tsv: cannot read this file of edges: No such file"),)
    ),
    *(
        fault(f"{message}…", args=arguments.split(), world=TYPES_COMMAND)
        for arguments, message in (
            ("--base 1", "--base 1.0: the base must be above 1"),
            ("--base 3", "--base 3.0 has no effect without --gain exponential; add it, or remove --base"),
            ("--ranking absent.tsv", "absent.tsv: cannot read this text file: No such file"),
        )
    ),
    *(
        fault(f"{name}: expected {message}…", *damage, args=("inspect", name), world=NOTHING)
        for name, message, *damage in (
            (
                ".",
                "a folder of edges or entities, a checkpoint, an edge file edges_LHS_RHS.h5",
                write("other.h5", ""),
            ),
            ("other.h5", "a folder of edges or entities, a checkpoint", lambda root: h5py.File(root / "other.h5", "w")),
            ("bad/edges_0_0.h5", "an HDF5 file, found another format", write("bad/edges_0_0.h5", "no HDF5, but long")),
        )
    ),
    fault(
        "run is an evaluation; use kgeval-dist report run",
        args=("monitor", "run"),
        world=World(REPORT.make, ()),
    ),
    fault(
        "test.tsv: inspect describes imported edges; import this file first: kgeval-dist import-graph --output graph "
        "--edges test=test.tsv",
        write("test.tsv", "a\tr\tb\n"),
        args=("inspect", "test.tsv"),
        world=NOTHING,
    ),
    *(
        fault(f"{message}…", args=arguments.split(), world=COMPARE)
        for arguments, message in (
            ("--metric hit@10", "metrics: expected mean_rank, …, got 'hit@10'; nearest: hits@10, …"),
            ("--metric gmr", "metrics: expected mean_rank, mean_reciprocal_rank… or hits_at_k, got 'gmr'"),
            ("--metric tail.mrr", "metrics: expected mean_rank"),
        )
    ),
    *(
        fault(f"{message}", args=arguments.split(), world=MONITOR)
        for arguments, message in (
            ("--metric auc", "expected records of held-out edges with 'auc', found mrr, r1 (hits@1)"),
            *(
                (f"--metric {name}", "expected records of held-out edges with 'r10 (hits@10)', found mrr, r1 (hits@1)")
                for name in ("r10", "hits@10", "both.realistic.hits_at_10")
            ),
            (
                "--metric hits@3",
                "--metric hits@3: expected one of mrr, pos_rank, r1 (hits@1), r10 (hits@10), r50 (hits@50), auc, loss "
                "for the records of a training run",
            ),
        )
    ),
    *(
        fault(
            "edgs: no such file or folder; did you mean 'edges'?",
            write("edges/x", ""),
            args=(command, "edgs"),
            world=NOTHING,
        )
        for command in ("inspect", "monitor")
    ),
    fault("nowhere: no such file or folder", args=("monitor", "nowhere"), world=NOTHING),
    fault("…training_stats.json…", args=("monitor", "."), world=NOTHING),
    *(
        fault(f"{message}…", args=arguments.split(), world=REPORT)
        for arguments, message in (
            ("--metric hist@10", "--metric hist@10: expected a column of buckets.csv: no metric 'hist@10'"),
            ("--metric hits@0", "--metric hits@0: expected a column of buckets.csv: no metric 'hits@0'"),
            ("--monitor nowhere", "nowhere: expected the statistics of a training run"),
            ("-o run/metrics.json/page.html", "run/metrics.json/page.html: "),
        )
    ),
    *(
        fault(f"…{message}…", remove(f"run/{name}"), *damage, world=REPORT)
        for name, message, *damage in (
            ("metrics.json", "run: no metrics.json or training_stats.json in this folder; give the output directory"),
            *(
                (name, message, write(f"run/{name}", text))
                for name, text, message in (
                    ("metrics.json", "{", "metrics.json: expected a result of pbgeval, got no JSON"),
                    ("metrics.json", "[]", "metrics.json: expected a result of pbgeval, got other JSON"),
                    (
                        "metrics.json",
                        '{"schema_version": 2}',
                        "metrics.json: expected complete, found nothing; the file was edited or damaged",
                    ),
                    (
                        "metrics.json",
                        '{"schema_version": 2, "complete": true}',
                        "metrics.json: expected provenance, found nothing; the file was edited or damaged",
                    ),
                    (
                        "buckets.csv",
                        "edge_path,num_edges\nedges,many\n",
                        "buckets.csv: expected a table as an evaluation writes it",
                    ),
                    (
                        "relations.csv",
                        "relation,x\nlikes\n",
                        "relations.csv: expected a table as an evaluation writes it",
                    ),
                )
            ),
        )
    ),
    *(
        fault(f"{path}: {message}", *damage, args=("report", path), world=NOTHING)
        for path, message, *damage in (
            ("nowhere", "no such output directory; give the output directory of a run"),
            ("metrics.json", "this is a file; give its folder, '.'", write("metrics.json", "{}")),
        )
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


ROWS = [*IMPORTED, *BY_NAME, *CHOICES, *COMMANDS]


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
