"""Inputs -> what determines every number of the result, and what a user should know before it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pbgeval.config import numeric_settings
from pbgeval.inputs.digests import data_digests
from pbgeval.inputs.opening import Inputs
from pbgeval.inputs.protocol import counts_keys
from pbgeval.storage.objects import read_object_folder


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
    """Yield warnings: settings that have no effect, buckets that are not there."""
    config = inputs.config
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
