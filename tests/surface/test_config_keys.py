"""The keys of a config file are what users depend on: a change of this list needs a line in CHANGELOG.md."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from pbgeval.config import EntitySchema, EvalConfig, RelationSchema
from pbgeval.config.schema import GROUPS, TRAINING_KEYS, default_of, keys_of

# Per group: key, type, default.
KEYS = """
[graph]
entities: dict[str, EntitySchema]
relations: list[RelationSchema]
entity_path: str
edge_paths: list[str]
dynamic_relations: bool = False
dictionary_path: str | None = None
edge_columns: str | None = None
edge_delimiter: str | None = None
edge_comment: str | None = None
unknown: str = 'refuse'
entities.NAME.num_partitions: int
relations.INDEX.name: str
relations.INDEX.lhs: str
relations.INDEX.rhs: str
[model]
checkpoint_path: str
dimension: int | None = None
max_norm: float | None = None
global_emb: bool = True
comparator: str = 'cos'
bias: bool = False
model: str | None = None
model_options: dict[str, object] = {}
trust_pickle: bool = False
entities.NAME.featurized: bool = False
entities.NAME.dimension: int | None = None
relations.INDEX.operator: str = 'none'
[evaluation]
candidates: str | None = None
num_batch_negs: int = 50
num_uniform_negs: int = 50
num_degree_negs: int = 0
degree_power: float = 1.0
disable_lhs_negs: bool = False
disable_rhs_negs: bool = False
relation_prediction: bool = False
seed: int = 0
rank_type: str | None = None
hits_at: list[int] = [1, 3, 5, 10, 50]
compute_loss: bool = False
loss_fn: str = 'ranking'
margin: float = 0.1
pbg_semantics: bool = False
workers: int | None = None
batch_size: int = 1000
filter_paths: list[str] = []
train_paths: list[str] = []
time_window: int | None = None
known_until: str | None = None
restrict_entities: list[str] | None = None
restrict_relations: list[str] | None = None
head_candidates: list[str] | None = None
tail_candidates: list[str] | None = None
type_constraint: str = 'schema'
candidate_path: str | None = None
precision: str | None = None
sample_edges: int | None = None
target_error: float | None = None
target_metric: str | None = None
max_memory: str | None = None
scratch_path: str | None = None
scratch_limit: str | None = None
relations.INDEX.weight: float = 1.0
relations.INDEX.all_negs: bool = False
[output]
metrics: list[str] = ['rank', 'auc']
preset: str | None = None
breakdowns: list[str] = ['relation']
time_bin: int | None = None
topk_metrics: bool = False
relation_groups: str | None = None
save_ranks: bool | None = None
save_topk: int | None = None
sinks: list[str] = []
"""


def declared(schema: type[attrs.AttrsInstance], prefix: str, group: str) -> Iterator[str]:
    for key, spec in keys_of(schema).items():
        if spec.metadata["group"] == group:
            default = default_of(spec)
            yield f"{prefix}{key}: {schema.__annotations__[key]}" + (
                "" if default is attrs.NOTHING else f" = {default!r}"
            )


def test_the_keys_of_a_config_their_types_and_defaults_are_as_listed() -> None:
    lines = []
    for group in GROUPS:
        lines.append(f"[{group}]")
        for schema, prefix in (
            (EvalConfig, ""),
            (EntitySchema, "entities.NAME."),
            (RelationSchema, "relations.INDEX."),
        ):
            lines += declared(schema, prefix, group)

    assert KEYS.split("\n")[1:-1] == lines


def test_every_key_belongs_to_a_group_and_has_a_help_text() -> None:
    for schema in (EvalConfig, EntitySchema, RelationSchema):
        for key, spec in keys_of(schema).items():
            assert spec.metadata["group"] in GROUPS, key
            assert spec.metadata["help"].endswith("."), key


@pytest.mark.reference
def test_every_key_of_pbg_is_known(reference_path: Path) -> None:
    raw = json.loads((reference_path / "golden" / "fb237_het" / "checkpoint" / "config.json").read_text())

    assert set(raw) <= {*keys_of(EvalConfig), *TRAINING_KEYS}
    assert set(TRAINING_KEYS) <= set(raw)
    assert not keys_of(EvalConfig).keys() & {*TRAINING_KEYS}
    assert set(raw["entities"]["ent"]) == set(keys_of(EntitySchema))
    assert set(raw["relations"][0]) == set(keys_of(RelationSchema))
