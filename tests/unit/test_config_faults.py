"""Every fault of a config is one line that says where, what was expected and what was found; all come at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbgeval.config import EvalConfig, load_config
from pbgeval.errors import ConfigError
from tests.examples import examples

Change = Callable[[dict[str, Any]], object]


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
def folder(tmp_path: Path) -> Path:
    for name in ("entity", "edges", "checkpoint"):
        (tmp_path / name).mkdir()
    return tmp_path


def faults_of(folder: Path, raw: object, *overrides: str) -> list[str]:
    path = folder / "eval.json"
    path.write_text(json.dumps(raw))
    try:
        load_config(path, overrides)
    except ConfigError as error:
        faults = error.faults
    else:
        faults = ()
    assert all(len(fault.splitlines()) == 1 for fault in faults)
    return list(faults)


def changed(**values: object) -> dict[str, Any]:
    return valid() | values


def nested(key: str, position: str | int, **values: object) -> dict[str, Any]:
    raw = valid()
    raw[key][position] |= values
    return raw


def without(raw: dict[str, Any], *path: str | int) -> dict[str, Any]:
    owner: Any = raw
    for part in path[:-1]:
        owner = owner[part]
    del owner[path[-1]]
    return raw


OPERATORS = (
    "affine, complex_diagonal, diagonal, linear, none, projected_translation, rotate, swapped_diagonal, translation"
)
WRONG_TYPES = {
    "a string for an int": (changed(batch_size="1000"), "batch_size: expected an int, got '1000' (str)"),
    "a bool for an int": (changed(batch_size=True), "batch_size: expected an int, got True (bool)"),
    "a float for an int": (changed(num_batch_negs=1.5), "num_batch_negs: expected an int, got 1.5 (float)"),
    "a whole float for an int": (changed(dimension=8.0), "dimension: expected an int, got 8.0 (float)"),
    "None for an int": (changed(batch_size=None), "batch_size: expected an int, got None"),
    "a bool for a number": (changed(max_norm=True), "max_norm: expected a number, got True (bool)"),
    "a string for a number": (changed(margin="0.1"), "margin: expected a number, got '0.1' (str)"),
    "nan for a number": (changed(margin=float("nan")), "margin: expected a finite number, got nan"),
    "an int for a bool": (changed(bias=1), "bias: expected a bool (True or False), got 1 (int)"),
    "a string for a bool": (changed(bias="true"), "bias: expected a bool (True or False), got 'true' (str)"),
    "an int for a string": (changed(comparator=3), "comparator: expected a string, got 3 (int)"),
    "a string for a list": (changed(edge_paths="edges"), "edge_paths: expected a list, got 'edges' (str)"),
    "a dict for a list": (changed(hits_at={}), "hits_at: expected a list, got {} (dict)"),
    "a wrong element": (changed(hits_at=[1, "3"]), "hits_at[1]: expected an int, got '3' (str)"),
    "a list for a dict": (changed(entities=[]), "entities: expected a dict, got [] (list)"),
    "a number for an entity type": (
        changed(entities={"user": 4, "item": {"num_partitions": 4}, "tag": {"num_partitions": 1}}),
        "entities['user']: expected a dict with the keys num_partitions, featurized, dimension, got 4 (int)",
    ),
    "a wrong type in an entity type": (
        nested("entities", "user", num_partitions="4"),
        "entities['user'].num_partitions: expected an int, got '4' (str)",
    ),
    "a wrong type in a relation": (
        nested("relations", 1, weight="heavy"),
        "relations[1].weight: expected a number, got 'heavy' (str)",
    ),
    "a wrong type of an ignored key": (changed(lr="fast"), "lr: expected a number, got 'fast' (str)"),
}


UNKNOWN_OR_MISSING = {
    "misspelt": (changed(num_batch_neg=3), "num_batch_neg: unknown key; did you mean 'num_batch_negs'?"),
    "mixed case": (changed(numUniformNegs=3), "numUniformNegs: unknown key; did you mean 'num_uniform_negs'?"),
    "like nothing": (changed(xyzzy=3), "xyzzy: unknown key; `kgeval-dist --help-config` lists all keys"),
    "not a key though a field": (
        changed(source="x"),
        "source: unknown key; `kgeval-dist --help-config` lists all keys",
    ),
    "misspelt in an entity type": (
        nested("entities", "tag", num_partition=1),
        "entities['tag'].num_partition: unknown key; did you mean 'num_partitions'?",
    ),
    "like nothing in an entity type": (
        nested("entities", "tag", rows=1),
        "entities['tag'].rows: unknown key; expected one of dimension, featurized, num_partitions",
    ),
    "misspelt in a relation": (
        nested("relations", 2, wieght=1),
        "relations[2].wieght: unknown key; did you mean 'weight'?",
    ),
    "missing": (without(valid(), "checkpoint_path"), "checkpoint_path: required key missing"),
    "missing entities": (without(valid(), "entities"), "entities: required key missing"),
    "missing in an entity type": (
        without(valid(), "entities", "user", "num_partitions"),
        "entities['user'].num_partitions: required key missing",
    ),
    "missing in a relation": (without(valid(), "relations", 0, "lhs"), "relations[0].lhs: required key missing"),
}


RANGES = {
    "batch_size": (changed(batch_size=0, num_batch_negs=0), "batch_size: expected an int >= 1, got 0"),
    "num_batch_negs": (changed(num_batch_negs=-1), "num_batch_negs: expected an int >= 0, got -1"),
    "num_uniform_negs": (changed(num_uniform_negs=-2), "num_uniform_negs: expected an int >= 0, got -2"),
    "workers": (changed(workers=0), "workers: expected an int >= 1, got 0"),
    "dimension": (changed(dimension=0), "dimension: expected an int >= 1, got 0"),
    "margin": (changed(margin=-1), "margin: expected a number >= 0, got -1.0"),
    "max_norm": (changed(max_norm=0), "max_norm: expected a number > 0 or None, got 0.0"),
    "seed below": (changed(seed=-1), "seed: expected an int >= 0 and < 2**63, got -1"),
    "seed above": (changed(seed=2**63), f"seed: expected an int >= 0 and < 2**63, got {2**63}"),
    "hits_at": (changed(hits_at=[10, 0]), "hits_at[1]: expected an int >= 1, got 0"),
    "hits_at empty": (changed(hits_at=[]), "hits_at: expected at least one k, got []"),
    "edge_paths empty": (changed(edge_paths=[]), "edge_paths: expected at least one directory, got []"),
    "relations empty": (changed(relations=[]), "relations: expected at least one relation, got none"),
    "weight": (nested("relations", 0, weight=0), "relations[0].weight: expected a number > 0, got 0.0"),
    "name": (nested("relations", 0, name=""), "relations[0].name: expected a name, got ''"),
    "num_partitions": (
        nested("entities", "tag", num_partitions=0),
        "entities['tag'].num_partitions: expected an int >= 1, got 0",
    ),
    "a type's dimension": (
        without(nested("entities", "tag", dimension=-4), "relations", slice(1, 3)),  # type: ignore[arg-type]
        "entities['tag'].dimension: expected an int >= 1, got -4",
    ),
}


NAMES = {
    "operator": (
        nested("relations", 1, operator="diag"),
        f"relations[1].operator: expected one of {OPERATORS}, got 'diag'",
    ),
    "comparator": (
        changed(comparator="l3"),
        "comparator: expected one of dot, cos, l2, squared_l2, l1, complex_l1, clamped_dot, got 'l3'",
    ),
    "loss_fn": (changed(loss_fn="hinge"), "loss_fn: expected one of logistic, ranking, softmax, got 'hinge'"),
    "candidates": (changed(candidates="every"), "candidates: expected one of sampled, partition, all, got 'every'"),
    "rank_type": (
        changed(rank_type="mean"),
        "rank_type: expected one of best, avg, average, worst, optimistic, realistic, pessimistic, got 'mean'",
    ),
    "lhs": (
        nested("relations", 0, lhs="person"),
        "relations[0].lhs: expected an entity type (user, item, tag), got 'person'",
    ),
}


def dynamic(**values: object) -> dict[str, Any]:
    raw = changed(dynamic_relations=True, global_emb=False, **values)
    return raw | {"relations": values.get("relations", raw["relations"][:1])}


TOGETHER = {
    "unequal partition counts": (
        nested("entities", "item", num_partitions=3),
        "entities['item'].num_partitions: must equal that of 'user' (4), got 3",
    ),
    "batch size": (
        changed(num_batch_negs=300),
        "batch_size: must be a multiple of num_batch_negs (300), got 1000",
    ),
    "no candidates": (
        changed(num_batch_negs=0, num_uniform_negs=0),
        "num_batch_negs: expected an int >= 1, or num_uniform_negs >= 1, as relations[0] is ranked against sampled "
        "candidates, got 0 for both; or set all_negs = True or candidates = 'partition'",
    ),
    "global_emb by default": (
        without(dynamic(), "global_emb"),
        "global_emb: expected False with dynamic_relations = True, got True (PBG's default); set global_emb = False",
    ),
    "several dynamic relations": (
        dynamic(relations=valid()["relations"]),
        "relations: expected exactly one with dynamic_relations = True, got 3",
    ),
    "both sides disabled": (
        changed(disable_lhs_negs=True, disable_rhs_negs=True),
        "disable_rhs_negs: expected False as disable_lhs_negs = True, got True; nothing would be ranked",
    ),
    "unequal dimensions": (
        without(nested("entities", "user", dimension=6), "relations", 2),
        "relations[0]: both sides must have the same dimension, but 'user' has 6 and 'item' has 8",
    ),
    "no dimension": (
        without(nested("entities", "user", dimension=8), "dimension"),
        "dimension: required key missing; entities without a dimension of their own: 'item', 'tag'",
    ),
    "odd dimension": (
        changed(dimension=7),
        "relations[1].operator: complex_diagonal needs an even dimension, but 'tag' has 7",
    ),
    "bias": (
        without(
            changed(entities={"user": {"num_partitions": 1}, "item": {"num_partitions": 4, "dimension": 1}}, bias=True),
            "relations",
            slice(0, 3),  # type: ignore[arg-type]
        )
        | {"relations": [{"name": "r", "lhs": "user", "rhs": "user"}]},
        "bias: expected False or dimensions >= 2, as one of them is the bias; entities['item'] has 1",
    ),
    "pbg_semantics": (
        changed(pbg_semantics=True),
        "workers: required with pbg_semantics = True: PBG cuts each bucket into that many slices before it draws "
        "chunks, so the number is part of its protocol; set the one that PBG ran with (its default is the core count)",
    ),
}


def featurized(all_negs: bool = False, **values: object) -> dict[str, Any]:
    raw = nested("entities", "tag", featurized=True) | {"num_uniform_negs": 0} | values
    raw["relations"] = [{"name": "has", "lhs": "item", "rhs": "tag", "all_negs": all_negs}]
    return raw


FEATURIZED = {
    "uniform draws": (
        featurized(num_uniform_negs=50),
        "num_uniform_negs: expected 0, as entity type 'tag' is featurized, got 50",
    ),
    "no batch negatives": (
        featurized(num_batch_negs=0, num_uniform_negs=50, pbg_semantics=True, workers=1),
        "num_batch_negs: expected an int >= 1, as entity type 'tag' is featurized and has no other candidates, got 0",
    ),
    "all_negs": (
        featurized(all_negs=True),
        "relations[0].all_negs: expected False, as entity type 'tag' is featurized, got True",
    ),
    "featurized, with partition": (
        featurized(candidates="partition"),
        "candidates: expected 'sampled', as entity type 'tag' is featurized, got 'partition'",
    ),
}


FAULTY = WRONG_TYPES | UNKNOWN_OR_MISSING | RANGES | NAMES | TOGETHER | FEATURIZED


@pytest.mark.parametrize(("raw", "fault"), FAULTY.values(), ids=FAULTY.keys())
def test_a_fault_is_one_line(folder: Path, raw: dict[str, Any], fault: str) -> None:
    assert [f"eval.json: {fault}"] == faults_of(folder, raw)


ACCEPTED = {
    "ints for numbers, null for what is unset": changed(max_norm=1, margin=1, workers=None),
    "relations of one name": valid(),
    "a batch size with no batch negatives": changed(batch_size=7, num_batch_negs=0),
    "no negatives where all compete": changed(num_batch_negs=0, num_uniform_negs=0, candidates="partition"),
    "a type with other partitions when it has one": nested("entities", "tag", num_partitions=1),
    "dynamic relations": dynamic(),
    "own dimensions only": without(
        changed(entities={name: {"num_partitions": 1, "dimension": 4} for name in ("user", "item", "tag")}),
        "dimension",
    ),
    "featurized": featurized(),
    "featurized uniform draws, which PBG skips": featurized(num_uniform_negs=50, pbg_semantics=True, workers=2),
    "featurized on a side that is not ranked": featurized(all_negs=True, disable_rhs_negs=True),
    "a seed as large as may be": changed(seed=2**63 - 1),
    "synonyms of rank types": changed(rank_type="avg"),
}


@pytest.mark.parametrize("raw", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_what_makes_sense_is_accepted(folder: Path, raw: dict[str, Any]) -> None:
    assert [] == faults_of(folder, raw)


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
            "eval.json: comparator: expected one of dot, cos, l2, squared_l2, l1, complex_l1, clamped_dot, got 'l3'",
            "eval.json: entities['item'].num_partitions: must equal that of 'user' (4), got 3",
            "eval.json: relations[0].weight: expected a number, got 'heavy' (str)",
            f"eval.json: relations[0].operator: expected one of {OPERATORS}, got 'diag'",
            "eval.json: relations[1].lhs: expected an entity type (user, item, tag), got 'person'",
            f"eval.json: edge_paths[1]: expected a directory; found none at {Path.cwd() / 'absent'} (in the working "
            f"directory) nor at {folder / 'absent'} (in the config's folder)",
            "-p dimension=a: expected an int, got 'a' (str)",
            "-p nothing: expected KEY=VALUE, found no '='",
        ]
    ) == sorted(faults_of(folder, raw, "dimension=a", "nothing"))


def test_a_fault_is_not_reported_again_by_its_consequences(folder: Path) -> None:
    assert [
        "eval.json: entities['user'].num_partitions: expected an int, got '4' (str)",
        "eval.json: entities['item']: expected a dict with the keys num_partitions, featurized, dimension, got 7 (int)",
        "eval.json: relations[1]: expected a dict with the keys name, lhs, rhs, weight, operator, all_negs, "
        "got 0 (int)",
        "eval.json: entity_path: expected a string, got 5 (int)",
        "eval.json: num_batch_negs: expected an int, got None",
    ] == faults_of(
        folder,
        changed(
            entities={"user": {"num_partitions": "4"}, "item": 7},
            relations=[valid()["relations"][0], 0],
            entity_path=5,
            num_batch_negs=None,
            num_uniform_negs=0,
        ),
    )


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
