"""Tables of any file, PyG's, GraphStorm's and GiGL's models have the ranks of a slow float64 reference."""

from __future__ import annotations

import itertools
import json
import random
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow
import pytest
import torch
import torch.distributed.checkpoint as dcp
from attrs import evolve
from pyarrow import parquet
from safetensors.torch import save_file

from pbgeval import EntitySchema, EvalConfig, evaluate
from pbgeval.config.loading import check_config
from pbgeval.errors import ConfigError, DataError, StorageError
from pbgeval.importing.model import EdgeFiles, import_model
from pbgeval.models.opening import open_model
from pbgeval.notation import ENDS
from tests.contracts.scorer_contract import assert_ranks, assert_ranks_of_side, evaluated, some_edges
from tests.examples import crossed
from tests.kit.refusals import fault_of
from tests.laws.test_order_does_not_matter import result_of
from tests.systems_reference import (
    GIGL,
    GRAPHSTORM,
    PYG,
    GiglModel,
    GraphStormFolder,
    PygState,
    raw_id,
    safetensors_writer,
    save_checkpoint,
    values,
)

Edge = tuple[int, int, int]
ROUNDED = ("transe_l2", "rotate", "cosine")  # a root or a cosine: scores are not exact
KEYS = ("metrics", "raw_metrics", "macro_metrics", "relation_macro_metrics")


def some_typed_edges(model: GraphStormFolder | GiglModel, number: int, seed: int) -> list[Edge]:
    """Edges whose ends are of the types of their relation; some share their keys."""
    source = random.Random(seed)
    sizes = [[len(model.tables[name]) for name in (of[0], of[2])] for of in model.edge_types]
    rels = [source.randrange(len(sizes)) for _ in range(number)]
    keys = [(source.randrange(sizes[rel][0]), rel) for rel in rels]
    return [(lhs, rel, source.randrange(sizes[rel][1])) for lhs, rel in [*keys, *keys[:5]]]


def assert_plain_ranks(
    path: Path, options: Mapping[str, Any], score: Callable[..., float], output: Path, error: float
) -> None:
    edges, known = some_edges(37, 3, 15, seed=1), some_edges(37, 3, 80, seed=2)

    evaluated(path, options, edges, known, output)

    assert_ranks(output, edges, score, 37, known, error)


def write_tables(folder: Path, form: str, tables: Mapping[str, np.ndarray | torch.Tensor]) -> dict[str, str]:
    """Write tables in one of the forms; return the address of each."""
    if form == "npy":
        for name, table in tables.items():
            np.save(folder / f"{name}.npy", table)
        return {name: f"{name}.npy" for name in tables}
    tensors = {name: torch.as_tensor(table) for name, table in tables.items()}
    if form == "pt":
        torch.save({"state_dict": tensors}, folder / "all.pt")
        return {name: f"all.pt#{name}" for name in tables}
    if form == "safetensors":
        save_file(tensors, folder / "all.safetensors")
        return {name: f"all.safetensors#{name}" for name in tables}
    for name, table in tables.items():
        (folder / f"{name}.parts").mkdir()
        for index, rows in enumerate(np.array_split(np.asarray(table), 2)):
            columns = {f"d{column}": rows[:, column] for column in range(table.shape[1])}
            if form == "parquet lists":
                columns = {"id": np.arange(len(rows)), "vector": pyarrow.array(list(rows))}
            path = folder / f"{name}.parts" / f"{index}.parquet"
            parquet.write_table(pyarrow.table(columns), path, row_group_size=5)
    return {name: f"{name}.parts" for name in tables}


def assert_typed_ranks(
    path: Path,
    options: Mapping[str, Any],
    model: GraphStormFolder | GiglModel,
    output: Path,
    error: float = 0.0,
    names: Callable[[Edge], list[str]] | None = None,
    **settings: Any,
) -> None:
    """Evaluate edges, by name where they have names; compare every rank among the entities of the hidden type."""
    edges, known = some_typed_edges(model, 15, seed=1), some_typed_edges(model, 90, seed=2)
    if names is None:
        evaluated(path, options, edges, known, output, **settings)
    else:
        evaluate(config_of_names(output.parent, path, options, edges, known, names), output=output, workers=1)
    for side in ENDS:
        sizes = [len(model.tables[side.pick(left, right)]) for left, _, right in model.edge_types]
        assert_ranks_of_side(output, side, edges, model.score, sizes.__getitem__, known, error)


def assert_holds(rows: Any, table: np.ndarray) -> None:
    """Compare all rows, some, and some of a part of a part."""
    assert np.array_equal(rows.load().numpy(), table)
    assert np.array_equal(rows.read_rows(5, 19).numpy(), table[5:19])
    assert np.array_equal(rows.part(3, 22).part(1, 18).read_rows(2, 11).numpy(), table[6:15])


@pytest.mark.parametrize("form", ["npy", "pt", "safetensors", "parquet lists", "parquet columns"])
def test_tables_of_any_file_have_the_ranks_of_their_formula(form: str, tmp_path: Path) -> None:
    entity, relation = values((37, 6), 1, exact=True), values((3, 6), 2, exact=True)
    options = {"model": "distmult"} | write_tables(tmp_path, form, {"entities": entity, "relations": relation})

    def score(lhs: int, rel: int, rhs: int) -> float:
        return float((entity[lhs].astype(np.float64) * relation[rel] * entity[rhs]).sum())

    assert_plain_ranks(tmp_path, options, score, tmp_path / "out", 0.0)
    rows = open_model(tmp_path, options).entities
    assert_holds(rows, entity)
    assert rows.part(0, 30).fingerprint() != rows.fingerprint()


def test_a_folder_of_parquet_has_the_order_of_its_numbers(tmp_path: Path) -> None:
    """Temporary files of a writer are no rows; the folder's name is not cut at a #."""
    table, folder = values((37, 6), 1, exact=False), tmp_path / "nodes #1"
    folder.mkdir()
    parts = {f"part-{index}": rows for index, rows in enumerate(np.array_split(table, 12))}
    for name, rows in (parts | {"_temporary": table, ".part-0": table}).items():
        parquet.write_table(pyarrow.table({"vector": pyarrow.array(list(rows))}), folder / f"{name}.parquet")

    found = open_model(tmp_path, {"model": "dot", "entities": "nodes #1"})

    assert np.array_equal(found.entities.load().numpy(), table)


@pytest.mark.parametrize(
    ("form", "numbers", "message"),
    [
        ("part-{}-of-4", [0, 1, 3], "expected 4 files by the numbers in names such as part-0-of-4.parquet, found 3"),
        ("train-{0}-of-3-{0}{0}ab", [1, 2], "expected 3 files by the numbers in names such as train-1-of-3-11ab"),
        ("part-{}", [1, 2, 10], "expected 10 files by the numbers in names such as part-1.parquet, found 3"),
        ("b/part-{}", [0], "expected all Parquet files in this folder itself, found also b/part-0.parquet; move"),
        ("part-{}-of-2", [0, 1], None),
        ("part-{}-of-3", [1, 2, 3], None),
        ("part-{}-0f8b64e2-71c5-4b1e-9d2a-3c5d7e9f1a2b-c000", [0, 1, 3], None),  # of Spark
        ("year-{}", [2001, 2005], None),
        ("_old/part-{}", [0], None),
    ],
)
def test_a_folder_of_parquet_that_lacks_a_part_is_refused(
    tmp_path: Path, form: str, numbers: list[int], message: str | None
) -> None:
    """The rows after the gap would be those of other entities."""
    files = [form.format(number) for number in numbers] + ["whole"] * ("/" in form)
    for name in files:
        path = tmp_path / "nodes" / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pyarrow.table({"vector": [[1.0, 2.0]]}), path)
    options = {"model": "dot", "entities": "nodes"}

    if message is None:
        assert open_model(tmp_path, options).entities.num_rows == len([name for name in files if "/" not in name])
    else:
        assert fault_of(lambda: open_model(tmp_path, options)).startswith(f"{tmp_path}/nodes: {message}")


@pytest.mark.parametrize("form", ["columns", "lists", "views"])
def test_a_vector_of_one_number_is_a_vector(tmp_path: Path, form: str) -> None:
    lists = pyarrow.list_view(pyarrow.float32()) if form == "views" else pyarrow.list_(pyarrow.float32())
    column = pyarrow.array([1.0, 2.0]) if form == "columns" else pyarrow.array([[1.0], [2.0]], lists)
    parquet.write_table(pyarrow.table({"x": column}), tmp_path / "n.parquet")

    assert open_model(tmp_path, {"model": "dot", "entities": "n.parquet"}).entities.load().tolist() == [[1.0], [2.0]]


SETTINGS_OF_PARQUET: list[dict[str, Any]] = [
    {"data_page_version": version, "data_page_size": size, "use_dictionary": has_dictionary, **more}
    for version, size, has_dictionary, more in (
        ("1.0", 64, True, {"compression": "snappy", "write_page_checksum": True}),
        ("1.0", 64, False, {"compression": "none", "write_statistics": False}),
        ("2.0", 64, True, {"compression": "zstd", "write_page_index": True}),
        ("2.0", 1 << 20, False, {"column_encoding": {"a.b.c.list.element": "BYTE_STREAM_SPLIT"}}),
        ("1.0", 64, True, {"dictionary_pagesize_limit": 100}),
        ("1.0", 64, True, {"use_compliant_nested_type": False}),
    )
]


KINDS_OF_LISTS = ["list", "large list", "list of one size", "list of halves"]
OF_FLOATS = {"by", "column_encoding"}  # settings that are not for halves


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        pytest.param(kind, settings, id=f"{kind}-{settings}")
        for kind in KINDS_OF_LISTS
        for settings in [*SETTINGS_OF_PARQUET, {"by": "duckdb"}]
        if kind != "list of halves" or not settings.keys() & OF_FLOATS
    ],
)
def test_lists_of_parquet_are_read_however_they_were_written(
    kind: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    """Pages of either version, checked and not, with dictionaries that overflow, beside other columns."""
    table = values((120, 6), 1, exact=True)
    types = {
        "list": pyarrow.list_(pyarrow.float32()),
        "large list": pyarrow.large_list(pyarrow.float64()),
        "list of one size": pyarrow.list_(pyarrow.float32(), 6),
        "list of halves": pyarrow.list_(pyarrow.float16()),
    }
    vectors = pyarrow.array(list(table.astype(np.float16) if kind == "list of halves" else table), types[kind])
    written = pyarrow.table({"a.b": [f"n{row}" for row in range(120)], "a.b.c": vectors, "a.b.d": np.arange(120.0)})
    if "by" in settings:
        duckdb.sql(f"COPY (SELECT * FROM written) TO '{tmp_path / 'n.parquet'}' (ROW_GROUP_SIZE 2048)")
    else:
        parquet.write_table(written, tmp_path / "n.parquet", row_group_size=50, **settings)

    found = open_model(tmp_path, {"model": "dot", "entities": "n.parquet#a.b.c"}).entities

    assert np.array_equal(found.load().numpy(), table)


def test_a_parquet_file_that_is_written_again_is_read_again(tmp_path: Path) -> None:
    for seed in (1, 2):
        table = values((37, 6), seed, exact=False)
        parquet.write_table(pyarrow.table({"vector": pyarrow.array(list(table))}), tmp_path / "new")
        (tmp_path / "new").replace(tmp_path / "nodes.parquet")

        found = open_model(tmp_path, {"model": "dot", "entities": "nodes.parquet"})

        assert np.array_equal(found.entities.load().numpy(), table)


FORMULAS_OF_PYG = [("transe", 1), ("transe", 2), *((name, 1) for name in list(PYG)[1:])]


@pytest.mark.parametrize(
    ("name", "norm", "suffix", "exact"),
    crossed(FORMULAS_OF_PYG, [".pt", ".safetensors"], [True, False], quick=2, thorough=2),
)
def test_a_state_dict_of_pyg_has_the_ranks_of_its_definition(
    name: str, norm: int, suffix: str, exact: bool, tmp_path: Path
) -> None:
    model = PygState(tmp_path / f"model{suffix}", name, norm=norm, exact=exact)
    is_exact = exact and name in ("distmult", "complex")

    assert_plain_ranks(model.path, model.options, model.score, tmp_path / "out", 0.0 if is_exact else 1e-4)


@pytest.mark.parametrize(
    ("decoder", "remapped", "exact"), crossed(GRAPHSTORM, [False, True], [True, False], quick=2, thorough=2)
)
def test_a_folder_of_graphstorm_has_the_ranks_of_its_decoder(
    decoder: str, remapped: bool, exact: bool, tmp_path: Path
) -> None:
    """Edges have the numbers of nodes, or raw ids, whatever the order in which nodes were saved."""
    model = GraphStormFolder(tmp_path / "emb", decoder, parts=3, remapped=remapped, exact=exact)
    error, names = 0.0 if exact and decoder not in ROUNDED else 1e-4, names_of(model, is_raw=True)

    assert_typed_ranks(model.folder, model.options, model, tmp_path / "out", error, names if remapped else None)


OPERATORS_OF_SIDES = [
    *((name, "identity") for name in GIGL),
    *(("identity", name) for name in GIGL[1:]),
    *(("translation", "diagonal"), ("complex_diagonal", "linear")),
    *(("translation", "translation"), ("diagonal", "complex_diagonal")),
]


@pytest.mark.parametrize(
    ("source", "destination", "similarity"),
    crossed(OPERATORS_OF_SIDES, ["dot", "cosine", "euclidean"], quick=3, thorough=3),
)
def test_a_checkpoint_of_gigl_has_the_ranks_of_its_operators(
    source: str, destination: str, similarity: str, tmp_path: Path
) -> None:
    model = GiglModel(source, destination, similarity)
    plan = random.Random(source + destination).choice(["rows", "columns", "grid"])
    save_checkpoint(tmp_path / "model", model.state, plan)

    error = 1e-4 if similarity == "cosine" else 0.0
    assert_typed_ranks(tmp_path / "model", model.options, model, tmp_path / "out", error)


def test_names_of_a_state_dict_are_mapped_by_the_description(tmp_path: Path) -> None:
    """A diagonal operator with the dot product is DistMult; the end of a name that occurs once will do."""
    model = GiglModel("identity", "diagonal", "dot")
    state = {f"net.{name}_table.weight": torch.from_numpy(table) for name, table in model.tables.items()}
    state["net.relation.weight"] = torch.from_numpy(model.parameters["dst"])
    save_checkpoint(tmp_path / "model", state)
    options = {
        "model": "distmult",
        "entities": {"item": "net.item_table.weight", "user": "user_table.weight"},
        "relations": "relation.weight",
        "relation_types": model.options["relation_types"],
    }

    assert_typed_ranks(tmp_path / "model", options, model, tmp_path / "out")


@pytest.mark.parametrize(("precision", "error"), [("float64", 1e-6), ("exact", 1e-4)])
def test_operators_on_both_sides_work_in_other_precisions(precision: str, error: float, tmp_path: Path) -> None:
    model = GiglModel("translation", "complex_diagonal", "dot", exact=False)
    save_checkpoint(tmp_path / "model", model.state)

    assert_typed_ranks(tmp_path / "model", model.options, model, tmp_path / "out", error, precision=precision)


@pytest.mark.parametrize("safetensors", [False, True])
@pytest.mark.parametrize("plan", ["rows", "columns", "grid", "table"])
def test_shards_of_a_checkpoint_are_put_together_without_reading_them(
    plan: str, safetensors: bool, tmp_path: Path
) -> None:
    model, folder = GiglModel("identity", "linear", "dot"), tmp_path / "checkpoint"
    save_checkpoint(folder, model.state, plan, parts=3, safetensors=safetensors)
    number = {"num_files": {"rows": 3, "columns": 3, "grid": 9, "table": 1}[plan]} if safetensors else {}

    found = open_model(folder, model.options | number)

    assert np.array_equal(found.parameter_tables["destination"].load().numpy(), model.parameters["dst"])
    for name, table in model.tables.items():
        assert_holds(found.tables[name], table)


@pytest.mark.parametrize("consolidated", [False, True])
def test_an_index_of_safetensors_names_the_file_of_each_tensor(consolidated: bool, tmp_path: Path) -> None:
    """As one process writes it, or as shards of several are put together; a stray file beside them is not read."""
    model = GiglModel("diagonal", "identity", "dot")
    files = {name: 1 + index % 2 for index, name in enumerate(model.state)}
    writer = safetensors_writer()(
        str(tmp_path / "model"), files, save_distributed=consolidated, enable_consolidation=consolidated
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of there being one process
        dcp.save(model.state, storage_writer=writer)
    (tmp_path / "model" / "other.safetensors").write_bytes(b"")

    found = open_model(tmp_path / "model", model.options)

    for name, table in model.tables.items():
        assert np.array_equal(found.tables[name].load().numpy(), table)
    assert np.array_equal(found.parameter_tables["source"].load().numpy(), model.parameters["src"])


FLOATS = {
    "pt": ("float16", "bfloat16", "float64"),
    "npy": ("float16", "float64"),
    "parquet lists": ("float16", "float64"),
}


@pytest.mark.parametrize(
    ("form", "dtype"),
    [
        *((form, dtype) for form, dtypes in FLOATS.items() for dtype in dtypes),
        *((form, dtype) for form in ("safetensors", "checkpoint", "shards", "graphstorm") for dtype in FLOATS["pt"]),
    ],
)
def test_numbers_of_any_size_are_read_as_the_float32_that_they_are(form: str, dtype: str, tmp_path: Path) -> None:
    """Of 16 bits all that there are: the smallest and largest, both zeros, infinities and NaN."""
    table = torch.from_numpy(values((256, 256), 3, exact=False)).double() / 3
    if dtype != "float64":
        table = torch.arange(1 << 16).to(torch.uint16).view(256, 256).view(getattr(torch, dtype))

    rows = saved_as(form, table, tmp_path)

    for start, found in ((0, rows.load()), (3, rows.part(2, 250).read_rows(1, 99))):
        wanted = table.float()[start : start + len(found)]
        assert np.array_equal(found.numpy(), wanted.numpy(), equal_nan=True)
        assert torch.equal(found.signbit(), wanted.signbit())
    assert rows.dimension == 256


def saved_as(form: str, table: torch.Tensor, folder: Path) -> Any:
    """Write a table as it is, and open it."""
    options: dict[str, Any] = {"model": "dot_product" if form == "graphstorm" else "dot"}
    if form == "graphstorm":
        (folder / "n").mkdir()
        torch.save(table, folder / "n" / "embed-00000.pt")
        info = {"format": "pytorch", "emb_name": ["n"], "world_size": 1, "emb_dim": {"n": table.shape[1]}}
        (folder / "emb_info.json").write_text(json.dumps(info))
    elif form in ("checkpoint", "shards"):
        save_checkpoint(folder, {"embedding_bags.n.weight": table}, parts=3, safetensors=form == "shards")
        options |= {"num_files": 3} if form == "shards" else {}
    else:
        options["entities"] = write_tables(folder, form, {"n": table})["n"]
    return open_model(folder, options).entities


def names_of(model: GraphStormFolder | GiglModel, *, is_raw: bool = False) -> Callable[[Edge], list[str]]:
    """What the ends and the relation of an edge are called."""

    def names(edge: Edge) -> list[str]:
        left, _, right = of = model.edge_types[edge[1]]
        ends = [raw_id(kind, at) if is_raw else str(at) for kind, at in ((left, edge[0]), (right, edge[2]))]
        return [ends[0], ",".join(of), ends[1]]

    return names


def config_of_names(
    folder: Path,
    path: Path,
    options: Mapping[str, Any],
    edges: list[Edge],
    known: list[Edge],
    names: Callable[[Edge], list[str]],
    **settings: Any,
) -> EvalConfig:
    """Write edges by name; return the config that evaluates them."""
    for file, of in (("test", edges), ("train", known)):
        (folder / f"{file}.tsv").write_text("".join("\t".join(names(edge)) + "\n" for edge in of))
    return EvalConfig(
        model=str(path),
        model_options=dict(options),
        edge_paths=[str(folder / "test.tsv")],
        train_paths=[str(folder / "train.tsv")],
        candidates="all",
        save_ranks=True,
        **settings,
    )


SYSTEMS = ["tables", "pyg", "graphstorm", "graphstorm remapped", "graphstorm hdf5", "gigl", "gigl shards"]


@pytest.mark.one_case
@pytest.mark.parametrize(("system", "num_partitions"), crossed(list(zip(SYSTEMS, itertools.cycle([5, 2, 1]))), quick=4))
def test_partitions_and_workers_change_no_figure(system: str, num_partitions: int, tmp_path: Path) -> None:
    """Edges by name are split into buckets of any number of partitions; those of one are compared with numbers."""
    path, options, types, edges, known, names = made(system, tmp_path)
    entities = {one: EntitySchema(num_partitions=num_partitions) for one in types}
    config = config_of_names(tmp_path, path, options, edges, known, names, entities=entities)

    alone, several = (
        result_of(check_config(config), workers).document for workers in (1, 3 if num_partitions == 2 else 2)
    )

    assert alone == several
    plain = made(system.split()[0], tmp_path / "plain")  # another form moves no vector
    numbers = evaluated(plain[0], plain[1], edges, known, tmp_path / "numbers").document
    assert {key: alone[key] for key in KEYS} == {key: numbers[key] for key in KEYS}


def made(system: str, folder: Path) -> Any:
    """A model of a system: its path, options, entity types, edges and known edges, and what edges are called."""
    folder.mkdir(exist_ok=True)
    kind, _, form = system.partition(" ")
    plain = ["all"], some_edges(37, 3, 15, seed=1), some_edges(37, 3, 80, seed=2), lambda edge: list(map(str, edge))
    if kind == "tables":
        tables = {"entities": values((37, 6), 1, exact=True), "relations": values((3, 6), 2, exact=True)}
        return folder, {"model": "complex"} | write_tables(folder, "parquet lists", tables), *plain
    if kind == "pyg":
        pyg = PygState(folder / "model.pt", "rotate")
        return pyg.path, pyg.options, *plain
    model: GraphStormFolder | GiglModel
    if kind == "gigl":
        model = GiglModel("translation", "diagonal", "cosine")
        save_checkpoint(folder / "model", model.state, safetensors=bool(form))
    else:
        model = GraphStormFolder(folder / "model", "transe_l1", parts=3, **dict.fromkeys(form.split(), True))
    options = model.options | ({"num_files": 2} if form == "shards" else {})
    edges, known = some_typed_edges(model, 15, seed=1), some_typed_edges(model, 90, seed=2)
    return folder / "model", options, list(model.tables), edges, known, names_of(model, is_raw=form == "remapped")


def test_the_page_makes_edges_of_splits_and_masks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Masks stand beside the edges, in files of their own, row by row."""
    page = Path(__file__).parents[2] / "docs" / "guides" / "other_systems.md"
    [block] = [of for of in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL) if "test_mask" in of]
    monkeypatch.chdir(tmp_path)
    source = np.random.default_rng(1)
    follows, is_test = source.integers(0, 99, (5000, 2)), source.integers(0, 2, 5000)
    masks = {"train_mask": 1 - is_test, "val_mask": 0 * is_test, "test_mask": is_test}
    ids = {"src_int_id": follows[:, 0], "dst_int_id": follows[:, 1]}
    for folder, columns, cuts in (("edges", ids, [2000, 2100]), ("masks", masks, [700])):
        Path(folder, "user:follows:user").mkdir(parents=True)
        for index, rows in enumerate(np.split(np.arange(5000), cuts)):
            table = pyarrow.table({name: of[rows] for name, of in columns.items()})
            parquet.write_table(table, f"{folder}/user:follows:user/part-{index:05d}.parquet", row_group_size=512)
    parquet.write_table(pyarrow.table({"src_id": [3, 4], "dst_id": [5, 6]}), "rates_test.parquet")

    exec(block, {})

    found = parquet.read_table("test.parquet").to_pydict()
    expected = [("3", "user,rates,item", "5"), ("4", "user,rates,item", "6")]
    expected += [(str(lhs), "user,follows,user", str(rhs)) for lhs, rhs in follows[is_test == 1].tolist()]
    assert sorted(expected) == sorted(zip(map(str, found["lhs"]), found["rel"], map(str, found["rhs"]), strict=True))


@pytest.mark.parametrize("columns", [("orig", "new"), ("node_str_id", "node_int_id")])
def test_nodes_of_graphstorm_are_called_as_the_id_maps_say(columns: tuple[str, str], tmp_path: Path) -> None:
    model = GraphStormFolder(tmp_path / "emb", "distmult", parts=2)
    model.write_id_maps(tmp_path / "raw_id_mappings", *columns)

    found = open_model(model.folder, model.options | {"id_maps": "../raw_id_mappings"})

    order = np.random.default_rng(5).permutation(len(model.tables["user"])).tolist()
    assert list(found.entity_names("user") or ()) == [raw_id("user", nid) for nid in order]
    assert list(open_model(model.folder, model.options).entity_names("user") or ()) == list(map(str, order))
    assert found.relation_names() == ["user,rates,item", "item,like,item", "user,follows,user"]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"new": [0, 0]}, "/user: expected each node from 0 to 30 once, found 0"),
        ({"new": [0], "name": ["a"]}, "/part-0.parquet: expected a column orig or node_str_id, found new, name"),
        ({"orig": [b"a"], "new": [0]}, "/part-0.parquet: expected names or integers in column orig, found binary"),
        ({"orig": ["a"], "new": [1 << 62]}, "/user: expected each node from 0 to 30 once, found 4611686018427387904"),
        ({"orig": [["a"]], "new": [0]}, "/part-0.parquet: expected names or integers in column orig, found list<…"),
    ],
)
def test_id_maps_of_another_form_are_refused(change: dict[str, Any], line: str, tmp_path: Path) -> None:
    """One more file, before or after the sound one."""
    model = GraphStormFolder(tmp_path / "emb", "distmult", parts=2)
    model.write_id_maps(tmp_path / "maps")
    table = pyarrow.table({"orig": ["x"] * len(change["new"])} | change if set(change) == {"new"} else change)
    parquet.write_table(table, tmp_path / "maps" / "user" / "part-0.parquet")

    with pytest.raises(StorageError, match=".*".join(map(re.escape, line.split("…")))):
        list(open_model(model.folder, model.options | {"id_maps": "../maps"}).entity_names("user") or ())


def test_a_raw_id_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    model = GraphStormFolder(tmp_path / "emb", "distmult", remapped=True)
    for path in model.folder.glob("*/*.parquet"):
        table = parquet.read_table(path)
        parquet.write_table(pyarrow.table({"emb": table["emb"], "nid": [0, *range(len(table) - 1)]}), path)
    model.write_id_maps(tmp_path / "maps")
    config = config_of_names(
        tmp_path, model.folder, model.options, [(0, 0, 0)], [(0, 0, 0)], names_of(model, is_raw=True)
    )

    with pytest.raises(StorageError, match=r"emb/(user|item): expected each raw id \(nid\) once, found \d+ again; "):
        evaluated(model.folder, model.options | {"id_maps": "../maps"}, [(0, 0, 0)], [(0, 0, 0)], tmp_path / "out")
    with pytest.raises(StorageError, match=f"{re.escape(str(model.folder))}: these names of entities occur more than"):
        evaluate(config, output=tmp_path / "named", workers=1)


@pytest.mark.parametrize("remapped", [False, True])
def test_the_best_candidates_are_called_as_nodes_are(remapped: bool, tmp_path: Path) -> None:
    """Not by their rows in the files."""
    model = GraphStormFolder(tmp_path / "emb", "distmult", parts=3, remapped=remapped)
    names, edges = names_of(model, is_raw=remapped), some_typed_edges(model, 15, seed=1)
    config = config_of_names(tmp_path, model.folder, model.options, edges, edges, names)

    evaluate(evolve(config, save_topk=1), output=tmp_path / "out", workers=1)

    (table,) = (tmp_path / "out" / "topk").rglob("*.tsv")
    lines = table.read_text(encoding="utf-8").splitlines()[1:]
    assert lines
    for row, _, *edge in (line.split("\t")[:5] for line in lines):
        assert edge == names(edges[int(row)])


@pytest.mark.parametrize("as_numbers", [False, True])
def test_edges_in_arrays_have_the_numbers_of_nodes_that_id_maps_translate(as_numbers: bool, tmp_path: Path) -> None:
    """Also where raw ids are numbers: those are no numbers of nodes."""
    model = GraphStormFolder(tmp_path / "emb", "distmult", remapped=True)
    model.write_id_maps(tmp_path / "maps")
    for path in tmp_path.glob("*/*/*.parquet") if as_numbers else ():
        table = parquet.read_table(path)
        key = "nid" if "nid" in table.column_names else "orig"
        raw = [int(name.partition("-")[2]) for name in table[key].to_pylist()]
        parquet.write_table(pyarrow.table({of: table[of] for of in table.column_names} | {key: raw}), path)
    options = model.options | {"id_maps": "../maps"}

    assert_typed_ranks(model.folder, options, model, tmp_path / "out")
    with pytest.raises(StorageError, match=r"edge 0: the model has no node 31 of the type that relation 0 has there"):
        evaluated(model.folder, options, [(31, 0, 0)], [(0, 0, 0)], tmp_path / "wrong")


def test_id_maps_of_other_raw_ids_are_refused(tmp_path: Path) -> None:
    model = GraphStormFolder(tmp_path / "emb", "distmult", remapped=True)
    model.write_id_maps(tmp_path / "maps")
    path = tmp_path / "maps" / "user" / "part-00000.parquet"
    table = parquet.read_table(path).to_pydict()
    parquet.write_table(pyarrow.table(table | {"orig": ["x", *table["orig"][1:]]}), path)

    with pytest.raises(StorageError, match=r"maps/user: no node has the raw id u-0 of .*/emb/user; check id_maps"):
        evaluated(model.folder, model.options | {"id_maps": "../maps"}, [(1, 0, 1)], [(1, 0, 1)], tmp_path / "out")


@pytest.mark.parametrize("shuffled", [True, False])
def test_a_process_of_graphstorm_without_a_node_of_a_type_saves_no_rows(shuffled: bool, tmp_path: Path) -> None:
    """As the first, another or the last of the processes."""
    model = GraphStormFolder(tmp_path / "emb", "distmult", parts=2, shuffled=shuffled)
    kinds = {"embed": torch.empty(0, 6)} | ({"embed_nids": torch.empty(0, dtype=torch.int64)} if shuffled else {})
    for (name, filled), (kind, nothing) in itertools.product((("item", (1, 2)), ("user", (0, 1))), kinds.items()):
        files = [model.folder / name / f"{kind}-{index:05d}.pt" for index in range(4)]
        parts = dict(zip(filled, map(torch.load, files[:2]), strict=True))
        for index, path in enumerate(files):
            torch.save(parts.get(index, nothing), path)
    info = json.loads((model.folder / "emb_info.json").read_text()) | {"world_size": 4}
    (model.folder / "emb_info.json").write_text(json.dumps(info))

    assert_typed_ranks(model.folder, model.options, model, tmp_path / "out")


def test_a_model_of_types_is_not_converted(tmp_path: Path) -> None:
    model = GraphStormFolder(tmp_path / "emb", "distmult", remapped=True)

    with pytest.raises(ConfigError, match="import-model converts models of one entity type"):
        import_model(open_model(model.folder, model.options), tmp_path / "converted", 1, EdgeFiles({}))


def test_unknown_names_of_a_model_of_types_are_refused_without_advice_to_convert_it(tmp_path: Path) -> None:
    model = GraphStormFolder(tmp_path / "emb", "distmult")
    edges, names = some_typed_edges(model, 15, seed=1), names_of(model)
    config = config_of_names(tmp_path, model.folder, model.options, edges, edges[1:], names)
    with (tmp_path / "test.tsv").open("a") as file:
        file.write("\t".join([*names(edges[0])[:2], "nobody"]) + "\n")

    with pytest.raises(
        DataError,
        match=r"'nobody'.*; correct the names, or leave these edges out with unknown='skip' \(-p unknown=skip\)$",
    ):
        evaluate(config, output=tmp_path / "out", workers=1)
