"""Inputs -> what determines every number of the result, and what a user should know before it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pbgeval.config import EvalConfig, numeric_settings
from pbgeval.errors import StorageError
from pbgeval.inputs.digests import data_digests
from pbgeval.inputs.opening import Inputs
from pbgeval.inputs.protocol import counts_keys
from pbgeval.reading import read_small_text
from pbgeval.storage.objects import read_object_folder
from pbgeval.storage.text_files import one_line

CONFIG_OF_TRAINING = "config.json"  # which PBG keeps beside a checkpoint
_OF_MODEL = ("comparator", "bias", "dynamic_relations", "global_emb", "max_norm")
_OF_RELATION = ("operator", "lhs", "rhs")


def provenance_of(inputs: Inputs) -> dict[str, Any]:
    """Return the settings and data digests that determine the result; no path, nothing of how it is carried out."""
    settings = numeric_settings(inputs.config)
    if inputs.scorer is not None:  # which is no product of rows
        settings["comparator"] = "scorer"
    return {
        "settings": settings,
        "checkpoint_version": inputs.checkpoint_version if inputs.model is None else None,
        "data": data_digests(inputs),
    }


def things_to_know(inputs: Inputs) -> Iterator[str]:
    """Yield warnings: settings that have no effect or are not those of training, buckets that are not there."""
    config = inputs.config
    if inputs.model is None:
        yield from _differences_from_training(config)
    if config.ignored:
        name = config.source.name if config.source else config.name
        yield f"{name}: keys that only training uses are ignored: {', '.join(config.ignored)}"
    for key in ("dictionary_path", "edge_columns"):  # where files of edges were named, neither is left
        if getattr(config, key) is not None:
            yield f"{key} has no effect: no path of edges names a file of text or Parquet"
    num_buckets = len(inputs.all_buckets())
    for path, files in zip(config.edge_paths, inputs.buckets, strict=True):
        if len(files) < num_buckets:
            folder = read_object_folder(Path(path))
            shown = path if folder is None else folder.url
            yield f"{shown}: {num_buckets - len(files)} of {num_buckets} buckets have no file and count as empty"
    if not counts_keys(inputs) and config.sample_edges is None and config.target_error is None:
        reason = "a type is featurized" if inputs.featurized else "query keys of so many sampled edges are not counted"
        yield f"macro_metrics are left out (null): {reason}"
    featurized = sorted(name for name, entity in config.entities.items() if entity.featurized)
    if featurized and config.num_uniform_negs and config.pbg_semantics:
        yield (
            f"uniform negatives are skipped for featurized entity types ({', '.join(featurized)}), as in PBG: "
            "features cannot be drawn"
        )


def _differences_from_training(config: EvalConfig) -> Iterator[str]:
    """Yield a line for each setting that changes scores and is another one in the config beside the checkpoint."""
    path = Path(config.checkpoint_path) / CONFIG_OF_TRAINING
    try:
        if not path.is_file():
            return
        trained = json.loads(read_small_text(path) or "")
        found = "" if isinstance(trained, Mapping) else f"found a {type(trained).__name__}"
    except (OSError, StorageError, ValueError, RecursionError) as error:
        trained, found = {}, one_line(error)
    if found:
        yield f"{path}: expected a config as JSON, to compare settings with those of training, {found}"
    for before, now in _disagreements(config, trained):
        yield (
            f"{path}: the checkpoint was trained with {one_line(before)}, but is evaluated with {one_line(now)}; "
            "check the config"
        )


def _disagreements(config: EvalConfig, trained: object) -> Iterator[tuple[str, str]]:
    """Yield settings as training had them and as the config has them, those of relations grouped by key."""
    for key in _OF_MODEL:
        now = getattr(config, key)
        if isinstance(trained, Mapping) and trained.get(key, now) != now:
            yield f"{key} = {trained[key]!r}", f"{key} = {now!r}"
    for name in config.used_entity_types:
        own = _part(trained, "entities", name, "dimension")
        before, now = _part(trained, "dimension") if own is None else own, config.dimension_of(name)
        if before not in (None, now):
            yield f"entities[{name!r}].dimension = {before!r}", f"entities[{name!r}].dimension = {now!r}"
    relations = _part(trained, "relations")
    if not isinstance(relations, list):
        return
    if len(relations) != len(config.relations):
        yield f"{len(relations)} relations", f"{len(config.relations)}"
        return
    for key in _OF_RELATION:
        pairs = [
            (_part(theirs, key), getattr(ours, key)) for theirs, ours in zip(relations, config.relations, strict=True)
        ]
        differing = [index for index, (before, now) in enumerate(pairs) if before not in (None, now)]
        if differing:
            what = f"relations[{differing[0]}].{key}"
            before, now = pairs[differing[0]]
            yield f"{what} = {before!r} ({len(differing)} of {len(pairs)} relations differ)", f"{what} = {now!r}"


def _part(value: object, *keys: str) -> object:
    """Return what lies at a path of keys in parsed JSON; None where nothing does."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
