"""Bad and hostile models of other systems: a line that says what is wrong; nothing is run, nothing written."""

from __future__ import annotations

import functools
import json
import math
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from pbgeval.storage import parquet
from tests import hostile_tensors as zoo
from tests.kit.faults import (
    REMOVED,
    Damage,
    Fault,
    World,
    check,
    fault,
    in_json,
    prepared,
    remove,
    rows_of,
    truncate,
    write,
)
from tests.systems_reference import (
    DglkeFolder,
    GiglModel,
    GraphStormFolder,
    PygState,
    safetensors_writer,
    save_checkpoint,
    values,
)

RUN = ("--config", "eval.json", "--workers", "1", "--output", "output", "--quiet")


def write_config(root: Path, model: str, options: dict[str, Any]) -> None:
    np.save(root / "test.npy", np.zeros((2, 3), np.int64))
    config = {"model": model, "model_options": options, "candidates": "all", "edge_paths": ["test.npy"]}
    (root / "eval.json").write_text(json.dumps(config))


@prepared
def make_graphstorm(root: Path, decoder: str, **how: bool) -> None:
    model = GraphStormFolder(root / "emb", decoder, **how)
    id_maps = {"id_maps": "../maps"} if "remapped" in how else {}
    if id_maps:
        model.write_id_maps(root / "maps")
    write_config(root, "emb", model.options | id_maps)


@prepared
def make_pyg(root: Path, file: str, name: str = "transe") -> None:
    root.mkdir()
    write_config(root, file, PygState(root / file, name).options)


def make_dglke(root: Path) -> None:
    DglkeFolder(root / "dglke", "DistMult")
    write_config(root, "dglke", {"model": "distmult"})


@prepared
def make_gigl(root: Path, save: Callable[[Path, Any], object], **more: int) -> None:
    """Save a model in a way of a distributed checkpoint."""
    root.mkdir()
    model = GiglModel("translation", "identity", "dot")
    save(root / "model", model.state)
    write_config(root, "model", model.options | more)


def save_indexed(folder: Path, state: Any) -> None:
    import torch.distributed.checkpoint as dcp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of there being one process
        dcp.save(state, storage_writer=safetensors_writer()(str(folder)))


def make_parquet(root: Path) -> None:
    root.mkdir()
    for name, size in (("entity", 9), ("relation", 2)):
        rows = list(values((size, 4), 1, exact=True))
        parquet_of(lambda _, rows=rows: {"emb": rows}, f"{name}.parquet")(root)
    write_config(root, ".", {"model": "distmult", "entities": "entity.parquet", "relations": "relation.parquet"})


GRAPHSTORM, HDF5 = World(make_graphstorm("rotate"), RUN), World(make_graphstorm("distmult", hdf5=True), RUN)
REMAPPED = World(make_graphstorm("distmult", remapped=True), RUN)
PYG, SAFETENSORS = World(make_pyg("model.pt"), RUN), World(make_pyg("model.safetensors"), RUN)
PYG_COMPLEX = World(make_pyg("model.pt", "complex"), RUN)
DGLKE, PARQUET = World(make_dglke, RUN), World(make_parquet, RUN)
GIGL, INDEXED = World(make_gigl(save_checkpoint), RUN), World(make_gigl(save_indexed), RUN)
SHARDS = World(make_gigl(functools.partial(save_checkpoint, safetensors=True), num_files=2), RUN)
ITEMS = "emb/item/embed-00001.pt"


def option(name: str, value: object) -> Damage:
    """Change an option of the model; None removes it."""
    return in_json("eval.json", {f"model_options.{name}": REMOVED if value is None else value})


def tensor(file: str, value: torch.Tensor) -> Damage:
    return lambda root: torch.save(value, root / file)


def nids(file: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Damage:
    return lambda root: torch.save(change(torch.load(root / file)), root / file)


def graphstorm(line: str, *damage: Damage) -> Fault:
    return fault(f"eval.json: model: {{root}}/emb{line}", *damage, world=GRAPHSTORM)


def gigl(line: str, *damage: Damage) -> Fault:
    return fault(f"eval.json: model: {{root}}/model{line}", *damage, world=GIGL)


@prepared
def weights(root: Path, files: Mapping[str, object]) -> None:
    """Change which files an index of safetensors names."""
    document = json.loads((root / INDEX).read_text())
    document["weight_map"] |= files
    (root / INDEX).write_text(json.dumps(document))


@prepared
def dataset(root: Path, **settings: Any) -> None:
    """Write the vectors of items as another dataset."""
    with h5py.File(root / "emb" / "embed_dict.hdf5", "a") as file:
        rows = file.pop("item", np.zeros((1, 1)))[:]
        if settings:
            file.create_dataset("item", **{"data": rows} | settings)


def of_file(world: World, line: str, *damage: Damage) -> Fault:
    return fault(f"eval.json: model: {line}", *damage, world=world)


NIDS = "emb/item/embed_nids-00001.pt"
LONG = "x" * 300  # longer than a file system allows


@prepared
def parquet_of(
    root: Path, columns: Callable[[list[list[float]]], dict[str, object]], file: str = "entity.parquet", width: int = 4
) -> None:
    """Write other columns of vectors."""
    import pyarrow
    from pyarrow import parquet as files

    files.write_table(pyarrow.table(columns(values((9, width), 1, exact=True).tolist())), root / file)


NOTHING_RAN = "…: nothing was run; …"
BAD_GRAPHSTORM = [
    graphstorm(
        f"/{LONG}: expected embed-00000.pt or embed-*.parquet, found neither; …",
        in_json("emb/emb_info.json", {"emb_name": [LONG], "emb_dim": {LONG: 6}}),
    ),
    graphstorm("/item/embed-00001.pt: expected tensors and plain values of torch.save …", truncate(ITEMS)),
    graphstorm("/item: expected vectors of 6 columns (emb_info.json), found 4", tensor(ITEMS, torch.ones(11, 4))),
    graphstorm("/item/embed_nids-00001.pt: expected int64 node ids of 11 rows, found …", tensor(NIDS, torch.ones(11))),
    graphstorm("/item/embed_nids-00001.pt: expected int64 node ids of 11 rows, …", nids(NIDS, lambda of: of[:-1])),
    graphstorm(
        "/item/embed_nids-00001.pt: expected each node id from 0 to 22 once, found 23 too; …",
        nids(NIDS, lambda of: torch.cat([of[:-1], torch.tensor([23])])),
    ),
    graphstorm(
        "/item/embed_nids-00001.pt: expected each node id from 0 to 22 once, found … again; …",
        nids(NIDS, lambda of: torch.cat([of[:-1], of[:1]])),
    ),
    graphstorm(
        "/item/embed-00001.pt: expected numbers as they are, found a tensor that is marked to be negated …",
        zoo.state(ITEMS, zoo.negated),
    ),
    graphstorm(
        ": rotate with entity vectors of 6 columns needs relation vectors of 3 columns, found 6; …",
        tensor("emb/rel_emb.pt", torch.ones(3, 6)),
    ),
    graphstorm("/emb_info.json: cannot read what GraphStorm saved: …", truncate("emb/emb_info.json")),
    graphstorm("/emb_info.json: cannot read what GraphStorm saved: more than 32 MB", zoo.large("emb/emb_info.json")),
    *(
        graphstorm(
            "/relation2id_map.json: expected ('left type', 'relation', 'right type'), found …",
            write("emb/relation2id_map.json", json.dumps({text: 0})),
        )
        for text in ("(" * 4096, "[1]" + "*9" * 99)
    ),
    *(
        graphstorm(f"{NIDS.removeprefix('emb')}: expected …", nids(NIDS, change))
        for change in (
            lambda of: torch.cat([of[:-1], torch.tensor([-1])]),
            lambda of: torch.cat([of[:-1], torch.tensor([1 << 62])]),
            lambda of: of[:1].expand(len(of)),
        )
    ),
    graphstorm(f"…{NOTHING_RAN}", zoo.pickle_in(ITEMS)),
]
REMAPPED_ITEMS = "emb/item/embed-0000{}_0000{}.parquet"
BAD_REMAPPED = [
    *(
        of_file(REMAPPED, "{root}/emb/item: expected 2 parts (world_size in emb_info.json), … found …", damage)
        for damage in (
            remove(REMAPPED_ITEMS.format(1, 0)),
            parquet_of(lambda of: {"emb": of}, REMAPPED_ITEMS.format(1, 2), 6),
            parquet_of(lambda of: {"emb": of}, REMAPPED_ITEMS.format(2, 0), 6),
        )
    ),
    fault(
        "{root}/emb/item/embed-00000_00000.parquet: cannot read this Parquet file: …",
        zoo.prefixes(REMAPPED_ITEMS.format(0, 0), "nid"),
        world=REMAPPED,
    ),
    fault(
        "{root}/emb/item/embed-00001_00000.parquet: expected a column nid, found emb",
        parquet_of(lambda of: {"emb": of, "nid": [*range(9)]}, REMAPPED_ITEMS.format(0, 0), 6),
        parquet_of(lambda of: {"emb": of}, REMAPPED_ITEMS.format(1, 0), 6),
        world=REMAPPED,
    ),
]
BAD_HDF5 = [
    of_file(HDF5, f"{{root}}/emb/embed_dict.hdf5: {line}", *damage)
    for line, *damage in (
        ("expected an HDF5 file, found no such file; …", remove("emb/embed_dict.hdf5")),
        ("expected a complete HDF5 file of …", truncate("emb/embed_dict.hdf5")),
        ("expected a dataset item, found user; …", dataset()),
        ("expected vectors of 6 columns (emb_info.json), found 4", dataset(data=np.zeros((23, 4), np.float32))),
        *(
            (f"dataset item: expected float32 or float64 vectors in one piece, found {found}", dataset(**settings))
            for found, settings in (
                ("int64 of shape (23, 6)", {"dtype": np.int64}),
                ("float16 of shape (23, 6)", {"dtype": np.float16}),
                ("float32 of shape (0, 6)…", {"data": np.zeros((0, 6), np.float32)}),
                ("float32 of shape (23, 6) in chunks", {"chunks": (5, 6)}),
                ("float32 of shape (138,)", {"shape": (138,)}),
            )
        ),
    )
]
INDEX, SHARD = "model/model.safetensors.index.json", "model/shard-00002-model-00001-of-00001.safetensors"
WHOLE = "model/model-00001-of-00001.safetensors"
ITEM_BAG = "app.model.large_embeddings.ebc.embedding_bags.item.weight"


def sharding(file: str, change: Callable[[dict[str, Any]], object]) -> Damage:
    """Change where the parts of a shard belong."""

    def act(header: dict[str, Any]) -> None:
        places = json.loads(header["__metadata__"]["DCP_SHARDING_INFO"])
        change(places)
        header["__metadata__"]["DCP_SHARDING_INFO"] = json.dumps(places)

    return zoo.lying_header(file, act)


BAD_SHARDS = [
    *(
        of_file(SHARDS, f"{{root}}/model: {ITEM_BAG}: expected {line}", sharding(SHARD, change))
        for line, change in (
            ("the part from row 12, column 0 on, found one from row 11, …", lambda of: place(of, 11, 0)),
            ("parts of a table of 12 rows and 12 columns, found …", lambda of: place(of, 0, 6)),
            ("the part …: parts are missing or overlap; …", lambda of: place(of, 1 << 61, 0)),
        )
    ),
    *(
        of_file(SHARDS, f"{{root}}/{SHARD}: {line}", sharding(SHARD, change))
        for line, change in (
            ("expected a shape, found (-1, 0)", lambda of: place(of, -1, 0)),
            (f"{ITEM_BAG}: expected rows or columns of a table, found a part from [0]", lambda of: place(of, 0)),
            ("expected DCP_SHARDING_INFO, the place of each part, found none", lambda of: of.pop(ITEM_BAG)),
            ("expected DCP_SHARDING_INFO, the place of each part, found none", lambda of: of.update({ITEM_BAG: 7})),
        )
    ),
    of_file(SHARDS, f"{{root}}/{SHARD}: cannot read this safetensors file: …", truncate(SHARD)),
    of_file(
        SHARDS,
        f"{{root}}/{SHARD}: expected DCP_SHARDING_INFO, the place of each part, found none",
        zoo.lying_header(SHARD, lambda of: of.pop("__metadata__")),
    ),
    of_file(SHARDS, f"{{root}}/{SHARD}: cannot read this safetensors file: …", zoo.raw_pickle_in(SHARD)),
    of_file(INDEXED, f"{{root}}/{INDEX}: cannot read the index of tensors: …", truncate(INDEX)),
    *(
        of_file(
            INDEXED,
            f"{{root}}/{INDEX}: expected a file of this folder, found …",
            weights({ITEM_BAG: file}),
        )
        for file in ("../model.safetensors", "/etc/passwd", "..", "a\0b", None)
    ),
    of_file(
        INDEXED,
        f"{{root}}/{WHOLE}: expected a tensor x (model.safetensors.index.json), found none; …",
        weights({"x": Path(WHOLE).name}),
    ),
    *(
        of_file(INDEXED, f"{{root}}/model/{name}: cannot read this safetensors file: …", damage)
        for name, damage in (
            (Path(WHOLE).name, remove(WHOLE)),
            (LONG, weights({ITEM_BAG: LONG})),
        )
    ),
]


def place(of: dict[str, Any], *offsets: object) -> None:
    of[ITEM_BAG]["saved_offsets"] = offsets


NO_MODEL = fault(
    "eval.py: model_options: has no effect without model; set model, or remove the key",
    p="model_options.model=rotate",
)
BAD_CHECKPOINTS = [
    gigl("/__0_0.distcp: expected at least … bytes, found …", truncate("model/__0_0.distcp")),
    gigl("/.metadata: expected a pickle of plain values, found: …", truncate("model/.metadata")),
    gigl(
        "/.metadata: expected a pickle of plain values, found: …: nothing was run; …",
        zoo.raw_pickle_in("model/.metadata"),
    ),
    *(
        gigl("/.metadata: expected …", write("model/.metadata", data))  # of an object larger than memory
        for data in (
            b"\x80\x04Nr\xff\xff\xff\x7f.",
            b"\x80\x04\x8e" + bytes(7) + b"\x10.",
            b"\x80\x04\x95" + b"\x7f" * 8,
        )
    ),
    gigl("/__0_0.distcp: expected …", zoo.pickle_in("model/__0_0.distcp")),
    gigl("/.metadata: expected a pickle of plain values, found: more than 32 MB: …", zoo.large("model/.metadata")),
    gigl("/.metadata: expected a checkpoint …, found its parts …", zoo.link("model/.metadata", "/dev/zero")),
    gigl("/.metadata: expected a pickle …", write("model/.metadata", b"\x80\x02" + b"(" * (1 << 16))),
    gigl("/.metadata: expected Metadata of torch.distributed.checkpoint, found …", zoo.deep_pickle("model/.metadata")),
    gigl("/__0_0.distcp: expected …", zoo.link("model/__0_0.distcp", "../eval.json")),
    *(
        gigl(f"/.metadata: {line}", zoo.metadata("model", zoo.in_part(**change)))
        for line, change in (
            ("expected a shape, found (an int of 1994 bits, 0)", {"offsets": (10**600, 0)}),
            ("expected a pickle of plain values, found: an integer of 16,610 bits: …", {"offsets": (10**5000, 0)}),
            ("expected a shape, found ((((…", {"sizes": zoo.nested(90)}),
            ("expected a shape, found (-1, 0)", {"offsets": (-1, 0)}),
            ("…: expected parts of 2 dimensions, found [0] and …", {"offsets": (0,)}),
        )
    ),
    gigl("/.metadata: expected the name of a tensor, found []; …", zoo.nameless("model/.metadata")),
    gigl(
        "/.metadata: expected a pickle of plain values, found: tuples of many levels: nothing was run; …",
        zoo.metadata("model", zoo.in_part(sizes=zoo.nested(400))),
    ),
    gigl(
        "/.metadata: …weight: expected the part from row …: parts are missing or overlap; …",
        zoo.metadata("model", zoo.overlapping),
    ),
    gigl(
        "/.metadata: …weight: expected the part from row 0, column 0 on, found …",
        zoo.metadata("model", zoo.missing_part),
    ),
    gigl("/.metadata: …weight: expected parts of a table of …", zoo.metadata("model", zoo.larger)),
    gigl("/.metadata: …weight: a part of shape … has no place in a file; …", zoo.metadata("model", zoo.nowhere)),
    gigl("/__0_0.distcp: expected at least 2,305,843,009,213,693,952 bytes, …", zoo.metadata("model", zoo.far_away)),
    *(
        gigl(
            "/.metadata: …weight: expected a file of this folder, found …", zoo.metadata("model", zoo.elsewhere(place))
        )
        for place in ("../eval.json", "/etc/passwd")
    ),
    gigl(
        f"/{LONG}: expected at least … bytes, found no such file; copy the checkpoint again",
        zoo.metadata("model", zoo.elsewhere(LONG)),
    ),
]
ROOT = "{root}/model"
BAD_FILES = [
    fault("-p model=xxx…: no such file or directory: {root}/xxx…", p=f"model={LONG}", world=PYG),
    *(
        of_file(
            PYG,
            f"{ROOT}.pt: expected tensors by name, found none, as in a whole model; save tensors alone, by torch.save…",
            tensor("model.pt", whole),
        )
        for whole in (torch.nn.Embedding(4, 2), {})
    ),
    *(
        of_file(PYG, f"model_options: {key} must be a finite number, got {shown}", option(key, value))
        for key in ("gamma", "phase_unit")
        for value, shown in ((math.nan, "nan"), (math.inf, "inf"), (10**400, "an int of 1329 bits"))
    ),
    *(
        of_file(PYG, f"{ROOT}.pt: expected a tensor per name, found {name} again; …", zoo.state("model.pt", change))
        for name, change in (
            ("e.0", lambda of: of.update(e={0: torch.ones(2, 2), "0": torch.ones(2, 2)})),
            ("node_emb.weight", lambda of: of.update(node_emb={"weight": torch.ones(2, 2)})),
        )
    ),
    of_file(
        PYG,
        f"{ROOT}.pt: expected nested dicts of tensors, found one that holds itself; …",
        zoo.state("model.pt", lambda of: of.update(more=of)),
    ),
    of_file(PYG, f"{ROOT}.pt: expected tensors …: record … is compressed or encrypted…", zoo.crushed("model.pt")),
    *(
        of_file(SAFETENSORS, f"{ROOT}.safetensors: cannot read this safetensors file: …", damage)
        for damage in (
            zoo.header_size("model.safetensors", 1 << 62),
            zoo.lying_header("model.safetensors", lambda of: of["node_emb.weight"].update(data_offsets=[0, 1 << 50])),
            zoo.lying_header("model.safetensors", lambda of: of["node_emb.weight"].update(shape=[1 << 40, 6])),
            zoo.lying_header("model.safetensors", lambda of: of["rel_emb.weight"].update(dtype="F128")),
            zoo.lying_header("model.safetensors", lambda of: of.update(x=of["rel_emb.weight"])),
            zoo.twice("model.safetensors"),
            zoo.link("model.safetensors", "/dev/zero"),
        )
    ),
    of_file(
        SAFETENSORS,
        f"{ROOT}.safetensors: cannot read this safetensors file: a pipe, not a regular file; …",
        zoo.pipe("model.safetensors"),
    ),
    *(of_file(PARQUET, "{root}/" + f"{name}: …", option("entities", name)) for name in (LONG, f"{LONG}.parquet")),
    of_file(
        PARQUET,
        "{root}/entity.parquet: cannot read this Parquet file: it does not end as one",
        truncate("entity.parquet"),
    ),
    of_file(
        PARQUET,
        "{root}/entity.parquet: cannot read this Parquet file: …",
        write("entity.parquet", b"PAR1" + bytes(99) + b"\xff\xff\xff\x7fPAR1"),
    ),
    of_file(
        PARQUET,
        "{root}/entity.parquet: row group 0 has … MB, which is decoded at once; …",
        zoo.huge_group("entity.parquet", 1 << 21),
    ),
    of_file(
        PARQUET,
        "{root}/entity.parquet: cannot read this Parquet file: row group 0 has 524,288 values, and 10 by its end",
        zoo.lying_group("entity.parquet", 1 << 19),
    ),
    of_file(
        PARQUET,
        "{root}/entity.parquet: expected one column of lists of floats, …",
        parquet_of(lambda of: {"a": of, "b": of}),
    ),
    of_file(
        PARQUET,
        "{root}/int.npy: expected floating-point numbers, found int64; save it as float32: x.astype('float32')",
        option("entities", "int.npy"),
        lambda root: np.save(root / "int.npy", np.ones((9, 4), np.int64)),
    ),
    fault(
        "{root}/test.npy: there are no edges in this file",
        lambda root: np.save(root / "test.npy", np.zeros((0, 3), np.int64)),
        world=PARQUET,
    ),
]


def without_effect(world: World, model: str, changed: dict[str, object], *keys: str, **more: object) -> list[Fault]:
    """A fault of each option that has no effect on a model."""
    some: dict[str, object] = {
        **{"norm": 2, "reciprocal": True, "phase_unit": 3.0, "clamped": True, "gamma": 3.0},
        **{"relations": "r.npy", "relation_types": [["a", "user", "item"]], "model": "distmult"},
        **{"source": "LINEAR", "similarity": "COSINE", "destination_relations": "b"},
        **{"id_maps": "maps", "num_files": 7},
    }
    changes = [option(key, value) for key, value in changed.items()]
    return [
        of_file(
            world,
            f"model_options: {key} has no effect on {model}; remove it",
            *changes,
            option(key, (some | more)[key]),
        )
        for key in keys
    ]


WITHOUT_EFFECT = [
    *without_effect(HDF5, "distmult of GraphStorm", {}, "norm", "source", "gamma", "relation_types"),
    *without_effect(GRAPHSTORM, "rotate of GraphStorm", {}, "clamped", "relations"),
    *without_effect(HDF5, "dot_product of GraphStorm", {"model": "dot_product"}, "gamma"),
    *without_effect(PARQUET, "distmult", {}, "clamped", "phase_unit", "similarity", "id_maps"),
    *without_effect(PARQUET, "rotate with gamma", {"model": "rotate", "gamma": 2.0}, "phase_unit"),
    *without_effect(PARQUET, "dot", {"model": "dot", "relations": None}, "relations", "reciprocal"),
    *without_effect(PARQUET, "a model without shard-*.safetensors", {}, "num_files"),
    *without_effect(GIGL, "the operators TRANSLATION and IDENTITY", {}, "model", "relations", "destination_relations"),
    *without_effect(PYG, "transe of PyG", {}, "clamped", "gamma"),
    of_file(
        PARQUET,
        "{root}/model.json: clamped has no effect on distmult; remove it",
        write("model.json", json.dumps({"clamped": True})),
    ),
    of_file(DGLKE, "{root}/dglke: model_options have no effect on a folder of DGL-KE, as its files say all; remove …"),
    of_file(
        PYG_COMPLEX,
        f"{ROOT}.pt: found node_emb_im.weight, which distmult of PyG has not; check model",
        option("model", "distmult"),
    ),
    of_file(
        PARQUET,
        "{root}: entities: expected names of types without a slash, found 'a/b'",
        option("entities", {"a/b": "entity.parquet"}),
    ),
]


WORLDS = {
    "GRAPHSTORM": GRAPHSTORM,
    "REMAPPED": REMAPPED,
    "PYG": PYG,
    "PARQUET": PARQUET,
    "GIGL": GIGL,
    "INDEXED": INDEXED,
    "SHARDS": SHARDS,
}
BY_LINES = rows_of(Path(__file__).with_name("model_faults.txt"), WORLDS)


@pytest.mark.parametrize(
    "row",
    [
        *BY_LINES,
        *BAD_GRAPHSTORM,
        *BAD_REMAPPED,
        *BAD_HDF5,
        *BAD_CHECKPOINTS,
        *BAD_SHARDS,
        *BAD_FILES,
        *WITHOUT_EFFECT,
        NO_MODEL,
    ],
)
def test_a_bad_model_is_one_line_and_nothing_of_it_runs(
    row: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command writes nothing, so no hostile pickle has left its mark either."""
    if row.world in (SAFETENSORS, SHARDS, INDEXED):
        pytest.importorskip("safetensors")
    if row.world in (PARQUET, REMAPPED):
        pytest.importorskip("pyarrow")
    monkeypatch.setattr(parquet, "MAX_GROUP_BYTES", 1 << 22)

    check(row, tmp_path / "case")
