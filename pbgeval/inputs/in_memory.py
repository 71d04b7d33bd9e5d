"""A model or edges in memory -> the inputs of an evaluation, as if they had been read from files."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TypeAlias

from pbgeval.config import EvalConfig, check_config
from pbgeval.config.models import SCORER, ModelForm
from pbgeval.config.overrides import is_url
from pbgeval.errors import ConfigError, ScorerError
from pbgeval.inputs.opening import Inputs, Model, open_inputs
from pbgeval.models.model import EmbeddingModel
from pbgeval.models.opening import open_model
from pbgeval.scoring.block_scorer import Scorer
from pbgeval.storage.edges import Array, ArrayEdges, Edges

GivenModel: TypeAlias = EmbeddingModel | Scorer | str | PathLike[str]

__all__ = ["Array", "Edges", "GivenModel", "open_in_memory"]


def open_in_memory(config: EvalConfig, model: GivenModel | None, edges: Edges | Array | None) -> Inputs:
    """Check the config together with what is handed in, and open the rest.

    Args:
        config: not checked yet.
        model: in place of what the config would name; None: it names one.
        edges: likewise.

    Raises:
        EvalError: all faults, a line each.
    """
    opened = None if model is None else _opened(model, trust_pickle=config.trust_pickle)
    by_key: Mapping[str, Mapping[str, ArrayEdges]] = {}
    if edges is not None:
        by_key = (edges if isinstance(edges, Edges) else Edges(edges)).by_name()
    form = None
    if opened is not None:
        form = ModelForm.from_model(opened) if isinstance(opened, EmbeddingModel) else SCORER
    checked = check_config(config, form, by_key)
    if opened is not None and not isinstance(opened, EmbeddingModel) and checked.precision == "certified":
        raise ConfigError(
            "precision: expected 'float32' or 'float64' of a model that scores by number, got 'certified'"
        )
    edge_paths = [*checked.edge_paths, *checked.filter_paths, *checked.train_paths]
    for path in (checked.entity_path, checked.checkpoint_path, *edge_paths):
        if is_url(path):
            raise ConfigError(f"{path}: expected local paths beside what is in memory, got a URL; copy it here")
    arrays = {name: array for of_key in by_key.values() for name, array in of_key.items()}
    return open_inputs(checked, opened, arrays)


def _opened(model: GivenModel, *, trust_pickle: bool) -> Model:
    if isinstance(model, EmbeddingModel):
        return model
    if isinstance(model, str | PathLike):
        return open_model(Path(model), trust_pickle=trust_pickle)
    for name in ("num_entities", "num_relations", "scores"):
        if not hasattr(model, name):
            raise ScorerError(
                f"model: expected a path, or an object with num_entities, num_relations and scores, got "
                f"{type(model).__name__} without {name}; edge_scorer or batch_scorer make one of a function or module"
            )
    for name in ("num_entities", "num_relations"):
        found = getattr(model, name)
        if not isinstance(found, int) or isinstance(found, bool) or found < 1:
            raise ScorerError(f"{type(model).__name__}.{name}: expected an int >= 1, got {found!r}")
    return model
