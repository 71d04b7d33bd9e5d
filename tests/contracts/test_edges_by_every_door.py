"""The same file has the same edges, or the same fault, wherever edges by name are read."""

from __future__ import annotations

import gzip
import itertools
import json
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pbgeval.config import load_config
from pbgeval.errors import EvalError, StorageError
from pbgeval.evaluation import inputs_of_config
from pbgeval.importing.edge_names import edge_names
from pbgeval.importing.graph import GraphFiles, import_graph
from pbgeval.importing.model import EdgeFiles, import_model
from pbgeval.inputs.edge_files import buckets_of_files
from pbgeval.integrations.openbiolink import DATA, FILES, DataLoader
from pbgeval.models.opening import open_model
from pbgeval.models.topk import read_topk
from pbgeval.notation import Side
from pbgeval.progress import Observer
from pbgeval.storage.edge_columns import EdgeForms
from pbgeval.storage.edge_text import Names
from tests.kit.names import buckets_in

ENTITIES = ["a", "b", 'say "c"', "d,e", "1", "2", "é", "#x", " a ", "e\u0301", "\x01", '"b"']
RELATIONS = ["r", "s"]
OPTIONS = {"model": "complex", "entities": "entity.npy", "relations": "relation.npy"}
Edges = list[tuple]
Settings = dict[str, str]  # of a config: edge_columns, edge_delimiter, edge_comment


def world(root: Path) -> None:
    """Write a model with labels, the same names as a dictionary, and a config."""
    for name, rows in (("entity", len(ENTITIES)), ("relation", len(RELATIONS))):
        np.save(root / f"{name}.npy", np.random.default_rng(rows).normal(size=(rows, 4)).astype(np.float32))
    (root / "entities.tsv").write_text("".join(f"{name}\n" for name in ENTITIES), encoding="utf-8")
    (root / "relations.tsv").write_text("".join(f"{name}\n" for name in RELATIONS))
    (root / "names").mkdir()
    for file, names in (("entity_names_all_0", ENTITIES), ("dynamic_rel_names", RELATIONS)):
        (root / "names" / f"{file}.json").write_text(json.dumps(names))
    (root / "known.tsv").write_text("a\tr\tb\n")
    (root / "eval.json").write_text(
        json.dumps({"model": str(root), "model_options": OPTIONS, "candidates": "all", "edge_paths": ["known.tsv"]})
    )


def named(folder: Path) -> Edges:
    rows = buckets_in(folder)[0, 0]
    return [(ENTITIES[lhs], RELATIONS[rel], ENTITIES[rhs], *more) for lhs, rel, rhs, *more in rows]


def forms(settings: Settings) -> EdgeForms:
    columns = settings.get("edge_columns")
    return EdgeForms.parse(
        [columns] if columns else [], (), settings.get("edge_delimiter"), settings.get("edge_comment")
    )


def by_import_graph(root: Path, path: Path, settings: Settings) -> Edges:
    files = GraphFiles({"test": [path]}, forms(settings), dictionary=root / "names", skip_unknown=False)
    import_graph(files, root / "graph", None, Observer())
    return named(root / "graph" / "test")


def by_import_model(root: Path, path: Path, settings: Settings) -> Edges:
    files = EdgeFiles({"test": [path]}, forms(settings), skip_unknown=False)
    import_model(open_model(root, OPTIONS), root / "converted", 1, files)
    return named(root / "converted" / "test")


def by_config(key: str) -> Callable[[Path, Path, Settings], Edges]:
    def read(root: Path, path: Path, settings: Settings) -> Edges:
        texts = {"edge_paths": "", key: path, **settings}
        if key != "edge_paths":
            texts["edge_paths"] = path  # read by the same settings, so `known.tsv` will not do
        config = load_config(root / "eval.json", [f"{name}={value}" for name, value in texts.items()])
        with buckets_of_files(config, root / "output", Observer()) as split:
            (folder,) = getattr(split, key)
            return named(Path(folder))

    return read


def by_verify(root: Path, path: Path, settings: Settings) -> Edges:
    """As `verify` opens what it checks, and as `submit` looks at what it sends off."""
    overrides = [f"{name}={value}" for name, value in {"edge_paths": path, **settings}.items()]
    with inputs_of_config(load_config(root / "eval.json", overrides), root / "output") as inputs:
        return named(Path(inputs.config.edge_paths[0]))


def by_topk(root: Path, path: Path, settings: Settings) -> Edges:
    """Of all edges that there may be, the ranking has one after the other; the length of its list says which it is."""
    every = list(itertools.product(ENTITIES, RELATIONS, ENTITIES))
    write_ranking(root / "ranking.txt", [(edge, [f"x{at}" for at in range(index)]) for index, edge in enumerate(every)])
    found = read_topk(root / "ranking.txt", path, names_of=names_by(settings))
    tails = found.hidden_Q == Side.RHS.value
    edges = dict(zip(found.edge_Q[tails].tolist(), found.list_length_Q[tails].tolist(), strict=True))
    assert found.num_edges == len(edges)
    return [every[edges[at]] for at in range(len(edges))]


def by_topk_known(root: Path, path: Path, settings: Settings) -> Edges:
    """A query (head, relation, ?) has one entity in its list, which stays there unless that edge is known."""
    every = list(itertools.product(ENTITIES, RELATIONS, ENTITIES))
    asked = [(head, relation, "nobody") for head, relation, _ in every]
    (root / "asked").write_text("".join("\t".join(edge) + "\n" for edge in asked), encoding="utf-8")
    write_ranking(root / "ranking.txt", [(edge, [tail]) for edge, (*_, tail) in zip(asked, every, strict=True)])
    read, plain = names_by(settings), names_by({})
    found = read_topk(
        root / "ranking.txt",
        root / "asked",
        [path],
        names_of=lambda file: read(file) if file == path else plain(file),
        filtering="known",
    )
    tails = found.hidden_Q == Side.RHS.value
    is_known = dict(zip(found.edge_Q[tails].tolist(), (found.list_length_Q[tails] == 0).tolist(), strict=True))
    return [edge for at, edge in enumerate(every) if is_known[at]]


def write_ranking(path: Path, tails: list[tuple[tuple[str, ...], list[str]]]) -> None:
    lists = (("\t".join(edge), "".join(f"{name}\t1\t" for name in names)) for edge, names in tails)
    path.write_text("".join(f"{edge}\nHeads: \nTails: {names}\n" for edge, names in lists), encoding="utf-8")


def names_by(settings: Settings) -> Callable[[Path], Iterator[Names]]:
    return lambda path: edge_names(path, forms(settings).of(path), warnings.warn)


def by_openbiolink(root: Path, path: Path, settings: Settings) -> Edges:
    """The files of a dataset have names of their own, tabs, and any further columns."""
    data = root / "dataset" / DATA
    data.mkdir(parents=True)
    for file in FILES.values():
        shutil.copy(path, data / file)
    for name, labels in (("entities", ENTITIES), ("relations", RELATIONS)):
        (root / name).write_text("".join(f"{at}\t{label}\n" for at, label in enumerate(labels)), encoding="utf-8")
    try:
        loader = DataLoader(
            root / "dataset", entity_to_id_path=root / "entities", relation_to_id_path=root / "relations"
        )
    except EvalError as error:
        raise StorageError(
            *(fault.replace(str(data / FILES["training"]), str(path)) for fault in error.faults)
        ) from None
    return [(ENTITIES[lhs], RELATIONS[rel], ENTITIES[rhs]) for lhs, rel, rhs in loader.testing.tolist()]


DOORS = {
    "import-graph": by_import_graph,
    "import-model": by_import_model,
    "edge_paths": by_config("edge_paths"),
    "filter_paths": by_config("filter_paths"),
    "train_paths": by_config("train_paths"),
    "verify": by_verify,
    "topk --test": by_topk,
    "topk --known": by_topk_known,
    "OpenBioLink": by_openbiolink,
}
WITH_A_MODEL = ["edge_paths", "filter_paths", "train_paths", "verify", "import-model"]  # which share a reader
WITH_NUMBERS = [door for door in DOORS if door not in ("import-graph", "topk --test", "topk --known", "OpenBioLink")]
SAMPLE = FILES["testing"]  # the only name that OpenBioLink's door has


def doors_of(name: str, settings: Settings, at: int) -> list[str]:
    """Doors that a file of this name may come through; of those with a model one, as they take turns."""
    columns = settings.get("edge_columns", "hrt")
    closed = {"OpenBioLink"} if name != SAMPLE else set()
    if "," not in columns and (columns.endswith("w") or "r" not in columns):
        closed |= {"topk --test", "topk --known"}  # which refuse weights, and have no dictionary of relations
    closed |= {*WITH_A_MODEL} - {WITH_A_MODEL[at % len(WITH_A_MODEL)]}
    return [door for door in DOORS if door not in closed]


EDGES = [("a", "r", "b"), ('say "c"', "s", "d,e"), ("é", "r", "é")]
LINES = "".join("\t".join(edge) + "\n" for edge in EDGES)
NUMBERS = [("1", "r", "2"), ("2", "s", "1")]


def table(names: Sequence[str], columns: Sequence[Sequence[object]], **types: pa.DataType) -> Callable[[Path], None]:
    arrays = {name: pa.array(list(values), types.get(name)) for name, values in zip(names, columns, strict=True)}
    return lambda path: pq.write_table(pa.table(arrays), path)


def zstd(path: Path) -> None:
    duckdb.sql("SELECT 'a' AS h, 'r' AS r, 'b' AS t").write_csv(str(path), sep="\t", header=False, compression="zstd")


COLUMNS = list(zip(*EDGES, strict=True))
OF_NUMBERS = ([1.0, 2.0], ["r", "s"], [2.0, 1.0])
PARQUET = ("lhs", "rel", "rhs"), ("head", "relation", "tail"), ("Subject", "Predicate", "Object"), ("h", "r", "t")
GOOD: list[tuple[str, bytes | str | Callable[[Path], None], Settings, Edges]] = [
    ("test.tsv", LINES, {}, EDGES),
    ("test.txt", LINES.replace("\n", "\r\n"), {}, EDGES),
    ("test", LINES, {}, EDGES),
    ("test.tsv", "\ufeff" + LINES.replace("\n", "\n\n"), {}, EDGES),
    ("test.tsv.gz", gzip.compress(LINES.encode()), {}, EDGES),
    ("test.tsv.zst", zstd, {}, [("a", "r", "b")]),
    ("test.csv", 'a,r,b\n"say ""c""",s,"d,e"\né,r,é\n', {}, EDGES),
    (
        "test.csv",
        ",head,relation,tail\n0,a,r,b\n1,b,s,a\n",
        {"edge_columns": "head,relation,tail"},
        [
            ("a", "r", "b"),
            ("b", "s", "a"),
        ],
    ),
    ("test.tsv", "b\ta\tr\t0.5\n", {"edge_columns": "thrw"}, [("a", "r", "b", 0.5)]),
    ("test.tsv", "9\tr\ta\tb\n", {"edge_columns": "tsv=_rht"}, [("a", "r", "b")]),
    ("test.txt", "a r b\nb s a\n", {"edge_delimiter": "space"}, [("a", "r", "b"), ("b", "s", "a")]),
    ("test.csv", 'a|r|"d,e"\n', {"edge_delimiter": "pipe"}, [("a", "r", "d,e")]),
    ("test.tsv", ' a \tr\te\u0301\n\x01\ts\t"b"\n', {}, [(" a ", "r", "e\u0301"), ("\x01", "s", '"b"')]),
    ("test.csv", ' a ,r,"""b"""\r\n\x01,s,say "c"', {}, [(" a ", "r", '"b"'), ("\x01", "s", 'say "c"')]),
    ("test.tsv", "a\tr\tb\r\nb\ts\ta\r", {}, [("a", "r", "b"), ("b", "s", "a")]),
    (
        SAMPLE,
        'a\tr\t"say ""c"""\t917\t1\t"A\tB"\né\ts\td,e\t0\t\t\n',
        {"edge_columns": "hrt___", "edge_delimiter": "tab"},
        [("a", "r", 'say "c"'), ("é", "s", "d,e")],
    ),
    (SAMPLE, gzip.compress(b"\xef\xbb\xbfa\tr\tb\r\n"), {"edge_delimiter": "tab"}, [("a", "r", "b")]),
    ("test.tsv", "# by us\n#\na\tr\t#x\n# the end\n", {"edge_comment": "#"}, [("a", "r", "#x")]),
    ("test.csv", '# a "quote\na,r,b\n', {"edge_comment": "#"}, [("a", "r", "b")]),
    *((f"{names[0]}.parquet", table(names, COLUMNS), {}, EDGES) for names in PARQUET),
    ("test.pq", table(("index", "s", "p", "o"), [[0, 1, 2], *COLUMNS]), {}, EDGES),
    ("doubles.parquet", table(("head", "relation", "tail"), OF_NUMBERS), {}, NUMBERS),
    ("test.parquet", table(("from", "via", "to"), COLUMNS), {"edge_columns": "parquet=from,via,to"}, EDGES),
]
HEAD = ("head", "relation", "tail")
BAD: list[tuple[str, bytes | str | Callable[[Path], None], Settings, str]] = [
    ("test.tsv", LINES + "a\tr\tb\t1\n", {}, ":4: expected 3 columns separated by tabs, found 4"),
    ("test.tsv", "a r b\n", {}, ":1: expected 3 columns separated by tabs, found 1; columns must be separated by tabs"),
    ("test.tsv", "a\tb\n", {}, "found 2; set edge_columns to the columns of the file (ht: no relation)"),
    ("test.tsv", "a\tb\n", {"edge_columns": "ht"}, "read without a column of relations (edge_columns), but"),
    ("test.tsv", "# x\na\tr\tb\n", {}, "set edge_comment '#' if lines that begin with # are comments"),
    ("test.tsv", "a\tr\tb\rb\tr\ta\n", {}, ":1: a carriage return (CR) within the line"),
    ("test.csv", "a,r,b\nb,r,a\ra,r,a\n", {}, ":2: a carriage return (CR) within the line"),
    ("test.tsv", "a\tr\tb\r\nb\tr\ta\n", {}, ": some lines end in CRLF and others in LF"),
    ("test.tsv", b"a\tr\tb\xe9\n", {}, ":1: expected UTF-8 text, found byte 0xe9"),
    ("test.tsv", "\n\n", {}, ": there are no edges in this file"),
    ("test.tsv", "#\n", {"edge_comment": "#"}, ": there are no edges in this file"),
    (
        "test.csv",
        'a,r,b\n"a\n\nb",r,b\n',
        {"edge_comment": "#"},
        "a quoted field goes on in the next line, which edge_comment does",
    ),
    ("test.tsv", "a\t\tb\n", {}, ":1: rel is empty"),
    ("test.tsv.gz", gzip.compress(b"a\tr\tb\na\tr\n")[:-4], {}, "Compressed file ended"),
    ("test.tsv.gz", LINES, {}, ": cannot read this text file: no gzip, although its name ends in .gz"),
    ("test.tsv", "a\tr\tb\na\tr\t \r\n", {}, ": some lines end in CRLF and others in LF; end all of them alike"),
    ("test.tsv", "a\t\tb\na\tr\n", {}, ":2: expected 3 columns separated by tabs, found 2"),
    (
        "test.tsv",
        LINES + "a\tr\t" + 2_000_000 * "é" + "\n",
        {},
        ":4: a line is longer than 2 MB; is this a file of edges?",
    ),
    ("test.tsv", LINES.encode("utf-16"), {}, ":1: expected UTF-8 text, found byte 0xff"),
    ("test.csv", 'a,r,b\na, "d,e",b\n', {}, ":2: wrong quotation marks (RFC 4180): spaces before a quoted field"),
    ("test.csv", 'a,r,b\na,"r" ,b\n', {}, ":2: wrong quotation marks (RFC 4180): ' ' behind a quoted field"),
    ("test.csv", 'a,r,"b\nb"\r\n', {}, ": some lines end in CRLF and others in LF; end all of them alike"),
    ("test.csv", 'a,r,"b\rb"\n', {}, ":1: a carriage return (CR) within the line"),
    (SAMPLE, "a\tr\tb\t1\na\tr\tb\n", {"edge_columns": "hrt_", "edge_delimiter": "tab"}, ":2: expected 4 columns"),
    (
        SAMPLE,
        'a\tr\tb\na\t"r\tb\n',
        {"edge_delimiter": "tab"},
        ":2: wrong quotation marks (RFC 4180): the quotation mark",
    ),
    (SAMPLE, b"a\tr\t\xff\n", {"edge_delimiter": "tab"}, ":1: expected UTF-8 text, found byte 0xff"),
    (
        "test.csv",
        'a,r,b\n"a,r,b\n',
        {},
        ":2: wrong quotation marks (RFC 4180): the quotation mark before a field has none",
    ),
    ("test.csv", ",head,relation,tail\n0,a,r,b\n", {}, "if this is a header, set edge_columns head,relation,tail"),
    ("test.csv", "x,x,y\na,r,b\n", {"edge_columns": "x,y,z"}, ":1: the header has a column twice: x, x, y"),
    ("test.csv", "x,y\na,r\n", {"edge_columns": "x,y,z"}, ":1: expected a header with columns x, y, z, found x, y"),
    ("test.tsv", "a\tr\tb\theavy\n", {"edge_columns": "hrtw"}, ":1: the weight is not a finite number"),
    ("test.parquet", "a\tr\tb\n", {}, ": not a Parquet file, or not complete"),
    (
        "test.parquet",
        table(("a", "b", "c"), COLUMNS),
        {},
        ": expected columns lhs, rel, rhs or head, relation, tail or",
    ),
    (
        "test.parquet",
        table((*HEAD, "source", "target"), [*COLUMNS, COLUMNS[0], COLUMNS[2]]),
        {},
        ": columns head, tail, source, target may all be meant; name them with edge_columns",
    ),
    (
        "test.parquet",
        table(HEAD, [[1.0, 1.5], ["r", "s"], [2.0, 1.0]]),
        {},
        ": row 1: column head is 1.5, but names must be text or integers",
    ),
    ("test.parquet", table(HEAD, [[1.0], ["r"], [2.0**53]]), {}, ": row 0: column tail is 9007199254740992.0, but"),
    ("test.parquet", table(HEAD, [[float("nan")], ["r"], [1.0]]), {}, ": row 0: column head is nan, but names"),
    ("test.parquet", table(HEAD, [[["a"]], ["r"], ["b"]]), {}, ": column head holds VARCHAR[]; names must be text"),
    ("test.parquet", table(HEAD, [["a", None], ["r", "r"], ["b", "b"]]), {}, ": row 1: lhs is empty"),
    ("test.json", "[]", {}, ": unknown extension '.json'; edges are read from .tsv, .txt, .del, .csv"),
    ("test.h5", "a\tr\tb\n", {}, ": unknown extension '.h5'; write edges of one HDF5 file as .parquet"),
]


def write(path: Path, content: bytes | str | Callable[[Path], None]) -> None:
    if callable(content):
        content(path)
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def found_by(door: str, root: Path, name: str, content: object, settings: Settings) -> Edges | str:
    """The edges, or the fault from the file's name on, with the words of a config for the options of commands."""
    root.mkdir()
    world(root)
    write(root / name, content)  # type: ignore[arg-type]
    try:
        return DOORS[door](root, root / name, settings)
    except EvalError as error:
        (fault,) = {one.rpartition(str(root / name))[2] for one in error.faults}  # said once per key of a config
    if name == SAMPLE:  # which has no settings to advise
        fault = fault.partition("; set edge_columns")[0].partition("; set --edge-columns")[0]
    for option, key in (("--edge-columns", "edge_columns"), ("--delimiter", "edge_delimiter")):
        fault = fault.replace(option, key)
    return (
        fault.replace("--comment", "edge_comment").replace(f"{root}/names", str(root)).replace(str(root), "DICTIONARY")
    )


@pytest.mark.parametrize("at", range(len(GOOD)), ids=[f"{at}-{of[0]}" for at, of in enumerate(GOOD)])
def test_every_door_reads_the_same_edges(at: int, tmp_path: Path) -> None:
    name, content, settings, expected = GOOD[at]
    doors = doors_of(name, settings, at)
    found = {door: found_by(door, tmp_path / door, name, content, settings) for door in doors}

    as_a_set = found.pop("topk --known", None)
    assert found == dict.fromkeys(found, expected)
    assert as_a_set is None or sorted(as_a_set) == sorted(set(expected))


@pytest.mark.parametrize("at", range(len(BAD)), ids=[f"{at}-{of[0]}" for at, of in enumerate(BAD)])
def test_every_door_says_the_same_fault(at: int, tmp_path: Path) -> None:
    name, content, settings, fault = BAD[at]
    doors = doors_of(name, settings, at)
    found = {door: found_by(door, tmp_path / door, name, content, settings) for door in doors}

    assert fault in str(found["import-graph"])
    assert found == dict.fromkeys(doors, found["import-graph"])


def test_del_files_have_rows_of_a_model_with_labels_and_names_elsewhere(tmp_path: Path) -> None:
    """As LibKGE writes them."""
    found = {door: found_by(door, tmp_path / door, "test.del", "1\t1\t4\n5\t0\t0\n", {}) for door in WITH_NUMBERS}

    assert list(found.values()) == [[("b", "s", "1"), ("2", "r", "a")]] * len(found)


@pytest.mark.parametrize("settings", [{}, {"edge_columns": "head,relation,tail"}], ids=["as it is", "with its header"])
def test_numeric_triples_of_pykeen_are_one_line_where_names_are_expected(settings: Settings, tmp_path: Path) -> None:
    """The file lies beside the labels in PyKEEN's folder `training_triples`."""
    content = gzip.compress(b"head\trelation\ttail\n1\t1\t4\n5\t0\t0\n")
    found = {
        door: found_by(door, tmp_path / door, "numeric_triples.tsv.gz", content, settings) for door in WITH_NUMBERS
    }

    assert [str(fault).partition(" has numbers")[2] for fault in found.values()] == [
        ", but the model DICTIONARY has labels (relation '0' is none of them); use its labels, or give the numbers as "
        "an array (.npy) of shape (edges, 3)"
    ] * len(found)
