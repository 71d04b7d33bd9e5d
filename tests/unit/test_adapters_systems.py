"""Models of DGL-KE and LibKGE, made from their definitions, have the ranks of a slow float64 reference."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pbgeval import EvalConfig, evaluate
from pbgeval.config import load_config
from pbgeval.config.loading import check_config
from pbgeval.errors import ConfigError, EvalError, StorageError
from pbgeval.models.opening import open_model
from pbgeval.notation import ENDS
from tests.contracts.scorer_contract import assert_ranks, assert_ranks_of_side, evaluated, some_edges
from tests.examples import crossed
from tests.kit.faults import Damage, prepared, write
from tests.kit.refusals import fault_of
from tests.systems_reference import DGLKE, LIBKGE, LIBKGE_MODULES, DglkeFolder, LibkgeCheckpoint, save

ROUNDED = ("TransE_l2", "TransE", "RotatE", "rotate")  # a root or a cosine: scores are not exact
REPOSITORY = Path(__file__).resolve().parents[2]


def assert_dglke_ranks(model: DglkeFolder, output: Path, error: float = 0.0, **settings: Any) -> None:
    """Evaluate some edges, many of which share a query, and compare."""
    edges, known = some_edges(41, 4, 15, seed=1), some_edges(41, 4, 80, seed=2)

    evaluated(model.folder, {}, edges, known, output, **settings)

    assert_ranks(output, edges, model.score, 41, known, error)


@pytest.mark.parametrize(("name", "released"), crossed(DGLKE, [False, True], quick=2, thorough=2))
def test_a_folder_of_dglke_has_the_ranks_of_its_definition(name: str, released: bool, tmp_path: Path) -> None:
    """Of multiples of 1/4, full of ties; exact where the definition has no root and no cosine.

    Releases up to 0.1.2 have other names for three arguments in config.json.
    """
    model = DglkeFolder(tmp_path / "model", name, labels=released, released=released)

    assert_dglke_ranks(model, tmp_path / "out", 1e-4 if name in ROUNDED else 0.0)
    assert list(open_model(model.folder).entity_names() or [])[:2] == ["entity 0", "entity 1"] or not released


EXACT = [(name, "exact") for name in ("DistMult", "ComplEx", "RESCAL", "TransE_l2")]


@pytest.mark.parametrize(("name", "precision"), [*crossed(DGLKE, ["float32", "float64"], quick=2, thorough=2), *EXACT])
def test_rounded_scores_of_dglke_differ_by_near_ties_only(name: str, precision: str, tmp_path: Path) -> None:
    model = DglkeFolder(tmp_path / "model", name, exact=False)

    # In float64 what is left is the rounding of parameters to float32: of phases, a few pi large.
    error = {"float32": 1e-3, "exact": 1e-5, "float64": 1e-5 if name == "RotatE" else 1e-12}[precision]
    assert_dglke_ranks(model, tmp_path / "out", error, precision=precision)


def test_simple_is_clamped_at_20_so_that_large_scores_tie(tmp_path: Path) -> None:
    model = DglkeFolder(tmp_path / "model", "SimplE", scale=8.0)
    scores = [model.score(lhs, rel, rhs) for lhs, rel, _ in some_edges(41, 4, 15, seed=1) for rhs in range(41)]
    assert (max(scores), min(scores)) == (20.0, -20.0)

    assert_dglke_ranks(model, tmp_path / "out")


@pytest.mark.parametrize("double_rel", [False, True])
def test_transr_may_have_relations_of_another_width(double_rel: bool, tmp_path: Path) -> None:
    assert_dglke_ranks(DglkeFolder(tmp_path / "model", "TransR", double_rel=double_rel), tmp_path / "out")


def assert_libkge_ranks(model: LibkgeCheckpoint, output: Path, edges: list[Any], error: float) -> None:
    """Reciprocal models score an edge differently in its two queries."""
    for side in ENDS:
        score = partial(model.score, side=side.pick("lhs", "rhs"))
        assert_ranks_of_side(output, side, edges, score, lambda _: len(model.entity), edges, error)


FORMULAS_OF_LIBKGE = [*((name, 1) for name in LIBKGE), ("transe", 2), ("rotate", 2)]


@pytest.mark.parametrize(
    ("name", "norm", "exact", "reciprocal"),
    crossed([(*of, at % 2 == 0) for at, of in enumerate(FORMULAS_OF_LIBKGE)], [False, True], quick=3),
)
def test_a_checkpoint_of_libkge_has_the_ranks_of_its_definition(
    name: str, norm: int, exact: bool, reciprocal: bool, tmp_path: Path
) -> None:
    model = LibkgeCheckpoint(tmp_path / "x.pt", name, norm=norm, reciprocal=reciprocal, exact=exact)
    edges = some_edges(37, 3, 12, seed=7)

    evaluated(model.path, {}, edges, edges, tmp_path / "out")

    is_exact = exact and name not in ROUNDED and norm == 1
    assert_libkge_ranks(model, tmp_path / "out", edges, 0.0 if is_exact else 1e-3)


def test_old_names_of_parameters_and_labels_are_read(tmp_path: Path) -> None:
    LibkgeCheckpoint(tmp_path / "x.pt", "complex", old_names=True)
    (tmp_path / "entity_ids.del").write_text("".join(f"{index}\te{index}\n" for index in range(37)))

    model = open_model(tmp_path / "x.pt")

    assert (model.num_entities, model.num_relations, model.dimension, model.system) == (37, 3, 8, "libkge")
    assert (list(model.entity_names() or [])[:2], model.relation_names()) == (["e0", "e1"], None)


def let_import_libkge(monkeypatch: pytest.MonkeyPatch) -> None:
    for module_name, module in LIBKGE_MODULES.items():
        monkeypatch.setitem(sys.modules, module_name, module)


def test_a_trusted_checkpoint_gives_the_same_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = LibkgeCheckpoint(tmp_path / "x.pt", "distmult")
    let_import_libkge(monkeypatch)
    edges = some_edges(37, 3, 12, seed=8)

    evaluated(model.path, {}, edges, edges, tmp_path / "out", trust_pickle=True)

    assert_libkge_ranks(model, tmp_path / "out", edges, 0.0)


def test_a_checkpoint_whose_classes_cannot_be_imported_is_not_trusted(tmp_path: Path) -> None:
    LibkgeCheckpoint(tmp_path / "x.pt", "distmult")
    with pytest.raises(EvalError, match=r"classes that can be imported here, found: No module named 'kge"):
        open_model(tmp_path / "x.pt", trust_pickle=True)


@pytest.mark.parametrize("reciprocal", [False, True])
def test_the_export_script_writes_arrays_that_rank_alike(
    reciprocal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = LibkgeCheckpoint(tmp_path / "x.pt", "transe", norm=1, reciprocal=reciprocal)
    let_import_libkge(monkeypatch)
    monkeypatch.setattr(sys, "argv", ["export_libkge.py", str(model.path), str(tmp_path / "arrays")])
    runpy.run_path(str(REPOSITORY / "pbgeval" / "examples" / "export_libkge.py"), run_name="__main__")
    edges = some_edges(37, 3, 12, seed=9)

    evaluated(tmp_path / "arrays", {}, edges, edges, tmp_path / "out")

    assert_libkge_ranks(model, tmp_path / "out", edges, 0.0)


def test_a_table_is_a_private_copy(tmp_path: Path) -> None:
    whole = open_model(DglkeFolder(tmp_path / "model", "DistMult").folder).entities.load()
    whole[0] = 7.0

    value = np.load(tmp_path / "model" / "FB15k_DistMult_entity.npy")[0, 0]
    assert (whole.is_shared(), value != 7.0) == (False, True)


@prepared
def arguments(folder: Path, **changes: Any) -> None:
    """Change the arguments of a training; those that are None go."""
    given = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps({key: of for key, of in given.items() if of is not None}))


def table(name: str, content: bytes | np.ndarray) -> Damage:
    """Write an array, or what shall be one."""
    if isinstance(content, bytes):
        return write(name, content)
    return lambda folder: np.save(folder / name, content)


def npy(shape: str, descr: str = "<f4") -> bytes:
    """A .npy file whose header says what it likes."""
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}}}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(4096)


CONFIG_FAULTS = [
    ({"model_name": "ConvE"}, "model_name: expected one of TransE, .*SimplE, found 'ConvE'"),
    ({"model_name": None}, "model_name: expected a text, found None"),
    (
        {"model_name": "RotatE", "gamma": float("inf")},
        "cannot read the arguments of a training: Infinity, which is no number",
    ),
]
# Others: tests/file_bombs.py.
LYING_HEADERS = [npy("__import__('os').getpid()"), npy("(3000, 6)"), npy("(3, 6"), npy("(3, 6)", "|O"), b""]
FAULTS = [
    *(("DistMult", arguments(**changes), f"config.json: {fault}") for changes, fault in CONFIG_FAULTS),
    *(
        (
            "DistMult",
            arguments(dataset=name),
            "_DistMult_entity.npy: expected this file, found FB15k_DistMult_entity.npy",
        )
        for name in ("wn18", "a" * 300)
    ),
    *(
        (
            "DistMult",
            write("config.json", text),
            "config.json: cannot read the arguments of a training",
        )
        for text in ("[" * 100_000, "{", '{"gamma": ' + "9" * 10_000 + "}", "\0")
    ),
    *(
        (
            "DistMult",
            table("FB15k_DistMult_entity.npy", content),
            "_entity.npy: expected a .npy file of numbers, found: ",
        )
        for content in LYING_HEADERS
    ),
    (
        "TransR",
        table("FB15k_TransRprojection.npy", np.zeros((4, 30), np.float32)),
        r"expected shape \(4, 36\) \(relations, projections\), found \(4, 30\)",
    ),
    *(
        ("TransR", table("FB15k_TransR_entity.npy", values), fault)
        for values, fault in (
            (np.zeros((4, 6), object), "_entity.npy: expected a .npy file of numbers"),
            (np.asfortranarray(np.zeros((4, 6), np.float32)), "found Fortran order"),
            (np.zeros(4, np.float32), r"expected rows and columns of vectors, found shape \(4,\)"),
        )
    ),
    (
        "ComplEx",
        table("FB15k_ComplEx_relation.npy", np.zeros((4, 6), np.float32)),
        "complex with entity vectors of 12 columns needs relation vectors of 12 columns, found 6",
    ),
    ("RotatE", arguments(hidden_dim=12), "hidden_dim: expected 6, the columns of relation vectors, found 12"),
]


@pytest.mark.parametrize(("name", "damage", "fault"), FAULTS)
@pytest.mark.filterwarnings("error")
def test_what_is_wrong_with_a_folder_is_named(
    name: str, damage: Callable[[Path], object], fault: str, tmp_path: Path
) -> None:
    folder = DglkeFolder(tmp_path / "model", name).folder
    damage(folder)

    with pytest.raises(StorageError, match=fault):
        open_model(folder)


COMPLEX = (5, 3)  # of complex numbers
OWN_ARRAYS = [
    ({"model": "complex"}, COMPLEX, (2, 3), r"found complex64; .* np.concatenate\(\[v.real, v.imag\], axis=1\)"),
    ({"model": "complex"}, (5, 6), (2, 6), ""),
    ({"model": "rotate"}, (5, 6), (2, 3), ""),
    (
        {"model": "complex"},
        (5, 7),
        (2, 7),
        r"an even number of entity columns \(real parts, then imaginary parts\), found 7",
    ),
    ({"model": "rotate"}, (5, 6), (2, 6), "rotate with entity vectors of 6 columns needs relation vectors of 3"),
    ({"model": "complex", "reciprocal": True}, (5, 6), (3, 6), "two rows per relation .*, found 3 rows"),
]


@pytest.mark.parametrize(("description", "entity", "relation", "fault"), OWN_ARRAYS)
def test_arrays_of_ones_own_are_a_model(
    description: dict[str, Any], entity: tuple[int, int], relation: tuple[int, int], fault: str, tmp_path: Path
) -> None:
    (tmp_path / "model.json").write_text(json.dumps(description))
    for name, shape in (("entity", entity), ("relation", relation)):
        np.save(tmp_path / f"{name}.npy", np.ones(shape, np.complex64 if shape == COMPLEX else np.float32))
    (tmp_path / "entities.tsv").write_text("a\nb\nc\nd\ne\n")

    if not fault:
        assert list(open_model(tmp_path).entity_names() or []) == ["a", "b", "c", "d", "e"]
    else:
        assert re.search(fault, fault_of(lambda: open_model(tmp_path)))


def test_a_truncated_table_is_refused(tmp_path: Path) -> None:
    folder = DglkeFolder(tmp_path / "model", "DistMult").folder
    entities, path = open_model(folder).entities, folder / "FB15k_DistMult_entity.npy"
    path.write_bytes(path.read_bytes()[:-8])

    for read, fault in (
        (entities.load, "the file is truncated"),
        (lambda: entities.read_rows(0, 3), "the file is truncated"),
        (lambda: open_model(folder), "expected a .npy file of numbers"),
    ):
        assert fault in fault_of(read)


@pytest.mark.parametrize(
    ("table", "row", "fault"),
    [
        ("relation", 2, r"diagonal \(lhs\) of relation 2: expected finite numbers"),
        ("entity", 7, r"entity type 'all', partition 0: expected finite numbers, got .* in row 7"),
    ],
)
def test_a_diverged_model_is_refused(table: str, row: int, fault: str, tmp_path: Path) -> None:
    model = DglkeFolder(tmp_path / "model", "DistMult")
    getattr(model, table)[row, 1] = np.nan
    np.save(model.folder / f"FB15k_DistMult_{table}.npy", getattr(model, table))

    with pytest.raises(EvalError, match=fault):
        evaluated(model.folder, {}, [(0, 0, 1)], [(0, 0, 1)], tmp_path / "out")


UNKNOWN = {
    f"_{name}.weight": torch.zeros(4, 4)
    for name in ("entity_embedder._embeddings", "relation_embedder._embeddings", "relation_embedder.projection")
}


@pytest.mark.parametrize(
    ("saved", "fault"),
    [
        (
            {"model": (UNKNOWN, {}), "config": {"model": "complex"}},
            "found _relation_embedder.projection.weight as well",
        ),
        ([1], "expected a checkpoint of LibKGE with 'model' and 'config', found list"),
        ({"model": ({}, {}), "config": {"model": "conve"}}, "config: model: expected one of complex, .* found 'conve'"),
        ({"model": ({}, {}), "config": {"model": "cp"}}, "expected _entity_embedder._embeddings.weight, found nothing"),
        ({"model": ({}, {}), "config": {"model": "transe"}}, r"transe.l_norm: expected 1 or 2, found None"),
        ({"model": 3, "config": {"model": "cp"}}, "model: expected parameters by name, found int"),
    ],
)
def test_what_is_wrong_with_a_checkpoint_is_named(saved: Any, fault: str, tmp_path: Path) -> None:
    save(saved, tmp_path / "x.pt")

    with pytest.raises(StorageError, match=fault):
        open_model(tmp_path / "x.pt")


def test_a_model_that_pykeen_saved_is_refused_and_the_way_round_is_named(tmp_path: Path) -> None:
    (tmp_path / "trained_model.pkl").write_bytes(b"cos\nsystem\n(S'touch it_ran'\ntR.")
    command = r"`python -m pbgeval.examples.export_pykeen .*trained_model.pkl FOLDER`"
    fault = rf"trained_model.pkl: .*nothing was run; in .* {command}"

    for path in (tmp_path, tmp_path / "trained_model.pkl"):
        for trusted in (False, True):
            with pytest.raises(StorageError, match=fault):
                open_model(path, trust_pickle=trusted)


def test_the_export_scripts_refuse_a_norm_that_has_no_comparator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1.5 is not 1."""
    interaction = type("TransEInteraction", (), {"p": 1.5})()
    model = SimpleNamespace(interaction=interaction, entity_representations=[0], relation_representations=[0])
    model.eval = lambda: model
    config = SimpleNamespace(options={"model": "transe", "transe": {"l_norm": 1.5}})
    for script, saved in (("pykeen", model), ("libkge", {"config": config})):
        monkeypatch.setattr(torch, "load", lambda *_, saved=saved, **__: saved)
        main = runpy.run_path(str(REPOSITORY / "pbgeval" / "examples" / f"export_{script}.py"))["main"]
        with pytest.raises(SystemExit, match=r"x.pt: expected .*norm 1 or 2"):
            main(str(tmp_path / "x.pt"), str(tmp_path / "out"))


@pytest.mark.parametrize(
    ("place", "fault"),
    [
        ("", "no model in this folder; expected a folder that DGL-KE "),
        ("x.txt", "this file is not a model; expected a folder that DGL-KE "),
        ("models", "no model in this folder; did you mean '{folder}/models/one'?; expected"),
        ("modls", "no such file or folder; did you mean '{folder}/models'?; exp"),
    ],
)
def test_what_is_no_model_is_named(place: str, fault: str, tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("x")
    if place.startswith("mod"):
        (tmp_path / "models" / "one").mkdir(parents=True)
        (tmp_path / "models" / "one" / "model.json").write_text("{}")

    line = fault_of(lambda: open_model(tmp_path / place))
    assert line.startswith(f"{tmp_path / place}: {fault.format(folder=tmp_path)}")


@pytest.mark.parametrize(("place", "fault"), [("", "^model: .*no model in"), ("absent", "^model: no such file or dir")])
def test_a_config_with_no_model_is_refused_by_its_key(place: str, fault: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=fault):
        evaluate(EvalConfig(model=str(tmp_path / place), edge_paths=[str(tmp_path)]))


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"comparator": "l2"}, "comparator: the model has 'dot', but the config says 'l2'; remove the key"),
        ({"global_emb": True}, "global_emb: the model has False, but the config says True; remove the key"),
        ({"dimension": 7}, "dimension: the model has 6, but the config says 7; remove the key"),
        ({"max_norm": 1.0}, "max_norm: the model has None, but the config says 1.0; remove the key"),
    ],
)
def test_a_config_that_says_otherwise_is_refused(settings: dict[str, Any], fault: str, tmp_path: Path) -> None:
    folder = DglkeFolder(tmp_path / "model", "DistMult").folder
    with pytest.raises(ConfigError, match=fault):
        evaluated(folder, {}, [(0, 0, 1)], [(0, 0, 1)], tmp_path / "out", **settings)


def config_file(tmp_path: Path, kind: str, **settings: Any) -> Path:
    """Write a config of each kind that names a model, and an array of edges."""
    np.save(tmp_path / "edges.npy", np.array([(0, 0, 1)]))
    keys = {"model": str(DglkeFolder(tmp_path / "model", "DistMult").folder), "edge_paths": ["edges.npy"]} | settings
    ours = f"from pbgeval import EvalConfig\ndef get_config():\n    return EvalConfig(**{keys!r})\n"
    (path := tmp_path / f"eval.{kind}").write_text(json.dumps(keys) if kind == "json" else ours)
    return path


@pytest.mark.parametrize("kind", ["json", "py"])
def test_a_key_that_a_config_file_or_an_override_sets_to_its_default_is_no_default(tmp_path: Path, kind: str) -> None:
    fault = "comparator: the model has 'dot', but the config says 'cos'; remove the key"
    with pytest.raises(ConfigError, match=f"^eval.{kind}: {fault}"):
        load_config(config_file(tmp_path, kind, comparator="cos"))
    with pytest.raises(ConfigError, match=r"^-p comparator=cos: the model has 'dot'"):
        load_config(config_file(tmp_path, kind), ["comparator=cos"])

    config = load_config(config_file(tmp_path, kind, comparator="dot"), ["global_emb=false"])

    assert ("dot", False, config) == (config.comparator, config.global_emb, check_config(config))


@pytest.mark.parametrize("kind", ["json", "py"])
def test_an_override_may_name_the_entity_type_of_a_model(tmp_path: Path, kind: str) -> None:
    config = load_config(config_file(tmp_path, kind), ["entities.all.num_partitions=2"])
    assert {name: entity.num_partitions for name, entity in config.entities.items()} == {"all": 2}

    of_file = config_file(tmp_path, kind, model=None)
    config = load_config(of_file, ["entities.all.num_partitions=2", f"model={tmp_path / 'model'}"])
    assert config.entities["all"].num_partitions == 2
    with pytest.raises(ConfigError) as caught:
        load_config(of_file, ["entities.all.num_partitions=2"])
    if kind == "py":
        line = "entities is empty; set it in the config file: {'all': {'num_partitions': 1}}"
        assert f"-p entities.all.num_partitions=2: {line}" in caught.value.faults


def test_a_part_of_a_list_that_a_python_config_does_not_set_can_be_set(tmp_path: Path) -> None:
    assert load_config(config_file(tmp_path, "py"), ["hits_at.0=2"]).hits_at == [2, 3, 5, 10, 50]


def test_a_finished_run_is_found_again_and_a_changed_model_is_another(tmp_path: Path) -> None:
    model = DglkeFolder(tmp_path / "model", "DistMult")
    edges = [(0, 0, 1), (2, 1, 3)]
    evaluated(model.folder, {}, edges, edges, tmp_path / "out")
    before = (tmp_path / "out" / "metrics.json").stat().st_mtime_ns
    shutil.copytree(model.folder, tmp_path / "copied")
    evaluated(tmp_path / "copied", {}, edges, edges, tmp_path / "out")
    assert before == (tmp_path / "out" / "metrics.json").stat().st_mtime_ns

    np.save(model.folder / "FB15k_DistMult_entity.npy", model.entity + 1)

    with pytest.raises(EvalError, match="overwrite"):
        evaluated(model.folder, {}, edges, edges, tmp_path / "out")
