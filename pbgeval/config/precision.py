"""`EvalConfig` -> the precision of its scores, and why they are not exact. This module imports torch."""

from __future__ import annotations

from attrs import frozen

from pbgeval.config.faults import KeyPath
from pbgeval.config.schema import EvalConfig
from pbgeval.ranking.cpu_lists import slow_exact_lists
from pbgeval.scoring.exact import without_exact_ranks

PRECISIONS = ("exact", "float32", "float64")


@frozen
class Obstacle:
    """Something in a config for which exact ranks are not defined."""

    what: str
    keys: tuple[KeyPath, ...]  # that set it


def precision_of(config: EvalConfig) -> str:
    """Return the precision that a config asks for, else exact, but float32 where `why_not_exact` has a reason."""
    if config.precision is not None:
        return config.precision
    return "exact" if why_not_exact(config) is None else "float32"


def obstacle_to_exact(config: EvalConfig) -> Obstacle | None:
    """Return the first obstacle to exact ranks; None if they are defined."""
    if not config.has_vectors:
        return Obstacle("a model that is asked for scores, which are compared as it returns them", ())
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
    if config.precision is not None:
        return None
    obstacle = obstacle_to_exact(config)
    if obstacle is not None:
        return f"exact ranks are not defined for {obstacle.what}"
    sampled = [relation.operator for relation in config.relations if config.candidates_of(relation) == "sampled"]
    slow = slow_exact_lists(
        config.comparator,
        sampled,
        bias=config.bias,
        dynamic=config.dynamic_relations,
    )
    return None if slow is None else f"exact ranks in sampled lists take 1.5 to 6 times as long on a CPU with {slow}"
