"""The kinds of config, what can be wrong with a file itself, and where its paths lead."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest

from pbgeval.config import load_config
from pbgeval.errors import ConfigError
from tests.kit import refusals

SETTINGS: dict[str, Any] = {
    "entities": {"all": {"num_partitions": 1}},
    "relations": [{"name": "r", "lhs": "all", "rhs": "all"}],
    "dimension": 8,
    "entity_path": "entity",
    "edge_paths": ["edges"],
    "checkpoint_path": "checkpoint",
}
THEIRS = f"def get_torchbiggraph_config():\n    return {SETTINGS!r}\n"
OURS = f"""from pbgeval.config import EntitySchema, EvalConfig, RelationSchema

def get_config():
    return EvalConfig(**{SETTINGS!r})
"""
YAML = """
entities: {all: {num_partitions: 1}}
relations:
  - {name: r, lhs: all, rhs: all}
dimension: 8
entity_path: entity
edge_paths: [edges]
checkpoint_path: checkpoint  # a comment
"""
TOML = """
dimension = 8
entity_path = "entity"
edge_paths = ["edges"]
checkpoint_path = "checkpoint"
[entities.all]
num_partitions = 1
[[relations]]
name = "r"
lhs = "all"
rhs = "all"
"""
CASES = ("fb237_1p_complex", "fb237_4p_complex", "fb237_4p_transe", "fb237_het")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the directories that the settings name, which is not the working directory."""
    place = tmp_path / "place"
    for name in ("entity", "edges", "checkpoint"):
        (place / name).mkdir(parents=True)
    return place


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def faults_of(path: Path | str, *overrides: str) -> tuple[str, ...]:
    return tuple(refusals.faults_of(lambda: load_config(path, overrides), ConfigError))


# what a file gives


def test_all_kinds_of_file_give_equal_configs(folder: Path) -> None:
    ours = load_config(write(folder / "ours.py", OURS))
    theirs = load_config(write(folder / "theirs.py", THEIRS))
    data = load_config(str(write(folder / "data.json", json.dumps(SETTINGS))))
    plain = load_config(write(folder / "plain.py", f"def get_config():\n    return {SETTINGS!r}\n"))
    texts = {"a.yaml": YAML, "b.YML": json.dumps(SETTINGS), "c.toml": TOML}
    others = [load_config(write(folder / name, text)) for name, text in texts.items()]

    assert all(config == ours for config in (theirs, data, plain, *others))
    names = ["ours", "theirs", "data", "plain", "a", "b", "c"]
    assert [config.name for config in (ours, theirs, data, plain, *others)] == names
    assert folder / "data.json" == data.source


def test_a_dict_is_a_config_whose_paths_lead_from_the_working_directory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = load_config(write(folder / "ours.py", OURS), ["hits_at=7"])
    monkeypatch.chdir(folder)

    found = load_config(SETTINGS | {"num_epochs": 5}, ["hits_at=7"])

    assert (found, found.name, found.source) == (ours, "config", None)
    assert found.ignored == ("num_epochs",)
    assert SETTINGS["edge_paths"] == ["edges"]  # as it was
    unknown = refusals.faults_of(lambda: load_config({"edge_path": "a"}), ConfigError)
    assert list(unknown) == ["edge_path: unknown key; did you mean 'edge_paths'?"]
    wrong = refusals.faults_of(lambda: load_config(SETTINGS | {"hits_at": 1}, ["seed"]), ConfigError)
    assert list(wrong) == ["-p seed: expected KEY=VALUE, for example -p candidates=all"]
    wrong = refusals.faults_of(lambda: load_config(SETTINGS | {"hits_at": 1}), ConfigError)
    assert list(wrong) == ["hits_at: expected a list, got 1 (int)"]


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("a.yaml", "hits_at: [1\n", "a.yaml:2:1: not valid YAML: expected ',' or ']', but got '<stream end>'"),
        (
            "a.yaml",
            "a: !!python/name:os.system\n",
            "a.yaml:1:4: not valid YAML: could not determine a constructor for ",
        ),
        ("a.yaml", "a: \0", "a.yaml: not valid YAML: unacceptable character #x0000"),
        ("a.yaml", "[" * 100_000, "a.yaml: not valid YAML: maximum recursion depth exceeded"),
        ("a.yaml", "", "a.yaml: expected keys with values, got None"),
        ("a.toml", "hits_at = [1\n", "a.toml: not valid TOML: "),
        ("a.toml", "a = " + "[" * 100_000, "a.toml: not valid TOML: "),
        ("a.toml", "hits_at = 1979-05-27\n", "a.toml: hits_at: expected a list, got datetime.date(1979, 5, 27) (date)"),
    ],
)
def test_a_file_of_data_that_is_damaged_says_where(folder: Path, name: str, text: str, fault: str) -> None:
    faults = faults_of(write(folder / name, text))

    assert any(line.startswith(fault) for line in faults), faults


def test_paths_in_a_file_of_ours_lead_from_its_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(folder, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")

    found = load_config(write(folder / "a.toml", TOML))

    assert found.edge_paths == [str(folder / "edges")]


def test_a_config_made_of_classes_lists_and_tuples_of_paths_loads(folder: Path) -> None:
    text = """
from pathlib import Path
from pbgeval.config import EntitySchema, EvalConfig, RelationSchema

HERE = Path(__file__).parent

def get_config():
    return EvalConfig(
        entities={"all": EntitySchema(num_partitions=1, dimension=4)},
        relations=(RelationSchema(name="r", lhs="all", rhs="all"), {"name": "s", "lhs": "all", "rhs": "all"}),
        entity_path=HERE / "entity",
        edge_paths=(HERE / "edges", "edges"),
        checkpoint_path="checkpoint",
        hits_at=(1, 2),
    )
"""
    config = load_config(write(folder / "eval.py", text))

    assert ([1, 2], [str(folder / "edges")] * 2, 4) == (config.hits_at, config.edge_paths, config.dimension_of("all"))
    assert [relation.name for relation in config.relations] == ["r", "s"]


PBG = "\ndef get_torchbiggraph_config():\n    raise RuntimeError\n"
DATACLASS = "from __future__ import annotations\nimport dataclasses\n@dataclasses.dataclass\nclass A:\n    x: int = 1\n"


@pytest.mark.parametrize(
    ("name", "text"), [("eval.py", OURS + PBG), ("eval.cfg", DATACLASS + THEIRS)], ids=["get_config wins", "any suffix"]
)
def test_a_config_can_be_pickled_for_workers(folder: Path, name: str, text: str) -> None:
    config = load_config(write(folder / name, text))
    copy = pickle.loads(pickle.dumps(config))

    assert (config, config.source, config.name) == (copy, copy.source, copy.name)


def test_training_only_keys_that_the_file_sets_are_named(folder: Path) -> None:
    data = json.dumps(SETTINGS | {"num_epochs": 1, "lr": 0.1, "workers": 2, "init_path": "not/there"})
    theirs = write(folder / "theirs.py", THEIRS)

    assert load_config(write(folder / "data.json", data)).ignored == ("init_path", "num_epochs", "lr")
    assert (load_config(theirs).ignored, load_config(theirs, ["verbose=1"]).ignored) == ((), ("verbose",))
    assert faults_of(write(folder / "ours.py", OURS.replace("EvalConfig(", "EvalConfig(lr=0.1, "))) == (
        "ours.py:4: lr: only PyTorch-BigGraph's training uses this key; remove it",
    )


# Python files


def test_a_python_file_runs_in_its_place_with_its_neighbours(folder: Path, tmp_path: Path) -> None:
    text = "from neighbour import DIMENSION\n" + THEIRS.replace("'dimension': 8", "'dimension': DIMENSION")
    paths = [f"{key}={folder / key.split('_')[0]}" for key in ("entity_path", "checkpoint_path")]
    path_before, modules_before = list(sys.path), set(sys.modules)
    for place, dimension in ((folder, 6), (tmp_path, 10)):
        write(place / "neighbour.py", f"DIMENSION = {dimension}\n")
        config = load_config(write(place / "eval.py", text), [*paths, f"edge_paths={folder / 'edges'}"])
        assert (dimension, path_before) == (config.dimension, sys.path)

    assert {"neighbour", "pbgeval_config_eval"}.isdisjoint(set(sys.modules) - modules_before)
    assert set(os.listdir(folder)) == {"entity", "edges", "checkpoint", "eval.py", "neighbour.py"}  # no bytecode


MISSPELT = OURS.replace("EvalConfig(", "EvalConfig(num_batch_neg=3, ")


@pytest.mark.parametrize(
    ("text", "start"),
    [
        *(
            (json.loads(text), start)
            for _, text, start in refusals.rows_of(Path(__file__).with_name("config_file_faults.txt"))
        ),
        (MISSPELT, "eval.py:4: num_batch_neg: unknown key; did you mean 'num_batch_negs'?"),
    ],
)
def test_a_broken_file_gives_one_line_with_its_place(folder: Path, text: str, start: str) -> None:
    path = folder / start.partition(":")[0]
    path.write_bytes(text.encode("utf-8", "surrogateescape"))

    (fault,) = faults_of(path)

    assert fault.startswith(start), fault


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("\n\nx = (\n", "broken.py:3: SyntaxError: '(' was never closed"),
        ("\nraise OSError('no')\n", "broken.py:2: OSError: no"),
    ],
)
def test_a_fault_in_a_neighbour_is_placed_there(folder: Path, text: str, fault: str) -> None:
    write(folder / "broken.py", text)

    assert faults_of(write(folder / "eval.py", "import broken\n")) == (fault,)


@pytest.mark.parametrize(("name", "advised"), [("types.tsv", True), ("absent.tsv", False)])
def test_a_path_beside_a_config_names_the_folder_to_run_in(
    folder: Path, name: str, advised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "types.tsv").write_text("")
    path = write(folder / "eval.py", f"open({name!r})\n")
    monkeypatch.chdir(folder.parent)

    advice = f"; the config reads files relative to the working directory: run it in {folder.name}"
    missing = f"eval.py:1: FileNotFoundError: [Errno 2] No such file or directory: {name!r}"
    assert faults_of(path) == (missing + advice * advised,)


def test_a_file_that_changed_is_read_anew(folder: Path) -> None:
    for dimension in (8, 6):
        path = write(folder / "eval.py", THEIRS.replace("'dimension': 8", f"'dimension': {dimension}"))
        assert dimension == load_config(path).dimension


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("{folder}/absent.py", "{folder}/absent.py: no such config file"),
        ("absent/eval.py", "absent/eval.py: no such config file"),
        ("{folder}", "{folder} is a folder, not a config file"),
        ("{folder}/checkpoint", "{folder}/checkpoint is a folder, not a config file; did you mean its config.json?"),
    ],
)
def test_a_missing_file_or_a_directory_gives_one_line(folder: Path, path: str, fault: str) -> None:
    write(folder / "checkpoint" / "config.json", "{}")

    assert (fault.format(folder=folder),) == faults_of(path.format(folder=folder))


def test_a_file_that_cannot_be_opened_gives_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(folder / "eval.py", THEIRS)

    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pbgeval.config.loading.read_bytes", refuse)
    assert (f"{path}: cannot read the config file: Permission denied",) == faults_of(path)


# where paths lead


@pytest.mark.parametrize(
    ("name", "text"), [("ours.py", OURS), ("eval.py", THEIRS), ("eval.json", json.dumps(SETTINGS))]
)
def test_paths_start_in_the_configs_folder_those_of_pbg_in_the_working_directory_before(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    elsewhere = folder.parent
    (elsewhere / "entity").mkdir()
    monkeypatch.chdir(elsewhere)
    write(folder / name, text)

    config = load_config(os.path.join("place", name))
    places = ((folder if name == "ours.py" else elsewhere) / "entity", folder / "checkpoint", folder / "edges")
    assert list(map(str, places)) == [config.entity_path, config.checkpoint_path, *config.edge_paths]

    (folder / "edges").rmdir()
    there = f"{elsewhere / 'edges'} (edges, relative to the working directory) or " if name != "ours.py" else ""
    fault = f"no such directory: {there}{folder / 'edges'} (edges, relative to the config's folder)"
    assert (f"{name}: edge_paths[0]: {fault}",) == faults_of(folder / name)


def test_a_file_in_the_place_of_a_directory_and_an_absolute_path_are_said_to_be(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    write(folder / "file", "")
    data = SETTINGS | {"entity_path": "file", "checkpoint_path": str(folder / "absent")}

    assert (
        f"eval.json: entity_path: {folder / 'file'} (file, relative to the working directory) is not a directory",
        f"eval.json: checkpoint_path: no such directory: {folder / 'absent'}",
    ) == faults_of(write(folder / "eval.json", json.dumps(data)))


def test_the_working_directory_is_that_of_the_call_even_if_the_file_changes_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    write(folder / "eval.py", "import os\nos.chdir('/')\n" + THEIRS)

    assert str(folder / "entity") == load_config(folder / "eval.py", ["entity_path=place/entity"]).entity_path


def test_the_config_of_a_checkpoint_implies_its_folder(folder: Path) -> None:
    data = json.dumps(SETTINGS | {"checkpoint_path": "of/training", "entity_path": str(folder / "entity")})
    path, overrides = write(folder / "checkpoint" / "config.json", data), [f"edge_paths={folder / 'edges'}"]

    (fault,) = faults_of(path, *overrides)
    assert fault.startswith("config.json: checkpoint_path: no such directory: "), fault

    write(folder / "checkpoint" / "checkpoint_version.txt", "1\n")
    config = load_config(path, overrides)
    chosen = load_config(path, [*overrides, f"checkpoint_path={folder / 'edges'}"]).checkpoint_path
    assert (str(path.parent), "checkpoint", str(folder / "edges")) == (config.checkpoint_path, config.name, chosen)


# reference data


@pytest.mark.reference
@pytest.mark.parametrize("case", CASES)
def test_the_config_of_every_reference_checkpoint_loads_with_paths_of_now(reference_path: Path, case: str) -> None:
    folder = reference_path / "golden" / case
    source = folder / "checkpoint" / "config.json"
    config = load_config(source, [f"entity_path={folder / 'entity'}", f"edge_paths={folder / 'edges_test'}"])

    raw = json.loads(source.read_text())
    loaded = {key: value for key, value in attrs.asdict(config).items() if key in raw and key not in config.ignored}
    now = {key: loaded[key] for key in ("entity_path", "edge_paths", "checkpoint_path")}
    assert {"lr", "num_epochs", "half_precision"} <= set(config.ignored)
    assert loaded == {key: value for key, value in raw.items() if key not in config.ignored} | now
    assert str(folder / "checkpoint") == config.checkpoint_path
