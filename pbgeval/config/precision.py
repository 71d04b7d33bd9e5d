"""`EvalConfig` -> the precision of its scores, and for what exact ranks are not defined. This module imports torch."""

from __future__ import annotations

from attrs import frozen

from pbgeval.config.faults import KeyPath
from pbgeval.config.schema import EvalConfig
from pbgeval.scoring.exact import without_exact_ranks

PRECISIONS = ("exact", "float32", "float64")


@frozen
class Obstacle:
    """Something in a config for which exact ranks are not defined."""

    what: str
    keys: tuple[KeyPath, ...]  # that set it


def precision_of(config: EvalConfig) -> str:
    """Return the precision that a config asks for, else exact where it is defined, else float32."""
    if config.precision is not None:
        return config.precision
    return "exact" if obstacle_to_exact(config) is None else "float32"


def obstacle_to_exact(config: EvalConfig) -> Obstacle | None:
    """Return the first obstacle to exact ranks; None if they are defined."""
    if not config.has_vectors:
        return Obstacle("a model that is asked for scores", ())
    if config.pbg_semantics:
        what = "pbg_semantics = True, because torchbiggraph_eval compares rounded scores"
        return Obstacle(what, (("pbg_semantics",),))
    if config.relation_prediction:
        return Obstacle("relation_prediction = True, which ranks relations", (("relation_prediction",),))
    found = without_exact_ranks(config.comparator, [relation.operator for relation in config.relations])
    if found is None:
        return None
    keys: list[KeyPath] = [("comparator",), *(("relations", at, "operator") for at in range(len(config.relations)))]
    return Obstacle(found, tuple(keys))


def why_not_exact(config: EvalConfig) -> str | None:
    """Return why a config that asks for no precision has float32; None if it asks for one, or has exact ranks."""
    found = None if config.precision is not None else obstacle_to_exact(config)
    return None if found is None else f"exact ranks are not defined for {found.what}"
