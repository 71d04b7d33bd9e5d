"""What an import writes is what the page of plain Python says, on any graph, layout and form of file."""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pbgeval.importing import engine
from pbgeval.importing.dictionaries import Partitioning, RelationTypes
from pbgeval.importing.graph import GraphFiles, import_graph
from pbgeval.progress import Observer
from pbgeval.storage.edge_columns import ColumnForm, EdgeForms
from tests import import_reference
from tests.examples import examples
from tests.kit.names import buckets_in, names_in, relations_in, unknown_in

# Names that a reader may take for something else; few, so that edges repeat and degrees tie.
NAMES = ["a", "A", "é", "日本", '"', "'", "\\N", "NULL", "-1", "007", "7", "a b", "*", "#x", "a,b", "\U0001f600", "all"]
RELATIONS = {"likes": ("user", "item"), "knows": ("user", "user"), "of": ("item", "kind")}
MEMORY_BYTES = 2 * 10**8
ONE_TYPE = ("all", "all")


def tsv(path: Path, edges: list[tuple]) -> Path:
    path.write_text("".join("\t".join(map(str, edge)) + "\n" for edge in edges), encoding="utf-8")
    return path


@st.composite
def graphs(draw: st.DrawFn) -> dict:
    typed = draw(st.booleans())
    names, relations = st.sampled_from(NAMES), st.sampled_from(sorted(RELATIONS))
    columns = [names, relations, names]
    has_weight = draw(st.booleans())
    if has_weight:
        columns.append(st.floats(allow_nan=False, allow_infinity=False))
    edges = st.lists(st.tuples(*columns), min_size=1, max_size=25)
    train = draw(edges)
    return {
        "train": train,
        "test": [*draw(edges), train[0]],  # without an edge that is known, an import is refused
        "typed": typed,
        "order": "hrtw" if has_weight else "hrt",
        "num_partitions": draw(st.integers(1, 4)),
        "degree": draw(st.booleans()),
        "seed": draw(st.integers(0, 2)),
        "both": draw(st.booleans()),
        "groups_share": draw(st.sampled_from([engine.GROUPS_SHARE, 1e-6])),  # the latter: of one name and a few
    }


@pytest.mark.slow
@settings(max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graph=graphs())
def test_an_import_writes_what_plain_python_says(graph: dict) -> None:
    types = RELATIONS if graph["typed"] else dict.fromkeys(RELATIONS, ONE_TYPE)
    known = graph["train"] + (graph["test"] if graph["both"] else [])
    used = {relation for _, relation, *_ in known}
    if graph["typed"]:
        # A type must have entities, and a partition each at least.
        known_types = {name for relation in used for name in types[relation]}
        types = {name: pair for name, pair in types.items() if set(pair) <= known_types}
    entities = {name for pair in types.values() for name in pair}
    sizes = {
        name: {
            edge[at] for edge in known for at, side in ((0, 0), (2, 1)) if types.get(edge[1], ("", ""))[side] == name
        }
        for name in entities
    }
    limit = min(map(len, sizes.values()))
    counts = dict.fromkeys(sorted(entities), min(graph["num_partitions"], limit))
    relations = list(types) if graph["typed"] else sorted(used)
    names = import_reference.dictionaries(known, types, counts, graph["degree"], graph["seed"])
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        files = GraphFiles(
            {"train": [tsv(root / "train.tsv", graph["train"])], "test": [tsv(root / "test.tsv", graph["test"])]},
            EdgeForms(ColumnForm(graph["order"])),
            RelationTypes(tuple((name, *pair) for name, pair in types.items()), None) if graph["typed"] else None,
            Partitioning(min(graph["num_partitions"], limit), (), graph["degree"], graph["seed"]),
            dictionary_of=() if graph["both"] else ("train",),
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine, "GROUPS_SHARE", graph["groups_share"])
            import_graph(files, root / "graph", MEMORY_BYTES, Observer())

        assert names == names_in(root / "graph" / "entity", counts)
        assert relations == relations_in(root / "graph" / "entity")
        for name in ("train", "test"):
            expected, unknown = import_reference.buckets(graph[name], types, names, relations)
            assert buckets_in(root / "graph" / name) == expected
            assert unknown == unknown_in(root / "graph" / name / "unknown.tsv")


EDGES = [("a", "r", "b", 0.5), ("é,", "r", '"q"', -2.0), ("b", "s", "a", 1e-300), ("a", "r", "b", 3.0)]


def written(form: str, root: Path) -> tuple[Path, ColumnForm]:
    """Write `EDGES` in a form of files."""
    plain = tsv(root / "edges.tsv", EDGES)
    named = ColumnForm(names=("from", "via it", "to", "how much"))
    con = duckdb.connect()
    con.execute('CREATE TABLE e (x INTEGER, "from" VARCHAR, "via it" VARCHAR, "to" VARCHAR, "how much" DOUBLE)')
    con.executemany("INSERT INTO e VALUES (9, ?, ?, ?, ?)", EDGES)
    targets = {"csv": "(header)", "csv.gz": "(header)", "csv.zst": "(header)", "parquet": "(format parquet)"}
    if form in targets:
        path = root / f"edges.{form}"
        con.execute(f"COPY e TO '{path}' {targets[form]}")
        return path, named
    if form == "tsv.gz":
        path = root / "packed"  # known by its first bytes, not its name
        path.write_bytes(gzip.compress(plain.read_bytes()))
        return path, ColumnForm("hrtw")
    if form == "crlf, byte order mark, blank lines":
        plain.write_bytes(b"\xef\xbb\xbf" + plain.read_text(encoding="utf-8").replace("\n", "\r\n\r\n").encode())
        return plain, ColumnForm("hrtw")
    if form == "other order":
        return tsv(root / "[a]*=?.tsv", [(w, t, "-", h, r) for h, r, t, w in EDGES]), ColumnForm("wt_hr")
    return plain, ColumnForm("hrtw")


FORMS = ["tsv", "tsv.gz", "csv", "csv.gz", "csv.zst", "parquet", "crlf, byte order mark, blank lines", "other order"]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_file_gives_the_same_graph(form: str, tmp_path: Path) -> None:
    path, columns = written(form, tmp_path)
    types = dict.fromkeys("rs", ONE_TYPE)
    names = import_reference.dictionaries(EDGES, types, {"all": 2}, False, 5)

    import_graph(
        GraphFiles({"train": [path]}, EdgeForms(columns), None, Partitioning(2, seed=5)),
        tmp_path / "graph",
        MEMORY_BYTES,
        Observer(),
    )

    assert names == names_in(tmp_path / "graph" / "entity", {"all": 2})
    expected, _ = import_reference.buckets(EDGES, types, names, ["r", "s"])
    assert buckets_in(tmp_path / "graph" / "train") == expected


def test_integers_of_parquet_are_names(tmp_path: Path) -> None:
    path = tmp_path / "edges.parquet"
    duckdb.sql("SELECT * FROM (VALUES (5::BIGINT, 0::UTINYINT, -7), (12, 0, 5)) t(lhs, rel, rhs)").write_parquet(
        str(path)
    )

    import_graph(GraphFiles({"all": [path]}), tmp_path / "graph", MEMORY_BYTES, Observer())

    assert set(names_in(tmp_path / "graph" / "entity", {"all": 1})["all"][0]) == {"5", "-7", "12"}
    assert relations_in(tmp_path / "graph" / "entity") == ["0"]


@pytest.mark.slow
def test_rows_of_many_blocks_and_files_keep_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pbgeval.importing import engine

    # More rows than the engine keeps in a group, and than are fetched at a time.
    monkeypatch.setattr(engine.Engine.blocks, "__defaults__", (1000,))
    edges = [(str(row * 7919 % 997), f"r{row % 3}", str(row * row % 1009)) for row in range(260_000)]
    halves = [tsv(tmp_path / "1.tsv", edges[:130_001]), tsv(tmp_path / "2.tsv", edges[130_001:])]
    types = {f"r{index}": ONE_TYPE for index in range(3)}
    names = import_reference.dictionaries(edges, types, {"all": 3}, True, 0)

    files = GraphFiles({"train": halves}, partitioning=Partitioning(3, by_degree=True))
    import_graph(files, tmp_path / "graph", MEMORY_BYTES, Observer())

    expected, _ = import_reference.buckets(edges, types, names, list(types))
    assert buckets_in(tmp_path / "graph" / "train") == expected
