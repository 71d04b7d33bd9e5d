"""Names of entities and relations -> their numbers, by a table made by hand; and every way in which a name is wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbgeval.config import EntitySchema, EvalConfig, RelationSchema
from pbgeval.config.overrides import apply_override
from pbgeval.errors import ConfigError, StorageError
from pbgeval.inputs.names import Restrictions, read_restrictions, relation_groups, relation_labels
from pbgeval.notation import EntityNumbering, Side
from tests.examples import examples
from tests.kit import refusals

# Numbers: item 0..3, user partition 0 4..6, partition 1 7..8.
SIZES = {("user", 0): 3, ("user", 1): 2, ("item", 0): 4}
NAMES = {
    ("user", 0): ["ann", "bob", "eve"],
    ("user", 1): ["dee", "ann"],
    ("item", 0): ["pen", "eve", "user:0:1", "x:1:2"],
}


def config(folder: Path, names: Mapping[tuple[str, int], Sequence[str]] = NAMES, **settings: Any) -> EvalConfig:
    for (entity_type, partition), of_partition in names.items():
        (folder / f"entity_names_{entity_type}_{partition}.json").write_text(json.dumps(of_partition))
    defaults: dict[str, Any] = {
        "entities": {"user": EntitySchema(num_partitions=2), "item": EntitySchema(num_partitions=1)},
        "relations": [
            RelationSchema(name="likes", lhs="user", rhs="item"),
            RelationSchema(name="knows", lhs="user", rhs="user"),
            RelationSchema(name="likes", lhs="item", rhs="item"),
            RelationSchema(name="0", lhs="item", rhs="item"),
        ],
        "entity_path": str(folder),
        "edge_paths": ["edges"],
        "checkpoint_path": "checkpoint",
        "source": Path("/somewhere/eval.py"),
    }
    return EvalConfig(**(defaults | settings))


def dynamic(folder: Path, names: list[str] | None, **settings: Any) -> EvalConfig:
    if names is not None:
        (folder / "dynamic_rel_names.json").write_text(json.dumps(names))
    relations = [RelationSchema(name="any", lhs="user", rhs="user")]
    return config(folder, dynamic_relations=True, relations=relations, **settings)


def read(evaluated: EvalConfig, num_relations: int = 4) -> Restrictions:
    return read_restrictions(evaluated, EntityNumbering.from_sizes(SIZES), num_relations)


def faults_of(evaluated: EvalConfig, num_relations: int = 4) -> list[str]:
    faults = refusals.faults_of(lambda: read(evaluated, num_relations), ConfigError)
    return [fault.removeprefix("eval.py: ") for fault in faults]


def numbers_in(found: Restrictions) -> dict[str, list[int]]:
    """The numbers of each list that there is."""
    lists = {"entities": found.entities, "relations": found.relations}
    lists |= {side.pick("head", "tail"): numbers for side, numbers in found.of_side.items()}
    assert {np.dtype(np.int64)} >= {array.dtype for array in lists.values() if array is not None}
    return {name: array.tolist() for name, array in lists.items() if array is not None}


ALL_LISTS = {
    "restrict_entities": ["dee", "user:1:1", "pen", "user:0:0", "pen", "item:0:0"],
    "restrict_relations": ["knows", "rel:2", "1"],
    "head_candidates": ["bob", "dee"],
    "tail_candidates": ["item:0:0"],
}


@pytest.mark.parametrize(
    ("names", "wanted", "numbers"),
    [
        (NAMES, ALL_LISTS, {"entities": [0, 4, 7, 8], "relations": [1, 2], "head": [5, 7], "tail": [0]}),
        # An address wins over a name of its form, but not where there is no such type.
        (NAMES, {"restrict_entities": ["user:0:1"]}, {"entities": [5]}),
        (NAMES, {"restrict_entities": ["x:1:2"]}, {"entities": [3]}),
        # A name of a relation wins over an index.
        (NAMES, {"restrict_relations": ["0"]}, {"relations": [3]}),
        (NAMES, {"restrict_relations": ["0", "rel:0"]}, {"relations": [0, 3]}),
        # Names of types beside each other do not need to be there.
        ({("user", 1): NAMES["user", 1]}, {"restrict_entities": ["dee", "ann", "item:0:2"]}, {"entities": [2, 7, 8]}),
        ({}, {"restrict_entities": ["user:0:0"]}, {"entities": [4]}),
    ],
)
def test_names_and_addresses_become_sorted_numbers_each_once(
    tmp_path: Path, names: dict[tuple[str, int], list[str]], wanted: dict[str, list[str]], numbers: dict[str, list[int]]
) -> None:
    found = read(config(tmp_path, names, **wanted))

    assert (numbers_in(found), found.drops_edges) == (numbers, True)


@settings(max_examples=examples(20))
@given(
    sizes=st.dictionaries(st.sampled_from("abc"), st.lists(st.integers(0, 4), min_size=1, max_size=3), min_size=1),
    data=st.data(),
)
def test_any_place_of_any_graph_is_found_by_address_and_by_name(
    tmp_path_factory: pytest.TempPathFactory, sizes: dict[str, list[int]], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("n")
    places = [(t, p, row) for t in sorted(sizes) for p, size in enumerate(sizes[t]) for row in range(size)]
    if not places:
        return
    names = {(t, p): [f"{t} {p} {row}" for row in range(size)] for t in sizes for p, size in enumerate(sizes[t])}
    chosen = data.draw(st.lists(st.sampled_from(range(len(places))), min_size=1))
    separators = data.draw(st.lists(st.sampled_from(": "), min_size=len(chosen), max_size=len(chosen)))
    words = [sep.join(map(str, places[index])) for index, sep in zip(chosen, separators, strict=True)]
    numbering = EntityNumbering.from_sizes({(t, p): size for t in sizes for p, size in enumerate(sizes[t])})

    found = read_restrictions(config(folder, names, head_candidates=words), numbering, 4)
    assert sorted(set(chosen)) == found.of_side[Side.LHS].tolist()


@pytest.mark.parametrize(
    ("lists", "fault"), [of for _, *of in refusals.rows_of(Path(__file__).with_name("restriction_faults.txt"))]
)
def test_a_name_that_stands_for_nothing_or_too_much_is_refused(tmp_path: Path, lists: str, fault: str) -> None:
    assert [fault] == faults_of(config(tmp_path, **json.loads(lists)))


@pytest.mark.parametrize("key", ["restrict_relations", "restrict_entities"])
@pytest.mark.parametrize("others", [[], ["a"]])
def test_a_name_that_was_cut_at_its_comma_is_told_how_to_write(key: str, others: list[str], tmp_path: Path) -> None:
    kind, names = key.removeprefix("restrict_"), ["a", "r, drei", "a,b,c", "r", "drei"]
    entities = {("user", 0): names[:3], ("user", 1): names[3:], ("item", 0): ["w", "x", "y", "z"]}
    evaluated = dynamic(tmp_path, names, **{key: ["x"]})
    one = {"relations": "relation", "entities": "entity"}[kind]
    number = {"relations": ["rel:1", "rel:2"], "entities": ["user:0:1", "user:0:2"]}[kind]

    def faults(text: str) -> list[str]:
        raw: dict[str, Any] = {}
        apply_override(raw, f"{key}={text}")
        return faults_of(config(tmp_path, entities, **{**given, key: raw[key]}), 5)

    given = {"dynamic_relations": True, "relations": evaluated.relations}
    advice = "or a list of names in the config file"
    for name, other in zip(["r, drei", "a,b,c"], number, strict=True):
        [fault] = faults(",".join([*others, name, *others]))
        assert fault == f"{key}: {one} {name!r} has a comma, where -p cuts: write {other!r}, {advice}"
        assert numbers_in(read(config(tmp_path, entities, **{**given, key: [other]}), 5)) == numbers_in(
            read(config(tmp_path, entities, **{**given, key: [name]}), 5)
        )
    assert " drei'; " in faults("a, drei")[0], "no name was cut"


def test_all_faults_come_at_once_and_many_are_cut(tmp_path: Path) -> None:
    assert faults_of(
        config(
            tmp_path,
            restrict_relations=["nows"],
            restrict_entities=["peen", "bob"],
            head_candidates=["eve", "user:0:9", "eve"],
        )
    ) == [
        "restrict_relations: unknown relation 'nows'; did you mean 'knows'?",
        "restrict_entities: unknown entity 'peen'; did you mean 'pen'?",
        "head_candidates: ambiguous entity 'eve': 2 have that name; write 'item:0:1' or 'user:0:2'",
        "head_candidates: row out of range in 'user:0:9': expected 0 to 2",
    ]
    unknown = [f"unknown {number}" for number in range(500)]
    assert len(faults_of(config(tmp_path, restrict_entities=unknown))) == 20
    assert len(faults_of(config(tmp_path, restrict_relations=unknown))) == 20


def test_without_files_of_names_an_address_is_asked_for(tmp_path: Path) -> None:
    assert [
        f"restrict_entities: unknown entity 'ann': no entity_names_<type>_<partition>.json in {tmp_path}; "
        "write type:partition:row"
    ] == faults_of(config(tmp_path, {}, restrict_entities=["ann", "user:0:0"]))


@pytest.mark.parametrize(("names", "wanted"), [(NAMES | {("tag", 0): ["red"]}, ["tag:0:0", "red"]), ({}, ["tag:0:0"])])
def test_an_address_of_a_type_that_no_relation_uses_is_not_asked_for_again(
    tmp_path: Path, names: dict[tuple[str, int], list[str]], wanted: list[str]
) -> None:
    """With the type declared, with a file of its names, and without any file of names."""
    entities = {name: EntitySchema(num_partitions=1) for name in ("user", "item", "tag")}
    expected = "expected the name or type:partition:row of an entity of a type that relations use (item, user)"

    assert faults_of(config(tmp_path, names, restrict_entities=wanted, entities=entities)) == [
        f"restrict_entities: unknown entity {name!r}; {expected}" for name in wanted
    ]


def test_names_that_are_not_one_per_entity_are_refused(tmp_path: Path) -> None:
    for evaluated, file, of in (
        (dynamic(tmp_path, ["r", "s"], restrict_relations=["r"]), "dynamic_rel_names.json", "relation"),
        (
            config(tmp_path, {("user", 0): ["ann", "bob"]}, restrict_entities=["ann"]),
            "entity_names_user_0.json",
            "entity",
        ),
    ):
        with pytest.raises(StorageError, match=f"{file}: expected 3 names, one per {of}, found 2"):
            read(evaluated, num_relations=3)


@pytest.mark.parametrize(
    ("names", "wanted", "numbers", "labels"),
    [(None, ["rel:2", "0"], [0, 2], ["0", "1", "2"]), (["r", "s", "t"], ["t", "rel:1"], [1, 2], ["r", "s", "t"])],
)
def test_dynamic_relations_have_the_names_of_their_file_or_indices(
    tmp_path: Path, names: list[str] | None, wanted: list[str], numbers: list[int], labels: list[str]
) -> None:
    evaluated = dynamic(tmp_path, names, restrict_relations=wanted)

    assert (numbers_in(read(evaluated, 3)), relation_labels(evaluated, 3, None)) == ({"relations": numbers}, labels)
    assert names or faults_of(dynamic(tmp_path, None, restrict_relations=["any"]), 3) == [
        "restrict_relations: unknown relation 'any': relations have no names (relations.tsv, "
        "dynamic_rel_names.json); write 'rel:0'"
    ]
    assert relation_labels(config(tmp_path), 4, None) == ["likes", "knows", "likes", "0"]


def test_the_digest_tells_what_names_stand_for_and_not_how_they_are_written(tmp_path: Path) -> None:
    def digest(**lists: list[str]) -> str | None:
        return read(config(tmp_path, **lists)).digest

    assert digest(restrict_entities=["bob", "dee"]) == digest(restrict_entities=["user:1:0", "user:0:1", "bob"])
    different = [
        digest(restrict_entities=["bob"]),
        digest(restrict_entities=["dee"]),
        digest(head_candidates=["bob"]),
        digest(tail_candidates=["bob"]),
        digest(restrict_relations=["rel:1"]),
        digest(restrict_relations=["rel:1"], tail_candidates=["bob"]),
    ]
    assert len(different) == len(set(different))
    before = digest(restrict_entities=["bob"])
    assert before != read(config(tmp_path, {("user", 0): ["bob", "x", "y"]}, restrict_entities=["bob"])).digest


def test_groups_of_relations_are_read_with_ids(tmp_path: Path) -> None:
    path = tmp_path / "groups.json"
    path.write_text('{"social": ["knows", "1"], "all": ["rel:3", "knows", "rel:0", "rel:2"]}')
    found = relation_groups(config(tmp_path, relation_groups=str(path)), 4, None)

    assert {group: ids.tolist() for group, ids in found.items()} == {"social": [1], "all": [0, 1, 2, 3]}
    assert relation_groups(config(tmp_path), 4, None) == {}
