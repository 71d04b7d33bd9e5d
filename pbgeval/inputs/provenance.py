"""Inputs -> what determines every number of the result, and what a user should know before it."""

from __future__ import annotations

import hashlib
import json
import math
import uuid
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

from attrs import asdict

from pbgeval.config import EvalConfig
from pbgeval.config.effects import warnings_without_effect
from pbgeval.config.precision import precision_of
from pbgeval.inputs.model import difference_from_training, evaluated_in_training
from pbgeval.inputs.names import relation_groups
from pbgeval.inputs.opening import EDGE_PATHS, Inputs, grid
from pbgeval.inputs.protocol import counts_keys
from pbgeval.models.model import EmbeddingModel
from pbgeval.storage.checkpoint_paths import model_path
from pbgeval.storage.edges import fingerprints_of
from pbgeval.storage.left_out import UNKNOWN
from pbgeval.storage.objects import read_object_folder
from pbgeval.storage.text import fingerprint

# `EvalConfig` -> the settings that can change a number: what the digest of a run covers.

_MAX_NAMES = 100  # that the settings list one by one
_AS_THEY_ARE = (
    *("dynamic_relations", "max_norm", "global_emb", "comparator", "bias", "type_constraint"),
    *("disable_lhs_negs", "disable_rhs_negs", "seed", "headline", "pbg_semantics", "compute_loss", "filtered"),
    *("sample_edges", "target_error"),
)
_OF_TIME = ("time_window", "known_until")
_LISTS_OF_NAMES = ("restrict_entities", "restrict_relations", "head_candidates", "tail_candidates")


def numeric_settings(config: EvalConfig) -> dict[str, object]:
    """Return the settings that can change a number of the result, ready for JSON.

    The digest of a run covers this dict (and the data), so two configs that give the same dict must give the same
    numbers on the same data, and what cannot change a number must stay out: no paths, no names of relations, nothing
    of training, files per edge or memory. `workers` and `batch_size` count only under `pbg_semantics`, sampling only
    where a relation is sampled, the loss only if it is computed, names only as a set. Values are as decided, not as
    written: candidates per relation, dimension per entity type, the headline's rank type. What names stand for and
    what files hold is for the digests of the data.
    """
    samples = any(config.candidates_of(relation) == "sampled" for relation in config.relations)
    keys = [
        *_AS_THEY_ARE,
        *(("num_batch_negs", "num_uniform_negs") if samples else ()),
        *(("num_degree_negs", "degree_power") if samples and config.num_degree_negs else ()),
        *(("workers", "batch_size") if config.pbg_semantics else ()),
        *(("loss_fn",) if config.compute_loss else ()),
        *(("time_bin",) if "time" in config.breakdowns else ()),
        *(("margin",) if config.compute_loss and config.loss_fn == "ranking" else ()),
    ]
    return {
        "entities": {
            name: {
                "num_partitions": entity.num_partitions,
                "featurized": entity.featurized,
                "dimension": config.dimension_of(name),
            }
            for name, entity in config.entities.items()
        },
        "relations": [
            {
                "lhs": relation.lhs,
                "rhs": relation.rhs,
                "operator": relation.operator,
                "candidates": "given" if config.candidate_path is not None else config.candidates_of(relation),
                **({"weight": relation.weight} if config.compute_loss else {}),
            }
            for relation in config.relations
        ],
        **{key: getattr(config, key) for key in keys},
        "precision": precision_of(config),
        **{key: _set_of_names(getattr(config, key)) for key in _LISTS_OF_NAMES},
        **({"relation_prediction": True} if config.relation_prediction else {}),
        **{key: getattr(config, key) for key in _OF_TIME if getattr(config, key) is not None},
        **({"topk_metrics": True, "save_topk": config.save_topk} if config.topk_metrics else {}),
        "hits_at": sorted(set(config.hits_at)),
        "target_metric": None if config.target_error is None else config.target_key,
        "breakdowns": sorted(set(config.breakdowns)),
        "metrics": config.selection.names,
    }


def _set_of_names(names: list[str] | None) -> list[str] | dict[str, object] | None:
    """Return the names, each once and in order; of many, which would fill a report, their number and a digest."""
    if names is None:
        return None
    distinct = sorted(set(names))
    if len(distinct) <= _MAX_NAMES:
        return distinct
    return {"count": len(distinct), "sha256": hashlib.sha256(json.dumps(distinct).encode()).hexdigest()}


# Inputs -> digests of the content of everything that can change a number.


def can_be_resumed(inputs: Inputs) -> bool:
    """Return whether the model has a digest; a function or module has none, as nothing tells whether it has changed."""
    return inputs.scorer is None or getattr(inputs.scorer, "digest", None) is not None


def _digest_of_model(inputs: Inputs) -> object:
    """Return digests of a model; a new one for a model without any, so that no two of its runs are the same."""
    if isinstance(inputs.model, EmbeddingModel):
        return {"system": inputs.model.system, "formula": asdict(inputs.model.formula), **inputs.model.digests()}
    if inputs.scorer is not None:
        digest = getattr(inputs.scorer, "digest", None) or uuid.uuid4().hex
        times = {"takes_time": True} if inputs.takes_time else {}
        return {"scorer": type(inputs.scorer).__name__, "digest": digest, **times}
    model = model_path(Path(inputs.config.checkpoint_path), inputs.checkpoint_version)
    return fingerprint(model) if model.exists() else None


def provenance_of(inputs: Inputs) -> dict[str, Any]:
    """Return the settings that determine the result, and a digest of the content of every file that can change it.

    No path, and nothing of how it is carried out.
    """
    # A function is no product of rows.
    settings = numeric_settings(inputs.config) | ({} if inputs.scorer is None else {"comparator": "scorer"})
    groups: str | None = None
    if "groups" in inputs.config.breakdowns:
        of_groups = relation_groups(inputs.config, inputs.num_relations, inputs.model)
        canonical = json.dumps({name: ids.tolist() for name, ids in of_groups.items()}, sort_keys=True)
        groups = hashlib.sha256(canonical.encode()).hexdigest()
    data = {
        "restrictions": inputs.restrictions.digest,
        "relation_groups": groups,
        "candidates": [
            {f"{bucket.lhs}_{bucket.rhs}": fingerprint(file.path) for bucket, file in sorted(files.items())}
            for files in inputs.candidate_files
        ],
        "edges": [fingerprints_of(files) for files in inputs.buckets],
        "filter": [fingerprints_of(inputs.known[path]) for path in dict.fromkeys(inputs.config.filter_paths)],
        "training": [fingerprints_of(files) for files in inputs.training_buckets],
        "embeddings": {
            f"{entity_type}_{partition}": rows.fingerprint()
            for (entity_type, partition), rows in sorted(inputs.embeddings.items(), key=itemgetter(0))
        },
        "model": _digest_of_model(inputs),
        **({} if not inputs.left_out else {"left_out": _left_out(inputs)}),
    }
    return {
        "settings": settings,
        "checkpoint_version": inputs.checkpoint_version if inputs.model is None else None,
        "data": data,
    }


def _left_out(inputs: Inputs) -> dict[str, list[int]]:
    """Return how many edges imports have left out of each path, by the key of the paths."""
    counts = {path: of.num_left_out for path, of in inputs.left_out.items()}
    return {key: [counts.get(path, 0) for path in getattr(inputs.config, key)] for key in EDGE_PATHS}


def _shown(path: str) -> str:
    """Return what a user calls a folder of edges: its URL, if it is a copy."""
    folder = read_object_folder(Path(path))
    return path if folder is None else folder.url


def startup_warnings(inputs: Inputs) -> Iterator[str]:
    """Yield warnings: settings that have no effect or are not those of training, buckets that are not there."""
    config = inputs.config
    if inputs.model is None:
        yield from difference_from_training(config)
        yield from evaluated_in_training(config)
    yield from warnings_without_effect(config)
    for path, of in inputs.left_out.items():
        what = "edges" if path in config.edge_paths else "known edges"
        yield (
            f"{_shown(path)}: {of.num_left_out:,} of {of.num_read:,} {what} are skipped: {of.unknown_names}; listed in "
            f"{_shown(path)}/{UNKNOWN}"
        )
    num_buckets = math.prod(grid(inputs.config))
    for path, files in zip(config.edge_paths, inputs.buckets, strict=True):
        if len(files) < num_buckets:
            yield f"{_shown(path)}: {num_buckets - len(files)} of {num_buckets} buckets have no file and count as empty"
    if not counts_keys(inputs) and not inputs.is_sample:
        reason = "a type is featurized" if inputs.featurized else "too many edges to count query keys"
        yield f"macro_metrics are null: {reason}"
    featurized = sorted(name for name, entity in config.entities.items() if entity.featurized)
    if featurized and config.num_uniform_negs and config.pbg_semantics:
        yield (
            f"uniform negatives are skipped for featurized entity types ({', '.join(featurized)}), as in PBG: "
            "features cannot be drawn"
        )
