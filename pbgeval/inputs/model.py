"""`EvalConfig` and model file -> scorers of the relations and the global embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from pbgeval.config import EvalConfig
from pbgeval.errors import DataError, StorageError
from pbgeval.models.model import EmbeddingModel
from pbgeval.notation import Side
from pbgeval.ranking.chunks import CandidatePolicy
from pbgeval.ranking.settings import Relation
from pbgeval.scoring.block_scorer import Scorer, ScorerComparator, ScorerRelation
from pbgeval.scoring.certified import CertifiedComparator
from pbgeval.scoring.comparators import Comparator
from pbgeval.scoring.operators import OPERATORS, Parameters
from pbgeval.scoring.scorer import RelationScorer
from pbgeval.storage.checkpoint import model_path
from pbgeval.storage.model import global_embedding, operator_parameters, read_model_parameters

# In what vectors are computed; those for certified ranks are then rounded to float32, once.
PRECISIONS = {"float32": torch.float32, "float64": torch.float64, "certified": torch.float64}
PRODUCTS = {**PRECISIONS, "certified": torch.float32}


def read_relations(
    config: EvalConfig, version: int, num_relations: int, device: torch.device | str = "cpu"
) -> tuple[tuple[Relation, ...], dict[str, Tensor]]:
    """Read the model file.

    Returns:
        A relation per entry of the config, and the global embedding of each entity type that has one.

    Raises:
        StorageError: parameters are missing or have another shape than operator and dimension say.
    """
    model = read_model_parameters(Path(config.checkpoint_path), version)
    path = model_path(Path(config.checkpoint_path), version)
    faults: list[str] = []
    read: list[dict[Side, Parameters]] = [{} for _ in config.relations]
    for index, schema in enumerate(config.relations):
        for side in Side if config.dynamic_relations else (Side.RHS,):
            shapes = OPERATORS[schema.operator].shapes(config.dimension_of(side.pick(schema.lhs, schema.rhs)))
            if config.dynamic_relations:
                shapes = {name: (num_relations, *shape) for name, shape in shapes.items()}
            try:
                read[index][side] = operator_parameters(model, index, side, schema.operator, shapes, expected_path=path)
            except StorageError as error:
                faults.extend(error.faults)
    globals_ = {}
    if config.global_emb:
        for entity_type in config.used_entity_types:
            vector = global_embedding(model, entity_type, config.dimension_of(entity_type))
            if vector is None:
                faults.append(
                    f"{path}: expected a global embedding of entity type '{entity_type}' (global_emb is True), "
                    "found none; set global_emb to False if the model was trained without"
                )
            else:
                globals_[entity_type] = vector.to(device)
    if faults:
        raise StorageError(*faults)
    return _relations(config, read, device), globals_


def relations_of_model(
    config: EvalConfig, model: EmbeddingModel, device: torch.device | str = "cpu"
) -> tuple[Relation, ...]:
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
            _check_finite(model.label, f"{name} ({side.pick('lhs', 'rhs')})", value)
    if config.dynamic_relations:
        return _relations(config, [of_sides], device)
    of_relations = [
        {side: {name: of[index] for name, of in parameters.items()} for side, parameters in of_sides.items()}
        for index in range(len(config.relations))
    ]
    return _relations(config, of_relations, device)


def _check_finite(label: str, name: str, value: Tensor) -> None:
    wrong = (~torch.isfinite(value)).nonzero()
    if wrong.numel():
        raise DataError(
            f"{label}: {name} of relation {int(wrong[0, 0])}: expected finite numbers, found NaN or infinity; "
            "did training diverge?"
        )


def relation_of_scorer(config: EvalConfig, scorer: Scorer) -> Relation:
    """Return the one entry of `relations` where a model is asked for scores by number, which float64 holds."""
    (schema,) = config.relations
    relation = ScorerRelation(ScorerComparator(scorer), schema.lhs, schema.rhs)
    return Relation(relation, CandidatePolicy(config.candidates_of(schema)), torch.float64)


def _relations(
    config: EvalConfig, parameters: Sequence[Mapping[Side, Parameters]], device: torch.device | str
) -> tuple[Relation, ...]:
    """Make the relations of the config from the parameters of each."""
    dtype = PRECISIONS[config.precision]
    # One for all relations, so that one tally counts their decisions.
    certified = CertifiedComparator(config.comparator, config.bias) if config.precision == "certified" else None
    relations = []
    for schema, of_sides in zip(config.relations, parameters, strict=True):
        prepare = OPERATORS[schema.operator].prepared
        scorer = RelationScorer(
            name=schema.name,
            operator=schema.operator,
            parameters={
                side: prepare({name: value.to(device, dtype) for name, value in of_side.items()})
                for side, of_side in of_sides.items()
            },
            comparator=Comparator(config.comparator, config.bias),
            dynamic=config.dynamic_relations,
            lhs_type=schema.lhs,
            rhs_type=schema.rhs,
            weight=schema.weight,
            certified=certified,
        )
        relations.append(Relation(scorer, CandidatePolicy(config.candidates_of(schema)), dtype))
    return tuple(relations)
