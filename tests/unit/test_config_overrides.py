"""`-p KEY=VALUE` changes any key of any kind of config file, and is blamed for the faults it makes."""

from __future__ import annotations

import builtins
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pbgeval.config import EvalConfig, load_config
from pbgeval.config.overrides import apply_override
from pbgeval.errors import ConfigError
from tests.kit.refusals import faults_of, rows_of

SETTINGS = {
    "entities": {"all": {"num_partitions": 2}, "a.b": {"num_partitions": 1}},
    "relations": [{"name": "r", "lhs": "all", "rhs": "all"}, {"name": "s", "lhs": "all", "rhs": "a.b"}],
    "dimension": 8,
    "entity_path": "entity",
    "edge_paths": ["edges"],
    "checkpoint_path": "checkpoint",
    "bias": False,
    "hits_at": [1, 10],
}
OURS = """
from pbgeval.config import EntitySchema, EvalConfig, RelationSchema

def get_config():
    settings = {settings!r}
    settings["entities"] = {{name: EntitySchema(**entity) for name, entity in settings["entities"].items()}}
    settings["relations"] = [RelationSchema(**relation) for relation in settings["relations"]]
    return EvalConfig(**settings)
"""
THEIRS = """
SETTINGS = {settings!r}

def get_torchbiggraph_config():
    return SETTINGS
"""

Load = Callable[..., EvalConfig]


@pytest.fixture(params=["ours.py", "theirs.py", "data.json"])
def load(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Loads the same settings from each kind of file, in its folder, with the overrides given."""
    texts = {
        "ours.py": OURS.format(settings=SETTINGS),
        "theirs.py": THEIRS.format(settings=SETTINGS),
        "data.json": json.dumps(SETTINGS),
    }
    for name in ("entity", "edges", "checkpoint", "more"):
        (tmp_path / name).mkdir()
    (tmp_path / request.param).write_text(texts[request.param])
    monkeypatch.chdir(tmp_path)
    return lambda *overrides: load_config(request.param, overrides)


@pytest.mark.parametrize(
    ("override", "key", "expected"),
    [
        ("batch_size=500", "batch_size", 500),
        ("seed = 3", "seed", 3),
        ("restrict_entities=a=b", "restrict_entities", ["a=b"]),
        ("margin=2", "margin", 2.0),
        ("max_norm=1e-1", "max_norm", 0.1),
        ("max_norm=none", "max_norm", None),
        ("max_norm=", "max_norm", None),
        ("workers=null", "workers", None),
        ("workers=4", "workers", 4),
        ("rank_type=worst", "rank_type", "worst"),
        ("rank_type=None", "rank_type", None),
        ("comparator=dot", "comparator", "dot"),
        ("hits_at=1,3", "hits_at", [1, 3]),
        ("hits_at=7", "hits_at", [7]),
        ("hits_at.1=20", "hits_at", [1, 20]),
        *((f"breakdowns={text}", "breakdowns", []) for text in ("", "none", "[]")),
        ("dictionary_path=none", "dictionary_path", None),
        ("model_options=none", "model_options", {}),
        *((f"bias={text}", "bias", True) for text in ("true", "True", "TRUE", "1", "yes")),
        *((f"global_emb={text}", "global_emb", False) for text in ("false", "False", "0", "No")),
    ],
)
def test_a_value_is_read_by_the_type_of_its_key(load: Load, override: str, key: str, expected: object) -> None:
    actual = getattr(load(override), key)

    assert (type(expected), expected) == (type(actual), actual)


def test_dots_lead_into_entities_and_relations(load: Load) -> None:
    config = load(
        "entities.all.num_partitions=4",
        "entities.a.b.num_partitions=4",
        "relations.0.operator=diagonal",
        "relations.1.all_negs=yes",
        "relations.0.weight=2",
    )

    assert [entity.num_partitions for entity in config.entities.values()] == [4, 4]
    assert [(relation.operator, relation.all_negs, relation.weight) for relation in config.relations] == [
        ("diagonal", False, 2.0),
        ("none", True, 1.0),
    ]


def test_dots_lead_into_options_of_a_model() -> None:
    raw: dict[str, Any] = {"model_options": {"model": "complex"}}

    for text in ("entity_labels.person=p.tsv", "entity_labels.a.b=c.tsv"):
        apply_override(raw, f"model_options.{text}")

    labels = {"person": "p.tsv", "a.b": "c.tsv"}
    assert raw == {"model_options": {"model": "complex", "entity_labels": labels}}
    with pytest.raises(ConfigError, match="cannot set a key of 'complex'"):
        apply_override(raw, "model_options.model.x=1")
    for text in ("model_options.=x", "model_options.entity_labels.=x"):
        with pytest.raises(ConfigError):
            apply_override(raw, text)
    assert raw["model_options"]["model"] == "complex"


def test_paths_of_overrides_start_in_the_working_directory(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "more"
    (elsewhere / "edges").mkdir()
    config = load("edge_paths=more", "edge_paths=edges,more")  # the last one counts
    assert [str(tmp_path / "edges"), str(tmp_path / "more")] == config.edge_paths

    monkeypatch.chdir(elsewhere)
    config = load_config(config.source or "", ["edge_paths.0=edges"])
    assert ([str(elsewhere / "edges")], str(tmp_path / "entity")) == (config.edge_paths, config.entity_path)


@pytest.mark.parametrize(
    ("overrides", "faults"), [of for _, *of in rows_of(Path(__file__).with_name("override_faults.txt"))]
)
def test_a_fault_names_the_override_that_makes_it(load: Load, overrides: str, faults: str, tmp_path: Path) -> None:
    """Also of other keys; a path is looked for in one place only."""
    found = faults_of(lambda: load(*overrides.split(" | ")), ConfigError)

    pairs = zip(overrides.split(" | "), faults.split(" | "), strict=True)
    lines = [f"-p {one}: {fault}" for one, fault in pairs if fault != "-"]
    assert lines == [fault.replace(str(tmp_path), "{folder}") for fault in found]


def test_an_override_does_not_change_what_the_config_file_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("entity", "edges", "checkpoint"):
        (tmp_path / name).mkdir()
    (tmp_path / "eval.py").write_text(THEIRS.format(settings=SETTINGS) + "\nimport builtins\nbuiltins.seen = SETTINGS")
    monkeypatch.setattr(builtins, "seen", None, raising=False)

    load_config(tmp_path / "eval.py", ["entities.all.num_partitions=4"])
    assert builtins.seen == SETTINGS  # type: ignore[attr-defined]
