"""`EvalConfig` and model file -> scorers of the relations and the global embeddings."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from pbgeval.config import EvalConfig
from pbgeval.config.precision import precision_of
from pbgeval.errors import DataError, Faults, MismatchError, StorageError
from pbgeval.models.model import EmbeddingModel
from pbgeval.notation import ENDS, Side
from pbgeval.ranking.draws import HOST
from pbgeval.ranking.sampled_lists import CandidatePolicy
from pbgeval.ranking.settings import Relation
from pbgeval.scoring.block_scorer import Scorer, ScorerComparator, ScorerRelation
from pbgeval.scoring.comparators import Comparator
from pbgeval.scoring.exact import ExactComparator
from pbgeval.scoring.full_precision import CallerSettings
from pbgeval.scoring.operators import OPERATORS, Parameters
from pbgeval.scoring.scorer import RelationScorer
from pbgeval.storage.model import global_embedding, operator_parameters, read_model_parameters
from pbgeval.storage.text import listed, one_line, read_small_text, show
from pbgeval.storage.transfers import sent, sent_together

# In what vectors are computed; those for exact ranks are then rounded to float32, once.
_DTYPES = {"float32": torch.float32, "float64": torch.float64, "exact": torch.float64}


def read_relations(
    config: EvalConfig, version: int, num_relations: int, device: torch.device = HOST
) -> tuple[tuple[Relation, ...], dict[str, Tensor]]:
    """Read the model file.

    Returns:
        A relation per entry of the config, and the global embedding of each entity type that has one.

    Raises:
        StorageError: the model file is missing or damaged.
        MismatchError: parameters are missing, or their shapes do not fit operator and dimension.
    """
    model = read_model_parameters(Path(config.checkpoint_path), version)
    faults = Faults()
    read: list[dict[Side, Parameters]] = [{} for _ in config.relations]
    leading = (num_relations,) if config.dynamic_relations else ()
    for index, schema in enumerate(config.relations):
        for side in ENDS if config.dynamic_relations else (Side.RHS,):
            of_one = OPERATORS[schema.operator].shapes(config.dimension_of(side.pick(schema.lhs, schema.rhs)))
            shapes = {name: (*leading, *shape) for name, shape in of_one.items()}
            with faults.noted(StorageError):
                read[index][side] = operator_parameters(model, index, side, schema.operator, shapes)
    globals_ = {}
    if config.global_emb:
        for entity_type in config.used_entity_types:
            vector = global_embedding(model, entity_type, config.dimension_of(entity_type))
            if vector is None:
                faults.append(
                    f"{model.path}: no global embedding of entity type {entity_type!r}, but global_emb is True; set"
                    " global_emb to False if the model was trained without"
                )
            else:
                globals_[entity_type] = sent(vector, device)
    if faults:
        raise MismatchError(*faults) if model.is_there else StorageError(faults[0])
    return _relations(config, read, device), globals_


def relations_of_model(config: EvalConfig, model: EmbeddingModel, device: torch.device = HOST) -> tuple[Relation, ...]:
    """Read the relations of another system's model.

    Returns:
        A relation per entry of the config.

    Raises:
        StorageError: a file is gone or truncated.
        DataError: a parameter is NaN or infinite.
    """
    of_sides = model.parameters()
    for side, parameters in of_sides.items():
        for name, value in parameters.items():
            wrong = (~torch.isfinite(value)).nonzero()
            if wrong.numel():
                raise DataError(
                    f"{model.label}: {name} ({side.pick('lhs', 'rhs')}) of relation {int(wrong[0, 0])}: expected "
                    "finite numbers, found NaN or infinity; check whether training diverged"
                )
    if config.dynamic_relations:
        return _relations(config, [of_sides], device)
    of_relations = [
        {side: {name: of[index] for name, of in parameters.items()} for side, parameters in of_sides.items()}
        for index in range(len(config.relations))
    ]
    return _relations(config, of_relations, device)


def relation_of_scorer(config: EvalConfig, scorer: Scorer, caller_settings: CallerSettings) -> Relation:
    """Return the one entry of `relations` where a model is asked for scores by number, which float64 holds."""
    (schema,) = config.relations
    comparator = ScorerComparator(scorer, caller_settings=caller_settings)
    relation = ScorerRelation(comparator, schema.lhs, schema.rhs)
    return Relation(relation, CandidatePolicy(config.candidates_of(schema)), torch.float64)


def dtype_of(config: EvalConfig) -> torch.dtype:
    """Return the type of vectors while they are computed; a model that is asked for scores gets numbers instead."""
    return _DTYPES[precision_of(config)] if config.has_vectors else torch.float64


def _relations(
    config: EvalConfig, parameters: Sequence[Mapping[Side, Parameters]], device: torch.device
) -> tuple[Relation, ...]:
    """Make the relations of the config from the parameters of each."""
    precision = precision_of(config)
    dtype = dtype_of(config)
    # One for all relations, so that one tally counts their decisions.
    exact_comparator = ExactComparator(config.comparator, config.bias) if precision == "exact" else None
    values = (value.to(dtype) for of_sides in parameters for of_side in of_sides.values() for value in of_side.values())
    on_device = iter(sent_together(device, *values))
    return tuple(
        Relation(
            RelationScorer(
                name=schema.name,
                operator=schema.operator,
                parameters={
                    side: OPERATORS[schema.operator].prepared({name: next(on_device) for name in of_side})
                    for side, of_side in of_sides.items()
                },
                comparator=Comparator(config.comparator, config.bias),
                dynamic=config.dynamic_relations,
                lhs_type=schema.lhs,
                rhs_type=schema.rhs,
                weight=schema.weight,
                exact_comparator=exact_comparator,
            ),
            CandidatePolicy(config.candidates_of(schema)),
            dtype,
        )
        for schema, of_sides in zip(config.relations, parameters, strict=True)
    )


# The config that PBG keeps beside a checkpoint -> how it differs from the config of an evaluation.

CONFIG_OF_TRAINING = "config.json"
_OF_MODEL = ("comparator", "bias", "dynamic_relations", "global_emb", "max_norm")
_OF_RELATION = ("operator", "lhs", "rhs")


def difference_from_training(config: EvalConfig) -> Iterator[str]:
    """Yield at most one line: the settings that change scores and differ from those of training."""
    path, trained, fault = _settings_of_training(config)
    if fault:
        yield f"{path}: the settings of training cannot be compared: {fault}"
    found = list(_differences(config, trained))
    if found:
        yield f"{path}: the checkpoint was trained with other settings: {listed(found, 12)}; check the config"


def is_dynamic_in_training(config: EvalConfig) -> object:
    """Return what the checkpoint's settings of training say of `dynamic_relations`; None: nothing."""
    return _settings_of_training(config)[1].get("dynamic_relations")


def paths_of_training(config: EvalConfig) -> list[str]:
    """Return those of the evaluated paths that the checkpoint was trained on."""
    path, trained, _ = _settings_of_training(config)
    named = trained.get("edge_paths")
    places = itertools.product((".", str(path.parent)), named if isinstance(named, list) else ())
    of_training = {os.path.abspath(os.path.join(base, str(of))) for base, of in places}
    return [of for of in config.edge_paths if os.path.abspath(of) in of_training]


def evaluated_in_training(config: EvalConfig) -> Iterator[str]:
    """Yield at most one line: the evaluated edges that the checkpoint was trained on."""
    path, evaluated = Path(config.checkpoint_path) / CONFIG_OF_TRAINING, paths_of_training(config)
    if evaluated:
        yield f"{path}: the checkpoint was trained on {listed(evaluated)}; to evaluate other edges, set edge_paths"


def _settings_of_training(config: EvalConfig) -> tuple[Path, Mapping[str, object], str]:
    """Return the file, what it holds if it can be read, and what is wrong with it."""
    path = Path(config.checkpoint_path) / CONFIG_OF_TRAINING
    try:
        trained = json.loads(read_small_text(path) or "") if path.is_file() else {}
        if not isinstance(trained, Mapping):
            raise ValueError(f"it holds a {type(trained).__name__}")
    except (OSError, StorageError, ValueError, RecursionError) as error:
        return path, {}, one_line(error)
    return path, trained, ""


def _differences(config: EvalConfig, trained: Mapping[str, object]) -> Iterator[str]:
    """Yield each setting that differs, those of relations grouped by key."""
    for key in _OF_MODEL:
        now = getattr(config, key)
        if trained.get(key, now) != now:
            yield f"{key} = {show(now)} (trained with {show(trained[key])})"
    for name in config.used_entity_types:
        of_type = _part(trained, "entities", name)
        own, whole = _part(of_type, "dimension"), _part(trained, "dimension")
        yield from (
            f"entities[{name!r}].{key} = {now} (trained with {show(before)})"
            for key, before, now in (
                ("dimension", whole if own is None else own, config.dimension_of(name)),
                ("num_partitions", _part(of_type, "num_partitions"), config.entities[name].num_partitions),
            )
            if before not in (None, now)
        )
    relations = trained.get("relations")
    if not isinstance(relations, list):
        return
    if len(relations) != len(config.relations):
        yield f"number of relations = {len(config.relations)} (trained with {len(relations)})"
        return
    for key in _OF_RELATION:
        pairs = [
            (_part(theirs, key), getattr(ours, key)) for theirs, ours in zip(relations, config.relations, strict=True)
        ]
        differing = [index for index, (before, now) in enumerate(pairs) if before not in (None, now)]
        if differing:
            before, now = pairs[differing[0]]
            more = f"; {len(differing)} of {len(pairs)} relations differ" if len(differing) > 1 else ""
            yield f"relations[{differing[0]}].{key} = {show(now)} (trained with {show(before)}{more})"


def _part(value: object, *keys: str) -> object:
    """Return the value at a path of keys in parsed JSON; None where the path ends early."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
