"""What the help says of the keys, and which settings count as able to change a number."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import pytest

from pbgeval.config import EntitySchema, EvalConfig, RelationSchema, help_config
from pbgeval.config.schema import GROUPS, TRAINING_KEYS, keys_of
from pbgeval.errors import ConfigError
from pbgeval.inputs.provenance import numeric_settings
from pbgeval.scoring.comparators import COMPARATORS
from pbgeval.scoring.loss import LOSSES
from pbgeval.scoring.operators import OPERATORS
from tests.kit.commands import lacking


def config(**changes: Any) -> EvalConfig:
    settings: dict[str, Any] = {
        "entities": {"user": EntitySchema(num_partitions=2), "item": EntitySchema(num_partitions=1, dimension=4)},
        "relations": [
            RelationSchema(name="r", lhs="user", rhs="user"),
            RelationSchema(name="s", lhs="item", rhs="item", all_negs=True, weight=2.0),
        ],
        "dimension": 8,
        "entity_path": "/entity",
        "edge_paths": ["/edges"],
        "checkpoint_path": "/checkpoint",
    }
    return EvalConfig(**(settings | changes))


@pytest.mark.parametrize(
    ("schema", "key", "names"),
    [(EvalConfig, "comparator", COMPARATORS), (EvalConfig, "loss_fn", LOSSES), (RelationSchema, "operator", OPERATORS)],
)
def test_help_names_every_choice(schema: Any, key: str, names: Iterable[str]) -> None:
    words = set(re.findall(r"\w+", keys_of(schema)[key].metadata["help"]))

    assert set(names) - words == set()


def test_help_has_every_key_with_its_text() -> None:
    text, of_keys = (
        " ".join(help_config().split()),
        {key: of.metadata["help"] for key, of in keys_of(EvalConfig).items()},
    )

    assert lacking(text, *(f" {key}: " for key in of_keys), *of_keys.values()) == []
    assert [key for key, of in of_keys.items() if not of.endswith(".")] == []


def test_help_shows_groups_in_order_with_nested_keys_types_and_defaults() -> None:
    lines = help_config().splitlines()

    assert [f"{group}:" for group in GROUPS] == [line for line in lines if line.removesuffix(":") in GROUPS]
    assert lines == [line for line in lines if len(line) <= 100]
    assert set(lines) >= {
        "  entities.NAME.num_partitions: int, required",
        "  relations.INDEX.operator: str, default 'none'",
        "  edge_paths: list of str, required",
        "  checkpoint_path: str, required (not with model)",
        "  hits_at: list of int, default 1,3,5,10,50",
        "  filter_paths: list of str, default empty",
        "  max_norm: float or none, default none",
        "  comparator: str, default 'cos'",
    }
    names = " ".join(lines).split("training only (accepted and ignored):")[1]
    assert tuple(name.strip() for name in names.split(",")) == TRAINING_KEYS


@pytest.mark.parametrize(
    ("rank_type", "pbg_semantics", "headline"),
    [
        (None, False, "realistic"),
        (None, True, "pessimistic"),
        ("optimistic", True, "optimistic"),
        ("worst", False, "pessimistic"),
    ],
)
def test_the_headline_follows_from_rank_type_and_semantics(
    rank_type: str | None, pbg_semantics: bool, headline: str
) -> None:
    assert headline == config(rank_type=rank_type, pbg_semantics=pbg_semantics).headline


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ["sampled", "partition"]),
        ({"candidates": "sampled"}, ["sampled"] * 2),
        ({"candidates": "all"}, ["all"] * 2),
        ({"candidate_path": "/x"}, ["all"] * 2),
    ],
)
def test_candidates_are_decided_per_relation_unless_set(settings: dict[str, Any], expected: list[str]) -> None:
    evaluated = config(**settings)

    assert [evaluated.candidates_of(relation) for relation in evaluated.relations] == expected


def test_the_dimension_of_a_type_is_its_own_or_the_global_one() -> None:
    assert (config().dimension_of("user"), config().dimension_of("item")) == (8, 4)
    with pytest.raises(ConfigError, match="dimension: required, as entities\\['user'\\] does not set its own"):
        config(dimension=None).dimension_of("user")


NO_NUMBER: list[dict[str, Any]] = [
    {"entity_path": "/x"},
    {"edge_paths": ["/x"]},
    {"checkpoint_path": "/x"},
    {"workers": 3},
    {"batch_size": 10},
    {"loss_fn": "softmax"},
    {"margin": 1.0},
    {"name": "x"},
    {"ignored": ("lr",)},
    {"hits_at": [50, 10, 5, 3, 1, 1]},
    {"rank_type": "average"},
    {"max_memory": "1GB"},
    {"save_ranks": True},
    {"save_topk": 3},
    {"relation_groups": "/x"},
    {"target_metric": "mrr"},
    {"breakdowns": ["relation", "relation"]},
]
PARTITION, GIVEN, SAMPLING = {"candidates": "partition"}, {"candidate_path": "/x"}, {"num_uniform_negs": 3}


@pytest.mark.parametrize(
    ("base", "change"),
    [
        *((base, change) for base in ({}, PARTITION) for change in NO_NUMBER),
        *((base, SAMPLING | {"num_batch_negs": 10}) for base in (PARTITION, GIVEN)),  # where nothing is sampled
        *((GIVEN, change) for change in ({"candidates": "all"}, {"candidate_path": "/y"})),
        *(({key: ["/x"]}, {key: ["/y", "/z"]}) for key in ("filter_paths", "train_paths")),
    ],
    ids=str,
)
def test_what_changes_no_number_is_not_in_the_numeric_settings(base: dict[str, Any], change: dict[str, Any]) -> None:
    settings = numeric_settings(config(**(base | change)))

    assert numeric_settings(config(**base)) == settings
    assert "/x" not in json.dumps(settings)


BASES: dict[str, dict[str, Any]] = {
    "default": {},
    "pbg": {"pbg_semantics": True, "workers": 2},
    "loss": {"compute_loss": True},
    "all": {"candidates": "all"},
    "target": {"target_error": 0.1},
}


@pytest.mark.parametrize(
    ("base", "change"),
    [
        ("default", {"seed": 1}),
        ("default", {"candidates": "partition"}),
        ("default", {"num_batch_negs": 10}),
        ("default", {"num_uniform_negs": 10}),
        ("default", {"comparator": "dot"}),
        ("default", {"max_norm": 1.0}),
        ("default", {"bias": True}),
        ("default", {"global_emb": False}),
        ("default", {"dynamic_relations": True}),
        ("default", {"disable_lhs_negs": True}),
        ("default", {"hits_at": [1]}),
        ("default", {"rank_type": "best"}),
        ("default", {"pbg_semantics": True}),
        ("default", {"compute_loss": True}),
        ("default", {"dimension": 16}),
        ("default", {"filter_paths": ["/x"]}),
        ("default", {"train_paths": ["/x"]}),
        ("default", {"candidates": "all"}),
        ("default", {"candidate_path": "/x"}),
        ("all", {"candidate_path": "/x"}),
        ("default", {"restrict_entities": ["a"]}),
        ("default", {"restrict_relations": ["a"]}),
        ("default", {"head_candidates": ["a"]}),
        ("default", {"tail_candidates": ["a"]}),
        ("default", {"type_constraint": "observed"}),
        ("default", {"precision": "float64"}),
        ("default", {"sample_edges": 10}),
        ("default", {"target_error": 0.1}),
        ("target", {"target_error": 0.2}),
        ("target", {"target_metric": "hits@10"}),
        ("default", {"breakdowns": []}),
        ("pbg", {"workers": 3}),
        ("pbg", {"batch_size": 10}),
        ("loss", {"margin": 1.0}),
        ("loss", {"loss_fn": "softmax"}),
        ("loss", {"relations": [RelationSchema(name="r", lhs="user", rhs="user", weight=3.0)]}),
    ],
    ids=str,
)
def test_what_changes_a_number_is_in_the_numeric_settings(base: str, change: dict[str, Any]) -> None:
    assert numeric_settings(config(**BASES[base])) != numeric_settings(config(**(BASES[base] | change)))


def test_numeric_settings_are_plain_json() -> None:
    settings: Any = numeric_settings(config(pbg_semantics=True, workers=2, compute_loss=True))

    assert settings == json.loads(json.dumps(settings))
    assert [relation["candidates"] for relation in settings["relations"]] == ["sampled", "partition"]
    assert {name: entity["dimension"] for name, entity in settings["entities"].items()} == {"user": 8, "item": 4}


def test_names_count_as_a_set_and_many_of_them_as_a_digest() -> None:
    def restriction(*names: str) -> Any:
        return numeric_settings(config(restrict_entities=list(names)))["restrict_entities"]

    many = [f"entity {number}" for number in range(300)]
    digest = restriction(*many)
    assert (restriction("b", "a", "b"), set(digest)) == (["a", "b"], {"count", "sha256"})
    assert restriction(*reversed(many), "entity 7") == digest != restriction(*many[1:], "another")
    assert len(json.dumps(digest)) < 1000


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({}, "both.realistic.mean_reciprocal_rank"),
        ({"rank_type": "worst"}, "both.pessimistic.mean_reciprocal_rank"),
        ({"target_metric": "hits@10"}, "both.realistic.hits_at_10"),
        ({"target_metric": "tail.optimistic.mr"}, "tail.optimistic.mean_rank"),
        ({"target_metric": "head.query_auc"}, "head.query_auc"),
        ({"target_metric": "query_auc", "disable_lhs_negs": True}, "both.query_auc"),
    ],
)
def test_the_metric_of_the_target_error_is_a_key_of_the_report(changes: dict[str, Any], key: str) -> None:
    assert key == config(target_error=0.1, **changes).target_key


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        (None, None),
        ("1500000000", 1_500_000_000),
        ("800MB", 800_000_000),
        ("1.5GB", 1_500_000_000),
        ("1.5 gb", 1_500_000_000),
        ("1.9B", 1),
        (" 2GiB ", 2 * 2**30),
        ("0.5kib", 512),
        ("3TB", 3 * 10**12),
    ],
)
def test_memory_is_read_in_bytes(text: str | None, num_bytes: int | None) -> None:
    assert num_bytes == config(max_memory=text).max_memory_bytes
