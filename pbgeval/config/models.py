"""A model of another system, or one in memory -> the keys that it decides: what a config of PBG would have said."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from attrs import frozen

from pbgeval.config.faults import Fault, show
from pbgeval.config.schema import EntitySchema, EvalConfig, RelationSchema, default_of, keys_of
from pbgeval.errors import EvalError

if TYPE_CHECKING:
    from pbgeval.models.model import EmbeddingModel

ENTITY_TYPE = "all"  # of models that know of no types
IN_MEMORY = "<in memory>"  # a folder without names of entities


@frozen
class ModelForm:
    """What a model says of itself."""

    comparator: str
    operator: str
    dimension: int
    dynamic: bool
    relation_names: Sequence[str]  # of relations that are not dynamic; of dynamic ones: a name for all
    entity_path: str  # where names of entities may lie

    @classmethod
    def from_model(cls, model: EmbeddingModel) -> ModelForm:
        """Describe a model of vectors."""
        formula, folder = model.formula, Path(model.label)
        names: Sequence[str] = [ENTITY_TYPE]
        if not formula.dynamic:
            names = model.relation_names() or [f"rel{index}" for index in range(model.num_relations)]
        return cls(
            formula.comparator,
            formula.operator,
            model.dimension,
            formula.dynamic,
            names,
            str(folder if folder.is_dir() else folder.parent),
        )


# A model that is asked for scores by number: each entity is its number.
SCORER = ModelForm("dot", "none", 1, dynamic=True, relation_names=[ENTITY_TYPE], entity_path=IN_MEMORY)


def with_model_of_path(config: EvalConfig) -> tuple[EvalConfig, list[Fault]]:
    """Fill in what the model that a config names decides; and the faults of both."""
    if config.model is None:
        return config, []
    unread = with_form(config, SCORER)[0]  # so that no fault is reported for what the model decides
    if not Path(config.model).exists():  # which `paths` reports
        return unread, []
    from pbgeval.models.opening import open_model  # here: it imports torch, which other configs need not wait for

    try:
        model = open_model(Path(config.model), trust_pickle=config.trust_pickle)
    except EvalError as error:
        return unread, [Fault(("model",), fault) for fault in error.faults]
    return with_form(config, ModelForm.from_model(model))


def with_form(config: EvalConfig, form: ModelForm) -> tuple[EvalConfig, list[Fault]]:
    """Fill in what a model decides; and a fault for each key that says otherwise."""
    faults: list[Fault] = []
    decided: dict[str, Any] = {
        "comparator": form.comparator,
        "dimension": form.dimension,
        "dynamic_relations": form.dynamic,
        "global_emb": False,
        "max_norm": None,
        "bias": False,
        "relations": [],
        "checkpoint_path": "",
    }
    for key, value in decided.items():
        default = default_of(keys_of(EvalConfig)[key])
        found = getattr(config, key)
        if found not in (default, value):
            faults.append(
                Fault((key,), f"the model has {show(value)}, but the config says {show(found)}; remove the key")
            )
    if len(config.entities) > 1 or any(entity.featurized for entity in config.entities.values()):
        message = "the model has one entity type without features; give one such type, or remove the key"
        faults.append(Fault(("entities",), message))
        return config, faults
    entities = config.entities or {ENTITY_TYPE: EntitySchema(num_partitions=1)}
    (name,) = entities
    relations = [
        RelationSchema(name=relation or "unnamed", lhs=name, rhs=name, operator=form.operator)
        for relation in form.relation_names
    ]
    filled = attrs.evolve(
        config,
        **decided | {"relations": relations},
        entities={name: attrs.evolve(entities[name], dimension=None)},
        entity_path=config.entity_path or form.entity_path,
    )
    return filled, faults
