"""Every fault of a config is one line that says where, what was expected and what was found; all come at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbgeval.config import EvalConfig, load_config, read_relation_groups
from pbgeval.errors import ConfigError
from pbgeval.scoring.comparators import COMPARATORS
from pbgeval.scoring.operators import OPERATORS
from tests.examples import examples
from tests.fuzz.hostile_values import ODD_JSON
from tests.kit import refusals
from tests.kit.faults import set_at


def valid() -> dict[str, Any]:
    """Two partitioned types, one that is not, three relations; nothing is wrong."""
    return {
        "entities": {"user": {"num_partitions": 4}, "item": {"num_partitions": 4}, "tag": {"num_partitions": 1}},
        "relations": [
            {"name": "likes", "lhs": "user", "rhs": "item", "operator": "diagonal"},
            {"name": "has", "lhs": "item", "rhs": "tag", "operator": "complex_diagonal"},
            {"name": "likes", "lhs": "user", "rhs": "tag"},
        ],
        "dimension": 8,
        "entity_path": "entity",
        "edge_paths": ["edges"],
        "checkpoint_path": "checkpoint",
    }


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("c")  # short, since messages cut long values
    for name in ("entity", "edges", "checkpoint", "known", "given"):
        (folder / name).mkdir()
    (folder / "groups.json").write_text('{"social": ["knows"], "all of them": ["knows", "likes"]}')
    monkeypatch.chdir(folder)
    return folder


def faults_of(folder: Path, raw: object, *overrides: str) -> list[str]:
    (folder / "eval.json").write_text(json.dumps(raw))
    faults: tuple[str, ...] = ()
    try:
        load_config(folder / "eval.json", overrides)
    except ConfigError as error:
        faults = error.faults
    assert all(len(fault.splitlines()) == 1 for fault in faults)
    return list(faults)


def changed(**values: object) -> dict[str, Any]:
    return valid() | values


def nested(key: str, position: str | int, **values: object) -> dict[str, Any]:
    raw = valid()
    raw[key][position] |= values
    return raw


def dynamic() -> dict[str, Any]:
    return changed(dynamic_relations=True, global_emb=False, relations=valid()["relations"][:1])


def featurized() -> dict[str, Any]:
    raw = nested("entities", "tag", featurized=True)
    raw["relations"] = [{"name": "has", "lhs": "item", "rhs": "tag", "all_negs": False}]
    return raw | {"num_uniform_negs": 0}


def competing(**values: object) -> dict[str, Any]:
    return {
        "entities": {"user": {"num_partitions": 2}, "item": {"num_partitions": 1}},
        "relations": [
            {"name": "likes", "lhs": "user", "rhs": "item"},
            {"name": "knows", "lhs": "user", "rhs": "user", "all_negs": True},
        ],
        "dimension": 8,
        "entity_path": "entity",
        "edge_paths": ["edges"],
        "checkpoint_path": "checkpoint",
        **values,
    }


def featurized_items() -> dict[str, Any]:
    raw = competing(num_uniform_negs=0)
    raw["entities"]["item"]["featurized"] = True
    del raw["relations"][1]
    return raw


BASES = {
    "valid": valid,
    "dynamic": dynamic,
    "featurized": featurized,
    "competing": competing,
    "featurized items": featurized_items,
}


@pytest.mark.parametrize(
    ("base", "changes", "fault"),
    refusals.rows_of(Path(__file__).with_name("config_faults.txt")),
    ids=lambda of: of[:70],
)
def test_what_makes_no_sense_is_one_line_and_all_else_is_accepted(
    folder: Path, base: str, changes: str, fault: str
) -> None:
    raw = BASES[base]()
    for path, value in json.loads(changes).items():
        set_at(raw, path, value)

    expected = [] if fault == "accepted" else [f"eval.json: {fault}"]
    assert faults_of(folder, raw) == expected


def test_all_faults_come_at_once_and_none_hides_another(folder: Path) -> None:
    raw = valid()
    raw |= {"num_batch_neg": 3, "batch_size": "many", "comparator": "l3", "edge_paths": ["edges", "absent"]}
    raw["entities"]["item"]["num_partitions"] = 3
    raw["relations"][0] |= {"weight": "heavy", "operator": "diag"}
    raw["relations"][1] |= {"lhs": "person"}

    assert sorted(
        [
            "eval.json: num_batch_neg: unknown key; did you mean 'num_batch_negs'?",
            "eval.json: batch_size: expected an int, got 'many' (str)",
            f"eval.json: comparator: expected one of {', '.join(COMPARATORS)}, got 'l3'",
            "eval.json: entities['item'].num_partitions: is 3, but entities['user'] has 4; both need the same number",
            "eval.json: relations[0].weight: expected a number, got 'heavy' (str)",
            f"eval.json: relations[0].operator: expected one of {', '.join(sorted(OPERATORS))}, got 'diag'",
            "eval.json: relations[1].lhs: unknown entity type 'person'; entities has user, item, tag",
            f"eval.json: edge_paths[1]: no such directory: {folder}/absent (absent, relative to the working directory)",
            "-p dimension=a: expected an int, got 'a' (str)",
            "-p nothing: expected KEY=VALUE, for example -p candidates=all",
        ]
    ) == sorted(faults_of(folder, raw, "dimension=a", "nothing"))


def test_a_fault_is_not_reported_again_by_its_consequences(folder: Path) -> None:
    assert faults_of(
        folder,
        changed(
            entities={"user": {"num_partitions": "4"}, "item": 7},
            relations=[valid()["relations"][0], 0],
            entity_path=5,
            num_batch_negs=None,
            num_uniform_negs=0,
        ),
    ) == [
        "eval.json: entities['user'].num_partitions: expected an int, got '4' (str)",
        "eval.json: entities['item']: expected a dict with the keys num_partitions, featurized, dimension, got 7 (int)",
        "eval.json: relations[1]: expected a dict with the keys name, lhs, rhs, weight, operator, all_negs, "
        "got 0 (int)",
        "eval.json: entity_path: expected a string, got 5 (int)",
        "eval.json: num_batch_negs: expected an int, got None",
    ]


VALUES: st.SearchStrategy[object] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=examples(40))
@given(key=st.sampled_from([field.name for field in attrs.fields(EvalConfig)]), value=VALUES)
def test_any_value_of_any_key_gives_a_config_or_lines_and_never_another_exception(
    tmp_path_factory: pytest.TempPathFactory, key: str, value: object
) -> None:
    folder = tmp_path_factory.getbasetemp() / "any"
    for name in ("entity", "edges", "checkpoint"):
        (folder / name).mkdir(parents=True, exist_ok=True)

    for raw in (
        changed(**{key: value}),
        nested("relations", 1, lhs=value, weight=value),
        changed(relations=[value]),
        changed(entities={"user": value, "item": {"num_partitions": value}}),
    ):
        faults_of(folder, raw)


@pytest.mark.parametrize("text", ODD_JSON, ids=lambda text: text[:12])
@pytest.mark.parametrize("key", ["seed", "edge_paths", "entities", "relations", "comparator"])
def test_odd_json_is_refused_too(folder: Path, key: str, text: str) -> None:
    (folder / "eval.json").write_text(json.dumps(changed(**{key: "@"})).replace('"@"', text))

    assert refusals.faults_of(lambda: load_config(folder / "eval.json"), ConfigError)


# Paths and groups


WORKING = "relative to the working directory"
PLACES = [
    *(
        row
        for key in ("filter_paths", "train_paths")
        for row in (
            ({key: ["known", "{folder}/edges"]}, [], {key: ["{folder}/known", "{folder}/edges"]}),
            (
                {key: ["known", "groups.json"]},
                [],
                f"eval.json: {key}[1]: {{folder}}/groups.json (groups.json, {WORKING}): unknown extension '.json'; "
                "edges are read from .tsv, .txt, .del, .csv (also with .gz or .zst) and .parquet",
            ),
            (
                {key: ["edges.hdf5"]},
                [],
                f"eval.json: {key}[0]: {{folder}}/edges.hdf5 (edges.hdf5, {WORKING}): unknown extension '.hdf5'; "
                "write edges of one HDF5 file as .parquet",
            ),
            (
                {},
                [f"{key}=nowhere"],
                f"-p {key}=nowhere: {key}[0]: no such directory: {{folder}}/nowhere (nowhere, {WORKING})",
            ),
            (
                {key: ["knwon"]},
                [],
                f"eval.json: {key}[0]: no such directory: {{folder}}/knwon (knwon, {WORKING}); did you mean 'known'?",
            ),
        )
    ),
    ({"candidate_path": "given"}, [], {"candidate_path": "{folder}/given"}),
    ({"relation_groups": "groups.json"}, [], {"relation_groups": "{folder}/groups.json"}),
    (
        {"candidate_path": "groups.json"},
        [],
        f"eval.json: candidate_path: {{folder}}/groups.json (groups.json, {WORKING}) is not a directory",
    ),
    (
        {"relation_groups": "given"},
        [],
        f"eval.json: relation_groups: {{folder}}/given (given, {WORKING}) is not a file",
    ),
    ({"relation_groups": ""}, [], "eval.json: relation_groups: expected the path of a file, got ''"),
    # An override is blamed for what it makes wrong.
    (
        {"candidates": "all", "workers": 1},
        ["pbg_semantics=True"],
        "-p pbg_semantics=True: candidates: pbg_semantics = True does not allow 'all', because ",
    ),
    (
        {},
        ["restrict_entities.3=x"],
        "-p restrict_entities.3=x: restrict_entities is not set by the config file, or has the wrong form",
    ),
    ({"restrict_entities": []}, ["restrict_entities=user:0:1,user:1:1"], {}),
    ({"restrict_entities": []}, ["restrict_entities=none"], {}),
]


@pytest.mark.parametrize(("settings", "overrides", "expected"), PLACES)
def test_paths_are_found_and_overrides_blamed(
    folder: Path, settings: dict[str, Any], overrides: list[str], expected: str | dict[str, Any]
) -> None:
    (folder / "edges.hdf5").touch()
    raw = json.loads(json.dumps(competing(**settings)).replace("{folder}", str(folder)))
    faults = [fault.replace(str(folder), "{folder}") for fault in faults_of(folder, raw, *overrides)]

    if isinstance(expected, str):
        assert [fault[: len(expected)] if "because" in expected else fault for fault in faults] == [expected]
    else:
        found = attrs.asdict(load_config("eval.json", overrides))
        assert {key: found[key] for key in expected} == json.loads(
            json.dumps(expected).replace("{folder}", str(folder))
        )


FORM = 'expected a JSON object such as {"family": ["parent_of", "child_of"]}, got '
GROUPS = {
    "not JSON": ("{", ":1:2: not valid JSON: Expecting property name enclosed in double quotes"),
    "not text": (
        b"\xff\xfe",
        ": not valid JSON: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte",
    ),
    "a list": ('["likes"]', f": {FORM}['likes']"),
    "no group": ("{}", f": {FORM}" + "{}"),
    "a name for a list": ('{"a": "likes"}', ": group 'a': expected a list of names of relations, got 'likes' (str)"),
    "an empty group": ('{"a": []}', ": group 'a': needs at least one relation"),
    "a number": ('{"a": ["likes", 1]}', ": group 'a': element 1: expected the name of a relation, got 1 (int)"),
    "a group twice": ('{"a": ["x"], "a": ["y"]}', ": the name 'a' occurs twice"),
}


@pytest.mark.parametrize(("content", "fault"), GROUPS.values(), ids=GROUPS.keys())
def test_a_file_of_groups_in_another_form_is_refused(folder: Path, content: str | bytes, fault: str) -> None:
    path = folder / "wrong.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())

    assert [f"eval.json: relation_groups: {path}{fault}"] == faults_of(folder, competing(relation_groups="wrong.json"))
    assert f"{path}{fault}" == refusals.fault_of(lambda: read_relation_groups(path))


def test_groups_are_read_with_their_relations_and_may_overlap(folder: Path) -> None:
    assert read_relation_groups(folder / "groups.json") == {"social": ["knows"], "all of them": ["knows", "likes"]}
    assert "cannot read the file: Is a directory" in refusals.fault_of(lambda: read_relation_groups(folder))
