"""`EvalConfig` -> the settings that can change a number: what the digest of a run covers."""

from __future__ import annotations

import hashlib
import json

from pbgeval.config.schema import EvalConfig

_MAX_NAMES = 100  # that the settings list one by one


def numeric_settings(config: EvalConfig) -> dict[str, object]:
    """Return the settings that can change a number of the result, ready for JSON.

    The digest of a run covers this dict (and the data), so two configs that give the same dict must give the same
    numbers on the same data, and what cannot change a number must stay out: no paths, no names of relations, nothing
    of training, files per edge or memory. `workers` and `batch_size` count only under `pbg_semantics`, sampling only
    where a relation is sampled, the loss only if it is computed, names only as a set. Values are as decided, not as
    written: candidates per relation, dimension per entity type, the headline's rank type. What names stand for and
    what files hold is for the digests of the data.
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
        "filtered": config.filtered,
        "type_constraint": config.type_constraint,
        "restrict_entities": _set_of_names(config.restrict_entities),
        "restrict_relations": _set_of_names(config.restrict_relations),
        "head_candidates": _set_of_names(config.head_candidates),
        "tail_candidates": _set_of_names(config.tail_candidates),
        "sample_edges": config.sample_edges,
        "target_error": config.target_error,
        "target_metric": None if config.target_error is None else config.target_key,
        "breakdowns": sorted(set(config.breakdowns)),
        "metrics": config.selection.names,
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
            "candidates": "given" if config.candidate_path is not None else config.candidates_of(relation),
        }
        if config.compute_loss:
            settings["weight"] = relation.weight
        relations.append(settings)
    return relations


def _set_of_names(names: list[str] | None) -> list[str] | dict[str, object] | None:
    """Return the names, each once and in order; of many, which would fill a report, their number and a digest."""
    if names is None:
        return None
    distinct = sorted(set(names))
    if len(distinct) <= _MAX_NAMES:
        return distinct
    return {"count": len(distinct), "sha256": hashlib.sha256(json.dumps(distinct).encode()).hexdigest()}
