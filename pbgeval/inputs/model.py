"""`EvalConfig` and model file -> scorers of the relations and the global embeddings."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from pbgeval.config import EvalConfig, RelationSchema
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
from pbgeval.storage.model import ModelParameters, global_embedding, operator_parameters, read_model_parameters

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
    relations = []
    dtype = PRECISIONS[config.precision]
    # One for all relations, so that one tally counts their decisions.
    certified = CertifiedComparator(config.comparator, config.bias) if config.precision == "certified" else None
    for index, schema in enumerate(config.relations):
        parameters: dict[Side, Parameters] = {}
        for side in Side if config.dynamic_relations else (Side.RHS,):
            try:
                read = _operator_of(config, model, index, side, num_relations, path)
                placed = {name: value.to(device, dtype) for name, value in read.items()}
                parameters[side] = OPERATORS[schema.operator].prepared(placed)
            except StorageError as error:
                faults.extend(error.faults)
        relations.append(_relation(config, schema, parameters, certified))
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
    return tuple(relations), globals_


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
    dtype = PRECISIONS[config.precision]
    of_sides = model.parameters()
    for side, parameters in of_sides.items():
        for name, value in parameters.items():
            _check_finite(model.label, f"{name} ({side.pick('lhs', 'rhs')})", value)
    certified = CertifiedComparator(config.comparator, config.bias) if config.precision == "certified" else None
    relations = []
    for index, schema in enumerate(config.relations):
        operator = OPERATORS[schema.operator]
        placed: dict[Side, Parameters] = {}
        for side, parameters in of_sides.items():
            rows = parameters if config.dynamic_relations else {name: of[index] for name, of in parameters.items()}
            placed[side] = operator.prepared({name: value.to(device, dtype) for name, value in rows.items()})
        relations.append(_relation(config, schema, placed, certified))
    return tuple(relations)


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


def _operator_of(
    config: EvalConfig, model: ModelParameters | None, index: int, side: Side, num_relations: int, path: Path
) -> dict[str, Tensor]:
    """Return the parameters of the operator that acts on a side, with a leading R when relations are dynamic."""
    schema = config.relations[index]
    dimension = config.dimension_of(side.pick(schema.lhs, schema.rhs))
    shapes = OPERATORS[schema.operator].shapes(dimension)
    if config.dynamic_relations:
        shapes = {name: (num_relations, *shape) for name, shape in shapes.items()}
    return operator_parameters(model, index, side, schema.operator, shapes, expected_path=path)


def _relation(
    config: EvalConfig,
    schema: RelationSchema,
    parameters: dict[Side, Parameters],
    certified: CertifiedComparator | None,
) -> Relation:
    scorer = RelationScorer(
        name=schema.name,
        operator=schema.operator,
        parameters=parameters,
        comparator=Comparator(config.comparator, config.bias),
        dynamic=config.dynamic_relations,
        lhs_type=schema.lhs,
        rhs_type=schema.rhs,
        weight=schema.weight,
        certified=certified,
    )
    return Relation(scorer, CandidatePolicy(config.candidates_of(schema)), PRECISIONS[config.precision])
