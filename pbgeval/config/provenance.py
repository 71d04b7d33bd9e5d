"""`EvalConfig` -> the settings that can change a number: what the digest of a run covers."""

from __future__ import annotations

from pbgeval.config.schema import EvalConfig


def numeric_settings(config: EvalConfig) -> dict[str, object]:
    """The settings that can change a number of the result, ready for JSON.

    The digest of a run covers this dict (and the data), so two configs that give the same dict must give the same
    numbers on the same data, and what cannot change a number must stay out: no paths, no names of relations, nothing
    of training, output or memory. `workers` and `batch_size` count only under `pbg_semantics`, sampling only where a
    relation is sampled, the loss only if it is computed. Values are as decided, not as written: candidates per
    relation, dimension per entity type, the headline's rank type. A key of `NOT_BUILT` enters when it is built.
    """
    settings: dict[str, object] = {
        "entities": {
            name: {
                "num_partitions": entity.num_partitions,
                "featurized": entity.featurized,
                "dimension": config.dimension_of(name),
            }
            for name, entity in config.entities.items()
        },
        "relations": _relations(config),
        "dynamic_relations": config.dynamic_relations,
        "max_norm": config.max_norm,
        "global_emb": config.global_emb,
        "comparator": config.comparator,
        "bias": config.bias,
        "disable_lhs_negs": config.disable_lhs_negs,
        "disable_rhs_negs": config.disable_rhs_negs,
        "seed": config.seed,
        "precision": config.precision,
        "headline": config.headline,
        "hits_at": sorted(set(config.hits_at)),
        "pbg_semantics": config.pbg_semantics,
        "compute_loss": config.compute_loss,
    }
    if any(config.candidates_of(relation) == "sampled" for relation in config.relations):
        settings["num_batch_negs"] = config.num_batch_negs
        settings["num_uniform_negs"] = config.num_uniform_negs
    if config.pbg_semantics:
        settings["workers"] = config.workers
        settings["batch_size"] = config.batch_size
    if config.compute_loss:
        settings["loss_fn"] = config.loss_fn
        if config.loss_fn == "ranking":
            settings["margin"] = config.margin
    return settings


def _relations(config: EvalConfig) -> list[dict[str, object]]:
    relations: list[dict[str, object]] = []
    for relation in config.relations:
        settings: dict[str, object] = {
            "lhs": relation.lhs,
            "rhs": relation.rhs,
            "operator": relation.operator,
            "candidates": config.candidates_of(relation),
        }
        if config.compute_loss:
            settings["weight"] = relation.weight
        relations.append(settings)
    return relations
