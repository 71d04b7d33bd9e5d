"""The settings of who competes and of what is written: each fault is one line, and what makes sense is accepted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pbgeval.config import load_config, read_relation_groups
from pbgeval.errors import ConfigError


def valid(**values: object) -> dict[str, Any]:
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


def featurized(**values: object) -> dict[str, Any]:
    raw = valid(num_uniform_negs=0, **values)
    raw["entities"]["item"]["featurized"] = True
    del raw["relations"][1]
    return raw


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    tmp_path = tmp_path_factory.mktemp("c")  # short, since messages cut long values
    for name in ("entity", "edges", "checkpoint", "known", "given"):
        (tmp_path / name).mkdir()
    (tmp_path / "groups.json").write_text('{"social": ["knows"], "all of them": ["knows", "likes"]}')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def faults_of(raw: dict[str, Any], *overrides: str) -> list[str]:
    Path("eval.json").write_text(json.dumps(raw))
    try:
        load_config("eval.json", overrides)
    except ConfigError as error:
        faults = list(error.faults)
    else:
        faults = []
    assert all(len(fault.splitlines()) == 1 for fault in faults)
    return faults


PBG = {"pbg_semantics": True, "workers": 2}
ACCEPTED = {
    "all": valid(candidates="all"),
    "all, with everything": valid(
        candidates="all",
        filter_paths=["known"],
        train_paths=["known"],
        restrict_entities=["a", "user:0:3"],
        restrict_relations=["likes"],
        head_candidates=["a"],
        tail_candidates=["b"],
        type_constraint="observed",
        precision="float64",
        save_ranks=True,
        save_topk=10,
        max_memory="1.5GB",
        sample_edges=1000,
        breakdowns=["relation", "entity_types", "cardinality", "relation_frequency", "entity_frequency", "groups"],
        relation_groups="groups.json",
    ),
    "no breakdowns": valid(breakdowns=[]),
    "groups that are not asked for": valid(relation_groups="groups.json"),
    "filters as in PBG's filtered evaluation": valid(filter_paths=["known"], candidates="partition", **PBG),
    "certified": valid(precision="certified", compute_loss=True),
    "certified, with everything": valid(
        precision="certified", candidates="all", filter_paths=["known"], save_ranks=True, save_topk=3
    ),
    "given": valid(candidate_path="given"),
    "given among all": valid(candidate_path="given", candidates="all", num_batch_negs=0, num_uniform_negs=0),
    "given and restricted": valid(candidate_path="given", restrict_entities=["a"], filter_paths=["known"]),
    "the best candidates": valid(candidates="all", save_topk=1),
    "a target": valid(target_error=0.01),
    "a target metric": valid(target_error=0.01, target_metric="tail.hits@10"),
    "featurized, some relations": featurized(restrict_relations=["likes"], save_ranks=True),
}


@pytest.mark.parametrize("raw", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_what_makes_sense_is_accepted(folder: Path, raw: dict[str, Any]) -> None:
    assert [] == faults_of(raw)


NO_NUMBER = "; an entity that is a set of features has no number to be found by"
EMPTY = "empty restriction: expected the name of {}, or several, or None, got []; remove the key"
MEMORY = "max_memory: expected an amount of memory such as '800MB', '1.5GB' or '2GiB', got "
METRICS = (
    "target_metric: expected mean_rank, mean_reciprocal_rank, query_auc or hits_at_1 or hits_at_3 or hits_at_5 or "
    "hits_at_10 or hits_at_50 (hits_at), with an enabled side and a rank type in front if wanted, got "
)
REFUSED = {
    "an unknown type constraint": (
        valid(type_constraint="seen"),
        "type_constraint: expected one of schema, observed, got 'seen'",
    ),
    "all under pbg_semantics": (
        valid(candidates="all", **PBG),
        "candidates: expected None, 'sampled' or 'partition' with pbg_semantics = True, got 'all'; "
        "torchbiggraph_eval ranks within the partitions of a bucket only",
    ),
    "certified under pbg_semantics": (
        valid(precision="certified", **PBG),
        "precision: expected 'float32' or 'float64' with pbg_semantics = True, got 'certified'; torchbiggraph_eval"
        " compares rounded scores, and which near-ties rounding makes is part of its figures",
    ),
    "given under pbg_semantics": (
        valid(candidate_path="given", **PBG),
        "candidate_path: expected None with pbg_semantics = True, got '{folder}/given'; "
        "torchbiggraph_eval has no given candidates",
    ),
    "a sample under pbg_semantics": (
        valid(sample_edges=7, **PBG),
        "sample_edges: expected None with pbg_semantics = True, got 7; torchbiggraph_eval evaluates every edge",
    ),
    "a target under pbg_semantics": (
        valid(target_error=0.5, **PBG),
        "target_error: expected None with pbg_semantics = True, got 0.5; torchbiggraph_eval evaluates every edge",
    ),
    "the loss with all": (
        valid(candidates="all", compute_loss=True),
        "compute_loss: expected False with candidates = 'all', got True; "
        "PBG's loss is defined on one partition's candidates",
    ),
    "the loss with given": (
        valid(candidate_path="given", compute_loss=True),
        "compute_loss: expected False with candidate_path, got True; "
        "PBG's loss is defined on one partition's candidates",
    ),
    "given and sampled": (
        valid(candidate_path="given", candidates="sampled"),
        "candidates: expected None or 'all' with candidate_path, got 'sampled'; remove one of the two",
    ),
    "given and observed": (
        valid(candidate_path="given", type_constraint="observed"),
        "type_constraint: expected 'schema' with candidate_path, got 'observed'; the lists given say who competes",
    ),
    "given and head candidates": (
        valid(candidate_path="given", head_candidates=["a"]),
        "head_candidates: expected None with candidate_path, got ['a']; the lists given say who competes",
    ),
    "no entities": (valid(restrict_entities=[]), "restrict_entities: " + EMPTY.format("an entity")),
    "no relations": (valid(restrict_relations=[]), "restrict_relations: " + EMPTY.format("a relation")),
    "no head candidates": (valid(head_candidates=[]), "head_candidates: " + EMPTY.format("an entity")),
    "no tail candidates": (valid(tail_candidates=[]), "tail_candidates: " + EMPTY.format("an entity")),
    "a blank name": (
        valid(restrict_entities=["a", " "]),
        "restrict_entities[1]: expected the name of an entity, got ' '",
    ),
    "a name that is a number": (
        valid(restrict_relations=[3]),
        "restrict_relations[0]: expected a string, got 3 (int)",
    ),
    "no edges in the sample": (valid(sample_edges=0), "sample_edges: expected an int >= 1, got 0"),
    "no error at all": (valid(target_error=0), "target_error: expected a number > 0 or None, got 0.0"),
    "a number of edges and an error": (
        valid(sample_edges=10, target_error=0.1),
        "target_error: expected None with sample_edges = 10, got 0.1; "
        "set the number of edges or the error to reach, not both",
    ),
    "a metric without an error": (
        valid(target_metric="mrr"),
        "target_metric: expected None without target_error, got 'mrr'; set target_error too",
    ),
    "an unknown metric": (valid(target_error=0.1, target_metric="fame"), METRICS + "'fame'"),
    "a metric without an interval": (valid(target_error=0.1, target_metric="auc"), METRICS + "'auc'"),
    "a cut-off that is not computed": (valid(target_error=0.1, target_metric="hits@7"), METRICS + "'hits@7'"),
    "a side that is not ranked": (
        valid(target_error=0.1, target_metric="head.mrr", disable_lhs_negs=True),
        METRICS + "'head.mrr'",
    ),
    "no candidates to keep": (valid(candidates="all", save_topk=0), "save_topk: expected an int >= 1, got 0"),
    "the best of sampled candidates": (
        valid(save_topk=3),
        "save_topk: expected None, as the best are sought among all entities only with candidates = 'all', got 3; "
        "set candidates = 'all'",
    ),
    "the best of given candidates": (
        valid(candidates="all", candidate_path="given", save_topk=3),
        "save_topk: expected None with candidate_path, got 3; given lists are not searched for the best",
    ),
    "an unknown breakdown": (
        valid(breakdowns=["relation", "degree"]),
        "breakdowns[1]: expected one of relation, entity_types, cardinality, relation_frequency, entity_frequency, "
        "groups, got 'degree'",
    ),
    **{
        f"{name} without training edges": (
            valid(breakdowns=[name], filter_paths=["known"]),
            f"breakdowns[0]: '{name}' counts training edges: expected train_paths, got []; set it or remove '{name}'",
        )
        for name in ("cardinality", "relation_frequency", "entity_frequency")
    },
    "groups without a file": (
        valid(breakdowns=["groups"]),
        "breakdowns[0]: 'groups' needs relation_groups, got None; set it or remove 'groups'",
    ),
    **{
        f"memory {text!r}": (valid(max_memory=text), f"{MEMORY}{text!r}")
        for text in ("", "much", "-1GB", "1.GB", "1e9", "1 XB", "GB", "1.5GBs", "٣GB", "nan")
    },
    **{
        f"memory {text}": (
            valid(max_memory=text),
            f"max_memory: expected an amount of memory from 1 byte to 2**63 - 1 bytes, got '{text}'",
        )
        for text in ("0", "0.0GB", "0.4B", "99999999TiB")
    },
    "memory as a number": (valid(max_memory=10), "max_memory: expected a string, got 10 (int)"),
    "featurized, all": (
        featurized(candidates="all"),
        "candidates: expected 'sampled', as entity type 'item' is featurized, got 'all'",
    ),
    **{
        f"featurized, {key}": (
            featurized(**{key: value}),
            f"{key}: expected {default}, as entity type 'item' is featurized, got {found}{NO_NUMBER}",
        )
        for key, value, default, found in (
            ("filter_paths", ["known"], "[]", "['{folder}/known']"),
            ("train_paths", ["known"], "[]", "['{folder}/known']"),
            ("candidate_path", "given", "None", "'{folder}/given'"),
            ("restrict_entities", ["a"], "None", "['a']"),
            ("head_candidates", ["a"], "None", "['a']"),
            ("tail_candidates", ["a"], "None", "['a']"),
            ("type_constraint", "observed", "'schema'", "'observed'"),
        )
    },
}


@pytest.mark.parametrize(("raw", "fault"), REFUSED.values(), ids=REFUSED.keys())
def test_what_makes_no_sense_is_refused(folder: Path, raw: dict[str, Any], fault: str) -> None:
    assert [f"eval.json: {fault}"] == [line.replace(str(folder), "{folder}") for line in faults_of(raw)]


@pytest.mark.parametrize("key", ["filter_paths", "train_paths"])
def test_directories_of_known_edges_are_found_like_those_to_evaluate(folder: Path, key: str) -> None:
    Path("eval.json").write_text(json.dumps(valid(**{key: ["known", str(folder / "edges")]})))

    assert [str(folder / "known"), str(folder / "edges")] == getattr(load_config("eval.json"), key)
    assert [f"eval.json: {key}[1]: expected a directory; {folder}/groups.json (in the working directory) is none"] == (
        faults_of(valid(**{key: ["known", "groups.json"]}))
    )
    assert [f"-p {key}=nowhere: {key}[0]: expected a directory; {folder}/nowhere (in the working directory) "] == [
        line.removesuffix("does not exist") for line in faults_of(valid(), f"{key}=nowhere")
    ]


def test_given_candidates_are_a_directory_and_groups_are_a_file(folder: Path) -> None:
    Path("eval.json").write_text(json.dumps(valid(candidate_path="given", relation_groups="groups.json")))
    config = load_config("eval.json")

    assert (str(folder / "given"), str(folder / "groups.json")) == (config.candidate_path, config.relation_groups)
    assert [
        f"eval.json: candidate_path: expected a directory; {folder}/groups.json (in the working directory) is none",
        f"eval.json: relation_groups: expected a file; {folder}/given (in the working directory) is none",
    ] == faults_of(valid(candidate_path="groups.json", relation_groups="given"))
    assert ["eval.json: relation_groups: expected a file, got ''"] == faults_of(valid(relation_groups=""))


def test_an_override_is_blamed_for_what_it_makes_wrong(folder: Path) -> None:
    assert [
        "-p pbg_semantics=True: candidates: expected None, 'sampled' or 'partition' with pbg_semantics = True, "
    ] == [line.partition("got")[0] for line in faults_of(valid(candidates="all", workers=1), "pbg_semantics=True")]
    assert ["-p restrict_entities.3=x: restrict_entities is not set by the config file, or not as it should be"] == (
        faults_of(valid(), "restrict_entities.3=x")
    )
    assert [] == faults_of(valid(restrict_entities=[]), "restrict_entities=user:0:1,user:1:1")
    assert [] == faults_of(valid(restrict_entities=[]), "restrict_entities=none")


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
    "an empty group": ('{"a": []}', ": group 'a': expected at least one relation, got []"),
    "a number": ('{"a": ["likes", 1]}', ": group 'a': element 1: expected the name of a relation, got 1 (int)"),
    "a group twice": ('{"a": ["x"], "a": ["y"]}', ": not valid JSON: the name 'a' is there 2 times"),
}


@pytest.mark.parametrize(("content", "fault"), GROUPS.values(), ids=GROUPS.keys())
def test_a_file_of_groups_in_another_form_is_refused(folder: Path, content: str | bytes, fault: str) -> None:
    path = folder / "wrong.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())

    assert [f"eval.json: relation_groups: {path}{fault}"] == faults_of(valid(relation_groups="wrong.json"))
    with pytest.raises(ConfigError) as info:
        read_relation_groups(path)
    assert (f"{path}{fault}",) == info.value.faults


def test_groups_are_read_with_their_relations_and_may_overlap(folder: Path) -> None:
    assert {"social": ["knows"], "all of them": ["knows", "likes"]} == read_relation_groups(folder / "groups.json")
    with pytest.raises(ConfigError, match="expected a file that can be read, got: Is a directory"):
        read_relation_groups(folder)
