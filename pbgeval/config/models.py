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
from pbgeval.notation import ENTITY_TYPE
from pbgeval.storage.text import listed

if TYPE_CHECKING:
    from pbgeval.models.model import EmbeddingModel

IN_MEMORY = "<in memory>"  # a folder without names of entities


@frozen
class ModelForm:
    """What a model says of itself."""

    comparator: str
    operator: str
    dimension: int
    dynamic: bool
    # Name, left type, right type of relations that are not dynamic; of dynamic ones: a name for all.
    relations: Sequence[tuple[str, str, str]]
    entity_path: str  # where names of entities may lie

    @classmethod
    def from_model(cls, model: EmbeddingModel) -> ModelForm:
        """Describe a model of vectors."""
        formula, folder = model.formula, Path(model.label)
        relations: Sequence[tuple[str, str, str]] = model.relation_types or [(ENTITY_TYPE,) * 3]
        if not formula.dynamic and not model.relation_types:
            names = model.relation_names() or [f"rel{index}" for index in range(model.num_relations)]
            relations = [(name, ENTITY_TYPE, ENTITY_TYPE) for name in names]
        return cls(
            formula.comparator,
            formula.operator,
            model.dimension,
            model.dynamic,
            relations,
            str(folder if folder.is_dir() else folder.parent),
        )


# A model that is asked for scores by number: each entity is its number.
SCORER = ModelForm("dot", "none", 1, dynamic=True, relations=[(ENTITY_TYPE,) * 3], entity_path=IN_MEMORY)


def with_model_of_path(config: EvalConfig) -> tuple[EvalConfig, list[Fault]]:
    """Fill in what the model that a config names decides; and the faults of both."""
    if config.model is None:
        message = "these are of a model, but there is none; set model, or remove the key"
        return config, [Fault(("model_options",), message)] if config.model_options else []
    unread = with_form(config, SCORER)[0]  # so that no fault is reported for what the model decides
    if not Path(config.model).exists():  # which `paths` reports
        return unread, []
    from pbgeval.models.opening import open_model  # here: it imports torch, which other configs need not wait for

    try:
        model = open_model(Path(config.model), config.model_options, trust_pickle=config.trust_pickle)
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
    types = list(dict.fromkeys(name for _, *ends in form.relations for name in ends))
    has_features = any(entity.featurized for entity in config.entities.values())
    if len(types) == 1 and (len(config.entities) > 1 or has_features):
        message = "the model has one entity type without features; give one such type, or remove the key"
        faults.append(Fault(("entities",), message))
        return config, faults
    if len(types) > 1 and (has_features or not config.entities.keys() <= set(types)):
        message = f"the model has the entity types {listed(types)}, without features; give those, or remove the key"
        faults.append(Fault(("entities",), message))
        return config, faults
    # The one type of a model may have any name.
    names = dict(zip(types, config.entities if len(types) == 1 and config.entities else types, strict=True))
    entities = {name: config.entities.get(name, EntitySchema(num_partitions=1)) for name in names.values()}
    relations = [
        RelationSchema(name=relation or "unnamed", lhs=names[lhs], rhs=names[rhs], operator=form.operator)
        for relation, lhs, rhs in form.relations
    ]
    filled = attrs.evolve(
        config,
        **decided | {"relations": relations},
        entities={name: attrs.evolve(entity, dimension=None) for name, entity in entities.items()},
        entity_path=config.entity_path or form.entity_path,
    )
    return filled, faults
